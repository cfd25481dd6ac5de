#pragma once
/// \file
/// Reads the read and write pointers of another process's AQL queues from its memory: whether work
/// arrives shows there, without tracing the process and without its help.

#include <sys/types.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "sluice/os/process_identity.hpp"
#include "sluice/os/unique_fd.hpp"
#include "sluice/result.hpp"

namespace sluice::kfd {

/// Where a queue's pointers are in its owner's memory: from a session's snapshot, from `mqds` (see
/// mqds.hpp), or registered by the owner.
struct pointer_addresses {
  std::uint64_t read = 0;
  std::uint64_t write = 0;

  friend bool operator==(const pointer_addresses&, const pointer_addresses&) = default;
};

/// Whether the two are the fields of one amd_queue_t, as ROCr's queues on gfx9 and later have it. A
/// runtime other than ROCr may lay them out as it likes.
[[nodiscard]] constexpr bool is_rocr_layout(const pointer_addresses& at) noexcept {
  return at.write != 0 && at.read - at.write == 0x48;
}

/// What the pointers of one queue said. Both count packets, for ever upwards.
struct pointer_values {
  std::uint64_t read = 0;
  std::uint64_t write = 0;
  bool known = false;  ///< Read by the last read(); else the values are those of an earlier one.

  /// Packets not yet taken by the GPU. None says nothing of kernels that still run, and a packet
  /// counts from its reservation on, before it is written whole.
  [[nodiscard]] std::uint64_t pending() const noexcept { return write - read; }
};

/// One process's queue pointers. read() reads the pointers alone; whoever wants more asks for it
/// word by word.
///
/// The process is held by its memory (an open /proc/PID/mem), which another process under the same
/// pid, or another program in the same process, does not share; it is checked after every read, so
/// that values are never a stranger's. (Assumed: the memory ends with the program. A process that
/// lends it to another with a bare clone(CLONE_VM) before an exec escapes this.)
///
/// A pointer is read while its owner may be writing it. The kernel's copy of 8 aligned bytes is one
/// access on the machines we know, but nothing promises it: go by change, look again, and let no
/// single value decide alone.
///
/// Threading: one thread at a time.
/// Errors:    errc::unknown_target: the process has ended, or exec'd: start anew. Otherwise the
///            system's: EPERM, EACCES when it may not be traced (the rights needed are the same).
/// Cost:      watch() allocates; read() does not, and is one process_vm_readv for every 512 queues
///            (1024 of ROCr's, whose two pointers are read as one piece) and one pread. A queue
///            whose memory only /proc/PID/mem can read (or nothing can) costs two preads from then
///            on.
class queue_pointers {
 public:
  [[nodiscard]] static result<std::unique_ptr<queue_pointers>> open(const process_identity& who);

  /// Replaces what is watched; values() is as long, and knows nothing yet.
  /// \return EINVAL when an address is 0 or not a multiple of 8: that is no pointer, and nothing
  ///         was changed.
  [[nodiscard]] result<void> watch(std::span<const pointer_addresses> queues);
  /// Reads all of them. A queue that cannot be read is not known; the others are.
  [[nodiscard]] result<void> read() noexcept;
  /// Eight bytes of the process's memory, of its own only: nothing when it is over, or there is
  /// nothing to be read there. One pread; no allocation.
  [[nodiscard]] std::optional<std::uint64_t> word_at(std::uint64_t address) const noexcept;
  /// In the order of watch(). Valid until the next call of it.
  [[nodiscard]] std::span<const pointer_values> values() const noexcept { return values_; }

  [[nodiscard]] const process_identity& who() const noexcept { return who_; }
  /// How many queues are read through /proc/PID/mem, for process_vm_readv cannot.
  [[nodiscard]] std::size_t slow() const noexcept { return queues_.size() - direct_.size(); }

 private:
  queue_pointers(const process_identity& who, unique_fd memory)
      : who_(who), memory_(std::move(memory)) {}

  void sort_out() noexcept;
  std::size_t add_piece(std::size_t of, std::uint64_t address, std::size_t words) noexcept;

  const process_identity who_;
  const unique_fd memory_;
  struct queue {
    pointer_addresses at;
    bool slow = false;
  };
  std::vector<queue> queues_{};
  std::vector<pointer_values> values_{};
  /// One that is not slow, and which words of copied_ its pointers are.
  struct direct {
    std::size_t queue = 0;
    std::size_t read = 0;
    std::size_t write = 0;
  };
  std::vector<direct> direct_{};
  // What is copied; for each piece its queue, and where in copied_ it begins (and the last ends).
  std::vector<iovec> remote_{};
  std::vector<std::size_t> owner_{};
  std::vector<std::size_t> begin_{};
  std::vector<std::uint64_t> copied_{};
};

}  // namespace sluice::kfd
