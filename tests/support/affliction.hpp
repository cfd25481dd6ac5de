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

/// Lets a crash of this process write a large core into `directory`, where files take cores. A dump
/// of 1 GiB takes longer than a lease of 100 ms. The core holds the same 2 MiB many times, because
/// there are machines on which the first touch of 1 GiB takes 10 s.
/// \return false if the system refuses; errno has the reason.
inline bool prepare_large_core(const char* directory, std::size_t megabytes = 1024) {
  constexpr std::size_t repeated = std::size_t{2} << 20U;
  const rlimit all{RLIM_INFINITY, RLIM_INFINITY};
  if (::chdir(directory) != 0 || ::setrlimit(RLIMIT_CORE, &all) != 0) return false;
  // The kernel writes memory of an unlinked file to a core (bit 1 of /proc/PID/coredump_filter, set
  // by default).
  const int file = ::memfd_create("core", MFD_CLOEXEC);
  if (file < 0 || ::ftruncate(file, repeated) != 0) return false;
  for (std::size_t mapped = 0; mapped < megabytes << 20U; mapped += repeated) {
    void* const memory = ::mmap(nullptr, repeated, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (memory == MAP_FAILED) return false;
    if (mapped == 0) std::memset(memory, 1, repeated);
  }
  return true;
}

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
    if (!prepare_large_core(std::string{what.substr(5)}.c_str())) return "no core";
    (void)!::write(STDOUT_FILENO, "crashing\n", 9);
    std::abort();
  }
  return {};
}

}  // namespace sluice::test
