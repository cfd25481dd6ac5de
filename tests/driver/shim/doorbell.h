/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* Included before kfd_doorbell.c: the firmware hears of the doorbells that this file writes. */
#include <linux/io.h>

void shim_doorbell_written(void);

static inline void shim_writel(u32 value, volatile void __iomem *doorbell)
{
	writel(value, doorbell);
	shim_doorbell_written();
}

static inline void shim_writeq(u64 value, volatile void __iomem *doorbell)
{
	writeq(value, doorbell);
	shim_doorbell_written();
}

#undef writel
#undef writeq
#define writel shim_writel
#define writeq shim_writeq
