// A client in a process of its own, told what to do by lines on its standard input; it answers each
// with a line. Its first argument is the socket.

#include "affliction.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <future>
#include <iostream>
#include <map>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "sluice/client.h"

/// A forked child that starts a thread is what is tested here.
extern "C" const char* __tsan_default_options() { return "die_after_fork=0"; }

namespace {

sluice_connection* client = nullptr;

std::string status_text() {
  sluice_client_status seen{};
  seen.size = sizeof seen;
  if (sluice_client_get_status(client, &seen) != 0) return sluice_client_last_error();
  std::ostringstream out;
  out << "connected=" << seen.connected << " role=" << seen.role << " error=" << seen.error
      << " in_flight=" << seen.in_flight << " connections=" << seen.connections
      << " mode=" << seen.mode << " suspended=" << seen.suspended
      << " scheduler=" << seen.scheduler_pid << " why=" << seen.why;
  return out.str();
}

void begin_and_end(int times) {
  for (int i = 0; i < times; ++i) {
    sluice_client_begin(client);
    sluice_client_end(client);
  }
}

/// Descriptors that look like the library's, of a program that this one starts.
int descriptors_of_a_child() {
  FILE* const list = popen("ls -l /proc/self/fd", "r");
  int found = 0;
  char line[512];
  while (list != nullptr && std::fgets(line, sizeof line, list) != nullptr) {
    for (const char* each : {"sluice", "eventfd", "socket:"}) {
      found += std::strstr(line, each) != nullptr ? 1 : 0;
    }
  }
  pclose(list);
  return found;
}
int inherited = 0;  ///< Of these, those that this program has from its caller.

/// Several threads at once.
void hammer(int threads, int times) {
  std::vector<std::thread> all;
  for (int i = 0; i < threads; ++i) all.emplace_back([=] { begin_and_end(times); });
  for (auto& each : all) each.join();
}

/// Whether the offline process comes to be suspended, or to run, within five seconds.
bool becomes_suspended(bool wanted) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(5);
  sluice_client_status seen{};
  seen.size = sizeof seen;
  while (sluice_client_get_status(client, &seen) == 0 && (seen.suspended != 0) != wanted) {
    if (std::chrono::steady_clock::now() > end) return false;
    sched_yield();
  }
  return true;
}

/// Begins and ends, each as soon as the one before was obeyed, or a little later: within the very
/// microseconds in which the scheduler falls asleep, and sometimes when it does sleep.
std::string knock(int times, std::uint64_t seed) {
  std::minstd_rand random(seed);
  const auto pause = [&] {
    const unsigned most = 1U << (random() % 16);
    const auto length = std::chrono::nanoseconds(random() % 16 == 0 ? 300'000 : random() % most);
    const auto end = std::chrono::steady_clock::now() + length;
    while (std::chrono::steady_clock::now() < end) continue;
  };
  for (int i = 0; i < times; ++i) {
    pause();
    sluice_client_begin(client);
    if (!becomes_suspended(true)) return "begin " + std::to_string(i) + " was not seen";
    pause();
    sluice_client_end(client);
    if (!becomes_suspended(false)) return "end " + std::to_string(i) + " was not seen";
  }
  return "all were seen";
}

int run_forked(const std::function<void()>& in_child) {
  const pid_t child = fork();
  if (child == 0) {
    in_child();
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return status;
}

/// Waits for the scheduler to have seen everything, so that an exit loses nothing.
void wait_connected() {
  sluice_client_status seen{};
  seen.size = sizeof seen;
  for (int i = 0; i < 10'000; ++i) {
    if (sluice_client_get_status(client, &seen) == 0 && seen.connected != 0) return;
    usleep(1000);
  }
}

/// How a child ends that a wait's function forks and in which that returns; -1: not in a while.
int fork_in_done(int (*in_child)()) {
  struct call {
    int (*in_child)();
    std::promise<pid_t> child{};
  } one{in_child};
  const auto done = [](void* context, std::int32_t) {
    auto& to = *static_cast<call*>(context);
    const pid_t child = fork();
    if (child != 0) return to.child.set_value(child);
    if (to.in_child() != 0) _exit(1);
  };
  if (sluice_client_wait(client, 1, done, &one) < 1) return -2;
  const pid_t child = one.child.get_future().get();
  int status = -1;
  for (int i = 0; i < 3000 && waitpid(child, &status, WNOHANG) == 0; ++i) usleep(1000);
  if (status == -1) {
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
  }
  return status;
}

std::string obey(std::istringstream& words) {
  std::string word;
  words >> word;
  int a = 0;
  int b = 0;
  if (word == "open") {
    std::string socket;
    sluice_client_options options{};
    options.size = sizeof options;
    words >> socket >> options.role;
    options.socket = socket.c_str();
    options.name = "program";
    std::uint32_t gpu = 0;
    if (words >> gpu) {
      options.gpus = &gpu;
      options.gpu_count = 1;
    }
    return sluice_client_open(&options, &client) == 0 ? "ok" : sluice_client_last_error();
  }
  if (word == "begin") return std::to_string(sluice_client_begin(client));
  if (word == "end") return std::to_string(sluice_client_end(client));
  if (word == "status") return status_text();
  if (word == "hammer") {
    words >> a >> b;
    hammer(a, b);
    return "done";
  }
  if (word == "knock") {
    std::uint64_t seed = 0;
    words >> a >> seed;
    return knock(a, seed);
  }
  if (word == "fork_begin") {  // A child that begins once and lives until it is told to end.
    int line[2];
    if (pipe(line) != 0) return "no pipe";
    const pid_t child = fork();
    if (child == 0) {
      close(line[0]);
      sluice_client_begin(client);
      wait_connected();
      const std::string text = std::to_string(getpid()) + " " + status_text();
      (void)!write(line[1], text.c_str(), text.size());
      close(line[1]);
      for (;;) pause();
    }
    close(line[1]);
    std::string text(512, '\0');
    const auto got = read(line[0], text.data(), text.size());
    close(line[0]);
    text.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
    return text;
  }
  if (word == "fork_idle") {  // A child that never calls anything.
    const pid_t child = fork();
    if (child == 0) {
      for (;;) pause();
    }
    return std::to_string(child);
  }
  if (word == "exec") {  // Goes on as a program that knows nothing of clients.
    execlp("sleep", "sleep", "60", nullptr);
    return "no sleep to exec";
  }
  if (word == "kill") {
    words >> a;
    kill(a, SIGKILL);
    waitpid(a, nullptr, 0);
    return "done";
  }
  if (word == "fork_and_close") {  // A child that only closes, and one that never calls anything.
    const int first = run_forked([] { sluice_client_close(client); });
    const int second = run_forked([] {});
    return first == 0 && second == 0 ? "done" : "failed";
  }
  if (word ==
      "fork_and_reuse") {  // A child that has other files under the numbers of its parent's.
    const int status = run_forked([] {
      for (int fd = 3; fd < 64; ++fd) close(fd);
      std::vector<int> own;
      for (int i = 0; i < 8; ++i) own.push_back(dup(1));
      if (sluice_client_begin(client) != 0) _exit(1);
      for (const int fd : own) {
        if (fcntl(fd, F_GETFD) < 0) _exit(2);
      }
    });
    return status == 0 ? "done" : "failed";
  }
  if (word == "spawn") return std::to_string(descriptors_of_a_child() - inherited);
  if (word == "wait") {
    words >> a;
    std::promise<int> clear;
    const auto number = sluice_client_wait(
        client, std::int64_t{a} * 1'000'000,
        [](void* to, std::int32_t is) { static_cast<std::promise<int>*>(to)->set_value(is); },
        &clear);
    if (number < 1) return sluice_client_last_error();
    return std::to_string(clear.get_future().get());
  }
  if (word == "fork_in_done") {  // Children forked on the library's own thread.
    std::string outcome;
    for (const auto in_child : {+[] { return 0; }, +[] { return sluice_client_begin(client); },
                                +[] { return sluice_client_close(client); }}) {
      outcome += std::to_string(fork_in_done(in_child)) + " ";
    }
    return outcome;
  }
  if (word == "stop_waiting") {
    const auto number = sluice_client_wait(
        client, 60'000'000'000, [](void*, std::int32_t) { std::abort(); }, nullptr);
    const int first = sluice_client_stop_waiting(client, number);
    const int second = sluice_client_stop_waiting(client, number);
    return std::to_string(first) + std::to_string(second);
  }
  if (word == "close") return std::to_string(sluice_client_close(client));
  if (word == "core") {
    // Here, and not where the tests run.
    std::string where;
    words >> where;
    words >> a;
    if (!sluice::test::prepare_large_core(where.c_str(), static_cast<std::size_t>(a))) {
      return "no core";
    }
    std::abort();
  }
  return "what is " + word + "?";
}

}  // namespace

int main() {
  inherited = descriptors_of_a_child();
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream words(line);
    std::cout << obey(words) << std::endl;
  }
}
