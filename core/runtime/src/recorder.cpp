#include "recorder.hpp"

#include "log.hpp"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>

#include "sluice/os/kept_file.hpp"
#include "sluice/os/quiet_thread.hpp"
#include "sluice/time.hpp"

namespace sluice::core {
namespace {

using namespace std::chrono_literals;

/// How long lines wait for company.
constexpr int linger_ms = 10;
/// How long the end waits for a file that takes nothing.
constexpr duration stop_patience = 1s;

}  // namespace

result<std::unique_ptr<recorder>> recorder::create(const record_options& with) {
  if (with.buffer < (std::size_t{4} << 10) || with.buffer > (std::size_t{1} << 30)) {
    return errc::bad_config;
  }
  keep_earlier_file(with.file);
  // Not to wait for the reader of a pipe, neither here nor later. Nor through a link, which
  // somebody else may have put there for a file that is ours to empty.
  const int file = open(with.file.c_str(),
                        O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW, 0644);
  if (file < 0) return last_system_error();
  auto made = std::unique_ptr<recorder>(new recorder(file, with));
  if (made->wake_.fd() < 0) return error_code{EMFILE, boost::system::system_category()};
  const auto started = start_quiet_thread(made->writer_, [self = made.get()] { self->run(); });
  if (!started) return started.error();
  return made;
}

recorder::recorder(int file, const record_options& with)
    : file_(file), path_(with.file), lines_(with.buffer) {}

recorder::~recorder() {
  stopping_.store(true, std::memory_order_release);
  wake_.ring_always();
  if (writer_.joinable()) writer_.join();
  close(file_);
}

bool recorder::put(std::string_view line) noexcept {
  if (broken_.load(std::memory_order_relaxed) || lines_.write_available() < line.size()) {
    return false;
  }
  lines_.push(line.data(), line.size());
  return true;
}

void recorder::run() noexcept {
  pollfd woken{wake_.fd(), POLLIN, 0};
  for (;;) {
    wake_.sleep();
    if (lines_.read_available() == 0 && !stopping_.load(std::memory_order_acquire)) {
      (void)poll(&woken, 1, -1);
    }
    wake_.awake();
    wake_.clear_eventfd();
    if (!stopping_.load(std::memory_order_acquire)) (void)poll(&woken, 1, linger_ms);
    // Read before the lines: what was put before the end is written.
    const bool last = stopping_.load(std::memory_order_acquire);
    write_what_is_there();
    if (last) return;
  }
}

void recorder::write_what_is_there() noexcept {
  std::array<char, 65536> some;
  while (const std::size_t size = lines_.pop(some.data(), some.size())) {
    if (broken_.load(std::memory_order_relaxed) || write(some.data(), size)) continue;
    broken_.store(true, std::memory_order_relaxed);
    const error_code why = last_system_error();
    log_line(log_level::error, log_part::scheduler, {{"file", path_}},
             "recording {}: write failed: {}; the recording ends here, the scheduler continues",
             path_, why.message());
  }
}

bool recorder::write(const char* from, std::size_t size) noexcept {
  while (size != 0) {
    const ssize_t written = ::write(file_, from, size);
    if (written >= 0) {
      from += written;
      size -= static_cast<std::size_t>(written);
      continue;
    }
    if (errno == EINTR) continue;
    if (errno != EAGAIN) return false;
    // A pipe that nobody reads. Cleared first: the end says that it comes before it rings.
    wake_.clear_eventfd();
    const bool stopping = stopping_.load(std::memory_order_acquire);
    if (stopping) {
      give_up_ = std::min(give_up_, clock::now() + stop_patience);
      if (clock::now() >= give_up_) {
        errno = EAGAIN;
        return false;
      }
    }
    std::array<pollfd, 2> either{pollfd{file_, POLLOUT, 0}, pollfd{wake_.fd(), POLLIN, 0}};
    (void)poll(either.data(), stopping ? 1 : 2, stopping ? linger_ms : -1);
  }
  return true;
}

}  // namespace sluice::core
