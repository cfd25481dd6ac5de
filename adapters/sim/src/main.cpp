/// \file
/// sluice-sim: a simulated GPU with its driver, as files that other programs open.

#include "device.hpp"
#include "profile_file.hpp"
#include "profile_names.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/types.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <stdexcept>
#include <string>

#include <CLI/CLI.hpp>

namespace {

constexpr int exit_failed = 1;
constexpr int exit_usage = 2;

std::string cannot_write(int ready_fd) {
  return "cannot write 'ready' to --ready-fd " + std::to_string(ready_fd) + ": " +
         std::strerror(errno);  // NOLINT: one thread yet.
}

/// Whoever waits for this line would wait for ever without it.
void say_ready(int fd) {
  constexpr char text[] = "ready\n";
  if (write(fd, text, sizeof text - 1) < 0) throw std::runtime_error{cannot_write(fd)};
  close(fd);
}

/// Makes the end of `parent` a SIGTERM for us. \return false when it is not our parent (any more).
bool end_with(pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  return getppid() == parent;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{
      "Simulate a GPU and its driver as files. AMD (KFD): DIR/dev/kfd, DIR/sys/class/kfd/kfd and\n"
      "DIR/sys/kernel/debug/kfd. NVIDIA: DIR/dev/nvidia* and DIR/proc/driver/nvidia. Both:\n"
      "DIR/sim/{stats.json,control}. The profile selects the driver.\n"
      "The program runs until SIGINT, SIGTERM or SIGHUP. Then it unmounts and removes the files.\n"
      "It needs root and /dev/fuse.",
      "sluice-sim"};
  sluice::sim::device_options options;
  std::string profile = "mi300x";
  std::uint32_t gpus = 0;
  int ready_fd = -1;
  pid_t parent = 0;
  app.add_option("--root", options.root, "Directory for these files; created if it does not exist")
      ->required()
      ->check([](const std::string& path) { return path.empty() ? "must not be empty" : ""; })
      ->type_name("DIR");
  app.add_option("--profile", profile,
                 "Profile of the device: a name from the list below, or a TOML file")
      ->capture_default_str()
      ->type_name("NAME|FILE");
  app.add_option(
         "--gpus", gpus,
         "Number of GPUs, copies of the first GPU of the profile (default: as in the profile)")
      ->check(CLI::Range(1, 64))
      ->type_name("N");
  app.add_option(
         "--ready-fd", ready_fd,
         "Write 'ready' to this open file descriptor when the device is usable, then close it")
      ->check(CLI::NonNegativeNumber)
      ->type_name("FD");
  app.add_option("--with-parent", parent,
                 "Stop, as on SIGTERM, when the process PID ends; PID must be the parent process")
      ->check(CLI::PositiveNumber)
      ->type_name("PID");
  app.footer([] { return "Profiles: " + sluice::sim::profile_names(); });
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help
    std::fprintf(stderr, "sluice-sim: %s (see --help)\n", error.what());
    return exit_usage;
  }
  if (ready_fd >= 0 && fcntl(ready_fd, F_GETFD) < 0) {
    std::fprintf(stderr, "sluice-sim: %s\n", cannot_write(ready_fd).c_str());
    return exit_usage;
  }
  if (parent != 0 && !end_with(parent)) {
    std::fprintf(stderr,
                 "sluice-sim: invalid --with-parent %d: expected the pid of the parent process of "
                 "sluice-sim\n",
                 parent);
    return exit_usage;
  }

  try {
    options.node = sluice::sim::load_profile(sluice::sim::find_profile(profile));
    if (gpus != 0) sluice::sim::set_gpu_count(options.node, gpus);
  } catch (const sluice::sim::profile_error& error) {
    std::fprintf(stderr, "sluice-sim: %s\n", error.what());
    return exit_usage;
  }

  try {
    sluice::sim::run_device(options, [&] {
      std::printf("sluice-sim: simulated device ready: profile '%s', %zu GPU%s, in %s\n",
                  options.node.name.c_str(), options.node.gpus.size(),
                  options.node.gpus.size() == 1 ? "" : "s", options.root.c_str());
      std::fflush(stdout);
      if (ready_fd >= 0) say_ready(ready_fd);
    });
  } catch (const std::exception& error) {
    std::fprintf(stderr, "sluice-sim: %s\n", error.what());
    return exit_failed;
  }
  return 0;
}
