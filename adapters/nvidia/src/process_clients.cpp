#include "process_clients.hpp"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

namespace sluice::nvidia {

namespace {

/// Looks between two searches of the memory, which delay what the agent does to the process.
constexpr unsigned longest_pause = 64;
constexpr unsigned never = ~0U;
/// Of the time that a search takes: a process may open the device again and again.
constexpr int rest_after_search = 4;
/// Duplicates of the descriptors of one process. More would use up those of the agent.
constexpr std::size_t most_files = 256;

bool has_ended(const unique_fd& pidfd) {
  pollfd ended{pidfd.get(), POLLIN, 0};
  return ::poll(&ended, 1, 0) > 0;
}

}  // namespace

result<process_clients> process_clients::open(pid_t pid, unique_fd pidfd, const device_file& device,
                                              duration longest_search) {
  auto memory = address_space::open(pid);
  if (!memory) return memory.error();
  if (has_ended(pidfd)) return errc::unknown_target;
  return process_clients{pid, std::move(pidfd), device, std::move(*memory), longest_search};
}

void process_clients::drop_closed(const client_function& leaves) {
  for (auto each = files_.begin(); each != files_.end();) {
    // Without an answer it counts as closed: a duplicate must not outlive it.
    if (is_same_file(each->copy.get(), {pid_, each->number})) {
      ++each;
      continue;
    }
    const auto is_over_it = [copy = each->copy.get()](const client_objects& one) {
      return one.client().fd() == copy;
    };
    std::erase_if(clients_, [&](const client_objects& one) {
      return is_over_it(one) && (!leaves || leaves(one));
    });
    if (std::ranges::any_of(clients_, is_over_it))
      ++each;
    else
      each = files_.erase(each);
  }
}

result<void> process_clients::adopt(const stop_function& stops) {
  std::vector<int> now;
  const auto listed = device_->list(pid_, now, stops);
  if (!listed && listed.error().value() == ECANCELED) return {};
  if (!listed) return listed.error();
  if (*listed == 0 && visible_thread_of(pid_) != pid_)
    return error_code{ESRCH, boost::system::system_category()};
  std::ranges::sort(now);
  for (const int number : now) {
    // A number may be another file's than at the last look.
    if (files_.size() > most_files || has_file({pid_, number})) continue;
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
    if (has_file({::getpid(), copy->get()})) continue;
    files_.push_back({number, std::move(*copy)});
    // A process opens the device before it makes its client.
    search_soon(1);
  }
  return {};
}

bool process_clients::has_file(const remote_fd& which) const {
  return std::ranges::any_of(
      files_, [&](const file& each) { return is_same_file(each.copy.get(), which); });
}

void process_clients::find_clients(const stop_function& stops) {
  if (!searching_) {
    again_ = false;
    searched_for_ = duration::zero();
  }
  const time_point begun = clock::now();
  const auto search = memory_.find_clients(longest_search_, stops);
  const time_point end = clock::now();
  searched_for_ += end - begun;
  searching_ = !search.complete;
  if (searching_) return;
  for (const auto& each : search.found) add_client(each.client, each.newest);
  search_from_ = end + rest_after_search * searched_for_;
  search_in_ = again_ ? 1 : clients_.empty() ? search_pause_ : never;
  search_pause_ = std::min(2 * search_pause_, longest_pause);
}

void process_clients::search_soon(unsigned looks) {
  search_in_ = std::min(search_in_, looks);
  search_pause_ = 1;
  // A search that is under way may be beyond it. To begin anew would never end where the process
  // opens the device again and again.
  again_ = true;
}

void process_clients::add_client(uapi::NvHandle handle, uapi::NvHandle newest) {
  const auto is_it = [&](const client_objects& one) { return one.client().handle() == handle; };
  if (std::ranges::any_of(clients_, is_it)) return;
  for (const file& over : files_) {
    const rm_client asked{over.copy.get(), handle};
    if (asked.class_of(handle) != uapi::NV01_ROOT_CLIENT) continue;
    clients_.emplace_back(asked, newest);
    break;
  }
}

/// Clients that the process freed without closing the descriptor: it may make another one over it.
void process_clients::drop_freed() {
  const auto freed = [](const client_objects& each) {
    rm_status why;
    return !each.client().class_of(each.client().handle(), &why) &&
           why.is(uapi::NV_ERR_INVALID_CLIENT);
  };
  if (std::erase_if(clients_, freed) != 0) search_soon(0);
}

result<void> process_clients::refresh(const client_function& leaves, const stop_function& stops,
                                      const stop_function& stops_search) {
  if (has_ended(pidfd_) || !memory_.is_alive()) return errc::unknown_target;
  // In this order: else a client and the one that replaces it meanwhile would be listed together.
  if (const auto adopted = adopt(stops); !adopted) return adopted;
  drop_closed(leaves);
  if (searching_ || (search_in_ == 0 && clock::now() >= search_from_)) {
    find_clients(stops_search);
  } else if (search_in_ != 0 && search_in_ != never) {
    --search_in_;
  }
  drop_freed();
  for (client_objects& each : clients_) each.look(stops);
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
  if (files_.size() > most_files)
    return "has more than " + std::to_string(most_files) + " connections to the driver";
  for (const client_objects& each : clients_)
    if (auto why = each.not_understood(); !why.empty()) return why;
  return {};
}

bool process_clients::is_shared(const client_objects& of,
                                const std::vector<remote_fd>& sharers) const {
  const auto may_have = [&](const remote_fd& each) {
    return may_be_same_file(of.client().fd(), each);
  };
  if (!has_ended(pidfd_) && may_have({pid_, descriptor_of(of)})) return true;
  if (std::ranges::any_of(sharers, may_have)) return true;
  return std::ranges::any_of(list_users(*device_), [&](const remote_fd& each) {
    return is_same_file(of.client().fd(), each);
  });
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
