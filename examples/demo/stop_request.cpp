#include "stop_request.hpp"

#include <signal.h>

#include <atomic>

namespace demo {
namespace {

std::atomic<int> received{0};
static_assert(std::atomic<int>::is_always_lock_free);

sigset_t stop_signals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGHUP);
  return set;
}

bool is_ignored(int number) {
  struct sigaction now {};
  return sigaction(number, nullptr, &now) == 0 && now.sa_handler == SIG_IGN;
}

}  // namespace

void catch_stop_signals() {
  struct sigaction action {};
  action.sa_handler = [](int signal) { received.store(signal, std::memory_order_relaxed); };
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  // Whoever was started by nohup goes on when the terminal closes.
  if (!is_ignored(SIGHUP)) sigaction(SIGHUP, &action, nullptr);
}

void stop_signals_as_before_exec() {
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
    if (!is_ignored(number)) signal(number, SIG_DFL);
  }
  const sigset_t set = stop_signals();
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
}

int stop_signal() noexcept { return received.load(std::memory_order_relaxed); }

signals_for_main_only::signals_for_main_only() {
  const sigset_t set = stop_signals();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
}

signals_for_main_only::~signals_for_main_only() {
  const sigset_t set = stop_signals();
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
}

}  // namespace demo
