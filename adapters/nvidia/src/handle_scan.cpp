#include "handle_scan.hpp"

#include <algorithm>

namespace sluice::nvidia {

namespace {

constexpr std::size_t rarer_by = 8;

}  // namespace

void handle_scan::feed(std::span<const std::uint32_t> words) {
  for (std::size_t at = 0; at < words.size(); ++at) {
    if (!is_client_handle(words[at])) continue;
    uapi::NvHandle object = 0;
    if (at > 0 && is_object_handle(words[at - 1])) object = words[at - 1];
    if (at + 1 < words.size() && is_object_handle(words[at + 1]))
      object = std::max(object, words[at + 1]);
    if (object == 0) continue;
    // A process can fill its memory with pairs.
    if (seen_.size() >= most_clients && !seen_.contains(words[at])) continue;
    candidate& one = seen_[words[at]];
    one.client = words[at];
    ++one.places;
    one.newest = std::max(one.newest, object);
  }
}

std::vector<handle_scan::candidate> handle_scan::found() const {
  std::vector<candidate> all;
  for (const auto& [client, one] : seen_) all.push_back(one);
  std::ranges::stable_sort(all, std::ranges::greater{}, &candidate::places);
  if (all.size() > most_candidates) all.resize(most_candidates);
  std::erase_if(all, [most = all.empty() ? 0 : all.front().places](const candidate& each) {
    return each.places * rarer_by < most;
  });
  return all;
}

}  // namespace sluice::nvidia
