#pragma once
/// \file
/// `sluice queues` without its command line: what it shows of a look at the node.

#include "orphans.hpp"

#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <boost/json/value.hpp>

#include "sluice/node_files.hpp"
#include "sluice/node_view.hpp"
#include "sluice/result.hpp"
#include "sluice/roles/role_reason.hpp"

namespace sluice::cli {

struct queue_filter {
  std::vector<pid_t> pids{};         ///< Empty: all.
  std::vector<std::string> gpus{};   ///< gpu_id, ordinal, PCI address or unique id.
  std::optional<bool> compute{};     ///< Only compute queues, or only others.
  std::vector<std::string> users{};  ///< Names or numbers.
};

/// Keeps what the filter asks for. \return a sentence when it names a GPU or user that is not
/// there.
std::optional<std::string> apply(const queue_filter& filter, node_view& node);

/// Where the driver has taken whose queues off a GPU for want of memory.
using evictions = std::set<std::pair<pid_t, gpu_id>>;

/// Those whose time went on between two looks: the driver shows only how long they lasted in all.
evictions evicted_between(const node_view& before, const node_view& now);

/// Sentences about memory: GPUs almost full, and processes whose queues were evicted between two
/// looks. Suspending helps with neither.
std::vector<std::string> memory_warnings(const node_view& before, const node_view& now);

/// What is known of a process that is traced or held.
struct holding {
  pid_t tracer = 0;  ///< The tracing process.
  pid_t holder = 0;  ///< The `sluice suspend`; with some drivers it need not trace.
  /// The queues that it has suspended; nothing: nobody tells.
  std::optional<std::vector<driver_queue_id>> suspended{};
};
using holdings = std::map<pid_t, holding>;

/// Asks every `sluice suspend` that holds one of the processes.
holdings ask_holders(const node_view& node);

/// Whether the queues of a kind of a process are suspended on a GPU, where a scheduler tells.
using scheduler_states = std::map<std::tuple<pid_t, gpu_id, queue_kind>, bool>;
/// Asks the owner of the node. Where only some queues of a kind are suspended, none is known.
scheduler_states ask_scheduler(const node_view& node, const node_files& files);

/// What is known of the processes beside the look.
struct about_processes {
  holdings held{};
  scheduler_states scheduled{};
  roles::role_reasons given{};
  orphans left{};
  std::optional<evictions> evicted{};  ///< Nothing: not known, of one look.
  std::size_t unfiltered = 0;          ///< How many processes there were before the filter.
};

std::string queues_text(const node_view& node, const about_processes& known, std::size_t width);
boost::json::value queues_json(const node_view& node, const about_processes& known,
                               const std::vector<std::string>& warnings);

}  // namespace sluice::cli
