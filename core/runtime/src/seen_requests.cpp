#include "seen_requests.hpp"

#include "log.hpp"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

namespace sluice::core {
namespace {

using namespace std::chrono_literals;

/// Between two looks while work is likely, and else.
constexpr duration fast = 50us;
constexpr duration slow = 2ms;
/// How long after work more of it is likely.
constexpr duration recent = 1s;
/// How long after work a process counts as one that uses the GPU, as its other ones: a request that
/// moves from one to the next stays one client.
constexpr duration uses = 10s;

constexpr duration first_gap = 32us;
constexpr std::uint32_t few_gaps = 16;
/// After which the gaps before count half.
constexpr std::uint32_t many_gaps = 256;
/// Until calls have been measured.
constexpr duration usual_round_trip = 1ms;
constexpr duration longest_linger = 10ms;
/// After a submission whose end is not seen.
constexpr duration blind_linger = 20ms;
/// How long what was seen waits for its process to be seen.
constexpr duration patience_for_unknown = 10s;

bool is_under_way(online_work work) noexcept {
  return work == online_work::waiting || work == online_work::running;
}

}  // namespace

void linger::note(duration gap) noexcept {
  std::size_t index = 0;
  for (duration edge = first_gap; gap > edge && index + 1 < counts_.size(); edge *= 2) ++index;
  ++counts_[index];
  if (++noted_ < many_gaps) return;
  noted_ = 0;
  for (std::uint32_t& each : counts_) {
    each /= 2;
    noted_ += each;
  }
}

duration linger::best(duration early) const noexcept {
  if (noted_ < few_gaps) return early;
  duration best = early;
  duration least = duration::max();
  duration edge = first_gap;
  for (std::size_t index = 0; index < counts_.size() && edge <= longest_linger;
       ++index, edge *= 2) {
    duration cost{};
    duration gap = first_gap;
    for (std::size_t other = 0; other < counts_.size(); ++other, gap *= 2)
      cost += counts_[other] * (other <= index ? 3 * gap / 4 : edge + early);
    if (cost >= least) continue;
    least = cost;
    best = edge;
  }
  return best;
}

bool seen_requests::is_marked(pid_t pid) const noexcept {
  return std::find(marked_.begin(), marked_.end(), pid) != marked_.end();
}

bool seen_requests::works(const process_seen& which, const process& row) noexcept {
  return std::any_of(which.places.begin(), which.places.end(), [&](const place& each) {
    return is_under_way(each.work) &&
           std::any_of(row.queues.begin(), row.queues.end(),
                       [&](const queue* of) { return of->on->id == each.gpu; });
  });
}

void seen_requests::client_came(pid_t pid) {
  if (!is_marked(pid)) marks_(pid, true);
  marked_.push_back(pid);
  for (process_seen& each : processes_)
    if (each.pid == pid) withdraw(each);
}

void seen_requests::client_left(pid_t pid) noexcept {
  const auto found = std::find(marked_.begin(), marked_.end(), pid);
  if (found == marked_.end()) return;
  marked_.erase(found);
  if (!is_marked(pid)) marks_(pid, false);
}

void seen_requests::withdraw(process_seen& which) noexcept {
  which.open = false;
  if (which.page) which.page->withdrawn.store(true, std::memory_order_release);
  which.page.reset();
}

void seen_requests::forget() noexcept {
  for (process_seen& each : processes_) withdraw(each);
  processes_.clear();
  next_ = never;
}

/// Those on which it has or recently had work, and all of its gang.
std::vector<gpu_id> seen_requests::gpus_of(const process_seen& which, time_point at) const {
  std::vector<gpu_id> all;
  for (const place& each : which.places)
    if (is_under_way(each.work) || at - each.last < uses) all.push_back(each.gpu);
  if (const process* const row = table_.find(which.pid, which.start_time)) {
    const group& gang = *row->in;
    if (gang.key != 0 && gang.view.what == role::online)
      all.insert(all.end(), gang.gpus.begin(), gang.gpus.end());
  }
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  std::erase_if(all, [this](gpu_id id) { return table_.find_gpu(id) == nullptr; });
  return all;
}

time_point seen_requests::end_of(const process_seen& which) const noexcept {
  duration round_trip{};
  time_point blind_until{};
  for (const place& each : which.places) {
    if (each.work == online_work::consumed)
      blind_until = std::max(blind_until, each.last + blind_linger);
    const gpu_view* const view = std::as_const(table_).find(each.gpu);
    if (view != nullptr) round_trip = std::max(round_trip, view->suspend_cost + view->resume_cost);
  }
  const duration usual =
      which.gaps.best(2 * (round_trip == duration{} ? usual_round_trip : round_trip));
  return std::max(blind_until, which.quiet_since + usual);
}

void seen_requests::begin(process_seen& which, time_point at) {
  auto gpus = gpus_of(which, at);
  if (which.page && gpus != which.gpus) withdraw(which);
  if (which.open) return;
  if (!which.page) {
    which.gpus = std::move(gpus);
    which.page = std::make_shared<client_page>(
        desk_->next_id(),
        client_options{.name = "process " + std::to_string(which.pid) + " (seen)",
                       .gpus = which.gpus,
                       .pid = which.pid},
        desk_, std::make_shared<sluice_client_words>(), nullptr, client_page::made_by::scheduler);
    desk_->register_page(which.page);
  }
  which.open = true;
  which.page->begin(at);
  which.page->mark(span_kind::request, ++which.request, at, true);
}

void seen_requests::end(process_seen& which) {
  which.open = false;
  which.ended = which.quiet_since;
  which.page->end();
  which.page->mark(span_kind::request, which.request, which.ended, false);
}

void seen_requests::observe(const observation& seen) {
  auto found = std::find_if(processes_.begin(), processes_.end(), [&](const process_seen& each) {
    return each.pid == seen.pid && each.start_time == seen.start_time;
  });
  if (found == processes_.end()) {
    found = processes_.emplace(found);
    found->pid = seen.pid;
    found->start_time = seen.start_time;
  }
  process_seen& which = *found;
  auto on = std::find_if(which.places.begin(), which.places.end(),
                         [&](const place& each) { return each.gpu == seen.gpu; });
  if (on == which.places.end()) on = which.places.insert(on, place{.gpu = seen.gpu});
  // When work of which the end was not seen has ended is known only now.
  const bool end_shows = on->work == online_work::consumed && seen.work == online_work::finished;
  if (is_under_way(on->work) || seen.count != 0 || end_shows) on->last = seen.at;
  on->work = seen.work;
  which.seen_at = seen.at;
  const process* const row = table_.find(seen.pid, seen.start_time);
  if (row == nullptr || row->what != role::online) return;
  const bool under_way = works(which, *row);
  if (under_way || seen.count != 0) {
    last_work_ = seen.at;
    const bool works_there = is_under_way(seen.work) || seen.count != 0;
    if (which.open && works_there && table_.find_gpu(seen.gpu) != nullptr &&
        std::find(which.gpus.begin(), which.gpus.end(), seen.gpu) == which.gpus.end()) {
      begin(which, seen.at);  // On that GPU, too.
    } else if (!which.open) {
      if (which.ended != time_point{}) which.gaps.note(seen.at - which.ended);
      begin(which, seen.at);
    } else if (which.quiet) {
      which.gaps.note(seen.at - which.quiet_since);
    }
    which.quiet = false;
  }
  if (under_way || !which.open || (which.quiet && !end_shows)) return;
  which.quiet = true;
  which.quiet_since = seen.at;
  next_ = std::min(next_, end_of(which));
}

/// Once, and not before something offline there can be suspended: then it is known.
void seen_requests::warn_of_blindness() {
  if (warned_ || !config_.see_unmarked) return;
  for (const gpu_view& each : std::as_const(table_).gpus()) {
    if (each.can_see_work ||
        std::none_of(each.offline.begin(), each.offline.end(), [this](group_id id) {
          const group_view* const group = std::as_const(table_).find(id);
          return group != nullptr && group->manageable;
        }))
      continue;
    warned_ = true;
    log_line(log_level::warning, log_part::scheduler, {},
             "see_unmarked has no effect: the work of programs without a client cannot be seen; "
             "with some drivers only an agent sees it, and mode observe has none");
    return;
  }
}

void seen_requests::work(time_point now) {
  warn_of_blindness();
  next_ = never;
  std::erase_if(processes_, [&](process_seen& each) {
    const process* const row = table_.find(each.pid, each.start_time);
    if (row == nullptr || row->what != role::online || is_marked(each.pid)) {
      withdraw(each);
      return row != nullptr || each.seen_at + patience_for_unknown < now;
    }
    if (!each.open && works(each, *row)) begin(each, each.seen_at);
    // Its queues are gone, and with them what reported their work.
    if (each.open && !each.quiet && !works(each, *row)) {
      each.quiet = true;
      each.quiet_since = now;
    }
    if (!each.open || !each.quiet) return false;
    const time_point until = end_of(each);
    if (until > now)
      next_ = std::min(next_, until);
    else
      end(each);
    return false;
  });
}

duration seen_requests::interval(time_point now) const noexcept {
  if (!config_.see_unmarked) return duration::zero();
  const auto views = table_.gpus();
  if (std::all_of(views.begin(), views.end(),
                  [](const gpu_view& each) { return each.offline.empty(); }))
    return duration::zero();
  const bool likely = std::any_of(processes_.begin(), processes_.end(),
                                  [](const process_seen& each) { return each.open; }) ||
                      now - last_work_ < recent;
  return likely && last_work_ != time_point{} ? fast : slow;
}

}  // namespace sluice::core
