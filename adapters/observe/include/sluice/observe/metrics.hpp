#pragma once
/// \file
/// Counters, gauges and histograms of a node, as the text that Prometheus reads.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "sluice/journal.hpp"
#include "sluice/observe/process_words.hpp"
#include "sluice/observe/span_targets.hpp"
#include "sluice/picture.hpp"
#include "sluice/statistics.hpp"

namespace sluice::observe {

/// The two forms: Prometheus' own, 0.0.4, which node_exporter's textfile collector wants too, and
/// OpenMetrics 1.0.0.
enum class metrics_form : std::uint8_t { prometheus, openmetrics };

/// What an answer in this form says that it is.
constexpr std::string_view content_type(metrics_form form) noexcept {
  return form == metrics_form::openmetrics
             ? "application/openmetrics-text; version=1.0.0; charset=utf-8"
             : "text/plain; version=0.0.4; charset=utf-8";
}

/// What is known at the moment of the question; each may be missing.
struct metrics_moment {
  const statistics* counted = nullptr;
  const picture* seen = nullptr;
  bool owns = false;
  bool paused = false;
  bool enforces = false;
  bool simulated = false;    ///< The device is.
  bool driver_gone = false;  ///< Its files cannot be read.
  /// sluice-gangs is needed for gangs on several nodes, and is not connected.
  bool without_gangs = false;
};

/// Counts what the journal tells, by GPU and by group; what has neither comes from `statistics`,
/// which begin anew with each scheduler, as Prometheus expects of counters.
///
/// Groups are named as process_words::group says. So that their number has a bound, those beyond
/// the first `most_groups` that are there count as "other", and one that has had no process for
/// `forget_after` goes.
///
/// Threading: one thread. Cost: a few kilobytes for each GPU and some hundred bytes for each
/// process and group.
class metrics {
 public:
  static constexpr std::size_t most_groups = 64;
  static constexpr duration forget_after = std::chrono::minutes(15);

  explicit metrics(process_reader read = read_process);
  ~metrics();
  metrics(const metrics&) = delete;
  metrics& operator=(const metrics&) = delete;

  /// The targets in force from now on: spans that take longer count as late.
  void aim(const span_targets& targets);
  void hear(const journal_entry& entry);
  /// So many entries of the journal were lost.
  void missed(std::uint64_t entries);
  /// As accounts::mend(). No counter goes back.
  void mend(const picture& now);
  /// What comes is another scheduler's. Counts stay.
  void begin_anew(time_point now);
  void tick(time_point now);

  [[nodiscard]] std::string text(metrics_form form, const metrics_moment& moment,
                                 time_point now) const;

 private:
  struct counts;
  std::unique_ptr<counts> counts_;
  process_reader read_;
};

}  // namespace sluice::observe
