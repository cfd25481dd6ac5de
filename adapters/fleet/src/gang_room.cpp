#include "gang_room.hpp"

#include <algorithm>
#include <charconv>
#include <iterator>
#include <utility>

namespace sluice::fleet {

bool is_name(std::string_view text) noexcept {
  return !text.empty() &&
         text.find_first_not_of(
             "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") == text.npos;
}

std::string gang_room::text_of(gang_wish wish) const {
  const std::string_view word = wish == gang_wish::hold  ? "hold"
                                : wish == gang_wish::run ? "run"
                                                         : "refused";
  return std::string(word) + " " + std::to_string(nodes_);
}

std::string gang_room::state(time_point now) const {
  return text_of(hears_all(now) ? wish_ : gang_wish::refused);
}

std::string gang_room::beat(time_point since, time_point now) {
  sent_[number_] = since;
  return std::to_string(number_++) + " " + state(now);
}

/// What is no text of a state refuses, too, and so does a node that counts other nodes.
bool gang_room::refuses(const peer& one) const {
  return one.state != text_of(gang_wish::run) && one.state != text_of(gang_wish::hold);
}

bool gang_room::hears_all(time_point now) const {
  return !has_namesake(now) && peers_.size() == nodes_ && peers_.contains(node_) &&
         std::all_of(peers_.begin(), peers_.end(),
                     [&](const auto& each) { return is_fresh(each.second, now); });
}

void gang_room::reads(std::string_view node, std::string_view value) {
  if (!is_name(node)) return;
  const std::size_t space = value.find(' ');
  peers_[std::string(node)].state =
      space == value.npos ? std::string() : std::string(value.substr(space + 1));
}

void gang_room::hears(std::string_view node, const std::optional<std::string>& value,
                      time_point now) {
  if (!value) {
    if (const auto gone = peers_.find(node); gone != peers_.end()) peers_.erase(gone);
    return;
  }
  reads(node, *value);
  const auto found = peers_.find(node);
  if (found == peers_.end()) return;
  if (node != node_) {
    found->second.heard = now;
    return;
  }
  std::uint64_t number = 0;
  (void)std::from_chars(value->data(), value->data() + value->size(), number);
  if (number < first_ || number >= number_) namesake_ = now;
  const auto sent = sent_.find(number);
  if (sent == sent_.end()) return;
  found->second.heard = std::max(found->second.heard, sent->second);
  sent_.erase(sent_.begin(), std::next(sent));
}

void gang_room::forget() {
  peers_.clear();
  sent_.clear();
}

gang_room::verdict gang_room::decide(time_point now) {
  if (!hears_all(now)) return {};
  verdict made{.until = never};
  for (const auto& [name, one] : peers_) {
    made.until = std::min(made.until, one.heard + fresh_);
    if (name == node_) continue;
    if (refuses(one)) return {};
    made.hold |= one.state == text_of(gang_wish::hold);
  }
  if (peers_.find(node_)->second.state == state(now)) settled_until_ = made.until;
  made.until = std::min(made.until, settled_until_);
  return made.until > now ? made : verdict{};
}

std::string gang_room::problem(time_point now) const {
  if (has_namesake(now))
    return "another program writes as node " + node_ + "; give each node a --node of its own";
  if (peers_.size() != nodes_) {
    std::string text =
        std::to_string(peers_.size()) + " of " + std::to_string(nodes_) + " nodes take part";
    for (const char* between = ": "; const auto& [name, one] : peers_)
      text += std::exchange(between, ", ") + name;
    return text;
  }
  for (const auto& [name, one] : peers_) {
    if (!is_fresh(one, now)) return "etcd has had no new word from " + name;
    if (name != node_ && refuses(one))
      return name + " cannot hold it ('sluice why' there has the reason)";
  }
  return "etcd does not have the state of this node";
}

}  // namespace sluice::fleet
