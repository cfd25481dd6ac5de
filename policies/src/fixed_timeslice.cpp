#include "sluice/policies/fixed_timeslice.hpp"

#include "offline_quantum.hpp"
#include "wildcard.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace sluice {
namespace {

using namespace std::chrono_literals;

class fixed_timeslice final : public policy {
 public:
  explicit fixed_timeslice(fixed_timeslice_options options) : options_(std::move(options)) {
    std::stable_sort(options_.weight_of.begin(), options_.weight_of.end(),
                     [](const auto& one, const auto& other) {
                       const bool exact = one.first.find('*') == std::string::npos;
                       const bool other_exact = other.first.find('*') == std::string::npos;
                       if (exact != other_exact) return exact;
                       return one.first.size() > other.first.size();
                     });
    for (const auto& [pattern, weight] : options_.weight_of) {
      unmatched_.push_back(
          {pattern, "weight_of." + pattern +
                        " has had no effect: none of {} arrivals came from a client "
                        "with this name"});
    }
    for (const auto& [gpu, slice] : options_.slice_of) {
      unseen_.push_back(
          {gpu, "slice_of." + std::to_string(static_cast<std::uint32_t>(gpu)) +
                    " has had no effect: in {} arrivals, this node has had no such GPU"});
    }
  }

  std::string_view name() const noexcept override {
    return options_.release == release_on::client_done ? "fixed_timeslice/client_done"
                                                       : "fixed_timeslice/slice_end";
  }

  void decide(const snapshot& seen, decision_sink& out) override {
    for (const event& one : seen.events) {
      if (one.kind != event_kind::online_begin) continue;
      earn(seen.table, one);
      look_for_slips(seen.table, one, out);
    }
    for (const group_id id : seen.changed) declare(seen, id, out);
    for (const event& one : seen.events) {
      const gpu_view* const on = seen.table.find(one.gpu);
      if (on == nullptr) continue;
      for (const group_id id : on->offline) declare(seen, id, out);
    }
  }

 private:
  struct place {
    gpu_id id{};
    duration slice{};
    time_point until{};  // Earned.
  };

  void earn(const world& table, const event& arrival) {
    auto found = std::find_if(places_.begin(), places_.end(),
                              [&](const place& one) { return one.id == arrival.gpu; });
    if (found == places_.end()) {
      const auto own = std::find_if(options_.slice_of.begin(), options_.slice_of.end(),
                                    [&](const auto& one) { return one.first == arrival.gpu; });
      found = places_.insert(
          found, {arrival.gpu, own == options_.slice_of.end() ? options_.slice : own->second, {}});
    }
    const auto earned = std::llround(static_cast<double>(found->slice.count()) *
                                     weight(table.find(arrival.client)));
    found->until = std::max(found->until, arrival.at + duration(earned));
  }

  /// A key that fits nothing is most often a slip of the pen: said once, when it could have fitted.
  void look_for_slips(const world& table, const event& arrival, decision_sink& out) {
    if (arrivals_ >= enough_arrivals) return;
    arrivals_ += arrival.count;
    if (const client_view* const by = table.find(arrival.client)) {
      std::erase_if(unmatched_,
                    [&](const auto& each) { return matches_wildcard(each.first, by->name); });
    }
    if (arrivals_ < enough_arrivals) return;
    const std::array number{static_cast<double>(arrivals_)};
    for (const auto& [pattern, text] : unmatched_) out.note(text, number);
    for (const auto& [gpu, text] : unseen_) {
      if (table.find(gpu) == nullptr) out.note(text, number);
    }
  }

  double weight(const client_view* by) const noexcept {
    if (by == nullptr) return 1;
    for (const auto& [pattern, weight] : options_.weight_of) {
      if (matches_wildcard(pattern, by->name)) return weight;
    }
    return 1;
  }

  /// A declaration that expires comes back as `changed`, so there is nothing to wake up for.
  void declare(const snapshot& seen, group_id id, decision_sink& out) const {
    const group_view* const group = seen.table.find(id);
    if (group == nullptr) return;
    time_point until{};
    if (group->what == role::offline) {
      for (const gpu_id where : group->gpus) until = std::max(until, busy_until(seen, where));
    }
    until > seen.now ? out.hold(id, until) : out.run(id);
  }

  time_point busy_until(const snapshot& seen, gpu_id where) const noexcept {
    const gpu_view* const on = seen.table.find(where);
    if (on == nullptr) return {};
    if (options_.release == release_on::client_done && on->online_in_flight != 0) return never;
    const auto found = std::find_if(places_.begin(), places_.end(),
                                    [&](const place& one) { return one.id == where; });
    return found == places_.end() ? time_point{} : found->until;
  }

  static constexpr std::uint64_t enough_arrivals = 100;

  fixed_timeslice_options options_;
  std::vector<place> places_;  // GPUs with an arrival.
  std::uint64_t arrivals_ = 0;
  std::vector<std::pair<std::string, std::string>>
      unmatched_;                                       // Patterns, and what to say of them.
  std::vector<std::pair<gpu_id, std::string>> unseen_;  // Of slice_of, likewise.
};

std::unique_ptr<policy> make(const parameters& values, std::string& problem) {
  fixed_timeslice_options options{.slice = values.span("slice")};
  const std::string& release = values.text("release");
  if (release != "client_done" && release != "slice_end") {
    problem = "release is \"" + release + "\"; it must be client_done or slice_end";
    return nullptr;
  }
  if (release == "slice_end") options.release = release_on::slice_end;
  values.for_each_below("slice_of", [&](std::string_view key, const parameter_value& value) {
    std::uint32_t id = 0;
    const auto end = key.data() + key.size();
    if (const auto read = std::from_chars(key.data(), end, id); read.ptr != end || id == 0) {
      problem = "slice_of." + std::string(key) +
                " is not a GPU; write the number from its gpu_id file after the dot, as in "
                "slice_of.51110";
    }
    options.slice_of.emplace_back(gpu_id{id}, std::get<duration>(value));
  });
  values.for_each_below("weight_of", [&](std::string_view key, const parameter_value& value) {
    options.weight_of.emplace_back(key, std::get<double>(value));
  });
  return problem.empty() ? make_fixed_timeslice(std::move(options)) : nullptr;
}

}  // namespace

std::unique_ptr<policy> make_fixed_timeslice(fixed_timeslice_options options) {
  options.slice = std::max<duration>(options.slice, 1ns);
  return std::make_unique<fixed_timeslice>(std::move(options));
}

policy_kind fixed_timeslice_kind() {
  return with_offline_quantum(
      {.name = "fixed_timeslice",
       .summary = "hold offline work for at least one slice after a client announces work",
       .schema = {parameter::span("slice", 20ms, 1us, 1h, "shortest hold after an arrival"),
                  parameter::text("release", "client_done",
                                  "end of a hold: slice_end (after the slice) or client_done "
                                  "(after the slice, when no online work is in flight)"),
                  parameter::span("slice_of.*", 20ms, 1us, 1h, "slice of the GPU with this gpu_id"),
                  parameter::number("weight_of.*", 1, 0, 1000,
                                    "factor for the slice after an arrival from the client with "
                                    "this name; * in the name matches any characters")},
       .make = make});
}

}  // namespace sluice
