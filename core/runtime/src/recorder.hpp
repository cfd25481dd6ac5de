#pragma once
/// \file
/// Takes a recording to a file, with a thread of its own.

#include "front_desk.hpp"

#include <atomic>
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <thread>

#include <boost/lockfree/spsc_queue.hpp>

#include "sluice/recording.hpp"
#include "sluice/result.hpp"

namespace sluice::core {

/// Lines go through a bounded lock-free queue of bytes. The writer takes them out some milliseconds
/// after the first one, all at once, so a busy scheduler makes no system call for them.
///
/// Threading: put() and pass_on() from one thread. Lifetime: destruction waits until everything is
///            written, a second at most.
class recorder final : public record_sink {
 public:
  /// \return the system's error where the file cannot be written.
  static result<std::unique_ptr<recorder>> create(const record_options& with);
  ~recorder();
  recorder(const recorder&) = delete;
  recorder& operator=(const recorder&) = delete;

  bool put(std::string_view line) noexcept override;
  void pass_on() noexcept override { wake_.ring(); }

 private:
  recorder(int file, const record_options& with);
  void run() noexcept;
  void write_what_is_there() noexcept;
  bool write(const char* from, std::size_t size) noexcept;

  const int file_;
  const std::string path_;
  boost::lockfree::spsc_queue<char> lines_;
  alignas(64) std::uint64_t sleeping_ = 0;
  wake_word wake_{sleeping_};  ///< The writer is who sleeps.
  std::atomic<bool> stopping_{false};
  std::atomic<bool> broken_{false};  ///< The file takes nothing more.
  std::thread writer_;
};

}  // namespace sluice::core
