/// Faults that somebody outside commands (`sim/control`).

#include "driver_state.hpp"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <string_view>

#include "sluice/duration_text.hpp"

namespace sluice::sim {

namespace {

std::vector<std::string_view> words_of(std::string_view line) {
  std::vector<std::string_view> out;
  for (;;) {
    const auto from = line.find_first_not_of(" \t\r");
    if (from == std::string_view::npos) return out;
    line.remove_prefix(from);
    const auto length = std::min(line.find_first_of(" \t\r"), line.size());
    out.push_back(line.substr(0, length));
    line.remove_prefix(length);
  }
}

template <class Number>
std::optional<Number> parse(std::string_view text) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::string quoted(std::string_view text) { return "'" + std::string{text} + "'"; }

}  // namespace

int driver::control(std::string_view line, std::string& problem) {
  return impl_->control(line, problem);
}

int driver::impl::control(std::string_view line, std::string& problem) {
  using namespace std::chrono_literals;
  const auto words = words_of(line);
  if (words.empty() || words[0].starts_with('#')) return 0;
  const auto fail = [&problem](std::string why) {
    problem = std::move(why);
    return -EINVAL;
  };
  const auto find_gpu = [&](std::string_view text) -> gpu_node* {
    const auto id = parse<std::uint32_t>(text);
    gpu_node* found = id ? gpu(*id) : nullptr;
    if (found == nullptr) {
      problem = quoted(text) + " is no GPU of this node; give a gpu_id:";
      for (const auto& each : gpus_) problem += " " + std::to_string(each->shape.gpu_id);
    }
    return found;
  };

  if (words[0] == "fail-cycle") {
    if (words.size() != 3) return fail("use: fail-cycle GPU DURATION");
    gpu_node* node = find_gpu(words[1]);
    if (node == nullptr) return -EINVAL;
    const auto lasts = parse_duration(words[2]);
    if (!lasts || *lasts < duration::zero() || *lasts > 60s) {
      return fail(quoted(words[2]) + " is no time from 0s to 60s, such as 9s or 20ms");
    }
    outer_.fail_next_cycle(node->shape.gpu_id, *lasts, after_failure::reset);
    return 0;
  }
  if (words[0] == "vmfault" || words[0] == "evict" || words[0] == "restore") {
    if (words.size() != 3) return fail("use: " + std::string{words[0]} + " PID GPU");
    const auto pid = parse<pid_t>(words[1]);
    const auto process = pid ? live_.find(*pid) : live_.end();
    if (process == live_.end()) {
      return fail(quoted(words[1]) + " is no process that has opened the device");
    }
    gpu_node* node = find_gpu(words[2]);
    if (node == nullptr) return -EINVAL;
    if (words[0] == "vmfault") {
      vm_fault(*process->second, *process->second->device(node->shape.gpu_id));
    } else {
      start_on(*pid, node->shape.gpu_id, words[0] == "evict");
    }
    return 0;
  }
  if (words[0] == "reset") {
    if (words.size() != 2) return fail("use: reset GPU");
    gpu_node* node = find_gpu(words[1]);
    if (node == nullptr) return -EINVAL;
    start_reset(*node);
    return 0;
  }
  return fail(quoted(words[0]) +
              " is no command; there are: fail-cycle GPU DURATION, vmfault PID GPU, evict PID GPU, "
              "restore PID GPU, reset GPU");
}

}  // namespace sluice::sim
