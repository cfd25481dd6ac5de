#include "table_picture.hpp"

#include <algorithm>
#include <string>
#include <utility>

namespace sluice::core {
namespace {

attach_picture picture_of(attach_state value) noexcept {
  switch (value) {
    case attach_state::none: break;
    case attach_state::attaching: return attach_picture::attaching;
    case attach_state::attached: return attach_picture::attached;
    case attach_state::detaching: return attach_picture::detaching;
  }
  return attach_picture::none;
}

process_picture picture_of(const process& one, time_point now) {
  process_picture made{.id = one.id,
                       .pid = one.pid,
                       .start_time = one.start_time,
                       .what = one.what,
                       .priority = one.priority,
                       .own = one.own,
                       .attach = picture_of(one.attach),
                       .attach_refused = one.attach_refused,
                       .attach_failures = one.attach_failures,
                       .attach_why = one.attach_why,
                       .attach_again = one.attach_failures != 0 ? one.attach_from : time_point{},
                       .seen_since = one.seen_since,
                       .off = one.not_running != 0,
                       .off_count = one.off_count,
                       .off_total = one.off_total,
                       .off_longest = one.off_longest};
  if (made.off) {
    made.off_since = one.off_since;
    made.off_total += now - one.off_since;
    made.off_longest = std::max(made.off_longest, now - one.off_since);
  }
  for (const queue* const each : one.queues) {
    auto on = std::find_if(made.queues.begin(), made.queues.end(),
                           [&](const queues_on_gpu& known) { return known.gpu == each->on->id; });
    // By its id, it comes after all others.
    if (on != made.queues.end() && is_unlisted(each->driver_id)) continue;
    if (on == made.queues.end())
      on = made.queues.insert(on, {.gpu = each->on->id, .unlisted = is_unlisted(each->driver_id)});
    ++(each->type == queue_kind::compute ? on->compute : on->others);
    if (!each->managed || each->state == queue_state::running) continue;
    ++(each->state == queue_state::suspended ? on->suspended : on->in_doubt);
  }
  std::sort(made.queues.begin(), made.queues.end(),
            [](const auto& left, const auto& right) { return left.gpu < right.gpu; });
  return made;
}

group_picture picture_of(const group& one, time_point now) {
  group_picture made{.id = one.id,
                     .number = one.number,
                     .what = one.view.what,
                     .gang = one.key != 0,
                     .actual = one.view.actual,
                     .state_since = one.view.state_since,
                     .nodes = one.nodes,
                     .peers_answer = one.nodes >= 2 && one.peers_until > now,
                     .manageable = one.view.manageable,
                     .wanted_off = one.hold_until > now,
                     .wanted_until = one.hold_until,
                     .must_run_at = one.must_run_at,
                     .held = one.held,
                     .forced = one.forced};
  for (const process* const member : one.members)
    if (!member->gone) made.processes.push_back(picture_of(*member, now));
  return made;
}

}  // namespace

picture picture_of(const table& world) {
  picture made{.at = world.now()};
  for (std::size_t i = 0; i < world.gpu_count(); ++i) {
    const gpu& one = world.gpu_number(i);
    const gpu_view& view = world.gpus()[i];
    made.gpus.push_back({.id = one.id,
                         .slots = view.slots,
                         .online_in_flight = view.online_in_flight,
                         .work = view.work,
                         .online_waiting = one.online_waiting,
                         .online_waiting_since = one.online_waiting_since,
                         .online_running_since = one.online_running_since,
                         .can_see_work = view.can_see_work,
                         .busy = has_online_work(view),
                         .last_begin = view.last_begin,
                         .last_end = view.last_end,
                         .suspend_cost = view.suspend_cost,
                         .resume_cost = view.resume_cost,
                         .breaker_open = one.lost,
                         .breaker_until = one.rearm_at,
                         .not_off = one.not_off});
  }
  world.for_each_group([&](const group& one) {
    auto each = picture_of(one, world.now());
    if (!each.processes.empty()) made.groups.push_back(std::move(each));
  });
  world.for_each_client([&](const client_view& one) {
    made.clients.push_back(
        {.id = one.id, .name = std::string(one.name), .gpus = {one.gpus.begin(), one.gpus.end()}});
  });
  return made;
}

}  // namespace sluice::core
