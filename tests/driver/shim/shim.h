/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * What lies below amdkfd and the memory manager of amdgpu: devices without hardware. The files beside this one provide
 * the functions of amdgpu that are not linked (stubs.c), the device (device.c), its DRM files (file.c), its memory
 * (memory.c), registers (registers.c), interrupts (interrupts.c), the SDMA engine that moves buffers (sdma.c), the
 * firmware that maps and unmaps queues (firmware.c), and what runs their packets (executor.c).
 */
#ifndef SLUICE_SHIM_H
#define SLUICE_SHIM_H

#include <linux/pci.h>
#include <linux/xarray.h>

#include "amdgpu.h"
#include "amdgpu_amdkfd.h"

/* Parameters are sluice.NAME on the command line of the kernel, and in /sys/module/sluice/parameters. */
#undef MODULE_PARAM_PREFIX
#define MODULE_PARAM_PREFIX "sluice."

/* A queue that the driver has given to the firmware. */
struct shim_queue {
	u64 mqd;	/* address for the GPU */
	u32 pasid;
	u32 doorbell;	/* offset in the doorbell aperture, in dwords */
	u32 engine;	/* 0: compute; 2, 3: SDMA */
	u32 vmid;	/* 0: not mapped, it waits for its turn */
	int hqd;	/* number of the hardware queue (HQD); -1: none, it waits or is an SDMA queue */
};
#define SHIM_QUEUES 512

struct shim_firmware {
	struct work_struct work;
	struct workqueue_struct *wq;
	struct mutex lock;	/* of what follows */
	u64 hiq_mqd;		/* 0: not mapped */
	u64 hiq_rptr;		/* dwords */
	u64 hqd_mask;		/* what SET_RESOURCES allows */
	u32 vmid_mask;
	struct shim_queue queues[SHIM_QUEUES];
	int count;
	struct delayed_work turn;
	u64 first_mqd;		/* where the mapped set begins; if no queue has this MQD, at the first queue */
	u64 next_mqd;		/* where the next set begins; 0: all are mapped */
	/* Counters since the start. */
	u64 packets, runlists, maps, unmaps, queries, turns;
};

struct shim_executor {
	struct mutex lock;	/* of what follows; never held while memory of a process is faulted in */
	struct list_head executions;
	s64 free_waves;
	wait_queue_head_t wait;
	bool changed;
};

struct shim_device {
	struct amdgpu_device adev;	/* The DRM device in it owns this structure. */
	int index;
	struct pci_dev pci;		/* An identity: no PCI device is behind it. */
	struct pci_bus bus;
	struct xarray registers;	/* bank << 32 | register */
	u64 bank;			/* that GRBM_GFX_CNTL selects */
	struct shim_firmware firmware;
	struct shim_executor executor;
	struct dentry *debugfs;		/* folder sluiceN */
	struct work_struct sdma_work;
	u64 sdma_rptr;			/* words */
	spinlock_t ih_lock;
	u32 ih_wptr;			/* of the interrupt ring, in bytes */
};

static inline struct shim_device *to_shim(struct amdgpu_device *adev)
{
	return container_of(adev, struct shim_device, adev);
}

/* device.c */
extern struct shim_device *shim_devices[8];
extern int shim_device_count;

/* file.c */
extern const struct drm_driver shim_drm_driver;

/* memory.c */
int shim_memory_init(struct shim_device *shim);
/* \return where the kernel sees an address of the GPU (VMID 0): VRAM or GART; NULL: neither, or nothing is there. */
void *shim_gpu_address(struct amdgpu_device *adev, u64 address);

/* registers.c */
void shim_registers_init(struct shim_device *shim);
/* Writes COUNT registers from REG in the bank of hardware queue HQD. */
void shim_hqd_write(struct shim_device *shim, int hqd, u32 reg, const u32 *values, int count);

/* sdma.c */
int shim_sdma_init(struct shim_device *shim);

/* interrupts.c */
int shim_interrupts_init(struct shim_device *shim);
/* Puts an entry into the interrupt ring and has amdgpu process it. */
void shim_interrupt(struct shim_device *shim, const u32 entry[8]);

/* executor.c */
int shim_executor_init(struct shim_device *shim);
void shim_executor_map(struct shim_device *shim, const struct shim_queue *queue);
/* On return the queue runs no packet any more. */
void shim_executor_unmap(struct shim_device *shim, const struct shim_queue *queue);

/* firmware.c */
int shim_firmware_init(struct shim_device *shim);
void shim_firmware_reset(struct shim_device *shim);
/* The kernel wrote a doorbell: that of an HIQ, since it has no other. */
void shim_doorbell_written(void);

#endif
