#pragma once
/// \file
/// A file of trace events in Chrome's JSON form, which ui.perfetto.dev opens.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "sluice/result.hpp"

namespace sluice::observe {

/// A list of events that may end anywhere between two of them: the form needs no closing bracket,
/// so the file of a program that was killed is as good as another.
///
/// Threading: one thread. Memory: what was added since the last flush(), or 64 KiB.
class trace_file {
 public:
  static constexpr std::uint64_t usual_most = std::uint64_t{1} << 30U;

  /// Makes the file anew. \return the system's error.
  [[nodiscard]] static result<std::unique_ptr<trace_file>> create(const std::string& path,
                                                                  std::uint64_t most = usual_most);
  ~trace_file();
  trace_file(const trace_file&) = delete;
  trace_file& operator=(const trace_file&) = delete;

  /// \param event one JSON object. Nothing once it is full or cannot be written.
  void add(std::string_view event);
  /// Blocks on the file.
  void flush();
  /// Of the list; nothing more is written. Blocks on the file.
  void close();
  /// It has reached `most` bytes and is closed.
  bool full() const noexcept { return full_; }
  /// Why it cannot be written any more.
  error_code error() const noexcept { return error_; }

 private:
  trace_file(int fd, std::uint64_t most) : fd_(fd), most_(most) {}

  int fd_;
  std::uint64_t most_;
  std::uint64_t size_ = 0;
  std::string waiting_;
  bool any_ = false;
  bool full_ = false;
  bool closed_ = false;
  error_code error_;
};

}  // namespace sluice::observe
