// The memory that agent and host share, when the other side writes there what it likes: both ends
// of a ring, and what the host does with reports of any content.

#include "fuzz.hpp"
#include "protocol.hpp"
#include <fuzzer/FuzzedDataProvider.h>

#include <cstring>
#include <memory>

namespace {

using namespace sluice;

/// Counts, so that what it is told is looked at.
class listener final : public backend_listener {
 public:
  std::uint64_t sum = 0;
  template <class Id>
  static std::uint64_t number(Id id) {
    return static_cast<std::uint64_t>(id);
  }
  void attached(process_id target, error_code error) override {
    sum += number(target) + error.message().size();
  }
  void queue_added(const queue_info& queue) override { sum += queue.incarnation; }
  void queue_removed(process_id target, driver_queue_id queue) override {
    sum += number(target) + number(queue);
  }
  void completed(const batch_result& result) override {
    fuzz::require(result.count <= max_batch_queues, "no more queues than a batch has");
    for (std::size_t at = 0; at < result.count; ++at) sum += number(result.queues[at]);
  }
  void detached(process_id target) override { sum += number(target); }
  void acts_by(const capabilities& what, bool fell_back) override {
    sum += what.name().size() + (fell_back ? 1U : 0U);
  }
  void reserved(gpu_id gpu, double, error_code error) override {
    sum += number(gpu) + error.message().size();
  }
  void quantum_set(process_id target, gpu_id gpu, duration, error_code error) override {
    sum += number(target) + number(gpu) + error.message().size();
  }
  void observed(const observation& seen) override {
    fuzz::require(seen.work <= online_work::running, "a state that there is");
    sum += number(seen.gpu) + seen.count;
  }
  void gpu_lost(gpu_id gpu) override { sum += number(gpu); }
  void lost(error_code) override {}
  void restored() override {}
};

constexpr std::uint32_t capacity = 8;

agent::ring_status expected(std::uint32_t waiting, std::uint32_t none) {
  if (waiting > capacity) return agent::ring_status::broken;
  return waiting == none ? agent::ring_status::would_wait : agent::ring_status::done;
}

/// An honest end of a ring against an opponent who writes anything anywhere, between two calls.
void ends_of_a_ring(FuzzedDataProvider& input) {
  const auto shared = std::make_unique<agent::ring_memory<agent::command, capacity>>();
  auto written = input.ConsumeIntegral<std::uint32_t>();
  auto taken = input.ConsumeBool() ? written : input.ConsumeIntegral<std::uint32_t>();
  shared->written = written;
  shared->taken = taken;
  agent::ring_writer<agent::command, capacity> writer{*shared};
  agent::ring_reader<agent::command, capacity> reader{*shared};
  agent::command one;
  while (input.remaining_bytes() > 0) {
    switch (input.ConsumeIntegralInRange<int>(0, 4)) {
      case 0: shared->written = input.ConsumeIntegral<std::uint32_t>(); break;
      case 1: shared->taken = input.ConsumeIntegral<std::uint32_t>(); break;
      case 2: {
        auto& slot = shared->slots[input.ConsumeIntegral<std::uint8_t>() % capacity];
        slot.work.count = input.ConsumeIntegral<std::uint16_t>();
        break;
      }
      case 3: {
        one.work.count = input.ConsumeIntegral<std::uint16_t>();
        const auto status = writer.push(one);
        fuzz::require(status == expected(written - shared->taken.load(), capacity),
                      "a push goes by its own count and checks the other");
        if (status == agent::ring_status::done) ++written;
        break;
      }
      default: {
        const std::uint32_t waiting = shared->written.load() - taken;
        const auto& slot = shared->slots[taken % capacity];
        const auto status = reader.pop(one);
        fuzz::require(status == expected(waiting, 0),
                      "a pop goes by its own count and checks the other");
        if (status != agent::ring_status::done) break;
        fuzz::require(one.work.count == slot.work.count, "what comes out is what was there");
        ++taken;
      }
    }
  }
}

/// As agent_backend takes them.
void reports_of_any_content(FuzzedDataProvider& input) {
  listener heard;
  while (input.remaining_bytes() > 0) {
    const auto bytes = input.ConsumeBytes<std::uint8_t>(sizeof(report));
    report one;
    std::memcpy(static_cast<void*>(&one), bytes.data(), bytes.size());
    agent::bound_count(one);
    deliver(one, heard);
  }
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  FuzzedDataProvider input{data, size};
  if (input.ConsumeBool()) {
    ends_of_a_ring(input);
  } else {
    reports_of_any_content(input);
  }
  return 0;
}
