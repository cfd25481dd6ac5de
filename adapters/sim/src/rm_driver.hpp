#pragma once
/// \file
/// The simulated resource manager (RM) of NVIDIA's driver, as far as programs need it to create
/// channels, and schedulers to disable them. It uses a GPU model. fuse_fs.hpp, or a test, passes
/// the calls of programs to it.

#include "device_driver.hpp"

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace sluice::sim {

class engine;
class os;
struct profile;

/// Node 0 is nvidiactl, node n + 1 GPU n's. An open file of nvidiactl owns the clients that were
/// made through it: every process with a descriptor of that open file can use them, and its last
/// close frees them with all of their objects.
///
/// What the GPU writes to clients' memory goes out at the end of an engine's step, and only then
/// waiters are woken. In virtual time, therefore, step from event to event (run_until(*next()))
/// while clients have work.
///
/// Lifetime: engine, os and profile outlive it.
class rm_driver final : public device_driver {
 public:
  rm_driver(engine& events, os& system, const profile& node);
  ~rm_driver() override;

  int open(pid_t tid, std::uint32_t node, file_id& out) override;
  void release(file_id file) override;
  request_id ioctl(pid_t tid, file_id file, std::uint32_t command, std::span<const std::byte> in,
                   ioctl_done done) override;
  /// Only a wait for a kernel is interruptible.
  void interrupt(request_id request) override;
  void reap() override;
  int control(std::string_view line, std::string& problem) override;
  std::string stats_json() const override;

 private:
  class impl;
  std::unique_ptr<impl> impl_;
};

}  // namespace sluice::sim
