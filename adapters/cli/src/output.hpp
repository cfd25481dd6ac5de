#pragma once
/// \file
/// How the command speaks: standard output for what was asked, standard error for what went wrong.

#include <sys/types.h>

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>

#include <boost/json/fwd.hpp>

#include "sluice/ids.hpp"
#include "sluice/kfd/node_view.hpp"

namespace sluice::cli {

/// "sluice: <sentence>" on standard error.
void complain(std::string_view sentence);
/// \return false, after a complaint, when standard output does not take it.
bool print(std::string_view text);
/// One line of JSON.
bool print(const boost::json::value& value);

/// Writes a file anew, from the pieces that `produce` hands to what it is given.
/// \return false, after a complaint.
bool write_file(const std::string& path,
                const std::function<void(const std::function<void(std::string_view)>&)>& produce);

/// Columns of the terminal that standard output is, or COLUMNS; 0: no terminal, no limit.
std::size_t terminal_width();

/// The text with everything that a terminal would act on replaced by '?': a process chooses its
/// name itself.
std::string printable(std::string_view text);

/// The name of a process, printable; "?": it is gone.
std::string command_of(pid_t pid);

/// "17.3G": three digits or four, powers of 1024.
std::string bytes_text(std::uint64_t bytes);

/// The log of schedulers that are not live: warnings alone, as "sluice: WHERE: ...". Once.
void mark_logs(std::string_view where);

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

/// What a filter's word for a GPU means: a PCI address, a unique id (0x and hexadecimal digits), a
/// gpu_id, or else a visible ordinal. \return nullptr when there is no such GPU.
const kfd::gpu_description* find_gpu(const kfd::node_view& node, const std::string& word);

constexpr std::uint32_t number(gpu_id id) noexcept { return static_cast<std::uint32_t>(id); }
constexpr std::uint32_t number(driver_queue_id id) noexcept {
  return static_cast<std::uint32_t>(id);
}

}  // namespace sluice::cli
