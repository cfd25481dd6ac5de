#include "sluice/kfd/sysfs_text.hpp"

#include <charconv>
#include <limits>

namespace sluice::kfd {

namespace {

std::optional<std::uint32_t> narrow(std::optional<std::uint64_t> number) noexcept {
  if (!number || *number > std::numeric_limits<std::uint32_t>::max()) return {};
  return static_cast<std::uint32_t>(*number);
}

}  // namespace

std::optional<std::uint64_t> parse_sysfs_number(std::string_view text) noexcept {
  if (text.ends_with('\n')) text.remove_suffix(1);
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) return {};
  return value;
}

std::optional<proc_entry> parse_proc_entry(std::string_view name) noexcept {
  if (name == "pasid") return proc_entry{proc_entry_kind::pasid};
  if (name == "queues") return proc_entry{proc_entry_kind::queues};
  const std::size_t end = name.find('_');
  if (end == std::string_view::npos || name.ends_with('\n')) return {};
  const auto number = narrow(parse_sysfs_number(name.substr(end + 1)));
  if (!number) return {};
  const std::string_view what = name.substr(0, end);
  if (what == "vram") return proc_entry{proc_entry_kind::vram, gpu_id{*number}};
  if (what == "sdma") return proc_entry{proc_entry_kind::sdma, gpu_id{*number}};
  if (what == "stats") return proc_entry{proc_entry_kind::stats, gpu_id{*number}};
  if (what == "counters") return proc_entry{proc_entry_kind::counters, gpu_id{*number}};
  if (what == "context") return proc_entry{proc_entry_kind::context, gpu_id::none, *number};
  return {};
}

std::optional<sysfs_queue> parse_sysfs_queue(std::string_view size, std::string_view type,
                                             std::string_view gpuid) noexcept {
  const auto bytes = parse_sysfs_number(size);
  const auto kind = narrow(parse_sysfs_number(type));
  const auto gpu = narrow(parse_sysfs_number(gpuid));
  if (!bytes || !kind || !gpu) return {};
  return sysfs_queue{*bytes, *kind, gpu_id{*gpu}};
}

}  // namespace sluice::kfd
