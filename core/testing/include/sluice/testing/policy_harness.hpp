#pragma once
/// \file
/// A small world for one policy: build it, tell it what happens, ask what the policy holds. No
/// scheduler, no threads, no waiting.

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "sluice/policy.hpp"
#include "sluice/testing/manual_clock.hpp"
#include "sluice/testing/recording_sink.hpp"
#include "sluice/world.hpp"

namespace sluice::testing {

/// A world that a test builds by hand.
class fake_world final : public world {
 public:
  /// A GPU on which work of online processes can be seen.
  gpu_view& add_gpu(gpu_id id);
  /// \param on     GPUs on which the group owns compute queues; they are added when they are new.
  /// \param queues how many on each, in the same order; empty: one on each.
  group_view& add_group(group_id id, role what, std::vector<gpu_id> on,
                        std::vector<std::uint32_t> queues = {});
  void remove_group(group_id id);
  /// \param on where it works; empty: on every GPU, as one that was not added.
  void add_client(client_id id, std::string name, std::vector<gpu_id> on = {});
  void remove_client(client_id id) { clients_.erase(id); }
  gpu_view* edit(gpu_id id) noexcept;
  group_view* edit(group_id id) noexcept;

  std::span<const gpu_view> gpus() const noexcept override { return gpus_; }
  const gpu_view* find(gpu_id id) const noexcept override;
  const group_view* find(group_id id) const noexcept override;
  const client_view* find(client_id id) const noexcept override;

 private:
  struct fake_group {
    group_view view;
    std::vector<gpu_id> gpus;
    std::vector<std::uint32_t> queues_on;
  };
  struct fake_client {
    std::string name;
    std::vector<gpu_id> gpus;
    client_view view;
  };
  void refresh();
  std::vector<gpu_view> gpus_;
  std::map<gpu_id, std::vector<group_id>> offline_;
  std::map<group_id, fake_group> groups_;
  std::map<client_id, fake_client> clients_;
};

/// Runs a policy the way the scheduler does: turns with events and changes, declarations that stand
/// until replaced or expired, wake-ups. The limits of the configuration are not enforced here.
///
/// Threading: one thread.
class policy_harness {
 public:
  explicit policy_harness(std::unique_ptr<policy> subject) : policy_(std::move(subject)) {}

  fake_world& table() noexcept { return world_; }
  time_point now() const noexcept { return clock_.now(); }

  /// Each of these is a turn of its own.
  void begin(gpu_id gpu, std::uint32_t count = 1, client_id by = client_id{1});
  void end(gpu_id gpu, std::uint32_t count = 1, client_id by = client_id{1});
  /// A begin and an end that the scheduler saw in one look.
  void blink(gpu_id gpu, client_id by = client_id{1});
  /// Client 1 marks its requests. \param ago how long before the turn it began.
  void begin_span(span_kind kind, std::uint64_t request, duration ago = {});
  void end_span(span_kind kind, std::uint64_t request);
  /// Nobody will end it: as when its client withdrew.
  void abandon_span(span_kind kind, std::uint64_t request);
  /// The pointers of the GPU's online queues say that `packets` came, and what has become of them.
  void move(gpu_id gpu, online_work work, std::uint32_t packets = 0);
  /// Lists the group in `changed`.
  void change(group_id group);
  /// Moves time, with a turn for every wake-up and every expiry on the way.
  void advance(duration by);

  bool held(group_id group) const;
  /// The quantum that the policy wants for the group; zero: the driver's default.
  duration quantum(group_id group) const;
  /// How often the policy wants pointers looked at; zero: not at all.
  duration polling() const noexcept { return polling_; }
  /// Every call the policy made, in order.
  const std::vector<recording_sink::call>& calls() const noexcept { return sink_.calls; }
  std::uint64_t turns() const noexcept { return turns_; }

 private:
  void finish_span(event_kind how, span_kind kind, std::uint64_t request);
  void turn(std::vector<event> events, std::vector<group_id> changed);

  manual_clock clock_;
  fake_world world_;
  std::unique_ptr<policy> policy_;
  recording_sink sink_;
  std::map<group_id, time_point> holds_;
  std::map<std::pair<span_kind, std::uint64_t>, time_point> open_;
  std::map<group_id, duration> quanta_;
  time_point wake_ = never;
  duration polling_{};
  std::uint64_t turns_ = 0;
};

}  // namespace sluice::testing
