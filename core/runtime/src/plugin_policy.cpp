#include "plugin_policy.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <stdexcept>
#include <type_traits>
#include <utility>

#include "sluice/policy_plugin.hpp"

namespace sluice::core {
namespace {

template <class Id>
const std::underlying_type_t<Id>* numbers(std::span<const Id> ids) noexcept {
  return reinterpret_cast<const std::underlying_type_t<Id>*>(ids.data());
}

// Each view is taken apart by name of all its members: one that gets a new member no longer
// compiles here, until plugins are told of it.

sluice_event flat(const event& one) noexcept {
  const auto& [kind, gpu, client, count, at, span, request, length] = one;
  return {.kind = static_cast<std::uint32_t>(kind),
          .gpu = static_cast<std::uint32_t>(gpu),
          .client = static_cast<std::uint64_t>(client),
          .count = count,
          .span = static_cast<std::uint32_t>(span),
          .at = plugin::to_c(at),
          .request = request,
          .length = length.count()};
}

sluice_gpu flat(const gpu_view& one) noexcept {
  const auto& [id, online_in_flight, lost, can_reserve, can_set_quantum, can_see_work, slots,
               suspend_cost, resume_cost, work, last_move, last_begin, last_end, offline] = one;
  return {.id = static_cast<std::uint32_t>(id),
          .online_in_flight = online_in_flight,
          .lost = lost ? 1U : 0U,
          .can_reserve = can_reserve ? 1U : 0U,
          .can_set_quantum = can_set_quantum ? 1U : 0U,
          .slots = slots,
          .work = static_cast<std::uint32_t>(work),
          .can_see_work = can_see_work ? 1U : 0U,
          .suspend_cost = suspend_cost.count(),
          .resume_cost = resume_cost.count(),
          .last_move = plugin::to_c(last_move),
          .last_begin = plugin::to_c(last_begin),
          .last_end = plugin::to_c(last_end),
          .offline = numbers(offline),
          .offline_count = offline.size()};
}

sluice_group flat(const group_view& one) noexcept {
  const auto& [id, what, actual, manageable, priority, queues, gpus, queues_on, state_since] = one;
  return {.id = static_cast<std::uint64_t>(id),
          .role = static_cast<std::uint32_t>(what),
          .state = static_cast<std::uint32_t>(actual),
          .manageable = manageable ? 1U : 0U,
          .priority = priority,
          .queues = queues,
          .gpus = numbers(gpus),
          .queues_on = queues_on.data(),
          .gpu_count = std::min(gpus.size(), queues_on.size()),
          .state_since = plugin::to_c(state_since)};
}

sluice_client flat(const client_view& one) noexcept {
  const auto& [id, name, gpus, targets] = one;
  sluice_client made{.id = static_cast<std::uint64_t>(id),
                     .name = name.data(),
                     .name_length = name.size(),
                     .gpus = numbers(gpus),
                     .gpu_count = gpus.size(),
                     .targets = {}};
  for (std::size_t i = 0; i < span_kinds; ++i) made.targets[i] = targets[i].count();
  return made;
}

const sluice_gpu* find_gpu(const sluice_snapshot* self, std::uint32_t id) {
  const auto* const end = self->gpus + self->gpu_count;
  const auto* const found =
      std::find_if(self->gpus, end, [id](const sluice_gpu& one) { return one.id == id; });
  return found == end ? nullptr : found;
}

decision_sink& to(const sluice_sink* self) noexcept {
  return *static_cast<decision_sink*>(self->host);
}

sluice_sink flat(decision_sink& out) noexcept {
  return {
      .struct_size = sizeof(sluice_sink),
      .hold = [](const sluice_sink* self, std::uint64_t group,
                 std::int64_t until) { to(self).hold(group_id{group}, plugin::time_from(until)); },
      .run = [](const sluice_sink* self, std::uint64_t group) { to(self).run(group_id{group}); },
      .wake_at = [](const sluice_sink* self,
                    std::int64_t when) { to(self).wake_at(plugin::time_from(when)); },
      .poll_pointers = [](const sluice_sink* self,
                          std::int64_t every) { to(self).poll_pointers(duration(every)); },
      .reserve = [](const sluice_sink* self, std::uint32_t gpu,
                    double share) { to(self).reserve(gpu_id{gpu}, share); },
      .set_quantum =
          [](const sluice_sink* self, std::uint64_t group, std::int64_t length) {
            to(self).set_quantum(group_id{group}, duration(length));
          },
      .listen =
          [](const sluice_sink* self, std::uint32_t span, std::int32_t at_once) {
            if (span < span_kinds) to(self).listen(static_cast<span_kind>(span), at_once != 0);
          },
      .note =
          [](const sluice_sink* self, const char* text, const double* numbers, std::size_t count) {
            to(self).note(one_line(text), {numbers, count});
          },
      .host = &out};
}

}  // namespace

std::string one_line(std::string_view text) {
  std::string line(text);
  for (char& each : line) {
    if (static_cast<unsigned char>(each) < ' ') each = ' ';
  }
  return line;
}

plugin_policy::plugin_policy(const sluice_policy_plugin& plugin, void* state,
                             std::shared_ptr<const void> library)
    : library_(std::move(library)), plugin_(plugin), state_(state) {
  const char* const own = plugin_.name_of != nullptr ? plugin_.name_of(state_) : nullptr;
  name_ = own != nullptr ? one_line(own) : plugin_.name;
  const std::uint32_t kinds = plugin_.needs_marks != nullptr ? plugin_.needs_marks(state_) : 0;
  for (unsigned each = 0; each < span_kinds; ++each) {
    if ((kinds >> each & 1U) != 0) needs_.push_back(static_cast<span_kind>(each));
  }
}

std::int32_t plugin_policy::find_group(const sluice_snapshot* self, std::uint64_t id,
                                       sluice_group* group) {
  const group_view* const one = static_cast<const world*>(self->host)->find(group_id{id});
  if (one == nullptr) return 0;
  *group = flat(*one);
  return 1;
}

std::int32_t plugin_policy::find_client(const sluice_snapshot* self, std::uint64_t id,
                                        sluice_client* client) {
  const client_view* const one = static_cast<const world*>(self->host)->find(client_id{id});
  if (one == nullptr) return 0;
  *client = flat(*one);
  return 1;
}

void plugin_policy::decide(const snapshot& seen, decision_sink& out) {
  events_.clear();
  for (const event& one : seen.events) events_.push_back(flat(one));
  gpus_.clear();
  for (const gpu_view& one : seen.table.gpus()) gpus_.push_back(flat(one));
  const sluice_snapshot shown{.struct_size = sizeof(sluice_snapshot),
                              .now = plugin::to_c(seen.now),
                              .turn = seen.turn,
                              .events = events_.data(),
                              .event_count = events_.size(),
                              .changed = numbers(seen.changed),
                              .changed_count = seen.changed.size(),
                              .gpus = gpus_.data(),
                              .gpu_count = gpus_.size(),
                              .find_group = &find_group,
                              .find_client = &find_client,
                              .find_gpu = &find_gpu,
                              .host = &seen.table};
  const sluice_sink sink = flat(out);
  std::array<char, 512> problem{};
  if (plugin_.decide(state_, &shown, &sink, problem.data(), problem.size()) == 0) return;
  problem.back() = '\0';
  throw std::runtime_error(problem.front() != '\0' ? one_line(problem.data())
                                                   : "its decide() failed without a reason");
}

}  // namespace sluice::core
