#pragma once
/// \file
/// When requests arrive and how much work each brings: read from a trace file or generated from a
/// seed. Pure data and arithmetic, so that a run can be repeated exactly.

#include <chrono>
#include <cstdint>
#include <iosfwd>
#include <string>
#include <string_view>
#include <vector>

#include "sluice/lab/checked.hpp"
#include "sluice/time.hpp"

namespace sluice::lab {

/// One request to a language model, as the Azure LLM traces describe it.
struct request {
  duration at{};  ///< After the start of the stretch it belongs to.
  std::uint32_t context_tokens = 0;
  std::uint32_t generated_tokens = 0;
};

/// A stretch of time and the requests that arrive in it, in order.
struct arrivals {
  duration window{};
  std::vector<request> requests;
};

/// More requests than this nobody gets: they are held in memory.
inline constexpr std::size_t most_requests = 5'000'000;

/// Reads the Azure LLM trace format: a header, then rows of
/// `2023-11-16 18:17:03.9799600,4808,10` (TIMESTAMP,ContextTokens,GeneratedTokens) in order of
/// time, at most 64 KiB a line and `most_requests`. Lines may end in CR LF; the last one needs
/// no end. Errors: one line `NAME:LINE:COLUMN: what`, lines and columns counted from 1.
checked<arrivals> read_trace(std::istream& in, std::string_view name);
checked<arrivals> read_trace_file(const std::string& path);

/// The stretch of `length` with the most requests (the first of several): it begins at a request.
/// A trace shorter than `length` is kept whole.
arrivals busiest(const arrivals& all, duration length);

/// Divides the gaps between arrivals (and so the window); the tokens of a request stay.
/// \param by > 0; 2 is twice as fast.
arrivals speed_up(arrivals from, double by);

/// So many copies at once, each from a moment drawn from the seed to the end and then from its
/// begin; of that, the first `length`. \param length at most the window.
arrivals overlay(const arrivals& one, std::uint32_t copies, duration length, std::uint64_t seed);

/// Bursts of 350 to 650 ms with 5 to 30 ms from request to request, then silence for as long: what
/// an interactive service sees, and what lets offline work run in between. Outputs are 4 to 32
/// tokens. The same seed gives the same arrivals on every machine.
arrivals generate(std::uint64_t seed, duration length);

/// Independent arrivals at a constant rate. As below: tokens are uniform, 100 to 1200 of context
/// and 4 to 32 generated, and the same seed gives the same arrivals on every machine. \param rate >
/// 0, requests per second.
arrivals poisson(std::uint64_t seed, duration length, double rate);

/// A Markov-modulated Poisson process of two states: quiet and burst, each for an exponential time.
struct burst_shape {
  double quiet_rate = 1;  ///< Requests per second, >= 0...
  double burst_rate = 50;
  duration quiet_mean = std::chrono::seconds(2);  ///< Mean length of the state, > 0.
  duration burst_mean = std::chrono::milliseconds(500);
};
arrivals bursty(std::uint64_t seed, duration length, const burst_shape& shape);

/// Poisson arrivals whose rate goes once through low and high within each `period`, as the cosine.
/// \param low >= 0, high > 0 and at least low: requests per second.
arrivals diurnal(std::uint64_t seed, duration length, double low, double high, duration period);

/// Deals requests in turn to `servers`, in order of arrival; each gets the whole window.
std::vector<arrivals> deal(const arrivals& all, std::size_t servers);

/// GPU time per token.
struct token_costs {
  std::chrono::duration<double, std::nano> prefill{};  ///< Per context token.
  std::chrono::duration<double, std::nano> decode{};   ///< Per generated token.
};

/// A generated token costs this many times what a context token costs: prefill reads the weights
/// once for many tokens, decode once for each.
inline constexpr double decode_weight = 100;

/// Costs at which the whole stretch needs `load` of its window as GPU time.
token_costs scale_to_load(const arrivals& work, double load);
/// The other way round; 0 without a window.
double load_of(const arrivals& work, const token_costs& costs);

struct token_totals {
  std::uint64_t context = 0;
  std::uint64_t generated = 0;
  std::uint32_t most_generated = 0;
};
token_totals totals(const arrivals& work);

}  // namespace sluice::lab
