#include "sequence.hpp"

#include <array>
#include <charconv>
#include <cmath>
#include <iterator>
#include <optional>
#include <stdexcept>
#include <utility>

#include "sluice/duration_text.hpp"

namespace sluice::testing {
namespace {

using namespace std::chrono_literals;

constexpr std::array verbs{"costs", "gpu",      "group",      "gone",     "begin",    "end",
                           "blink", "pointers", "span_begin", "span_end", "withdraw", "wait"};
constexpr std::array works{"unknown", "waiting", "consumed", "finished", "running"};
constexpr std::array kinds{"request", "ttft", "itl"};

template <std::size_t N>
std::optional<std::size_t> index_of(const std::array<const char*, N>& names,
                                    std::string_view wanted) {
  for (std::size_t i = 0; i < N; ++i) {
    if (names[i] == wanted) return i;
  }
  return std::nullopt;
}

std::string gpu_list(std::uint32_t mask) {
  std::string text;
  for (std::uint32_t id = 1; id <= step::most_ids; ++id) {
    if ((mask >> id & 1U) != 0) text += (text.empty() ? "" : "+") + std::to_string(id);
  }
  return text;
}

/// One `name=value` after the other.
class fields {
 public:
  fields& with(const char* name, const std::string& value) {
    text_ += std::string(" ") + name + "=" + value;
    return *this;
  }
  fields& with(const char* name, std::uint32_t value) { return with(name, std::to_string(value)); }
  fields& with(const char* name, const char* value) { return with(name, std::string(value)); }
  fields& with(const char* name, bool value) { return with(name, std::string(value ? "1" : "0")); }
  fields& with(const char* name, duration value) { return with(name, sluice::to_text(value)); }
  std::string text_;
};

std::string to_text(const step& one) {
  fields of;
  switch (one.what) {
    case verb::costs: of.with("suspend", one.suspend).with("resume", one.resume); break;
    case verb::gpu:
      of.with("id", one.id).with("slots", one.slots).with("reserve", one.reserve);
      of.with("quantum", one.quantum).with("see", one.see).with("lost", one.lost);
      break;
    case verb::group:
      of.with("id", one.id).with("role", std::string(to_string(one.what_role)));
      of.with("gpus", gpu_list(one.gpus)).with("queues", one.queues);
      of.with("priority", one.priority).with("attached", one.attached);
      break;
    case verb::gone: of.with("id", one.id); break;
    case verb::begin:
    case verb::end:
    case verb::blink:
      of.with("gpu", one.gpu).with("client", one.client).with("count", one.count);
      break;
    case verb::pointers:
      of.with("gpu", one.gpu).with("work", works[static_cast<std::size_t>(one.work)]);
      break;
    case verb::span_begin:
    case verb::span_end:
      of.with("client", one.client).with("kind", kinds[static_cast<std::size_t>(one.kind)]);
      of.with("request", one.request);
      break;
    case verb::withdraw: of.with("client", one.client); break;
    case verb::wait: of.with("time", one.time); break;
  }
  return verbs[static_cast<std::size_t>(one.what)] + of.text_;
}

[[noreturn]] void refuse(std::string_view line, const std::string& why) {
  throw std::invalid_argument("\"" + std::string(line) + "\": " + why);
}

/// Sets the field that a `name=value` is about. \return false when it is none, or not in range.
bool set(step& one, std::string_view name, std::string_view value) {
  const auto number = [](std::string_view text, std::uint32_t low, std::uint32_t high,
                         std::uint32_t& into) {
    const auto end = text.data() + text.size();
    const auto read = std::from_chars(text.data(), end, into);
    return read.ec == std::errc{} && read.ptr == end && into >= low && into <= high;
  };
  const auto flag = [&](bool& into) {
    into = value == "1";
    return into || value == "0";
  };
  const auto span = [&](duration& into) {
    const auto read = parse_duration(value);
    into = read.value_or(0ns);
    return read && into >= 0ns && into <= 1h;
  };
  constexpr auto ids = step::most_ids;
  constexpr std::uint32_t many = 100'000;
  if (name == "id") return number(value, 1, ids - 1, one.id);
  if (name == "gpu") return number(value, 1, ids - 1, one.gpu);
  if (name == "client") return number(value, 1, ids - 1, one.client);
  if (name == "count") return number(value, 1, many, one.count);
  if (name == "queues") return number(value, 1, many, one.queues);
  if (name == "priority") return number(value, 0, 15, one.priority);
  if (name == "slots") return number(value, 0, many, one.slots);
  if (name == "request") return number(value, 0, many, one.request);
  if (name == "attached") return flag(one.attached);
  if (name == "reserve") return flag(one.reserve);
  if (name == "quantum") return flag(one.quantum);
  if (name == "see") return flag(one.see);
  if (name == "lost") return flag(one.lost);
  if (name == "time") return span(one.time);
  if (name == "suspend") return span(one.suspend);
  if (name == "resume") return span(one.resume);
  if (name == "role") {
    for (const role each : {role::online, role::offline, role::unmatched}) {
      if (to_string(each) == value) return one.what_role = each, true;
    }
    return false;
  }
  if (name == "work") {
    const auto found = index_of(works, value);
    one.work = static_cast<online_work>(found.value_or(0));
    return found.has_value();
  }
  if (name == "kind") {
    const auto found = index_of(kinds, value);
    one.kind = static_cast<span_kind>(found.value_or(0));
    return found.has_value();
  }
  if (name != "gpus") return false;
  one.gpus = 0;
  while (!value.empty()) {
    const auto end = std::min(value.find('+'), value.size());
    std::uint32_t id = 0;
    if (!number(value.substr(0, end), 1, ids - 1, id)) return false;
    one.gpus |= 1U << id;
    value.remove_prefix(std::min(end + 1, value.size()));
  }
  return one.gpus != 0;
}

/// The same numbers everywhere, as the standard's distributions are not.
class dice {
 public:
  explicit dice(std::uint64_t seed) noexcept : state_(seed) {}
  std::uint32_t below(std::uint32_t bound) noexcept {
    // splitmix64
    state_ += 0x9e3779b97f4a7c15;
    std::uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return static_cast<std::uint32_t>((z ^ (z >> 31)) % bound);
  }
  bool once_in(std::uint32_t times) noexcept { return below(times) == 0; }
  /// Of every magnitude: 1, 2 or 5 times a power of ten, in microseconds.
  duration time(std::uint32_t powers) noexcept {
    constexpr std::array<int, 3> steps{1, 2, 5};
    duration result = 10us * steps[below(3)];
    for (auto power = below(powers); power != 0; --power) result *= 10;
    return result;
  }

 private:
  std::uint64_t state_;
};

step random_group(dice& random, std::uint32_t gpus) {
  step one{.what = verb::group, .id = 1 + random.below(5)};
  one.gpus = 2U << random.below(gpus);
  while (random.once_in(3)) one.gpus |= 2U << random.below(gpus);
  one.queues = random.once_in(4) ? 1 + random.below(40) : 1 + random.below(4);
  one.priority = random.once_in(2) ? 0 : random.below(16);
  one.attached = !random.once_in(8);
  if (random.once_in(8)) one.what_role = random.once_in(2) ? role::online : role::unmatched;
  return one;
}

step random_step(dice& random, std::uint32_t gpus) {
  step one;
  one.gpu = 1 + random.below(gpus);
  one.client = 1 + random.below(3);
  one.count = random.once_in(6) ? 1 + random.below(4) : 1;
  one.request = random.below(4);
  one.kind = static_cast<span_kind>(random.below(span_kinds));
  switch (random.below(25)) {
    case 0:
    case 1: return random_group(random, gpus);
    case 2:
      one.what = verb::gone;
      one.id = 1 + random.below(5);
      return one;
    case 3:
      one.what = verb::gpu;
      one.id = one.gpu;
      one.slots = random.once_in(3) ? 0 : 4 + random.below(30);
      one.lost = random.once_in(3);
      one.reserve = random.once_in(3);
      one.quantum = random.once_in(3);
      one.see = !random.once_in(3);
      return one;
    case 4:
      one.what = verb::pointers;
      one.work = static_cast<online_work>(random.below(works.size()));
      return one;
    case 5: one.what = verb::span_begin; return one;
    case 6: one.what = verb::span_end; return one;
    case 7:
    case 8:
    case 9:
    case 10: one.what = verb::begin; return one;
    case 11:
    case 12:
    case 13:
    case 14: one.what = verb::end; return one;
    case 15: one.what = verb::blink; return one;
    case 16:
      one = {.what = verb::wait, .time = random.once_in(20) ? duration(12s) : random.time(6)};
      return one;
    case 17: one.what = verb::withdraw; return one;
    default: one = {.what = verb::wait, .time = random.time(4)}; return one;
  }
}

}  // namespace

std::string to_text(const std::vector<step>& sequence) {
  std::string text;
  for (const step& one : sequence) text += to_text(one) + "\n";
  return text;
}

std::vector<step> parse_sequence(std::string_view text) {
  std::vector<step> sequence;
  const auto take = [](std::string_view& from, const char* until) {
    const auto end = std::min(from.find_first_of(until), from.size());
    const auto taken = from.substr(0, end);
    from.remove_prefix(std::min(end + 1, from.size()));
    return taken;
  };
  while (!text.empty()) {
    const std::string_view line = take(text, "\n");
    std::string_view rest = line.substr(0, line.find('#'));
    step one;
    bool named = false;
    while (!rest.empty()) {
      std::string_view word = take(rest, " \t\r");
      if (word.empty()) continue;
      if (!std::exchange(named, true)) {
        const auto found = index_of(verbs, word);
        if (!found) refuse(line, "unknown verb '" + std::string(word) + "'");
        one.what = static_cast<verb>(*found);
        continue;
      }
      const auto whole = word;
      const auto name = take(word, "=");
      if (!set(one, name, word)) refuse(line, "invalid field '" + std::string(whole) + "'");
    }
    if (named) sequence.push_back(one);
  }
  return sequence;
}

std::vector<step> random_sequence(std::uint64_t seed, std::size_t length) {
  dice random(seed);
  std::vector<step> sequence;
  step costs{.what = verb::costs};
  if (!random.once_in(4)) {
    costs.suspend = random.time(4);
    costs.resume = random.time(4);
  }
  sequence.push_back(costs);
  const auto gpus = 1 + random.below(3);
  for (auto groups = 1 + random.below(4); groups != 0; --groups) {
    sequence.push_back(random_group(random, gpus));
  }
  for (length = 1 + random.below(static_cast<std::uint32_t>(length)); length != 0; --length) {
    sequence.push_back(random_step(random, gpus));
  }
  return sequence;
}

}  // namespace sluice::testing
