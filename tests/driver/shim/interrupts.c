/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* amdgpu's own code processes the ring of interrupts and hands each entry to amdkfd; this writes entries into it. */
#include <linux/debugfs.h>

#include "shim.h"

static u32 get_wptr(struct amdgpu_device *adev, struct amdgpu_ih_ring *ih)
{
	return ih == &adev->irq.ih_soft ? le32_to_cpu(*ih->wptr_cpu) : to_shim(adev)->ih_wptr;
}

static void set_rptr(struct amdgpu_device *adev, struct amdgpu_ih_ring *ih)
{
}

static const struct amdgpu_ih_funcs ih_funcs = {
	.get_wptr = get_wptr,
	.decode_iv = amdgpu_ih_decode_iv_helper,
	.decode_iv_ts = amdgpu_ih_decode_iv_ts_helper,
	.set_rptr = set_rptr,
};

/* as amdgpu_irq_handle_ih_soft() */
static void handle_ih_soft(struct work_struct *work)
{
	struct amdgpu_device *adev = container_of(work, struct amdgpu_device, irq.ih_soft_work);

	amdgpu_ih_process(adev, &adev->irq.ih_soft);
}

void shim_interrupt(struct shim_device *shim, const u32 entry[8])
{
	struct amdgpu_ih_ring *ih = &shim->adev.irq.ih;
	unsigned long flags;
	u64 time;
	int i;

	/* An interrupt handler does not run twice at once. */
	spin_lock_irqsave(&shim->ih_lock, flags);
	for (i = 0; i < 8; i++)
		ih->ring[(shim->ih_wptr >> 2) + i] = cpu_to_le32(entry[i]);
	/* The interrupt handler writes the time, in ticks of 100 MHz. */
	time = div_u64(ktime_get_ns(), 10);
	ih->ring[(shim->ih_wptr >> 2) + 1] = lower_32_bits(time);
	ih->ring[(shim->ih_wptr >> 2) + 2] = upper_32_bits(time) & 0xffff;
	shim->ih_wptr = (shim->ih_wptr + 32) & ih->ptr_mask;
	amdgpu_ih_process(&shim->adev, ih);
	spin_unlock_irqrestore(&shim->ih_lock, flags);
}

/* Writing eight hexadecimal words to debugfs raises an interrupt with this entry. */
static ssize_t write_entry(struct file *file, const char __user *from, size_t size, loff_t *offset)
{
	char text[128] = "";
	u32 entry[8];

	if (size >= sizeof(text) || copy_from_user(text, from, size) ||
	    sscanf(text, "%x %x %x %x %x %x %x %x", entry, entry + 1, entry + 2, entry + 3, entry + 4, entry + 5,
		   entry + 6, entry + 7) != 8)
		return -EINVAL;
	shim_interrupt(file->private_data, entry);
	return size;
}

static const struct file_operations entry_operations = {
	.owner = THIS_MODULE,
	.open = simple_open,
	.write = write_entry,
};

int shim_interrupts_init(struct shim_device *shim)
{
	struct amdgpu_device *adev = &shim->adev;
	int err;

	spin_lock_init(&adev->irq.lock);
	spin_lock_init(&shim->ih_lock);
	/* as vega20_ih_sw_init(), without rings for page faults */
	adev->irq.ih_funcs = &ih_funcs;
	INIT_WORK(&adev->irq.ih_soft_work, handle_ih_soft);
	err = amdgpu_ih_ring_init(adev, &adev->irq.ih, IH_RING_SIZE, true);
	if (err)
		return err;
	err = amdgpu_ih_ring_init(adev, &adev->irq.ih_soft, IH_SW_RING_SIZE, true);
	if (err)
		return err;
	adev->irq.ih.enabled = adev->irq.ih_soft.enabled = true;
	adev->irq.installed = true;
	debugfs_create_file("interrupt", 0200, shim->debugfs, shim, &entry_operations);
	return 0;
}
