#include "sluice/kfd/queue_pointers.hpp"

#include "proc.hpp"

#include <fcntl.h>
#include <limits.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>

namespace sluice::kfd {

namespace {

constexpr std::size_t pointer_size = sizeof(std::uint64_t);

bool is_pointer_address(std::uint64_t address) noexcept {
  return address != 0 && address % pointer_size == 0;
}

}  // namespace

result<std::unique_ptr<queue_pointers>> queue_pointers::open(const process_identity& who) {
  const std::string path = "/proc/" + std::to_string(who.pid) + "/mem";
  unique_fd memory{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  const error_code error = memory ? error_code{} : last_system_error();
  // Asked after the open: if the pid is his now, it was his then.
  if (start_time_of(who.pid) != who.start_time) return errc::unknown_target;
  if (error)
    return error == boost::system::errc::no_such_file_or_directory
               ? make_error_code(errc::unknown_target)
               : error;
  return std::unique_ptr<queue_pointers>{new queue_pointers{who, std::move(memory)}};
}

result<void> queue_pointers::watch(std::span<const pointer_addresses> queues) {
  for (const pointer_addresses& each : queues) {
    if (!is_pointer_address(each.read) || !is_pointer_address(each.write))
      return error_code{EINVAL, boost::system::system_category()};
  }
  queues_.clear();
  for (const pointer_addresses& each : queues) queues_.push_back({each});
  values_.assign(queues.size(), {});
  direct_.reserve(queues.size());
  remote_.reserve(2 * queues.size());
  copied_.resize(2 * queues.size());
  sort_out();
  return {};
}

/// Lists anew what is read directly. Allocates nothing: watch() made the room.
void queue_pointers::sort_out() noexcept {
  direct_.clear();
  remote_.clear();
  for (std::size_t index = 0; index < queues_.size(); ++index) {
    if (queues_[index].slow) continue;
    direct_.push_back(index);
    for (const std::uint64_t address : {queues_[index].at.read, queues_[index].at.write}) {
      // NOLINTNEXTLINE(performance-no-int-to-ptr): another process's address
      remote_.push_back({reinterpret_cast<void*>(address), pointer_size});
    }
  }
}

std::optional<std::uint64_t> queue_pointers::word_at(std::uint64_t address) const noexcept {
  std::uint64_t got = 0;
  if (::pread(memory_.get(), &got, pointer_size, static_cast<off_t>(address)) !=
      static_cast<ssize_t>(pointer_size))
    return {};
  return got;
}

result<void> queue_pointers::read() noexcept {
  for (pointer_values& each : values_) each.known = false;
  bool found_slow = false;
  error_code failure;
  for (std::size_t at = 0; at < remote_.size();) {
    const std::size_t count = std::min<std::size_t>(remote_.size() - at, IOV_MAX);
    const iovec local{copied_.data() + at, count * pointer_size};
    ssize_t got = ::process_vm_readv(who_.pid, &local, 1, remote_.data() + at, count, 0);
    if (got < 0 && errno != EFAULT) {
      failure = last_system_error();
      break;
    }
    got = std::max<ssize_t>(got, 0);
    const std::size_t copied = static_cast<std::size_t>(got) / pointer_size;
    at += copied;
    if (copied == count) continue;
    // It ends at the first pointer that it cannot read. That queue is for the slow way, from now
    // on; the others go on behind it.
    queues_[direct_[at / 2]].slow = true;
    found_slow = true;
    at = (at / 2 + 1) * 2;
  }

  // Whose values they are. Nothing is read from a program that is over: not even an error. An
  // address nobody has gives one, which says as well that somebody is there.
  char none = 0;
  const std::uint64_t some = queues_.empty() ? 0 : queues_.front().at.write;
  if (::pread(memory_.get(), &none, 1, static_cast<off_t>(some)) == 0) return errc::unknown_target;
  if (failure) return failure.value() == ESRCH ? make_error_code(errc::unknown_target) : failure;

  for (std::size_t index = 0; index < direct_.size(); ++index) {
    if (queues_[direct_[index]].slow) continue;
    values_[direct_[index]] = {copied_[2 * index], copied_[2 * index + 1], true};
  }
  if (found_slow) sort_out();
  if (slow() == 0) return {};
  for (std::size_t index = 0; index < queues_.size(); ++index) {
    if (!queues_[index].slow) continue;
    const auto read = word_at(queues_[index].at.read);
    const auto write = word_at(queues_[index].at.write);
    if (read && write) values_[index] = {*read, *write, true};
  }
  return {};
}

}  // namespace sluice::kfd
