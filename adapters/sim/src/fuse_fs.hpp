#pragma once
/// \file
/// The file system through which processes meet the simulated driver: its device node, its sysfs
/// tree and its debugfs file, served by FUSE's low-level interface.

#include "driver.hpp"
#include "generated_tree.hpp"
#include "loop.hpp"
#include "tree.hpp"

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <vector>

struct fuse_lowlevel_ops;
struct fuse_pollhandle;
struct fuse_req;
struct fuse_session;

namespace sluice::sim {

/// A mounted instance. While the loop sleeps, a request wakes it, and it receives that itself;
/// while it works, threads of this receive. They answer what never changes; what concerns the
/// driver they post to the loop, and it is answered from there, possibly much later.
///
/// Nothing here may wait for the loop while the loop may wait for it. The loop copies from and to
/// clients' memory, and that may fault in a page of a file of ours that a client mapped: such a
/// read arrives with the loop's own thread id, and is refused at once.
///
/// Threading: constructed, started and destroyed on the loop's thread, outside run().
/// Lifetime:  loop and driver outlive it. Destruction unmounts; clients that still hold the device
///            open get ENOTCONN from then on.
/// Errors:    the constructor throws std::runtime_error with a sentence for the user.
class fuse_fs {
 public:
  struct options {
    std::string mountpoint;   ///< An existing, empty directory.
    bool allow_other = true;  ///< Serve processes of other users too; needs root.
    unsigned threads = 2;     ///< Two at least: see above.
  };

  /// \param kfd the same driver, where it is KFD: for what no other driver has. Else null.
  fuse_fs(realtime_loop& loop, device_driver& device, driver* kfd, static_tree names, options how);
  fuse_fs(const fuse_fs&) = delete;
  fuse_fs& operator=(const fuse_fs&) = delete;
  ~fuse_fs();

  /// The driver's process came or went: gives it a new identity in the tree, so that a pid that
  /// comes back is another directory.
  void process_changed(pid_t pid, bool appeared);
  /// A queue of that process came or went. Before the driver's call for it is answered: whoever
  /// asks then is told.
  void queues_changed(pid_t pid) const;

  /// Something was queued for that client of SMI events.
  void smi_event(std::uint64_t client);

  /// A name in the root directory that is in no listing: a folder where only a thread that has been
  /// promised a descriptor finds a file, the number of that descriptor.
  static constexpr const char* handed_folder = "handed";
  /// The number of such a file; nothing: the inode is another one.
  static std::optional<std::uint64_t> handed_file_of(std::uint64_t inode);

  /// Called on the loop's thread when somebody else unmounted the file system.
  std::function<void()> on_unmounted;

 private:
  struct handle;    // An open regular file or directory (not of the device node).
  struct requests;  // The FUSE operations; they run on FUSE's threads.
  friend struct requests;
  static fuse_lowlevel_ops operations();

  // --- The loop's thread ---
  /// The kernel keeps them for good otherwise.
  void forget_attributes(std::uint64_t id) const;

  /// What was written to sim/control. \return 0 or -EINVAL; either way last_control_ tells.
  int control(std::string_view text);

  void interrupt(std::uint64_t number);

  struct receiver;
  /// Held from the receipt of a request until it is posted, so that none overtakes another: close()
  /// returns before its RELEASE is served, and a call after it must find the file closed.
  std::mutex receive_mutex_;
  bool receive(receiver& into);
  void serve();

  realtime_loop& loop_;
  device_driver& device_;
  driver* const kfd_;  // Null: the tree has no node that leads to a use of it.
  const static_tree names_;
  generated_tree generated_;  // The loop's thread only, but for what it says of others.
  const std::string mountpoint_;
  const pid_t loop_thread_;
  fuse_session* session_ = nullptr;
  unique_fd stop_;
  std::unique_ptr<receiver> loops_receiver_;
  std::vector<std::jthread> threads_;

  // The loop's thread only.
  std::unordered_map<std::uint64_t, fuse_pollhandle*> smi_polls_;  // Who asked to be woken.
  std::string last_control_ = "no command written yet\n";
  std::atomic<bool> unmounting_{false};

  // Driver calls in progress, for the interrupts that may overtake them.
  struct call {
    fuse_req* waiting = nullptr;
    bool posted = false;
    bool interrupted = false;
    request_id request = 0;  // The loop's thread only.
  };
  std::mutex calls_mutex_;
  std::uint64_t last_call_ = 0;                    // Guarded by calls_mutex_.
  std::unordered_map<std::uint64_t, call> calls_;  // Guarded by calls_mutex_.
};

}  // namespace sluice::sim
