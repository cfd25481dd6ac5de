#pragma once
/// \file
/// The whole discovery, its thread included; the test is the reactor.

#include "family.hpp"
#include "inbox_queue.hpp"

#include <cstdlib>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "sluice/discovery.hpp"

namespace sluice::test {

class discovery_bench : public source_host {
 public:
  discovery_bench()
      : inbox_(1024, {.wake = [] {},
                      .on_reactor_thread = [] { return false; },
                      .deliver = [this](const observation& each,
                                        time_point) { seen_.push_back(each); }}) {}
  ~discovery_bench() { stop(); }

  void make(std::unique_ptr<survey> of, roles::classification_rules rules = {},
            message_sink say = messages_to_stderr()) {
    source_ = make_discovery(std::move(of), std::move(rules), std::move(say));
  }
  result<void> start() { return source_->start(*this); }
  void stop() {
    if (source_) source_->stop();
  }
  /// Whether the observation follows on `act` sooner than the next look by the clock, which is a
  /// second after the last: in one of ten rounds at least, for a busy machine may be slower.
  bool sees_at_once(observation_kind kind, const std::function<void()>& act) {
    for (int round = 0; round < 10; ++round) {
      const time_point clocked = clock::now() + std::chrono::milliseconds{950};
      source_->resync();
      if (!sees(observation_kind::resync_end)) return false;
      act();
      if (clock::now() < clocked && sees(kind, clocked - clock::now())) return true;
    }
    return false;
  }
  /// Whether nothing has arrived that sees() has not passed.
  bool silent() {
    inbox_.drain();
    return seen_.empty();
  }
  discovery& operator*() { return *source_; }
  discovery* operator->() { return source_.get(); }

  /// Whether an observation of the kind arrives; the ones before it are forgotten.
  bool sees(observation_kind kind, duration limit = patience) {
    return eventually(limit, [&] {
      inbox_.drain();
      while (!seen_.empty()) {
        last_ = seen_.front();
        seen_.erase(seen_.begin());
        if (last_.kind == kind) return true;
      }
      return false;
    });
  }
  /// How long it took to arrive; longer than any limit if it did not.
  duration seen_after(observation_kind kind) {
    const time_point before = clock::now();
    return sees(kind) ? clock::now() - before : duration::max();
  }
  /// Forgets what has arrived.
  void forget() {
    inbox_.drain();
    seen_.clear();
  }
  const observation& last() const { return last_; }

 private:
  reactor& loop() override { std::abort(); }  // it has a thread of its own
  inbox_producer& claim_inbox() override { return inbox_.producer(); }

  inbox inbox_;
  std::vector<observation> seen_;
  observation last_;
  std::unique_ptr<discovery> source_;
};

}  // namespace sluice::test
