#pragma once
/// \file
/// What a benchmark measured, for tests/bench/table.py: rounds of samples, one line of JSON each
/// series. What is compared is measured in turns within one program, a round of each at a time.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "sluice/time.hpp"

namespace sluice::bench {

/// Threading: one thread.
class series {
 public:
  /// \param name as rows of table.py call it, for instance "hop.io_uring".
  /// \param unit "ns", "bytes", "percent", "calls" or "per_second".
  explicit series(std::string name, std::string unit = "ns")
      : name_(std::move(name)), unit_(std::move(unit)) {}

  void add(double sample) { now_.push_back(sample); }
  void add(duration sample) { add(static_cast<double>(sample.count())); }
  /// What was added since the last call is one round.
  void end_round() {
    if (now_.empty()) return;
    std::sort(now_.begin(), now_.end());
    p50_.push_back(at(now_, 0.5));
    p99_.push_back(at(now_, 0.99));
    samples_ += now_.size();
    now_.clear();
  }
  std::size_t samples() const noexcept { return samples_; }

  /// One line on standard output: the rounds' percentiles.
  void print() {
    end_round();
    std::printf("{\"name\": \"%s\", \"unit\": \"%s\", \"samples\": %zu, ", name_.c_str(),
                unit_.c_str(), samples_);
    list("p50", p50_);
    std::printf(", ");
    list("p99", p99_);
    std::printf("}\n");
    std::fflush(stdout);
  }

 private:
  static double at(const std::vector<double>& sorted, double share) {
    return sorted[static_cast<std::size_t>(share * static_cast<double>(sorted.size() - 1))];
  }
  static void list(const char* what, const std::vector<double>& values) {
    std::printf("\"%s\": [", what);
    const char* between = "";
    for (const double each : values) std::printf("%s%.6g", std::exchange(between, ", "), each);
    std::printf("]");
  }

  std::string name_;
  std::string unit_;
  std::vector<double> now_;
  std::vector<double> p50_;
  std::vector<double> p99_;
  std::size_t samples_ = 0;
};

}  // namespace sluice::bench
