#include "simulated_device.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <stdexcept>
#include <system_error>

#include "sluice/os/whole_file.hpp"

namespace sluice::test {

namespace {

[[noreturn]] void fail(const std::string& what) {
  throw std::runtime_error{what + ": " + std::generic_category().message(errno)};
}

using settings = std::map<std::string, std::string>;

/// Lines "key = value" over the given ones.
std::string merged(settings lines, const std::string& more) {
  std::istringstream in{more};
  for (std::string line; std::getline(in, line);) {
    const auto equals = line.find('=');
    if (equals == std::string::npos) continue;
    auto key = line.substr(0, equals);
    key.erase(key.find_last_not_of(' ') + 1);
    lines[key] = line.substr(equals + 1);
  }
  std::string out;
  for (const auto& [key, value] : lines) out += key + " = " + value + "\n";
  return out;
}

}  // namespace

std::string profile_text(const std::string& driver, const std::string& gpu) {
  return "name = \"test\"\n[driver]\n" + merged({}, driver) + "[[gpu]]\n" +
         merged({{"gpu_id", "51110"}}, gpu);
}

std::string fast_profile(const std::string& driver, const std::string& gpu) {
  return profile_text(
      driver, "suspend_cost = \"1ms\"\nresume_cost = \"1ms\"\ncycle_cost = \"200us\"\n" + gpu);
}

void enter_private_mounts() {
  static const bool entered = [] {
    if (unshare(CLONE_NEWNS) != 0) fail("unshare(CLONE_NEWNS); these tests run as root");
    // EINVAL: / is no mount point (a plain chroot); then there is nothing to make private.
    if (mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 && errno != EINVAL)
      fail("mount --make-rprivate");
    return true;
  }();
  (void)entered;
}

simulated_device::simulated_device(const device_settings& how) {
  enter_private_mounts();
  const char* where = std::getenv("TMPDIR");  // NOLINT: nobody sets it meanwhile.
  directory_ = std::string{where != nullptr ? where : "/tmp"} + "/sluice-test-XXXXXX";
  if (mkdtemp(directory_.data()) == nullptr) fail("mkdtemp " + directory_);
  root_ = directory_ + "/root";
  std::filesystem::create_directory(root_);

  auto profile = how.profile;
  if (profile.find('\n') != std::string::npos) {
    std::ofstream{directory_ + "/profile.toml"} << profile;
    profile = directory_ + "/profile.toml";
  }
  std::array<int, 2> ready{};
  if (pipe2(ready.data(), O_CLOEXEC) != 0) fail("pipe2");
  const std::string log = directory_ + "/output";
  std::vector<std::string> words{
      SLUICE_SIM_PROGRAM,      "--root", root_, "--profile", profile, "--ready-fd",
      std::to_string(ready[1])};
  if (how.gpus != 0) words.insert(words.end(), {"--gpus", std::to_string(how.gpus)});
  std::vector<char*> arguments;
  for (auto& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  const pid_t parent = getpid();
  pid_ = fork();
  if (pid_ < 0) fail("fork");
  if (pid_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent) _exit(98);
    const int out = open(log.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
    dup2(out, STDOUT_FILENO);
    dup2(out, STDERR_FILENO);
    fcntl(ready[1], F_SETFD, 0);
    execv(arguments[0], arguments.data());
    _exit(99);
  }
  close(ready[1]);
  // The pipe ends without a word when the program fails.
  pollfd waited{.fd = ready[0], .events = POLLIN, .revents = 0};
  std::array<char, 8> word{};
  const bool up = poll(&waited, 1, 20'000) == 1 && read(ready[0], word.data(), word.size()) > 0;
  close(ready[0]);
  if (!up) {
    stop(SIGKILL);
    const auto said = output();
    std::filesystem::remove_all(directory_);
    throw std::runtime_error{"sluice-sim did not start: " + said};
  }
}

simulated_device::~simulated_device() {
  stop(SIGTERM);
  std::error_code ignored;
  // A killed device leaves a dead mount.
  umount2((root_ + "/fuse").c_str(), MNT_DETACH);
  std::filesystem::remove_all(directory_, ignored);
}

kfd::roots simulated_device::roots() const {
  return {.device = root_ + "/dev/kfd",
          .sysfs = root_ + "/sys/class/kfd/kfd",
          .debugfs = root_ + "/sys/kernel/debug/kfd"};
}

std::vector<std::string> simulated_device::environment() const {
  const auto where = roots();
  return {"SLUICE_KFD_DEVICE=" + where.device, "SLUICE_KFD_SYSFS=" + where.sysfs,
          "SLUICE_KFD_DEBUGFS=" + where.debugfs, "SLUICE_NVIDIA_DEVICE=" + nvidia_device(),
          "SLUICE_NVIDIA_PROC=" + nvidia_proc()};
}

std::string simulated_device::output() const { return read_file(directory_ + "/output"); }

std::string simulated_device::stats() const { return read_file(root_ + "/sim/stats.json"); }

int simulated_device::stop(int signal_number) {
  if (pid_ == 0) return status_;
  kill(pid_, signal_number);
  if (!wait(std::chrono::seconds{10})) {
    std::fprintf(stderr, "sluice-sim does not stop; killing it\n");
    kill(pid_, SIGKILL);
    waitpid(pid_, &status_, 0);
    pid_ = 0;
  }
  return status_;
}

std::optional<int> simulated_device::wait(std::chrono::milliseconds deadline) {
  const bool ended = eventually(
      deadline, [this] { return pid_ == 0 || waitpid(pid_, &status_, WNOHANG) == pid_; });
  if (!ended) return std::nullopt;
  pid_ = 0;
  return status_;
}

// Not by a stream's iterators: those throw when a process ends while its file in /proc is read.
std::string read_file(const std::string& path) {
  constexpr std::size_t most = 64U << 20U;
  const auto text = read_whole_file(path, most);
  return text ? *text : std::string{};
}

}  // namespace sluice::test
