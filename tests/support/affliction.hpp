#pragma once
/// \file
/// What a program of the tests does to itself when it is told to.

#include <poll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>

namespace sluice::test {

/// Enough for a dump that takes longer than a lease of 100 ms.
inline constexpr std::size_t core_bytes = std::size_t{1} << 30U;

/// Lets a process open no more descriptors, or as many as it may again. Its limit becomes the
/// lowest number that is free, and no less: poll() fails for more descriptors than the limit.
inline void limit_descriptors(pid_t pid, bool limited) {
  rlimit now{};
  ::prlimit(pid, RLIMIT_NOFILE, nullptr, &now);
  now.rlim_cur = now.rlim_max;
  if (limited) {
    const std::string open = "/proc/" + std::to_string(pid) + "/fd/";
    rlim_t free = 0;
    for (struct stat found{}; ::lstat((open + std::to_string(free)).c_str(), &found) == 0;) ++free;
    now.rlim_cur = free;
  }
  ::prlimit(pid, RLIMIT_NOFILE, &now, nullptr);
}

/// A line to do so, `suffer WHAT`:
///   exit          at once, nothing ends in good order
///   exec          another program, which lives on under the same pid
///   fork          the same as exit, but a child keeps all that was inherited until standard input
///                 is closed
///   descriptors   none can be opened any more, until `suffer recover`
///   core DIR      a crash whose core, 1 GiB, goes into that directory where files take cores
/// \return what to answer; empty where it is not one of these.
/// Threading: any thread; a forked child does nothing but system calls.
inline std::string suffer(std::string_view what) {
  if (what == "exit") ::_exit(0);
  if (what == "exec") {
    ::execl("/bin/sleep", "sleep", "1000", nullptr);
    return "exec failed";
  }
  if (what == "fork") {
    if (::fork() != 0) ::_exit(0);
    pollfd over{STDIN_FILENO, 0, 0};
    while (::poll(&over, 1, -1) < 0 || (over.revents & POLLHUP) == 0) ::usleep(10'000);
    ::_exit(0);
  }
  if (what == "descriptors" || what == "recover") {
    limit_descriptors(::getpid(), what == "descriptors");
    return "done";
  }
  if (what.starts_with("core ")) {
    const std::string directory{what.substr(5)};
    if (::chdir(directory.c_str()) != 0) return "chdir failed";
    const rlimit all{RLIM_INFINITY, RLIM_INFINITY};
    ::setrlimit(RLIMIT_CORE, &all);
    void* const memory =
        ::mmap(nullptr, core_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory != MAP_FAILED) std::memset(memory, 1, core_bytes);
    // Between the filling, which takes its time, and the crash.
    (void)!::write(STDOUT_FILENO, "crashing\n", 9);
    std::abort();
  }
  return {};
}

}  // namespace sluice::test
