// The witness: AMD's own user-mode library (libhsakmt, "the thunk"), unmodified, takes the
// simulated device for a GPU. It runs where in_place.sh put the device in the driver's own places,
// and with SLUICE_TEST_ON_DRIVER=1 on a machine of tests/driver. What is expected here was written
// by AMD, not by us: where the two disagree, the device is wrong.

#include "aql.hpp"
#include "child_process.hpp"
#include "driver_view.hpp"
#include "eventually.hpp"
#include "kfd_calls.hpp"

#include <fcntl.h>
#include <hsakmt.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "sluice/kfd/uapi.hpp"
#include "sluice/kfd/uapi_memory.hpp"

namespace sluice::test::thunk_test {
namespace {

using namespace std::chrono_literals;

constexpr HSAuint32 gpu_node = 1;  // 0 is the CPU.
const std::string sysfs = "/sys/class/kfd/kfd";

std::string text_of(const std::string& path) {
  std::ifstream in{path};
  return {std::istreambuf_iterator<char>{in}, {}};
}

/// Lines "key value", the thunk's source of truth read in a second way.
std::map<std::string, std::uint64_t> properties_of(const std::string& path) {
  std::istringstream in{text_of(path)};
  std::map<std::string, std::uint64_t> out;
  std::string key;
  for (std::uint64_t value = 0; in >> key >> value;) out[key] = value;
  return out;
}

std::string gpu_id() {
  auto text = text_of(sysfs + "/topology/nodes/1/gpu_id");
  text.erase(text.find_last_not_of('\n') + 1);
  return text;
}

std::uint64_t vram_in_sysfs() {
  return std::strtoull(
      text_of(sysfs + "/proc/" + std::to_string(getpid()) + "/vram_" + gpu_id()).c_str(), nullptr,
      10);
}

/// Kernels of this process that the device has begun, by its accounts.
long kernels_started() {
  if (on_driver()) return static_cast<long>(executions_of(getpid()).started);
  const auto* root = std::getenv("SLUICE_SIM_ROOT");  // NOLINT: nobody sets it meanwhile.
  const auto stats = text_of(std::string{root != nullptr ? root : ""} + "/sim/stats.json");
  const std::string label = "\"kernels_started\":";
  const auto entry = stats.find("{\"pid\":" + std::to_string(getpid()) + ",");
  const auto at = stats.find(label, entry);
  return at == std::string::npos ? -1 : std::stol(stats.substr(at + label.size()));
}

std::uint64_t available() {
  const int fd = open("/dev/kfd", O_RDWR | O_CLOEXEC);
  kfd::uapi::kfd_ioctl_get_available_memory_args args{};
  args.gpu_id = static_cast<std::uint32_t>(std::stoul(gpu_id()));
  EXPECT_EQ(ioctl(fd, kfd::uapi::AMDKFD_IOC_AVAILABLE_MEMORY, &args), 0);
  close(fd);
  return args.available;
}

/// Memory of the CPU's node (of the GPU's: device memory, which only the GPU reaches).
class buffer {
 public:
  buffer(HSAuint32 node, std::uint64_t size, bool paged = true) : size_{size} {
    HsaMemFlags flags{};
    flags.ui32.NonPaged = node != 0 || !paged ? 1 : 0;
    flags.ui32.HostAccess = node == 0 ? 1 : 0;
    flags.ui32.CoarseGrain = node != 0 ? 1 : 0;
    flags.ui32.ExecuteAccess = 1;
    flags.ui32.NoNUMABind = 1;
    status_ = hsaKmtAllocMemory(node, size, flags, &memory_);
  }
  buffer(const buffer&) = delete;
  buffer& operator=(const buffer&) = delete;
  ~buffer() { release(); }
  HSAKMT_STATUS release() {
    const auto status =
        memory_ == nullptr ? HSAKMT_STATUS_SUCCESS : hsaKmtFreeMemory(memory_, size_);
    if (status == HSAKMT_STATUS_SUCCESS) memory_ = nullptr;
    return status;
  }
  HSAKMT_STATUS status() const { return status_; }
  void* memory() const { return memory_; }
  template <class T>
  T* as(std::size_t offset = 0) const {
    return reinterpret_cast<T*>(static_cast<std::byte*>(memory_) + offset);
  }

 private:
  std::uint64_t size_;
  void* memory_ = nullptr;
  HSAKMT_STATUS status_;
};

/// An AQL queue as a runtime has it: ring, read and write index, doorbell, a signal per packet.
class thunk_queue {
 public:
  static constexpr std::uint32_t packets = 256;
  static constexpr std::uint64_t ring_bytes = packets * sizeof(sim::aql::kernel_dispatch_packet);
  static constexpr std::uint64_t shared_bytes = 4096;

  explicit thunk_queue(HSA_QUEUE_PRIORITY priority = HSA_QUEUE_PRIORITY_NORMAL,
                       HSAuint32 node = gpu_node) {
    for (const auto& [memory, size] :
         {std::pair{ring_.memory(), ring_bytes}, std::pair{shared_.memory(), shared_bytes}}) {
      HSAuint64 address = 0;
      status_ = hsaKmtMapMemoryToGPU(memory, size, &address);
      if (status_ != HSAKMT_STATUS_SUCCESS) return;
    }
    resource_.Queue_write_ptr_aql = &shared_.as<sim::aql::queue>()->write_dispatch_id;
    resource_.Queue_read_ptr_aql = &shared_.as<sim::aql::queue>()->read_dispatch_id;
    status_ = hsaKmtCreateQueue(node, HSA_QUEUE_COMPUTE_AQL, 100, priority, ring_.memory(),
                                ring_bytes, nullptr, &resource_);
  }
  HSAKMT_STATUS status() const { return status_; }
  HSAKMT_STATUS destroy() const { return hsaKmtDestroyQueue(resource_.QueueId); }
  HSAKMT_STATUS update(HSAuint32 percentage) const {
    return hsaKmtUpdateQueue(resource_.QueueId, percentage, HSA_QUEUE_PRIORITY_NORMAL,
                             ring_.memory(), ring_bytes, nullptr);
  }
  HSA_QUEUEID id() const { return resource_.QueueId; }

  /// Publishes a kernel and rings the doorbell, as ROCr does: the header last, then the write
  /// index, then the doorbell. \param event what is set at the end; null for none.
  void dispatch(std::chrono::nanoseconds length, const HsaEvent* event = nullptr) {
    const auto index = *resource_.Queue_write_ptr_aql;
    last_ = signals_.as<sim::aql::signal>() + index % packets;
    auto& done = *last_;
    done = {};
    done.kind = 1;
    done.value = 1;
    if (event != nullptr) {
      done.event_mailbox_ptr = event->EventData.HWData2;
      done.event_id = event->EventId;
    }
    auto& packet = ring_.as<sim::aql::kernel_dispatch_packet>()[index % packets];
    packet = {};
    packet.setup = 1;
    packet.workgroup_size_x = 64;
    packet.workgroup_size_y = packet.workgroup_size_z = 1;
    packet.grid_size_x = 64;
    packet.grid_size_y = packet.grid_size_z = 1;
    packet.kernel_object = static_cast<std::uint64_t>(length.count());
    packet.completion_signal = reinterpret_cast<std::uint64_t>(&done);
    std::atomic_ref{packet.header}.store(sim::aql::packet_kernel_dispatch | sim::aql::header_bits,
                                         std::memory_order_release);
    std::atomic_ref{*resource_.Queue_write_ptr_aql}.store(index + 1, std::memory_order_release);
    std::atomic_ref{*resource_.Queue_DoorBell_aql}.store(index, std::memory_order_release);
  }
  /// Of the last dispatch.
  const sim::aql::signal& signal() const { return *last_; }
  bool done() const { return std::atomic_ref{last_->value}.load(std::memory_order_acquire) == 0; }
  std::uint64_t read_index() const {
    return std::atomic_ref{*resource_.Queue_read_ptr_aql}.load(std::memory_order_acquire);
  }
  std::uint64_t doorbell() const { return *resource_.Queue_DoorBell_aql; }

 private:
  buffer ring_{0, ring_bytes};
  buffer shared_{0, shared_bytes, false};  // The driver's own: MES takes no pages of the process.
  buffer signals_{0, packets * sizeof(sim::aql::signal)};
  sim::aql::signal* last_ = nullptr;
  HsaQueueResource resource_{};
  HSAKMT_STATUS status_;
};

HsaEvent* new_event(bool manual_reset) {
  HsaEventDescriptor descriptor{};
  descriptor.EventType = HSA_EVENTTYPE_SIGNAL;
  HsaEvent* event = nullptr;
  EXPECT_EQ(hsaKmtCreateEvent(&descriptor, manual_reset, false, &event), HSAKMT_STATUS_SUCCESS);
  return event;
}

class Thunk : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(hsaKmtOpenKFD(), HSAKMT_STATUS_SUCCESS);
    ASSERT_EQ(hsaKmtAcquireSystemProperties(&system_), HSAKMT_STATUS_SUCCESS);
  }
  void TearDown() override {
    hsaKmtReleaseSystemProperties();
    EXPECT_EQ(hsaKmtCloseKFD(), HSAKMT_STATUS_SUCCESS);
  }
  HsaSystemProperties system_{};
};

TEST_F(Thunk, ReadsTheDriversVersion) {
  HsaVersionInfo version{};
  ASSERT_EQ(hsaKmtGetVersion(&version), HSAKMT_STATUS_SUCCESS);
  EXPECT_EQ(version.KernelInterfaceMajorVersion, 1U);
  // Only drivers with 1.17 tell the sizes of save areas.
  const auto told = properties_of(sysfs + "/topology/nodes/1/properties");
  EXPECT_EQ(version.KernelInterfaceMinorVersion, told.contains("cwsr_size") ? 17U : 16U);
}

TEST_F(Thunk, SeesTheProcessorsOfTheTopology) {
  std::error_code error;
  const std::filesystem::directory_iterator nodes{sysfs + "/topology/nodes", error};
  ASSERT_EQ(system_.NumNodes, std::distance(begin(nodes), end(nodes)));
  ASSERT_GE(system_.NumNodes, 2U);
  HsaNodeProperties cpu{};
  ASSERT_EQ(hsaKmtGetNodeProperties(0, &cpu), HSAKMT_STATUS_SUCCESS);
  EXPECT_GT(cpu.NumCPUCores, 0U);
  EXPECT_EQ(cpu.NumFComputeCores, 0U);
  HsaNodeProperties gpu{};
  ASSERT_EQ(hsaKmtGetNodeProperties(gpu_node, &gpu), HSAKMT_STATUS_SUCCESS);
  auto told = properties_of(sysfs + "/topology/nodes/1/properties");
  EXPECT_GT(gpu.NumFComputeCores, 0U);
  EXPECT_EQ(gpu.NumFComputeCores, told["simd_count"]);
  EXPECT_EQ(gpu.NumSIMDPerCU, told["simd_per_cu"]);
  EXPECT_EQ(gpu.NumShaderBanks, told["array_count"]);
  EXPECT_EQ(gpu.WaveFrontSize, told["wave_front_size"]);
  EXPECT_EQ(gpu.DrmRenderMinor, 128);
  const auto& engine = gpu.EngineId.ui32;
  EXPECT_EQ(engine.Major * 10000U + engine.Minor * 100U + engine.Stepping,
            told["gfx_target_version"]);
  EXPECT_EQ(gpu.Capability.ui32.WatchPointsSupported, 1U);
  EXPECT_EQ(1U << gpu.Capability.ui32.WatchPointsTotalBits, 4U);
  EXPECT_EQ(gpu.Capability.ui32.DoorbellType, 2U);
}

TEST_F(Thunk, SeesMemoryBanksAndApertures) {
  HsaNodeProperties gpu{};
  ASSERT_EQ(hsaKmtGetNodeProperties(gpu_node, &gpu), HSAKMT_STATUS_SUCCESS);
  std::vector<HsaMemoryProperties> banks(gpu.NumMemoryBanks);
  ASSERT_EQ(hsaKmtGetNodeMemoryProperties(gpu_node, gpu.NumMemoryBanks, banks.data()),
            HSAKMT_STATUS_SUCCESS);
  std::map<HSA_HEAPTYPE, std::uint64_t> sizes;
  for (const auto& bank : banks) sizes[bank.HeapType] = bank.SizeInBytes;
  auto told = properties_of(sysfs + "/topology/nodes/1/mem_banks/0/properties");
  EXPECT_GT(told["size_in_bytes"], 0U);
  EXPECT_EQ(sizes[HSA_HEAPTYPE_FRAME_BUFFER_PUBLIC], told["size_in_bytes"]);
  EXPECT_EQ(sizes[HSA_HEAPTYPE_GPU_LDS], 0x10000U);
  EXPECT_EQ(sizes[HSA_HEAPTYPE_GPU_SCRATCH], 0x100000000U);
  EXPECT_GT(sizes[HSA_HEAPTYPE_DEVICE_SVM], 0x7f0000000000U) << "all that a process can address";
  // A driver without peer-to-peer transfers over PCIe maps this page to its own GPU only.
  // libhsakmt 5.2.3 maps it to every GPU or to none, libhsakmt of 2024 to those with a link.
  const auto remapped = sizes[HSA_HEAPTYPE_MMIO_REMAP];
  EXPECT_TRUE(remapped == 4096 || (remapped == 0 && system_.NumNodes > 2))
      << remapped << " bytes that it mapped of the device node";
}

TEST_F(Thunk, SeesCachesOfEachLevel) {
  HsaNodeProperties gpu{};
  ASSERT_EQ(hsaKmtGetNodeProperties(gpu_node, &gpu), HSAKMT_STATUS_SUCCESS);
  ASSERT_EQ(gpu.NumCaches, 3U);
  std::vector<HsaCacheProperties> caches(gpu.NumCaches);
  ASSERT_EQ(hsaKmtGetNodeCacheProperties(gpu_node, 0, gpu.NumCaches, caches.data()),
            HSAKMT_STATUS_SUCCESS);
  HSAuint32 smaller = 0;
  for (HSAuint32 i = 0; i < gpu.NumCaches; ++i) {
    EXPECT_EQ(caches[i].CacheLevel, i + 1);
    EXPECT_GT(caches[i].CacheSize, smaller);
    EXPECT_EQ(caches[i].CacheType.ui32.HSACU, 1U);
    EXPECT_EQ(caches[i].SiblingMap[0], 1U);
    EXPECT_EQ(caches[i].SiblingMap[1], i == 0 ? 0U : 1U) << "level " << i + 1;
    smaller = caches[i].CacheSize;
  }
}

TEST_F(Thunk, SeesTheLinkBetweenCpuAndGpuFromBothEnds) {
  for (const HSAuint32 node : {0U, gpu_node}) {
    HsaIoLinkProperties link{};
    ASSERT_EQ(hsaKmtGetNodeIoLinkProperties(node, 1, &link), HSAKMT_STATUS_SUCCESS) << node;
    EXPECT_EQ(link.NodeFrom, node);
    EXPECT_EQ(link.NodeTo, 1 - node);
    EXPECT_EQ(link.IoLinkType, HSA_IOLINKTYPE_PCIEXPRESS) << node;
    EXPECT_GT(link.Weight, 0U) << node;
  }
}

TEST_F(Thunk, ReadsClocksThatGoForward) {
  HsaClockCounters first{};
  HsaClockCounters second{};
  ASSERT_EQ(hsaKmtGetClockCounters(gpu_node, &first), HSAKMT_STATUS_SUCCESS);
  ASSERT_EQ(hsaKmtGetClockCounters(gpu_node, &second), HSAKMT_STATUS_SUCCESS);
  EXPECT_GT(first.GPUClockCounter, 0U);
  EXPECT_GE(second.GPUClockCounter, first.GPUClockCounter);
  EXPECT_GT(second.SystemClockCounter, first.SystemClockCounter);
  EXPECT_EQ(first.SystemClockFrequencyHz, 1'000'000'000U);
}

TEST_F(Thunk, IsToldThatThereIsNoSharedVirtualMemory) {
  HSAint32 enabled = 0;
  EXPECT_EQ(hsaKmtGetXNACKMode(&enabled), HSAKMT_STATUS_NOT_SUPPORTED);
}

TEST_F(Thunk, GetsDeviceMemoryUntilThereIsNoMore) {
  auto told = properties_of(sysfs + "/topology/nodes/1/mem_banks/0/properties");
  const auto size = told["size_in_bytes"] / 4 * 3 / 4096 * 4096;
  const auto used = vram_in_sysfs();
  const auto free = available();
  buffer first{gpu_node, size};
  ASSERT_EQ(first.status(), HSAKMT_STATUS_SUCCESS);
  EXPECT_EQ(vram_in_sysfs(), used + size);
  EXPECT_LE(available(), free - size);
  const buffer second{gpu_node, size};
  EXPECT_EQ(second.status(), HSAKMT_STATUS_NO_MEMORY);
  EXPECT_EQ(vram_in_sysfs(), used + size);
  ASSERT_EQ(first.release(), HSAKMT_STATUS_SUCCESS);
  EXPECT_EQ(vram_in_sysfs(), used);
  EXPECT_EQ(available(), free);
}

TEST_F(Thunk, MapsMemoryAndFreesItOnlyUnmapped) {
  for (const bool paged : {true, false}) {  // Its own pages, and the driver's.
    buffer memory{0, 1 << 20, paged};
    ASSERT_EQ(memory.status(), HSAKMT_STATUS_SUCCESS) << paged;
    *memory.as<std::uint64_t>(0xff008) = 42;
    HSAuint64 gpu_address = 0;
    ASSERT_EQ(hsaKmtMapMemoryToGPU(memory.memory(), 1 << 20, &gpu_address), HSAKMT_STATUS_SUCCESS);
    EXPECT_EQ(memory.release(), HSAKMT_STATUS_ERROR) << paged;
    EXPECT_EQ(*memory.as<std::uint64_t>(0xff008), 42U);
    ASSERT_EQ(hsaKmtUnmapMemoryToGPU(memory.memory()), HSAKMT_STATUS_SUCCESS) << paged;
    EXPECT_EQ(memory.release(), HSAKMT_STATUS_SUCCESS) << paged;
  }
}

TEST_F(Thunk, SetsWaitsForAndResetsEvents) {
  HsaEvent* event = new_event(true);
  ASSERT_NE(event, nullptr);
  EXPECT_EQ(hsaKmtWaitOnEvent(event, 0), HSAKMT_STATUS_WAIT_TIMEOUT);
  EXPECT_EQ(hsaKmtWaitOnEvent(event, 20), HSAKMT_STATUS_WAIT_TIMEOUT);
  ASSERT_EQ(hsaKmtSetEvent(event), HSAKMT_STATUS_SUCCESS);
  EXPECT_EQ(hsaKmtWaitOnEvent(event, 10'000), HSAKMT_STATUS_SUCCESS);
  EXPECT_EQ(hsaKmtWaitOnEvent(event, 0), HSAKMT_STATUS_SUCCESS) << "until it is reset";
  ASSERT_EQ(hsaKmtResetEvent(event), HSAKMT_STATUS_SUCCESS);
  EXPECT_EQ(hsaKmtWaitOnEvent(event, 0), HSAKMT_STATUS_WAIT_TIMEOUT);
  const auto* slot = reinterpret_cast<const std::uint64_t*>(event->EventData.HWData2);
  ASSERT_NE(slot, nullptr);
  EXPECT_EQ(*slot, ~std::uint64_t{0}) << "its slot in the page that the thunk brought";
  EXPECT_EQ(hsaKmtDestroyEvent(event), HSAKMT_STATUS_SUCCESS);
}

TEST_F(Thunk, RunsAKernelAndIsWokenAtItsEnd) {
  thunk_queue queue;
  ASSERT_EQ(queue.status(), HSAKMT_STATUS_SUCCESS);
  HsaEvent* event = new_event(false);
  for (std::uint64_t round = 1; round <= 3; ++round) {
    queue.dispatch(20ms, event);
    ASSERT_EQ(hsaKmtWaitOnEvent(event, 20'000), HSAKMT_STATUS_SUCCESS);
    EXPECT_TRUE(queue.done());
    EXPECT_EQ(queue.read_index(), round);
    EXPECT_EQ(queue.doorbell(), round - 1);
    EXPECT_EQ(queue.signal().end_ts - queue.signal().start_ts, 20'000'000U);
  }
  EXPECT_EQ(hsaKmtDestroyEvent(event), HSAKMT_STATUS_SUCCESS);
  EXPECT_EQ(queue.destroy(), HSAKMT_STATUS_SUCCESS);
}

TEST_F(Thunk, ShowsItsQueuesInSysfsWhileTheyLive) {
  const auto folder = sysfs + "/proc/" + std::to_string(getpid()) + "/queues/";
  const thunk_queue first;
  const thunk_queue second{HSA_QUEUE_PRIORITY_HIGH};
  ASSERT_EQ(first.status(), HSAKMT_STATUS_SUCCESS);
  ASSERT_EQ(second.status(), HSAKMT_STATUS_SUCCESS);
  EXPECT_EQ(text_of(folder + "0/size"), std::to_string(thunk_queue::ring_bytes));
  EXPECT_EQ(text_of(folder + "1/gpuid"), gpu_id());
  ASSERT_EQ(second.destroy(), HSAKMT_STATUS_SUCCESS);
  ASSERT_EQ(first.destroy(), HSAKMT_STATUS_SUCCESS);
  EXPECT_EQ(text_of(folder + "0/size"), "");
}

TEST_F(Thunk, RunsKernelsOnEveryGpu) {
  // The write index lies in memory of the first GPU. MES accepts only that of its own GPU.
  const bool mes =
      properties_of(sysfs + "/topology/nodes/1/properties")["gfx_target_version"] >= 110000;
  std::vector<std::unique_ptr<thunk_queue>> queues;
  for (HSAuint32 node = gpu_node; node < system_.NumNodes; ++node) {
    if (mes && node > gpu_node) {
      EXPECT_EQ((thunk_queue{HSA_QUEUE_PRIORITY_NORMAL, node}.status()), HSAKMT_STATUS_ERROR);
      continue;
    }
    queues.push_back(std::make_unique<thunk_queue>(HSA_QUEUE_PRIORITY_NORMAL, node));
    ASSERT_EQ(queues.back()->status(), HSAKMT_STATUS_SUCCESS) << "node " << node;
  }
  for (std::size_t i = 0; i < queues.size(); ++i) {
    for (std::size_t k = 0; k <= i; ++k) queues[i]->dispatch(1ms);
  }
  for (std::size_t i = 0; i < queues.size(); ++i) {
    ASSERT_TRUE(eventually(patience, [&] { return queues[i]->done(); })) << i;
    EXPECT_EQ(queues[i]->doorbell(), i) << "GPUs have pages of their own";
    EXPECT_EQ(queues[i]->destroy(), HSAKMT_STATUS_SUCCESS);
  }
}

// One page of doorbells for all queues of a process on a GPU: each has a place of its own.
TEST_F(Thunk, GivesEveryQueueADoorbellOfItsOwn) {
  std::vector<std::unique_ptr<thunk_queue>> queues;
  for (int i = 0; i < 8; ++i) {
    queues.push_back(std::make_unique<thunk_queue>());
    ASSERT_EQ(queues.back()->status(), HSAKMT_STATUS_SUCCESS) << i;
  }
  for (auto& each : queues) each->dispatch(1ms);
  for (auto& each : queues) each->dispatch(1ms);
  for (auto& each : queues) {
    ASSERT_TRUE(eventually(patience, [&] { return each->done() && each->read_index() == 2; }));
    EXPECT_EQ(each->doorbell(), 1U);
    EXPECT_EQ(each->destroy(), HSAKMT_STATUS_SUCCESS);
  }
}

TEST_F(Thunk, StopsAQueueWithPercentageZeroAndLetsItGoOn) {
  thunk_queue queue;
  ASSERT_EQ(queue.status(), HSAKMT_STATUS_SUCCESS);
  ASSERT_EQ(queue.update(0), HSAKMT_STATUS_SUCCESS);
  queue.dispatch(1ms);
  EXPECT_FALSE(eventually(50ms, [&] { return queue.done(); }));
  ASSERT_EQ(queue.update(100), HSAKMT_STATUS_SUCCESS);
  EXPECT_TRUE(eventually(patience, [&] { return queue.done(); }));
  EXPECT_EQ(queue.destroy(), HSAKMT_STATUS_SUCCESS);
}

// What this library's successors do by themselves, the driver's calls do here: a debug session, by
// which the queue is taken off the GPU in the middle of a kernel and put back.
TEST_F(Thunk, LosesNothingOfAKernelThatIsSuspended) {
  const raw_device kfd{"/dev/kfd"};
  ASSERT_EQ(kfd.runtime_enable(true), 0);
  thunk_queue queue;
  ASSERT_EQ(queue.status(), HSAKMT_STATUS_SUCCESS);
  HsaQueueInfo info{};
  EXPECT_EQ(hsaKmtGetQueueInfo(queue.id(), &info), HSAKMT_STATUS_ERROR) << "it is on the GPU";
  debugger session{kfd.fd(), getpid()};
  ASSERT_EQ(session.enable(usual_mask), 0);
  ASSERT_EQ(session.clear_new(), 0);
  const auto before = kernels_started();
  queue.dispatch(1s);
  ASSERT_TRUE(eventually(patience, [&] { return kernels_started() > before; }));
  std::vector<std::uint32_t> queues{0};
  ASSERT_EQ(session.suspend(queues), 1);
  // libhsakmt 5.2.3 does not know the XCCs of gfx942: its save area has room for one.
  auto told = properties_of(sysfs + "/topology/nodes/1/properties");
  if (told["num_xcc"] > 1 && !told.contains("cwsr_size")) {
    EXPECT_EQ(hsaKmtGetQueueInfo(queue.id(), &info), HSAKMT_STATUS_ERROR);
  } else {
    ASSERT_EQ(hsaKmtGetQueueInfo(queue.id(), &info), HSAKMT_STATUS_SUCCESS);
    EXPECT_EQ(info.ControlStackUsedInBytes, 0U) << "neither device saves waves";
    EXPECT_EQ(info.SaveAreaSizeInBytes, 0U);
    // The library's own part of the header is untouched.
    EXPECT_GT(info.SaveAreaHeader->DebugSize, 0U);
    EXPECT_GT(info.SaveAreaHeader->DebugOffset, info.SaveAreaHeader->WaveStateOffset);
  }
  EXPECT_FALSE(eventually(1200ms, [&] { return queue.done(); }));
  ASSERT_EQ(session.resume(queues), 1);
  EXPECT_TRUE(eventually(patience, [&] { return queue.done(); }));
  EXPECT_EQ(session.disable(), 0);
  EXPECT_EQ(queue.destroy(), HSAKMT_STATUS_SUCCESS);
  EXPECT_EQ(kfd.runtime_enable(false), 0);
}

TEST_F(Thunk, SetsACuMask) {
  const thunk_queue queue;
  ASSERT_EQ(queue.status(), HSAKMT_STATUS_SUCCESS);
  std::array<HSAuint32, 2> mask{0xffffffff, 0};
  EXPECT_EQ(hsaKmtSetQueueCUMask(queue.id(), 64, mask.data()), HSAKMT_STATUS_SUCCESS);
  EXPECT_EQ(queue.destroy(), HSAKMT_STATUS_SUCCESS);
}

TEST_F(Thunk, SetsATrapHandlerAndReadsTheTileConfiguration) {
  const buffer handler{0, 8192};
  EXPECT_EQ(hsaKmtSetTrapHandler(gpu_node, handler.memory(), 4096, handler.as<void>(4096), 4096),
            HSAKMT_STATUS_SUCCESS);
  std::array<HSAuint32, 32> tiles{};
  std::array<HSAuint32, 16> macro_tiles{};
  HsaGpuTileConfig config{};
  config.TileConfig = tiles.data();
  config.MacroTileConfig = macro_tiles.data();
  config.NumTileConfigs = tiles.size();
  config.NumMacroTileConfigs = macro_tiles.size();
  ASSERT_EQ(hsaKmtGetTileConfig(gpu_node, &config), HSAKMT_STATUS_SUCCESS);
  EXPECT_LE(config.NumTileConfigs, tiles.size());
  EXPECT_NE(config.GbAddrConfig, 0U);
}

TEST_F(Thunk, AllocatesScratchMemory) {
  HsaMemFlags flags{};
  flags.ui32.Scratch = 1;
  flags.ui32.HostAccess = 0;
  void* memory = nullptr;
  ASSERT_EQ(hsaKmtAllocMemory(gpu_node, 1 << 20, flags, &memory), HSAKMT_STATUS_SUCCESS);
  HSAuint64 address = 0;
  EXPECT_EQ(hsaKmtMapMemoryToGPU(memory, 1 << 16, &address), HSAKMT_STATUS_SUCCESS);
  EXPECT_EQ(hsaKmtUnmapMemoryToGPU(memory), HSAKMT_STATUS_SUCCESS);
  EXPECT_EQ(hsaKmtFreeMemory(memory, 1 << 20), HSAKMT_STATUS_SUCCESS);
}

// Doorbells are pages of one file: those of two processes must not be the same.
TEST_F(Thunk, ServesAForkedChildAsAProcessOfItsOwn) {
  thunk_queue queue;
  ASSERT_EQ(queue.status(), HSAKMT_STATUS_SUCCESS);
  queue.dispatch(1ms);
  queue.dispatch(1ms);
  child_process child{[](channel&) {
    HsaSystemProperties system{};
    if (hsaKmtOpenKFD() != HSAKMT_STATUS_SUCCESS) return 1;
    // The parent's. With them, libhsakmt of 2024 would use a table of GPUs that the child has not.
    hsaKmtReleaseSystemProperties();
    if (hsaKmtAcquireSystemProperties(&system) != HSAKMT_STATUS_SUCCESS) return 2;
    thunk_queue own;
    if (own.status() != HSAKMT_STATUS_SUCCESS) return 3;
    if (own.doorbell() != 0) return 4;
    own.dispatch(1ms);
    if (!eventually(patience, [&] { return own.done(); })) return 5;
    return own.destroy() == HSAKMT_STATUS_SUCCESS ? 0 : 6;
  }};
  EXPECT_TRUE(child.succeeds(60s));
  EXPECT_TRUE(eventually(patience, [&] { return queue.done(); }));
  EXPECT_EQ(queue.doorbell(), 1U);
  EXPECT_EQ(queue.destroy(), HSAKMT_STATUS_SUCCESS);
}

TEST_F(Thunk, LeavesNoDeviceMemoryBehindWhenAProcessEnds) {
  const auto free = available();
  child_process child{[&](channel&) {
    HsaSystemProperties system{};
    if (hsaKmtOpenKFD() != HSAKMT_STATUS_SUCCESS) return 1;
    // The parent's. With them, libhsakmt of 2024 would use a table of GPUs that the child has not.
    hsaKmtReleaseSystemProperties();
    if (hsaKmtAcquireSystemProperties(&system) != HSAKMT_STATUS_SUCCESS) return 2;
    auto* memory = new buffer{gpu_node, free / 2 / 4096 * 4096};  // NOLINT: never freed.
    return memory->status() == HSAKMT_STATUS_SUCCESS ? 0 : 3;
  }};
  EXPECT_TRUE(child.succeeds(60s));
  EXPECT_TRUE(eventually(patience, [&] { return available() == free; }));
}

}  // namespace
}  // namespace sluice::test::thunk_test
