/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* VRAM and doorbells are memory; amdgpu's own managers divide it, and its own code writes the page tables. */
#ifdef CONFIG_UML
#include <mem_user.h>
#endif

#include "shim.h"

#define VRAM_SIZE (256UL << 20)
#define DOORBELLS_SIZE (4UL << 20)

#ifndef CONFIG_UML
static unsigned long memory;
module_param(memory, ulong, 0444);
MODULE_PARM_DESC(memory, "physical address of memory that the kernel does not use: 260 MiB for each device");
#endif

/* as gmc_v9_0_get_vm_pde() without translate_further */
static void get_vm_pde(struct amdgpu_device *adev, int level, u64 *address, u64 *flags)
{
	if (!(*flags & AMDGPU_PDE_PTE) && !(*flags & AMDGPU_PTE_SYSTEM))
		*address = amdgpu_gmc_vram_mc2pa(adev, *address);
}

/* as gmc_v9_0_get_vm_pte(), without the memory types of caches */
static void get_vm_pte(struct amdgpu_device *adev, struct amdgpu_bo_va_mapping *mapping, u64 *flags)
{
	*flags &= ~AMDGPU_PTE_EXECUTABLE;
	*flags |= mapping->flags & AMDGPU_PTE_EXECUTABLE;
	if (mapping->flags & AMDGPU_PTE_PRT) {
		*flags |= AMDGPU_PTE_PRT;
		*flags &= ~AMDGPU_PTE_VALID;
	}
}

/* as gmc_v9_0_map_mtype(): cached by default */
static u64 map_mtype(struct amdgpu_device *adev, u32 flags)
{
	return 0;
}

/* No translation is cached, so that nothing is left to flush. */
static void flush_gpu_tlb(struct amdgpu_device *adev, u32 vmid, u32 hub, u32 type)
{
}

static void flush_gpu_tlb_pasid(struct amdgpu_device *adev, u16 pasid, u32 type, bool all_hub, u32 inst)
{
}

/* as gmc_v9_0_query_vram_mem_partition_mode() of a device that is not partitioned */
static enum amdgpu_memory_partition query_mem_partition_mode(struct amdgpu_device *adev)
{
	return AMDGPU_NPS1_PARTITION_MODE;
}

static const struct amdgpu_gmc_funcs gmc_funcs = {
	.get_vm_pde = get_vm_pde,
	.get_vm_pte = get_vm_pte,
	.map_mtype = map_mtype,
	.flush_gpu_tlb = flush_gpu_tlb,
	.flush_gpu_tlb_pasid = flush_gpu_tlb_pasid,
	.query_mem_partition_mode = query_mem_partition_mode,
};

#ifdef CONFIG_UML
/* as elsewhere, without page protections */
void __iomem *ioremap_prot(phys_addr_t offset, size_t size, unsigned long prot)
{
	return ioremap(offset, size);
}
#endif

/* \return the physical address of the memory of all devices; 0: there is none. */
static phys_addr_t find_memory(void)
{
#ifdef CONFIG_UML
	unsigned long size, memory = find_iomem("gpus", &size);

	if (memory)
		memory = __pa(memory);
	if (!memory)
		pr_err("sluice: no iomem=gpus,FILE on the command line\n");
#else
	if (!memory)
		pr_err("sluice: no sluice.memory=ADDRESS on the command line\n");
#endif
	return memory;
}

int shim_memory_init(struct shim_device *shim)
{
	struct amdgpu_device *adev = &shim->adev;
	struct amdgpu_gmc *gmc = &adev->gmc;
	phys_addr_t memory = find_memory();
	int err;

	if (!memory)
		return -ENODEV;
	gmc->aper_base = memory + shim->index * (VRAM_SIZE + DOORBELLS_SIZE);
	gmc->aper_size = gmc->visible_vram_size = gmc->real_vram_size = gmc->mc_vram_size = VRAM_SIZE;
	/* as amdgpu_doorbell_init() */
	adev->doorbell.base = gmc->aper_base + VRAM_SIZE;
	adev->doorbell.size = DOORBELLS_SIZE;
	adev->doorbell.num_kernel_doorbells =
		min_t(u32, DOORBELLS_SIZE / sizeof(u32), adev->doorbell_index.max_assignment + 1) + 0x400;

	/* as gmc_v9_0_sw_init() and gmc_v9_0_mc_init() */
	gmc->gmc_funcs = &gmc_funcs;
	gmc->vram_width = 4096;
	gmc->vram_type = AMDGPU_VRAM_TYPE_HBM;
	gmc->mc_mask = 0xffffffffffffULL;
	gmc->gart_size = 512 << 20;
	gmc->noretry = 1;
	err = dma_set_mask_and_coherent(adev->dev, DMA_BIT_MASK(44));
	if (err)
		return err;
	amdgpu_gmc_set_agp_default(adev, gmc);
	amdgpu_gmc_vram_location(adev, gmc, 0);
	amdgpu_gmc_gart_location(adev, gmc, AMDGPU_GART_PLACEMENT_BEST_FIT);
	amdgpu_vm_adjust_size(adev, 256 * 1024, 9, 3, 48);
	err = amdgpu_bo_init(adev);
	if (err)
		return err;

	/* as gmc_v9_0_gart_init() and gmc_v9_0_gart_enable() */
	err = amdgpu_gart_init(adev);
	if (err)
		return err;
	adev->gart.table_size = adev->gart.num_gpu_pages * 8;
	adev->gart.gart_pte_flags = AMDGPU_PTE_EXECUTABLE;
	err = amdgpu_gart_table_vram_alloc(adev);
	if (err)
		return err;
	amdgpu_vm_manager_init(adev);

	/* as amdgpu_device_wb_init() */
	err = amdgpu_bo_create_kernel(adev, AMDGPU_MAX_WB * sizeof(u32) * 8, PAGE_SIZE, AMDGPU_GEM_DOMAIN_GTT,
				      &adev->wb.wb_obj, &adev->wb.gpu_addr, (void **)&adev->wb.wb);
	if (err)
		return err;
	adev->wb.num_wb = AMDGPU_MAX_WB;
	memset((void *)adev->wb.wb, 0, AMDGPU_MAX_WB * sizeof(u32) * 8);
	return 0;
}

void *shim_gpu_address(struct amdgpu_device *adev, u64 address)
{
	struct amdgpu_gmc *gmc = &adev->gmc;
	u64 entry;

	if (address >= gmc->vram_start && address <= gmc->vram_end)
		return adev->mman.aper_base_kaddr + (address - gmc->vram_start);
	if (address < gmc->gart_start || address > gmc->gart_end || !adev->gart.ptr)
		return NULL;
	entry = ((u64 *)adev->gart.ptr)[(address - gmc->gart_start) >> AMDGPU_GPU_PAGE_SHIFT];
	if (!(entry & AMDGPU_PTE_VALID))
		return NULL;
	return __va(entry & 0x0000fffffffff000ULL) + (address & AMDGPU_GPU_PAGE_MASK);
}
