/// The command `sluice`, and its agent, with a driver of the tests' own: it suspends a process by
/// SIGSTOP, which stays when the agent dies. It lists the processes that have a file in the folder
/// STOPPER_DIR: named after the pid, with a word for each queue ("compute" or "copy"), or "refused"
/// for a process that its agent does not manage. From a process with "slow" as the last word, the
/// agent detaches only after a second.

#include "output.hpp"
#include "subcommand.hpp"

#include <linux/capability.h>
#include <signal.h>
#include <sys/stat.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "sluice/agent/acting_driver.hpp"
#include "sluice/agent/lane_side.hpp"
#include "sluice/driver_list.hpp"
#include "sluice/os/proc.hpp"

namespace {

using namespace sluice;
using namespace std::chrono_literals;

constexpr const char* driver_name = "stopper";
constexpr gpu_id only_gpu{1};

std::vector<std::string> words_of(const std::string& folder, pid_t pid) {
  std::ifstream file{folder + "/" + std::to_string(pid)};
  return {std::istream_iterator<std::string>{file}, {}};
}

std::vector<surveyed_queue> queues_of(const std::string& folder, pid_t pid) {
  std::vector<surveyed_queue> all;
  for (const auto& word : words_of(folder, pid))
    if (word != "slow")
      all.push_back({.id = driver_queue_id{static_cast<std::uint32_t>(all.size())},
                     .gpu = only_gpu,
                     .kind = word == "copy" ? queue_kind::copy : queue_kind::compute});
  return all;
}

std::vector<pid_t> pids_in(const std::string& folder) {
  std::vector<pid_t> all;
  std::error_code none;
  for (const auto& each : std::filesystem::directory_iterator{folder, none})
    if (const auto pid = parse_number<pid_t>(each.path().filename().string())) all.push_back(*pid);
  return all;
}

class stopped_process final : public surveyed_process {
 public:
  stopped_process(std::string folder, pid_t pid) : folder_(std::move(folder)), pid_(pid) {}
  result<void> list_queues(std::vector<surveyed_queue>& into) override {
    into = queues_of(folder_, pid_);
    return {};
  }

 private:
  const std::string folder_;
  const pid_t pid_;
};

class folder_survey final : public survey {
 public:
  explicit folder_survey(std::string folder) : folder_(std::move(folder)) {}
  std::string_view name() const noexcept override { return driver_name; }
  std::span<const surveyed_gpu> gpus() override { return gpus_; }
  result<void> list_processes(std::vector<pid_t>& into) override {
    into = pids_in(folder_);
    return {};
  }
  std::unique_ptr<surveyed_process> open(const process_identity& who) override {
    return std::make_unique<stopped_process>(folder_, who.pid);
  }

 private:
  const std::string folder_;
  const std::vector<surveyed_gpu> gpus_{{.id = only_gpu}};
};

class stopper final : public driver {
 public:
  std::string_view name() const noexcept override { return driver_name; }
  std::string why_absent() const override { return {}; }
  std::string device_key() const override { return folder_; }
  std::unique_ptr<survey> make_survey(message_sink) const override {
    return std::make_unique<folder_survey>(folder_);
  }
  result<node_view> look() const override {
    node_view seen;
    seen.gpus.push_back({.id = only_gpu, .name = driver_name});
    for (const pid_t pid : pids_in(folder_)) {
      process_description made{.pid = pid, .command = command_of(pid)};
      for (const auto& queue : queues_of(folder_, pid))
        made.queues.push_back({.id = queue.id, .gpu = queue.gpu, .kind = queue.kind});
      seen.processes.push_back(std::move(made));
    }
    return seen;
  }
  acting_choice acting() const override {
    return {.driver = driver_name, .settings = {{"folder", folder_}}};
  }

 private:
  // NOLINTNEXTLINE(concurrency-mt-unsafe): there is one thread yet
  const std::string folder_ = std::getenv("STOPPER_DIR");
};

class stopped_target final : public agent::lane_target {
 public:
  stopped_target(std::string folder, pid_t pid) : folder_(std::move(folder)), pid_(pid) {}

  result<std::vector<queue_info>> open() override {
    if (const auto words = words_of(folder_, pid_); !words.empty() && words[0] == "refused") {
      return errc::not_managed;
    }
    std::vector<queue_info> all;
    for (const auto& each : queues_of(folder_, pid_))
      all.push_back({.id = each.id, .gpu = each.gpu, .type = each.kind});
    return all;
  }
  std::string why_refused() const override { return "it is marked as refused; remove the mark"; }
  int act(command_kind what, gpu_id, std::span<const driver_queue_id> queues,
          std::span<outcome> outcomes) override {
    for (std::size_t index = 0; index < queues.size(); ++index) {
      if (what == command_kind::suspend)
        held_.insert(queues[index]);
      else
        held_.erase(queues[index]);
      outcomes[index] = outcome::done;
    }
    ::kill(pid_, held_.empty() ? SIGCONT : SIGSTOP);
    return 0;
  }
  bool close() noexcept override {
    const auto words = words_of(folder_, pid_);
    if (!words.empty() && words.back() == "slow") std::this_thread::sleep_for(1s);
    return held_.empty() || ::kill(pid_, SIGCONT) == 0;
  }

 private:
  const std::string folder_;
  const pid_t pid_;
  std::set<driver_queue_id> held_;
};

class acting_stopper final : public agent::acting_driver {
 public:
  std::string_view name() const noexcept override { return driver_name; }
  bool set(std::string_view key, std::string_view value, std::string&) override {
    return key == "folder" && !(folder_ = value).empty();
  }
  result<std::unique_ptr<acting_side>> open(const agent::acting_host& host) override {
    const auto make = [this](process_id, pid_t pid, std::uint64_t) {
      return std::make_unique<stopped_target>(folder_, pid);
    };
    return agent::make_lane_side({.acting = {"SIGSTOP", {}}, .make_target = make}, host);
  }
  agent::confinement needs(agent::confined) const override {
    return {.capabilities = {CAP_KILL}, .calls = {{"kill"}}};
  }
  bool outlives_agent() const noexcept override { return true; }
  result<void> release(const hold& what, const message_sink&) override {
    if (start_time_of(what.pid) != what.start_time) return errc::unknown_target;
    if (::kill(what.pid, SIGCONT) != 0) return last_system_error();
    return {};
  }
  result<void> release_everything(const message_sink&) override {
    for (const pid_t pid : pids_in(folder_)) (void)::kill(pid, SIGCONT);
    return {};
  }

 private:
  std::string folder_;
};

int run_command(int argc, char** argv) {
  using namespace sluice::cli;
  CLI::App program{"Tries a driver that acts in the agent alone.", "stopper"};
  const driver_list known{[] { return std::make_unique<stopper>(); }};
  const std::vector<subcommand> all{
      add_suspend(program, known), add_resume(program),        add_rescue(program, known),
      add_run(program, known),     add_status(program),        add_why(program),
      add_doctor(program, known),  add_queues(program, known), add_release(program),
  };
  try {
    program.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    complain(error.what());
    return exit_usage;
  }
  for (const auto& each : all)
    if (each.parsed->parsed()) return each.run();
  return exit_failed;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1 && std::string_view{argv[1]}.starts_with("--"))
    return agent::run_agent(argc, argv, {[] { return std::make_unique<acting_stopper>(); }});
  return run_command(argc, argv);
}
