#pragma once
/// \file
/// What the driver is told of time slices: how long each process may keep each of its GPUs once
/// others want it.

#include "journalist.hpp"
#include "table.hpp"

#include <cstdint>
#include <optional>
#include <vector>

#include "sluice/backend.hpp"
#include "sluice/config.hpp"
#include "sluice/ids.hpp"
#include "sluice/result.hpp"
#include "sluice/time.hpp"

namespace sluice::core {

/// Brings what the driver keeps to what the policy wants of groups: one command for each (process,
/// GPU) at a time, the last wish only. Nobody keeps a quantum who is not offline and attached, or
/// on a GPU whose breaker is open, and nobody after forget(). A driver without
/// capability::set_quantum is asked nothing. Sets gpu_view::can_set_quantum, by asking the others
/// for each GPU once something offline on it is attached; one where it is refused as not supported
/// is not asked for again until lost() or acts_by().
///
/// Threading: reactor thread. Cost: O(processes and their queues) in a turn after something
/// changed, else nothing; it allocates for what is new.
class quanta {
 public:
  quanta(const scheduler_config& config, table& world, backend& driver, journalist& journal)
      : config_(config), table_(world), backend_(driver), journal_(journal) {}

  /// As backend_listener::acts_by(): what was not supported may be now.
  void acts_by(const capabilities& what);
  /// The acting side died: no quantum stands.
  void lost();
  void answered(process_id target, gpu_id gpu, duration length, error_code error, time_point now);

  /// The policy's wish, which stands until forget().
  void want(group& which, duration length);
  void forget();
  /// Sends what differs. Before the backend's flush().
  void work(time_point now);
  /// Whether the driver is not known to keep to any.
  bool none() const noexcept;
  time_point next() const noexcept { return next_; }

 private:
  enum class support : std::uint8_t { unknown, yes, no };
  struct place {
    support offered = support::unknown;
    bool asking = false;  ///< Meaningful in work().
    bool said = false;    ///< That it cannot, though the policy wants it to.
  };
  struct entry {
    process_id target{};
    std::uint32_t gpu = 0;  ///< gpu::index.
    duration asked{};       ///< Last.
    duration stands{};      ///< As the driver answered.
    bool is_new = false;    ///< Meaningful in take_stock().
    bool in_flight = false;
    bool failed = false;                ///< When last asked; said.
    std::optional<duration> refused{};  ///< With EPERM or EINVAL: this length. Counted.
    std::uint8_t failures = 0;
    time_point again{};  ///< Not asked before.
  };

  void take_stock();
  void send(entry& one, time_point now);
  void refuse(std::uint32_t gpu, bool wanted, time_point now);
  void fail(entry& one, const process& whose, error_code error, time_point now);
  void set_offered(std::uint32_t gpu, support offered);
  duration wanted_of(const entry& one);
  entry* find(process_id target, std::uint32_t gpu);

  const scheduler_config& config_;
  table& table_;
  backend& backend_;
  journalist& journal_;
  bool offered_ = false;        ///< capability::set_quantum.
  std::vector<place> places_;   ///< By gpu::index.
  std::vector<entry> entries_;  ///< Of attached processes; by target, then GPU.
  bool stale_ = false;          ///< A wish or an answer came since work().
  std::uint64_t shape_ = 0;     ///< The table's, as of work().
  time_point next_ = never;
};

}  // namespace sluice::core
