#include "sluice/testing/policy_harness.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

namespace sluice::testing {

gpu_view& fake_world::add_gpu(gpu_id id) {
  if (edit(id) == nullptr) {
    gpu_view& fresh = gpus_.emplace_back();
    fresh.id = id;
    fresh.can_see_work = true;
    refresh();
  }
  return *edit(id);
}

group_view& fake_world::add_group(group_id id, role what, std::vector<gpu_id> on,
                                  std::vector<std::uint32_t> queues) {
  for (const gpu_id each : on) add_gpu(each);
  queues.resize(on.size(), 1);
  auto& one = groups_[id];
  one.gpus = std::move(on);
  one.view.id = id;
  one.view.what = what;
  one.view.manageable = what == role::offline;
  one.queues_on = std::move(queues);
  one.view.queues = std::accumulate(one.queues_on.begin(), one.queues_on.end(), 0U);
  refresh();
  return one.view;
}

void fake_world::remove_group(group_id id) {
  groups_.erase(id);
  refresh();
}

void fake_world::add_client(client_id id, std::string name, std::vector<gpu_id> on) {
  auto& one = clients_[id];
  one.name = std::move(name);
  one.gpus = std::move(on);
  one.view = {id, one.name, one.gpus};
}

void fake_world::refresh() {
  for (auto& [id, list] : offline_) list.clear();
  for (auto& [id, one] : groups_) {
    one.view.gpus = one.gpus;
    one.view.queues_on = one.queues_on;
    if (one.view.what != role::offline) continue;
    for (const gpu_id each : one.gpus) offline_[each].push_back(id);
  }
  for (auto& view : gpus_) view.offline = offline_[view.id];
}

gpu_view* fake_world::edit(gpu_id id) noexcept {
  const auto found =
      std::find_if(gpus_.begin(), gpus_.end(), [&](const gpu_view& one) { return one.id == id; });
  return found == gpus_.end() ? nullptr : &*found;
}

group_view* fake_world::edit(group_id id) noexcept {
  const auto found = groups_.find(id);
  return found == groups_.end() ? nullptr : &found->second.view;
}

const gpu_view* fake_world::find(gpu_id id) const noexcept {
  return const_cast<fake_world*>(this)->edit(id);
}

const group_view* fake_world::find(group_id id) const noexcept {
  return const_cast<fake_world*>(this)->edit(id);
}

const client_view* fake_world::find(client_id id) const noexcept {
  const auto found = clients_.find(id);
  return found == clients_.end() ? nullptr : &found->second.view;
}

void policy_harness::begin(gpu_id gpu, std::uint32_t count, client_id by) {
  auto& view = world_.add_gpu(gpu);
  view.online_in_flight += count;
  view.last_begin = now();
  turn({{event_kind::online_begin, gpu, by, count, now()}}, {});
}

void policy_harness::end(gpu_id gpu, std::uint32_t count, client_id by) {
  auto& view = world_.add_gpu(gpu);
  view.online_in_flight -= std::min(count, view.online_in_flight);
  view.last_end = now();
  turn({{event_kind::online_end, gpu, by, count, now()}}, {});
}

void policy_harness::blink(gpu_id gpu, client_id by) {
  auto& view = world_.add_gpu(gpu);
  view.last_begin = view.last_end = now();
  turn({{event_kind::online_begin, gpu, by, 1, now()}, {event_kind::online_end, gpu, by, 1, now()}},
       {});
}

void policy_harness::begin_span(span_kind kind, std::uint64_t request, duration ago) {
  open_[{kind, request}] = now() - ago;
  turn({{.kind = event_kind::span_begin,
         .client = client_id{1},
         .at = now() - ago,
         .span = kind,
         .request = request}},
       {});
}

void policy_harness::end_span(span_kind kind, std::uint64_t request) {
  finish_span(event_kind::span_end, kind, request);
}

void policy_harness::abandon_span(span_kind kind, std::uint64_t request) {
  finish_span(event_kind::span_abandoned, kind, request);
}

void policy_harness::finish_span(event_kind how, span_kind kind, std::uint64_t request) {
  const auto open = open_.extract({kind, request});
  if (open.empty()) return;
  turn({{.kind = how,
         .client = client_id{1},
         .at = now(),
         .span = kind,
         .request = request,
         .length = now() - open.mapped()}},
       {});
}

void policy_harness::move(gpu_id gpu, online_work work, std::uint32_t packets) {
  auto& view = world_.add_gpu(gpu);
  view.work = work;
  if (packets != 0) view.last_move = now();
  turn({{event_kind::online_moved, gpu, {}, packets, now()}}, {});
}

void policy_harness::change(group_id group) { turn({}, {group}); }

void policy_harness::advance(duration by) {
  const time_point end = now() + by;
  for (;;) {
    time_point next = wake_;
    for (const auto& [id, until] : holds_) next = std::min(next, until);
    if (next > end) break;
    clock_.advance_to(next);
    std::vector<group_id> expired;
    for (const auto& [id, until] : holds_) {
      if (until <= now()) expired.push_back(id);
    }
    for (const group_id id : expired) holds_.erase(id);
    turn({}, std::move(expired));
  }
  clock_.advance_to(end);
}

bool policy_harness::held(group_id group) const {
  const auto found = holds_.find(group);
  return found != holds_.end() && found->second > now();
}

duration policy_harness::quantum(group_id group) const {
  const auto found = quanta_.find(group);
  return found == quanta_.end() ? duration::zero() : found->second;
}

void policy_harness::turn(std::vector<event> events, std::vector<group_id> changed) {
  if (wake_ <= now()) wake_ = never;
  const auto before = sink_.calls.size();
  policy_->decide({now(), ++turns_, events, changed, world_}, sink_);
  for (auto i = before; i < sink_.calls.size(); ++i) {
    const auto& one = sink_.calls[i];
    switch (one.what) {
      case recording_sink::verb::hold:
        if (one.until > now()) {
          holds_[one.group] = one.until;
        } else {
          holds_.erase(one.group);
        }
        break;
      case recording_sink::verb::run: holds_.erase(one.group); break;
      case recording_sink::verb::wake_at: wake_ = std::min(wake_, one.until); break;
      case recording_sink::verb::poll_pointers: polling_ = one.every; break;
      case recording_sink::verb::set_quantum: quanta_[one.group] = one.length; break;
      case recording_sink::verb::reserve:
      case recording_sink::verb::listen:
      case recording_sink::verb::note: break;
    }
  }
}

}  // namespace sluice::testing
