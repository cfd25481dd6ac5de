#include "terminal.hpp"

#include <poll.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <string_view>

namespace sluice::cli {

namespace {

// Another page than the shell's, without a cursor; and back.
constexpr std::string_view enter_words = "\x1b[?1049h\x1b[?25l\x1b[2J";
constexpr std::string_view leave_words = "\x1b[?25h\x1b[?1049l";

constexpr std::array crashes{SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};

termios to_restore{};

void put(std::string_view text) noexcept {
  while (!text.empty()) {
    const ssize_t done = ::write(STDOUT_FILENO, text.data(), text.size());
    if (done < 0 && errno == EINTR) continue;
    if (done < 0 && errno == EAGAIN) {
      pollfd room{STDOUT_FILENO, POLLOUT, 0};
      (void)::poll(&room, 1, 1000);
      continue;
    }
    if (done <= 0) return;
    text.remove_prefix(static_cast<std::size_t>(done));
  }
}

/// Only what a signal handler may call.
void restore_and_die(int signal) {
  (void)!::write(STDOUT_FILENO, leave_words.data(), leave_words.size());
  (void)::tcsetattr(STDIN_FILENO, TCSANOW, &to_restore);
  std::signal(signal, SIG_DFL);
  (void)::raise(signal);
}

constexpr char escape_key = '\x1b';
/// Milliseconds. One key's bytes come at once; who types Esc takes longer for the next.
constexpr int sequence_patience = 50;

/// Of what one key sent, which begins with an escape: an arrow "ESC [ A", F1 "ESC O P" (of the
/// Linux console "ESC [ [ A"), F5 "ESC [ 15 ~", Alt-x "ESC x". \return 0: more is to come.
std::size_t sequence_length(std::string_view bytes) {
  if (bytes.size() < 2) return 0;
  const auto at = [&](std::size_t index) -> std::size_t {
    return index < bytes.size() ? index + 1 : 0;
  };
  switch (bytes[1]) {
    case escape_key: return 1;
    case 'O': return at(2);
    case '[': break;
    default: return 2;
  }
  if (bytes.size() > 2 && bytes[2] == '[') return at(3);
  for (std::size_t index = 2; index < bytes.size(); ++index)
    if (bytes[index] >= 0x40 && bytes[index] < 0x7f) return index + 1;
  return 0;
}

sigset_t awaited() {
  sigset_t set;
  sigemptyset(&set);
  for (const int each : {SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGTSTP, SIGWINCH, SIGPIPE})
    sigaddset(&set, each);
  return set;
}

}  // namespace

bool terminal::is_one() { return ::isatty(STDIN_FILENO) == 1 && ::isatty(STDOUT_FILENO) == 1; }

terminal::terminal() {
  const sigset_t set = awaited();
  ::sigprocmask(SIG_BLOCK, &set, nullptr);
  signals_ = ::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
  (void)::tcgetattr(STDIN_FILENO, &before_);
  to_restore = before_;
  for (const int each : crashes) std::signal(each, restore_and_die);
  enter();
}

terminal::~terminal() {
  leave();
  for (const int each : crashes) std::signal(each, SIG_DFL);
  ::close(signals_);
  const sigset_t set = awaited();
  ::sigprocmask(SIG_UNBLOCK, &set, nullptr);
}

void terminal::enter() {
  termios raw = before_;
  raw.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
  raw.c_cc[VMIN] = 0;
  raw.c_cc[VTIME] = 0;
  (void)::tcsetattr(STDIN_FILENO, TCSANOW, &raw);
  put(enter_words);
}

void terminal::leave() {
  put(leave_words);
  (void)::tcsetattr(STDIN_FILENO, TCSANOW, &before_);
}

void terminal::stop() {
  leave();
  // Its own signal is blocked; this one nobody can block. Until somebody says fg.
  (void)::raise(SIGSTOP);
  enter();
}

terminal::size terminal::now() {
  winsize seen{};
  size made;
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &seen) == 0 && seen.ws_col != 0 && seen.ws_row != 0)
    made = {seen.ws_col, seen.ws_row};
  return made;
}

void terminal::show(const std::vector<std::string>& lines) {
  const size room = now();
  std::string page = "\x1b[H";
  for (std::size_t row = 0; row < room.rows; ++row) {
    if (row < lines.size()) page += lines[row].substr(0, room.columns);
    page += "\x1b[K";
    if (row + 1 < room.rows) page += "\r\n";
  }
  put(page);
}

terminal::heard terminal::wait(std::chrono::milliseconds patience) {
  if (next_key()) return heard::key;
  std::array<pollfd, 2> any{{{.fd = signals_, .events = POLLIN, .revents = 0},
                             {.fd = STDIN_FILENO, .events = POLLIN, .revents = 0}}};
  const int count =
      ::poll(any.data(), any.size(), static_cast<int>(std::max<std::int64_t>(patience.count(), 0)));
  if (count < 0) return errno == EINTR ? heard::nothing : heard::end;
  if (count == 0) return heard::nothing;
  if (any[0].revents != 0) {
    signalfd_siginfo info{};
    if (::read(signals_, &info, sizeof info) != sizeof info) return heard::nothing;
    switch (info.ssi_signo) {
      case SIGTSTP: stop(); return heard::resized;
      case SIGWINCH: return heard::resized;
      default: return heard::end;
    }
  }
  // Readable, and nothing to read: it is gone.
  if (!read()) return heard::end;
  return next_key() ? heard::key : heard::nothing;
}

/// \return false: nobody types there any more.
bool terminal::read() {
  std::array<char, 256> room;
  const ssize_t got = ::read(STDIN_FILENO, room.data(), room.size());
  if (got > 0) ahead_.append(room.data(), static_cast<std::size_t>(got));
  return got > 0 || (got < 0 && errno == EINTR);
}

bool terminal::next_key() {
  while (!ahead_.empty()) {
    if (ahead_.front() != escape_key) {
      key_ = ahead_.front();
      ahead_.erase(0, 1);
      return true;
    }
    if (const std::size_t length = sequence_length(ahead_); length != 0) {
      ahead_.erase(0, length);
      continue;
    }
    pollfd more{.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
    if (::poll(&more, 1, sequence_patience) == 1 && read()) continue;
    const bool alone = ahead_.size() == 1;
    ahead_.clear();
    if (!alone) continue;
    key_ = escape_key;
    return true;
  }
  return false;
}

}  // namespace sluice::cli
