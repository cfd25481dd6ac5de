#pragma once
/// \file
/// `sluice doctor` without its command line: what it finds, how, and what to do about it.

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <boost/json/value.hpp>

#include "sluice/breaker_store.hpp"
#include "sluice/check.hpp"
#include "sluice/driver_list.hpp"
#include "sluice/node_files.hpp"

namespace sluice::cli {

struct examination : machine {
  std::string breakers{};  ///< Their file; empty: each driver's.
  node_files files{};
  std::shared_ptr<const driver> configured{};  ///< Stands for the one of its name. Null: none does.
  /// Asks the kernel for a ring as large as the runtime's. \return 0 or an errno.
  std::function<int()> try_io_uring;
};

// Each looks at one thing. None changes anything or traces anybody.
check check_kernel(const machine& here);
/// Which drivers there are. \param found those that are examined.
std::vector<check> check_drivers(const drivers& found, const drivers& all);
/// Whether an agent with capabilities is everybody's to execute; nothing of one that has none.
std::vector<check> check_agent(const machine& here);
/// Whether 'sluice pause' holds.
check check_pause(const node_files& files);
/// Whether a process stays suspended because agent and guardian were killed.
check check_records(const node_files& files);
/// Whether this user may own the node by the lock that schedulers take unless told another.
check check_owner_lock(const node_files& files);
/// What schedulers wrote down; the driver shows no reset that is over. Blocked where they leave all
/// GPUs alone.
std::vector<check> check_breakers(const breaker_store& store, const node_view& node);
check check_pid_namespace(const machine& here);
/// Whether threads that are ready may wait for seconds, because each session is a scheduling group.
check check_autogroups(const machine& here);
/// \param error of an attempt to make a ring; 0: it was granted.
std::vector<check> check_io_uring(const machine& here, int error);

/// All of them, and those of the drivers.
/// \param name as of candidates(): whose checks.
std::vector<check> examine(const examination& here, const drivers& all, std::string_view name);

bool blocks(const std::vector<check>& all);
std::string doctor_text(const std::vector<check>& all);
boost::json::value doctor_json(const std::vector<check>& all);

}  // namespace sluice::cli
