#pragma once
/// \file
/// One online process under observation: what the pointers of its queues say, GPU by GPU.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "sluice/agent/followed_process.hpp"
#include "sluice/ids.hpp"
#include "sluice/kfd/queue_pointers.hpp"
#include "sluice/os/process_identity.hpp"
#include "sluice/result.hpp"
#include "sluice/time.hpp"

namespace sluice::kfd {

/// A compute queue of an online process, as discovery knows it.
struct online_queue {
  gpu_id gpu{};
  pointer_addresses at{};  ///< Zeros: nobody says where they are.
  std::uint64_t ring_base = 0;
  bool aql = false;

  friend bool operator==(const online_queue&, const online_queue&) = default;
};

struct online_process {
  process_identity who{};
  std::uint64_t change =
      0;  ///< Another number after its queues changed, though they look the same.
  std::vector<online_queue> queues{};

  friend bool operator==(const online_process&, const online_process&) = default;
};

/// A queue whose packets are all consumed has *finished* when the completion signal of its last
/// packet is at 0 or below, where it has one and ring and signal can be read: that is the one word
/// of a packet that is read. (Assumed: the packets before it have ended then, which holds of
/// in-order streams, and the words stay until the ring comes round.) Where that does not say,
/// cu_occupancy does where the file exists: 0 twice in a row, for a queue that waits for its turn
/// on an oversubscribed GPU occupies nothing for a moment.
///
/// Threading: one thread. Cost: make() opens and allocates, look() does not.
class pointer_view final : public agent::followed_process {
 public:
  /// \param sysfs root of the driver's tree.
  [[nodiscard]] static result<std::unique_ptr<pointer_view>> make(const online_process& what,
                                                                  const std::string& sysfs);

  /// Unknown where nothing can be read.
  bool look(time_point now, std::vector<work>& found) override;
  /// Reads the pointers. \return how many queues have pointers that cannot be read.
  std::size_t unreadable() noexcept;

 private:
  struct place {
    gpu_id gpu{};
    std::size_t hidden = 0;   ///< Queues without addresses.
    bool not_shown = false;   ///< Of a queue, whether its packets have ended; scratch.
    std::string occupancy{};  ///< Path of cu_occupancy; empty: not there.
    time_point occupancy_due{};
    bool occupancy_read = false;
    int empty_looks = 0;
  };
  struct queue {
    std::size_t place = 0;
    bool aql = false;
    std::uint64_t ring_base = 0;
    std::uint64_t packets = 0;  ///< Of its ring; 0: no packet can be found.
    bool seen = false;
    std::uint64_t write = 0;
    std::uint64_t ended = 0;      ///< All packets before this one have ended.
    std::uint64_t signal_of = 0;  ///< The packet before this one has the signal...
    std::uint64_t signal = 0;     ///< ...at this address; 0: none.
  };
  enum class ending : std::uint8_t { ended, runs, not_shown };

  explicit pointer_view(std::unique_ptr<queue_pointers> pointers)
      : pointers_(std::move(pointers)) {}
  ending end_of(queue& which) noexcept;
  static ending occupancy_of(place& where, time_point now) noexcept;

  std::unique_ptr<queue_pointers> pointers_;
  std::vector<queue> queues_;  ///< As `pointers_` watches them.
  std::vector<place> places_;
};

}  // namespace sluice::kfd
