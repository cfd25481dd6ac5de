#pragma once
// What every parser's test needs: the samples, and texts fed in pieces.

#include <cstdint>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <string_view>

#include <gtest/gtest.h>

namespace sluice::kfd {

/// A file of tests/adapters/kfd/samples.
inline std::string sample(const std::string& name) {
  std::ifstream file{std::string{SLUICE_KFD_SAMPLES} + "/" + name};
  std::string text{std::istreambuf_iterator<char>{file}, {}};
  EXPECT_FALSE(text.empty()) << name;
  return text;
}

/// Feeds the text in pieces of random length, 1 to `longest` bytes.
template <class Parser>
auto parse_in_pieces(std::string_view text, std::mt19937_64& random, std::size_t longest) {
  Parser parser;
  while (!text.empty()) {
    const std::string_view piece = text.substr(0, 1 + random() % longest);
    parser.feed(piece);
    text.remove_prefix(piece.size());
  }
  return parser.finish();
}

/// Feeds 100 MB that no grammar knows, in pieces of 64 KiB of which every one is different: lines
/// of all lengths, and one that never ends.
template <class Parser>
auto parse_garbage(std::uint64_t seed) {
  std::mt19937_64 random{seed};
  Parser parser;
  std::string piece(std::size_t{1} << 16U, '\0');
  constexpr std::size_t total = 100'000'000;
  for (std::size_t fed = 0; fed < total; fed += piece.size()) {
    for (std::size_t at = 0; at < piece.size(); at += 8) {
      const std::uint64_t bits = random();
      std::memcpy(piece.data() + at, &bits, 8);
    }
    if (fed > total / 2) {
      for (char& each : piece) {
        if (each == '\n') each = '\t';
      }
    }
    parser.feed(piece);
  }
  return parser.finish();
}

}  // namespace sluice::kfd
