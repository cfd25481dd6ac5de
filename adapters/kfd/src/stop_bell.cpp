#include "stop_bell.hpp"

#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <new>

namespace sluice::kfd {

namespace {

/// IORING_OP_WAITID, which older headers do not have.
constexpr int waitid_operation = 50;

// Otherwise a status that comes while the thread is in a driver call would interrupt that call.
constexpr unsigned ring_flags =
    IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_TASKRUN_FLAG;

bool knows_waitid(io_uring& ring) noexcept {
  io_uring_probe* const known = io_uring_get_probe_ring(&ring);
  const bool knows = known != nullptr && io_uring_opcode_supported(known, waitid_operation) != 0;
  io_uring_free_probe(known);
  return knows;
}

}  // namespace

bool stop_bell::offered() noexcept { return make() != nullptr; }

int make_restricted_ring(io_uring_params& how) noexcept {
  how = {};
  how.flags = ring_flags | IORING_SETUP_R_DISABLED;
  unique_fd ring{static_cast<int>(::syscall(SYS_io_uring_setup, 1U, &how))};
  if (!ring) return -1;
  // What is not listed is refused: other requests, requests with flags, further registrations.
  std::array<io_uring_restriction, 1> allowed{};
  allowed[0].opcode = IORING_RESTRICTION_SQE_OP;
  allowed[0].sqe_op = waitid_operation;
  if (::syscall(SYS_io_uring_register, ring.get(), IORING_REGISTER_RESTRICTIONS, allowed.data(),
                allowed.size()) != 0)
    return -1;
  return ring.release();
}

int enable_ring(int ring) noexcept {
  // Not all libraries that have the others have a function for it.
  return static_cast<int>(
      ::syscall(SYS_io_uring_register, ring, IORING_REGISTER_ENABLE_RINGS, nullptr, 0U));
}

std::unique_ptr<stop_bell> stop_bell::hang(int rings, bell_maker* maker) noexcept {
  if (maker == nullptr) {
    auto made = make();
    if (made && io_uring_register_eventfd(&made->ring_, rings) != 0) made.reset();
    return made;
  }
  made_bell given;
  io_uring ring{};
  if (!maker->make(given) || io_uring_queue_mmap(given.fd.get(), &given.how, &ring) != 0)
    return nullptr;
  const int given_ring = given.fd.release();  // Closed with the ring from here on.
  auto made = own(ring);
  if (made && (io_uring_register_eventfd(&made->ring_, rings) != 0 || enable_ring(given_ring) != 0))
    made.reset();
  return made;
}

std::unique_ptr<stop_bell> stop_bell::make() noexcept {
  io_uring ring{};
  if (io_uring_queue_init(1, &ring, ring_flags) != 0) return nullptr;
  auto made = own(ring);
  if (!made || !knows_waitid(made->ring_)) return nullptr;
  return made;
}

std::unique_ptr<stop_bell> stop_bell::own(const io_uring& ring) noexcept {
  std::unique_ptr<stop_bell> made{new (std::nothrow) stop_bell{ring}};
  if (!made) {
    io_uring lost = ring;
    io_uring_queue_exit(&lost);
  }
  return made;
}

stop_bell::~stop_bell() { io_uring_queue_exit(&ring_); }

bool stop_bell::has_rung() const noexcept {
  return io_uring_cq_ready(&ring_) != 0 ||
         (io_uring_smp_load_acquire(ring_.sq.kflags) & IORING_SQ_TASKRUN) != 0;
}

bool stop_bell::arm() noexcept {
  // A tracee has called. If its status has been taken since, the kernel goes on waiting.
  io_uring_cqe* answer = nullptr;
  if (io_uring_peek_cqe(&ring_, &answer) == 0) {
    io_uring_cqe_seen(&ring_, answer);
    armed_ = false;
  }
  if (armed_) return true;
  // Null: the one of the last time is still there, for the kernel did not take it.
  if (io_uring_sqe* const request = io_uring_get_sqe(&ring_)) {
    // Of all children, since they are this thread's only; by pid the kernel would say nothing when
    // another thread's exec takes the tracee away.
    io_uring_prep_rw(waitid_operation, request, 0, nullptr, P_ALL, 0);
    request->file_index = WEXITED | WSTOPPED | WNOWAIT | __WALL | __WNOTHREAD;
  }
  armed_ = io_uring_submit_and_get_events(&ring_) == 1;
  return armed_;
}

}  // namespace sluice::kfd
