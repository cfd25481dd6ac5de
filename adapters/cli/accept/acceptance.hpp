#pragma once
/// \file
/// `sluice accept` without its command line: its steps, what they found, and how that is written
/// down.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "sluice/time.hpp"

namespace sluice::cli::acceptance {

enum class verdict : std::uint8_t {
  passed,
  failed,        ///< Nothing more is done.
  not_possible,  ///< The victim, or this machine, has not what it takes; the next step follows.
  skipped,       ///< Does not apply to the driver.
  not_run,
  begun,  ///< In a report that is read while it runs, or after the machine hung.
};
std::string_view to_string(verdict what);

/// What was measured several times.
struct figure {
  std::string name;
  std::vector<duration> samples{};

  /// Of the sorted samples the first that as many are not above. \param share 0 to 1.
  /// \return zero where there are none.
  duration quantile(double share) const;
};

struct finding {
  std::string step;
  verdict what = verdict::not_run;
  std::string why{};  ///< One sentence, unless it passed.
  duration took{};
  std::vector<figure> figures{};
  std::vector<std::string> notes{};

  /// Adds to the figure of that name.
  void measured(std::string_view name, duration sample);
  const figure* find(std::string_view name) const;
};

// Names of figures.
inline constexpr std::string_view suspend_call = "suspend call";
inline constexpr std::string_view resume_call = "resume call";
inline constexpr std::string_view attach_time = "attach";
inline constexpr std::string_view stall_per_attach = "bystander's stall per attach";
inline constexpr std::string_view stall_per_suspend = "bystander's stall per suspend";
inline constexpr std::string_view stall_per_resume = "bystander's stall per resume";
inline constexpr std::string_view request_alone = "request alone";
inline constexpr std::string_view request_beside = "request beside the victim";
inline constexpr std::string_view request_with_quantum =
    "request beside the victim with a quantum of 50 us";

class bench;

/// One step. `work` throws step_end (acceptance_hands.hpp) unless it passed.
struct step {
  std::string_view name;
  std::string_view risk;         ///< What may happen at the worst with driver kfd.
  std::string_view nvidia_risk;  ///< The same with driver nvidia. Empty: it does not apply to it.
  std::string_view does;
  void (*work)(bench&, finding&);
  std::string_view only_with{};  ///< Driver that it applies to. Empty: all.
  std::string_view because{};    ///< Why only to that one: a clause about the others.
};
/// In order of rising risk.
const std::vector<step>& all_steps();

/// What is known of the device under test.
struct device_facts {
  bool simulated = false;
  bool costs_per_queue = false;  ///< A call costs so much for each queue.
  std::string device;
  std::string driver;
  std::string firmware;  ///< Empty: unknown.
  std::string profile;   ///< The tables [driver] and [[gpu]] of a profile, without measured costs.
};

struct report {
  device_facts device;
  std::string victim;
  std::string when;                 ///< UTC.
  std::vector<finding> findings{};  ///< As many as there are steps that were asked for.
  std::vector<std::string> notes{};

  /// At least one step passed, and none failed or did not run.
  bool good() const;
};

/// "accepted", what it leaves open, or why not: one clause.
std::string result_text(const report& about);

/// "5.21 ms": three digits.
std::string time_text(duration value);
/// One line for a step, as it is shown when it is done.
std::string line_of(const finding& which);
std::string report_text(const report& about);  ///< Markdown.
/// A profile of the device (adapters/sim) with the measured costs. \return empty where no suspend
/// was measured.
std::string profile_text(const report& about);

}  // namespace sluice::cli::acceptance
