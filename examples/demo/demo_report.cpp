#include "demo_report.hpp"

#include "options.hpp"

#include <algorithm>
#include <iterator>

#include <boost/json.hpp>
#include <fmt/format.h>

namespace demo {
namespace {

double seconds(duration value) { return std::chrono::duration<double>(value).count(); }
double ms(duration value) { return seconds(value) * 1e3; }
double us(duration value) { return seconds(value) * 1e6; }

/// "p50/p99", or "-" where there is nothing that they would be of.
std::string percentile_pair(bool any, double p50, double p99, int decimals) {
  return any ? fmt::format("{:.{}f}/{:.{}f}", p50, decimals, p99, decimals) : "-";
}

std::string row(const char* name, const online_run* online, const offline_run* offline) {
  std::string text = fmt::format("{:<20}", name);
  if (online != nullptr && online->requests > 0) {
    const char* const at_least = online->unfinished > 0 ? ">=" : "";
    for (const duration each :
         {online->latency.p50, online->latency.p90, online->latency.p99, online->latency.max}) {
      text += fmt::format("{:>10}", fmt::format("{}{:.1f}", at_least, ms(each)));
    }
    const percentiles& wake_up = online->wake_up;
    text += fmt::format("{:>14}", percentile_pair(wake_up.max > duration::zero(), us(wake_up.p50),
                                                  us(wake_up.p99), 0));
  } else {
    text += fmt::format("{:>10}{:>10}{:>10}{:>10}{:>14}", "-", "-", "-", "-", "-");
  }
  if (offline != nullptr) {
    text += fmt::format("{:>13.1f}{:>11.1f} %", offline->kernels_per_second(),
                        100 * offline->gpu_share());
  } else {
    text += fmt::format("{:>13}{:>13}", "-", "-");
  }
  if (online != nullptr && online->unfinished > 0) {
    text += fmt::format("   {} of {} unfinished", online->unfinished, online->requests);
  }
  return text + '\n';
}

/// Under that share of free time the loss compares with next to nothing.
constexpr double least_free_share = 0.05;

std::string loss_text(const load_report& report) {
  const offline_run& run = report.scheduled_offline;
  if (seconds(run.wall - run.online_unfinished) < least_free_share * seconds(run.wall)) {
    return "offline loss not computed, because online work was unfinished for almost the whole run";
  }
  const double loss = run.loss_percent();
  return fmt::format("offline loss {:.1f} % of the time without unfinished online work{}", loss,
                     loss < 0 ? " (offline also ran while online work was unfinished)" : "");
}

std::string json_run(const online_run& online, const offline_run* offline) {
  std::string text = fmt::format(
      R"({{"requests":{},"p50_ms":{:.3f},"p90_ms":{:.3f},"p99_ms":{:.3f},"max_ms":{:.3f})",
      online.requests, ms(online.latency.p50), ms(online.latency.p90), ms(online.latency.p99),
      ms(online.latency.max));
  if (offline != nullptr) {
    text += fmt::format(R"(,"offline_kernels_per_s":{:.3f},"offline_gpu_share":{:.4f})",
                        offline->kernels_per_second(), offline->gpu_share());
  }
  text += fmt::format(
      R"(,"unfinished":{},"wake_up_p50_us":{:.1f},"wake_up_p99_us":{:.1f},"turnaround_mean_us":{:.1f})",
      online.unfinished, us(online.wake_up.p50), us(online.wake_up.p99), us(online.turnaround));
  text += R"(,"arrival_and_latency_ms":[)";
  for (std::size_t each = 0; each < std::min(online.arrivals.size(), online.samples.size());
       ++each) {
    text += fmt::format("{}[{:.3f},{:.3f}]", each == 0 ? "" : ",", ms(online.arrivals[each]),
                        ms(online.samples[each]));
  }
  return text + "]}";
}

}  // namespace

std::string latency_against(const online_run& unscheduled, const online_run& scheduled) {
  if (scheduled.unfinished > 0)
    return "online p99 unknown: the scheduled run left requests unfinished";
  const double before = ms(unscheduled.latency.p99);
  const double now = ms(scheduled.latency.p99);
  if (!(before > 0 && now > 0)) return "online p99 unknown";
  const bool bound = unscheduled.unfinished > 0;
  if (before >= now) {
    return fmt::format("online p99 {}{:.1f} times shorter", bound ? "at least " : "", before / now);
  }
  return fmt::format("online p99 {}{:.1f} times longer", bound ? "at most " : "", now / before);
}

online_run summarize(const online_report& report) {
  std::vector<duration> all = report.finished;
  all.insert(all.end(), report.unfinished.begin(), report.unfinished.end());
  const percentiles latency = percentiles_of(all);
  return {all.size(),        report.unfinished.size(), latency,        report.wake_up,
          report.turnaround, std::move(all),           report.arrivals};
}

double offline_run::kernels_per_second() const {
  return wall.count() > 0 ? static_cast<double>(kernels) / seconds(wall) : 0;
}

double offline_run::gpu_share() const {
  return wall.count() > 0 ? seconds(gpu_time) / seconds(wall) : 0;
}

double offline_run::loss_percent() const {
  const duration free = wall - online_unfinished;
  return free.count() > 0 ? 100 * (1 - seconds(gpu_time) / seconds(free)) : 0;
}

double load_report::share_of_alone() const {
  const double alone = offline_alone.kernels_per_second();
  return alone > 0 ? scheduled_offline.kernels_per_second() / alone : 0;
}

bool load_report::gains_little() const {
  constexpr double worth_it = 1.5;
  return load == load_kind::training && scheduled.unfinished == 0 &&
         ms(unscheduled.latency.p99) < worth_it * ms(scheduled.latency.p99);
}

std::string load_report::broken_promise() const {
  if (!offline_kernels.clean()) {
    return fmt::format("offline kernels: {} lost, {} repeated, {} out of order, {} too short",
                       offline_kernels.lost, offline_kernels.repeated, offline_kernels.out_of_order,
                       offline_kernels.too_short);
  }
  if (still_suspended > 0) {
    return fmt::format("{} queues are still suspended after the scheduled run", still_suspended);
  }
  return {};
}

std::string table(const load_report& report) {
  const scheduler_report& by = report.scheduler;
  std::string text =
      fmt::format("\nOffline load {}: {}\n", to_string(report.load), description(report.load));
  text += fmt::format("{:<20}{:>40}{:>14}{:>26}\n", "", "online latency, ms  ", "wake-up, us",
                      "offline        ");
  text += fmt::format("{:<20}{:>10}{:>10}{:>10}{:>10}{:>14}{:>13}{:>13}\n", "", "p50", "p90", "p99",
                      "max", "p50/p99", "kernels/s", "GPU time");
  text += row("offline alone", nullptr, &report.offline_alone);
  text += row("online alone", &report.online_alone, nullptr);
  text += row("both, no scheduler", &report.unscheduled, &report.unscheduled_offline);
  text += row("both, scheduled", &report.scheduled, &report.scheduled_offline);
  text += fmt::format(
      "  scheduled: {} queue suspends, {} resumes in {} driver calls, p50/p99 of {} suspends {} "
      "ms, "
      "of {} resumes {} ms; {} failed outcomes\n",
      by.suspends, by.resumes, by.driver_calls, by.suspend_calls,
      percentile_pair(by.suspend_calls > 0, ms(by.suspend_p50), ms(by.suspend_p99), 2),
      by.resume_calls,
      percentile_pair(by.resume_calls > 0, ms(by.resume_p50), ms(by.resume_p99), 2),
      by.failed_outcomes);
  text += fmt::format(
      "  time from an online arrival p50/p99: to the driver call {} us, until offline work was off "
      "the GPU {} ms; {} forced resumes, {} agent restarts\n",
      percentile_pair(by.decision_p99 > duration::zero(), us(by.decision_p50), us(by.decision_p99),
                      0),
      percentile_pair(by.off_p99 > duration::zero(), ms(by.off_p50), ms(by.off_p99), 2),
      by.forced_resumes, by.backend_restarts);
  if (by.policy_ejections > 0) {
    text +=
        "  THE POLICY WAS REMOVED: see the scheduler's log above; ignore the figures of the "
        "scheduled run\n";
  }
  text += fmt::format("  {}; offline kernels per second, relative to offline alone: {:.2f}\n",
                      loss_text(report), report.share_of_alone());
  // Only AMD's driver has cycles.
  if (report.driver_cycles > 0) {
    text += fmt::format(
        "  until the last request ended, the GPU spent {:.1f} ms in {} driver cycles, {:.1f} ms "
        "of this while online queues had work\n",
        ms(report.driver_cycle_time), report.driver_cycles, ms(report.online_disturbed));
  }
  text += fmt::format(
      "  queues still suspended at the end {}; kernels lost {}, repeated {}, of {}\n",
      report.still_suspended, report.offline_kernels.lost, report.offline_kernels.repeated,
      report.offline_kernels.completed + report.offline_kernels.lost +
          report.offline_kernels.repeated);
  text += fmt::format("  delay of events in the simulated device p50/p99 {:.0f}/{:.0f} us\n",
                      us(report.lateness_p50), us(report.lateness_p99));
  const double offline = report.unscheduled_offline.kernels_per_second();
  text += fmt::format(
      "  compared with no scheduler: {}, offline kernels per second {}\n",
      latency_against(report.unscheduled, report.scheduled),
      offline > 0 ? fmt::format("{:+.0f} %",
                                100 * (report.scheduled_offline.kernels_per_second() / offline - 1))
                  : "-");
  if (report.gains_little()) text += fmt::format("  {}\n", why_it_gains_little);
  return text;
}

std::string json(const load_report& report, const std::string& profile,
                 const arrival_options& asked, duration window) {
  const auto quoted = [](const std::string& text) {
    return boost::json::serialize(boost::json::string(text));
  };
  const scheduler_report& by = report.scheduler;
  std::string text = fmt::format(R"({{"device":"simulated","profile":{},"load":"{}",)",
                                 quoted(profile), to_string(report.load));
  text += asked.trace.empty() ? fmt::format(R"("seed":{})", asked.seed)
                              : fmt::format(R"("trace":{})", quoted(asked.trace));
  text += fmt::format(R"(,"window_s":{:.6f},"speedup":{},"online_load":{},"runs":{{)",
                      seconds(window), asked.speedup, asked.online_load);
  text += "\n  \"online_alone\":" + json_run(report.online_alone, nullptr);
  text += ",\n  \"unscheduled\":" + json_run(report.unscheduled, &report.unscheduled_offline);
  text += ",\n  \"scheduled\":" + json_run(report.scheduled, &report.scheduled_offline);
  text += fmt::format(
      "}},\n\"offline_alone_kernels_per_s\":{:.3f},\"offline_alone_gpu_share\":{:.4f},"
      "\"offline_loss_percent\":{:.3f},"
      "\"offline_share_of_alone\":{:.4f},\n\"suspends\":{},\"resumes\":{},\"driver_calls\":{},"
      "\"failed_outcomes\":{},\"still_suspended\":{},\n\"kernels_lost\":{},\"kernels_repeated\":{},"
      "\"online_disturbed_ms\":{:.3f}",
      report.offline_alone.kernels_per_second(), report.offline_alone.gpu_share(),
      report.scheduled_offline.loss_percent(), report.share_of_alone(), by.suspends, by.resumes,
      by.driver_calls, by.failed_outcomes, report.still_suspended, report.offline_kernels.lost,
      report.offline_kernels.repeated, ms(report.online_disturbed));
  text += fmt::format(
      ",\n\"driver_cycles\":{},\"driver_cycle_ms\":{:.3f},\"forced_resumes\":{},\"agent_restarts\":"
      "{},\"policy_ejections\":{},"
      "\"suspend_calls\":{},\"resume_calls\":{},\"suspend_p50_ms\":{:.3f},"
      "\"suspend_p99_ms\":{:.3f},\"resume_p50_ms\":{:.3f},\"resume_p99_ms\":{:.3f},"
      "\"off_gpu_p50_ms\":{:.3f},\"off_gpu_p99_ms\":{:.3f},\"device_lateness_p50_us\":{:.1f},"
      "\"device_lateness_p99_us\":{:.1f},\"reactor\":\"{}\"}}\n",
      report.driver_cycles, ms(report.driver_cycle_time), by.forced_resumes, by.backend_restarts,
      by.policy_ejections, by.suspend_calls, by.resume_calls, ms(by.suspend_p50),
      ms(by.suspend_p99), ms(by.resume_p50), ms(by.resume_p99), ms(by.off_p50), ms(by.off_p99),
      us(report.lateness_p50), us(report.lateness_p99), by.reactor);
  return text;
}

}  // namespace demo
