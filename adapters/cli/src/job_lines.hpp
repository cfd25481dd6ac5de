#pragma once
/// \file
/// Reads jobs files again, and logs that hold such lines, and adds up what they say.

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sluice/observe/job_record.hpp"

namespace sluice::cli {

/// A line of a jobs file, or of the daemon's log ("... job: {...}").
/// \return nothing when it is no such line, or damaged.
std::optional<observe::job_record> parse_job_line(std::string_view line);
/// Whether it begins as such a line: then it is damaged where it cannot be parsed.
bool is_job_line(std::string_view line);

/// One process, over all its lines; or a group, over all its processes.
struct job_sum {
  observe::job_record whole{};  ///< Its end is the last line's.
  std::size_t processes = 1;
};

/// The lines whose period ended after `since`, added up.
class job_book {
 public:
  explicit job_book(observe::wall_time since) : since_(since) {}

  /// Of a text, by lines; the last one may lack its end.
  void read(std::string_view text);

  /// Those that were suspended for the largest share of their time come first.
  std::vector<job_sum> processes() const;
  std::vector<job_sum> groups() const;
  /// Lines that could not be read.
  std::size_t damaged() const noexcept { return damaged_; }

 private:
  using process = std::pair<pid_t, std::uint64_t>;
  observe::wall_time since_;
  std::map<process, job_sum> processes_;
  std::size_t damaged_ = 0;
};

/// Of its wall time, 0 to 1.
double suspended_share(const observe::job_record& of) noexcept;

}  // namespace sluice::cli
