#include "history.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <string_view>

namespace sluice::tests {
namespace {

constexpr std::array<std::string_view, 37> names{
    "world",     "turn",     "wait",      "start",   "exit",     "exec",  "role",      "create",
    "destroy",   "gpu",      "tell",      "repeat",  "resync",   "begin", "end",       "enlist",
    "withdraw",  "pointers", "peers",     "fault",   "latency",  "stuck", "no_attach", "no_submit",
    "no_detach", "mute",     "order",     "hang_up", "lose_gpu", "rearm", "keep",      "fall_back",
    "crash",     "restore",  "configure", "policy",  "rest"};
static_assert(names.size() == static_cast<std::size_t>(op::rest) + 1);

/// One pass: chunks, then halves of them, down to single steps. \return whether it got shorter.
bool leave_out(steps& all, const std::function<bool(const steps&)>& fails) {
  const std::size_t before = all.size();
  for (std::size_t chunk = std::max<std::size_t>(1, all.size() / 2);; chunk /= 2) {
    for (std::size_t from = 0; from < all.size();) {
      steps without(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(from));
      const std::size_t to = std::min(all.size(), from + chunk);
      without.insert(without.end(), all.begin() + static_cast<std::ptrdiff_t>(to), all.end());
      if (fails(without)) {
        all = std::move(without);
      } else {
        from = to;
      }
    }
    if (chunk <= 1) return all.size() < before;
  }
}

/// \return whether an argument became smaller.
bool simplify(steps& all, const std::function<bool(const steps&)>& fails) {
  bool simpler = false;
  for (std::size_t i = 0; i < all.size(); ++i) {
    for (std::uint32_t step::*const argument : {&step::a, &step::b, &step::c}) {
      // The least that will do: 0, else by halves.
      for (std::uint32_t lower = 0; lower < all[i].*argument;) {
        steps other = all;
        other[i].*argument = lower;
        if (fails(other)) {
          all = std::move(other);
          simpler = true;
          break;
        }
        lower += std::max<std::uint32_t>(1, (all[i].*argument - lower) / 2);
      }
    }
  }
  return simpler;
}

}  // namespace

steps shrink(steps all, const std::function<bool(const steps&)>& fails) {
  for (;;) {
    const bool shorter = leave_out(all, fails);
    if (const bool simpler = simplify(all, fails); !shorter && !simpler) return all;
  }
}

std::string to_text(const steps& all) {
  std::string text;
  for (const step& one : all) {
    text += "    {op::" + std::string(names[static_cast<std::size_t>(one.what)]);
    const std::array<std::uint32_t, 3> arguments{one.a, one.b, one.c};
    std::size_t last = arguments.size();
    while (last != 0 && arguments[last - 1] == 0) --last;
    for (std::size_t i = 0; i < last; ++i) text += ", " + std::to_string(arguments[i]);
    text += "},\n";
  }
  return text;
}

}  // namespace sluice::tests
