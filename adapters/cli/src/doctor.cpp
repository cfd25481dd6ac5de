#include "doctor.hpp"

#include "breakers.hpp"
#include "control_link.hpp"
#include "daemon_choice.hpp"
#include "driver_choice.hpp"
#include "found_record.hpp"
#include "orphans.hpp"
#include "output.hpp"
#include "subcommand.hpp"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include <boost/json.hpp>
#include <fmt/format.h>

#include "sluice/reactor.hpp"

namespace sluice::cli {

namespace {

namespace json = boost::json;

/// Whether this process may open the file for writing, or else make it, and the directories above
/// it.
bool may_change(const std::string& path) {
  const auto may = [](const std::string& what, int how) {
    return ::faccessat(AT_FDCWD, what.c_str(), how, AT_EACCESS) == 0;
  };
  if (may(path, F_OK)) return may(path, R_OK | W_OK);
  auto above = std::filesystem::path{path}.parent_path();
  while (!above.empty() && above.has_relative_path() && !may(above, F_OK))
    above = above.parent_path();
  return may(above.empty() ? "." : above.string(), W_OK | X_OK);
}

}  // namespace

check check_kernel(const machine& here) {
  const std::string path = "/proc/sys/kernel/osrelease";
  const auto release = here.first_line(path);
  return {"kernel", release ? verdict::good : verdict::unknown, release.value_or("cannot be read"),
          path};
}

std::vector<check> check_agent(const machine& here) {
  struct stat about {};
  if (here.agent.empty() || ::stat(here.agent.c_str(), &about) != 0) return {};
  if (::getxattr(here.agent.c_str(), "security.capability", nullptr, 0) <= 0) return {};
  check made{"agent", verdict::good,
             fmt::format("{} has file capabilities, and only its owner and group may execute it",
                         here.agent),
             fmt::format("mode {:04o}; file capabilities", about.st_mode & 07777U)};
  if ((about.st_mode & S_IXOTH) != 0) {
    made.what = verdict::note;
    made.found = fmt::format(
        "every user may execute {}, and with its file capabilities any user can suspend the work "
        "of other users",
        here.agent);
    made.advice = fmt::format(
        "run chmod o-x {}, and chgrp it to a group that contains the user who starts the agent",
        here.agent);
  }
  return {made};
}

check check_autogroups(const machine& here) {
  const std::string how = "/proc/sys/kernel/sched_autogroup_enabled";
  const auto setting = here.first_line(how);
  if (!setting) return {"autogroups", verdict::good, "not supported by the kernel", how};
  if (setting == "0") return {"autogroups", verdict::good, "off", how};
  return {
      "autogroups", verdict::note,
      "on: each session is one CPU scheduling group, so threads of sluice may wait for seconds "
      "on a busy node (observed with Linux 6.18)",
      how,
      "set kernel.sched_autogroup_enabled=0, or run sluice in its own CPU cgroup, as the systemd "
      "service does (CPUWeight=)"};
}

check check_pid_namespace(const machine& here) {
  // PROC_PID_INIT_INO of linux/proc_ns.h.
  constexpr std::string_view initial = "pid:[4026531836]";
  std::error_code error;
  const auto link = std::filesystem::read_symlink(here.prefix + "/proc/self/ns/pid", error);
  const std::string how = "/proc/self/ns/pid";
  if (error) return {"pid namespace", verdict::unknown, "cannot be read", how};
  if (link == initial) return {"pid namespace", verdict::good, "initial namespace", how};
  return {"pid namespace", verdict::note,
          "not the initial namespace, but the driver reports pids of the initial namespace", how,
          "on a real GPU, run in the host's pid namespace (docker run --pid=host, hostPID: true)"};
}

std::vector<check> check_io_uring(const machine& here, int error) {
  std::vector<check> all;
  const auto setting = here.first_line("/proc/sys/kernel/io_uring_disabled");
  const std::string how =
      "io_uring_setup(2)" +
      (setting ? "; /proc/sys/kernel/io_uring_disabled is " + *setting : std::string{});
  if (error == 0) {
    all.push_back({"io_uring", verdict::good, "available", how});
    return all;
  }
  std::string advice = "use the epoll build (-DSLUICE_ASIO_BACKEND=epoll), or ";
  if (setting && *setting != "0")
    advice += "set kernel.io_uring_disabled=0";
  else if (error == ENOSYS)
    advice += "use a kernel with CONFIG_IO_URING";
  else if (error == ENOMEM)
    advice += "raise the limit below";
  else
    advice += "allow io_uring_setup in the container's seccomp profile";
  all.push_back({"io_uring", verdict::note, "refused: " + error_text(error), how, advice});
  if (error == ENOMEM) {
    rlimit limit{};
    ::getrlimit(RLIMIT_MEMLOCK, &limit);
    all.push_back(
        {"memlock", verdict::note,
         fmt::format(
             "this process may lock {} bytes; before Linux 5.12, io_uring uses locked memory",
             limit.rlim_cur),
         "getrlimit(2)",
         "run ulimit -l unlimited, or set LimitMEMLOCK=infinity in the systemd unit"});
  }
  return all;
}

check check_pause(const node_files& files) {
  const std::string path = files.disabled();
  const auto why = paused_why(files);
  if (!why) {
    struct stat found {};
    if (::lstat(path.c_str(), &found) != 0 && errno != ENOENT)
      return {"pause", verdict::unknown,
              fmt::format("cannot look for {}: {}", path, error_text(errno)), "lstat(2)",
              "run as root"};
    return {"pause", verdict::good, "not paused", path + " does not exist"};
  }
  return {"pause", verdict::blocked,
          "paused: " + path + " exists" + (why->empty() ? "" : ": " + *why), "lstat(2)",
          "run 'sluice unpause': sluice suspends no queue while it is paused"};
}

check check_records(const node_files& files) {
  const std::string name = "records";
  const std::string how = files.owner() + ".holds, and those of 'sluice suspend' beside it";
  // By record, as each has an agent of its own.
  std::map<std::string, std::pair<orphan_words, std::string>> left;
  for (const auto& [pid, each] : find_orphans(files)) {
    auto& [words, names] = left[each.record];
    words = words_of(each, files);
    names += fmt::format("{}process {} ({})", names.empty() ? "" : ", ", pid, command_of(pid));
  }
  std::string found;
  std::string advice;
  for (const auto& [record, each] : left) {
    const auto& [words, names] = each;
    found +=
        fmt::format("{}{}, so these may still be suspended, or have a shortened time slice: {}",
                    found.empty() ? "" : "; ", words.why, names);
    if (advice.find(words.advice) == std::string::npos)
      advice += (advice.empty() ? "" : "; ") + words.advice;
  }
  if (!left.empty()) return {name, verdict::blocked, found, how, advice};
  for (const auto& each : agent::find_records(files.owner()))
    if (each.error)
      return {name, verdict::unknown,
              fmt::format("{} cannot be read: {}", each.path, each.error.message()), how,
              "run as root"};
  return {name, verdict::good, "no process was left suspended by a killed agent", how};
}

check check_owner_lock(const node_files& files) {
  const std::string path = files.owner();
  const std::string how = "access(2); schedulers can be configured to use another path";
  if (may_change(path)) return {"owner lock", verdict::good, "this user can open " + path, how};
  return {
      "owner lock", verdict::blocked,
      path + " cannot be opened by this user, so a scheduler of this user cannot start", how,
      "run the scheduler as a user who can open the file, or set another path: directory of "
      "[daemon] for 'sluice run' (then use doctor --directory), or owner_lock in a program that "
      "embeds sluice"};
}

std::vector<check> check_breakers(const breaker_store& store, const node_view& node) {
  std::string message;
  auto open = store.read(message);
  const std::string how =
      store.path() + ", which schedulers write; resets that no scheduler noticed are only in dmesg";
  if (!open)
    return {{"breakers", verdict::unknown, message, store.path(),
             "make the file readable; until then, a scheduler that starts ignores open breakers"}};
  drop_over(*open);
  const bool none_left = !node.gpus.empty() && std::ranges::all_of(node.gpus, [&](const auto& gpu) {
    return open->contains(gpu.id);
  });
  std::vector<check> all;
  for (const auto& [gpu, each] : *open)
    all.push_back(
        {"breakers", none_left && node.find(gpu) != nullptr ? verdict::blocked : verdict::note,
         fmt::format("{}: its breaker is open: {}", gpu_name(node, gpu),
                     breaker_text(gpu, each, node)),
         how,
         fmt::format("end the processes whose queues are older than a reset, because these "
                     "queues are lost; when the GPU works again (see dmesg), run sluice breaker "
                     "rearm {}; until then, sluice suspends no queue on this GPU",
                     number(gpu))});
  if (all.empty()) all.push_back({"breakers", verdict::good, "none is open", how});
  if (!may_change(store.path() + ".lock"))
    all.push_back(
        {"breakers", verdict::note, store.path() + " cannot be written by this user", "access(2)",
         "run as root, or set SLUICE_BREAKERS to a file of this user: otherwise this user cannot "
         "re-arm breakers, and a scheduler of this user loses its open breakers when it ends"});
  return all;
}

std::vector<check> check_drivers(const drivers& found, const drivers& all) {
  const std::string how = fmt::format("known drivers: {}", fmt::join(driver_names(all), ", "));
  if (found.size() > 1)
    return {{"drivers", verdict::note,
             fmt::format("{} are present", fmt::join(driver_names(found), ", ")), how,
             "set driver of [daemon], or --driver, to one of them"}};
  std::vector<check> made;
  for (const auto& each : found.empty() ? all : found) {
    const std::string absent = each->why_absent();
    made.push_back({"drivers", absent.empty() ? verdict::good : verdict::blocked,
                    fmt::format("{}{}", each->name(), absent.empty() ? "" : " is not present"), how,
                    absent});
  }
  return made;
}

std::vector<check> examine(const examination& here, const drivers& all, std::string_view name) {
  const drivers found = candidates(all, name);
  std::vector<check> made{check_kernel(here)};
  const auto add = [&made](std::vector<check> more) {
    std::ranges::move(more, std::back_inserter(made));
  };
  add(check_drivers(found, all));
  for (const auto& each : found) {
    const bool configured = here.configured && here.configured->name() == each->name();
    auto more = configured ? here.configured->examine(here) : each->examine(here);
    if (found.size() > 1)
      for (check& one : more) one.name = fmt::format("{}: {}", each->name(), one.name);
    add(std::move(more));
  }
  add(check_agent(here));
  made.push_back(check_owner_lock(here.files));
  made.push_back(check_records(here.files));
  made.push_back(check_pause(here.files));
  for (const auto& each : found) {
    const auto node = each->look();
    add(check_breakers(
        breaker_store{here.breakers.empty() ? breaker_store::default_path(each->device_key())
                                            : here.breakers},
        node ? *node : node_view{}));
  }
  made.push_back(check_pid_namespace(here));
  made.push_back(check_autogroups(here));
  add(check_io_uring(here, here.try_io_uring()));
  return made;
}

bool blocks(const std::vector<check>& all) {
  return std::ranges::any_of(all, [](const check& each) { return each.what == verdict::blocked; });
}

namespace {

std::string_view name_of(verdict what) {
  switch (what) {
    case verdict::good: return "ok";
    case verdict::note: return "note";
    case verdict::unknown: return "unknown";
    case verdict::blocked: return "BLOCKED";
  }
  return "?";
}

}  // namespace

std::string doctor_text(const std::vector<check>& all) {
  std::string text;
  for (const check& each : all) {
    text += fmt::format("{:<8} {}: {}\n         ({})\n", name_of(each.what), each.name, each.found,
                        each.how);
    if (!each.advice.empty()) text += fmt::format("         -> {}\n", each.advice);
  }
  text += blocks(all) ? "preemption does not work on this node: fix each BLOCKED check\n"
                      : "nothing blocks preemption\n";
  return text;
}

json::value doctor_json(const std::vector<check>& all) {
  json::array checks;
  for (const check& each : all) {
    std::string what{name_of(each.what)};
    std::ranges::transform(what, what.begin(), [](char letter) {
      return letter >= 'A' && letter <= 'Z' ? static_cast<char>(letter - 'A' + 'a') : letter;
    });
    checks.push_back(json::object{{"name", each.name},
                                  {"verdict", what},
                                  {"found", each.found},
                                  {"how", each.how},
                                  {"advice", each.advice}});
  }
  return json::object{{"version", 1}, {"blocked", blocks(all)}, {"checks", std::move(checks)}};
}

subcommand add_doctor(CLI::App& program, const driver_list& known) {
  struct options {
    bool json = false;
    node_files files;
    std::string driver;
    std::string config;
  };
  const auto chosen = std::make_shared<options>();
  auto* const command =
      program.add_subcommand("doctor", "Check whether preemption works here and what blocks it");
  command->footer(
      "Checks the kernel, the driver, the GPUs, permissions, debugfs and io_uring, and\n"
      "shows the source of each result. Changes nothing and traces no process.\n"
      "Exit code 0: nothing blocks preemption (there may be notes); 1: preemption is\n"
      "blocked; 2: invalid command line.");
  command->add_flag("--json", chosen->json, "Print one line of JSON");
  add_directory(*command, chosen->files);
  add_driver(*command, known, chosen->driver);
  add_daemon(*command, chosen->config);
  return {command, [chosen, known] {
            const auto daemon = choose_daemon(chosen->config, chosen->files, chosen->driver, known);
            if (!daemon) return exit_failed;
            examination here;
            here.files = daemon->files;
            here.configured = daemon->on;
            std::error_code error;
            const auto own = std::filesystem::read_symlink("/proc/self/exe", error);
            const auto agent = own.parent_path() / "sluice-agent";
            if (!error && ::access(agent.c_str(), X_OK) == 0) here.agent = agent;
            if (!daemon->agent.empty()) here.agent = daemon->agent;
            here.try_io_uring = [] {
              const auto granted = probe_io_uring();
              return granted ? 0 : granted.error().value();
            };
            const auto found =
                examine(here, make_all(known), daemon->on ? daemon->on->name() : chosen->driver);
            const bool printed =
                chosen->json ? print(doctor_json(found)) : print(doctor_text(found));
            return printed && !blocks(found) ? exit_done : exit_failed;
          }};
}

}  // namespace sluice::cli
