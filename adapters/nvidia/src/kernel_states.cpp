#include "kernel_states.hpp"

#include <algorithm>
#include <span>
#include <utility>

namespace sluice::nvidia {

namespace {

/// Words that a search reads in one look: as much as takes about 20 us.
constexpr std::size_t piece_words = 16 * page_words;
/// Pages with words, and those beside them. A context has one or two.
constexpr std::size_t most_pages = 48;
/// Kernels that one word can have followed between two looks.
constexpr std::uint32_t most_kernels = 4096;
/// Changes after which a word is what it looks like. (A counter looks like one for three.)
constexpr std::uint8_t proof = 4;
constexpr std::uint8_t not_one = 0xff;

enum state : std::uint32_t { unused = 0, running = 1, ended = 2, state_mask = 3, count_shift = 2 };

/// Whether a state word can have become another one.
bool can_follow(std::uint32_t before, std::uint32_t now) {
  const auto is = now & state_mask;
  if (is != running && is != ended) return false;
  // Of a word that is used for the first time.
  if (before == 0) return now >> count_shift <= most_kernels;
  const auto was = before & state_mask;
  if (was != running && was != ended) return false;
  // It counts to 2^30.
  const std::uint32_t more =
      ((now & ~std::uint32_t{state_mask}) - (before & ~std::uint32_t{state_mask})) >> count_shift;
  if (more == 0) return was == running && is == ended;
  return more <= most_kernels;
}

}  // namespace

void kernel_states::add(std::uint64_t at) {
  const auto known = [&](std::uint64_t address) {
    return std::ranges::find(pages_, address, &page::at) != pages_.end();
  };
  for (const std::uint64_t each : {at - page_bytes, at, at + page_bytes}) {
    if (each < in_.begin || each >= in_.end || known(each) || pages_.size() >= most_pages ||
        std::ranges::find(others_, each) != others_.end())
      continue;
    page& made = pages_.emplace_back();
    found_ = found_ || each == at;
    made.at = each;
    const std::size_t first = (each - in_.begin) / sizeof(std::uint32_t);
    std::copy_n(before_.begin() + static_cast<std::ptrdiff_t>(first), page_words,
                made.words.begin());
  }
}

void kernel_states::leave_out(std::uint64_t page_at) {
  if (std::ranges::find(others_, page_at) != others_.end()) return;
  others_.push_back(page_at);
  std::erase_if(pages_, [&](const page& each) {
    if (each.at != page_at) return false;
    // Its words proved nothing.
    proven_ -= static_cast<unsigned>(std::ranges::count(each.behaved, proof));
    return true;
  });
}

bool kernel_states::search_on(const words_reader& read, std::size_t share) {
  const std::size_t all = (in_.end - in_.begin) / sizeof(std::uint32_t);
  if (next_ == none) {
    next_ = 0;
    wanted_ = false;
    found_ = false;
  }
  const bool first = before_.size() < all;
  if (first) before_.reserve(all);
  const std::size_t count = std::min(share * piece_words, all - next_);
  std::vector<std::uint32_t> now(count);
  if (!read(in_.begin + next_ * sizeof(std::uint32_t), now)) return false;
  if (first) {
    before_.insert(before_.end(), now.begin(), now.end());
  } else {
    for (std::size_t from = 0; from < count; from += page_words) {
      const auto old = before_.begin() + static_cast<std::ptrdiff_t>(next_ + from);
      const auto fresh = now.begin() + static_cast<std::ptrdiff_t>(from);
      const auto differs = [&](std::size_t word) {
        return old[static_cast<std::ptrdiff_t>(word)] != fresh[static_cast<std::ptrdiff_t>(word)] &&
               can_follow(old[static_cast<std::ptrdiff_t>(word)],
                          fresh[static_cast<std::ptrdiff_t>(word)]);
      };
      bool any = false;
      for (std::size_t word = 0; word < page_words && !any; ++word) any = differs(word);
      // Followed from what it was, so that this change counts.
      if (any) add(in_.begin + (next_ + from) * sizeof(std::uint32_t));
    }
    std::copy(now.begin(), now.end(), before_.begin() + static_cast<std::ptrdiff_t>(next_));
  }
  next_ += count;
  if (next_ == all) next_ = none;
  return true;
}

void kernel_states::follow(page& which, const std::array<std::uint32_t, page_words>& now) {
  for (std::size_t word = 0; word < page_words; ++word) {
    const std::uint32_t before = std::exchange(which.words[word], now[word]);
    if (before == now[word]) continue;
    std::uint8_t& behaved = which.behaved[word];
    if (behaved == not_one) continue;
    if (!can_follow(before, now[word])) {
      broken_ = broken_ || behaved >= proof;
      if (behaved != 0) std::erase(which.ones, static_cast<std::uint16_t>(word));
      behaved = not_one;
      continue;
    }
    if (behaved == 0) which.ones.push_back(static_cast<std::uint16_t>(word));
    if (behaved < proof && ++behaved == proof) ++proven_;
    moved_ = true;
    which.has_words = which.has_words || behaved == proof;
  }
}

bool kernel_states::unchanged(const words_reader& read) const {
  std::array<std::uint32_t, page_words> now;
  return std::ranges::all_of(
      pages_, [&](const page& each) { return read(each.at, now) && now == each.words; });
}

bool kernel_states::look(const words_reader& read, std::size_t share) {
  moved_ = false;
  run_ = false;
  std::array<std::uint32_t, page_words> now;
  const bool sure = known();
  const std::size_t count = pages_.size();
  for (std::size_t index = 0; index < count; ++index) {
    page& each = pages_[index];
    if (!read(each.at, now)) return false;
    const bool had = each.has_words;
    if (now != each.words) follow(each, now);
    for (const std::uint16_t word : each.ones)
      run_ = run_ || ((sure || each.behaved[word] >= proof) && (now[word] & state_mask) == running);
    if (!had && each.has_words && !before_.empty()) add(each.at);
  }
  return !searches() || search_on(read, share);
}

}  // namespace sluice::nvidia
