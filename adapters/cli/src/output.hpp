#pragma once
/// \file
/// How the command speaks: standard output for what was asked, standard error for what went wrong.

#include <sys/types.h>

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <boost/json/fwd.hpp>

#include "sluice/ids.hpp"
#include "sluice/node_view.hpp"

namespace sluice::cli {

/// "sluice: <sentence>" on standard error.
void complain(std::string_view sentence);
/// \return false, after a complaint, when standard output does not take it.
bool print(std::string_view text);
/// One line of JSON.
bool print(const boost::json::value& value);

/// A file that was asked for, or not. Whether it can be written is tried at once, for that shall be
/// known before hours of work, not after them; what it holds stays until all of the new is there.
class output_file {
 public:
  /// \param path empty: none was asked for.
  explicit output_file(std::string path);
  /// \return false, after a complaint, when it cannot be opened.
  bool ready() const;
  /// Writes, and closes, what `produce` hands in pieces to what it is given; nothing where no file
  /// was asked for. Once.
  /// \return false, after a complaint.
  bool write(const std::function<void(const std::function<void(std::string_view)>&)>& produce);
  /// Has the file hold this meanwhile, and be on the disk with it, before what may hang the
  /// machine; any number of times before write(). Does nothing to a pipe or a terminal. \return
  /// false, after a complaint.
  bool keep(std::string_view text);

 private:
  bool put(const std::function<void(const std::function<void(std::string_view)>&)>& produce,
           bool onto_disk);

  using handle = std::unique_ptr<std::FILE, int (*)(std::FILE*)>;
  static handle open(const std::string& path, const char* how);

  std::string path_;
  handle file_ = open({}, "");  ///< Of a pipe, a terminal: what cannot be replaced.
  int error_ = 0;
};

/// What is wrong with the files that options name: standard output's "-", for that has something
/// else on it, or one file for two. \return one sentence, or nothing.
std::string problem_with_files(
    const std::vector<std::pair<std::string_view, std::string>>& option_and_path);

/// Columns of the terminal that standard output is, or COLUMNS; 0: no terminal, no limit.
std::size_t terminal_width();

/// The text with everything that a terminal would act on replaced by '?': a process chooses its
/// name itself.
std::string printable(std::string_view text);

/// The name of a process, printable; "?": it is gone.
std::string command_of(pid_t pid);

/// "17.3G": three digits or four, powers of 1024.
std::string bytes_text(std::uint64_t bytes);

/// While it lives, the log of schedulers that are not live: warnings alone, as "sluice: WHERE
/// (WHICH): ...". What policies say every few seconds of hours that pass in one second is said
/// three times, whatever numbers are in it; at the end it is said how much was left out. One at a
/// time.
class marked_logs {
 public:
  /// \param which of several runs the logging thread is at; empty: it need not be said.
  marked_logs(std::string_view where, std::string_view (*which)());
  ~marked_logs();
  marked_logs(const marked_logs&) = delete;
  marked_logs& operator=(const marked_logs&) = delete;
};

/// The system's word for an errno.
std::string error_text(int error);

/// The whole text as one number. \return nothing when it is anything else.
template <class Number>
std::optional<Number> whole_number(std::string_view text, int base = 10) {
  Number value{};
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  if (error != std::errc{} || rest != text.data() + text.size()) return {};
  return value;
}

/// What a filter's word for a GPU means: a PCI address or another text that its driver shows of it
/// alone, such as a unique id; a gpu_id, or else a visible ordinal. \return nullptr when there is
/// no such GPU.
const gpu_description* find_gpu(const node_view& node, const std::string& word);

constexpr std::uint32_t number(gpu_id id) noexcept { return static_cast<std::uint32_t>(id); }
constexpr std::uint32_t number(driver_queue_id id) noexcept {
  return static_cast<std::uint32_t>(id);
}

}  // namespace sluice::cli
