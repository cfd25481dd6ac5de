#pragma once
/// \file
/// An online server on one GPU: takes requests as they arrive, turns them into kernels, and keeps
/// the books on how long each took.

#include "engine.hpp"
#include "node.hpp"

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "sluice/lab/arrivals.hpp"
#include "sluice/lab/serving.hpp"
#include "sluice/online_client.hpp"

namespace sluice::lab {

enum class service_kind : std::uint8_t {
  fifo,        ///< One request after the other, each in one go.
  continuous,  ///< Continuous batching: admit, prefill, then a token for each active one per step.
};

/// What became of one request.
struct served_request {
  duration arrived{};  ///< After the begin of the arrivals.
  std::uint32_t context_tokens = 0;
  std::uint32_t generated_tokens = 0;
  duration latency{};    ///< Arrival to the end of its last kernel; unfinished: so far.
  duration ttft{};       ///< Arrival to its first token; continuous only, 0: it never came.
  duration worst_itl{};  ///< Longest time between two of its tokens.
  bool finished = false;
};

/// Requests are accepted, and their spans marked, the moment they arrive, whatever the batch does
/// meanwhile; online work is in flight from a request's admission to the end of its last token. So
/// does examples/demo. Kernels of one step and one occupancy are submitted as one: in the model
/// nobody can come between them, since no queue of the same priority is there (a test compares).
///
/// Threading: one thread. Lifetime: all references outlive it, and it outlives the engine's events.
class online_server final : public kernel_listener {
 public:
  struct options {
    service_kind service = service_kind::continuous;
    serving_shape shape;
    token_costs costs;
    duration decode_step{};     ///< GPU time of a step beside its tokens' (continuous).
    duration wake_up{};         ///< From a kernel's end until the host sees it.
    bool whole_kernels = true;  ///< False: each kernel by itself.
  };
  /// \param busy told whenever requests came, were admitted, or a step ended.
  online_server(sim::engine& events, gpu& on, sim::model_process self, const arrivals& work,
                const options& how, std::function<void()> busy);

  /// Marks what it does with this client from now on.
  void register_as(online_client client) { client_ = std::move(client); }
  /// The first arrival's clock begins at `start`.
  void begin(time_point start);
  /// Accepts what has arrived by now; who adds to `work` while it serves calls this.
  void accept();
  bool done() const noexcept { return admitted_ == work_.requests.size() && active_.empty(); }
  std::uint32_t in_flight() const noexcept { return static_cast<std::uint32_t>(active_.size()); }
  /// Requests that arrived and are not completed.
  std::uint32_t open_requests() const noexcept {
    return static_cast<std::uint32_t>(accepted_ - admitted_ + active_.size());
  }
  time_point last_end() const noexcept { return last_end_; }
  /// What was not finished by `now` counts with its latency so far. \return all that had arrived.
  std::vector<served_request> take_results(time_point now);
  std::vector<duration> take_gaps() { return std::move(gaps_); }
  std::uint64_t steps() const noexcept { return steps_; }

  /// What its queue's pointers and completion signals say.
  struct pointers {
    std::uint64_t written = 0;   ///< Packets.
    std::uint64_t read = 0;      ///< Consumed: their kernels have begun.
    std::uint64_t finished = 0;  ///< Their signals say so.
  };
  const pointers& seen_from_outside() const noexcept { return pointers_; }
  /// Calls `moved` from now on when these change, sometimes from inside the model; and each kernel
  /// is a packet of its own.
  void show_pointers(std::function<void()> moved) {
    moved_ = std::move(moved);
    whole_kernels_ = false;
  }

  void kernel_started(std::uint64_t, time_point) override { move(pointers_.read, 1); }
  void kernel_finished(std::uint64_t cookie, time_point at) override;

 private:
  struct active_request {
    std::uint32_t number = 0;
    std::uint32_t tokens_left = 0;
    bool answered = false;  ///< Has its first token.
    time_point last_token{};
    busy_token busy;
  };

  void move(std::uint64_t& which, std::uint64_t by) {
    which += by;
    if (moved_) moved_();
  }
  void step();
  void admit();
  void step_ended(time_point end);
  void add(std::chrono::duration<double, std::nano> work, duration longest, double occupancy);
  void submit_step();
  void finish(active_request& one, time_point end);

  struct piece {
    duration length{};
    double occupancy = 1;
  };

  sim::engine& events_;
  gpu& gpu_;
  const arrivals& work_;
  const options how_;
  const std::function<void()> busy_;
  const sim::model_queue queue_;
  bool whole_kernels_;
  pointers pointers_;
  std::function<void()> moved_;
  online_client client_;
  time_point start_{};
  std::size_t accepted_ = 0;  ///< So many have arrived...
  std::size_t admitted_ = 0;  ///< ...and so many of them were taken into the batch.
  std::vector<active_request> active_;
  std::vector<piece> pieces_;
  std::uint64_t last_cookie_ = 0;
  std::uint64_t cookies_ = 0;
  std::uint64_t steps_ = 0;
  time_point last_end_{};
  std::vector<served_request> seen_;
  std::vector<duration> gaps_;  ///< All inter-token latencies.
};

}  // namespace sluice::lab
