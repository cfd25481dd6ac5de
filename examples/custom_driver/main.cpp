// The scheduler's side: how targets are found, the daemon, and its status.

#include "cgroup.hpp"
#include <sluice/node.hpp>
#include <sluice/os/proc.hpp>
#include <sluice/os/unique_fd.hpp>
#include <sluice/survey.hpp>

#include <sys/epoll.h>
#include <sys/inotify.h>

#include <array>
#include <csignal>
#include <cstdio>
#include <filesystem>

namespace {

class process final : public sluice::surveyed_process {
  sluice::result<void> list_queues(std::vector<sluice::surveyed_queue>& into) override {
    into.push_back({.id = freezer::only_queue, .gpu = freezer::only_gpu});
    return {};
  }
};

class tree final : public sluice::survey {
 public:
  explicit tree(std::string root) : root_(std::move(root)) {}

  std::string_view name() const noexcept override { return freezer::name; }
  std::span<const sluice::surveyed_gpu> gpus() override { return gpus_; }
  sluice::result<void> list_processes(std::vector<pid_t>& into) override {
    std::error_code error;
    for (const auto& each : std::filesystem::directory_iterator{root_, error})
      if (pid_t first = 0; std::ifstream{each.path() / "cgroup.procs"} >> first)
        into.push_back(first);
    if (error) return sluice::error_code{error.value(), boost::system::system_category()};
    return {};
  }
  std::unique_ptr<sluice::surveyed_process> open(const sluice::process_identity&) override {
    return std::make_unique<process>();
  }

  // A cgroup that gets its first process, or loses its last, changes its cgroup.events.
  void watch(int epoll, std::uint64_t first_tag) override {
    changes_.reset(::inotify_init1(IN_CLOEXEC | IN_NONBLOCK));
    ::inotify_add_watch(changes_.get(), root_.c_str(), IN_CREATE | IN_DELETE);
    epoll_event event{.events = EPOLLIN, .data = {.u64 = first_tag}};
    ::epoll_ctl(epoll, EPOLL_CTL_ADD, changes_.get(), &event);
    (void)renew_watches();
  }
  bool renew_watches() override {
    std::error_code error;
    for (const auto& each : std::filesystem::directory_iterator{root_, error})
      ::inotify_add_watch(changes_.get(), (each.path() / "cgroup.events").c_str(), IN_MODIFY);
    return false;
  }
  void read_events(std::uint64_t, sluice::survey_news& news) override {
    std::array<char, 4096> ignored;
    while (::read(changes_.get(), ignored.data(), ignored.size()) > 0) news.look = true;
  }

 private:
  const std::string root_;
  const std::array<sluice::surveyed_gpu, 1> gpus_{{{.id = freezer::only_gpu}}};
  sluice::unique_fd changes_;
};

class freezer_driver final : public sluice::driver {
 public:
  explicit freezer_driver(std::string root) : root_(std::move(root)) {}

  std::string_view name() const noexcept override { return freezer::name; }
  std::string why_absent() const override {
    return std::filesystem::is_directory(root_) ? "" : root_ + " is no directory; create it";
  }
  std::string device_key() const override { return root_; }
  std::unique_ptr<sluice::survey> make_survey(sluice::message_sink) const override {
    return std::make_unique<tree>(root_);
  }
  sluice::acting_choice acting() const override {
    return {.driver = freezer::name, .settings = {{"root", root_}}};
  }
  sluice::result<sluice::node_view> look() const override {
    std::vector<pid_t> pids;
    if (const auto listed = tree{root_}.list_processes(pids); !listed) return listed.error();
    sluice::node_view seen;
    seen.gpus.push_back({.id = freezer::only_gpu, .name = root_});
    for (const pid_t pid : pids)
      seen.processes.push_back({.pid = pid, .command = sluice::command_of(pid)});
    return seen;
  }

 private:
  const std::string root_;
};

int run(const std::string& root, const std::string& directory) {
  sigset_t ends;  // before any thread starts, so that all have them blocked
  sigemptyset(&ends);
  sigaddset(&ends, SIGTERM);
  sigaddset(&ends, SIGINT);
  pthread_sigmask(SIG_BLOCK, &ends, nullptr);

  sluice::node_options options;
  options.driver = std::make_shared<freezer_driver>(root);
  options.files.directory = directory;
  options.agent_path =
      std::filesystem::read_symlink("/proc/self/exe").parent_path() / "freezer-agent";
  options.settings.roles.by_cgroup = {{"/*/offline-*", sluice::role::offline}};
  options.settings.roles.role_store = directory + "/roles";
  std::string problem;
  const auto node = sluice::node::create(std::move(options), problem);
  if (!node) return std::fprintf(stderr, "freezer: %s\n", problem.c_str()), 1;
  if (const auto started = (*node)->start(); !started)
    return std::fprintf(stderr, "freezer: %s\n", started.error().message().c_str()), 1;
  int signal = 0;
  sigwait(&ends, &signal);
  (*node)->stop();  // thaws everything
  return 0;
}

int status(const std::string& root) {
  const auto seen = freezer_driver{root}.look();
  if (!seen) return std::fprintf(stderr, "freezer: %s\n", seen.error().message().c_str()), 1;
  for (const auto& each : seen->processes) {
    const std::string cgroup = freezer::cgroup_of(each.pid, root);
    const sluice::unique_fd events{::open((cgroup + "/cgroup.events").c_str(), O_RDONLY)};
    std::printf("%s: process %d (%s): %s\n", cgroup.c_str(), each.pid, each.command.c_str(),
                freezer::is_frozen(events.get()) ? "frozen" : "runs");
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view what = argc > 1 ? argv[1] : "";
  const std::string root = freezer::mount_point() + "/" + (argc > 2 ? argv[2] : "");
  if (what == "run" && argc == 4) return run(root, argv[3]);
  if (what == "status" && argc == 3) return status(root);
  return std::fprintf(stderr, "usage: freezer run CGROUP DIRECTORY | freezer status CGROUP\n"), 2;
}
