#include "pointer_finder.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <utility>

#include "sluice/kfd/driver_trees.hpp"
#include "sluice/os/unique_fd.hpp"

namespace sluice::kfd {

namespace {

/// For one change of queues, when mqds does not show what sysfs shows.
constexpr int most_reads = 4;

}  // namespace

void pointer_finder::want(bool wanted) {
  const bool begins = !std::exchange(wanted_, wanted) && wanted;
  // Also if no work is wanted: a policy wants none while none can be seen.
  if (!begins && !refused_) return;
  // Now: there may be no online process for long, or none that is seen to be one.
  const std::string path = where_.debugfs + "/mqds";
  const unique_fd file{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  char first = 0;
  if (!file || ::read(file.get(), &first, 1) < 0) return say_refused(last_system_error());
  if (std::exchange(refused_, false))
    for (auto& each : known_) each.second.reads_due = most_reads;
}

std::vector<online_process> pointer_finder::find(std::span<const work_watch::process> online) {
  std::erase_if(known_, [&](const auto& each) {
    return std::ranges::find(online, each.first, &work_watch::process::who) == online.end();
  });
  for (const auto& each : online) {
    const auto [known, fresh] = known_.try_emplace(each.who);
    if (!fresh && known->second.change == each.change) continue;
    known->second.change = each.change;
    known->second.reads_due = most_reads;
  }
  if (wanted_ &&
      std::ranges::any_of(known_, [](const auto& each) { return each.second.reads_due > 0; }))
    read(online);
  std::vector<online_process> all;
  for (const auto& each : online) {
    online_process one{each.who, each.change, known_.at(each.who).pointers};
    // Those that sysfs shows and mqds does not.
    std::vector<gpu_id> shown;
    for (const online_queue& queue : one.queues) shown.push_back(queue.gpu);
    for (const surveyed_queue& queue : each.queues) {
      const auto same = std::ranges::find(shown, queue.gpu);
      if (same != shown.end()) {
        shown.erase(same);
      } else {
        one.queues.push_back({.gpu = queue.gpu});
      }
    }
    all.push_back(std::move(one));
  }
  return all;
}

void pointer_finder::read(std::span<const work_watch::process> online) {
  const auto seen = read_mqds(where_);
  if (seen)
    refused_ = false;
  else
    say_refused(seen.error());
  for (const auto& each : online) {
    known_process& known = known_.at(each.who);
    if (known.reads_due == 0) continue;
    --known.reads_due;
    known.pointers.clear();
    if (!seen) continue;
    for (const mqd& queue : seen->queues) {
      if (queue.pid != each.who.pid || queue.type != mqd_type::compute ||
          queue.write_pointer_address == 0)
        continue;
      known.pointers.push_back({queue.gpu,
                                {queue.read_pointer_address, queue.write_pointer_address},
                                queue.ring_base,
                                queue.aql.value_or(false)});
    }
    if (known.pointers.size() == each.queues.size()) known.reads_due = 0;
  }
}

void pointer_finder::say_refused(error_code why) {
  if (std::exchange(refused_, true)) return;
  say_("cannot read " + where_.debugfs + "/mqds: " + why.message() +
       "; sluice detects online work only if a client announces it; mount debugfs and run as root, "
       "or grant CAP_DAC_READ_SEARCH and CAP_SYS_PTRACE; see DAEMON.md, \"Features that need "
       "more rights\"");
}

}  // namespace sluice::kfd
