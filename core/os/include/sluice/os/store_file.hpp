#pragma once
/// \file
/// A small text file that several programs change and a scheduler follows: read only when it can be
/// trusted, replaced as a whole, one writer at a time.

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "sluice/os/unique_fd.hpp"
#include "sluice/result.hpp"

namespace sluice {

/// Errors:    `message` gets one sentence, which calls the file `what`.
/// Threading: any thread; each call is on its own.
class store_file {
 public:
  /// More is refused when reading.
  static constexpr std::size_t most_bytes = std::size_t{1} << 20U;

  /// Who may own the file and its directory, beside root and this process's user.
  enum class owners {
    us,
    /// Where this process is root: whoever owns the directory, who keeps what we write. For what
    /// no other program's rights hang on.
    of_directory,
  };

  /// \param what a name for sentences, such as "role store".
  store_file(std::string path, std::string what, owners trusted = owners::us)
      : path_(std::move(path)), what_(std::move(what)), trusted_(trusted) {}

  const std::string& path() const noexcept { return path_; }

  /// Calls `take` with each line after the first, except blank lines and comments. Without a file,
  /// there are no lines.
  /// \param head what the first line must be.
  /// \param take returns what is wrong with the line; empty: nothing.
  /// \return errc::bad_config for an invalid line, and for a file that is not trusted: not a
  ///         regular file, owned by another, or one that others may write or replace.
  [[nodiscard]] result<void> read(std::string_view head,
                                  const std::function<std::string(std::string_view line)>& take,
                                  std::string& message) const;
  /// Makes the directory when it is missing. The lock ends with the descriptor.
  [[nodiscard]] result<unique_fd> lock(std::string& message) const;
  /// Durable when it returns. Under the lock.
  [[nodiscard]] result<void> replace(const std::string& text, std::string& message) const;

 private:
  /// \return the text; nothing when there is no file.
  result<std::optional<std::string>> contents(std::string& message) const;
  void give_away(int fd) const;

  std::string path_;
  std::string what_;
  owners trusted_;
};

/// Takes the first word off a line, with the blank after it.
std::string_view take_word(std::string_view& line) noexcept;

/// Sets `message` to `what` and the system's last error. \return that error.
error_code with_system_error(std::string& message, const std::string& what);

}  // namespace sluice
