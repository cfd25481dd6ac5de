#include "sluice/nvidia/driver_text.hpp"

#include <dirent.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <memory>

#include "sluice/os/proc.hpp"

namespace sluice::nvidia {

namespace {

constexpr std::string_view blanks = " \t";

std::string_view trimmed(std::string_view text) {
  const auto begin = text.find_first_not_of(blanks);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(blanks) - begin + 1);
}

/// The next word that consists of numbers with dots between them, and has a dot.
std::string_view version_in(std::string_view line) {
  while (!line.empty()) {
    line.remove_prefix(std::min(line.find_first_not_of(blanks), line.size()));
    const auto word = line.substr(0, line.find_first_of(blanks));
    line.remove_prefix(word.size());
    if (word.find('.') != std::string_view::npos && word.front() != '.' && word.back() != '.' &&
        word.find_first_not_of("0123456789.") == std::string_view::npos)
      return word;
  }
  return {};
}

/// Takes a hexadecimal number that `after` follows, or the end of the text if that is '\0'.
std::optional<std::uint32_t> take_hex(std::string_view& text, char after, std::uint32_t most) {
  std::uint32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
  if (error != std::errc{} || value > most) return {};
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  if (after == '\0') return text.empty() ? std::optional{value} : std::nullopt;
  if (!text.starts_with(after)) return {};
  text.remove_prefix(1);
  return value;
}

/// The value of "Key: <blanks>value".
std::string_view value_of(std::string_view text, std::string_view key) {
  while (!text.empty()) {
    const auto line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    if (line.starts_with(key) && line.substr(key.size()).starts_with(':'))
      return trimmed(line.substr(key.size() + 1));
  }
  return {};
}

}  // namespace

std::optional<driver_release> parse_version(std::string_view text) {
  const auto line = text.substr(0, text.find('\n'));
  if (!line.starts_with("NVRM version:")) return {};
  driver_release found;
  found.version = version_in(line);
  found.open_modules = line.find("Open Kernel Module") != std::string_view::npos;
  const auto branch = std::string_view{found.version}.substr(0, found.version.find('.'));
  const auto number = parse_number<unsigned>(branch);
  if (!number) return {};
  found.branch = *number;
  return found;
}

result<driver_release> read_release(const roots& where) {
  std::array<char, 1024> buffer;
  errno = 0;
  const auto text = read_small_file((where.proc + "/version").c_str(), buffer);
  if (!text) return errno != 0 ? last_system_error() : error_code{errc::not_supported};
  const auto found = parse_version(*text);
  if (!found) return errc::not_supported;
  return *found;
}

std::optional<gpu_id> gpu_at(std::string_view pci) {
  const auto domain = take_hex(pci, ':', 0xffff);
  const auto bus = domain ? take_hex(pci, ':', 0xff) : std::nullopt;
  const auto device = bus ? take_hex(pci, '.', 0x1f) : std::nullopt;
  if (!device || !take_hex(pci, '\0', 7)) return {};
  const gpu_id id{*domain << 16U | *bus << 8U | *device};
  if (id == gpu_id::none) return {};
  return id;
}

std::optional<gpu_information> parse_gpu(std::string_view pci, std::string_view text) {
  const auto id = gpu_at(pci);
  if (!id) return {};
  gpu_information found;
  found.id = *id;
  found.pci = pci;
  found.model = value_of(text, "Model");
  found.uuid = value_of(text, "GPU UUID");
  found.minor = parse_number<unsigned>(value_of(text, "Device Minor")).value_or(0);
  return found;
}

result<std::vector<gpu_information>> read_gpus(const roots& where) {
  const std::string all = where.proc + "/gpus";
  const std::unique_ptr<DIR, int (*)(DIR*)> directory{::opendir(all.c_str()), ::closedir};
  if (!directory) return last_system_error();
  std::vector<gpu_information> found;
  // readdir() of a stream of one's own is safe beside other threads.
  while (const dirent* const entry = ::readdir(directory.get())) {  // NOLINT(concurrency-mt-unsafe)
    std::array<char, 4096> buffer;
    const std::string name = entry->d_name;
    if (!gpu_at(name)) continue;
    const auto text = read_small_file((all + "/" + name + "/information").c_str(), buffer);
    if (auto one = parse_gpu(name, text.value_or(""))) found.push_back(std::move(*one));
  }
  std::ranges::sort(found, {}, &gpu_information::minor);
  return found;
}

}  // namespace sluice::nvidia
