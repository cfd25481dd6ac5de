#include "process_clients.hpp"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

namespace sluice::nvidia {

namespace {

/// Looks between two searches of the memory, which take up to 1 s and delay what the agent does to
/// the process.
constexpr unsigned longest_pause = 64;
constexpr unsigned never = ~0U;

/// A question about a client that does not exist leaves a line in the kernel log: a process that
/// keeps false handles in its memory must not fill that.
constexpr std::size_t most_candidates = 8;

bool has_ended(const unique_fd& pidfd) {
  pollfd ended{pidfd.get(), POLLIN, 0};
  return ::poll(&ended, 1, 0) > 0;
}

}  // namespace

result<process_clients> process_clients::open(pid_t pid, unique_fd pidfd,
                                              const device_file& device) {
  auto memory = address_space::open(pid);
  if (!memory) return memory.error();
  if (has_ended(pidfd)) return errc::unknown_target;
  return process_clients{pid, std::move(pidfd), device, std::move(*memory)};
}

void process_clients::drop_closed(const farewell& before_drop) {
  for (auto each = files_.begin(); each != files_.end();) {
    // Without an answer it counts as closed: a duplicate must not outlive it.
    if (is_same_file(each->copy.get(), {pid_, each->number})) {
      ++each;
      continue;
    }
    const int copy = each->copy.get();
    for (const client_objects& one : clients_)
      if (before_drop && one.client().fd() == copy) before_drop(one);
    std::erase_if(clients_, [&](const client_objects& one) { return one.client().fd() == copy; });
    each = files_.erase(each);
  }
}

result<void> process_clients::adopt() {
  std::vector<int> now;
  if (const auto listed = device_->list(pid_, now); !listed) return listed.error();
  std::ranges::sort(now);
  for (const int number : now) {
    if (std::ranges::binary_search(seen_, number)) continue;
    auto copy = duplicate(pidfd_, number);
    if (!copy) {
      if (copy.error().value() == EBADF) continue;  // closed meanwhile
      return copy.error();
    }
    // The number may be another file's by now.
    if (error_code why; !is_same_file(copy->get(), {pid_, number}, why)) {
      if (why && why.value() != EBADF) return why;
      continue;
    }
    const bool twice = std::ranges::any_of(files_, [&](const file& each) {
      return is_same_file(each.copy.get(), {::getpid(), copy->get()});
    });
    if (twice) continue;
    files_.push_back({number, std::move(*copy)});
    // A process opens the device before it makes its client.
    search_in_ = std::min(search_in_, 1U);
    search_pause_ = 1;
  }
  seen_ = std::move(now);
  return {};
}

void process_clients::find_clients() {
  auto found = memory_.find_clients();
  if (found.size() > most_candidates) found.resize(most_candidates);
  for (const auto& each : found) {
    const auto is_it = [&](const client_objects& one) {
      return one.client().handle() == each.client;
    };
    if (std::ranges::any_of(clients_, is_it)) continue;
    for (const file& over : files_) {
      const rm_client asked{over.copy.get(), each.client};
      if (asked.class_of(each.client) != uapi::NV01_ROOT_CLIENT) continue;
      clients_.emplace_back(asked, each.newest);
      break;
    }
  }
}

result<void> process_clients::refresh(const farewell& before_drop) {
  if (has_ended(pidfd_) || !memory_.is_alive()) return errc::unknown_target;
  drop_closed(before_drop);
  if (const auto adopted = adopt(); !adopted) return adopted;
  if (search_in_ == 0) {
    find_clients();
    search_in_ = clients_.empty() ? search_pause_ : never;
    search_pause_ = std::min(2 * search_pause_, longest_pause);
  } else if (search_in_ != never) {
    --search_in_;
  }
  for (client_objects& each : clients_) each.look();
  // What was read may be of the program before an exec.
  if (has_ended(pidfd_) || !memory_.is_alive()) return errc::unknown_target;
  return {};
}

int process_clients::descriptor_of(const client_objects& of) const noexcept {
  for (const file& each : files_)
    if (each.copy.get() == of.client().fd()) return each.number;
  return -1;
}

std::string process_clients::not_understood() const {
  for (const client_objects& each : clients_)
    if (auto why = each.not_understood(); !why.empty()) return why;
  return {};
}

std::vector<remote_fd> process_clients::sharers(const std::vector<remote_fd>& users) const {
  std::vector<remote_fd> all;
  for (const remote_fd& each : users) {
    if (each.pid == pid_) continue;
    for (const file& own : files_) {
      if (!is_same_file(own.copy.get(), each)) continue;
      all.push_back(each);
      break;
    }
  }
  return all;
}

}  // namespace sluice::nvidia
