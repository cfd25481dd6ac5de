#include "pointer_view.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <limits>

#include "sluice/os/proc.hpp"

namespace sluice::kfd {

namespace {

using namespace std::chrono_literals;

/// Reading cu_occupancy touches the hardware.
constexpr duration occupancy_interval = 5ms;
constexpr int empty_enough = 2;

// amd_queue_t and an AQL packet, as offsets (kfd_facts 4.4 and 12).
constexpr std::uint64_t write_index_offset = 0x38;
constexpr std::uint64_t base_address_offset = 0x08;
constexpr std::uint64_t size_offset = 0x18;
constexpr std::uint64_t packet_size = 64;
constexpr std::uint64_t completion_signal_offset = 56;
constexpr std::uint64_t signal_value_offset = 8;

bool is_known(const online_queue& queue) noexcept {
  const auto is_address = [](std::uint64_t at) { return at != 0 && at % sizeof at == 0; };
  return is_address(queue.at.read) && is_address(queue.at.write);
}

}  // namespace

result<std::unique_ptr<pointer_view>> pointer_view::make(const online_process& what,
                                                         const std::string& sysfs) {
  auto opened = queue_pointers::open(what.who);
  if (!opened) return opened.error();
  std::unique_ptr<pointer_view> made{new pointer_view{std::move(*opened)}};
  std::vector<pointer_addresses> addresses;
  for (const online_queue& each : what.queues) {
    auto at = std::ranges::find(made->places_, each.gpu, &place::gpu);
    if (at == made->places_.end()) {
      at = made->places_.insert(at, place{.gpu = each.gpu});
      const std::string file = sysfs + "/proc/" + std::to_string(what.who.pid) + "/stats_" +
                               std::to_string(static_cast<std::uint32_t>(each.gpu)) +
                               "/cu_occupancy";
      if (::access(file.c_str(), R_OK) == 0) at->occupancy = file;
    }
    if (!is_known(each)) {
      ++at->hidden;
      continue;
    }
    queue& one = made->queues_.emplace_back();
    one.place = static_cast<std::size_t>(at - made->places_.begin());
    one.aql = each.aql;
    addresses.push_back(each.at);
    // Packets can be found where the pointers are those of a queue that says so itself.
    const std::uint64_t base = each.at.write - write_index_offset;
    if (!each.aql || !is_rocr_layout(each.at) ||
        made->pointers_->word_at(base + base_address_offset) != each.ring_base)
      continue;
    one.ring_base = each.ring_base;
    one.packets = made->pointers_->word_at(base + size_offset).value_or(0) &
                  std::numeric_limits<std::uint32_t>::max();
  }
  if (const auto watched = made->pointers_->watch(addresses); !watched) return watched.error();
  return made;
}

auto pointer_view::end_of(queue& which) noexcept -> ending {
  if (which.write == which.ended) return ending::ended;
  if (which.packets == 0) return ending::not_shown;
  if (which.signal_of != which.write) {
    const std::uint64_t slot = (which.write - 1) % which.packets;
    const auto handle =
        pointers_->word_at(which.ring_base + slot * packet_size + completion_signal_offset);
    which.signal = handle && *handle % sizeof(std::uint64_t) == 0 ? *handle : 0;
    which.signal_of = which.write;
  }
  if (which.signal == 0) return ending::not_shown;
  const auto value = pointers_->word_at(which.signal + signal_value_offset);
  if (!value) return ending::not_shown;
  if (static_cast<std::int64_t>(*value) > 0) return ending::runs;
  which.ended = which.write;
  return ending::ended;
}

auto pointer_view::occupancy_of(place& where, time_point now) noexcept -> ending {
  if (where.occupancy.empty()) return ending::not_shown;
  if (now >= where.occupancy_due) {
    where.occupancy_due = now + occupancy_interval;
    std::array<char, 32> text;
    const auto read = read_small_file(where.occupancy.c_str(), text);
    const auto units = read ? parse_number<std::uint32_t>(*read) : std::nullopt;
    where.occupancy_read = units.has_value();
    where.empty_looks = units == 0U ? where.empty_looks + 1 : 0;
  }
  if (!where.occupancy_read) return ending::not_shown;
  return where.empty_looks >= empty_enough ? ending::ended : ending::runs;
}

std::size_t pointer_view::unreadable() noexcept {
  const bool read = pointers_->read().has_value();
  std::size_t count = 0;
  for (const place& each : places_) count += each.hidden;
  for (const pointer_values& each : pointers_->values()) count += !read || !each.known ? 1 : 0;
  return count;
}

bool pointer_view::look(time_point now, std::vector<work>& found) {
  const auto read = pointers_->read();
  if (!read && read.error() == errc::unknown_target) return false;  // The process, or its program.
  for (place& each : places_) {
    each.not_shown = each.hidden != 0;
    found.push_back({.gpu = each.gpu});
  }
  for (std::size_t index = 0; index < queues_.size(); ++index) {
    queue& one = queues_[index];
    const pointer_values& values = pointers_->values()[index];
    place& where = places_[one.place];
    if (!read || !values.known) {
      where.not_shown = true;
      continue;
    }
    // Of what was there at the first look, only what still waits came for certain.
    std::uint64_t came = one.seen ? values.write - one.write : values.pending();
    if (!one.aql && came != 0) came = 1;  // Not packets, and it may begin anew at 0.
    if (came != 0) where.empty_looks = 0;
    work& here = found[one.place];
    here.came += static_cast<std::uint32_t>(
        std::min<std::uint64_t>(came, std::numeric_limits<std::uint32_t>::max() - here.came));
    one.seen = true;
    one.write = values.write;
    if (here.state == online_work::unknown) here.state = online_work::finished;
    if (values.pending() != 0) {
      here.state = online_work::waiting;
      continue;
    }
    switch (end_of(one)) {
      case ending::ended: break;
      case ending::runs:
        if (here.state != online_work::waiting) here.state = online_work::running;
        break;
      case ending::not_shown: where.not_shown = true; break;
    }
  }
  for (std::size_t index = 0; index < places_.size(); ++index) {
    online_work& state = found[index].state;
    if (state != online_work::finished || !places_[index].not_shown) continue;
    switch (occupancy_of(places_[index], now)) {
      case ending::ended: break;
      case ending::runs: state = online_work::running; break;
      case ending::not_shown: state = online_work::consumed; break;
    }
  }
  return true;
}

}  // namespace sluice::kfd
