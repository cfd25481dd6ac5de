#include "driver.hpp"
#include "driver_bench.hpp"

#include <fcntl.h>

#include <set>

#include "sluice/kfd/uapi_memory.hpp"

namespace sluice::sim::test::driver_memory_test {
namespace {

constexpr std::uint64_t mib = std::uint64_t{1} << 20U;
constexpr std::uint32_t vram = uapi::KFD_IOC_ALLOC_MEM_FLAGS_VRAM;
constexpr std::uint32_t gtt = uapi::KFD_IOC_ALLOC_MEM_FLAGS_GTT;
constexpr std::uint32_t userptr = uapi::KFD_IOC_ALLOC_MEM_FLAGS_USERPTR;
constexpr std::uint32_t doorbells = uapi::KFD_IOC_ALLOC_MEM_FLAGS_DOORBELL;
constexpr std::uint32_t mmio = uapi::KFD_IOC_ALLOC_MEM_FLAGS_MMIO_REMAP;

profile small_gpus() {
  auto node = default_profile();
  node.gpus.front().memory_mib = 100;
  node.gpus.push_back(node.gpus.front());
  node.gpus.back().gpu_id = 51111;
  return node;
}

class DriverMemory : public testing::Test {
 protected:
  void SetUp() override {
    for (const pid_t pid : {app, other}) {
      b.open(pid);
      b.acquire(pid);
    }
  }
  int acquire_vm(pid_t pid, int fd, std::uint32_t gpu = 51110) {
    uapi::kfd_ioctl_acquire_vm_args args{.drm_fd = static_cast<std::uint32_t>(fd), .gpu_id = gpu};
    return b.call(pid, uapi::AMDKFD_IOC_ACQUIRE_VM, args);
  }
  struct allocation {
    int result = 0;
    std::uint64_t handle = 0;
    std::uint64_t mmap_offset = 0;
  };
  allocation allocate(std::uint64_t size, std::uint32_t flags, pid_t pid = app,
                      std::uint32_t gpu = 51110, std::uint64_t user_address = 0) {
    uapi::kfd_ioctl_alloc_memory_of_gpu_args args{.va_addr = scratch + 0x8000,
                                                  .size = size,
                                                  .handle = 0,
                                                  .mmap_offset = user_address,
                                                  .gpu_id = gpu,
                                                  .flags = flags};
    const int result = b.call(pid, uapi::AMDKFD_IOC_ALLOC_MEMORY_OF_GPU, args);
    return {result, args.handle, args.mmap_offset};
  }
  int free(std::uint64_t handle, pid_t pid = app) { return b.free_memory(pid, handle); }
  struct mapping {
    int result = 0;
    std::uint32_t done = 0;
    friend bool operator==(const mapping&, const mapping&) = default;
    friend std::ostream& operator<<(std::ostream& out, const mapping& m) {
      return out << m.result << " after " << m.done;
    }
  };
  mapping map(std::uint64_t handle, const std::vector<std::uint32_t>& gpus, std::uint32_t done = 0,
              std::uint32_t command = uapi::AMDKFD_IOC_MAP_MEMORY_TO_GPU) {
    for (std::size_t i = 0; i < gpus.size(); ++i) {
      b.machine.memory(app).put(scratch + i * 4, gpus[i]);
    }
    uapi::kfd_ioctl_map_memory_to_gpu_args args{
        .handle = handle,
        .device_ids_array_ptr = scratch,
        .n_devices = static_cast<std::uint32_t>(gpus.size()),
        .n_success = done};
    const int result = b.call(app, command, args);
    return {result, args.n_success};
  }
  mapping unmap(std::uint64_t handle, const std::vector<std::uint32_t>& gpus) {
    return map(handle, gpus, 0, uapi::AMDKFD_IOC_UNMAP_MEMORY_FROM_GPU);
  }
  std::uint64_t available(std::uint32_t gpu = 51110) {
    uapi::kfd_ioctl_get_available_memory_args args{.available = 0, .gpu_id = gpu, .pad = 0};
    EXPECT_EQ(b.call(other, uapi::AMDKFD_IOC_AVAILABLE_MEMORY, args), 0);
    return args.available;
  }
  int create_event(std::uint64_t page, std::uint64_t* offset = nullptr,
                   std::uint32_t type = uapi::KFD_IOC_EVENT_SIGNAL) {
    uapi::kfd_ioctl_create_event_args args{};
    args.event_page_offset = page;
    args.event_type = type;
    const int result = b.call(app, uapi::AMDKFD_IOC_CREATE_EVENT, args);
    if (offset != nullptr) *offset = args.event_page_offset;
    return result;
  }
  driver_bench b{small_gpus()};
};

TEST_F(DriverMemory, BelongsToTheAddressSpaceOfARenderNode) {
  constexpr int render = 40, second = 41, file = 42;
  const auto opened = b.machine.open_file_of(scheduler, render);
  opened->render_node = true;
  b.machine.open_file_of(scheduler, second)->render_node = true;
  b.machine.open_file_of(scheduler, file);
  b.open(scheduler);
  const auto before = b.machine.render_nodes_taken();
  EXPECT_EQ(acquire_vm(scheduler, 77), -EINVAL) << "no such descriptor";
  EXPECT_EQ(acquire_vm(scheduler, file), -EINVAL) << "not a render node";
  EXPECT_EQ(acquire_vm(scheduler, render, 7), -EINVAL) << "no such GPU";
  EXPECT_EQ(b.machine.render_nodes_taken(), before);
  EXPECT_EQ(acquire_vm(scheduler, render), 0);
  EXPECT_EQ(acquire_vm(scheduler, render), 0) << "again changes nothing";
  EXPECT_EQ(acquire_vm(scheduler, second), -EBUSY) << "it has one already";
  b.machine.share_file(app, render, opened);
  EXPECT_EQ(acquire_vm(app, render, 51111), -EINVAL) << "it serves another process";
  EXPECT_EQ(b.machine.render_nodes_taken(), before + 1);
  EXPECT_EQ(b.machine.taken(), 0U);
  b.machine.exit(scheduler);
  b.sim->reap();
  b.run_for(1s);
  EXPECT_EQ(b.machine.render_nodes_taken(), before);
  EXPECT_EQ(acquire_vm(app, render, 51111), 0) << "no process uses it any more";
}

TEST_F(DriverMemory, CountsDeviceMemoryInWholePagesForProcessAndGpu) {
  const auto first = allocate(10 * mib + 1, vram);
  ASSERT_EQ(first.result, 0);
  ASSERT_EQ(allocate(20 * mib, vram, other).result, 0);
  EXPECT_EQ(b.sim->vram_of(app, 51110), 10 * mib + 4096);
  EXPECT_EQ(b.sim->vram_of(app, 51111), 0U);
  EXPECT_EQ(b.sim->vram_of(other, 51110), 20 * mib);
  EXPECT_EQ(available(), 68 * mib) << "in steps of 2 MiB";
  EXPECT_EQ(available(51111), 100 * mib);
  ASSERT_EQ(free(first.handle), 0);
  EXPECT_EQ(b.sim->vram_of(app, 51110), 0U);
  EXPECT_EQ(available(), 80 * mib);
}

TEST_F(DriverMemory, HasNoMoreThanTheGpuHas) {
  ASSERT_EQ(allocate(60 * mib, vram, other).result, 0);
  EXPECT_EQ(allocate(40 * mib + 1, vram).result, -ENOMEM);
  EXPECT_EQ(allocate(200 * mib, vram).result, -ENOMEM);
  EXPECT_EQ(allocate(~std::uint64_t{0}, vram).result, -EINVAL) << "no pages";
  EXPECT_EQ(b.sim->vram_of(app, 51110), 0U);
  EXPECT_EQ(allocate(40 * mib, vram).result, 0);
  EXPECT_EQ(allocate(1, vram).result, -ENOMEM);
  EXPECT_EQ(available(), 0U);
}

TEST_F(DriverMemory, TakesSystemMemoryForNoDeviceMemory) {
  EXPECT_EQ(allocate(200 * mib, gtt).result, 0);
  const auto pages = allocate(200 * mib, userptr, app, 51110, 0x7000);
  EXPECT_EQ(pages.result, 0);
  EXPECT_EQ(pages.mmap_offset, 0x7000U);
  EXPECT_EQ(b.sim->vram_of(app, 51110), 0U);
  EXPECT_EQ(available(), 100 * mib);
}

TEST_F(DriverMemory, RefusesWhatNoDriverGives) {
  EXPECT_EQ(allocate(0, vram).result, -EINVAL);
  EXPECT_EQ(allocate(mib, vram, app, 1).result, -EINVAL) << "no such GPU";
  EXPECT_EQ(allocate(mib, 0).result, -EINVAL) << "no kind of memory";
  EXPECT_EQ(allocate(mib, userptr).result, -EINVAL) << "no address";
  EXPECT_EQ(allocate(4096, doorbells).result, -EINVAL) << "a process has 8 KiB of doorbells";
  EXPECT_EQ(allocate(8192, mmio).result, -EINVAL) << "there is one page of registers";
  EXPECT_EQ(allocate(mib, vram, app, 51111).result, -ENODEV) << "no VM acquired there";
  EXPECT_EQ(free(51110ULL << 32U), -EINVAL);
}

TEST_F(DriverMemory, FreesNothingThatIsMapped) {
  b.acquire(app, 1);
  const auto buffer = allocate(mib, gtt);
  ASSERT_EQ(map(buffer.handle, {51110, 51111}), (mapping{0, 2}));
  EXPECT_EQ(map(buffer.handle, {51110}), (mapping{0, 1})) << "again changes nothing";
  EXPECT_EQ(free(buffer.handle), -EBUSY);
  EXPECT_EQ(unmap(buffer.handle, {51110}), (mapping{0, 1}));
  EXPECT_EQ(free(buffer.handle), -EBUSY);
  EXPECT_EQ(unmap(buffer.handle, {51110, 51111}), (mapping{-EINVAL, 0})) << "not mapped there";
  EXPECT_EQ(unmap(buffer.handle, {51111}), (mapping{0, 1}));
  EXPECT_EQ(free(buffer.handle), 0);
  EXPECT_EQ(free(buffer.handle), -EINVAL);
}

TEST_F(DriverMemory, MapsOneBufferToAnAddressOfAGpu) {
  const auto first = allocate(mib, gtt);
  const auto second = allocate(mib, gtt);
  EXPECT_EQ(map(first.handle, {51110}), (mapping{0, 1}));
  EXPECT_EQ(map(second.handle, {51110}), (mapping{-EINVAL, 0}));
  EXPECT_EQ(unmap(first.handle, {51110}), (mapping{0, 1}));
  EXPECT_EQ(map(second.handle, {51110}), (mapping{0, 1}));
}

TEST(DriverHive, MapsDeviceMemoryToOtherGpusOfItsHiveOnly) {
  for (const auto hive : {0U, 7U}) {
    auto node = small_gpus();
    for (auto& each : node.gpus) each.hive_id = hive;
    driver_bench b{node};
    b.open(app);
    b.acquire(app, 1);
    const auto handle = b.map_memory(app, 0, scratch, mib, vram);
    b.machine.memory(app).put(scratch, std::array<std::uint32_t, 2>{51110, 51111});
    uapi::kfd_ioctl_map_memory_to_gpu_args args{
        .handle = handle, .device_ids_array_ptr = scratch, .n_devices = 2, .n_success = 0};
    EXPECT_EQ(b.call(app, uapi::AMDKFD_IOC_MAP_MEMORY_TO_GPU, args), hive == 0 ? -EINVAL : 0);
    EXPECT_EQ(args.n_success, hive == 0 ? 1U : 2U);
  }
}

TEST_F(DriverMemory, SaysHowFarItCameWithMapping) {
  const auto buffer = allocate(mib, gtt);
  EXPECT_EQ(map(buffer.handle, {51110, 77, 51110}), (mapping{-EINVAL, 1}));
  EXPECT_EQ(map(buffer.handle, {77, 51110}, 1), (mapping{0, 2})) << "goes on where it stopped";
  EXPECT_EQ(map(buffer.handle, {51110, 51111}), (mapping{-ENODEV, 1})) << "no VM acquired there";
  EXPECT_EQ(map(buffer.handle, {51110}, 2).result, -EINVAL);
  EXPECT_EQ(map(buffer.handle, {}).result, -EINVAL);
  EXPECT_EQ(map(buffer.handle + 1, {51110}), (mapping{-ENOMEM, 0})) << "no such buffer";
  EXPECT_EQ(unmap(buffer.handle + 1, {51110}), (mapping{-ENOMEM, 0}));
  EXPECT_EQ(map(77ULL << 32U, {51110}), (mapping{-EINVAL, 0})) << "no such GPU";
  uapi::kfd_ioctl_map_memory_to_gpu_args args{
      .handle = buffer.handle, .device_ids_array_ptr = 0x10, .n_devices = 1, .n_success = 0};
  EXPECT_EQ(b.call(app, uapi::AMDKFD_IOC_MAP_MEMORY_TO_GPU, args), -EFAULT);
}

TEST_F(DriverMemory, KnowsNobodyElsesHandles) {
  const auto buffer = allocate(mib, vram);
  EXPECT_EQ(free(buffer.handle, other), -EINVAL);
}

TEST_F(DriverMemory, GetsEverythingBackWhenAProcessEnds) {
  ASSERT_EQ(allocate(60 * mib, vram).result, 0);
  const auto shared = allocate(10 * mib, vram);
  ASSERT_EQ(map(shared.handle, {51110}), (mapping{0, 1}));
  ASSERT_EQ(available(), 30 * mib);
  b.machine.exit(app);
  b.sim->reap();
  b.run_for(1s);
  EXPECT_EQ(available(), 100 * mib);
}

// What libhsakmt brings with its first event; the slots begin as it expects them.
TEST_F(DriverMemory, TakesAnEventPageOnceAndKeepsIt) {
  const auto page = allocate(0x8000, gtt);
  EXPECT_EQ(create_event(page.handle + 1), -EINVAL) << "no such buffer";
  ASSERT_EQ(create_event(page.handle), 0);
  EXPECT_EQ(b.machine.memory(app).get<std::uint64_t>(scratch + 0x8000), ~std::uint64_t{0});
  EXPECT_EQ(b.machine.memory(app).get<std::uint64_t>(scratch + 0xfff8), ~std::uint64_t{0});
  EXPECT_EQ(create_event(page.handle), -EINVAL) << "it is set already";
  EXPECT_EQ(create_event(0), 0);
  EXPECT_EQ(free(page.handle), -EPERM);
}

TEST_F(DriverMemory, TakesNoEventPageAfterTheFirstSignal) {
  std::uint64_t offset = 0;
  ASSERT_EQ(create_event(0, &offset, uapi::KFD_IOC_EVENT_MEMORY), 0);
  EXPECT_EQ(offset, 0U) << "it has no slot";
  const auto page = allocate(0x8000, gtt);
  ASSERT_EQ(create_event(0, &offset), 0);
  EXPECT_NE(offset, 0U) << "where the driver's own page can be mapped";
  EXPECT_EQ(create_event(page.handle), -EINVAL);
}

// FUSE can map what lies below 2^63, all who map one offset get one page, and libhsakmt takes the
// low 32 bits of the first doorbell for its place in the page.
TEST_F(DriverMemory, HasAnOffsetForEveryPageThatCanBeMapped) {
  b.acquire(app, 1);
  std::set<std::uint64_t> pages;
  for (const pid_t pid : {app, other}) {
    for (std::uint32_t gpu = 0; gpu < 2; ++gpu) {
      auto args = b.queue_args(gpu, gpu);
      b.map_area(pid, gpu, gpu);
      ASSERT_EQ(b.call(pid, uapi::AMDKFD_IOC_CREATE_QUEUE, args), 0);
      EXPECT_EQ(args.doorbell_offset & 0xffffffffU, args.queue_id * 8);
      pages.insert(args.doorbell_offset >> 32U);
    }
    pages.insert(allocate(4096, mmio, pid).mmap_offset >> 32U);
  }
  std::uint64_t events = 0;
  ASSERT_EQ(create_event(0, &events), 0);
  pages.insert(events >> 32U);
  EXPECT_EQ(pages.size(), 7U) << "all different";
  EXPECT_GE(*pages.begin() << 32U, driver::mmap_begin);
  EXPECT_LT(*pages.rbegin() << 32U, driver::mmap_end);
  EXPECT_EQ(allocate(8192, doorbells).result, 0);
}

TEST_F(DriverMemory, AnswersARuntimesSettingsForGpusThatExist) {
  uapi::kfd_ioctl_set_memory_policy_args policy{};
  policy.gpu_id = 51110;
  policy.default_policy = uapi::KFD_IOC_CACHE_POLICY_NONCOHERENT;
  EXPECT_EQ(b.call(app, uapi::AMDKFD_IOC_SET_MEMORY_POLICY, policy), 0);
  policy.alternate_policy = 2;
  EXPECT_EQ(b.call(app, uapi::AMDKFD_IOC_SET_MEMORY_POLICY, policy), -EINVAL);
  uapi::kfd_ioctl_set_scratch_backing_va_args backing{.va_addr = 1, .gpu_id = 51110, .pad = 0};
  EXPECT_EQ(b.call(app, uapi::AMDKFD_IOC_SET_SCRATCH_BACKING_VA, backing), 0);
  backing.gpu_id = 1;
  EXPECT_EQ(b.call(app, uapi::AMDKFD_IOC_SET_SCRATCH_BACKING_VA, backing), -EINVAL);
  uapi::kfd_ioctl_set_trap_handler_args handler{
      .tba_addr = 0x1000, .tma_addr = 0x2000, .gpu_id = 51110, .pad = 0};
  EXPECT_EQ(b.call(app, uapi::AMDKFD_IOC_SET_TRAP_HANDLER, handler), 0);
  handler.gpu_id = 1;
  EXPECT_EQ(b.call(app, uapi::AMDKFD_IOC_SET_TRAP_HANDLER, handler), -EINVAL);
  uapi::kfd_ioctl_get_tile_config_args tiles{};
  tiles.gpu_id = 51110;
  EXPECT_EQ(b.call(app, uapi::AMDKFD_IOC_GET_TILE_CONFIG, tiles), 0);
  EXPECT_NE(tiles.gb_addr_config, 0U);
}

TEST_F(DriverMemory, TakesARuntimesSettingsForAGpuWithAnAddressSpaceOnly) {
  uapi::kfd_ioctl_set_memory_policy_args policy{};
  policy.gpu_id = 51111;
  EXPECT_EQ(b.call(app, uapi::AMDKFD_IOC_SET_MEMORY_POLICY, policy), -ESRCH);
  uapi::kfd_ioctl_set_scratch_backing_va_args backing{.va_addr = 1, .gpu_id = 51111, .pad = 0};
  EXPECT_EQ(b.call(app, uapi::AMDKFD_IOC_SET_SCRATCH_BACKING_VA, backing), -ENODEV);
  uapi::kfd_ioctl_set_trap_handler_args handler{
      .tba_addr = 0x1000, .tma_addr = 0x2000, .gpu_id = 51111, .pad = 0};
  EXPECT_EQ(b.call(app, uapi::AMDKFD_IOC_SET_TRAP_HANDLER, handler), -ESRCH);
  uapi::kfd_ioctl_get_tile_config_args tiles{};
  tiles.gpu_id = 51111;
  EXPECT_EQ(b.call(app, uapi::AMDKFD_IOC_GET_TILE_CONFIG, tiles), 0);
}

// What kfd_calls does not reach: no descriptor, or a device that ends before its clients.
class DriverDmabuf : public DriverMemory {
 protected:
  static constexpr int fd = 50;

  int export_buffer(std::uint64_t handle, std::uint32_t flags = 0) {
    uapi::kfd_ioctl_export_dmabuf_args args{.handle = handle, .flags = flags, .dmabuf_fd = 0};
    return b.call(app, uapi::AMDKFD_IOC_EXPORT_DMABUF, args);
  }
  /// The descriptor of the last export, in that process.
  void receive(pid_t pid) {
    auto& promised = b.machine.handovers.back();
    EXPECT_EQ(b.sim->file_open(promised.file, app), 0);
    promised.told.done(0);
    b.machine.open_file_of(pid, fd)->handed = promised.file;
  }
  std::uint64_t import_buffer(pid_t pid, std::uint32_t gpu_id) {
    uapi::kfd_ioctl_import_dmabuf_args args{
        .va_addr = scratch, .handle = 0, .gpu_id = gpu_id, .dmabuf_fd = fd};
    EXPECT_EQ(b.call(pid, uapi::AMDKFD_IOC_IMPORT_DMABUF, args), 0);
    return args.handle;
  }
};

TEST_F(DriverDmabuf, PromisesADescriptorAndFreesTheBufferIfTheCallerGetsNone) {
  const auto buffer = allocate(20 * mib, vram);
  b.machine.handover_error = EBUSY;
  EXPECT_EQ(export_buffer(buffer.handle), -EBUSY);
  b.machine.handover_error = 0;
  EXPECT_EQ(export_buffer(buffer.handle, O_CLOEXEC), 0);
  const auto& promised = b.machine.handovers.back();
  EXPECT_EQ(promised.where.offset, offsetof(uapi::kfd_ioctl_export_dmabuf_args, dmabuf_fd));
  EXPECT_TRUE(promised.where.close_on_exec);
  EXPECT_TRUE(b.sim->file_promised(promised.file, app));
  EXPECT_EQ(b.sim->file_size(promised.file), 20 * mib);
  EXPECT_TRUE(b.sim->smi_readable(promised.file)) << "nothing to wait for";
  std::string text;
  EXPECT_EQ(b.sim->smi_read(promised.file, 1, text), -EINVAL);
  EXPECT_EQ(free(buffer.handle), 0);
  EXPECT_EQ(available(), 80 * mib);
  promised.told.done(EMFILE);
  EXPECT_EQ(available(), 100 * mib);
}

TEST_F(DriverDmabuf, KeepsAnImportOnAnotherGpuUntilTheDeviceEnds) {
  b.acquire(other, 1);
  const auto buffer = allocate(20 * mib, vram);
  ASSERT_EQ(export_buffer(buffer.handle), 0);
  receive(other);
  const auto imported = import_buffer(other, 51111);
  EXPECT_EQ(imported >> 32U, 51111U);
  EXPECT_EQ(free(buffer.handle), 0);
  b.sim->file_release(b.machine.handovers.back().file);
  b.machine.exit(app);
  b.sim->reap();
  b.run_for(1s);
  EXPECT_EQ(available(), 80 * mib);
  EXPECT_EQ(available(51111), 100 * mib);
  EXPECT_EQ(b.sim->vram_of(other, 51110), 0U);
  EXPECT_EQ(b.sim->vram_of(other, 51111), 0U);
  b.sim.reset();
}

TEST_F(DriverDmabuf, KnowsNoFileThatIsClosed) {
  const auto buffer = allocate(mib, gtt);
  ASSERT_EQ(export_buffer(buffer.handle), 0);
  receive(app);
  b.sim->file_release(b.machine.handovers.back().file);
  uapi::kfd_ioctl_get_dmabuf_info_args args{};
  args.dmabuf_fd = fd;
  EXPECT_EQ(b.call(app, uapi::AMDKFD_IOC_GET_DMABUF_INFO, args), -EINVAL);
  EXPECT_EQ(b.machine.taken(), 0U);
}

TEST_F(DriverMemory, ShowsSystemMemoryAndItsLimits) {
  ASSERT_EQ(allocate(3 * mib, gtt).result, 0);
  ASSERT_EQ(allocate(4 * mib, userptr, app, 51110, 0x7000).result, 0);
  ASSERT_EQ(allocate(5 * mib, vram).result, 0);
  EXPECT_EQ(b.sim->mem_limit(),
            "System mem used 7M out of 514560M\nTTM mem used 3M out of 262144M\n");
  EXPECT_EQ(allocate(262'141 * mib, gtt).result, -ENOMEM);
  EXPECT_EQ(allocate(262'141 * mib, userptr, app, 51110, 0x7000).result, 0);
  EXPECT_EQ(allocate(252'414 * mib, gtt).result, -ENOMEM) << "no pages are left";
}

TEST_F(DriverMemory, HasNoSharedVirtualMemory) {
  uapi::kfd_ioctl_set_xnack_mode_args mode{.xnack_enabled = -1};
  EXPECT_EQ(b.call(app, uapi::AMDKFD_IOC_SET_XNACK_MODE, mode), -EPERM);
  std::array<std::byte, 40> ranges{};
  EXPECT_EQ(b.call(app, uapi::AMDKFD_IOC_SVM, ranges), -EPERM);
}

TEST_F(DriverMemory, TellsAperturesByTheOldCommandToo) {
  uapi::kfd_ioctl_get_process_apertures_args args{};
  ASSERT_EQ(b.call(app, uapi::AMDKFD_IOC_GET_PROCESS_APERTURES, args), 0);
  ASSERT_EQ(args.num_of_nodes, 2U);
  EXPECT_EQ(args.process_apertures[0].gpu_id, 51110U);
  EXPECT_EQ(args.process_apertures[1].gpu_id, 51111U);
  EXPECT_EQ(args.process_apertures[1].gpuvm_limit, 0x7fffffffffffU);
}

}  // namespace
}  // namespace sluice::sim::test::driver_memory_test
