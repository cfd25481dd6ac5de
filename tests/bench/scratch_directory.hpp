#pragma once
/// \file
/// A directory in memory (tmpfs), for trees that look like the driver's.

#include <sys/vfs.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>

namespace sluice::bench {

/// Threading: one thread. Lifetime: removes the directory at the end. Errors: throws.
class scratch_directory {
 public:
  scratch_directory() {
    std::string name = "/dev/shm/sluice-bench-XXXXXX";
    if (::mkdtemp(name.data()) == nullptr) {
      throw std::runtime_error("cannot make a directory in /dev/shm; mount a tmpfs there");
    }
    path_ = name;
    struct statfs of {};
    constexpr auto tmpfs_magic = 0x01021994;
    if (::statfs(name.c_str(), &of) != 0 || of.f_type != tmpfs_magic) {
      std::filesystem::remove_all(path_);
      throw std::runtime_error("/dev/shm is no tmpfs; mount one there");
    }
  }
  ~scratch_directory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  scratch_directory(const scratch_directory&) = delete;
  scratch_directory& operator=(const scratch_directory&) = delete;

  const std::string& path() const noexcept { return path_; }
  void write(const std::string& file, const std::string& text) const {
    const auto whole = std::filesystem::path(path_) / file;
    std::filesystem::create_directories(whole.parent_path());
    std::ofstream(whole) << text;
  }

 private:
  std::string path_;
};

}  // namespace sluice::bench
