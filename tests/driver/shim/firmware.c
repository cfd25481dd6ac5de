/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * The firmware that maps queues to hardware queues: the hardware scheduler (HWS), which reads packets of the driver from
 * its ring (HIQ), and MES, which amdgpu calls through functions.
 */
#include "shim.h"
#include "kfd_pm4_headers_ai.h"
#include "kfd_pm4_opcodes.h"
#include "mes_v11_api_def.h"
#include "soc15_common.h"
#include "soc15d.h"
#include "v9_structs.h"
#include "v11_structs.h"

static int unmap_us;
module_param(unmap_us, int, 0644);
MODULE_PARM_DESC(unmap_us, "time that one unmap takes, in microseconds");

static int quantum_us = 10000;
module_param(quantum_us, int, 0644);
MODULE_PARM_DESC(quantum_us, "how long one set of queues stays mapped where not all fit into the hardware queues and VMIDs");

static int hang = -1;
module_param(hang, int, 0644);
MODULE_PARM_DESC(hang, "the firmware of this device no longer answers, until the device is reset; -1: all answer");

static bool hangs(const struct shim_device *shim)
{
	return hang == shim->index;
}

static int fail_at;
module_param(fail_at, int, 0644);
MODULE_PARM_DESC(fail_at, "the firmware stops answering at the n-th unmap from now; 0: never");

static bool trace;
module_param(trace, bool, 0644);
MODULE_PARM_DESC(trace, "log each packet of HWS and each queue of MES");

/* CP_MQD_BASE_ADDR of gc_9_0_offset.h (and 9.4.2, 9.4.3) and gc_11_0_0_offset.h, segment 0 */
#define GFX9_CP_MQD_BASE_ADDR 0x1245
#define GFX11_CP_MQD_BASE_ADDR 0x1fa9
/* From CP_MQD_BASE_ADDR to CP_HQD_PQ_WPTR_HI, what an hqd_dump of amdgpu reads, in the order of the registers */
#define HQD_REGISTERS 56

static void write_hqd(struct shim_device *shim, const struct shim_queue *queue, bool active)
{
	struct amdgpu_device *adev = &shim->adev;
	void *mqd = shim_gpu_address(adev, queue->mqd);
	bool gfx11 = amdgpu_ip_version(adev, GC_HWIP, 0) >= IP_VERSION(11, 0, 0);
	u32 reg = adev->reg_offset[GC_HWIP][0][0] + (gfx11 ? GFX11_CP_MQD_BASE_ADDR : GFX9_CP_MQD_BASE_ADDR);
	u32 values[HQD_REGISTERS] = {};
	struct v11_compute_mqd *v11 = mqd;
	struct v9_mqd *v9 = mqd;

	if (queue->hqd < 0 || !mqd)
		return;
	if (active)
		memcpy(values, gfx11 ? &v11->cp_mqd_base_addr_lo : &v9->cp_mqd_base_addr_lo, sizeof(values));
	values[2] = active;	/* CP_HQD_ACTIVE */
	values[3] = active ? queue->vmid : 0;	/* CP_HQD_VMID */
	shim_hqd_write(shim, queue->hqd, reg, values, HQD_REGISTERS);
}

/* Which hardware queues the driver leaves to the firmware: SET_RESOURCES of HWS, mes_v11_0_set_hw_resources() of MES. */
static bool may_use_hqd(const struct shim_device *shim, int hqd)
{
	const struct amdgpu_device *adev = &shim->adev;
	int queues = adev->gfx.mec.num_queue_per_pipe;

	if (adev->enable_mes)
		return adev->mes.compute_hqd_mask[hqd / queues] & BIT(hqd % queues);
	return shim->firmware.hqd_mask & BIT_ULL(hqd);
}

/* \return a hardware queue, or -1: all are in use. */
static int free_hqd(const struct shim_device *shim)
{
	const struct shim_firmware *firmware = &shim->firmware;
	int hqd, i;

	for (hqd = 0; hqd < shim->adev.gfx.mec.num_pipe_per_mec * shim->adev.gfx.mec.num_queue_per_pipe; hqd++) {
		for (i = 0; i < firmware->count && firmware->queues[i].hqd != hqd; i++)
			;
		if (i == firmware->count && may_use_hqd(shim, hqd))
			return hqd;
	}
	return -1;
}

/* \return the VMID of the process, or one for it, or 0: all are in use. */
static u32 vmid_for(const struct shim_device *shim, u32 pasid)
{
	const struct shim_firmware *firmware = &shim->firmware;
	u32 free = shim->adev.enable_mes ? shim->adev.mes.vmid_mask_gfxhub & 0xffff : firmware->vmid_mask;
	int i;

	for (i = 0; i < firmware->count; i++) {
		if (!firmware->queues[i].vmid)
			continue;
		if (firmware->queues[i].pasid == pasid)
			return firmware->queues[i].vmid;
		free &= ~BIT(firmware->queues[i].vmid);
	}
	return free ? __ffs(free) : 0;
}

/*
 * Maps queues in the order in which the driver gave them, as far as the hardware queues and VMIDs last. The others wait
 * for their turn. (What real firmware does for each process's quantum and for priorities is not known.)
 */
static void map_set(struct shim_device *shim)
{
	struct shim_firmware *firmware = &shim->firmware;
	int first = 0, i;

	lockdep_assert_held(&firmware->lock);
	for (i = 0; i < firmware->count; i++)
		if (firmware->queues[i].mqd == firmware->first_mqd)
			first = i;
	for (i = 0; i < firmware->count; i++) {
		struct shim_queue *queue = &firmware->queues[(first + i) % firmware->count];
		u32 vmid;
		int hqd;

		if (queue->vmid)
			continue;
		vmid = vmid_for(shim, queue->pasid);
		hqd = queue->engine ? -1 : free_hqd(shim);
		if (!vmid || (!queue->engine && hqd < 0)) {
			firmware->next_mqd = queue->mqd;
			queue_delayed_work(firmware->wq, &firmware->turn, usecs_to_jiffies(quantum_us));
			return;
		}
		queue->vmid = vmid;
		queue->hqd = hqd;
		firmware->maps++;
		write_hqd(shim, queue, true);
		shim_executor_map(shim, queue);
	}
	firmware->next_mqd = 0;
}

static void unmap_queue(struct shim_device *shim, struct shim_queue *queue)
{
	if (!queue->vmid)
		return;
	shim_executor_unmap(shim, queue);
	write_hqd(shim, queue, false);
	queue->vmid = 0;
	queue->hqd = -1;
}

static void next_turn(struct work_struct *work)
{
	struct shim_device *shim = container_of(to_delayed_work(work), struct shim_device, firmware.turn);
	struct shim_firmware *firmware = &shim->firmware;
	int i;

	mutex_lock(&firmware->lock);
	if (firmware->next_mqd && !hangs(shim)) {
		for (i = 0; i < firmware->count; i++)
			unmap_queue(shim, &firmware->queues[i]);
		firmware->turns++;
		firmware->first_mqd = firmware->next_mqd;
		map_set(shim);
	}
	mutex_unlock(&firmware->lock);
}

static void add_queue(struct shim_device *shim, struct shim_queue queue)
{
	struct shim_firmware *firmware = &shim->firmware;

	lockdep_assert_held(&firmware->lock);
	queue.hqd = -1;
	if (!WARN_ON(firmware->count == SHIM_QUEUES))
		firmware->queues[firmware->count++] = queue;
}

static void remove_queue(struct shim_device *shim, int at)
{
	struct shim_firmware *firmware = &shim->firmware;

	lockdep_assert_held(&firmware->lock);
	unmap_queue(shim, &firmware->queues[at]);
	firmware->count--;
	memmove(&firmware->queues[at], &firmware->queues[at + 1], (firmware->count - at) * sizeof(firmware->queues[0]));
}

/* \return whether the firmware still answers. */
static bool begin_unmap(struct shim_device *shim)
{
	if (fail_at > 0 && --fail_at == 0)
		hang = shim->index;
	if (hangs(shim))
		return false;
	shim->firmware.unmaps++;
	if (unmap_us)
		usleep_range(unmap_us, unmap_us + unmap_us / 10 + 1);
	return true;
}

static u32 word(struct shim_device *shim, u64 address)
{
	const u32 *at = shim_gpu_address(&shim->adev, address);

	return at ? READ_ONCE(*at) : 0;
}

static void run_list(struct shim_device *shim, u64 address, u32 words)
{
	u32 at = 0, pasid = 0, i, packet[64];

	while (at < words) {
		u32 header = word(shim, address + at * 4ULL);
		u32 length = ((header >> 16) & 0x3fff) + 2;
		const struct pm4_mes_map_queues *map = (const void *)packet;

		for (i = 0; i < min_t(u32, length, ARRAY_SIZE(packet)); i++)
			packet[i] = word(shim, address + (at + i) * 4ULL);
		switch ((header >> 8) & 0xff) {
		case IT_MAP_PROCESS:
			pasid = ((const struct pm4_mes_map_process *)packet)->bitfields2.pasid;
			break;
		case IT_MAP_QUEUES:
			add_queue(shim, (struct shim_queue){
				.mqd = (u64)map->mqd_addr_hi << 32 | map->mqd_addr_lo,
				.pasid = pasid,
				.doorbell = map->bitfields3.doorbell_offset,
				.engine = map->bitfields2.engine_sel,
			});
			break;
		}
		at += length;
	}
	map_set(shim);
}

static void unmap_queues(struct shim_device *shim, const struct pm4_mes_unmap_queues *packet)
{
	struct shim_firmware *firmware = &shim->firmware;
	bool by_pasid = packet->bitfields2.queue_sel ==
			queue_sel__mes_unmap_queues__perform_request_on_pasid_queues;
	int i;

	for (i = firmware->count - 1; i >= 0; i--)
		if (!by_pasid || firmware->queues[i].pasid == packet->bitfields3a.pasid)
			remove_queue(shim, i);
	map_set(shim);
}

/* \return false: the firmware does not answer any more. */
static bool execute(struct shim_device *shim, const u32 *packet)
{
	struct shim_firmware *firmware = &shim->firmware;
	const struct pm4_mes_runlist *run = (const void *)packet;
	const struct pm4_mes_query_status *query = (const void *)packet;
	const struct pm4_mec_write_data_mmio *write = (const void *)packet;
	const struct pm4_mes_set_resources *resources = (const void *)packet;
	u32 opcode = (packet[0] >> 8) & 0xff;
	u64 *status;

	firmware->packets++;
	if (trace)
		pr_info("sluice: device %d: packet %02x\n", shim->index, opcode);
	switch (opcode) {
	case IT_SET_RESOURCES:
		firmware->vmid_mask = resources->bitfields2.vmid_mask;
		firmware->hqd_mask = (u64)resources->queue_mask_hi << 32 | resources->queue_mask_lo;
		break;
	case IT_RUN_LIST:
		firmware->runlists++;
		run_list(shim, (u64)run->ib_base_hi << 32 | run->ordinal2, run->bitfields4.ib_size);
		break;
	case IT_UNMAP_QUEUES:
		if (!begin_unmap(shim))
			return false;
		unmap_queues(shim, (const void *)packet);
		break;
	case IT_QUERY_STATUS:
		firmware->queries++;
		status = shim_gpu_address(&shim->adev, (u64)query->addr_hi << 32 | query->addr_lo);
		if (status)
			WRITE_ONCE(*status, (u64)query->data_hi << 32 | query->data_lo);
		break;
	case IT_WRITE_DATA:
		amdgpu_device_wreg(&shim->adev, write->bitfields3.dst_mmreg_addr, write->data, 0);
		break;
	}
	return true;
}

static void read_hiq(struct work_struct *work)
{
	struct shim_device *shim = container_of(work, struct shim_device, firmware.work);
	struct shim_firmware *firmware = &shim->firmware;
	struct v9_mqd *mqd;
	u32 size, length, header, i, packet[64];
	u64 base, wptr, *wptr_at, report;
	u32 *report_at;

	mutex_lock(&firmware->lock);
	mqd = shim_gpu_address(&shim->adev, firmware->hiq_mqd);
	while (mqd && !hangs(shim)) {
		base = ((u64)mqd->cp_hqd_pq_base_hi << 32 | mqd->cp_hqd_pq_base_lo) << 8;
		size = 2U << (mqd->cp_hqd_pq_control & 0x3f);
		wptr_at = shim_gpu_address(&shim->adev, (u64)mqd->cp_hqd_pq_wptr_poll_addr_hi << 32 |
								mqd->cp_hqd_pq_wptr_poll_addr_lo);
		wptr = wptr_at ? READ_ONCE(*wptr_at) : firmware->hiq_rptr;
		if (firmware->hiq_rptr == wptr)
			break;
		header = word(shim, base + firmware->hiq_rptr % size * 4);
		length = ((header >> 16) & 0x3fff) + 2;
		/* a NOP of one word: kq_acquire_packet_buffer() fills the end of the ring with them */
		if (((header >> 8) & 0xff) == IT_NOP && ((header >> 16) & 0x3fff) == 0x3fff)
			length = 1;
		if (length > ARRAY_SIZE(packet) || firmware->hiq_rptr + length > wptr) {
			pr_err("sluice: device %d: invalid packet %08x\n", shim->index, header);
			firmware->hiq_rptr = wptr;
			break;
		}
		for (i = 0; i < length; i++)
			packet[i] = word(shim, base + (firmware->hiq_rptr + i) % size * 4);
		if (!execute(shim, packet))
			break;
		firmware->hiq_rptr += length;
		report = (u64)mqd->cp_hqd_pq_rptr_report_addr_hi << 32 | mqd->cp_hqd_pq_rptr_report_addr_lo;
		report_at = shim_gpu_address(&shim->adev, report);
		if (report_at)
			WRITE_ONCE(*report_at, firmware->hiq_rptr % size);
	}
	mutex_unlock(&firmware->lock);
}

/* Which HIQ is meant is known only by the addresses that it may be mapped at; others have nothing to read. */
void shim_doorbell_written(void)
{
	int i;

	for (i = 0; i < shim_device_count; i++)
		if (shim_devices[i] && shim_devices[i]->firmware.wq)
			queue_work(shim_devices[i]->firmware.wq, &shim_devices[i]->firmware.work);
}

/* The ring of the kernel interface queue (KIQ). amdkfd maps and unmaps the HIQ with it. */
static void kiq_set_wptr(struct amdgpu_ring *ring)
{
	struct shim_firmware *firmware = &to_shim(ring->adev)->firmware;
	const u32 *packet = (const u32 *)&ring->ring[ring->wptr_old & ring->buf_mask];

	switch ((packet[0] >> 8) & 0xff) {
	case PACKET3_MAP_QUEUES:
		firmware->hiq_mqd = (u64)packet[4] << 32 | packet[3];
		firmware->hiq_rptr = 0;
		break;
	case PACKET3_UNMAP_QUEUES:
		firmware->hiq_mqd = 0;
		break;
	}
}

static u64 kiq_get_ptr(struct amdgpu_ring *ring)
{
	return ring->wptr;
}

static int kiq_test_ring(struct amdgpu_ring *ring)
{
	return hangs(to_shim(ring->adev)) ? -ETIMEDOUT : 0;
}

static const struct amdgpu_ring_funcs kiq_ring_funcs = {
	.type = AMDGPU_RING_TYPE_KIQ,
	.get_rptr = kiq_get_ptr,
	.get_wptr = kiq_get_ptr,
	.set_wptr = kiq_set_wptr,
	.test_ring = kiq_test_ring,
	.insert_nop = amdgpu_ring_insert_nop,
};

/* as gfx_v9_0_kiq_unmap_queues() */
static void kiq_unmap_queues(struct amdgpu_ring *kiq, struct amdgpu_ring *ring, enum amdgpu_unmap_queues_action action,
			     u64 address, u64 sequence)
{
	amdgpu_ring_write(kiq, PACKET3(PACKET3_UNMAP_QUEUES, 4));
	amdgpu_ring_write(kiq, PACKET3_UNMAP_QUEUES_ACTION(action) | PACKET3_UNMAP_QUEUES_NUM_QUEUES(1));
	amdgpu_ring_write(kiq, PACKET3_UNMAP_QUEUES_DOORBELL_OFFSET0(ring->doorbell_index));
	amdgpu_ring_write(kiq, 0);
	amdgpu_ring_write(kiq, 0);
	amdgpu_ring_write(kiq, 0);
}

static const struct kiq_pm4_funcs kiq_packets = {
	.kiq_unmap_queues = kiq_unmap_queues,
	.unmap_queues_size = 6,
};

static int init_kiq(struct shim_device *shim, struct amdgpu_kiq *kiq)
{
	struct amdgpu_ring *ring = &kiq->ring;

	spin_lock_init(&kiq->ring_lock);
	kiq->pmf = &kiq_packets;
	ring->adev = &shim->adev;
	ring->funcs = &kiq_ring_funcs;
	ring->ring = devm_kzalloc(shim->adev.dev, PAGE_SIZE, GFP_KERNEL);
	ring->buf_mask = ring->ptr_mask = PAGE_SIZE / 4 - 1;
	ring->max_dw = 256;
	ring->no_scheduler = true;
	ring->sched.ready = true;
	return ring->ring ? 0 : -ENOMEM;
}

static int mes_add_hw_queue(struct amdgpu_mes *mes, struct mes_add_queue_input *input)
{
	struct shim_device *shim = to_shim(mes->adev);

	/* as mes_v11_0_submit_pkt_and_poll_completion() when the firmware does not answer */
	if (hangs(shim))
		return -ETIMEDOUT;
	if (trace)
		pr_info("sluice: device %d: add queue with doorbell %x\n", shim->index, input->doorbell_offset);
	mutex_lock(&shim->firmware.lock);
	shim->firmware.packets++;
	add_queue(shim, (struct shim_queue){
		.mqd = input->mqd_addr,
		.pasid = input->process_id,
		.doorbell = input->doorbell_offset,
		.engine = input->queue_type == MES_QUEUE_TYPE_SDMA ? 2 : 0,
	});
	map_set(shim);
	mutex_unlock(&shim->firmware.lock);
	return 0;
}

static int mes_remove_hw_queue(struct amdgpu_mes *mes, struct mes_remove_queue_input *input)
{
	struct shim_device *shim = to_shim(mes->adev);
	struct shim_firmware *firmware = &shim->firmware;
	int i, err = 0;

	if (trace)
		pr_info("sluice: device %d: remove queue with doorbell %x\n", shim->index, input->doorbell_offset);
	mutex_lock(&firmware->lock);
	firmware->packets++;
	if (begin_unmap(shim)) {
		for (i = firmware->count - 1; i >= 0; i--)
			if (firmware->queues[i].doorbell == input->doorbell_offset)
				remove_queue(shim, i);
		map_set(shim);
	} else {
		err = -ETIMEDOUT;
	}
	mutex_unlock(&firmware->lock);
	return err;
}

/* Of all processes together; amdkfd does not use it. */
static int mes_suspend_gang(struct amdgpu_mes *mes, struct mes_suspend_gang_input *input)
{
	return hangs(to_shim(mes->adev)) ? -ETIMEDOUT : 0;
}

static int mes_resume_gang(struct amdgpu_mes *mes, struct mes_resume_gang_input *input)
{
	return hangs(to_shim(mes->adev)) ? -ETIMEDOUT : 0;
}

/* Debugger settings; nothing here executes shaders. */
static int mes_misc_op(struct amdgpu_mes *mes, struct mes_misc_op_input *input)
{
	return hangs(to_shim(mes->adev)) ? -ETIMEDOUT : 0;
}

static const struct amdgpu_mes_funcs mes_funcs = {
	.add_hw_queue = mes_add_hw_queue,
	.remove_hw_queue = mes_remove_hw_queue,
	.suspend_gang = mes_suspend_gang,
	.resume_gang = mes_resume_gang,
	.misc_op = mes_misc_op,
};

void shim_firmware_reset(struct shim_device *shim)
{
	struct shim_firmware *firmware = &shim->firmware;

	mutex_lock(&firmware->lock);
	while (firmware->count > 0)
		remove_queue(shim, firmware->count - 1);
	firmware->next_mqd = 0;
	firmware->hiq_mqd = 0;
	if (hangs(shim))
		hang = -1;
	mutex_unlock(&firmware->lock);
}

static int show(struct seq_file *file, void *unused)
{
	struct shim_device *shim = file->private;
	struct shim_firmware *firmware = &shim->firmware;
	int i;

	mutex_lock(&firmware->lock);
	seq_printf(file, "packets %llu runlists %llu maps %llu unmaps %llu queries %llu turns %llu\n",
		   firmware->packets, firmware->runlists, firmware->maps, firmware->unmaps, firmware->queries,
		   firmware->turns);
	for (i = 0; i < firmware->count; i++)
		seq_printf(file, "%spasid %x doorbell %x mqd %llx engine %u vmid %u hqd %d\n",
			   firmware->queues[i].vmid ? "" : "waiting: ", firmware->queues[i].pasid,
			   firmware->queues[i].doorbell, firmware->queues[i].mqd, firmware->queues[i].engine,
			   firmware->queues[i].vmid, firmware->queues[i].hqd);
	mutex_unlock(&firmware->lock);
	return 0;
}

static int open_shown(struct inode *inode, struct file *file)
{
	return single_open(file, show, inode->i_private);
}

static const struct file_operations shown = {
	.owner = THIS_MODULE,
	.open = open_shown,
	.read = seq_read,
	.llseek = seq_lseek,
	.release = single_release,
};

int shim_firmware_init(struct shim_device *shim)
{
	struct amdgpu_device *adev = &shim->adev;
	int i, err;

	mutex_init(&shim->firmware.lock);
	INIT_WORK(&shim->firmware.work, read_hiq);
	INIT_DELAYED_WORK(&shim->firmware.turn, next_turn);
	shim->firmware.wq = alloc_ordered_workqueue("sluice-hws%d", 0, shim->index);
	if (!shim->firmware.wq)
		return -ENOMEM;
	for (i = 0; i < AMDGPU_MAX_GC_INSTANCES; i++) {
		err = init_kiq(shim, &adev->gfx.kiq[i]);
		if (err)
			return err;
	}
	adev->mes.funcs = &mes_funcs;
	/* kfd_dbg_has_ttmps_always_setup() and the debugger need API 14 and firmware 64 or later. */
	adev->mes.sched_version = 14 << AMDGPU_MES_API_VERSION_SHIFT | 80;
	debugfs_create_file("firmware", 0444, shim->debugfs, shim, &shown);
	return 0;
}
