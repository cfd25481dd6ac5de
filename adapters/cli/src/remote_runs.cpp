#include "remote_runs.hpp"

#include "output.hpp"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <string_view>
#include <thread>

#include <fmt/format.h>

#include "sluice/duration_text.hpp"
#include "sluice/os/unique_fd.hpp"

namespace sluice::cli {

namespace {

constexpr std::size_t most_at_once = 64;
/// A status of thousands of processes has a few MB.
constexpr std::size_t longest_output = std::size_t{64} << 20U;
/// What ssh exits with if it could not run the command.
constexpr int ssh_failed = 255;

struct output_pipe {
  unique_fd read;
  unique_fd write;
  output_pipe() {
    std::array<int, 2> ends{-1, -1};
    if (::pipe2(ends.data(), O_CLOEXEC) != 0) return;
    read = unique_fd{ends[0]};
    write = unique_fd{ends[1]};
    (void)::fcntl(ends[0], F_SETFL, O_NONBLOCK);
  }
};

/// Appends what can be read now. \return false at the end.
bool read_now(int from, std::string& to) {
  std::array<char, 65536> room;
  for (;;) {
    const ssize_t got = ::read(from, room.data(), room.size());
    if (got > 0) {
      to.append(room.data(), static_cast<std::size_t>(got));
      if (to.size() <= longest_output) continue;
    }
    return got > 0 || (got < 0 && (errno == EAGAIN || errno == EINTR));
  }
}

int spawn(std::vector<std::string> words, int out, int err, pid_t& pid) {
  posix_spawn_file_actions_t files;
  if (const int error = ::posix_spawn_file_actions_init(&files); error != 0) return error;
  int error = ::posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  if (error == 0) error = ::posix_spawn_file_actions_adddup2(&files, out, STDOUT_FILENO);
  if (error == 0) error = ::posix_spawn_file_actions_adddup2(&files, err, STDERR_FILENO);
  std::vector<char*> arguments;
  for (std::string& each : words) arguments.push_back(each.data());
  arguments.push_back(nullptr);
  if (error == 0)
    error = ::posix_spawnp(&pid, arguments[0], &files, nullptr, arguments.data(), environ);
  ::posix_spawn_file_actions_destroy(&files);
  return error;
}

std::string last_line(std::string_view text) {
  while (text.ends_with('\n') || text.ends_with('\r')) text.remove_suffix(1);
  return printable(text.substr(text.rfind('\n') + 1));
}

std::string problem_of(int status, const std::string& said) {
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return {};
  if (!said.empty()) return last_line(said);
  if (WIFSIGNALED(status)) return fmt::format("ssh was ended by signal {}", WTERMSIG(status));
  return WEXITSTATUS(status) == ssh_failed
             ? "ssh failed and printed no reason"
             : fmt::format("the command exited with code {}", WEXITSTATUS(status));
}

remote_run run_one(const std::vector<std::string>& words, duration limit) {
  remote_run made;
  output_pipe out;
  output_pipe err;
  pid_t pid = 0;
  if (!out.write || !err.write) {
    made.problem = "cannot create a pipe: " + error_text(errno);
    return made;
  }
  if (const int error = spawn(words, out.write.get(), err.write.get(), pid); error != 0) {
    made.problem = fmt::format("cannot run '{}': {}", words[0], error_text(error));
    return made;
  }
  out.write.reset();
  err.write.reset();
  // The end of the process counts, not that of its output: a shared connection (ControlPersist)
  // keeps that open.
  const unique_fd ended{static_cast<int>(::syscall(SYS_pidfd_open, pid, 0))};
  std::array<pollfd, 3> all{pollfd{ended.get(), POLLIN, 0}, pollfd{out.read.get(), POLLIN, 0},
                            pollfd{err.read.get(), POLLIN, 0}};
  if (!ended) {
    made.problem = "cannot wait for its end: " + error_text(errno);
    ::kill(pid, SIGKILL);
  }
  std::string said;
  const time_point end = clock::now() + limit;
  while (ended && all[0].revents == 0) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - clock::now());
    if (left.count() <= 0 || made.out.size() + said.size() > longest_output) {
      made.problem = left.count() <= 0 ? "no answer within " + to_text(limit)
                                       : std::string("the answer is too long");
      ::kill(pid, SIGKILL);
      break;
    }
    if (::poll(all.data(), all.size(), static_cast<int>(left.count())) < 0) continue;
    if (!read_now(out.read.get(), made.out)) all[1].fd = -1;
    if (!read_now(err.read.get(), said)) all[2].fd = -1;
  }
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  (void)read_now(out.read.get(), made.out);
  (void)read_now(err.read.get(), said);
  if (made.problem.empty()) made.problem = problem_of(status, said);
  return made;
}

}  // namespace

std::vector<remote_run> run_on(const std::vector<std::string>& nodes,
                               const std::vector<std::string>& ssh, const std::string& command,
                               duration limit) {
  std::vector<remote_run> all(nodes.size());
  std::atomic<std::size_t> next{0};
  const auto work = [&] {
    for (std::size_t i = next++; i < nodes.size(); i = next++) {
      auto words = ssh;
      words.insert(words.end(), {"--", nodes[i], command});
      all[i] = run_one(words, limit);
    }
  };
  std::vector<std::jthread> threads;
  for (std::size_t i = 0; i < std::min(nodes.size(), most_at_once); ++i) threads.emplace_back(work);
  threads.clear();  // joins
  return all;
}

}  // namespace sluice::cli
