/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* The render node: what amdkfd needs of a process's DRM file is an address space of amdgpu. */
#include <drm/drm_drv.h>
#include <drm/drm_file.h>
#include <drm/drm_gem.h>
#include <drm/drm_ioctl.h>

#include "shim.h"
#include "amdgpu_dma_buf.h"
#include "amdgpu_xcp.h"

/* as amdgpu_driver_open_kms(), without what only command submission uses */
static int open_file(struct drm_device *dev, struct drm_file *file)
{
	struct amdgpu_device *adev = drm_to_adev(dev);
	struct amdgpu_fpriv *fpriv = kzalloc(sizeof(*fpriv), GFP_KERNEL);
	int pasid, err;

	if (!fpriv)
		return -ENOMEM;
	pasid = amdgpu_pasid_alloc(16);
	if (pasid < 0)
		pasid = 0;
	err = amdgpu_xcp_open_device(adev, fpriv, file);
	if (err)
		goto free_pasid;
	err = amdgpu_vm_init(adev, &fpriv->vm, fpriv->xcp_id);
	if (err)
		goto free_pasid;
	err = amdgpu_vm_set_pasid(adev, &fpriv->vm, pasid);
	if (err)
		goto fini_vm;
	fpriv->prt_va = amdgpu_vm_bo_add(adev, &fpriv->vm, NULL);
	if (!fpriv->prt_va) {
		err = -ENOMEM;
		goto fini_vm;
	}
	file->driver_priv = fpriv;
	return 0;

fini_vm:
	amdgpu_vm_fini(adev, &fpriv->vm);
free_pasid:
	if (pasid)
		amdgpu_pasid_free(pasid);
	kfree(fpriv);
	return err;
}

/* as amdgpu_driver_postclose_kms() */
static void close_file(struct drm_device *dev, struct drm_file *file)
{
	struct amdgpu_device *adev = drm_to_adev(dev);
	struct amdgpu_fpriv *fpriv = file->driver_priv;
	struct amdgpu_bo *root;
	u32 pasid;

	if (!fpriv)
		return;
	pasid = fpriv->vm.pasid;
	root = amdgpu_bo_ref(fpriv->vm.root.bo);
	if (!WARN_ON(amdgpu_bo_reserve(root, true))) {
		amdgpu_vm_bo_del(adev, fpriv->prt_va);
		amdgpu_bo_unreserve(root);
	}
	amdgpu_vm_fini(adev, &fpriv->vm);
	if (pasid)
		amdgpu_pasid_free_delayed(root->tbo.base.resv, pasid);
	amdgpu_bo_unref(&root);
	kfree(fpriv);
	file->driver_priv = NULL;
}

/* as amdgpu_show_fdinfo(), without what the statistics need */
static void show_fdinfo(struct drm_printer *printer, struct drm_file *file)
{
	struct amdgpu_fpriv *fpriv = file->driver_priv;

	drm_printf(printer, "pasid:\t%u\n", fpriv->vm.pasid);
}

/* as amdgpu_driver_kms_fops */
static const struct file_operations file_operations = {
	.owner = THIS_MODULE,
	.open = drm_open,
	.release = drm_release,
	.unlocked_ioctl = drm_ioctl,
	.mmap = drm_gem_mmap,
	.poll = drm_poll,
	.read = drm_read,
	.show_fdinfo = drm_show_fdinfo,
	.fop_flags = FOP_UNSIGNED_OFFSET,
};

/* as amdgpu_file_to_fpriv() of amdgpu_drv.c */
int amdgpu_file_to_fpriv(struct file *file, struct amdgpu_fpriv **fpriv)
{
	if (file->f_op != &file_operations)
		return -EINVAL;
	*fpriv = ((struct drm_file *)file->private_data)->driver_priv;
	return 0;
}

/* as amdgpu_kms_driver; amdkfd's own client of DRM needs DRIVER_MODESET and dumb buffers */
const struct drm_driver shim_drm_driver = {
	.driver_features = DRIVER_GEM | DRIVER_RENDER | DRIVER_MODESET | DRIVER_SYNCOBJ,
	.open = open_file,
	.postclose = close_file,
	.show_fdinfo = show_fdinfo,
	.dumb_create = amdgpu_mode_dumb_create,
	.dumb_map_offset = amdgpu_mode_dumb_mmap,
	.fops = &file_operations,
	.gem_prime_import = amdgpu_gem_prime_import,
	.name = "amdgpu",
	.desc = "AMD GPU",
	.date = "20150101",
	.major = 3,
	.minor = 61,
};

/* amdgpu_drv.c; amdgpu_xcp.c makes devices of it for partitions, of which there is one here. */
const struct drm_driver amdgpu_partition_driver = {};
