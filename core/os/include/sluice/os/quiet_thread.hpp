#pragma once
/// \file
/// Threads that no signal of their program ever reaches.

#include <csignal>
#include <system_error>
#include <thread>
#include <utility>

#include "sluice/result.hpp"

#pragma GCC visibility push(default)
namespace sluice {

/// Starts a thread with every signal blocked. \return the system's error when none can be had. (No
/// result<std::thread>: an error code, too, makes a std::thread.)
template <class Body>
result<void> start_quiet_thread(std::thread& into, Body body) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  ::pthread_sigmask(SIG_BLOCK, &all, &before);
  result<void> answer;
  try {
    into = std::thread{std::move(body)};
  } catch (const std::system_error& error) {
    answer = error_code{error.code().value(), boost::system::system_category()};
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return answer;
}

}  // namespace sluice
#pragma GCC visibility pop
