#include "followed_work.hpp"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <optional>
#include <string>
#include <utility>

#include "sluice/os/proc.hpp"

namespace sluice::nvidia {

namespace {

using namespace std::chrono_literals;

/// Between two looks at which mappings there are: some tenths of a millisecond.
constexpr duration look_at_mappings = 500ms;

}  // namespace

result<std::unique_ptr<agent::followed_process>> followed_work::open(const roots& where,
                                                                     const agent::acting_host& host,
                                                                     pid_t pid,
                                                                     std::uint64_t start_time) {
  auto memory = address_space::open(pid);
  if (!memory) return memory.error();
  if (start_time_of(pid) != start_time) return errc::unknown_target;
  return std::unique_ptr<agent::followed_process>{
      new followed_work{where, host, pid, start_time, std::move(*memory)}};
}

/// \return false when the process has ended.
bool followed_work::follow_mappings() {
  if (!memory_.is_alive()) {
    view_ = {};
    told_ = false;
    // Another program, or none.
    if (start_time_of(pid_) != start_time_) return false;
    auto anew = address_space::open(pid_);
    // Refused for now, for want of descriptors or rights: then nothing is seen until it is not.
    if (!anew) return anew.error().value() != ESRCH;
    // A process that is about to end has no memory, and still its start time.
    if (!anew->is_alive()) return false;
    // What identifies the new program may not be there yet.
    if (host_.may_follow && !host_.may_follow(pid_, start_time_)) return true;
    memory_ = std::move(*anew);
  }
  if (gpus_.empty())
    if (auto read = read_gpus(where_)) gpus_ = std::move(*read);
  view_.set_mappings(memory_.device_mappings([&](unsigned minor) -> std::optional<gpu_id> {
    const auto found = std::ranges::find(gpus_, minor, &gpu_information::minor);
    if (found == gpus_.end()) return {};
    return found->id;
  }));
  return true;
}

void followed_work::tell_why_unsure() {
  if (told_) return;
  const std::string why = view_.why_unsure();
  if (why.empty()) return;
  told_ = true;
  host_.say("of the work of online process " + std::to_string(pid_) + " (" + command_of(pid_) +
            ") only submissions are seen, and no ends: " + why +
            "; a policy assumes an end after a pause, or let a client mark its requests");
}

bool followed_work::look(time_point now, std::vector<work>& found) {
  if (now >= mappings_due_) {
    if (!follow_mappings()) return false;
    tell_why_unsure();
    mappings_due_ = now + look_at_mappings;
  }
  view_.look(
      [this](std::uint64_t at, std::span<std::uint32_t> into) { return memory_.read(at, into); },
      now);
  for (const auto& each : view_.places())
    found.push_back({each.gpu, each.work, each.came, each.waiting});
  return true;
}

}  // namespace sluice::nvidia
