#pragma once
/// \file
/// A simulated driver on a fake machine in virtual time, and calls of it.

#include "device_driver.hpp"
#include "engine.hpp"
#include "fake_os.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <optional>
#include <vector>

#include <gtest/gtest.h>

namespace sluice::sim::test {

using namespace std::chrono_literals;  // NOLINT: a header of tests only.

/// An ioctl in progress.
template <class Args>
struct pending_call {
  request_id request = 0;
  std::optional<int> result;
  Args args{};
  time_point finished{};
};

/// The driver is the derived class's.
class call_bench {
 public:
  call_bench() = default;
  call_bench(const call_bench&) = delete;
  call_bench& operator=(const call_bench&) = delete;
  virtual ~call_bench() = default;

  /// One step of the engine after the other, until `t`: what virtual time needs (driver.hpp).
  void run_until(time_point t) {
    while (planned.next() && *planned.next() <= t) planned.run_until(*planned.next());
    planned.run_until(t);
  }
  void run_for(duration d) { run_until(planned.now() + d); }
  /// Runs what is due now.
  void settle() { run_for(duration::zero()); }

  template <class Args>
  std::unique_ptr<pending_call<Args>> begin(pid_t tid, file_id file, std::uint32_t command,
                                            const Args& args) {
    auto pending = std::make_unique<pending_call<Args>>();
    pending->args = args;
    std::vector<std::byte> in(sizeof args);
    std::memcpy(in.data(), &args, sizeof args);
    pending->request =
        called().ioctl(tid, file, command, in, [this, to = pending.get()](ioctl_reply reply) {
          EXPECT_FALSE(to->result.has_value()) << "answered twice";
          to->result = reply.result;
          to->finished = planned.now();
          std::copy_n(reply.out.begin(), std::min(sizeof to->args, reply.out.size()),
                      reinterpret_cast<std::byte*>(&to->args));  // NOLINT: its bytes.
        });
    EXPECT_EQ(pending->request == 0, pending->result.has_value());
    settle();
    return pending;
  }
  /// Runs the engine until the call is answered; fails after 20 s of virtual time.
  template <class Args>
  int finish(pending_call<Args>& pending) {
    const auto deadline = planned.now() + 20s;
    while (!pending.result && planned.next() && *planned.next() <= deadline) {
      planned.run_until(*planned.next());
    }
    EXPECT_TRUE(pending.result.has_value()) << "no answer";
    return pending.result.value_or(-9999);
  }
  template <class Args>
  int call(pid_t tid, file_id file, std::uint32_t command, Args& args) {
    const auto pending = begin(tid, file, command, args);
    const int result = finish(*pending);
    args = pending->args;
    return result;
  }

  engine planned{time_point{1s}};
  fake_os machine;

 private:
  virtual device_driver& called() = 0;
};

}  // namespace sluice::sim::test
