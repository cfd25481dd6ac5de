// sluice lab: judges policies on a simulated node in virtual time.

#include "choice.hpp"
#include "html_report.hpp"
#include "marks.hpp"
#include "output.hpp"
#include "policy_choice.hpp"
#include "profile_file.hpp"
#include "report.hpp"
#include "study.hpp"
#include "subcommand.hpp"
#include "sweep.hpp"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "sluice/config.hpp"
#include "sluice/duration_text.hpp"
#include "sluice/policy_registry.hpp"

namespace sluice::cli {

namespace {

using namespace std::chrono_literals;
using lab::checked;
using lab::choice;
using lab::choice_kind;
using lab::failure;

struct lab_options {
  std::vector<std::string> policies;
  std::vector<std::string> profiles{"mi300x"};
  std::vector<std::string> arrivals{"poisson"};
  std::vector<std::string> offline{"long"};
  std::vector<double> loads;
  std::string service = "continuous";
  std::string trace;
  std::string duration;
  std::string config;
  std::vector<std::string> driver_tables;  ///< That the configuration may have.
  std::string reaction, wake_up, warm_up;
  bool no_clients = false;
  std::string targets;
  std::optional<double> split;
  bool sweep = false;
  std::vector<double> sweep_costs = lab::sweep_axes{}.cost_factors;
  std::vector<std::string> sweep_kernels;
  std::string csv_sweep;
  std::string csv_requests, csv_decisions, json, report;
  std::uint32_t gpus = 0;
  std::uint32_t servers = 0;
  std::uint32_t nodes = 1;
  std::vector<std::string> routers;
  std::uint64_t seed = 1;
  std::uint32_t seeds = 1;
  std::uint32_t threads = 0;
};

std::vector<choice_kind> arrival_kinds() {
  return {
      {"poisson",
       "independent arrivals at a constant rate",
       {parameter::number("rate", 2.5, 1e-3, 1e5, "requests per second")}},
      {"bursty",
       "alternating quiet periods and bursts of exponentially distributed length (MMPP)",
       {parameter::number("quiet", 0.5, 0, 1e5, "requests per second while quiet"),
        parameter::number("burst", 20, 1e-3, 1e5, "requests per second in a burst"),
        parameter::span("quiet_for", 2s, 1ms, 24h, "mean length of a quiet period"),
        parameter::span("burst_for", 500ms, 1ms, 24h, "mean length of a burst")}},
      {"diurnal",
       "Poisson arrivals whose rate rises from low to high and falls again",
       {parameter::number("low", 0.5, 0, 1e5, "lowest rate, requests per second"),
        parameter::number("high", 5, 1e-3, 1e5, "highest rate, requests per second"),
        parameter::span("period", 10min, 1s, 24h, "length of one cycle")}},
      {"interactive", "the arrivals of examples/demo: bursts of 500 ms", {}},
      {"trace",
       "arrivals from the file of --trace",
       {parameter::number("speedup", 1, 0.01, 1000,
                          "factor that speeds up the arrivals of the file"),
        parameter::count("copies", 1, 1, 100000,
                         "copies of the file, each begun at a moment that the seed draws")}},
  };
}

std::vector<choice_kind> service_kinds() {
  const std::vector<parameter> shared{
      parameter::number("prefill_occupancy", 1, 0.01, 1,
                        "share of the wave slots that prefill occupies"),
      parameter::number("decode_occupancy", 0.5, 0.01, 1,
                        "share of the wave slots that decode occupies"),
      parameter::span("drain", 1h, 0s, 24h,
                      "time after the arrivals in which unfinished requests are still served"),
      parameter::number("prefill_rate", 0, 1, 1e9, "prefilled tokens per second").but_optional(),
      parameter::span("decode_token", 0s, 1ns, 10s, "GPU time per decoded token").but_optional()};
  std::vector<parameter> batching = shared;
  batching.push_back(parameter::span("decode_step", 0s, 0s, 10s,
                                     "GPU time per step, in addition to the time of its tokens"));
  batching.push_back(parameter::span("host_gap", 200us, 0s, 10s, "host time between two steps"));
  batching.push_back(
      parameter::count("largest_batch", 64, 1, 100000, "maximum number of requests in one step"));
  return {
      {"continuous",
       "continuous batching: a step admits, prefills, and decodes one token per request", batching},
      {"fifo", "one request at a time, from start to end", shared}};
}

std::vector<choice_kind> offline_kinds() {
  std::vector<parameter> all{
      parameter::span("kernel_low", 0s, 100ns, 10min, "shortest kernel").but_optional(),
      parameter::span("kernel_high", 0s, 100ns, 10min,
                      "longest kernel; lengths are uniformly distributed")
          .but_optional(),
      parameter::number("occupancy_low", 0, 0.001, 1, "lowest share of the wave slots")
          .but_optional(),
      parameter::number("occupancy_high", 0, 0.001, 1, "highest share of the wave slots")
          .but_optional(),
      parameter::count("queues", 0, 1, 64, "queues per process and GPU").but_optional(),
      parameter::count("depth", 0, 1, 1024, "kernels in flight per queue").but_optional(),
      parameter::count("step", 0, 0, 1024,
                       "kernels per queue before the host waits; 0: the host never waits")
          .but_optional(),
      parameter::span("gap_low", 0s, 0s, 1min, "shortest host work between steps").but_optional(),
      parameter::span("gap_high", 0s, 0s, 1min,
                      "longest host work between steps; uniformly distributed")
          .but_optional(),
      parameter::count("processes", 1, 1, 64, "processes on each GPU"),
      parameter::flag("gang", false,
                      "processes are ranks, one per GPU; each step ends in an all-reduce"),
      parameter::span("all_reduce", 500us, 0s, 10s,
                      "time of the all-reduce after all ranks have arrived"),
      parameter::number("all_reduce_occupancy", 0.25, 0.001, 1,
                        "share of the wave slots that a waiting rank occupies")};
  return {
      {"long", "1 queue with 4 kernels in flight, kernels of 20 to 200 ms, full occupancy", all},
      {"train", "3 queues, steps of 8 kernels of 10 us to 5 ms, 1 ms of host work between steps",
       all},
      {"none", "no offline work; only with --nodes, for a part of the nodes", {}}};
}

std::vector<choice_kind> router_kinds() {
  const parameter load_delay = parameter::span(
      "load_delay", 0s, 0s, 1h,
      "interval at which requests of each server are read; 0s: the router counts them");
  const parameter delay = parameter::span(
      "delay", 0s, 0s, 1h, "interval at which offline work is read; 0s: it is always known");
  const parameter room =
      parameter::count("room", 1, 1, 100000, "requests with which a server is full");
  return {
      {"round_robin", "to the next server", {}},
      {"least_loaded", "to the server with the fewest requests", {load_delay}},
      {"least_offline",
       "to the server that is not full and has the fewest offline groups on its GPU, then the "
       "fewest requests; if all are full, as least_loaded",
       {load_delay, delay, room}},
      {"suspended_first",
       "as least_offline, but suspended groups do not count",
       {load_delay, delay, room}},
  };
}

checked<lab::router_spec> make_router(const std::string& text) {
  auto given = lab::parse_choice(text);
  if (given.has_error()) return failure("--router: " + given.error().message);
  const auto kind = lab::resolve(*given, router_kinds(), "--router");
  if (kind.has_error()) return kind.error();
  lab::router_spec made{.name = text};
  if (given->name == "least_loaded") made.by = lab::routing::least_loaded;
  if (given->name == "least_offline") made.by = lab::routing::least_offline;
  if (given->name == "suspended_first") made.by = lab::routing::suspended_first;
  for (const auto& [key, into] :
       {std::pair{"load_delay", &made.load_delay}, std::pair{"delay", &made.delay}}) {
    if (!given->values.has(key)) continue;
    *into = given->values.span(key);
    // Each reading of a server is an event.
    if (*into != duration::zero() && *into < 1ms) {
      return failure(fmt::format("--router {}: {} must be 0s or at least 1ms", text, key));
    }
  }
  if (given->values.has("room")) {
    made.room = static_cast<std::uint32_t>(given->values.count("room"));
  }
  return made;
}

/// As CLI::Range, which lets NaN pass.
CLI::Validator number_from(double least, double most) {
  return {[least, most](std::string& text) -> std::string {
            double value = 0;
            if (CLI::detail::lexical_cast(text, value) && value >= least && value <= most)
              return {};
            return fmt::format("invalid number '{}': expected {:g} to {:g}", printable(text), least,
                               most);
          },
          fmt::format("in [{:g} - {:g}]", least, most)};
}

template <class T>
T given_or(const parameters& values, const char* key, T fallback) {
  if (!values.has(key)) return fallback;
  if constexpr (std::is_same_v<T, duration>)
    return values.span(key);
  else if constexpr (std::is_floating_point_v<T>)
    return values.number(key);
  else
    return static_cast<T>(values.count(key));
}

/// Of text with a unit.
checked<duration> read_duration(const std::string& text, std::string_view option,
                                duration least = 1ns) {
  const auto value = parse_duration(text);
  if (!value) {
    return failure(
        fmt::format("{}: invalid duration '{}': expected a number with a unit, such as 90s or 1h",
                    option, text));
  }
  if (*value < least) {
    return failure(fmt::format("{}: invalid duration '{}': expected {}", option, text,
                               least > 0ns ? "more than 0s" : "0s or more"));
  }
  return *value;
}

checked<lab::arrival_source> make_source(const std::string& text, const lab_options& asked) {
  auto given = lab::parse_choice(text);
  if (given.has_error()) return failure("--arrivals: " + given.error().message);
  const auto kind = lab::resolve(*given, arrival_kinds(), "--arrivals");
  if (kind.has_error()) return kind.error();
  std::optional<duration> length;
  if (!asked.duration.empty()) {
    const auto read = read_duration(asked.duration, "--duration");
    if (read.has_error()) return read.error();
    length = *read;
  }
  const duration window = length.value_or(asked.sweep ? 2min : 10min);
  if (window > 24h)
    return failure(
        fmt::format("--duration: invalid duration '{}': expected at most 24h", asked.duration));
  const parameters& with = given->values;
  for (const char* const rate : {"rate", "quiet", "burst", "high"}) {
    if (!with.has(rate)) continue;
    const double most = with.number(rate) * std::chrono::duration<double>(window).count();
    if (most > static_cast<double>(lab::most_requests)) {
      return failure(fmt::format(
          "--arrivals {}: {} of {:g} per second may generate {:.0f} requests in {}, but "
          "the limit is {}; reduce the rate or --duration",
          text, rate, with.number(rate), most, to_text(window), lab::most_requests));
    }
  }
  if (given->name == "trace") {
    if (asked.trace.empty()) return failure("--arrivals trace: no file is given; add --trace FILE");
    auto read = lab::read_trace_file(asked.trace);
    if (read.has_error()) return read.error();
    lab::arrivals cut = lab::speed_up(std::move(*read), with.number("speedup"));
    const auto copies = static_cast<std::uint32_t>(with.count("copies"));
    if (copies > 1) {
      const duration part = std::min(length.value_or(cut.window), cut.window);
      const double most = static_cast<double>(copies) * static_cast<double>(cut.requests.size()) *
                          (std::chrono::duration<double>(part) / cut.window);
      if (most > static_cast<double>(lab::most_requests)) {
        return failure(
            fmt::format("--arrivals {}: {} copies have about {:.0f} requests in {}, but "
                        "the limit is {}; reduce copies or --duration",
                        text, copies, most, to_text(part), lab::most_requests));
      }
      return lab::arrival_source{text, [all = std::move(cut), copies, part](std::uint64_t seed) {
                                   return lab::overlay(all, copies, part, seed);
                                 }};
    }
    if (length) cut = lab::busiest(cut, *length);
    return lab::arrival_source{text, [cut = std::move(cut)](std::uint64_t) { return cut; }};
  }
  if (given->name == "poisson") {
    return lab::arrival_source{text, [window, rate = with.number("rate")](std::uint64_t seed) {
                                 return lab::poisson(seed, window, rate);
                               }};
  }
  if (given->name == "bursty") {
    const lab::burst_shape shape{with.number("quiet"), with.number("burst"), with.span("quiet_for"),
                                 with.span("burst_for")};
    return lab::arrival_source{
        text, [window, shape](std::uint64_t seed) { return lab::bursty(seed, window, shape); }};
  }
  if (given->name == "diurnal") {
    const double low = with.number("low"), high = with.number("high");
    if (low > high) return failure(fmt::format("--arrivals {}: low must be at most high", text));
    return lab::arrival_source{text, [window, low, high, period = with.span("period")](auto seed) {
                                 return lab::diurnal(seed, window, low, high, period);
                               }};
  }
  return lab::arrival_source{text,
                             [window](std::uint64_t seed) { return lab::generate(seed, window); }};
}

checked<lab::study_spec::named_offline> make_offline(const std::string& text) {
  auto given = lab::parse_choice(text);
  if (given.has_error()) return failure("--offline: " + given.error().message);
  const auto kind = lab::resolve(*given, offline_kinds(), "--offline");
  if (kind.has_error()) return kind.error();
  const parameters& with = given->values;
  if (given->name == "none")
    return lab::study_spec::named_offline{text, {.shape = {}, .processes = 0}};
  lab::offline_spec made{.shape = lab::shape_of(*lab::parse_load(given->name))};
  lab::load_shape& shape = made.shape;
  const auto wrong = [&](const char* what) {
    return failure(fmt::format("--offline {}: {}", text, what));
  };
  if (with.has("kernel_low") || with.has("kernel_high")) {
    const duration low = given_or(with, "kernel_low", given_or(with, "kernel_high", duration{}));
    const duration high = given_or(with, "kernel_high", low);
    if (low > high) return wrong("kernel_low must be at most kernel_high");
    shape.lengths = {{1, low, high}};
  }
  shape.occupancy_low = given_or(with, "occupancy_low", shape.occupancy_low);
  shape.occupancy_high = given_or(with, "occupancy_high", shape.occupancy_high);
  if (shape.occupancy_low > shape.occupancy_high) {
    if (with.has("occupancy_low")) return wrong("occupancy_low must be at most occupancy_high");
    shape.occupancy_low = shape.occupancy_high;
  }
  shape.queues = given_or(with, "queues", shape.queues);
  shape.depth = given_or(with, "depth", shape.depth);
  shape.kernels_per_step = given_or(with, "step", shape.kernels_per_step);
  shape.gap_low = given_or(with, "gap_low", shape.gap_low);
  shape.gap_high = given_or(with, "gap_high", std::max(shape.gap_low, shape.gap_high));
  if (shape.gap_low > shape.gap_high) return wrong("gap_low must be at most gap_high");
  made.processes = given_or(with, "processes", 1u);
  made.gang = with.flag("gang");
  if (made.gang && shape.kernels_per_step == 0)
    return wrong("a gang needs steps; set step=N, with N of at least 1");
  made.all_reduce = with.span("all_reduce");
  made.all_reduce_occupancy = with.number("all_reduce_occupancy");
  return lab::study_spec::named_offline{text, made};
}

checked<bool> set_service(const std::string& text, lab::study_spec& spec) {
  auto given = lab::parse_choice(text);
  if (given.has_error()) return failure("--service: " + given.error().message);
  const auto kind = lab::resolve(*given, service_kinds(), "--service");
  if (kind.has_error()) return kind.error();
  const parameters& with = given->values;
  lab::serving_shape& shape = spec.common.serving;
  shape.prefill_occupancy = with.number("prefill_occupancy");
  shape.decode_occupancy = with.number("decode_occupancy");
  shape.drain_limit = with.span("drain");
  if (given->name == "fifo") {
    spec.common.service = lab::service_kind::fifo;
  } else {
    shape.host_gap = with.span("host_gap");
    shape.most_active = static_cast<std::uint32_t>(with.count("largest_batch"));
    spec.common.decode_step = with.span("decode_step");
  }
  if (with.has("prefill_rate") != with.has("decode_token")) {
    return failure(
        fmt::format("--service {}: prefill_rate and decode_token must be given together", text));
  }
  if (with.has("prefill_rate")) {
    spec.costs.emplace();
    spec.costs->prefill =
        std::chrono::duration<double, std::nano>(1e9 / with.number("prefill_rate"));
    spec.costs->decode = with.span("decode_token");
  }
  return true;
}

checked<lab::targets> read_targets(const std::string& text, lab::service_kind service) {
  lab::targets made;
  if (text.empty()) return made;
  std::vector<choice_kind> kinds{{"--target",
                                  "",
                                  {parameter::span("request", 0s, 1us, 1h, "").but_optional(),
                                   parameter::span("ttft", 0s, 1us, 1h, "").but_optional(),
                                   parameter::span("itl", 0s, 1us, 1h, "").but_optional()}}};
  auto given = lab::parse_values(text);
  if (given.has_error()) return failure("--target: " + given.error().message);
  given->name = kinds.front().name;
  if (auto known = lab::resolve(*given, kinds, "--target"); known.has_error()) {
    return known.error();
  }
  const bool tokens = given->values.has("ttft") || given->values.has("itl");
  if (tokens && service == lab::service_kind::fifo) {
    return failure(fmt::format(
        "--target {}: --service fifo generates no tokens, so ttft and itl cannot have targets; "
        "set only request",
        text));
  }
  for (const span_kind each : {span_kind::request, span_kind::ttft, span_kind::itl}) {
    const std::string key(to_string(each));
    if (given->values.has(key)) {
      made.limit[static_cast<std::size_t>(each)] = given->values.span(key);
    }
  }
  return made;
}

/// Of a policy that was made: are its holds longer than the limits let them last?
void note_on_slice(const policy_registry& known, const std::string& who, const std::string& name,
                   parameters values, duration most) {
  if (name != "fixed_timeslice" || !check_parameters(known.find(name)->schema, values).empty()) {
    return;
  }
  const duration slice = values.span("slice");
  if (slice <= most) return;
  complain(fmt::format(
      "note: {}: the slice of {} is longer than max_suspend ({}), which ends the hold first", who,
      to_text(slice), to_text(most)));
}

/// The limits of a configuration, and its policy as one more row.
checked<bool> set_config(const std::string& path, const policy_registry& known,
                         const std::vector<std::string>& driver_tables, lab::study_spec& spec) {
  std::string message;
  auto loaded = load_config(path, message, driver_tables);
  if (!loaded) return failure(message);
  spec.common.limits = *loaded;
  if (loaded->policy_time_limit != scheduler_config{}.policy_time_limit) {
    complain(
        fmt::format("note: {}: policy_time_limit has no effect in the lab: a policy's turn "
                    "takes no virtual time",
                    path));
  }
  std::vector<std::string> problems;
  auto chosen = read_policy(known, path, problems, {}, driver_tables);
  if (!chosen) return failure(problems.front());
  if (!*chosen) return true;
  note_on_slice(known, path, (*chosen)->name, (*chosen)->values, loaded->max_suspend);
  spec.policies.push_back({"[policy] of " + path, lab::arrangement::scheduled,
                           [choice = std::move(**chosen)] { return choice.make(); }, 1});
  return true;
}

/// Of many nodes, the offline loads are on some of them each.
checked<bool> set_fleet(const lab_options& asked, lab::study_spec& spec) {
  spec.common.nodes = asked.nodes;
  if (asked.nodes == 1) return true;
  for (const std::string& each : asked.routers) {
    auto made = make_router(each);
    if (made.has_error()) return made.error();
    spec.routers.push_back(std::move(*made));
  }
  if (spec.routers.empty()) {
    for (const choice_kind& each : router_kinds())
      spec.routers.push_back(*make_router(std::string(each.name)));
  }
  std::string names;
  for (const auto& each : spec.offline) {
    spec.common.mix.push_back(each.what);
    names += (names.empty() ? "" : " ") + each.name;
  }
  spec.offline = {{names, spec.common.mix.front()}};
  return true;
}

checked<lab::study_spec> make_spec(const lab_options& asked, const policy_registry& known) {
  lab::study_spec spec;
  for (const auto& each : asked.profiles) {
    try {
      sim::profile machine = sim::load_profile(sim::find_profile(each));
      if (asked.gpus != 0) sim::set_gpu_count(machine, asked.gpus);
      if (machine.gpus.size() > 8) {
        return failure(fmt::format(
            "--profile {}: the profile has more than 8 GPUs, the limit of the lab; pass --gpus N",
            each));
      }
      if (asked.servers > machine.gpus.size()) {
        return failure(fmt::format("--servers {}: --profile {} has {} GPU{}; pass --gpus N",
                                   asked.servers, each, machine.gpus.size(),
                                   machine.gpus.size() == 1 ? "" : "s"));
      }
      spec.profiles.push_back({each, std::move(machine)});
    } catch (const sim::profile_error& wrong) {
      return failure(wrong.what());
    }
  }
  const auto is_trace = [](const std::string& text) {
    return text.substr(0, text.find(':')) == "trace";
  };
  if (!asked.trace.empty() &&
      std::none_of(asked.arrivals.begin(), asked.arrivals.end(), is_trace)) {
    return failure(
        fmt::format("--trace {}: the file is not used; add --arrivals trace", asked.trace));
  }
  for (const auto& each : asked.arrivals) {
    auto made = make_source(each, asked);
    if (made.has_error()) return made.error();
    spec.sources.push_back(std::move(*made));
  }
  for (const auto& each : asked.offline) {
    auto made = make_offline(each);
    if (made.has_error()) return made.error();
    if (made->what.processes == 0 && asked.nodes == 1)
      return failure("--offline none: a single node needs offline work; add --nodes N");
    spec.offline.push_back(std::move(*made));
  }
  // They are dealt to the nodes in turn.
  const auto dealt = std::min<std::size_t>(spec.offline.size(), asked.nodes);
  if (asked.nodes > 1 &&
      std::all_of(spec.offline.begin(),
                  std::next(spec.offline.begin(), static_cast<std::ptrdiff_t>(dealt)),
                  [](const auto& each) { return each.what.processes == 0; }))
    return failure(
        fmt::format("--offline none: none of the {} nodes has offline work; put another "
                    "--offline among the first {}",
                    asked.nodes, asked.nodes));
  if (auto set = set_fleet(asked, spec); set.has_error()) return set.error();
  if (auto set = set_service(asked.service, spec); set.has_error()) return set.error();
  if (spec.costs && !asked.loads.empty()) {
    return failure(fmt::format(
        "--load: the load already follows from prefill_rate and decode_token of --service {}; omit "
        "--load, or these two parameters",
        asked.service));
  }
  spec.loads = asked.loads;
  if (spec.loads.empty()) spec.loads = asked.sweep ? std::vector{0.6} : std::vector{0.3, 0.6, 0.85};
  if (spec.costs) spec.loads.resize(1);
  for (const auto& each : asked.policies) {
    auto make = policy_maker(known, each);
    if (make.has_error()) return make.error();
    spec.policies.push_back({each, lab::arrangement::scheduled, std::move(*make), 1});
  }
  if (!asked.config.empty()) {
    if (auto set = set_config(asked.config, known, asked.driver_tables, spec); set.has_error())
      return set.error();
  }
  for (const auto& each : asked.policies) {
    const auto given = lab::parse_choice(each);
    note_on_slice(known, "--policy " + each, given->name, given->values,
                  spec.common.limits.max_suspend);
  }
  const auto limits = read_targets(asked.targets, spec.common.service);
  if (limits.has_error()) return limits.error();
  spec.limits = *limits;
  spec.common.warm_up =
      std::max<duration>(spec.common.warm_up, spec.common.limits.attach_after + 1s);
  for (const auto& [text, option, into] :
       {std::tuple{&asked.reaction, "--reaction", &spec.common.reaction},
        std::tuple{&asked.wake_up, "--wake-up", &spec.common.wake_up},
        std::tuple{&asked.warm_up, "--warm-up", &spec.common.warm_up}}) {
    if (text->empty()) continue;
    const auto read = read_duration(*text, option, 0ns);
    if (read.has_error()) return read.error();
    *into = *read;
  }
  spec.common.clients = !asked.no_clients;
  spec.common.servers_on = asked.servers;
  for (const lab::contender& each : spec.policies) {
    const std::string need = lab::unmet_need(*each.make(), lab::marks_in(spec.common));
    if (need.empty()) continue;
    return failure(fmt::format("--policy {} {}: {}; choose another policy", each.name, need,
                               asked.no_clients ? "with --no-clients no client marks its work"
                                                : "servers of --service " + asked.service +
                                                      " mark only the span request"));
  }
  spec.split = asked.split;
  spec.first_seed = asked.seed;
  spec.seeds = asked.seeds;
  spec.threads =
      asked.threads != 0 ? asked.threads : std::max(1u, std::thread::hardware_concurrency());
  const bool timelines = !asked.report.empty() && !asked.sweep;
  spec.keep_requests = !asked.csv_requests.empty() || timelines;
  spec.keep_decisions = !asked.csv_decisions.empty() || timelines;
  return spec;
}

checked<lab::sweep_axes> make_axes(const lab_options& asked) {
  const auto rising = [](auto& values) {
    std::sort(values.begin(), values.end());
    values.erase(std::unique(values.begin(), values.end()), values.end());
  };
  lab::sweep_axes made;
  made.cost_factors = asked.sweep_costs;
  rising(made.cost_factors);
  if (!asked.sweep_kernels.empty()) made.kernels.clear();
  for (const std::string& each : asked.sweep_kernels) {
    const auto length = parse_duration(each);
    if (!length || *length < 1us || *length > 10s) {
      return failure(
          fmt::format("--sweep-kernel: invalid duration '{}': expected 1us to 10s", each));
    }
    made.kernels.push_back(*length);
  }
  rising(made.kernels);
  for (const std::string& each : asked.offline) {
    if (each.find("kernel_low=") == std::string::npos &&
        each.find("kernel_high=") == std::string::npos) {
      continue;
    }
    return failure(fmt::format(
        "--offline {}: kernel_low and kernel_high conflict with --sweep; set the kernel "
        "lengths with --sweep-kernel",
        each));
  }
  return made;
}

/// What was typed, for a shell to repeat.
std::string command_line() {
  std::ifstream own("/proc/self/cmdline");
  std::vector<std::string> words;
  for (std::string word; std::getline(own, word, '\0');) words.push_back(word);
  return lab::page::shell_text(words);
}

int run(const lab_options& asked) {
  const auto refuse = [](const lab::trouble& why) {
    complain(why.message);
    return exit_usage;
  };
  const auto known = policies_for(asked.policies);
  if (known.has_error()) return refuse(known.error());
  const auto wanted = make_spec(asked, *known);
  if (wanted.has_error()) return refuse(wanted.error());
  const auto axes = asked.sweep ? make_axes(asked) : checked<lab::sweep_axes>();
  if (axes.has_error()) return refuse(axes.error());
  const auto spec = asked.sweep ? lab::spread(*wanted, *axes) : wanted;
  if (spec.has_error()) return refuse(spec.error());
  if (const std::string wrong = problem_with_files({{"--json", asked.json},
                                                    {"--csv-sweep", asked.csv_sweep},
                                                    {"--csv-requests", asked.csv_requests},
                                                    {"--csv-decisions", asked.csv_decisions},
                                                    {"--report", asked.report}});
      !wrong.empty()) {
    complain(wrong);
    return exit_usage;
  }
  output_file json(asked.json), csv_sweep(asked.csv_sweep), csv_requests(asked.csv_requests),
      csv_decisions(asked.csv_decisions), report(asked.report);
  for (const output_file* each : {&json, &csv_sweep, &csv_requests, &csv_decisions, &report}) {
    if (!each->ready()) return exit_failed;
  }
  // They log as live ones do; nobody shall take it for that.
  const marked_logs marked("in the lab", lab::run_in_progress);
  const auto began = clock::now();
  const auto made = lab::run_study(*spec);
  if (made.has_error()) {
    complain(made.error().message);
    return exit_failed;
  }
  const auto took = std::chrono::duration<double>(clock::now() - began);
  std::vector<lab::sweep_grid> grids;
  if (asked.sweep) grids = lab::grids_of(*wanted, *axes, *made);
  bool good = print(asked.sweep ? lab::text_sweep(grids) : lab::text_report(*spec, *made));
  good &= json.write(
      [&](const auto& write) { write(lab::json_report(*spec, *made, command_line(), grids)); });
  good &= csv_sweep.write([&](const auto& write) { lab::csv_sweep(grids, write); });
  good &= csv_requests.write([&](const auto& write) { lab::csv_requests(*spec, *made, write); });
  good &= csv_decisions.write([&](const auto& write) { lab::csv_decisions(*spec, *made, write); });
  good &= report.write(
      [&](const auto& write) { write(lab::html_report(*spec, *made, command_line(), grids)); });
  // Of a sweep the grid's numbers say it.
  if (!asked.sweep) {
    for (const std::string& each : lab::overloaded_of(*spec, *made)) complain("note: " + each);
  }
  for (const std::string& each : lab::removed_of(*made)) {
    complain(each);
    good = false;
  }
  // Not on standard output: that is the same for the same command, to the byte.
  std::fprintf(stderr, "%llu runs in virtual time took %.2f s\n",
               static_cast<unsigned long long>(made->runs), took.count());
  return good ? exit_done : exit_failed;
}

}  // namespace

subcommand add_lab(CLI::App& program, const driver_list& known) {
  const auto chosen = std::make_shared<lab_options>();
  chosen->driver_tables = driver_names(make_all(known));
  auto* const command =
      program.add_subcommand("lab", "Compare policies on a simulated node in virtual time");
  command->footer("Arrivals:\n" + lab::describe(arrival_kinds()) + "Services:\n" +
                  lab::describe(service_kinds()) + "Offline loads:\n" +
                  lab::describe(offline_kinds()) + "Routers:\n" + lab::describe(router_kinds()));
  command
      ->add_option("--policy", chosen->policies,
                   "Policy to compare: a name (see 'sluice policy') or a plugin file (.so, .py); "
                   "may be repeated")
      ->type_name("NAME|FILE[:KEY=VALUE,...]")
      ->take_all();
  const auto list = [&](const char* name, std::vector<std::string>& into, const char* help) {
    command->add_option(name, into, help)
        ->capture_default_str()
        ->type_name("NAME[:...]")
        ->take_all();
  };
  command
      ->add_option("--profile", chosen->profiles,
                   "Simulated GPU: mi300x, mi300x-batch, gfx1100, h100, or a TOML file")
      ->capture_default_str()
      ->type_name("NAME|FILE")
      ->take_all();
  list("--arrivals", chosen->arrivals, "When requests arrive (see below)");
  list("--offline", chosen->offline, "Offline load on the same GPUs (see below)");
  command->add_option("--service", chosen->service, "How requests are served (see below)")
      ->capture_default_str()
      ->type_name("NAME[:...]");
  command
      ->add_option("--load", chosen->loads,
                   "Share of the GPU's time that requests need [0.3,0.6,0.85; with --sweep 0.6]")
      ->delimiter(',')
      ->check(number_from(0.001, 0.99))
      ->type_name("L,...");
  command->add_option("--trace", chosen->trace, "File with arrivals in the Azure LLM trace format")
      ->type_name("FILE");
  command
      ->add_option(
          "--duration", chosen->duration,
          "Time in which requests arrive [10min; with --sweep 2min]; of a trace, only the busiest "
          "part of this length is used [the whole trace]")
      ->type_name("TIME");
  command->add_option("--gpus", chosen->gpus, "Number of GPUs [as in the profile]")
      ->check(CLI::Range(1, 8))
      ->type_name("N");
  command
      ->add_option("--servers", chosen->servers,
                   "Number of servers, on the first GPUs [one on each GPU]")
      ->check(CLI::Range(1, 8))
      ->type_name("N");
  auto* const nodes =
      command
          ->add_option(
              "--nodes", chosen->nodes,
              "Number of nodes behind a router, each with the GPUs of the profile; several "
              "--offline are dealt to the nodes in turn")
          ->check(CLI::Range(2, 10000))
          ->type_name("N");
  command
      ->add_option("--router", chosen->routers,
                   "How requests are split over the servers of all nodes (see below) [each]")
      ->needs(nodes)
      ->type_name("NAME[:...]")
      ->take_all();
  command
      ->add_option(
          "--target", chosen->targets,
          "Latencies above which a request is a miss, such as request=1s,ttft=200ms,itl=50ms")
      ->type_name("SPAN=TIME,...");
  command
      ->add_option("--split", chosen->split,
                   "Share for online work of the GPU in a static split, or of exclusive nodes [the "
                   "load plus "
                   "half of the rest]")
      ->check(number_from(0.05, 0.95))
      ->type_name("SHARE");
  command
      ->add_option("--config", chosen->config,
                   "TOML file: use the limits in its [scheduler] and add its [policy] as a row")
      ->type_name("FILE");
  command
      ->add_option("--reaction", chosen->reaction,
                   "Time from a client's mark, or the end of a driver call, until the scheduler "
                   "acts [100us]")
      ->type_name("TIME");
  command
      ->add_option(
          "--wake-up", chosen->wake_up,
          "Time from the end of a kernel until the host has submitted the next one [170us]")
      ->type_name("TIME");
  command
      ->add_option(
          "--warm-up", chosen->warm_up,
          "Duration of offline work before the first arrival [3s, or attach_after + 1s if longer]")
      ->type_name("TIME");
  command->add_flag("--no-clients", chosen->no_clients,
                    "Simulate servers that are not clients; only policies that read queue pointers "
                    "detect online work");
  command->add_option("--seed", chosen->seed, "First seed")
      ->check(CLI::Range(std::uint64_t{0}, std::uint64_t{1} << 53U))
      ->capture_default_str();
  command
      ->add_option(
          "--seeds", chosen->seeds,
          "Number of seeds; with several, results are means with a 95 % confidence interval")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command
      ->add_option("--threads", chosen->threads,
                   "Number of threads; the output is the same for every number [one per processor]")
      ->check(CLI::Range(1, 1024));
  auto* const sweep = command->add_flag(
      "--sweep", chosen->sweep,
      "Vary suspend costs and offline kernel lengths; report where suspending shortens online p99");
  sweep->excludes(nodes);
  command
      ->add_option("--sweep-cost", chosen->sweep_costs,
                   "Factors by which to multiply the profile's suspend and resume costs")
      ->needs(sweep)
      ->delimiter(',')
      ->check(number_from(0.01, 100))
      ->capture_default_str()
      ->type_name("FACTOR,...");
  command
      ->add_option("--sweep-kernel", chosen->sweep_kernels,
                   "Lengths of offline kernels [50us,200us,1ms,5ms,20ms,50ms]")
      ->needs(sweep)
      ->delimiter(',')
      ->type_name("TIME,...");
  command
      ->add_option("--csv-sweep", chosen->csv_sweep,
                   "Write one CSV row per policy or baseline and point of the sweep")
      ->needs(sweep)
      ->type_name("FILE");
  command->add_option("--csv-requests", chosen->csv_requests, "Write one CSV row per request")
      ->type_name("FILE");
  command->add_option("--csv-decisions", chosen->csv_decisions, "Write one CSV row per driver call")
      ->excludes(nodes)
      ->type_name("FILE");
  command->add_option("--json", chosen->json, "Write all results as JSON")->type_name("FILE");
  command
      ->add_option(
          "--report", chosen->report,
          "Write one HTML page with charts, timelines, tables and the upper bound of offline work")
      ->excludes(nodes)
      ->type_name("FILE");
  return {command, [chosen] { return run(*chosen); }};
}

}  // namespace sluice::cli
