#pragma once
/// \file
/// A driver that refuses on request: the ioctl of refusing_driver.cpp stands before libc's, in a
/// test program or, preloaded, in the agent, and fails the DBG_TRAP operations that a file lists.

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

namespace sluice::test {

/// Names the file; processes started from now on look there too.
inline constexpr const char* refusals_variable = "SLUICE_TEST_REFUSALS";

struct refusal {
  std::uint32_t operation = 0;  ///< uapi::kfd_dbg_trap_operations
  int error = 0;
};

/// What the driver refuses, in every process whose environment names the file.
class refusals {
 public:
  explicit refusals(std::string path) : path_(std::move(path)) {
    ::setenv(refusals_variable, path_.c_str(), 1);
  }
  ~refusals() {
    lift();
    ::unsetenv(refusals_variable);
  }
  refusals(const refusals&) = delete;
  refusals& operator=(const refusals&) = delete;

  const std::string& path() const { return path_; }
  void set(std::initializer_list<refusal> list) const {
    const std::string next = path_ + ".next";
    {
      std::ofstream file{next};
      for (const refusal& each : list) file << each.operation << ' ' << each.error << '\n';
    }
    std::filesystem::rename(next, path_);  // whole, whoever reads it
  }
  void lift() const { std::filesystem::remove(path_); }

 private:
  std::string path_;
};

/// While one exists, the driver gives an SMI descriptor to whoever asks in this process, for each
/// GPU as often as asked; the test writes the events.
class smi_driver {
 public:
  struct stream {
    std::uint32_t gpu = 0;
    std::uint64_t mask = 0;  ///< 0: not written yet.
    int fd = -1;             ///< The driver's end.
  };
  smi_driver();
  ~smi_driver();
  smi_driver(const smi_driver&) = delete;
  smi_driver& operator=(const smi_driver&) = delete;

  std::vector<stream> streams();
  /// Writes a line to every stream of the GPU whose mask has the bit. \return how many there are.
  int say(std::uint32_t gpu, std::uint64_t bit, std::string_view line);
};

}  // namespace sluice::test
