#include "channel_words.hpp"

#include <algorithm>
#include <bit>
#include <chrono>
#include <span>
#include <utility>

namespace sluice::nvidia {

namespace {

using namespace std::chrono_literals;

// Of a USERD, as offsets in bytes (clc86f.h).
constexpr std::uint64_t userd_bytes = 512;
constexpr std::uint64_t put_offset = 0x40;  ///< Of what is read, the first.
constexpr std::uint64_t gp_get_offset = 0x88;
constexpr std::size_t userd_words = 20;  ///< From put_offset to GPPut.
constexpr std::size_t gp_get = 18;
constexpr std::size_t gp_put = 19;
constexpr std::uint32_t largest_index = 0xffff;

constexpr std::size_t record_words = 4;
/// How much of a mapping a look searches: as much as takes about 20 us, also where each read is one
/// over PCIe.
constexpr std::uint64_t piece_of_records = 16 * page_bytes;
constexpr std::uint64_t piece_of_channels = 4 * userd_bytes;
/// Larger mappings are the program's own memory.
constexpr std::uint64_t largest_searched = 16U << 20U;
constexpr std::size_t most_record_pages = 16;
constexpr std::size_t most_records = 2048;
constexpr std::size_t most_userds = 512;
constexpr duration in_use = 2s;
/// Between two searches; it doubles while they are in vain.
constexpr duration shortest_pause = 1s;
constexpr duration longest_pause_of_searches = 8s;
/// Between two searches for the records of a GPU of which none is known. They take milliseconds.
constexpr duration search_of_unknown_gpus = 2s;
/// Channels not in use that a look reads all the same.
constexpr std::size_t in_turn = 1;
constexpr std::size_t in_turn_at_rest = 2;
/// Every which look reads a channel whose work runs: an arrival changes little then.
constexpr std::uint64_t looks_at_busy = 8;
/// Every which look reads a page that has no channel's record.
constexpr std::uint64_t looks_at_others = 16;
/// The GPU's time is the system's, or was when the driver was loaded.
constexpr duration longest_uptime = std::chrono::hours{24 * 1000};

constexpr std::uint8_t enough_hits = 4;
constexpr std::uint32_t most_fetched_ahead = 4;
/// Submissions after which the candidates for a channel's record are listed anew.
constexpr std::uint64_t listed_for = 64;
constexpr std::uint8_t most_misses = 64;
constexpr unsigned most_mismatches = 3;
constexpr duration forgiven_after = 10s;
/// A word may be read later than one that was written after it.
constexpr unsigned most_looks_ahead = 3;

bool is_userd(std::span<const std::uint32_t, userd_words> words) {
  // Words that the hardware does not use: 0x50 to 0x5c, and 0x64 to 0x84.
  for (const auto& [first, last] : {std::pair{4, 8}, {9, 18}})
    for (int each = first; each < last; ++each)
      if (words[static_cast<std::size_t>(each)] != 0) return false;
  return words[0] != 0 && words[2] == 0 && words[gp_put] <= largest_index &&
         words[gp_get] <= largest_index && (words[gp_put] != 0 || words[gp_get] != 0);
}

bool is_record(const std::uint32_t* words) {
  if (words[0] == 0 || words[1] != 0) return false;
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const auto time = std::chrono::nanoseconds{
      static_cast<std::int64_t>(std::uint64_t{words[3]} << 32U | words[2])};
  return time > now - longest_uptime && time < now + 24h;
}

}  // namespace

void channel_words::set_mappings(const std::vector<device_mapping>& now) {
  const auto in_one = [&](std::uint64_t at) {
    return std::ranges::any_of(
        now, [at](const device_mapping& each) { return at >= each.begin && at < each.end; });
  };
  for (const device_mapping& each : now)
    if (std::ranges::find(mappings_, each) == mappings_.end()) search_in(each);
  mappings_ = now;
  pause_ = {};
  std::erase_if(to_search_, [&](const search& each) {
    return std::ranges::find(mappings_, each.in) == mappings_.end();
  });
  std::erase_if(channels_, [&](const channel& each) { return !in_one(each.at); });
  const bool lost =
      std::ranges::any_of(records_, [&](const record& each) { return !in_one(each.at); });
  if (!lost) return;
  // Indices of records change: what belongs to which is found again.
  std::erase_if(pages_, [&](const page& each) { return !in_one(each.at); });
  records_.clear();
  pages_at_.clear();
  for (channel& each : channels_) {
    each.record.reset();
    each.candidates.clear();
    each.listed = false;
  }
  for (page& each : pages_) {
    pages_at_.push_back(each.at);
    each.records.fill(-1);
    for (std::size_t slot = 0; slot < each.records.size(); ++slot) take_record(each, slot, false);
  }
}

void channel_words::take_record(page& of, std::size_t slot, bool is_new) {
  const std::uint32_t* const words = of.words.data() + slot * record_words;
  if (!is_record(words) || records_.size() >= most_records) return;
  of.records[slot] = static_cast<std::int32_t>(records_.size());
  records_.push_back({.at = of.at + slot * record_words * sizeof(std::uint32_t),
                      .mapping = of.mapping,
                      .count = words[0],
                      .moved = is_new ? words[0] : 0});
  // Of a channel that was used for the first time: it may be known by nothing else.
  if (is_new)
    for (channel& each : channels_)
      if (!each.record) each.listed = false;
}

void channel_words::search_records(search& where, const words_reader& read, std::size_t share) {
  const std::uint64_t bytes = std::min(share * piece_of_records, where.in.end - where.next);
  std::vector<std::uint32_t> words(bytes / sizeof(std::uint32_t));
  const std::uint64_t at = where.next;
  where.next += bytes;
  if (!read(at, words)) {
    where.next = where.in.end;
    return;
  }
  for (std::size_t first = 0; first + page_words <= words.size(); first += page_words) {
    const std::uint64_t page_at = at + first * sizeof(std::uint32_t);
    if (pages_.size() >= most_record_pages ||
        std::ranges::find(pages_at_, page_at) != pages_at_.end())
      continue;
    bool any = false;
    for (std::size_t word = 0; word < page_words && !any; word += record_words)
      any = is_record(words.data() + first + word);
    if (!any) continue;
    page& made = pages_.emplace_back();
    pages_at_.push_back(page_at);
    made.at = page_at;
    made.mapping = where.in.begin;
    made.records.fill(-1);
    std::copy_n(words.begin() + static_cast<std::ptrdiff_t>(first), page_words, made.words.begin());
    for (std::size_t slot = 0; slot < made.records.size(); ++slot) take_record(made, slot, false);
    for (channel& each : channels_)
      if (!each.record) each.listed = false;
  }
}

void channel_words::search_channels(search& where, const words_reader& read, std::size_t share) {
  const std::uint64_t end = std::min(where.next + share * piece_of_channels, where.in.end);
  std::array<std::uint32_t, userd_words> words;
  for (; where.next < end; where.next += userd_bytes) {
    if (channels_.size() >= most_userds) break;
    // Most are unused: then these two are zero, and the others need not be read.
    const std::span indices{words.data() + gp_get, 2};
    if (!read(where.next + gp_get_offset, indices) || (indices[0] == 0 && indices[1] == 0) ||
        !read(where.next + put_offset, words))
      continue;
    const auto same = [&](const channel& each) { return each.at == where.next; };
    if (!is_userd(words) || std::ranges::any_of(channels_, same)) continue;
    channel made;
    made.at = where.next;
    made.gpu = where.in.gpu;
    made.put = words[gp_put];
    made.get = words[gp_get];
    entries_ = std::max(entries_, std::bit_ceil(std::max(made.put, made.get) + 1));
    channels_.push_back(std::move(made));
  }
}

void channel_words::search_on(const words_reader& read, std::size_t share) {
  if (to_search_.empty()) return;
  search& where = to_search_.front();
  if (where.in.gpu == gpu_id::none)
    search_records(where, read, share);
  else
    search_channels(where, read, share);
  if (where.next >= where.in.end) to_search_.erase(to_search_.begin());
}

void channel_words::read_records(const words_reader& read) {
  for (record& each : records_) each.moved = 0;
  std::array<std::uint32_t, page_words> now;
  for (page& each : pages_) {
    // One without a channel's record may be anything.
    if (!each.taken && all_matched_ && (look_ + each.at / page_bytes) % looks_at_others != 0)
      continue;
    if (!read(each.at, now) || now == each.words) continue;
    std::swap(each.words, now);
    for (std::size_t slot = 0; slot < each.records.size(); ++slot) {
      if (each.records[slot] < 0) {
        take_record(each, slot, true);
        continue;
      }
      record& known = records_[static_cast<std::size_t>(each.records[slot])];
      const std::uint32_t count = each.words[slot * record_words];
      known.moved = count - known.count;
      known.count = count;
    }
  }
}

void channel_words::read_channel(channel& which, const words_reader& read, time_point now) {
  std::array<std::uint32_t, 2> words;
  if (!read(which.at + gp_get_offset, words)) return;
  const std::uint32_t put = words[1];
  if (put > largest_index || words[0] > largest_index) return;
  entries_ = std::max(entries_, std::bit_ceil(std::max(put, words[0]) + 1));
  which.came = (put - which.put) & (entries_ - 1);
  which.put = put;
  which.get = words[0];
  if (which.came == 0) return;
  which.submitted += which.came;
  which.moved = now;
}

void channel_words::match(channel& which) {
  // What has begun was fetched, a few entries before at most; at rest, all was.
  const auto can_be = [&](const record& one) {
    return ((which.get - one.count) & (entries_ - 1)) <=
           (which.get == which.put ? 0 : most_fetched_ahead);
  };
  if (which.submitted - which.listed_at >= listed_for) which.listed = false;
  if (!which.listed) {
    which.listed = true;
    which.listed_at = which.submitted;
    which.candidates.clear();
    for (std::size_t index = 0; index < records_.size(); ++index)
      if (!records_[index].taken && can_be(records_[index]))
        which.candidates.push_back({.record = index, .at_count = records_[index].count});
  }
  // Of another channel with as many submissions, on another GPU for instance: no record is ahead of
  // its own channel, as it was read before.
  const auto is_ahead = [&](const record& one) {
    return which.get == which.put &&
           ((one.count - which.put - 1) & (entries_ - 1)) < most_fetched_ahead;
  };
  which.may_run = true;
  for (auto& each : which.candidates) {
    const record& one = records_[each.record];
    if (behind(which, one) == 0) which.may_run = false;
    if (is_ahead(one)) each.hits = 0;
    if (!can_be(one)) {
      if (which.get == which.put) ++each.misses;
      continue;
    }
    each.misses = 0;
    if (each.at_count == one.count) continue;
    each.at_count = one.count;
    if (each.hits < enough_hits) ++each.hits;
  }
  std::erase_if(which.candidates, [&](const channel::candidate& each) {
    return each.misses >= most_misses || records_[each.record].taken;
  });
  if (which.candidates.empty()) which.listed = false;
  // Its own record may not be known yet.
  if (std::ranges::any_of(to_search_, std::not_fn(is_of_channels))) return;
  const auto has = [](std::uint8_t hits) {
    return [hits](const channel::candidate& each) { return each.hits >= hits; };
  };
  if (std::ranges::count_if(which.candidates, has(enough_hits)) != 1 ||
      std::ranges::count_if(which.candidates, has(enough_hits / 2)) != 1)
    return;
  // Of two channels that are always used together, the record of only one may be known yet.
  const std::size_t found = std::ranges::find_if(which.candidates, has(enough_hits))->record;
  const auto claims = [&](const channel& other) {
    return &other != &which && !other.record &&
           std::ranges::any_of(other.candidates, [&](const channel::candidate& each) {
             return each.record == found && each.hits >= enough_hits / 2;
           });
  };
  if (std::ranges::any_of(channels_, claims)) return;
  which.record = found;
  records_[*which.record].taken = true;
  for (page& each : pages_)
    each.taken = each.taken || each.at == records_[*which.record].at / page_bytes * page_bytes;
  which.candidates.clear();
  which.may_run = false;
}

void channel_words::forget_record(channel& of) {
  records_[*of.record].taken = false;
  of.record.reset();
  of.listed = false;
  of.ahead = of.looks_ahead = 0;
  of.may_run = true;
}

/// Whether nothing is under way or likely, and nothing has come. What begins on any channel shows
/// in the records; of the channels themselves, which take longer to read than all else, it looks at
/// the one that was used last, and at others in turn.
bool channel_words::rests(const words_reader& read, time_point now) {
  const channel* last = nullptr;
  for (const channel& each : channels_) {
    if (each.waiting != 0 || each.may_run || now - each.moved <= in_use) return false;
    if (last == nullptr || each.moved > last->moved) last = &each;
  }
  if (last == nullptr ||
      std::ranges::any_of(records_, [](const record& each) { return each.moved != 0; }))
    return false;
  const auto same = [&](const channel& each) {
    std::array<std::uint32_t, 2> words;
    return read(each.at + gp_get_offset, words) && words[1] == each.put;
  };
  for (std::size_t count = 0; count < in_turn_at_rest; ++count)
    if (!same(channels_[turn_++ % channels_.size()])) return false;
  return same(*last);
}

bool channel_words::unchanged(const words_reader& read) const {
  std::array<std::uint32_t, page_words> now;
  return std::ranges::all_of(pages_, [&](const page& each) {
    return !each.taken || (read(each.at, now) && now == each.words);
  });
}

// Records before what they are compared with: none is ahead then.
void channel_words::look_at_records(const words_reader& read, std::size_t share) {
  ++look_;
  search_on(read, share);
  read_records(read);
}

void channel_words::look_at_channels(const words_reader& read, time_point now,
                                     const std::function<bool(const channel&)>& is_busy) {
  channels_read_ = 0;
  if (!searches() && now - searched_unknown_gpus_ > search_of_unknown_gpus)
    search_unknown_gpus(now);
  if (!searches() && rests(read, now)) {
    for (channel& each : channels_) {
      each.came = 0;
      each.begun = false;
    }
    return;
  }
  bool all = true;  // Channels are read: none was in use lately.
  for (const channel& each : channels_) all = all && now - each.moved > in_use;
  // With several channels, their reads take longer than all else: what waits is told first.
  const bool quiet = std::ranges::all_of(
      channels_, [](const channel& each) { return each.came == 0 && each.waiting == 0; });
  bool waits = false;
  bool unknown_moved = false;
  for (const record& each : records_)
    unknown_moved = unknown_moved || (each.moved != 0 && !each.taken);
  std::size_t others = in_turn;
  for (std::size_t count = 0; count < channels_.size(); ++count) {
    channel& each = channels_[(turn_ + count) % channels_.size()];
    each.came = 0;
    each.begun = false;
    const bool moved = each.record && records_[*each.record].moved != 0;
    if (!moved && ((quiet && waits) || (look_ % looks_at_busy != 0 && is_busy(each)))) continue;
    if (!all && !moved && now - each.moved > in_use) {
      if (others == 0) continue;
      --others;
    }
    const std::uint32_t before = each.waiting;
    read_channel(each, read, now);
    ++channels_read_;
    const bool matched = each.record.has_value();
    if (!matched) match(each);
    if (!each.record) {
      each.waiting = (each.put - each.get) & (entries_ - 1);
      continue;
    }
    const record& own = records_[*each.record];
    each.begun = own.moved != 0;
    each.waiting = behind(each, own);
    waits = waits || each.waiting != 0;
    if (!matched) continue;
    const std::uint32_t known = before + each.came;
    each.ahead += own.moved;
    if (each.ahead <= known) {
      each.ahead = 0;
      each.looks_ahead = 0;
      continue;
    }
    each.ahead -= known;
    each.waiting = 0;
    if (++each.looks_ahead < most_looks_ahead) continue;
    // It counts what was not submitted: it is another's, which may have this one's.
    for (channel& other : channels_)
      if (other.record && (&other == &each || behind(each, records_[*other.record]) == 0))
        forget_record(other);
    if (now - std::exchange(mismatched_, now) > forgiven_after) mismatches_ = 0;
    broken_ = broken_ || ++mismatches_ >= most_mismatches;
  }
  if (!channels_.empty()) turn_ = (turn_ + in_turn) % channels_.size();
  all_matched_ = std::ranges::all_of(channels_, [](const channel& each) {
    return each.record.has_value() || each.submitted == 0;
  });
  // A channel that is not known yet, or is used for the first time.
  const bool any =
      std::ranges::any_of(channels_, [](const channel& each) { return each.record.has_value(); });
  if (!searches() && (unknown_moved || !any) && now - searched_ > pause_) search_again(now);
}

void channel_words::search_again(time_point now) {
  searched_ = now;
  pause_ = std::clamp(2 * pause_, shortest_pause, longest_pause_of_searches);
  for (const device_mapping& each : mappings_) search_in(each);
}

/// No record that is known moves when a GPU is used for the first time, if its context had not been
/// used when it was searched.
void channel_words::search_unknown_gpus(time_point now) {
  searched_unknown_gpus_ = now;
  const bool any = std::ranges::any_of(mappings_, [this](const device_mapping& each) {
    return each.gpu != gpu_id::none && std::ranges::none_of(channels_, [&](const channel& of) {
             return of.gpu == each.gpu && of.record.has_value();
           });
  });
  if (!any) return;
  for (const device_mapping& each : mappings_)
    if (each.gpu == gpu_id::none) search_in(each);
}

/// Records first, which takes less time: a channel must not be taken for another record's.
void channel_words::search_in(const device_mapping& which) {
  if (which.end - which.begin > largest_searched) return;
  const auto where = which.gpu == gpu_id::none ? std::ranges::find_if(to_search_, is_of_channels)
                                               : to_search_.end();
  to_search_.insert(where, {which, which.begin});
}

}  // namespace sluice::nvidia
