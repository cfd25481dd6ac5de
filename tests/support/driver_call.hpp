#pragma once
/// \file
/// Whether a thread is inside a driver call: to act while it is, instead of sleeping.

#include <sys/syscall.h>
#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <ios>
#include <string>
#include <system_error>

namespace sluice::test {

/// Whether the thread waits in ioctl(2) with this request (proc_pid_syscall(5)).
inline bool is_in_ioctl(pid_t thread, std::uint64_t request) {
  std::ifstream file("/proc/" + std::to_string(thread) + "/syscall");
  long number = 0;
  std::string descriptor;
  std::uint64_t called = 0;
  file >> number >> descriptor;
  file.unsetf(std::ios::basefield);  // With the prefix 0x.
  file >> called;
  return file && number == SYS_ioctl && called == request;
}

/// Whether any thread of the process does.
inline bool any_thread_is_in_ioctl(pid_t process, std::uint64_t request) {
  std::error_code gone;
  std::filesystem::directory_iterator each{"/proc/" + std::to_string(process) + "/task", gone};
  for (; !gone && each != std::filesystem::directory_iterator{}; each.increment(gone)) {
    if (is_in_ioctl(std::stoi(each->path().filename()), request)) return true;
  }
  return false;
}

}  // namespace sluice::test
