#pragma once
/// \file
/// A terminal that shows pages instead of lines, and hears keys.

#include <termios.h>

#include <chrono>
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace sluice::cli {

/// While it lives, standard output shows its pages and standard input gives keys at once. Whatever
/// ends the program but SIGKILL, the terminal is as before: signals that end it, or stop it
/// (Ctrl-Z), are seen to here. One at a time.
///
/// Threading: one thread.
class terminal {
 public:
  /// Standard input and output are terminals.
  static bool is_one();

  terminal();
  ~terminal();
  terminal(const terminal&) = delete;
  terminal& operator=(const terminal&) = delete;

  struct size {
    std::size_t columns = 80;
    std::size_t rows = 24;
  };
  static size now();

  /// The page in one write, without a blank in between; what does not fit is cut.
  void show(const std::vector<std::string>& lines);

  enum class heard : std::uint8_t {
    key,      ///< last_key(); what a function key or an arrow sends is none.
    nothing,  ///< The time is over.
    resized,  ///< Or it was away: show a page again.
    end,      ///< A signal asked for the end, or nobody types there any more.
  };
  heard wait(std::chrono::milliseconds patience);
  char last_key() const noexcept { return key_; }

 private:
  void enter();
  void leave();
  void stop();
  bool read();
  bool next_key();

  termios before_{};
  int signals_ = -1;
  std::string ahead_;  // read, and not told yet
  char key_ = 0;
};

}  // namespace sluice::cli
