#include "plugin_policy.hpp"

#include <algorithm>
#include <array>
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

sluice_event flat(const event& one) noexcept {
  return {.kind = static_cast<std::uint32_t>(one.kind),
          .gpu = static_cast<std::uint32_t>(one.gpu),
          .client = static_cast<std::uint64_t>(one.client),
          .count = one.count,
          .span = static_cast<std::uint32_t>(one.span),
          .at = plugin::to_c(one.at),
          .request = one.request,
          .length = one.length.count()};
}

sluice_gpu flat(const gpu_view& one) noexcept {
  return {.id = static_cast<std::uint32_t>(one.id),
          .online_in_flight = one.online_in_flight,
          .lost = one.lost ? 1U : 0U,
          .can_reserve = one.can_reserve ? 1U : 0U,
          .slots = one.slots,
          .work = static_cast<std::uint32_t>(one.work),
          .suspend_cost = one.suspend_cost.count(),
          .resume_cost = one.resume_cost.count(),
          .last_move = plugin::to_c(one.last_move),
          .last_begin = plugin::to_c(one.last_begin),
          .last_end = plugin::to_c(one.last_end),
          .offline = numbers(one.offline),
          .offline_count = one.offline.size()};
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
}

std::int32_t plugin_policy::find_group(const sluice_snapshot* self, std::uint64_t id,
                                       sluice_group* group) {
  const group_view* const one = static_cast<const world*>(self->host)->find(group_id{id});
  if (one == nullptr) return 0;
  *group = {.id = id,
            .role = static_cast<std::uint32_t>(one->what),
            .state = static_cast<std::uint32_t>(one->actual),
            .manageable = one->manageable ? 1U : 0U,
            .priority = one->priority,
            .queues = one->queues,
            .gpus = numbers(one->gpus),
            .queues_on = one->queues_on.data(),
            .gpu_count = std::min(one->gpus.size(), one->queues_on.size()),
            .state_since = plugin::to_c(one->state_since)};
  return 1;
}

std::int32_t plugin_policy::find_client(const sluice_snapshot* self, std::uint64_t id,
                                        sluice_client* client) {
  const client_view* const one = static_cast<const world*>(self->host)->find(client_id{id});
  if (one == nullptr) return 0;
  *client = {.id = id,
             .name = one->name.data(),
             .name_length = one->name.size(),
             .gpus = numbers(one->gpus),
             .gpu_count = one->gpus.size()};
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
                                                   : "its decide() failed and did not say why");
}

}  // namespace sluice::core
