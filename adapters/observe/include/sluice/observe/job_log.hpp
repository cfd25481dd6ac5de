#pragma once
/// \file
/// The jobs file: one JSON line for each period of a process's life (job_record.hpp).

#include <cstdint>
#include <string>

#include "sluice/observe/job_record.hpp"
#include "sluice/result.hpp"

namespace sluice::observe {

/// Appends whole lines. A file that has reached `most` bytes becomes FILE.1, and the one that was
/// FILE.1 goes. It is opened for each line, so others may move it away as well.
///
/// Threading: one thread; writers of several programs do not mix lines.
class job_log {
 public:
  static constexpr std::uint64_t usual_most = std::uint64_t{64} << 20U;

  explicit job_log(std::string path, std::uint64_t most = usual_most)
      : path_(std::move(path)), most_(most) {}

  /// Blocks on file operations. A line that was cut short by a crash is ended first.
  /// \return the system's error; then the line is not there.
  [[nodiscard]] result<void> write(const job_record& record);

 private:
  std::string path_;
  std::uint64_t most_;
};

}  // namespace sluice::observe
