// sluice accept: the first hour on a GPU that nobody has suspended anything on yet.

#include "acceptance.hpp"
#include "acceptance_hands.hpp"
#include "breakers.hpp"
#include "driver_choice.hpp"
#include "lost_queues.hpp"
#include "output.hpp"
#include "subcommand.hpp"
#include "tested_driver.hpp"

#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <memory>
#include <set>
#include <sstream>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "sluice/duration_text.hpp"
#include "sluice/os/node_lock.hpp"

namespace sluice::cli {

namespace acceptance {
namespace {

using namespace std::chrono_literals;

struct accept_options {
  settings how{.where = {},
               .victim = {},
               .owner_lock = {},
               .repeat = 100,
               .window = 2s,
               .limit = 60s,
               .settle = 1s};
  std::string steps;
  std::string report = "accept.md";
  std::string profile = "profile.toml";
  bool beside_others = false;
  bool force = false;
  bool list = false;
  bool dry_run = false;
  std::string driver;
};

/// Beside this program.
std::string sibling(const std::string& name) {
  std::error_code error;
  const auto own = std::filesystem::read_symlink("/proc/self/exe", error);
  auto path = (own.parent_path() / name).string();
  return !error && ::access(path.c_str(), X_OK) == 0 ? path : "";
}

/// In the order of all_steps(). \return nothing, after a complaint, for a name that is none.
std::optional<std::vector<const step*>> choose(const std::string& names) {
  std::vector<const step*> chosen;
  if (names.empty()) {
    for (const auto& each : all_steps()) chosen.push_back(&each);
    return chosen;
  }
  std::set<std::string, std::less<>> wanted;
  std::istringstream words{names};
  for (std::string word; std::getline(words, word, ',');) wanted.insert(word);
  for (const auto& each : all_steps())
    if (const auto found = wanted.find(each.name); found != wanted.end()) {
      chosen.push_back(&each);
      wanted.erase(found);
    }
  if (wanted.empty() && !chosen.empty()) return chosen;
  std::string all;
  for (const auto& each : all_steps())
    all += fmt::format("{}{}", all.empty() ? "" : ", ", each.name);
  complain(fmt::format("--steps: unknown step '{}'; available: {}",
                       printable(wanted.empty() ? "" : *wanted.begin()), all));
  return {};
}

/// \param driver empty: the risks with each driver.
int list(const std::vector<const step*>& chosen, duration limit, std::string_view driver) {
  const auto risk = [&](std::string_view of, std::string_view words) {
    if (words.empty() || (!driver.empty() && driver != of)) return std::string{};
    return fmt::format("{:<16}   at worst{}: {}\n", "",
                       driver.empty() ? fmt::format(" with driver {}", of) : "", words);
  };
  print(fmt::format("Steps in order of rising risk (time limit of each step: {}):\n",
                    to_text(limit)));
  for (const auto* each : chosen)
    print(fmt::format("{:<16} {}\n{}{}{}", each->name, each->does, risk("kfd", each->risk),
                      risk("nvidia", each->nvidia_risk),
                      each->only_with.empty()
                          ? ""
                          : fmt::format("{:<16}   only with driver {}\n", "", each->only_with)));
  return exit_done;
}

/// The driver may list this process, and `agent`.
result<std::vector<std::string>> others(const driver& on, pid_t agent = 0) {
  std::vector<std::string> all;
  const auto node = on.look();
  if (!node) return node.error();
  for (const auto& each : node->processes)
    if (each.pid != ::getpid() && each.pid != agent)
      all.push_back(fmt::format("{} ({})", each.pid, printable(each.command)));
  return all;
}

std::string unread_text(const driver& on, error_code why) {
  return "cannot list the processes that use the driver: " + on.why_no_look(why);
}

class acceptance_run {
 public:
  acceptance_run(const accept_options& chosen, std::vector<const step*> steps,
                 std::unique_ptr<tested_driver> tested)
      : chosen_(chosen),
        how_(chosen.how),
        steps_(std::move(steps)),
        tested_(std::move(tested)),
        on_(tested_->on()) {}

  int run() {
    if (const auto wrong =
            problem_with_files({{"--report", chosen_.report}, {"--profile", chosen_.profile}});
        !wrong.empty()) {
      complain(wrong);
      return exit_usage;
    }
    if (!find_victim() || !look()) return exit_failed;
    if (chosen_.dry_run) {
      std::string names;
      for (const auto* each : steps_)
        names += fmt::format("{}{}", names.empty() ? "" : ", ", each->name);
      print(
          fmt::format("Dry run: no step was started. Victim: {}; steps: {}\n", how_.victim, names));
      return exit_done;
    }
    output_file report{chosen_.report}, profile{chosen_.profile};
    report_ = &report;
    if (!report.ready() || !profile.ready()) return exit_failed;
    // Before any thread starts, so that each has them blocked.
    sigset_t ends;
    sigemptyset(&ends);
    for (const int each : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) sigaddset(&ends, each);
    ::sigprocmask(SIG_BLOCK, &ends, nullptr);
    for (const int each : {SIGPIPE, SIGTSTP, SIGTTIN, SIGTTOU}) ::signal(each, SIG_IGN);
    const unique_fd signals{::signalfd(-1, &ends, SFD_CLOEXEC | SFD_NONBLOCK)};
    {
      hands by{how_, signals.get(), on_.acting()};
      if (const auto deaf = node_.gpus.size() - resets_.size(); deaf != 0) {
        about_.notes.push_back(
            fmt::format("the driver does not report resets of {} of {} GPUs to this process ({}); "
                        "on these GPUs, accept detects failed driver calls, but no resets",
                        deaf, node_.gpus.size(), tested_->why_deaf()));
        complain("warning: " + about_.notes.back());
      }
      if (!by.start(std::move(resets_))) return exit_failed;
      if (about_.device.simulated)
        print(std::string{"The device is SIMULATED: no result was measured on hardware.\n"});
      go(by);
      if (auto failures = by.take_failures(); !failures.empty()) open_breakers_of(on_, failures);
    }
    bool written = report.write([this](const auto& put) { put(report_text(about_)); });
    const auto text = acceptance::profile_text(about_);
    if (text.empty())
      print(fmt::format("{} was not written: no suspend-* step measured a suspend and a resume\n",
                        chosen_.profile));
    else
      written = profile.write([&](const auto& put) { put(text); }) && written;
    print(fmt::format("{}; see {}\n", result_text(about_), chosen_.report));
    return about_.good() && written ? exit_done : exit_failed;
  }

 private:
  bool find_victim() {
    if (how_.victim.empty() && !tested_->victim().empty())
      how_.victim = sibling(std::string{tested_->victim()});
    if (how_.victim.empty()) {
      complain(fmt::format("--victim is missing: {}", tested_->how_to_make_a_victim()));
      return false;
    }
    if (::access(how_.victim.c_str(), X_OK) == 0) return true;
    complain(
        fmt::format("cannot run the victim program {}: {}; pass an executable file to --victim",
                    how_.victim, error_text(errno)));
    return false;
  }

  /// Whether the node is such that one may begin. What it finds out of the device is kept.
  bool look() {
    // First, for while a GPU is reset it cannot be opened.
    if (const auto open = open_breakers(on_); !open.empty() && !chosen_.force) {
      const auto node = on_.look();
      for (const auto& each : breaker_warnings(node ? *node : node_view{}, open)) complain(each);
      complain("no step was started; use --force to ignore open breakers");
      return false;
    }
    for (const auto& each : on_.examine(machine{})) {
      if (each.what != sluice::verdict::blocked) continue;
      complain(fmt::format("{}: {}; {} (see 'sluice doctor')", each.name, each.found, each.advice));
      return false;
    }
    auto node = on_.look();
    if (!node) {
      complain(on_.why_no_look(node.error()));
      return false;
    }
    node_ = std::move(*node);
    auto opened = tested_->open_resets();
    if (!opened) {
      complain("cannot open the device: " + opened.error().message() + "; run 'sluice doctor'");
      return false;
    }
    resets_ = std::move(*opened);
    if (!chosen_.beside_others && !alone()) return false;
    if (const auto untested = tested_->why_untested(); !untested.empty()) {
      about_.notes.push_back(untested);
      complain("warning: " + untested);
    }
    about_.device = tested_->facts({});
    about_.victim = printable(how_.victim);
    about_.when = wall_text(wall_time_now());
    return true;
  }

  /// \return false, after a complaint.
  bool alone() const {
    const auto there = others(on_);
    if (there && there->empty()) return true;
    complain(there ? fmt::format("other processes use the driver: {}; stop them, or use "
                                 "--beside-others if you can accept the loss of their work",
                                 fmt::join(*there, ", "))
                   : unread_text(on_, there.error()) +
                         "; use --beside-others if no other process uses the driver, or if you can "
                         "accept the loss of their work");
    return false;
  }

  void go(hands& by) {
    bench here{by, how_};
    for (const auto* each : steps_) about_.findings.push_back({.step = std::string{each->name}});
    for (std::size_t i = 0; i < steps_.size(); ++i) {
      const bool next = run_one(*steps_[i], here, about_.findings[i]);
      print(line_of(about_.findings[i]));
      if (!next) return;
    }
  }

  /// The machine may hang in the next step: what was found so far is on the disk by then.
  void keep_report() { keeps_ = keeps_ && report_->keep(report_text(about_)); }

  /// \return whether the next may follow.
  bool run_one(const step& which, bench& here, finding& found) {
    if (!which.only_with.empty() && which.only_with != on_.name()) {
      found.what = verdict::skipped;
      found.why = fmt::format("does not apply to driver {}: {}", on_.name(), which.because);
      return true;
    }
    found.what = verdict::begun;
    keep_report();
    const time_point begin = clock::now();
    here.by.begin_step();
    try {
      expect_nobody_else(here.by);
      which.work(here, found);
      found.what = verdict::passed;
    } catch (const step_end& end) {
      found.what = end.came_to;
      found.why = end.what();
    }
    found.took = clock::now() - begin;
    if (found.what == verdict::failed) keep_report();
    // The victims are gone by now, and with them what was suspended.
    here.by.let_go();
    if (auto late = here.by.aftermath(); !late.empty() && found.what != verdict::failed) {
      found.what = verdict::failed;
      found.why = std::move(late);
    }
    for (auto& each : here.by.take_words()) found.notes.push_back("agent: " + printable(each));
    about_.device = tested_->facts(here.by.gpu());
    return found.what != verdict::failed;
  }

  void expect_nobody_else(hands& by) {
    if (chosen_.beside_others) return;
    result<std::vector<std::string>> there = errc::unknown_target;
    // Of a victim that has just ended the driver may not know yet.
    (void)by.wait_for(2s, [&] { return !(there = others(on_, by.agent())) || there->empty(); });
    if (!there) fail(unread_text(on_, there.error()));
    if (!there->empty())
      fail(fmt::format("other processes use the driver: {}; stop them, or use --beside-others",
                       fmt::join(*there, ", ")));
  }

  const accept_options& chosen_;
  settings how_;
  const std::vector<const step*> steps_;
  const std::unique_ptr<tested_driver> tested_;
  const driver& on_;
  node_view node_;
  std::vector<std::unique_ptr<kfd::smi_stream>> resets_;
  acceptance::report about_;
  output_file* report_ = nullptr;
  bool keeps_ = true;
};

}  // namespace
}  // namespace acceptance

subcommand add_accept(CLI::App& program, const driver_list& known) {
  using namespace std::chrono_literals;
  const auto chosen = std::make_shared<acceptance::accept_options>();
  auto* const command =
      program.add_subcommand("accept", "Test preemption on a GPU and measure its cost");
  command->footer(
      "Runs steps in order of rising risk; stops at the first failed step, hardware\n"
      "ERROR or reset. Suspends only its own victims. See adapters/cli/ACCEPT.md.\n"
      "Exit code 0: accepted; 1: not accepted; 2: invalid command line.");
  command
      ->add_option("--victim", chosen->how.victim,
                   "Victim program [of NVIDIA and simulated GPUs: sluice's]")
      ->type_name("PROGRAM");
  command->add_option("--steps", chosen->steps, "Names of the steps to run [all]")
      ->type_name("A,B,...");
  command->add_flag("--list", chosen->list, "List the steps and their risks; run no step");
  command->add_flag("--dry-run", chosen->dry_run,
                    "Check the preconditions and print the steps; run no step");
  command->add_option("--repeat", chosen->how.repeat, "Number of repetitions of each measurement")
      ->check(whole_number_of("number", 1, 10000))
      ->capture_default_str()
      ->type_name("N");
  const auto time = [&](const char* name, duration& into, duration least, duration most,
                        const char* help) {
    command
        ->add_option_function<std::string>(
            name,
            [name, &into, least, most](const std::string& text) {
              const auto value = parse_duration(text);
              if (!value || *value < least || *value > most)
                throw CLI::ValidationError(
                    name, fmt::format("invalid duration '{}': expected {} to {}", text,
                                      to_text(least), to_text(most)));
              into = *value;
            },
            fmt::format("{} [{}]", help, to_text(into)))
        ->type_name("TIME");
  };
  time("--window", chosen->how.window, 10ms, 1min, "Duration of each speed measurement");
  time("--limit", chosen->how.limit, 1s, 1h, "Time limit of each step");
  time("--settle", chosen->how.settle, 1ms, 1min, "Time to wait for a late reset after each step");
  command
      ->add_option("--report", chosen->report,
                   "Report file, rewritten before each step [accept.md]")
      ->type_name("FILE");
  command
      ->add_option("--profile", chosen->profile,
                   "File for the costs (for sim, lab, slo) [profile.toml]")
      ->type_name("FILE");
  command->add_flag("--beside-others", chosen->beside_others,
                    "Run even if other processes use the driver");
  command->add_flag("--force", chosen->force,
                    "Run even if a breaker is open (see 'sluice breaker')");
  add_driver(*command, known, chosen->driver);
  chosen->how.owner_lock = default_owner_lock;
  command
      ->add_option("--owner-lock", chosen->how.owner_lock,
                   std::string{"Owner lock file of the node ["} + default_owner_lock + "]")
      ->type_name("FILE");
  return {command, [chosen, known] {
            chosen->how.where = kfd::roots::from_environment();
            const auto steps = acceptance::choose(chosen->steps);
            if (!steps) return exit_usage;
            if (chosen->list) {
              const drivers present = candidates(make_all(known), chosen->driver);
              return acceptance::list(*steps, chosen->how.limit,
                                      present.size() == 1 ? present.front()->name() : "");
            }
            const auto on = find_driver(known, chosen->driver);
            if (!on) return exit_failed;
            return acceptance::acceptance_run{
                *chosen, *steps,
                on->name() == "nvidia" ? acceptance::test_nvidia() : acceptance::test_kfd()}
                .run();
          }};
}

}  // namespace sluice::cli
