#pragma once
/// \file
/// Memory laid out as that of a ROCr queue, its ring and its signals, which a child process
/// inherits at the same address and shares. The test is the producer and the GPU.

#include "pointer_view.hpp"

#include <sys/mman.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>

namespace sluice::test {

class fake_queue {
 public:
  static constexpr std::uint64_t packets = 64;

  fake_queue() {
    void* const memory =
        ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) std::abort();
    base_ = reinterpret_cast<std::uintptr_t>(memory);
    word(0x08) = ring();
    word(0x18) = packets;  // And 32 reserved bits behind it.
  }
  ~fake_queue() { ::munmap(reinterpret_cast<void*>(base_), size); }
  fake_queue(const fake_queue&) = delete;
  fake_queue& operator=(const fake_queue&) = delete;

  std::uint64_t ring() const { return base_ + 0x1000; }
  kfd::online_queue on(gpu_id gpu) const {
    return {gpu, {base_ + 0x80, base_ + 0x38}, ring(), true};
  }

  void submit(bool with_signal = true) {
    const std::uint64_t slot = write().load() % packets;
    word(0x2000 + slot * 64 + 8) = 1;
    word(0x1000 + slot * 64 + 56) = with_signal ? base_ + 0x2000 + slot * 64 : 0;
    write().fetch_add(1);
  }
  /// Where the value of the next packet's completion signal is.
  std::uint64_t next_signal_value() const {
    return base_ + 0x2000 + write().load() % packets * 64 + 8;
  }
  void consume() { word(0x80) = write().load(); }
  /// The last packet's kernel ends.
  void finish() { word(0x2000 + (write().load() - 1) % packets * 64 + 8) = 0; }

 private:
  static constexpr std::size_t size = 0x3000;
  std::atomic_ref<std::uint64_t> word(std::uint64_t offset) const {
    return std::atomic_ref{*reinterpret_cast<std::uint64_t*>(base_ + offset)};
  }
  std::atomic_ref<std::uint64_t> write() const { return word(0x38); }
  std::uint64_t base_ = 0;
};

}  // namespace sluice::test
