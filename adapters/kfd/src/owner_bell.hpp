#pragma once
/// \file
/// How lanes tell their owner that there is something to take.

#include <sys/eventfd.h>

#include <functional>

namespace sluice::kfd {

/// Threading: any thread. Lifetime: what it was made of outlives it.
class owner_bell {
 public:
  /// \param ready the eventfd that the owner sleeps on.
  /// \param take_reports as lanes_options::take_reports.
  owner_bell(int ready, const std::function<bool()>& take_reports) noexcept
      : ready_(ready), take_reports_(take_reports) {}

  /// There is a report.
  void report() const {
    if (!take_reports_ || !take_reports_()) ring();
  }
  /// Something else has changed.
  void ring() const noexcept { ::eventfd_write(ready_, 1); }

 private:
  const int ready_;
  const std::function<bool()>& take_reports_;
};

}  // namespace sluice::kfd
