/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * Runs the packets of mapped AQL queues. A packet is one of the simulated device's clients (adapters/sim/src/aql.hpp): a
 * kernel dispatch whose code object is its length in nanoseconds. It occupies one wave slot for every 64 work items, as
 * long as it runs; a queue runs one packet at a time. An unmapped queue stops at once, and what remained of its packet
 * runs when it is mapped again.
 */
#include <linux/debugfs.h>
#include <linux/kthread.h>
#include <linux/mmu_context.h>
#include <linux/sched/mm.h>
#include <linux/seq_file.h>
#include <linux/uaccess.h>

#include "shim.h"
#include "kfd_priv.h"
#include "soc15_int.h"
#include "v9_structs.h"
#include "v11_structs.h"

static int packet_delay_us;
module_param(packet_delay_us, int, 0644);
MODULE_PARM_DESC(packet_delay_us, "what each packet takes beside its own length");

static int packet_hang_at;
module_param(packet_hang_at, int, 0644);
MODULE_PARM_DESC(packet_hang_at, "the n-th packet from now never ends; 0: none");

static int packet_error_at;
module_param(packet_error_at, int, 0644);
MODULE_PARM_DESC(packet_error_at, "the n-th packet from now is taken for one of an unknown type; 0: none");

/* How often a queue is looked at for new packets: user space's doorbells reach no code of this kernel. */
#define POLL_BUSY_NS (100 * NSEC_PER_USEC)
#define POLL_IDLE_NS NSEC_PER_MSEC
#define BUSY_FOR_NS (10 * NSEC_PER_MSEC)
#define NEVER U64_MAX

#define HEADER_VENDOR_SPECIFIC 0
#define HEADER_INVALID 1
#define HEADER_KERNEL_DISPATCH 2
#define WAVE_LANES 64
#define LONGEST_KERNEL (S64_MAX / 8)

/* as hsa_kernel_dispatch_packet_t */
struct packet {
	u16 header, setup;
	u16 workgroup[3], reserved0;
	u32 grid[3];
	u32 private_size, group_size;
	u64 kernel_object;
	u64 kernarg;
	u64 reserved2;
	u64 completion_signal;
};

/* as amd_signal_t */
struct signal {
	s64 kind, value;
	u64 mailbox;
	u32 event_id, reserved1;
	u64 start_ts, end_ts;
	u64 queue;
	u32 reserved3[2];
};

/* A queue's execution. It outlives an unmap, as the save area of a real queue does. */
struct execution {
	struct list_head node;
	u64 mqd;
	u32 pasid, vmid;
	u32 doorbell;			/* number in the process's page of doorbells */
	pid_t pid;			/* 0: not known yet */
	u64 ring, rptr_at, wptr_at;	/* addresses of the process */
	u32 packets;			/* in the ring */
	bool mapped;
	bool failed;			/* at a packet; the MQD keeps it, as CP_HQD_ERROR, until the driver makes another queue */
	bool remapped;			/* and since then not looked at */
	u64 next;			/* index of the next packet to start */
	u64 started, completed;		/* packets */
	bool running;
	u32 waves;
	u64 began;			/* ns, for the signal */
	u64 resumed, remaining;		/* of the running packet, ns */
	u64 signal;
	u64 last_work;			/* when a packet was last seen, ns */
	u64 waiting_since;		/* of the packet at the head; 0: none waits */
	bool tried;			/* to start it, in this pass */
};

static int executions_show(struct seq_file *file, void *unused)
{
	struct shim_executor *executor = file->private;
	struct execution *of;

	mutex_lock(&executor->lock);
	list_for_each_entry(of, &executor->executions, node)
		seq_printf(file, "pasid %u mapped %d started %llu completed %llu\n", of->pasid, of->mapped,
			   of->started, of->completed);
	mutex_unlock(&executor->lock);
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(executions);

static int run(void *data);

int shim_executor_init(struct shim_device *shim)
{
	struct shim_executor *executor = &shim->executor;

	debugfs_create_file("executions", 0444, shim->debugfs, executor, &executions_fops);

	mutex_init(&executor->lock);
	INIT_LIST_HEAD(&executor->executions);
	init_waitqueue_head(&executor->wait);
	executor->free_waves = shim->adev.gfx.cu_info.number * shim->adev.gfx.cu_info.simd_per_cu *
			       shim->adev.gfx.cu_info.max_waves_per_simd;
	return PTR_ERR_OR_ZERO(kthread_run(run, shim, "sluice-gpu%d", shim->index));
}

/* Another process may get the PASID later: *pid tells which one is meant, and 0 becomes the one that has it now. */
static struct mm_struct *get_mm(u32 pasid, pid_t *pid)
{
	struct kfd_process *process = kfd_lookup_process_by_pasid(pasid);
	struct mm_struct *mm = NULL;

	if (!process)
		return NULL;
	if (!*pid)
		*pid = process->lead_thread->pid;
	if (*pid == process->lead_thread->pid)
		mm = get_task_mm(process->lead_thread);
	kfd_unref_process(process);
	return mm;
}

/*
 * Accesses to the memory of the process whose mm is in use. They do not fault: the fault handler takes the mm's lock,
 * whose holder may wait for an unmap, which waits for the executor. Clients have touched what they share.
 */
static bool load(void *to, u64 from, size_t size)
{
	return copy_from_user_nofault(to, u64_to_user_ptr(from), size) == 0;
}

static bool store(u64 to, const void *from, size_t size)
{
	return copy_to_user_nofault(u64_to_user_ptr(to), from, size) == 0;
}

/* A new queue may have the place and the addresses of a destroyed one. Its packets begin at its read index. */
static void look_for_new_queue(struct shim_executor *executor, struct execution *of)
{
	u64 rptr;

	if (!of->remapped || !load(&rptr, of->rptr_at, sizeof(rptr)))
		return;
	of->remapped = false;
	if (rptr == of->next)
		return;
	of->next = rptr;
	if (of->running)
		executor->free_waves += of->waves;
	of->running = false;
}

static void look_for_packet(struct execution *of, u64 now)
{
	u64 wptr;
	u16 header;

	if (!load(&wptr, of->wptr_at, sizeof(wptr)) || of->next >= wptr ||
	    !load(&header, of->ring + of->next % of->packets * sizeof(struct packet), sizeof(header)) ||
	    (header & 0xff) == HEADER_INVALID) {
		of->waiting_since = 0;
		return;
	}
	of->last_work = now;
	if (!of->waiting_since)
		of->waiting_since = now;
}

/* \return what is wrong with a packet, or EC_NONE. */
static enum kfd_dbg_trap_exception_code check(const struct packet *packet)
{
	if (packet_error_at > 0 && --packet_error_at == 0)
		return EC_QUEUE_PACKET_UNSUPPORTED;
	if ((packet->header & 0xff) == HEADER_VENDOR_SPECIFIC)
		return EC_QUEUE_PACKET_VENDOR_UNSUPPORTED;
	if ((packet->header & 0xff) != HEADER_KERNEL_DISPATCH)
		return EC_QUEUE_PACKET_UNSUPPORTED;
	if (!(packet->setup & 3))
		return EC_QUEUE_PACKET_DISPATCH_DIM_INVALID;
	if (packet->kernel_object > LONGEST_KERNEL)
		return EC_QUEUE_PACKET_DISPATCH_CODE_INVALID;
	if (packet->completion_signal % __alignof__(struct signal))
		return EC_QUEUE_PACKET_RESERVED;
	return EC_NONE;
}

/* The queue takes no packet any more, and the driver learns why. */
static void fail_queue(struct shim_device *shim, struct execution *of, enum kfd_dbg_trap_exception_code why)
{
	void *mqd = shim_gpu_address(&shim->adev, of->mqd);

	of->failed = true;
	of->waiting_since = 0;
	if (amdgpu_ip_version(&shim->adev, GC_HWIP, 0) >= IP_VERSION(11, 0, 0))
		((struct v11_compute_mqd *)mqd)->cp_hqd_error = why;
	else
		((struct v9_mqd *)mqd)->cp_hqd_error = why;
	shim_interrupt(shim, (u32[8]){
		SOC15_IH_CLIENTID_GRBM_CP | SOC15_INTSRC_CP_BAD_OPCODE << 8 | of->vmid << 24,
		[3] = of->pasid,
		[4] = of->doorbell | why << 10,	/* KFD_DEBUG_DOORBELL_ID, KFD_DEBUG_CP_BAD_OP_ECODE */
	});
}

static void start_packet(struct shim_device *shim, struct execution *of, u64 now)
{
	struct shim_executor *executor = &shim->executor;
	u64 slot = of->ring + of->next % of->packets * sizeof(struct packet);
	enum kfd_dbg_trap_exception_code wrong;
	u16 invalid = HEADER_INVALID;
	struct packet packet;
	u64 next = of->next + 1;

	if (!load(&packet, slot, sizeof(packet)))
		return;
	of->waves = max_t(u32, packet.grid[0] / WAVE_LANES, 1);
	if (of->waves > executor->free_waves)
		return;
	wrong = check(&packet);
	if (wrong != EC_NONE) {
		fail_queue(shim, of, wrong);
		return;
	}
	if (!store(slot, &invalid, sizeof(invalid)) || !store(of->rptr_at, &next, sizeof(next)))
		return;
	executor->free_waves -= of->waves;
	of->next = next;
	of->started++;
	of->signal = packet.completion_signal;
	of->running = true;
	of->began = of->resumed = now;
	of->remaining = packet.kernel_object + packet_delay_us * (u64)NSEC_PER_USEC;
	if (packet_hang_at > 0 && --packet_hang_at == 0)
		of->remaining = NEVER;
	of->waiting_since = 0;
}

/* As the processor of packets: stamps, value, mailbox, and the interrupt for the event. */
static void complete_packet(struct shim_device *shim, struct execution *of, u64 now)
{
	u64 event, stamps[2] = { of->began, now };
	struct signal signal;

	shim->executor.free_waves += of->waves;
	of->running = false;
	of->completed++;
	of->last_work = now;
	if (!of->signal || !load(&signal, of->signal, sizeof(signal)))
		return;
	signal.value--;
	store(of->signal + offsetof(struct signal, start_ts), stamps, sizeof(stamps));
	store(of->signal + offsetof(struct signal, value), &signal.value, sizeof(signal.value));
	event = signal.event_id;
	if (!event || !store(signal.mailbox, &event, sizeof(event)))
		return;
	shim_interrupt(shim, (u32[8]){
		SOC15_IH_CLIENTID_GRBM_CP | SOC15_INTSRC_CP_END_OF_PIPE << 8 |
			of->vmid << 24,
		[3] = of->pasid,
		[4] = event,
	});
}

static u64 end_of(const struct execution *of)
{
	return of->remaining == NEVER ? NEVER : of->resumed + of->remaining;
}

/* One pass over all queues. \return when the next one is due, in ns. */
static u64 step(struct shim_device *shim)
{
	struct shim_executor *executor = &shim->executor;
	struct execution *of, *next, *first;
	u64 now = ktime_get_ns(), due = NEVER;

	mutex_lock(&executor->lock);
	list_for_each_entry_safe(of, next, &executor->executions, node) {
		struct mm_struct *mm = get_mm(of->pasid, &of->pid);

		of->tried = false;
		if (!mm) {	/* The process is gone. */
			if (of->mapped)
				continue;
			list_del(&of->node);
			kfree(of);
			continue;
		}
		kthread_use_mm(mm);
		if (of->mapped)
			look_for_new_queue(executor, of);
		if (of->mapped && of->running && end_of(of) <= now)
			complete_packet(shim, of, end_of(of));
		if (of->mapped && !of->running && !of->failed)
			look_for_packet(of, now);
		kthread_unuse_mm(mm);
		mmput_async(mm);
	}
	/* The packet that has waited longest starts first; one that does not fit does not stop smaller ones. */
	for (;;) {
		struct mm_struct *mm;

		first = NULL;
		list_for_each_entry(of, &executor->executions, node)
			if (of->mapped && !of->running && of->waiting_since && !of->tried &&
			    (!first || of->waiting_since < first->waiting_since))
				first = of;
		if (!first)
			break;
		mm = get_mm(first->pasid, &first->pid);
		if (mm) {
			kthread_use_mm(mm);
			start_packet(shim, first, now);
			kthread_unuse_mm(mm);
			mmput_async(mm);
		}
		first->tried = true;
	}
	list_for_each_entry(of, &executor->executions, node) {
		if (!of->mapped)
			continue;
		/* A packet stays overdue where its process is gone and its queue not yet unmapped. */
		if (of->running && end_of(of) > now)
			due = min(due, end_of(of));
		else
			due = min(due, now + (now - of->last_work < BUSY_FOR_NS ? POLL_BUSY_NS : POLL_IDLE_NS));
	}
	mutex_unlock(&executor->lock);
	return due;
}

static int run(void *data)
{
	struct shim_device *shim = data;

	while (!kthread_should_stop()) {
		u64 due = step(shim), now = ktime_get_ns();

		if (due == NEVER) {
			wait_event_interruptible(shim->executor.wait,
						 READ_ONCE(shim->executor.changed) || kthread_should_stop());
		} else if (due > now) {
			wait_event_interruptible_hrtimeout(shim->executor.wait, READ_ONCE(shim->executor.changed),
							   ns_to_ktime(due - now));
		}
		WRITE_ONCE(shim->executor.changed, false);
	}
	return 0;
}

static void wake(struct shim_executor *executor)
{
	WRITE_ONCE(executor->changed, true);
	wake_up(&executor->wait);
}

static struct execution *find(struct shim_executor *executor, const struct shim_queue *queue)
{
	struct execution *of;

	list_for_each_entry(of, &executor->executions, node)
		if (of->mqd == queue->mqd && of->pasid == queue->pasid)
			return of;
	return NULL;
}

/* The structures of gfx9 and gfx11 differ in where these fields lie, and not in what they say. */
#define READ_MQD(mqd)                                                                                       \
	do {                                                                                                \
		ring = ((u64)(mqd)->cp_hqd_pq_base_hi << 32 | (mqd)->cp_hqd_pq_base_lo) << 8;               \
		of->rptr_at = (u64)(mqd)->cp_hqd_pq_rptr_report_addr_hi << 32 |                             \
			      (mqd)->cp_hqd_pq_rptr_report_addr_lo;                                         \
		of->wptr_at = (u64)(mqd)->cp_hqd_pq_wptr_poll_addr_hi << 32 |                               \
			      (mqd)->cp_hqd_pq_wptr_poll_addr_lo;                                           \
		of->packets = (2U << ((mqd)->cp_hqd_pq_control & 0x3f)) * 4 / sizeof(struct packet);        \
		of->failed = (mqd)->cp_hqd_error;                                                           \
	} while (0)

void shim_executor_map(struct shim_device *shim, const struct shim_queue *queue)
{
	struct shim_executor *executor = &shim->executor;
	void *mqd = shim_gpu_address(&shim->adev, queue->mqd);
	struct execution *of;
	u64 ring;

	if (!mqd || queue->engine)
		return;
	mutex_lock(&executor->lock);
	of = find(executor, queue);
	if (!of) {
		/* Memory reclaim may evict a process, for which the driver takes the lock that it holds here. */
		of = kzalloc(sizeof(*of), GFP_ATOMIC);
		if (!of)
			goto unlock;
		of->mqd = queue->mqd;
		of->pasid = queue->pasid;
		list_add_tail(&of->node, &executor->executions);
	}
	if (amdgpu_ip_version(&shim->adev, GC_HWIP, 0) >= IP_VERSION(11, 0, 0))
		READ_MQD((struct v11_compute_mqd *)mqd);
	else
		READ_MQD((struct v9_mqd *)mqd);
	if (of->ring != ring)
		of->running = false;
	of->ring = ring;
	of->vmid = queue->vmid;
	of->doorbell = queue->doorbell % (PAGE_SIZE / sizeof(u32)) / 2;	/* of 8 bytes each */
	of->mapped = of->remapped = true;
	of->resumed = of->last_work = ktime_get_ns();
	if (of->running)
		executor->free_waves -= of->waves;
unlock:
	mutex_unlock(&executor->lock);
	wake(executor);
}

void shim_executor_unmap(struct shim_device *shim, const struct shim_queue *queue)
{
	struct shim_executor *executor = &shim->executor;
	struct execution *of;
	u64 now;

	mutex_lock(&executor->lock);
	of = find(executor, queue);
	if (of && of->mapped) {
		now = ktime_get_ns();
		if (of->running) {
			executor->free_waves += of->waves;
			if (of->remaining != NEVER)
				of->remaining -= min(of->remaining, now - of->resumed);
		}
		of->mapped = false;
	}
	mutex_unlock(&executor->lock);
	wake(executor);
}
