#include "nvml.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <utility>

#include "sluice/nvidia/driver_text.hpp"

namespace sluice::nvidia {

namespace {

// NVML's ABI, under its own names (nvml.h of CUDA 13; stable since the versioned functions exist).
constexpr int NVML_SUCCESS = 0;
constexpr int NVML_ERROR_INSUFFICIENT_SIZE = 7;
constexpr std::uint64_t NVML_VALUE_NOT_AVAILABLE = ~std::uint64_t{0};
using nvmlDevice_t = void*;

struct nvmlPciInfo_t {
  std::array<char, 16> busIdLegacy;
  unsigned domain;
  unsigned bus;
  unsigned device;
  unsigned pciDeviceId;
  unsigned pciSubSystemId;
  std::array<char, 32> busId;
};
static_assert(sizeof(nvmlPciInfo_t) == 68);
static_assert(offsetof(nvmlPciInfo_t, busId) == 36);

struct nvmlProcessInfo_t {
  unsigned pid;
  unsigned long long usedGpuMemory;
  unsigned gpuInstanceId;
  unsigned computeInstanceId;
};
static_assert(sizeof(nvmlProcessInfo_t) == 24);
static_assert(offsetof(nvmlProcessInfo_t, usedGpuMemory) == 8);

struct nvmlMemory_t {
  unsigned long long total;
  unsigned long long free;
  unsigned long long used;
};
static_assert(sizeof(nvmlMemory_t) == 24);

}  // namespace

struct nvml::functions {
  void* library = nullptr;
  int (*init)() = nullptr;
  int (*shutdown)() = nullptr;
  int (*count)(unsigned*) = nullptr;
  int (*handle)(unsigned, nvmlDevice_t*) = nullptr;
  int (*name)(nvmlDevice_t, char*, unsigned) = nullptr;
  int (*uuid)(nvmlDevice_t, char*, unsigned) = nullptr;
  int (*pci)(nvmlDevice_t, nvmlPciInfo_t*) = nullptr;
  int (*memory)(nvmlDevice_t, nvmlMemory_t*) = nullptr;
  int (*processes)(nvmlDevice_t, unsigned*, nvmlProcessInfo_t*) = nullptr;
  struct device {
    nvmlDevice_t handle = nullptr;
    gpu_id id{};
  };
  std::vector<device> devices{};

  template <class Function>
  bool find(const char* symbol, Function& into) const {
    into = reinterpret_cast<Function>(::dlsym(library, symbol));
    return into != nullptr;
  }
};

nvml::nvml() : call_(std::make_unique<functions>()) {}

nvml::~nvml() {
  if (call_->shutdown != nullptr) call_->shutdown();
  if (call_->library != nullptr) ::dlclose(call_->library);
}

std::unique_ptr<nvml> nvml::load() {
  std::unique_ptr<nvml> made{new nvml};
  functions& call = *made->call_;
  call.library = ::dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  if (call.library == nullptr) return nullptr;
  if (!call.find("nvmlInit_v2", call.init) || !call.find("nvmlDeviceGetCount_v2", call.count) ||
      !call.find("nvmlDeviceGetHandleByIndex_v2", call.handle) ||
      !call.find("nvmlDeviceGetName", call.name) || !call.find("nvmlDeviceGetUUID", call.uuid) ||
      !call.find("nvmlDeviceGetPciInfo_v3", call.pci) ||
      !call.find("nvmlDeviceGetMemoryInfo", call.memory) ||
      !call.find("nvmlDeviceGetComputeRunningProcesses_v3", call.processes) ||
      call.init() != NVML_SUCCESS)
    return nullptr;
  (void)call.find("nvmlShutdown", call.shutdown);
  unsigned count = 0;
  if (call.count(&count) != NVML_SUCCESS) return nullptr;
  for (unsigned index = 0; index < count; ++index) {
    functions::device one;
    nvmlPciInfo_t place{};
    if (call.handle(index, &one.handle) != NVML_SUCCESS ||
        call.pci(one.handle, &place) != NVML_SUCCESS)
      continue;
    place.busId.back() = '\0';
    if (const auto id = gpu_at(place.busId.data())) {
      one.id = *id;
      call.devices.push_back(one);
    }
  }
  return made;
}

std::vector<nvml::gpu> nvml::gpus() const {
  std::vector<gpu> all;
  for (const auto& each : call_->devices) {
    std::array<char, 96> name{};
    std::array<char, 96> uuid{};
    nvmlMemory_t memory{};
    (void)call_->name(each.handle, name.data(), name.size() - 1);
    (void)call_->uuid(each.handle, uuid.data(), uuid.size() - 1);
    (void)call_->memory(each.handle, &memory);
    all.push_back({each.id, name.data(), uuid.data(), memory.total});
  }
  return all;
}

bool nvml::list_processes(std::vector<nvml_process>& into) const {
  bool done = true;
  for (const auto& each : call_->devices) {
    std::vector<nvmlProcessInfo_t> rows(64);
    int got = NVML_ERROR_INSUFFICIENT_SIZE;
    unsigned count = 0;
    // Processes may begin between two calls.
    for (int attempt = 0; attempt < 4 && got == NVML_ERROR_INSUFFICIENT_SIZE; ++attempt) {
      rows.resize(std::max<std::size_t>(rows.size(), count + 16U));
      count = static_cast<unsigned>(rows.size());
      got = call_->processes(each.handle, &count, rows.data());
    }
    if (got != NVML_SUCCESS) {
      done = false;
      continue;
    }
    for (unsigned index = 0; index < count; ++index) {
      const nvmlProcessInfo_t& row = rows[index];
      nvml_process one{.pid = static_cast<pid_t>(row.pid), .gpu = each.id};
      if (row.usedGpuMemory != NVML_VALUE_NOT_AVAILABLE) one.memory = row.usedGpuMemory;
      into.push_back(one);
    }
  }
  return done;
}

}  // namespace sluice::nvidia
