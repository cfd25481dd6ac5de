// sluice sim: starts the simulated device and says how to use it.

#include "output.hpp"
#include "profile_names.hpp"
#include "subcommand.hpp"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <memory>

#include <fmt/format.h>

namespace sluice::cli {

namespace {

struct sim_options {
  std::string root;
  std::string profile = "mi300x";
  std::uint32_t gpus = 0;
};

/// Beside this program, or else (found by execvp) in PATH.
std::string find_program(const std::string& name) {
  std::error_code error;
  const auto own = std::filesystem::read_symlink("/proc/self/exe", error);
  const auto beside = own.parent_path() / name;
  if (!error && ::access(beside.c_str(), X_OK) == 0) return beside;
  return name;
}

std::string exports(const std::string& root) {
  return fmt::format(
      "export SLUICE_SIM_ROOT={0}\n"
      "export SLUICE_KFD_DEVICE={0}/dev/kfd\n"
      "export SLUICE_KFD_SYSFS={0}/sys/class/kfd/kfd\n"
      "export SLUICE_KFD_DEBUGFS={0}/sys/kernel/debug/kfd\n"
      "export SLUICE_NVIDIA_DEVICE={0}/dev/nvidiactl\n"
      "export SLUICE_NVIDIA_PROC={0}/proc/driver/nvidia\n",
      root);
}

/// The device becomes this process, so that signals and the exit code are its own. What to export
/// is printed by a grandchild that waits until the device is ready; nobody has to reap it.
int become_device(const sim_options& chosen) {
  std::string root = chosen.root;
  if (root.empty()) {
    root = (std::filesystem::temp_directory_path() / "sluice-sim-XXXXXX").string();
    if (::mkdtemp(root.data()) == nullptr) {
      complain(fmt::format("{}: cannot create the directory: {}; name another one with --root",
                           root, error_text(errno)));
      return exit_failed;
    }
    ::rmdir(root.c_str());  // the device makes it, and removes what it made
  }
  root = std::filesystem::absolute(root).string();
  std::array<int, 2> ready{};
  if (::pipe(ready.data()) != 0) {
    complain(fmt::format("out of file descriptors: {}; raise RLIMIT_NOFILE (ulimit -n)",
                         error_text(errno)));
    return exit_failed;
  }
  const pid_t child = ::fork();
  if (child == 0) {
    if (::fork() != 0) ::_exit(0);
    ::close(ready[1]);
    std::array<char, 8> word{};
    // Ends without a word when the device does not start.
    if (::read(ready[0], word.data(), word.size()) > 0) print(exports(root));
    ::_exit(0);
  }
  if (child > 0) ::waitpid(child, nullptr, 0);
  ::close(ready[0]);

  const std::string program = find_program("sluice-sim");
  std::vector<std::string> words{
      program, "--root", root, "--profile", chosen.profile, "--ready-fd", std::to_string(ready[1])};
  if (chosen.gpus != 0) words.insert(words.end(), {"--gpus", std::to_string(chosen.gpus)});
  std::vector<char*> arguments;
  for (auto& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  ::dup2(STDERR_FILENO, STDOUT_FILENO);  // standard output is for the exports alone
  ::execvp(program.c_str(), arguments.data());
  complain(fmt::format("cannot start sluice-sim: {}; install it beside this program or in PATH",
                       error_text(errno)));
  return exit_failed;
}

}  // namespace

subcommand add_sim(CLI::App& program) {
  const auto chosen = std::make_shared<sim_options>();
  auto* const command =
      program.add_subcommand("sim", "Run a simulated GPU for tests without hardware");
  command->footer([] {
    return "Runs sluice-sim in the foreground until Ctrl-C, and prints the lines to paste\n"
           "into other shells. Programs started from these shells use the simulated GPU.\n"
           "Needs root and /dev/fuse. In a script: sluice sim --root DIR > env & ... . env\n"
           "Profiles: " +
           sim::profile_names();
  });
  command
      ->add_option("--root", chosen->root, "Directory for the device's files [a new one in /tmp]")
      ->check(CLI::Validator{[](std::string& text) -> std::string {
                               return text.empty() ? "invalid directory '': name a directory" : "";
                             },
                             ""})
      ->type_name("DIR");
  command->add_option("--profile", chosen->profile, "Name of a profile (see below), or a TOML file")
      ->capture_default_str()
      ->type_name("NAME|FILE");
  command->add_option("--gpus", chosen->gpus, "Number of GPUs")
      ->check(whole_number_of("number of GPUs", 1, 64))
      ->type_name("N");
  return {command, [chosen] { return become_device(*chosen); }};
}

}  // namespace sluice::cli
