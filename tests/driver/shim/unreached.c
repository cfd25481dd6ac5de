/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * Functions of amdgpu that the linked files name, in code that does not run here: command submission, RAS, virtual
 * functions, firmware images, partitions, reset handlers of other devices. Should one be called, the kernel stops and
 * names it.
 */
#include <linux/bug.h>
#include <linux/printk.h>

#define UNREACHED(name)                                      \
	void name(void);                                     \
	void name(void)                                      \
	{                                                    \
		panic("sluice: %s was called", #name);       \
	}

UNREACHED(aldebaran_reset_fini)
UNREACHED(amdgpu_coredump)
UNREACHED(amdgpu_device_get_gang)
UNREACHED(amdgpu_device_mm_access)
UNREACHED(amdgpu_device_switch_gang)
UNREACHED(amdgpu_dpm_get_entrycount_gfxoff)
UNREACHED(amdgpu_dpm_get_residency_gfxoff)
UNREACHED(amdgpu_dpm_get_status_gfxoff)
UNREACHED(amdgpu_dpm_set_powergating_by_smu)
UNREACHED(amdgpu_dpm_set_residency_gfxoff)
UNREACHED(amdgpu_hdp_ras_sw_init)
UNREACHED(amdgpu_mca_mp0_ras_sw_init)
UNREACHED(amdgpu_mca_mp1_ras_sw_init)
UNREACHED(amdgpu_mca_mpio_ras_sw_init)
UNREACHED(amdgpu_mmhub_ras_sw_init)
UNREACHED(amdgpu_persistent_edc_harvesting_supported)
UNREACHED(amdgpu_ras_block_late_fini)
UNREACHED(amdgpu_ras_block_late_init)
UNREACHED(amdgpu_ras_feature_enable_on_boot)
UNREACHED(amdgpu_ras_interrupt_dispatch)
UNREACHED(amdgpu_ras_interrupt_fatal_error_handler)
UNREACHED(amdgpu_ras_register_ras_block)
UNREACHED(amdgpu_ras_reset_gpu)
UNREACHED(amdgpu_sriov_rreg)
UNREACHED(amdgpu_sriov_wreg)
UNREACHED(amdgpu_sw_ring_ib_begin)
UNREACHED(amdgpu_sw_ring_ib_end)
UNREACHED(amdgpu_sw_ring_ib_mark_offset)
UNREACHED(amdgpu_ucode_ip_version_decode)
UNREACHED(amdgpu_ucode_release)
UNREACHED(amdgpu_ucode_request)
UNREACHED(amdgpu_umc_pasid_poison_handler)
UNREACHED(amdgpu_umc_ras_sw_init)
UNREACHED(amdgpu_xcp_drm_dev_alloc)
UNREACHED(amdgpu_xcp_drm_dev_free)
UNREACHED(amdgpu_xgmi_ras_sw_init)
UNREACHED(aldebaran_reset_init)
UNREACHED(sienna_cichlid_reset_fini)
UNREACHED(sienna_cichlid_reset_init)
UNREACHED(smu_v13_0_10_reset_fini)
UNREACHED(smu_v13_0_10_reset_init)
