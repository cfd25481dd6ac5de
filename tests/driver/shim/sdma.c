/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * The SDMA engine's ring of the kernel, with which amdgpu clears and moves buffers: amdgpu's own scheduler, rings and
 * fences, with packets of this file's own.
 */
#include "shim.h"
#include "amdgpu_reset.h"
#include "amdgpu_sdma.h"

enum {
	PACKET_NOP,	/* 1 word */
	PACKET_COPY,	/* bytes, source, destination: 6 words */
	PACKET_FILL,	/* bytes, value, destination: 5 words */
	PACKET_FENCE,	/* value, address: 4 words */
	PACKET_IB,	/* words, address: 4 words */
};
static const u32 packet_words[] = { 1, 6, 5, 4, 4 };

static u64 address_in(const u32 *words)
{
	return words[0] | (u64)words[1] << 32;
}

/* \return how many bytes from this address on are contiguous in the memory of the kernel: those of one page. */
static u32 in_page(u64 address)
{
	return AMDGPU_GPU_PAGE_SIZE - (address & AMDGPU_GPU_PAGE_MASK);
}

static void copy(struct amdgpu_device *adev, u64 from, u64 to, u32 bytes)
{
	while (bytes) {
		u32 part = min3(bytes, in_page(from), in_page(to));
		void *source = shim_gpu_address(adev, from), *destination = shim_gpu_address(adev, to);

		if (source && destination)
			memcpy(destination, source, part);
		from += part;
		to += part;
		bytes -= part;
	}
}

static void fill(struct amdgpu_device *adev, u32 value, u64 to, u32 bytes)
{
	while (bytes) {
		u32 part = min(bytes, in_page(to));
		void *destination = shim_gpu_address(adev, to);

		if (destination)
			memset32(destination, value, part / 4);
		to += part;
		bytes -= part;
	}
}

/* Reads a packet word by word, since it may lie across pages. \return its length in words. */
static u32 read_packet(struct amdgpu_device *adev, u64 address, u32 *packet)
{
	const u32 *at = shim_gpu_address(adev, address);
	u32 i, words;

	packet[0] = at ? *at : PACKET_NOP;
	words = packet[0] < ARRAY_SIZE(packet_words) ? packet_words[packet[0]] : 1;
	for (i = 1; i < words; i++) {
		at = shim_gpu_address(adev, address + i * 4);
		packet[i] = at ? *at : 0;
	}
	return words;
}

static void execute(struct amdgpu_device *adev, const u32 *packet)
{
	u32 *at, inner[6], done;

	switch (packet[0]) {
	case PACKET_COPY:
		copy(adev, address_in(packet + 2), address_in(packet + 4), packet[1]);
		break;
	case PACKET_FILL:
		fill(adev, packet[2], address_in(packet + 3), packet[1]);
		break;
	case PACKET_FENCE:
		at = shim_gpu_address(adev, address_in(packet + 2));
		if (at)
			WRITE_ONCE(*at, packet[1]);
		break;
	case PACKET_IB:
		for (done = 0; done < packet[1];) {
			done += read_packet(adev, address_in(packet + 2) + done * 4, inner);
			if (inner[0] != PACKET_IB)
				execute(adev, inner);
		}
		break;
	}
}

static void run_ring(struct work_struct *work)
{
	struct shim_device *shim = container_of(work, struct shim_device, sdma_work);
	struct amdgpu_ring *ring = &shim->adev.sdma.instance[0].ring;
	u32 packet[6];

	while (shim->sdma_rptr != READ_ONCE(ring->wptr)) {
		shim->sdma_rptr += read_packet(&shim->adev,
					       ring->gpu_addr + (shim->sdma_rptr & ring->buf_mask) * 4, packet);
		execute(&shim->adev, packet);
	}
	amdgpu_fence_process(ring);	/* as the handler of its interrupt */
}

static u64 get_rptr(struct amdgpu_ring *ring)
{
	return to_shim(ring->adev)->sdma_rptr;
}

static u64 get_wptr(struct amdgpu_ring *ring)
{
	return ring->wptr;
}

static void set_wptr(struct amdgpu_ring *ring)
{
	schedule_work(&to_shim(ring->adev)->sdma_work);
}

static void emit_ib(struct amdgpu_ring *ring, struct amdgpu_job *job, struct amdgpu_ib *ib, u32 flags)
{
	amdgpu_ring_write(ring, PACKET_IB);
	amdgpu_ring_write(ring, ib->length_dw);
	amdgpu_ring_write(ring, lower_32_bits(ib->gpu_addr));
	amdgpu_ring_write(ring, upper_32_bits(ib->gpu_addr));
}

static void emit_fence(struct amdgpu_ring *ring, u64 address, u64 sequence, unsigned int flags)
{
	amdgpu_ring_write(ring, PACKET_FENCE);
	amdgpu_ring_write(ring, sequence);
	amdgpu_ring_write(ring, lower_32_bits(address));
	amdgpu_ring_write(ring, upper_32_bits(address));
}

static const struct amdgpu_ring_funcs ring_funcs = {
	.type = AMDGPU_RING_TYPE_SDMA,
	.support_64bit_ptrs = true,
	.emit_frame_size = 16,
	.emit_ib_size = 4,
	.get_rptr = get_rptr,
	.get_wptr = get_wptr,
	.set_wptr = set_wptr,
	.emit_ib = emit_ib,
	.emit_fence = emit_fence,
	.insert_nop = amdgpu_ring_insert_nop,
	.pad_ib = amdgpu_ring_generic_pad_ib,
};

static void emit_copy_buffer(struct amdgpu_ib *ib, u64 from, u64 to, u32 bytes, u32 flags)
{
	ib->ptr[ib->length_dw++] = PACKET_COPY;
	ib->ptr[ib->length_dw++] = bytes;
	ib->ptr[ib->length_dw++] = lower_32_bits(from);
	ib->ptr[ib->length_dw++] = upper_32_bits(from);
	ib->ptr[ib->length_dw++] = lower_32_bits(to);
	ib->ptr[ib->length_dw++] = upper_32_bits(to);
}

static void emit_fill_buffer(struct amdgpu_ib *ib, u32 value, u64 to, u32 bytes)
{
	ib->ptr[ib->length_dw++] = PACKET_FILL;
	ib->ptr[ib->length_dw++] = bytes;
	ib->ptr[ib->length_dw++] = value;
	ib->ptr[ib->length_dw++] = lower_32_bits(to);
	ib->ptr[ib->length_dw++] = upper_32_bits(to);
}

/* as sdma_v4_4_2_buffer_funcs */
static const struct amdgpu_buffer_funcs buffer_funcs = {
	.copy_max_bytes = 0x400000,
	.copy_num_dw = 6,
	.emit_copy_buffer = emit_copy_buffer,
	.fill_max_bytes = 0x400000,
	.fill_num_dw = 5,
	.emit_fill_buffer = emit_fill_buffer,
};

static int init_scheduler(struct amdgpu_device *adev, struct amdgpu_ring *ring)
{
	/* as amdgpu_device_init_schedulers() */
#ifdef DRM_SCHED_INIT_TAKES_ARGS
	struct drm_sched_init_args args = {
		.ops = &amdgpu_sched_ops,
		.num_rqs = DRM_SCHED_PRIORITY_COUNT,
		.credit_limit = ring->num_hw_submission,
		.timeout_wq = adev->reset_domain->wq,
		.timeout = msecs_to_jiffies(10000),
		.dev = adev->dev,
		.name = ring->name,
	};

	return drm_sched_init(&ring->sched, &args);
#else
	return drm_sched_init(&ring->sched, &amdgpu_sched_ops, NULL, DRM_SCHED_PRIORITY_COUNT, ring->num_hw_submission,
			      0, msecs_to_jiffies(10000), adev->reset_domain->wq, NULL, ring->name, adev->dev);
#endif
}

int shim_sdma_init(struct shim_device *shim)
{
	struct amdgpu_device *adev = &shim->adev;
	struct amdgpu_ring *ring = &adev->sdma.instance[0].ring;
	int err;

	INIT_WORK(&shim->sdma_work, run_ring);
	ring->funcs = &ring_funcs;
	ring->vm_hub = AMDGPU_MMHUB0(0);
	snprintf(ring->name, sizeof(ring->name), "sdma0");
	err = amdgpu_ring_init(adev, ring, 1024, NULL, 0, AMDGPU_RING_PRIO_DEFAULT, NULL);
	if (err)
		return err;
	err = init_scheduler(adev, ring) ?: amdgpu_ib_pool_init(adev);
	if (err)
		return err;
	ring->sched.ready = true;
	adev->mman.buffer_funcs = &buffer_funcs;
	adev->mman.buffer_funcs_ring = ring;
	amdgpu_ttm_set_buffer_funcs_status(adev, true);
	return 0;
}
