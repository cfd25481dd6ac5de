#pragma once
/// \file
/// A timeline for a program that has a scheduler and no node: the thread that its journal needs.

#include <memory>
#include <string>

#include "sluice/journal.hpp"
#include "sluice/observe/timeline.hpp"
#include "sluice/result.hpp"

namespace sluice::observe {

/// Threading: one thread, but for sink(), which is the scheduler's.
/// Lifetime:  outlives the scheduler.
class timeline_thread {
 public:
  /// Makes the file anew. \return the system's error.
  [[nodiscard]] static result<std::unique_ptr<timeline_thread>> start(
      const std::string& path, timeline_options options = {});
  /// What was written to the sink until here is in the file then, which is closed.
  ~timeline_thread();
  timeline_thread(const timeline_thread&) = delete;
  timeline_thread& operator=(const timeline_thread&) = delete;

  /// For scheduler_options::journal.
  journal_sink& sink() noexcept;

 private:
  class impl;
  explicit timeline_thread(std::unique_ptr<impl> body) noexcept;
  std::unique_ptr<impl> impl_;
};

}  // namespace sluice::observe
