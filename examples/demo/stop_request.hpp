#pragma once
/// \file
/// SIGINT, SIGTERM and SIGHUP (a closed terminal) as a flag that long work looks at, for programs
/// whose main thread does the work.

namespace demo {

/// Installs the handlers; a blocking system call of the main thread then ends with EINTR. Call
/// once, before any thread is started.
void catch_stop_signals();

/// \return the signal that asked the program to stop, or 0. Any thread, async-signal-safe.
int stop_signal() noexcept;

/// In a child between fork and exec: these signals end it, as they will until the new program has
/// handlers of its own. With the parent's handlers one would only set a flag that exec forgets, so
/// fork while signals_for_main_only lives. Async-signal-safe.
void stop_signals_as_before_exec();

/// While alive, threads (and processes) that are started inherit these signals blocked: they then
/// reach the main thread, whose sleep they are meant to end.
class signals_for_main_only {
 public:
  signals_for_main_only();
  ~signals_for_main_only();
  signals_for_main_only(const signals_for_main_only&) = delete;
  signals_for_main_only& operator=(const signals_for_main_only&) = delete;
};

/// The exit code of a program that a signal ended in good order: 128 + signal, as shells report it.
inline int exit_code_for(int signal) { return 128 + signal; }

}  // namespace demo
