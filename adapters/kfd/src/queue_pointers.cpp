#include "sluice/kfd/queue_pointers.hpp"

#include <fcntl.h>
#include <limits.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>

#include "sluice/os/proc.hpp"

namespace sluice::kfd {

namespace {

constexpr std::size_t pointer_size = sizeof(std::uint64_t);
/// From ROCr's write pointer to the end of its read pointer. To find the page of a piece costs the
/// kernel far more than to copy a few words more of it.
constexpr std::size_t rocr_words = 0x48 / pointer_size + 1;

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
  owner_.reserve(2 * queues.size());
  begin_.reserve(2 * queues.size() + 1);
  copied_.resize(rocr_words * queues.size());
  sort_out();
  return {};
}

/// Lists anew what is read directly. Allocates nothing: watch() made the room.
void queue_pointers::sort_out() noexcept {
  direct_.clear();
  remote_.clear();
  owner_.clear();
  begin_.assign(1, 0);
  for (std::size_t index = 0; index < queues_.size(); ++index) {
    if (queues_[index].slow) continue;
    const pointer_addresses& at = queues_[index].at;
    if (is_rocr_layout(at)) {
      const std::size_t write = add_piece(index, at.write, rocr_words);
      direct_.push_back({index, write + rocr_words - 1, write});
    } else {
      const std::size_t read = add_piece(index, at.read, 1);
      direct_.push_back({index, read, add_piece(index, at.write, 1)});
    }
  }
}

/// \return where in copied_ it will be.
std::size_t queue_pointers::add_piece(std::size_t of, std::uint64_t address,
                                      std::size_t words) noexcept {
  // NOLINTNEXTLINE(performance-no-int-to-ptr): another process's address
  remote_.push_back({reinterpret_cast<void*>(address), words * pointer_size});
  owner_.push_back(of);
  const std::size_t begin = begin_.back();
  begin_.push_back(begin + words);
  return begin;
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
    const std::size_t end = at + std::min<std::size_t>(remote_.size() - at, IOV_MAX);
    const iovec local{copied_.data() + begin_[at], (begin_[end] - begin_[at]) * pointer_size};
    ssize_t got = ::process_vm_readv(who_.pid, &local, 1, remote_.data() + at, end - at, 0);
    if (got < 0 && errno != EFAULT) {
      failure = last_system_error();
      break;
    }
    got = std::max<ssize_t>(got, 0);
    const std::size_t copied = begin_[at] + static_cast<std::size_t>(got) / pointer_size;
    while (at < end && begin_[at + 1] <= copied) ++at;
    if (at == end) continue;
    // It ends at the first piece that it cannot read. That queue is for the slow way, from now
    // on; the others go on behind it.
    const std::size_t unreadable = owner_[at];
    queues_[unreadable].slow = true;
    found_slow = true;
    while (at < owner_.size() && owner_[at] == unreadable) ++at;
  }

  // Whose values they are. Nothing is read from a program that is over: not even an error. An
  // address nobody has gives one, which says as well that somebody is there.
  char none = 0;
  const std::uint64_t some = queues_.empty() ? 0 : queues_.front().at.write;
  if (::pread(memory_.get(), &none, 1, static_cast<off_t>(some)) == 0) return errc::unknown_target;
  if (failure) return failure.value() == ESRCH ? make_error_code(errc::unknown_target) : failure;

  for (const direct& each : direct_) {
    if (queues_[each.queue].slow) continue;
    const std::uint64_t read = copied_[each.read];
    std::uint64_t write = copied_[each.write];
    // Copied in one piece, the write pointer may be the older of the two, and be overtaken.
    if (each.read > each.write && static_cast<std::int64_t>(write - read) < 0) write = read;
    values_[each.queue] = {read, write, true};
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
