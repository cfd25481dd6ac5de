// What `sluice accept` found, as text and as a profile.

#include "acceptance.hpp"
#include "output.hpp"
#include "tested_driver.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>

#include <fmt/format.h>

#include "sluice/duration_text.hpp"

namespace sluice::cli::acceptance {

namespace {

using namespace std::chrono_literals;

/// What goes into a profile: rounded to a microsecond, within what a profile may say.
std::string cost_text(duration value, duration most) {
  const auto rounded = std::chrono::round<std::chrono::microseconds>(value);
  return to_text(std::clamp<duration>(rounded, 1us, most));
}

/// What suspends and resumes cost, where the GPU was full if that was measured: for each call, or
/// for each queue.
std::vector<duration> samples_of(const report& about, std::string_view name) {
  std::vector<duration> all;
  for (const std::string_view kind : {"busy", "idle"}) {
    for (const auto& each : about.findings) {
      const auto* const found = each.find(name);
      if (found == nullptr || !each.step.starts_with("suspend-") || !each.step.ends_with(kind))
        continue;
      const auto queues = std::max(std::atoi(each.step.c_str() + 8), 1);
      for (const auto one : found->samples)
        all.push_back(about.device.costs_per_queue ? one / queues : one);
    }
    if (!all.empty()) break;
  }
  return all;
}

}  // namespace

std::string_view to_string(verdict what) {
  switch (what) {
    case verdict::passed: return "passed";
    case verdict::failed: return "FAILED";
    case verdict::not_possible: return "not possible here";
    case verdict::skipped: return "skipped";
    case verdict::begun: return "started, not finished";
    case verdict::not_run: break;
  }
  return "not run";
}

duration figure::quantile(double share) const {
  if (samples.empty()) return {};
  auto sorted = samples;
  std::ranges::sort(sorted);
  const auto rank = std::ceil(share * static_cast<double>(sorted.size()));
  return sorted[static_cast<std::size_t>(
      std::clamp(rank - 1, 0.0, static_cast<double>(sorted.size() - 1)))];
}

void finding::measured(std::string_view name, duration sample) {
  for (auto& each : figures)
    if (each.name == name) return each.samples.push_back(sample);
  figures.push_back({std::string{name}, {sample}});
}

const figure* finding::find(std::string_view name) const {
  const auto found = std::ranges::find(figures, name, &figure::name);
  return found == figures.end() ? nullptr : &*found;
}

std::string first_line_of(const std::string& path) {
  std::ifstream file{path};
  std::string line;
  std::getline(file, line);
  return printable(line);
}

std::string quoted(std::string text) {
  for (char& each : text)
    if (each == '"' || each == '\\') each = '?';
  return '"' + text + '"';
}

namespace {
std::vector<std::string_view> steps_with(const report& about, verdict what) {
  std::vector<std::string_view> all;
  for (const auto& each : about.findings)
    if (each.what == what) all.emplace_back(each.step);
  return all;
}
}  // namespace

bool report::good() const {
  const auto is = [this](verdict what) { return steps_with(*this, what).size(); };
  return is(verdict::passed) != 0 &&
         is(verdict::passed) + is(verdict::not_possible) + is(verdict::skipped) == findings.size();
}

std::string result_text(const report& about) {
  const auto missing = steps_with(about, verdict::not_possible);
  if (about.good() && missing.empty()) return "accepted";
  if (about.good())
    return fmt::format("accepted, but {} step{} not possible here: {}", missing.size(),
                       missing.size() == 1 ? " was" : "s were", fmt::join(missing, ", "));
  if (const auto failed = steps_with(about, verdict::failed); !failed.empty())
    return fmt::format("NOT ACCEPTED: {} failed", fmt::join(failed, ", "));
  if (missing.size() + steps_with(about, verdict::skipped).size() == about.findings.size())
    return "NOT ACCEPTED: no step was possible here";
  if (const auto begun = steps_with(about, verdict::begun); !begun.empty())
    return fmt::format("NOT ACCEPTED so far: {} was started and has not finished", begun.front());
  return "NOT ACCEPTED so far: some steps have not run";
}

std::string time_text(duration value) {
  const double us = std::chrono::duration<double, std::micro>(value).count();
  if (us < 1000) return fmt::format("{:.3g} us", us);
  return us < 1e6 ? fmt::format("{:.3g} ms", us / 1e3) : fmt::format("{:.3g} s", us / 1e6);
}

std::string line_of(const finding& which) {
  std::string text = fmt::format("{:<16} {}", which.step, to_string(which.what));
  if (!which.why.empty()) text += ": " + which.why;
  for (const auto& each : which.figures)
    text += fmt::format("\n{:<16}   {}: p50 {}, p99 {} ({} samples)", "", each.name,
                        time_text(each.quantile(0.5)), time_text(each.quantile(0.99)),
                        each.samples.size());
  for (const auto& each : which.notes) text += fmt::format("\n{:<16}   {}", "", each);
  return text + "\n";
}

std::string report_text(const report& about) {
  std::string text =
      about.device.simulated
          ? "# sluice accept, on a SIMULATED device: no result was measured on hardware\n\n"
          : "# sluice accept\n\n";
  text += fmt::format("- result: {}\n", result_text(about));
  text += fmt::format("- when: {}\n- device: {}\n- driver: {}\n", about.when, about.device.device,
                      about.device.driver);
  if (!about.device.firmware.empty()) text += "- firmware: " + about.device.firmware + "\n";
  text += "- victim: " + about.victim + "\n";
  for (const auto& each : about.notes) text += "- " + each + "\n";
  text +=
      "\n| step | verdict | duration | figure | p50 | p99 | samples |\n"
      "|---|---|---|---|---|---|---|\n";
  for (const auto& each : about.findings) {
    const std::string first =
        fmt::format("| {} | {} | {} ", each.step, to_string(each.what),
                    each.took == duration::zero() ? "" : time_text(each.took));
    if (each.figures.empty()) text += first + "| | | | |\n";
    for (const auto& one : each.figures)
      text += fmt::format(
          "{}| {} | {} | {} | {} |\n", &one == &each.figures.front() ? first : "| | | ", one.name,
          time_text(one.quantile(0.5)), time_text(one.quantile(0.99)), one.samples.size());
  }
  text += "\n";
  for (const auto& each : about.findings) {
    if (!each.why.empty())
      text += fmt::format("- {}: {}: {}\n", each.step, to_string(each.what), each.why);
    for (const auto& one : each.notes) text += fmt::format("- {}: {}\n", each.step, one);
  }
  return text;
}

std::string profile_text(const report& about) {
  const figure suspend{"", samples_of(about, suspend_call)};
  const figure resume{"", samples_of(about, resume_call)};
  if (suspend.samples.empty() || resume.samples.empty()) return {};
  const auto& device = about.device;
  std::string text = fmt::format(
      "# Measured by 'sluice accept' on a {}, for 'sluice sim', 'sluice lab' and\n"
      "# the policy slo. suspend_cost is from {} driver calls, resume_cost from {}. Missing\n"
      "# keys have the defaults in adapters/sim/src/profile.hpp.\n"
      "name = \"measured\"\n\n[measured]\nsimulated = {}\naccepted = {}\nat = {}\ndriver = {}\n",
      device.simulated ? "SIMULATED device" : "GPU", suspend.samples.size(), resume.samples.size(),
      device.simulated, about.good(), quoted(about.when), quoted(device.driver));
  if (!device.firmware.empty()) text += fmt::format("firmware = {}\n", quoted(device.firmware));
  if (!about.good())
    text.insert(0, "# NOT ACCEPTED: a step failed or did not run; see the report.\n");
  const auto also = [&](std::string_view key, std::string_view name) {
    for (const auto& each : about.findings) {
      const auto* const found = each.find(name);
      if (found == nullptr) continue;
      text +=
          fmt::format("{0}_p50 = \"{1}\"\n{0}_p99 = \"{2}\"\n", key,
                      cost_text(found->quantile(0.5), 60s), cost_text(found->quantile(0.99), 60s));
      return;
    }
  };
  also("attach", attach_time);
  also("attach_stall", stall_per_attach);
  also("suspend_stall", stall_per_suspend);
  also("resume_stall", stall_per_resume);
  also("request_alone", request_alone);
  also("request_beside", request_beside);
  also("request_with_quantum", request_with_quantum);
  text += "\n" + device.profile;
  const auto cost = [&](std::string_view key, const figure& of) {
    text += fmt::format("{0} = \"{1}\"\n{0}_p99 = \"{2}\"\n", key, cost_text(of.quantile(0.5), 9s),
                        cost_text(of.quantile(0.99), 9s));
  };
  cost("suspend_cost", suspend);
  cost("resume_cost", resume);
  return text;
}

}  // namespace sluice::cli::acceptance
