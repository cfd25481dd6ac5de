#include "queues.hpp"

#include "breakers.hpp"
#include "control_link.hpp"
#include "driver_choice.hpp"
#include "holder_link.hpp"
#include "orphans.hpp"
#include "output.hpp"
#include "status_view.hpp"
#include "store_choice.hpp"
#include "subcommand.hpp"
#include "table.hpp"

#include <pwd.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <memory>
#include <thread>

#include <boost/json.hpp>
#include <fmt/format.h>

#include "sluice/discovery.hpp"
#include "sluice/duration_text.hpp"
#include "sluice/roles/classification.hpp"

namespace sluice::cli {

namespace {

namespace json = boost::json;
using namespace std::chrono_literals;

/// A holder answers at once unless it waits for its driver.
constexpr duration status_patience = 1s;

std::optional<uid_t> find_user(const std::string& word) {
  if (const auto id = whole_number<uid_t>(word)) return id;
  const passwd* const entry = ::getpwnam(word.c_str());  // NOLINT: no other thread asks.
  if (entry == nullptr) return {};
  return entry->pw_uid;
}

std::string user_text(const std::optional<uid_t>& user) {
  if (!user) return "-";
  const passwd* const entry = ::getpwuid(*user);  // NOLINT: no other thread asks.
  return entry != nullptr ? printable(entry->pw_name) : std::to_string(*user);
}

std::uint64_t sum(const std::map<gpu_id, std::uint64_t>& of) {
  std::uint64_t all = 0;
  for (const auto& [gpu, value] : of) all += value;
  return all;
}

std::string gpu_line(const gpu_description& gpu) {
  std::string line = fmt::format("GPU {}: gpu_id {}", gpu.ordinal, number(gpu.id));
  const auto add = [&](const std::string& text) {
    if (!text.empty()) line += ", " + text;
  };
  add(gpu.pci);
  for (const auto& each : gpu.facts) add(each.text);
  if (gpu.vram) add(bytes_text(*gpu.vram) + " VRAM");
  return line + "\n";
}

/// nullptr: nobody traces the process, and no `sluice suspend` holds it.
const holding* find(const holdings& held, pid_t pid) {
  const auto found = held.find(pid);
  return found == held.end() ? nullptr : &found->second;
}

roles::role_reason role_of(const roles::role_reasons& given, const process_description& process) {
  const auto found = given.find({process.pid, process.start_time});
  return found == given.end() ? roles::role_reason{} : found->second;
}

std::string role_text(const roles::role_reason& given) {
  return std::string{role_words(to_string(given.is), to_string(given.bar))};
}

/// Whether the queue is suspended, where its holder or a scheduler tells.
std::optional<bool> is_suspended(const about_processes& known, pid_t pid,
                                 const queue_description& queue) {
  if (const holding* const by = find(known.held, pid); by != nullptr && by->suspended)
    return std::ranges::find(*by->suspended, queue.id) != by->suspended->end();
  const auto found = known.scheduled.find({pid, queue.gpu, queue.kind});
  if (found == known.scheduled.end()) return {};
  return found->second;
}

bool is_evicted(const about_processes& known, pid_t pid, gpu_id gpu) {
  return known.evicted && known.evicted->contains({pid, gpu});
}

/// Empty: it is none.
std::string_view orphan_state(const about_processes& known, pid_t pid) {
  const auto found = known.left.find(pid);
  if (found == known.left.end()) return {};
  return orphan_state(found->second);
}

/// "-": none is known.
std::string state_text(const about_processes& known, pid_t pid, const queue_description& queue) {
  const holding* const by = find(known.held, pid);
  std::string state;
  // Records list no queues; copy queues usually run on.
  if (const auto left = orphan_state(known, pid);
      !left.empty() && queue.kind == queue_kind::compute)
    state = left;
  else if (is_suspended(known, pid, queue).value_or(false))
    state = "suspended";
  else if (by != nullptr)
    state = by->suspended ? "held" : "traced";
  if (is_evicted(known, pid, queue.gpu)) state += state.empty() ? "evicted" : "+evicted";
  return state.empty() ? "-" : state;
}

/// Calls `visit(process, gpu, milliseconds)` for each process whose time off a GPU went on between
/// two looks.
template <class Visit>
void for_each_eviction(const node_view& before, const node_view& now, Visit visit) {
  for (const auto& process : now.processes) {
    const auto earlier =
        std::ranges::find(before.processes, process.pid, &process_description::pid);
    if (earlier == before.processes.end() || earlier->start_time != process.start_time) continue;
    for (const auto& [gpu, ms] : process.evicted_ms) {
      const auto old = earlier->evicted_ms.find(gpu);
      if (old != earlier->evicted_ms.end() && ms > old->second)
        visit(process, gpu, ms - old->second);
    }
  }
}

template <class Value>
json::value or_null(const std::optional<Value>& value) {
  return value ? json::value(*value) : json::value(nullptr);
}

json::value pid_or_null(pid_t pid) { return pid != 0 ? json::value(pid) : json::value(nullptr); }

}  // namespace

std::optional<std::string> apply(const queue_filter& filter, node_view& node) {
  std::vector<gpu_id> gpus;
  for (const auto& word : filter.gpus) {
    const auto* const gpu = find_gpu(node, word);
    if (gpu == nullptr)
      return fmt::format("--gpu {}: no such GPU; 'sluice queues' lists the GPUs", printable(word));
    gpus.push_back(gpu->id);
  }
  std::vector<uid_t> users;
  for (const auto& word : filter.users) {
    const auto user = find_user(word);
    if (!user) return fmt::format("--user {}: no such user", printable(word));
    users.push_back(*user);
  }
  const auto among = [](const auto& wanted, const auto& value) {
    return wanted.empty() || std::ranges::find(wanted, value) != wanted.end();
  };
  std::erase_if(node.processes, [&](process_description& process) {
    if (!among(filter.pids, process.pid)) return true;
    if (!users.empty() && (!process.user || !among(users, *process.user))) return true;
    const bool had = !process.queues.empty();
    std::erase_if(process.queues, [&](const queue_description& queue) {
      return !among(gpus, queue.gpu) ||
             (filter.compute && *filter.compute != (queue.kind == queue_kind::compute));
    });
    if (!gpus.empty()) {
      std::erase_if(process.vram, [&](const auto& each) { return !among(gpus, each.first); });
      std::erase_if(process.evicted_ms, [&](const auto& each) { return !among(gpus, each.first); });
    }
    // One without any queue is shown for the memory that it holds.
    return process.queues.empty() &&
           (had || filter.compute || (!gpus.empty() && sum(process.vram) == 0));
  });
  std::erase_if(node.gpus, [&](const auto& gpu) { return !among(gpus, gpu.id); });
  return {};
}

std::vector<std::string> memory_warnings(const node_view& before, const node_view& now) {
  constexpr double nearly_all = 0.9;
  std::vector<std::string> warnings;
  for (const auto& gpu : now.gpus) {
    const std::uint64_t used = now.used_vram(gpu.id).value_or(0);
    if (!gpu.vram || static_cast<double>(used) < nearly_all * static_cast<double>(*gpu.vram))
      continue;
    warnings.push_back(fmt::format(
        "GPU {}: {} of {} VRAM in use; suspending frees no memory: end a process, or reduce its "
        "memory",
        gpu.ordinal, bytes_text(used), bytes_text(*gpu.vram)));
  }
  for_each_eviction(before, now, [&](const auto& process, gpu_id gpu, std::uint64_t ms) {
    if (const auto* const where = now.find(gpu))
      warnings.push_back(
          fmt::format("GPU {}: the driver is evicting process {} ({}) because GPU memory is short "
                      "(evicted for {} ms since the last sample); suspending frees no memory",
                      where->ordinal, process.pid, printable(process.command), ms));
  });
  return warnings;
}

evictions evicted_between(const node_view& before, const node_view& now) {
  evictions found;
  for_each_eviction(before, now, [&](const auto& process, gpu_id gpu, std::uint64_t) {
    found.emplace(process.pid, gpu);
  });
  return found;
}

scheduler_states ask_scheduler(const node_view& node, const node_files& files) {
  scheduler_states states;
  control_failure failed;
  const time_point end = clock::now() + status_patience;
  const auto status =
      control_link{files, [end] { return clock::now() < end; }}.ask({{"ask", "status"}}, failed);
  if (!status) return states;
  for (const suspended_count& on : suspended_counts(*status)) {
    const auto seen = std::ranges::find(node.processes, on.pid, &process_description::pid);
    if (seen == node.processes.end() || seen->start_time != on.start_time || on.in_doubt != 0)
      continue;
    // Compute queues are suspended first, and the others only with all of them.
    if (on.suspended == 0 || on.suspended >= on.compute)
      states[{on.pid, on.gpu, queue_kind::compute}] = on.suspended != 0;
    if (on.suspended <= on.compute || on.suspended == on.compute + on.others)
      states[{on.pid, on.gpu, queue_kind::copy}] = on.suspended > on.compute;
  }
  return states;
}

holdings ask_holders(const node_view& node) {
  holdings held;
  const auto names = list_holders();
  for (const auto& process : node.processes) {
    holding by;
    if (process.tracer != 0) by.tracer = tracer_of(process.pid).value_or(0);
    if (const auto answer = ask_holder(names, process.pid, "status", status_patience)) {
      by.holder = answer->holder;
      by.suspended = suspended_queues(answer->text);
    }
    if (by.tracer != 0 || by.holder != 0) held.emplace(process.pid, std::move(by));
  }
  return held;
}

std::string queues_text(const node_view& node, const about_processes& known, std::size_t width) {
  using enum table::align;
  table rows{{{"PID", right},
              {"USER", left, true},
              {"COMMAND", left, true},
              {"ROLE"},
              {"GPU", right},
              {"QUEUE", right},
              {"TYPE"},
              {"SIZE", right},
              {"PRIO", right},
              {"STATE"},
              {"VRAM", right}}};
  for (const auto& process : node.processes) {
    const std::string pid = std::to_string(process.pid);
    const std::string user = user_text(process.user);
    const std::string command = printable(process.command);
    const std::string what = role_text(role_of(known.given, process));
    const holding* const by = find(known.held, process.pid);
    const std::string_view left = orphan_state(known, process.pid);
    if (process.queues.empty())
      rows.add({pid, user, command, what, "-", "-", "-", "-", "-",
                !left.empty()     ? std::string{left}
                : by == nullptr   ? "-"
                : by->holder != 0 ? "held"
                                  : "traced",
                bytes_text(sum(process.vram))});
    for (const auto& queue : process.queues) {
      const auto* const gpu = node.find(queue.gpu);
      const auto vram = process.vram.find(queue.gpu);
      rows.add({pid, user, command, what, gpu != nullptr ? std::to_string(gpu->ordinal) : "?",
                std::to_string(number(queue.id)), queue.type,
                queue.ring_bytes != 0 ? bytes_text(queue.ring_bytes) : "-",
                queue.priority ? std::to_string(*queue.priority) : "-",
                state_text(known, process.pid, queue),
                vram != process.vram.end() ? bytes_text(vram->second) : "-"});
    }
  }
  std::string out;
  for (const auto& gpu : node.gpus) out += gpu_line(gpu);
  if (rows.empty() && known.unfiltered != 0)
    return out + (known.unfiltered == 1
                      ? "1 process uses the driver, but the filter does not match it\n"
                      : fmt::format("{} processes use the driver, but none matches the filter\n",
                                    known.unfiltered));
  if (rows.empty())
    return out + (node.hidden.empty() ? "no process uses a GPU\n"
                                      : "no process that this user may see uses a GPU\n");
  return out + "\n" + rows.text(width);
}

json::value queues_json(const node_view& node, const about_processes& known,
                        const std::vector<std::string>& warnings) {
  json::array gpus;
  for (const auto& gpu : node.gpus) {
    json::object shown{
        {"gpu_id", number(gpu.id)},
        {"ordinal", gpu.ordinal},
        {"name", gpu.name},
        {"pci", gpu.pci},
        {"vram_bytes", or_null(gpu.vram)},
        {"vram_used_bytes", or_null(node.used_vram(gpu.id))},
    };
    for (const auto& each : gpu.facts)
      std::visit([&](const auto& value) { shown[each.key] = value; }, each.value);
    gpus.push_back(std::move(shown));
  }
  json::array processes;
  for (const auto& process : node.processes) {
    const holding* const by = find(known.held, process.pid);
    const roles::role_reason given = role_of(known.given, process);
    const auto left = known.left.find(process.pid);
    json::array queues;
    for (const auto& queue : process.queues) {
      queues.push_back(json::object{
          {"queue_id", number(queue.id)},
          {"gpu_id", number(queue.gpu)},
          {"type", queue.type},
          {"ring_bytes",
           queue.ring_bytes != 0 ? json::value(queue.ring_bytes) : json::value(nullptr)},
          {"priority", or_null(queue.priority)},
          {"suspended", or_null(is_suspended(known, process.pid, queue))},
          {"evicted", known.evicted ? json::value(is_evicted(known, process.pid, queue.gpu))
                                    : json::value(nullptr)},
      });
    }
    json::object memory;
    for (const auto& [gpu, bytes] : process.vram) memory[std::to_string(number(gpu))] = bytes;
    json::object evicted;
    for (const auto& [gpu, ms] : process.evicted_ms) evicted[std::to_string(number(gpu))] = ms;
    processes.push_back(json::object{
        {"pid", process.pid},
        {"command", process.command},
        {"uid", or_null(process.user)},
        {"user", user_text(process.user)},
        {"role", to_string(given.is)},
        {"role_rule", to_string(given.rule)},
        {"role_bar", to_string(given.bar)},
        {"role_why", to_text(given)},
        {"traced_by", pid_or_null(by != nullptr ? by->tracer : 0)},
        {"held_by", pid_or_null(by != nullptr ? by->holder : 0)},
        {"orphaned", orphan_state(known, process.pid) == "orphaned"},
        {"stopped_guardian",
         pid_or_null(left != known.left.end() ? left->second.stopped_guardian : 0)},
        {"vram_bytes", std::move(memory)},
        {"evicted_ms", std::move(evicted)},
        {"queues", std::move(queues)},
    });
  }
  json::array said;
  for (const auto& each : warnings) said.emplace_back(each);
  return json::object{{"version", 1},
                      {"gpus", std::move(gpus)},
                      {"processes", std::move(processes)},
                      {"warnings", std::move(said)}};
}

subcommand add_queues(CLI::App& program, const driver_list& known) {
  struct options {
    queue_filter filter;
    std::string type;
    duration interval = 200ms;
    std::string config;
    std::string driver;
    node_files files;
    bool json = false;
  };
  const auto chosen = std::make_shared<options>();
  auto* const command =
      program.add_subcommand("queues", "List processes that use GPUs and their queues");
  command->add_option("--pid", chosen->filter.pids, "Show only these processes")
      ->check(a_process_id())
      ->type_name("PID");
  command
      ->add_option("--gpu", chosen->filter.gpus,
                   "Show only these GPUs: gpu_id, ordinal, PCI or unique id")
      ->type_name("GPU");
  command
      ->add_option("--type", chosen->type, "Show only compute queues, or only copy queues (sdma)")
      ->check(CLI::IsMember({"compute", "copy", "sdma"}))
      ->type_name("TYPE")
      ->option_text("TYPE");
  command->add_option("--user", chosen->filter.users, "Show only processes of these users")
      ->type_name("USER");
  command
      ->add_option_function<std::string>(
          "--interval",
          [chosen](const std::string& text) {
            const auto value = parse_duration(text);
            if (!value || *value < 0s || *value > 1h)
              throw CLI::ValidationError(
                  "--interval",
                  "invalid duration '" + text + "': expected 0s to 1h, such as 200ms or 2s");
            chosen->interval = *value;
          },
          "Interval in which to detect evictions; 0s: off [200ms]")
      ->type_name("TIME");
  command
      ->add_option("--config", chosen->config,
                   "TOML file with the table [roles] for the column ROLE")
      ->type_name("FILE");
  add_driver(*command, known, chosen->driver);
  add_directory(*command, chosen->files);
  command->add_flag("--json", chosen->json, "Print one line of JSON");
  command->footer(
      "STATE suspended: by 'sluice suspend' or a scheduler. Held: by 'sluice suspend',\n"
      "but this queue runs. Orphaned, guardian-stopped: perhaps suspended, see the\n"
      "warning. Traced: only the tracer knows whether the queue runs. Evicted: memory\n"
      "is short. ROLE: by the rules of --config, or the default rules; '-': none;\n"
      "released: by 'sluice release'; gang: not complete. Only root sees priorities.\n" +
      std::string{exit_codes});
  return {
      command, [chosen, known] {
        if (!chosen->type.empty()) chosen->filter.compute = chosen->type == "compute";
        const auto driver = find_driver(known, chosen->driver);
        if (!driver) return exit_failed;
        const bool twice = chosen->interval > 0s;
        const auto before = twice ? driver->look() : driver->look_closely();
        if (!before) {
          complain(driver->why_no_look(before.error()));
          return exit_failed;
        }
        for (const pid_t pid : chosen->filter.pids) {
          if (std::ranges::find(before->processes, pid, &process_description::pid) !=
              before->processes.end())
            continue;
          complain("--pid: " + driver->why_not_listed(pid));
          return exit_failed;
        }
        node_view seen = *before;
        about_processes about;
        if (twice) {
          std::this_thread::sleep_for(chosen->interval);
          if (auto again = driver->look_closely()) seen = std::move(*again);
          about.evicted = evicted_between(*before, seen);
        }
        about.unfiltered = seen.processes.size();
        auto warnings = memory_warnings(*before, seen);
        auto breakers = open_breakers(*driver);
        std::ranges::move(breaker_warnings(seen, breakers), std::back_inserter(warnings));
        if (const auto wrong = apply(chosen->filter, seen)) {
          complain(*wrong);
          return exit_failed;
        }
        if (!seen.hidden.empty()) warnings.push_back(seen.hidden);
        for (const auto& each : seen.processes)
          if (!each.not_suspended.empty())
            warnings.push_back(fmt::format("process {} ({}) {}; sluice does not suspend it",
                                           each.pid, printable(each.command), each.not_suspended));
        std::string message;
        const auto rules = load_rules(chosen->config, message);
        if (!rules) {
          complain(message);
          return exit_failed;
        }
        about.given = roles_now(*driver->make_survey(complain), *rules, complain);
        about.held = ask_holders(seen);
        about.scheduled = ask_scheduler(seen, chosen->files);
        about.left = find_orphans(chosen->files);
        std::erase_if(about.left, [&](const auto& each) {
          return std::ranges::find(seen.processes, each.first, &process_description::pid) ==
                 seen.processes.end();
        });
        for (const auto& [pid, each] : about.left)
          warnings.push_back(orphan_text(pid, each, chosen->files));
        if (chosen->json) {
          auto all = queues_json(seen, about, warnings);
          all.as_object()["breakers"] = breakers_json(breakers);
          return print(all) ? exit_done : exit_failed;
        }
        if (!print(queues_text(seen, about, terminal_width()))) return exit_failed;
        for (const auto& each : warnings) complain("warning: " + each);
        return exit_done;
      }};
}

}  // namespace sluice::cli
