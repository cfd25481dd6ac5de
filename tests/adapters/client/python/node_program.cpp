// A scheduler with one offline queue on a backend that answers at once, for clients in other
// languages. It says "ready" when the queue is attached, and answers each line on its standard
// input with what it counts, as JSON. Its argument is the socket; with a second one, "refuse", it
// grants no role, and with "observe" it only pretends to act.

#include "served_node.hpp"

#include <cstdio>
#include <iostream>
#include <string>
#include <string_view>

#include "sluice/null_backend.hpp"

namespace {

unsigned long long spans_of(const sluice::statistics& stats, sluice::span_kind kind) {
  return stats.span_length[static_cast<std::size_t>(kind)].count();
}

void print(const sluice::test::served_node& node) {
  const sluice::statistics stats = node.stats();
  std::size_t registered = 0;
  for (const std::string& line : node.roles.lines()) {
    if (line.starts_with("registered")) ++registered;
  }
  std::printf(
      R"({"begins": %llu, "suspended": %llu, "registered": %zu, "request": %llu, "ttft": %llu,)"
      R"( "itl": %llu, "stray_ends": %llu})"
      "\n",
      static_cast<unsigned long long>(stats.begins),
      static_cast<unsigned long long>(stats.suspended_now), registered,
      spans_of(stats, sluice::span_kind::request), spans_of(stats, sluice::span_kind::ttft),
      spans_of(stats, sluice::span_kind::itl), static_cast<unsigned long long>(stats.stray_ends));
  std::fflush(stdout);
}

}  // namespace

int main(int count, char** words) {
  if (count < 2) return 2;
  sluice::client::server_options options;
  options.socket = words[1];
  const std::string_view how = count > 2 ? words[2] : "";
  options.allow = [how](const auto&, sluice::role) { return how != "refuse"; };
  sluice::test::served_node node(std::move(options), sluice::test::served_node::quick(),
                                 how == "observe" ? sluice::make_null_backend() : nullptr);
  if (!node.runs()) return 1;
  std::puts("ready");
  std::fflush(stdout);
  for (std::string line; std::getline(std::cin, line);) print(node);
  return 0;
}
