#pragma once
/// \file
/// A file of trace events in Chrome's JSON form, which ui.perfetto.dev opens.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "sluice/os/unique_fd.hpp"
#include "sluice/result.hpp"

namespace sluice::observe {

/// A list of events that may end anywhere between two of them: the form needs no closing bracket,
/// so the file of a program that was killed is as good as another.
///
/// Threading: one thread. Memory: what was added since the last flush(), or 64 KiB.
class trace_file {
 public:
  static constexpr std::uint64_t usual_most = std::uint64_t{1} << 30U;

  /// Makes the file anew; what was there is FILE.1 then (kept_file.hpp). \return the system's
  /// error.
  [[nodiscard]] static result<std::unique_ptr<trace_file>> create(const std::string& path,
                                                                  std::uint64_t most = usual_most);
  ~trace_file();
  trace_file(const trace_file&) = delete;
  trace_file& operator=(const trace_file&) = delete;

  /// \param event one JSON object. It is left out where it would lead beyond `most`, and once the
  /// file cannot be written.
  void add(std::string_view event);
  /// Blocks on the file.
  void flush();
  /// Of the list; nothing more is written. Blocks on the file.
  void close();
  /// Closes the list, makes its file FILE.1 and begins another one. Blocks on the files.
  void turn_over();
  /// All but a part of `most` is written, which is for what is to be ended before turn_over().
  bool nearly_full() const noexcept { return size_ >= most_ - most_ / spare_part; }
  /// Why it cannot be written any more.
  error_code error() const noexcept { return error_; }

 private:
  /// 64 MiB of the usual size: some 4000 processes with a stretch on each of eight GPUs.
  static constexpr std::uint64_t spare_part = 16;

  trace_file(std::string path, std::uint64_t most) : path_(std::move(path)), most_(most) {}

  result<void> begin();

  std::string path_;
  unique_fd fd_;
  std::uint64_t most_;
  std::uint64_t size_ = 0;
  std::string waiting_;
  bool any_ = false;
  bool full_ = false;
  bool closed_ = false;
  error_code error_;
};

}  // namespace sluice::observe
