// The memory of a process, and a driver that answers questions about its objects with anything. The
// first byte says how many of the words are memory; the rest are answers, in turn.

#include "client_objects.hpp"
#include "fuzz.hpp"
#include "handle_scan.hpp"

#include <cstdarg>
#include <cstring>
#include <span>
#include <vector>

namespace {

std::vector<std::uint32_t> answers;
std::size_t next_answer = 0;
std::size_t calls = 0;

std::uint32_t answer() {
  if (next_answer >= answers.size()) return 0;
  return answers[next_answer++];
}

/// Classes of which a look makes something, so that they come up often enough.
std::uint32_t a_class(std::uint32_t word) {
  using namespace sluice::nvidia::uapi;
  constexpr std::uint32_t known[] = {NV20_SUBDEVICE_0,
                                     KEPLER_CHANNEL_GROUP_A,
                                     HOPPER_CHANNEL_GPFIFO_A,
                                     HOPPER_COMPUTE_A,
                                     NV01_DEVICE_0,
                                     HOPPER_DMA_COPY_A,
                                     0xc637};
  return (word & 8U) != 0 ? word : known[(word & 7U) % 7];
}

}  // namespace

/// In place of the C library's: the adapter calls the driver by no other function.
extern "C" int ioctl(int, unsigned long request, ...) noexcept {  // NOLINT
  using namespace sluice::nvidia::uapi;
  va_list list;
  va_start(list, request);
  auto* const call = va_arg(list, NVOS54_PARAMETERS*);
  va_end(list);
  ++calls;
  sluice::fuzz::require(request == NV_RM_CONTROL, "only controls are called");
  const std::uint32_t word = answer();
  // Numbers that are not in use are the rule.
  call->status = (word & 3U) == 0 ? NV_ERR_OBJECT_NOT_FOUND : word >> 28U == 15 ? word : NV_OK;
  if (call->cmd == NV0000_CTRL_CMD_CLIENT_GET_HANDLE_INFO) {
    auto* const info = reinterpret_cast<NV0000_CTRL_CLIENT_GET_HANDLE_INFO_PARAMS*>(call->params);
    info->iResult = info->index == NV0000_CTRL_CMD_CLIENT_GET_HANDLE_INFO_INDEX_CLASSID
                        ? a_class(word >> 2U)
                        : 0x5c000001U + (word >> 2U) % 64U;
  } else if (call->cmd == NV2080_CTRL_CMD_GPU_GET_ID) {
    reinterpret_cast<NV2080_CTRL_GPU_GET_ID_PARAMS*>(call->params)->gpuId = word >> 2U;
  }
  return 0;
}

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace sluice;
  if (size == 0) return 0;
  std::vector<std::uint32_t> words((size - 1) / sizeof(std::uint32_t));
  if (!words.empty()) std::memcpy(words.data(), data + 1, words.size() * sizeof(std::uint32_t));
  const std::size_t memory = std::min<std::size_t>(data[0], words.size());
  nvidia::handle_scan scan;
  scan.feed(std::span{words}.first(memory));
  std::size_t most = ~std::size_t{0};
  for (const auto& each : scan.found()) {
    fuzz::require(nvidia::is_client_handle(each.client), "a candidate is a client's handle");
    fuzz::require(nvidia::is_object_handle(each.newest), "its newest object is an object's handle");
    fuzz::require(each.places > 0 && each.places <= most, "the most frequent comes first");
    most = each.places;
  }
  answers.assign(words.begin() + static_cast<std::ptrdiff_t>(memory), words.end());
  next_answer = 0;
  nvidia::client_objects objects{nvidia::rm_client{0, 0xc1d00001}, 0x5c000010};
  for (int look = 0; look < 3; ++look) {
    calls = 0;
    objects.look();
    fuzz::require(calls < 300'000, "a look ends");
    const bool understood = objects.not_understood().empty();
    for (const auto& [handle, each] : objects.channels()) {
      fuzz::require(nvidia::is_object_handle(handle), "a channel is an object");
      const auto* const in = objects.group_of(each);
      fuzz::require(!understood || (in != nullptr && in->gpu != gpu_id::none),
                    "a channel that counts has a group on a GPU");
    }
  }
  return 0;
}
