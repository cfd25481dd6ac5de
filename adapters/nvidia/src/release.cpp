#include "release.hpp"

#include "channel_calls.hpp"
#include "process_clients.hpp"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "sluice/os/proc.hpp"

namespace sluice::nvidia {

namespace {

/// Without a record: a scheduler disables a channel once, and in doubt a few times.
constexpr std::uint32_t most_disables = 8;

bool enable_all(const client_objects& of, std::uint32_t times) {
  std::map<std::pair<gpu_id, uapi::NvHandle>, std::vector<channel_name>> by_subdevice;
  for (const auto& [handle, each] : of.channels())
    if (const channel_group* const in = of.group_of(each); in != nullptr)
      by_subdevice[{in->gpu, in->subdevice}].push_back({of.client().handle(), handle});
  bool done = true;
  channel_calls calls;
  for (const auto& [on, names] : by_subdevice)
    for (std::uint32_t time = 0; time < times; ++time)
      (void)calls.change(of.client(), on.second, on.first, false, names,
                         [&](std::size_t, channel_state state) {
                           done &= state == channel_state::changed || state == channel_state::gone;
                         });
  return done;
}

/// A group that is not in the record came after it was written: then it had what the others had, of
/// its client if they are there.
bool restore_slices(const client_objects& of, const held_process& held) {
  bool done = true;
  std::optional<std::uint64_t> of_others;
  for (const auto& each : held.slices)
    if (!of_others || each.client == of.client().handle()) of_others = each.own;
  for (const auto& [handle, group] : of.groups()) {
    if (!group.computes) continue;
    auto own = of_others;
    for (const auto& each : held.slices)
      if (each.client == of.client().handle() && each.group == handle) own = each.own;
    std::uint64_t now = 0;
    if (!own || !of.client().timeslice(handle, now) || now == *own) continue;
    const rm_status set = of.client().set_timeslice(handle, *own);
    done &= static_cast<bool>(set) || set.is(uapi::NV_ERR_OBJECT_NOT_FOUND);
  }
  return done;
}

/// Whether a process can have an open file of the recorded one: by fork(), or as it was recorded.
bool may_share(const remote_fd& of, pid_t thread, const held_process& held) {
  if (held.kinship == 0 || kinship_of(thread) == held.kinship) return true;
  return std::ranges::any_of(held.sharers, [&](const auto& each) {
    return each.pid == of.pid && each.start_time == start_time_of(of.pid);
  });
}

/// Releases clients in other processes. A question about a client over another's open file leaves
/// 17 lines in the kernel's log: so it asks only over those that may be the right ones, and once.
/// \return false if one may be out of reach.
bool release_elsewhere(std::map<uapi::NvHandle, held_process::client> missing,
                       const device_file& device, const held_process& held,
                       const process_clients::client_function& release) {
  bool done = true;
  std::vector<unique_fd> asked;
  for (const remote_fd& each : list_users(device)) {
    const pid_t thread = each.thread != 0 ? each.thread : each.pid;
    const std::uint64_t mount = mount_of(thread, each.fd);
    const auto may_be_over_it = [mount](const auto& one) {
      return mount == 0 || one.second.mount == 0 || one.second.mount == mount;
    };
    const auto is_it = [&](const unique_fd& copy) { return is_same_file(copy.get(), each); };
    if (std::ranges::none_of(missing, may_be_over_it) || !may_share(each, thread, held) ||
        std::ranges::any_of(asked, is_it))
      continue;
    const auto pidfd = open_process(each.pid, thread);
    // An older kernel does not open it: it may have the client.
    done &= pidfd || each.thread == 0;
    auto copy = pidfd ? duplicate(*pidfd, each.fd) : result<unique_fd>{pidfd.error()};
    if (!copy) continue;
    for (auto one = missing.begin(); one != missing.end();) {
      const rm_client client{copy->get(), one->first};
      if (!may_be_over_it(*one) || client.class_of(one->first) != uapi::NV01_ROOT_CLIENT) {
        ++one;
        continue;
      }
      client_objects objects{client, first_object};
      objects.look();
      (void)release(objects);
      one = missing.erase(one);
    }
    asked.push_back(std::move(*copy));
  }
  return done;
}

/// \param thread as visible_thread_of().
result<process_clients> read(pid_t pid, pid_t thread, const device_file& device) {
  if (thread == 0) return errc::unknown_target;
  auto pidfd = open_process(pid, thread);
  if (!pidfd) return pidfd.error();
  auto opened = process_clients::open(thread, std::move(*pidfd), device, duration::max());
  if (!opened) return opened.error();
  if (const auto looked = opened->refresh(); !looked) return looked.error();
  return opened;
}

}  // namespace

result<void> release_process(pid_t pid, const device_file& device, const held_process& held) {
  bool done = true;
  const auto release = [&](const client_objects& one) {
    std::uint32_t disables = 0;
    for (const auto& each : held.clients)
      if (each.handle == one.client().handle()) disables = each.disables;
    // Also a client that the record lacks: it may have come between the record and the hold.
    done &= enable_all(one, disables + 1);
    done &= restore_slices(one, held);
    return done;
  };
  std::map<uapi::NvHandle, held_process::client> missing;
  for (const auto& each : held.clients) missing.emplace(each.handle, each);
  // Over the recorded descriptors first: to search the memory may take a second.
  const pid_t thread = pid > 0 ? visible_thread_of(pid) : 0;
  const auto process =
      thread != 0 ? open_process(pid, thread) : result<unique_fd>{errc::unknown_target};
  for (const auto& each : held.clients) {
    const auto copy = process ? duplicate(*process, each.fd) : result<unique_fd>{process.error()};
    if (!copy || !device.is_open_at(copy->get())) continue;
    const rm_client client{copy->get(), each.handle};
    if (client.class_of(each.handle) != uapi::NV01_ROOT_CLIENT) continue;
    client_objects objects{client, first_object};
    objects.look();
    release(objects);
    missing.erase(each.handle);
  }
  const auto now = read(pid, thread, device);
  if (now) {
    // Once more: the memory also shows up to which number the client has objects.
    for (const client_objects& each : now->clients()) {
      release(each);
      missing.erase(each.client().handle());
    }
  } else if (now.error() != errc::unknown_target && visible_thread_of(pid) != 0) {
    return now.error();
  }
  // The process may have ended or closed its descriptor, and another one still have the open file.
  // Or its own memory does not show the client any more.
  if (!missing.empty()) done &= release_elsewhere(std::move(missing), device, held, release);
  if (!done) return errc::lost;
  return {};
}

result<void> release_everything_of(pid_t pid, const device_file& device) {
  const auto now = read(pid, visible_thread_of(pid), device);
  if (!now) return now.error();
  bool done = true;
  for (const client_objects& each : now->clients()) done &= enable_all(each, most_disables);
  if (!done) return errc::lost;
  return {};
}

}  // namespace sluice::nvidia
