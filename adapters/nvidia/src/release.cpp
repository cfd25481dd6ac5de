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
      (void)calls.change(
          of.client(), on.second, on.first, false, names,
          [&](std::size_t, channel_state state) { done &= state != channel_state::doubtful; });
  return done;
}

/// A group that is not in the record came after it was written: then it had what the others had.
bool restore_slices(const client_objects& of, const held_process& held) {
  bool done = true;
  std::optional<std::uint64_t> of_others;
  for (const auto& each : held.slices)
    if (each.client == of.client().handle()) of_others = each.own;
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

result<process_clients> read(pid_t pid, const device_file& device) {
  unique_fd pidfd{static_cast<int>(::syscall(SYS_pidfd_open, pid, 0))};
  if (!pidfd) return errc::unknown_target;
  auto opened = process_clients::open(pid, std::move(pidfd), device);
  if (!opened) return opened.error();
  if (const auto looked = opened->refresh(); !looked) return looked.error();
  return opened;
}

}  // namespace

result<void> release_process(pid_t pid, const device_file& device, const held_process& held) {
  const auto now = read(pid, device);
  if (!now) return now.error();
  bool done = true;
  for (const client_objects& each : now->clients()) {
    std::uint32_t disables = 0;
    for (const auto& one : held.clients)
      if (one.handle == each.client().handle()) disables = one.disables;
    // Also a client that the record lacks: it may have come between the record and the hold.
    done &= enable_all(each, disables + 1);
    done &= restore_slices(each, held);
  }
  if (!done) return errc::lost;
  return {};
}

result<void> release_everything_of(pid_t pid, const device_file& device) {
  const auto now = read(pid, device);
  if (!now) return now.error();
  bool done = true;
  for (const client_objects& each : now->clients()) done &= enable_all(each, most_disables);
  if (!done) return errc::lost;
  return {};
}

}  // namespace sluice::nvidia
