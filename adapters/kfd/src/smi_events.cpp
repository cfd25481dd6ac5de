#include "sluice/kfd/smi_events.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <string_view>
#include <utility>

#include "sluice/kfd/uapi.hpp"

namespace sluice::kfd {

static_assert(smi_bit(smi_kind::process_end) == std::uint64_t{1}
                                                    << (uapi::KFD_SMI_EVENT_PROCESS_END - 1));
static_assert(smi_all_processes == std::uint64_t{1} << (uapi::KFD_SMI_EVENT_ALL_PROCESS - 1));

result<std::unique_ptr<smi_stream>> smi_stream::open(const device& node, gpu_id gpu,
                                                     std::uint64_t mask) {
  uapi::kfd_ioctl_smi_events_args args{};
  args.gpuid = static_cast<std::uint32_t>(gpu);
  if (const auto opened = node.call(uapi::AMDKFD_IOC_SMI_EVENTS, &args); !opened)
    return opened.error();
  unique_fd lines{static_cast<int>(args.anon_fd)};
  // The driver gives it without either.
  const int flags = ::fcntl(lines.get(), F_GETFL);
  if (flags < 0 || ::fcntl(lines.get(), F_SETFD, FD_CLOEXEC) != 0 ||
      ::fcntl(lines.get(), F_SETFL, flags | O_NONBLOCK) != 0)
    return last_system_error();
  if (::write(lines.get(), &mask, sizeof(mask)) != static_cast<ssize_t>(sizeof(mask)))
    return last_system_error();
  return std::make_unique<smi_stream>(gpu, std::move(lines));
}

smi_stream::smi_stream(gpu_id gpu, unique_fd lines) noexcept
    : gpu_(gpu), lines_(std::move(lines)) {}

result<std::span<const smi_event>> smi_stream::read() {
  parser_.forget();
  std::array<char, 8192> buffer;
  // Bounded, that a stream without an end cannot keep its reader.
  for (int round = 0; round < 16; ++round) {
    const ssize_t got = ::read(lines_.get(), buffer.data(), buffer.size());
    if (got > 0) {
      parser_.feed({buffer.data(), static_cast<std::size_t>(got)});
      continue;
    }
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) break;
    if (!parser_.events().empty()) break;  // the end comes with the next call
    return got < 0 ? last_system_error() : make_error_code(errc::lost);
  }
  return std::span<const smi_event>{parser_.events()};
}

}  // namespace sluice::kfd
