/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* Devices: sluice.devices=942,1100 on the command line of the kernel. */
#include <linux/debugfs.h>
#include <linux/module.h>
#include <linux/platform_device.h>
#include <linux/pm_runtime.h>
#include <drm/drm_drv.h>
#include <drm/drm_mode_config.h>

#include "amdgpu_reset.h"
#include "amdgpu_xcp.h"
#include "shim.h"

static char *devices = "942";
module_param(devices, charp, 0444);
MODULE_PARM_DESC(devices, "what to create: of 942, 90a, 906 and 1100, with commas between them");

static int xccs = 1;
module_param(xccs, int, 0444);
MODULE_PARM_DESC(xccs, "compute dies of each 942: 1 to 8");
static int cus = 10;
module_param(cus, int, 0444);
MODULE_PARM_DESC(cus, "compute units of each of the four shader arrays: 1 to 10");

static bool hive;
module_param(hive, bool, 0444);
MODULE_PARM_DESC(hive, "all devices are linked by xGMI, and reset together");

struct shim_device *shim_devices[8];
int shim_device_count;

struct generation {
	const char *name;
	u32 gc, sdma;		/* IP versions */
	u32 asic_type, rev_id;
	u16 pci_device;
	u32 first_kfd_vmid;
	bool mes;
	u32 wave_front_size, simd_per_cu;
};

/* gfx_target_version follows from the IP version in kfd_device.c. PCI ids are those of an MI300X, an MI250X, an MI50 and
 * an RX 7900 XTX. */
static const struct generation generations[] = {
	{ "942", IP_VERSION(9, 4, 3), IP_VERSION(4, 4, 2), CHIP_IP_DISCOVERY, 1, 0x74a1, 3, false, 64, 4 },
	{ "90a", IP_VERSION(9, 4, 2), IP_VERSION(4, 4, 0), CHIP_ALDEBARAN, 0, 0x7408, 3, false, 64, 4 },
	{ "906", IP_VERSION(9, 4, 0), IP_VERSION(4, 2, 0), CHIP_VEGA20, 0, 0x66a1, 8, false, 64, 4 },
	{ "1100", IP_VERSION(11, 0, 0), IP_VERSION(6, 0, 0), CHIP_IP_DISCOVERY, 0, 0x744c, 8, true, 32, 2 },
};

static const struct generation *find_generation(const char *name)
{
	int i;

	for (i = 0; i < ARRAY_SIZE(generations); i++)
		if (!strcmp(generations[i].name, name))
			return &generations[i];
	return NULL;
}

/* An identity on a bus, where amdkfd looks for one. */
static void init_pci(struct shim_device *shim, const struct generation *of)
{
	shim->bus.number = 3 + shim->index;
	shim->bus.sysdata = devm_kzalloc(shim->adev.dev, 256, GFP_KERNEL);	/* pci_domain_nr() reads it */
	shim->pci.bus = &shim->bus;
	shim->pci.vendor = PCI_VENDOR_ID_ATI;
	shim->pci.device = of->pci_device;
	device_initialize(&shim->pci.dev);
	set_dev_node(&shim->pci.dev, NUMA_NO_NODE);
	dev_set_name(&shim->pci.dev, "0000:%02x:00.0", shim->bus.number);
	shim->pci.dev.dma_mask = &shim->pci.dma_mask;
	shim->pci.dma_mask = DMA_BIT_MASK(44);
	shim->adev.pdev = &shim->pci;
}

/* as smuio_v13_0_3_get_pkg_type() of a card */
static enum amdgpu_pkg_type get_pkg_type(struct amdgpu_device *adev)
{
	return AMDGPU_PKG_TYPE_OAM;
}

static const struct amdgpu_smuio_funcs smuio_funcs = { .get_pkg_type = get_pkg_type };

/* as gfx_v9_0_get_gpu_clock_counter(), of a GPU with a reference clock of 100 MHz */
static u64 get_gpu_clock_counter(struct amdgpu_device *adev)
{
	return div_u64(ktime_get_raw_ns(), 10);
}

static const struct amdgpu_gfx_funcs gfx_funcs = { .get_gpu_clock_counter = get_gpu_clock_counter };

/* What amdgpu_device_init() and the early_init() of the IP blocks set. */
static int init_device(struct shim_device *shim, const struct generation *of)
{
	struct amdgpu_device *adev = &shim->adev;
	struct amdgpu_gfx *gfx = &adev->gfx;
	int xcc, engine, i;

	adev->usec_timeout = AMDGPU_MAX_USEC_TIMEOUT;
	adev->fence_context = dma_fence_context_alloc(AMDGPU_MAX_RINGS);
	RCU_INIT_POINTER(adev->gang_submit, dma_fence_get_stub());
	mutex_init(&adev->srbm_mutex);
	mutex_init(&adev->grbm_idx_mutex);
	mutex_init(&adev->mn_lock);
	mutex_init(&adev->notifier_lock);
	mutex_init(&gfx->gpu_clock_mutex);
	mutex_init(&gfx->gfx_off_mutex);
	mutex_init(&gfx->partition_mutex);
	mutex_init(&gfx->kfd_sch_mutex);
	mutex_init(&adev->enforce_isolation_mutex);
	hash_init(adev->mn_hash);
	spin_lock_init(&adev->mm_stats.lock);
	spin_lock_init(&adev->wb.lock);
	INIT_LIST_HEAD(&adev->reset_list);
	INIT_LIST_HEAD(&adev->ras_list);
	/* as amdgpu_xgmi_add_device() */
	if (hive) {
		adev->gmc.xgmi.supported = true;
		adev->gmc.xgmi.hive_id = 0x1234567800000001ULL;
		adev->gmc.xgmi.node_id = 1 + shim->index;
		adev->gmc.xgmi.physical_node_id = shim->index;
		adev->gmc.xgmi.num_physical_nodes = shim_device_count;
	}
	if (hive && shim->index > 0) {
		adev->reset_domain = shim_devices[0]->adev.reset_domain;
		if (!amdgpu_reset_get_reset_domain(adev->reset_domain))
			return -ENODEV;
	} else {
		adev->reset_domain = amdgpu_reset_create_reset_domain(hive ? XGMI_HIVE : SINGLE_DEVICE,
								      "amdgpu-reset-dev");
		if (!adev->reset_domain)
			return -ENOMEM;
	}

	adev->have_atomics_support = true;
	adev->asic_type = of->asic_type;
	adev->rev_id = of->rev_id;
	adev->unique_id = 0x1234567800000000ULL + shim->index;
	adev->ip_versions[GC_HWIP][0] = of->gc;
	adev->ip_versions[SDMA0_HWIP][0] = of->sdma;
	adev->vm_manager.first_kfd_vmid = of->first_kfd_vmid;
	adev->enable_mes = of->mes;
	/* as vega20_doorbell_index_init() */
	adev->doorbell_index.max_assignment = AMDGPU_VEGA20_DOORBELL_MAX_ASSIGNMENT << 1;
	adev->doorbell_index.first_non_cp = AMDGPU_VEGA20_DOORBELL64_FIRST_NON_CP;
	adev->doorbell_index.last_non_cp = AMDGPU_VEGA20_DOORBELL64_LAST_NON_CP;
	for (engine = 0; engine < 8; engine++)
		adev->doorbell_index.sdma_engine[engine] = AMDGPU_VEGA20_DOORBELL_sDMA_ENGINE0 + engine * 10;
	adev->sdma.num_instances = 2;
	adev->smuio.funcs = &smuio_funcs;
	gfx->funcs = &gfx_funcs;

	gfx->mec_fw_version = gfx->mec2_fw_version = 0x400;	/* late enough for every check of amdkfd */
	/* as gfx_v9_4_3_mec_init(), gfx_v9_0_sw_init(), gfx_v9_0_mec_init(), gfx_v11_0_sw_init() */
	gfx->mec.num_mec = of->mes ? 1 : 2;
	gfx->mec.num_pipe_per_mec = 4;
	gfx->mec.num_queue_per_pipe = of->mes ? 4 : 8;
	gfx->num_compute_rings = min(amdgpu_gfx_get_num_kcq(adev), AMDGPU_MAX_COMPUTE_RINGS);
	gfx->xcc_mask = of->gc == IP_VERSION(9, 4, 3) ? GENMASK(xccs - 1, 0) : 1;
	gfx->num_xcc_per_xcp = hweight32(gfx->xcc_mask);
	gfx->config.max_shader_engines = 4;
	gfx->config.max_sh_per_se = 1;
	gfx->config.max_cu_per_sh = cus;
	gfx->cu_info.simd_per_cu = of->simd_per_cu;
	gfx->cu_info.max_waves_per_simd = 8;
	gfx->cu_info.wave_front_size = of->wave_front_size;
	gfx->cu_info.max_scratch_slots_per_cu = 32;
	gfx->cu_info.lds_size = 64;
	gfx->cu_info.number = 4 * cus * hweight32(gfx->xcc_mask);
	for (xcc = 0; xcc < hweight32(gfx->xcc_mask); xcc++)
		for (i = 0; i < 4; i++)
			gfx->cu_info.bitmap[xcc][i][0] = GENMASK(cus - 1, 0);
	adev->gds.gws_size = 64;
	amdgpu_gfx_compute_queue_acquire(adev);
	/* a page of registers that user space may map (MMIO_REMAP) */
	adev->rmmio_remap.bus_addr = __pa(get_zeroed_page(GFP_KERNEL));
	return 0;
}

static int create_device(int index, const struct generation *of)
{
	struct platform_device *platform = platform_device_register_simple("sluice", index, NULL, 0);
	struct shim_device *shim;
	struct amdgpu_device *adev;
	char folder[16];
	int err;

	if (IS_ERR(platform))
		return PTR_ERR(platform);
	shim = devm_drm_dev_alloc(&platform->dev, &shim_drm_driver, struct shim_device, adev.ddev);
	if (IS_ERR(shim))
		return PTR_ERR(shim);
	shim_devices[index] = shim;
	shim->index = index;
	adev = &shim->adev;
	adev->dev = &platform->dev;
	pm_runtime_set_active(adev->dev);
	pm_runtime_enable(adev->dev);
	init_pci(shim, of);
	snprintf(folder, sizeof(folder), "sluice%d", index);
	shim->debugfs = debugfs_create_dir(folder, NULL);
	shim_registers_init(shim);
	err = init_device(shim, of);
	if (err)
		return err;
	err = shim_executor_init(shim) ?: shim_memory_init(shim) ?: shim_interrupts_init(shim) ?:
	      shim_sdma_init(shim) ?: shim_firmware_init(shim);
	if (err)
		return err;
	if (of->mes) {
		err = amdgpu_mes_init(adev);
		if (err)
			return err;
	}
	err = drmm_mode_config_init(&adev->ddev);
	if (err)
		return err;
	amdgpu_amdkfd_device_probe(adev);
	amdgpu_amdkfd_device_init(adev);
	err = drm_dev_register(&adev->ddev, 0);
	if (err)
		return err;
	if (!adev->kfd.init_complete)
		return -ENODEV;
	return amdgpu_amdkfd_drm_client_create(adev);
}

static int __init shim_init(void)
{
	char *name, *list = kstrdup(devices, GFP_KERNEL);
	const struct generation *found[ARRAY_SIZE(shim_devices)];
	int index, err = 0;

	xccs = clamp(xccs, 1, 8);
	cus = clamp(cus, 1, 10);
	while (!err && (name = strsep(&list, ","))) {
		if (shim_device_count == ARRAY_SIZE(found) || !find_generation(name)) {
			pr_err("sluice: no device '%s'\n", name);
			err = -EINVAL;
		} else {
			found[shim_device_count++] = find_generation(name);
		}
	}
	/* as amdgpu_init() */
	if (!err)
		err = amdgpu_sync_init() ?: amdgpu_fence_slab_init() ?: amdgpu_amdkfd_init();
	for (index = 0; !err && index < shim_device_count; index++) {
		err = create_device(index, found[index]);
		if (err)
			pr_err("sluice: cannot create device %d (%s): error %d\n", index, found[index]->name, err);
	}
	return err;
}
late_initcall(shim_init);

#if defined(CONFIG_UML) && defined(CONFIG_LOCK_STAT)
#include <os.h>

/* Instead of the default, which counts ticks: lock_stat measures with it. */
unsigned long long notrace sched_clock(void)
{
	return os_nsecs();
}
#endif
