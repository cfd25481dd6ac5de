/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* Registers are values in a map, those of hardware queues in banks that GRBM_GFX_CNTL selects. */
#include "shim.h"
#include "soc15_common.h"

static u64 bank_of(u32 me, u32 pipe, u32 queue, u32 vmid)
{
	return (me & 3) << 12 | (pipe & 7) << 8 | (queue & 15) << 4 | (vmid & 15);
}

static u32 read_register(struct shim_device *shim, u32 reg)
{
	void *entry = xa_load(&shim->registers, shim->bank << 32 | reg);

	/* Most registers are not banked. */
	if (!entry)
		entry = xa_load(&shim->registers, reg);
	return entry ? xa_to_value(entry) : 0;
}

static void write_register(struct shim_device *shim, u64 bank, u32 reg, u32 value)
{
	xa_store(&shim->registers, bank << 32 | reg, xa_mk_value(value), GFP_ATOMIC);
}

u32 amdgpu_device_rreg(struct amdgpu_device *adev, u32 reg, u32 flags)
{
	return read_register(to_shim(adev), reg);
}

void amdgpu_device_wreg(struct amdgpu_device *adev, u32 reg, u32 value, u32 flags)
{
	write_register(to_shim(adev), to_shim(adev)->bank, reg, value);
}

void amdgpu_device_xcc_wreg(struct amdgpu_device *adev, u32 reg, u32 value, u32 flags, u32 xcc)
{
	amdgpu_device_wreg(adev, reg, value, flags);
}

/* The functions by which soc15.c, nv.c, soc21.c and soc24.c select a bank. */
#define SELECT_BANK(name, ...)                                                                            \
	void name(struct amdgpu_device *adev, u32 me, u32 pipe, u32 queue, u32 vmid, ##__VA_ARGS__);      \
	void name(struct amdgpu_device *adev, u32 me, u32 pipe, u32 queue, u32 vmid, ##__VA_ARGS__)       \
	{                                                                                                 \
		to_shim(adev)->bank = bank_of(me, pipe, queue, vmid);                                     \
	}
SELECT_BANK(soc15_grbm_select, int xcc)
SELECT_BANK(nv_grbm_select)
SELECT_BANK(soc21_grbm_select)
SELECT_BANK(soc24_grbm_select)

void shim_hqd_write(struct shim_device *shim, int hqd, u32 reg, const u32 *values, int count)
{
	int queue = hqd % shim->adev.gfx.mec.num_queue_per_pipe;
	int pipe = hqd / shim->adev.gfx.mec.num_queue_per_pipe;
	u64 bank = bank_of(1, pipe, queue, 0);
	int i;

	for (i = 0; i < count; i++)
		write_register(shim, bank, reg + i, values[i]);
}

void shim_registers_init(struct shim_device *shim)
{
	struct amdgpu_device *adev = &shim->adev;
	int ip, instance, segment;
	u32 *bases;

	xa_init_flags(&shim->registers, XA_FLAGS_LOCK_IRQ);
	/* A range of its own for each segment, where amdgpu_discovery.c reads the ranges from the device. */
	for (ip = 0; ip < MAX_HWIP; ip++)
		for (instance = 0; instance < HWIP_MAX_INSTANCE; instance++) {
			bases = devm_kcalloc(adev->dev, 8, sizeof(*bases), GFP_KERNEL);
			adev->reg_offset[ip][instance] = bases;
			for (segment = 0; bases && segment < 8; segment++)
				bases[segment] = ((ip * HWIP_MAX_INSTANCE + instance) * 8 + segment) << 16;
		}
}
