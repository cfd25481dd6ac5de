#pragma once
/// \file
/// The scheduler's words in a page of their own, which other processes can be given to read.

#include "sluice/client_words.h"

namespace sluice::core {

/// Threading: made and destroyed by one; the words as client_words.h says.
class scheduler_page {
 public:
  static constexpr unsigned bytes = 4096;

  scheduler_page() noexcept;
  ~scheduler_page();
  scheduler_page(const scheduler_page&) = delete;
  scheduler_page& operator=(const scheduler_page&) = delete;

  sluice_scheduler_words& words() noexcept { return *words_; }
  /// A memfd of `bytes`, sealed: its size stays, and nobody else can ever write it. -1: the system
  /// gave none; then the words serve this process alone.
  int fd() const noexcept { return fd_; }

 private:
  bool share() noexcept;

  sluice_scheduler_words own_{};
  sluice_scheduler_words* words_ = &own_;
  int fd_ = -1;
};

}  // namespace sluice::core
