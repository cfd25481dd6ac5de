/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * Functions and parameters of amdgpu that amdkfd and the linked files use, and whose files are not linked. Each returns
 * what the function of that name returns on a device without power management, RAS, display and virtualization.
 */
#include "shim.h"
#include "amdgpu_cs.h"
#include "amdgpu_discovery.h"
#include "amdgpu_display.h"
#include "amdgpu_dpm.h"
#include "amdgpu_ras.h"
#include "amdgpu_reset.h"
#include "amdgpu_xgmi.h"

#undef MODULE_PARAM_PREFIX
#define MODULE_PARAM_PREFIX "amdgpu."

/* Parameters of amdgpu_drv.c, with its defaults where no comment says why not. */
uint amdgpu_vram_limit = UINT_MAX;
int amdgpu_vis_vram_limit;
int amdgpu_gtt_size = -1;
int amdgpu_msi = -1;
int amdgpu_vm_size = -1;
int amdgpu_vm_fragment_size = -1;
int amdgpu_vm_block_size = -1;
int amdgpu_vm_fault_stop;
int amdgpu_vm_update_mode = 3;	/* The processor writes page tables: sdma.c has no packets for them. */
int amdgpu_sched_hw_submission = 2;
int amdgpu_gpu_recovery = -1;
int amdgpu_emu_mode;
int amdgpu_noretry = -1;
int amdgpu_tmz = -1;
int amdgpu_num_kcq = -1;
int amdgpu_async_gfx_ring = 1;
int amdgpu_compute_multipipe = -1;
int amdgpu_mes_log_enable;
int amdgpu_use_xgmi_p2p = 1;
uint amdgpu_sdma_phase_quantum = 32;
char *amdgpu_disable_cu;
int sched_policy = KFD_SCHED_POLICY_HWS;
module_param(sched_policy, int, 0444);
int hws_max_conc_proc = -1;
module_param(hws_max_conc_proc, int, 0444);
int cwsr_enable = 1;
module_param(cwsr_enable, int, 0444);
int max_num_of_queues_per_device = KFD_MAX_NUM_OF_QUEUES_PER_DEVICE_DEFAULT;
module_param(max_num_of_queues_per_device, int, 0444);
int send_sigterm;
int halt_if_hws_hang;
bool hws_gws_support;
int queue_preemption_timeout_ms = 9000;
module_param(queue_preemption_timeout_ms, int, 0644);
bool debug_evictions;
module_param(debug_evictions, bool, 0644);
bool no_system_mem_limit;
int amdgpu_no_queue_eviction_on_vm_fault;
module_param_named(no_queue_eviction_on_vm_fault, amdgpu_no_queue_eviction_on_vm_fault, int, 0444);

const char *amdgpu_asic_name[CHIP_LAST + 1] = {
	[0 ... CHIP_LAST] = "IP DISCOVERY",
	[CHIP_VEGA20] = "VEGA20",
	[CHIP_ALDEBARAN] = "ALDEBARAN",
};

/* amdgpu_device.c */
int amdgpu_device_wb_get(struct amdgpu_device *adev, u32 *wb)
{
	unsigned long flags, offset;

	spin_lock_irqsave(&adev->wb.lock, flags);
	offset = find_first_zero_bit(adev->wb.used, adev->wb.num_wb);
	if (offset < adev->wb.num_wb)
		__set_bit(offset, adev->wb.used);
	spin_unlock_irqrestore(&adev->wb.lock, flags);
	*wb = offset << 3;
	return offset < adev->wb.num_wb ? 0 : -EINVAL;
}

void amdgpu_device_wb_free(struct amdgpu_device *adev, u32 wb)
{
	unsigned long flags;

	spin_lock_irqsave(&adev->wb.lock, flags);
	if (wb >> 3 < adev->wb.num_wb)
		__clear_bit(wb >> 3, adev->wb.used);
	spin_unlock_irqrestore(&adev->wb.lock, flags);
}

size_t amdgpu_device_aper_access(struct amdgpu_device *adev, loff_t pos, void *buf, size_t size, bool write)
{
	u64 last = min_t(u64, pos + size, adev->gmc.visible_vram_size);

	if (last <= pos)
		return 0;
	if (write)
		memcpy(adev->mman.aper_base_kaddr + pos, buf, last - pos);
	else
		memcpy(buf, adev->mman.aper_base_kaddr + pos, last - pos);
	return last - pos;
}

void amdgpu_device_vram_access(struct amdgpu_device *adev, loff_t pos, void *buf, size_t size, bool write)
{
	amdgpu_device_aper_access(adev, pos, buf, size, write);	/* All VRAM is visible. */
}

void amdgpu_device_flush_hdp(struct amdgpu_device *adev, struct amdgpu_ring *ring)
{
}

void amdgpu_device_invalidate_hdp(struct amdgpu_device *adev, struct amdgpu_ring *ring)
{
}

bool amdgpu_device_has_display_hardware(struct amdgpu_device *adev)
{
	return false;
}

struct amdgpu_ip_block *amdgpu_device_ip_get_ip_block(struct amdgpu_device *adev, enum amd_ip_block_type type)
{
	return NULL;
}

int amdgpu_device_ip_wait_for_idle(struct amdgpu_device *adev, enum amd_ip_block_type type)
{
	return 0;
}

/* without CONFIG_HSA_AMD_P2P */
bool amdgpu_device_is_peer_accessible(struct amdgpu_device *adev, struct amdgpu_device *peer)
{
	return false;
}

bool amdgpu_device_skip_hw_access(struct amdgpu_device *adev)
{
	return adev->no_hw_access;
}

bool amdgpu_device_should_recover_gpu(struct amdgpu_device *adev)
{
	return amdgpu_gpu_recovery != 0;
}

int amdgpu_in_reset(struct amdgpu_device *adev)
{
	return atomic_read(&adev->reset_domain->in_gpu_reset);
}

/*
 * amdkfd's part of a reset of all devices of the domain, in its order; the hardware's part is that the firmware forgets
 * its queues.
 */
int amdgpu_device_gpu_recover(struct amdgpu_device *adev, struct amdgpu_job *job, struct amdgpu_reset_context *context)
{
	struct amdgpu_reset_domain *domain = adev->reset_domain;
	int i, err = 0;

	amdgpu_device_lock_reset_domain(domain);
	for (i = 0; i < shim_device_count; i++)
		if (shim_devices[i]->adev.reset_domain == domain)
			amdgpu_amdkfd_pre_reset(&shim_devices[i]->adev, context);
	for (i = 0; i < shim_device_count; i++)
		if (shim_devices[i]->adev.reset_domain == domain)
			shim_firmware_reset(shim_devices[i]);
	for (i = 0; i < shim_device_count; i++)
		if (shim_devices[i]->adev.reset_domain == domain)
			err = amdgpu_amdkfd_post_reset(&shim_devices[i]->adev) ?: err;
	amdgpu_device_unlock_reset_domain(domain);
	return err;
}

/* amdgpu_cs.c; it steers command submission, which is not linked. */
void amdgpu_cs_report_moved_bytes(struct amdgpu_device *adev, u64 bytes, u64 visible)
{
}

/* amdgpu_display.c */
uint32_t amdgpu_display_supported_domains(struct amdgpu_device *adev, uint64_t flags)
{
	return AMDGPU_GEM_DOMAIN_VRAM;
}

/* amdgpu_dpm.c: clocks in units of 10 kHz */
int amdgpu_dpm_get_sclk(struct amdgpu_device *adev, bool low)
{
	return 2100 * 100;
}

int amdgpu_dpm_get_mclk(struct amdgpu_device *adev, bool low)
{
	return 1300 * 100;
}

int amdgpu_dpm_switch_power_profile(struct amdgpu_device *adev, enum PP_SMC_POWER_PROFILE type, bool enable)
{
	return 0;
}

uint64_t amdgpu_dpm_get_thermal_throttling_counter(struct amdgpu_device *adev);
uint64_t amdgpu_dpm_get_thermal_throttling_counter(struct amdgpu_device *adev)
{
	return 0;
}

/* amdgpu_rlc.c: nothing is running that it would have to keep from sleeping. */
void amdgpu_gfx_rlc_enter_safe_mode(struct amdgpu_device *adev, int xcc)
{
}

void amdgpu_gfx_rlc_exit_safe_mode(struct amdgpu_device *adev, int xcc)
{
}

/* amdgpu_ras.c, without a RAS context */
int amdgpu_ras_is_supported(struct amdgpu_device *adev, unsigned int block)
{
	return 0;
}

struct amdgpu_ras *amdgpu_ras_get_context(struct amdgpu_device *adev)
{
	return NULL;
}

bool amdgpu_ras_in_recovery(struct amdgpu_device *adev)
{
	return false;
}

bool amdgpu_ras_get_fed_status(struct amdgpu_device *adev)
{
	return false;
}

int amdgpu_ras_mark_ras_event_caller(struct amdgpu_device *adev, enum ras_event_type type, const void *caller)
{
	return -EINVAL;
}

u64 amdgpu_ras_acquire_event_id(struct amdgpu_device *adev, enum ras_event_type type)
{
	return RAS_EVENT_INVALID_ID;
}

void amdgpu_ras_event_log_print(struct amdgpu_device *adev, u64 event_id, const char *format, ...)
{
}

int amdgpu_ras_reset_error_status(struct amdgpu_device *adev, enum amdgpu_ras_block block)
{
	return 0;
}

/* amdgpu_virt.c */
bool amdgpu_sriov_xnack_support(struct amdgpu_device *adev)
{
	return true;
}

/* amdgpu_xgmi.c. Of the linked files, only amdgpu_job.c asks for the hive: for the dump after a job's timeout. */
struct amdgpu_hive_info *amdgpu_get_xgmi_hive(struct amdgpu_device *adev)
{
	return NULL;
}

void amdgpu_put_xgmi_hive(struct amdgpu_hive_info *hive)
{
}

int amdgpu_xgmi_get_hops_count(struct amdgpu_device *adev, struct amdgpu_device *peer)
{
	return 1;
}

int amdgpu_xgmi_get_num_links(struct amdgpu_device *adev, struct amdgpu_device *peer)
{
	return 1;
}

int amdgpu_xgmi_set_pstate(struct amdgpu_device *adev, int pstate)
{
	return 0;
}

/* amdgpu_atomfirmware.c: no video BIOS reserves memory. */
int amdgpu_atomfirmware_get_fw_reserved_fb_size(struct amdgpu_device *adev);
int amdgpu_atomfirmware_get_fw_reserved_fb_size(struct amdgpu_device *adev)
{
	return 0;
}

bool amdgpu_atomfirmware_mem_training_supported(struct amdgpu_device *adev);
bool amdgpu_atomfirmware_mem_training_supported(struct amdgpu_device *adev)
{
	return false;
}

/* amdgpu_discovery.c: there is no table to read. */
int amdgpu_discovery_get_nps_info(struct amdgpu_device *adev, uint32_t *type, struct amdgpu_gmc_memrange **ranges,
				  int *count)
{
	return -EINVAL;
}
