#pragma once
/// \file
/// `sluice doctor` without its command line: what it finds, how, and what to do about it.

#include <functional>
#include <string>
#include <vector>

#include <boost/json/value.hpp>

#include "sluice/breaker_store.hpp"
#include "sluice/kfd/node_view.hpp"
#include "sluice/kfd/roots.hpp"
#include "sluice/node_files.hpp"

namespace sluice::cli {

enum class verdict : std::uint8_t {
  good,
  note,     ///< Works, with a limit that somebody may want to know or lift.
  unknown,  ///< It could not be found out.
  blocked,  ///< Preemption cannot work like this.
};

struct check {
  std::string name;
  verdict what{};
  std::string found;
  std::string how{};     ///< How that is known.
  std::string advice{};  ///< What to do; empty where there is nothing to do.
};

/// What is looked at. Tests look at another machine.
struct machine {
  kfd::roots where = kfd::roots::from_environment();
  std::string prefix{};  ///< Goes before /proc and /sys.
  std::string breakers = breaker_store::default_path(where.other_tree());
  node_files files{};
  std::string agent{};  ///< Path of sluice-agent; empty: not found.
  /// Asks the kernel for a ring as large as the runtime's. \return 0 or an errno.
  std::function<int()> try_io_uring;
};

/// Whether the driver can debug several processes of such a GPU at once.
bool many_debugged(std::uint32_t gfx_target_version);
/// Whether MES schedules such a GPU's queues: derived, for no interface tells.
bool uses_mes(const machine& here, std::uint32_t gfx_target_version);

// Each looks at one thing. None changes anything or traces anybody; that the device is opened shows
// in sysfs as a process without queues.
check check_kernel(const machine& here);
std::vector<check> check_device(const machine& here);  ///< Node, version, batch commands.
std::vector<check> check_gpus(const machine& here, const kfd::node_view& node);
check check_scheduling(const machine& here);  ///< sched_policy
check check_cwsr(const machine& here);
check check_tracing(const machine& here);
/// Whether an agent with capabilities is everybody's to execute; nothing of one that has none.
std::vector<check> check_agent(const machine& here);
/// Whether 'sluice pause' holds.
check check_pause(const machine& here);
/// Whether this user may own the node by the lock that schedulers take unless told another.
check check_owner_lock(const machine& here);
/// What schedulers wrote down; the driver shows no reset that is over. Blocked where they leave all
/// GPUs alone.
std::vector<check> check_breakers(const machine& here, const kfd::node_view& node);
check check_pid_namespace(const machine& here);
/// Whether threads that are ready may wait for seconds, because each session is a scheduling group.
check check_autogroups(const machine& here);
std::vector<check> check_debugfs(const machine& here);
/// Whose work shows in queue pointers, so that no client need report it.
std::vector<check> check_pointers(const machine& here, const kfd::node_view& node);
std::vector<check> check_io_uring(const machine& here);

/// All of them.
std::vector<check> examine(const machine& here);

bool blocks(const std::vector<check>& all);
std::string doctor_text(const std::vector<check>& all);
boost::json::value doctor_json(const std::vector<check>& all);

}  // namespace sluice::cli
