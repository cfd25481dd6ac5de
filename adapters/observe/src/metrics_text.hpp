#pragma once
/// \file
/// The text that Prometheus reads, in either of its forms. prometheus-cpp was considered: its
/// exposer brings civetweb's threads and no Unix socket, and its serializer would want every value
/// in structures of its own and writes no OpenMetrics; the form itself is what is below.

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "sluice/observe/metrics.hpp"
#include "sluice/time.hpp"

namespace sluice::observe {

using labels = std::initializer_list<std::pair<std::string_view, std::string_view>>;

enum class metric_type : std::uint8_t { counter, gauge, histogram, info };

/// Families follow each other; samples belong to the last one.
class metrics_text {
 public:
  explicit metrics_text(metrics_form form) : form_(form) {}

  /// \param name with "sluice_", without "_total" or "_info".
  void family(std::string_view name, metric_type type, std::string_view help);
  void sample(labels with, std::uint64_t value);
  void sample(labels with, double value);
  /// \param counts cumulative, as many as bounds.
  void buckets(labels with, std::span<const std::string_view> words,
               std::span<const std::uint64_t> counts, std::uint64_t all, duration sum);
  std::string take();

 private:
  void begin_sample(std::string_view suffix, labels with, std::string_view bound = {});

  metrics_form form_;
  metric_type type_{};
  std::string name_;
  std::string text_;
};

}  // namespace sluice::observe
