#pragma once
/// \file
/// A directory of a test's own.

#include <stdlib.h>  // NOLINT(modernize-deprecated-headers): mkdtemp(3)

#include <cerrno>
#include <filesystem>
#include <string>
#include <system_error>

namespace sluice::test {

/// For tests that wait for changes that are synchronized with the disk: a busy one takes seconds.
inline constexpr const char* memory_directory = "/dev/shm";

/// A new directory, by default below $TMPDIR or /tmp, removed with all that it contains at the end.
/// Throws std::system_error if it cannot be made.
class temporary_directory {
 public:
  explicit temporary_directory(
      const std::filesystem::path& parent = std::filesystem::temp_directory_path()) {
    std::string name = parent / "sluice-test-XXXXXX";
    if (::mkdtemp(name.data()) == nullptr) {
      throw std::system_error(errno, std::generic_category(), "mkdtemp " + name);
    }
    path_ = name;
  }
  ~temporary_directory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  temporary_directory(const temporary_directory&) = delete;
  temporary_directory& operator=(const temporary_directory&) = delete;

  const std::string& path() const noexcept { return path_; }

 private:
  std::string path_;
};

}  // namespace sluice::test
