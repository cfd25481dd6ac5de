#pragma once
/// \file
/// What the fuzz targets share. Each is one function that libFuzzer calls with inputs of its own
/// making; it looks for crashes, for what the sanitizers report, and for broken promises.

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace sluice::fuzz {

inline std::string_view as_text(const std::uint8_t* data, std::size_t size) noexcept {
  return {reinterpret_cast<const char*>(data), size};
}

/// Ends the program, which libFuzzer takes for a finding and keeps the input.
inline void require(bool promise, const char* what) {
  if (promise) return;
  std::fprintf(stderr, "broken promise: %s\n", what);
  std::abort();
}

/// Open ones of the first few, which are given in order.
inline int descriptors() {
  int count = 0;
  for (int fd = 0; fd < 128; ++fd) count += fcntl(fd, F_GETFD) >= 0 ? 1 : 0;
  return count;
}

/// Feeds a parser the text in pieces, whose lengths the text itself says.
template <class Parser>
void feed_in_pieces(Parser& parser, std::string_view text) {
  while (!text.empty()) {
    const auto length = std::size_t{1} + static_cast<unsigned char>(text.front()) * 5U % 97U;
    parser.feed(text.substr(0, length));
    text.remove_prefix(std::min(length, text.size()));
  }
}

/// A file that holds the input of the moment, in a directory of this process's.
class input_file {
 public:
  explicit input_file(const char* name) {
    std::string directory = "/tmp/sluice-fuzz-XXXXXX";
    require(mkdtemp(directory.data()) != nullptr, "a directory below /tmp");
    directory_ = directory;
    path_ = directory + "/" + name;
  }
  ~input_file() {
    std::error_code ignored;
    std::filesystem::remove_all(directory_, ignored);
  }
  input_file(const input_file&) = delete;
  input_file& operator=(const input_file&) = delete;

  const std::string& path() const noexcept { return path_; }
  void write(std::string_view text) const {
    std::ofstream file(path_, std::ios::binary | std::ios::trunc);
    file << text;
  }

 private:
  std::string directory_;
  std::string path_;
};

}  // namespace sluice::fuzz
