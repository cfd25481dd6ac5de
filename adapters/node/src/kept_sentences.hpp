#pragma once
/// \file
/// What an attempt says, kept until it is known whether it is worth hearing.

#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sluice/os/message_sink.hpp"

namespace sluice {

/// Threading: any thread. Lifetime: its sinks end before it.
class kept_sentences {
 public:
  explicit kept_sentences(message_sink warn) : warn_(std::move(warn)) {}

  /// From here on sentences are kept.
  void keep() {
    const std::scoped_lock held{mutex_};
    keeping_ = true;
  }
  /// From here on they are heard at once. \return those that were kept.
  std::vector<std::string> take() {
    const std::scoped_lock held{mutex_};
    keeping_ = false;
    return std::exchange(kept_, {});
  }
  message_sink sink() {
    return [this](std::string_view sentence) {
      {
        const std::scoped_lock held{mutex_};
        if (keeping_) {
          kept_.emplace_back(sentence);
          return;
        }
      }
      warn_(sentence);
    };
  }

 private:
  const message_sink warn_;
  std::mutex mutex_;
  bool keeping_ = false;
  std::vector<std::string> kept_;
};

}  // namespace sluice
