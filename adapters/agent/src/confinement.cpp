#include "confinement.hpp"

#include <asm/termbits.h>

#include <fcntl.h>
#include <linux/capability.h>
#include <linux/prctl.h>
#include <sched.h>
#include <seccomp.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <initializer_list>
#include <memory>

namespace sluice::agent {

namespace {

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SLUICE_SANITIZED 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || defined(SLUICE_SANITIZED)
constexpr bool sanitized = true;
#else
constexpr bool sanitized = false;
#endif

/// IORING_REGISTER_EVENTFD and IORING_REGISTER_ENABLE_RINGS.
constexpr std::array<unsigned, 2> ring_registrations{4, 12};
/// The type of all commands of the driver: 'K', in the second byte.
constexpr std::uint64_t ioctl_type = _IOC_TYPEMASK << _IOC_TYPESHIFT;
constexpr std::uint64_t driver_type = std::uint64_t{'K'} << _IOC_TYPESHIFT;
/// A console's commands have that type, too (linux/kd.h), but no direction, which all that are used
/// here have.
constexpr std::uint64_t ioctl_direction = std::uint64_t{_IOC_DIRMASK} << _IOC_DIRSHIFT;
constexpr std::array<std::uint64_t, 3> directions{_IOC_READ, _IOC_WRITE, _IOC_READ | _IOC_WRITE};
#ifdef __x86_64__
/// By which the kernel's own code returns to it from where an operator has put a probe into a
/// library (uretprobe, Linux 6.11; uprobe, 6.18). Not in older headers.
constexpr std::array<int, 2> probe_returns{335, 336};
#endif

struct release_filter {
  void operator()(void* filter) const noexcept { ::seccomp_release(filter); }
};

/// A list of what is let through. The first refusal to take a rule is kept.
class allow_list {
 public:
  allow_list() : filter_(::seccomp_init(SCMP_ACT_KILL_PROCESS)) {
    if (!filter_) error_ = -ENOMEM;
  }

  void let(std::initializer_list<int> calls) {
    for (const int call : calls) add(SCMP_ACT_ALLOW, call, {});
  }
  /// Where all the conditions hold.
  void let(int call, std::initializer_list<scmp_arg_cmp> when) { add(SCMP_ACT_ALLOW, call, when); }
  void fail(int call, int error) { add(SCMP_ACT_ERRNO(static_cast<unsigned>(error)), call, {}); }

  result<void> load() {
    // As a tree: some of its calls are on the way from an event to a batch. Without what older
    // kernels slow filtered programs down by, which is meant for those that run others' code.
    if (filter_) {
      (void)::seccomp_attr_set(filter_.get(), SCMP_FLTATR_CTL_OPTIMIZE, 2);
      (void)::seccomp_attr_set(filter_.get(), SCMP_FLTATR_CTL_SSB, 1);
    }
    // Calls in the manner of another architecture: there are none here.
    if (error_ == 0)
      error_ = ::seccomp_attr_set(filter_.get(), SCMP_FLTATR_ACT_BADARCH, SCMP_ACT_KILL_PROCESS);
    if (error_ == 0) error_ = ::seccomp_attr_set(filter_.get(), SCMP_FLTATR_CTL_TSYNC, 1);
    if (error_ == 0) error_ = ::seccomp_load(filter_.get());
    if (error_ != 0) return error_code{-error_, boost::system::system_category()};
    return {};
  }

 private:
  void add(std::uint32_t action, int call, std::initializer_list<scmp_arg_cmp> when) {
    if (error_ != 0) return;
    error_ = ::seccomp_rule_add_array(filter_.get(), action, call,
                                      static_cast<unsigned>(when.size()), when.begin());
  }

  std::unique_ptr<void, release_filter> filter_;
  int error_ = 0;
};

scmp_arg_cmp is(unsigned argument, std::uint64_t value) {
  return {argument, SCMP_CMP_EQ, value, 0};
}
/// Those bits of it are just these.
scmp_arg_cmp has(unsigned argument, std::uint64_t mask, std::uint64_t value) {
  return {argument, SCMP_CMP_MASKED_EQ, mask, value};
}

/// What every one of them needs to run, to stop and to say so.
void let_run(allow_list& list) {
  list.let({SCMP_SYS(read), SCMP_SYS(write), SCMP_SYS(writev), SCMP_SYS(exit), SCMP_SYS(exit_group),
            SCMP_SYS(rt_sigreturn), SCMP_SYS(restart_syscall), SCMP_SYS(clock_gettime),
            SCMP_SYS(poll), SCMP_SYS(getpid), SCMP_SYS(gettid), SCMP_SYS(rt_sigprocmask)});
#ifdef __x86_64__
  for (const int each : probe_returns) list.let({each});
#endif
}

/// Threads, and memory that is never both written and run.
void let_threads(allow_list& list) {
  constexpr std::uint64_t code = PROT_EXEC;
  list.let(SCMP_SYS(mmap), {has(2, code, 0)});
  list.let(SCMP_SYS(mprotect), {has(2, code, 0)});
  list.let({SCMP_SYS(munmap), SCMP_SYS(mremap), SCMP_SYS(madvise), SCMP_SYS(brk), SCMP_SYS(futex),
            SCMP_SYS(set_robust_list), SCMP_SYS(rseq), SCMP_SYS(sched_yield),
            SCMP_SYS(sched_getaffinity), SCMP_SYS(getrandom), SCMP_SYS(clock_nanosleep),
            SCMP_SYS(nanosleep)});
  // A thread, and no process. Of clone3 no filter sees what for: the C library then takes clone.
  list.let(SCMP_SYS(clone), {has(0, CLONE_THREAD | CLONE_VM, CLONE_THREAD | CLONE_VM)});
  list.fail(SCMP_SYS(clone3), ENOSYS);
  list.let(SCMP_SYS(prctl), {is(0, PR_SET_NAME)});
  // The first thread, and abort(): so the process dies of that signal, not of this filter.
  list.let({SCMP_SYS(rt_sigaction)});
  list.let(SCMP_SYS(tgkill), {is(0, static_cast<std::uint64_t>(::getpid())), is(2, SIGABRT)});
}

/// To trace without reading or writing registers and memory, and to look at /proc without writing.
void let_trace(allow_list& list) {
  for (const auto request : {PTRACE_SEIZE, PTRACE_CONT, PTRACE_LISTEN})
    list.let(SCMP_SYS(ptrace), {is(0, request)});
  list.let({SCMP_SYS(wait4), SCMP_SYS(waitid), SCMP_SYS(pidfd_open)});
  constexpr std::uint64_t changes =
      O_ACCMODE | O_CREAT | O_TRUNC | O_APPEND | (O_TMPFILE & ~O_DIRECTORY);
  list.let(SCMP_SYS(openat), {has(2, changes, O_RDONLY)});
  list.let({SCMP_SYS(pread64), SCMP_SYS(lseek), SCMP_SYS(getdents64), SCMP_SYS(newfstatat),
            SCMP_SYS(fstat), SCMP_SYS(readlink)});
  for (const std::uint64_t each : directions) {
    const std::uint64_t command = driver_type | each << _IOC_DIRSHIFT;
    list.let(SCMP_SYS(ioctl), {has(1, ioctl_type | ioctl_direction, command)});
  }
}

void let_agent(allow_list& list, const confinement& how) {
  list.let({SCMP_SYS(epoll_wait), SCMP_SYS(epoll_ctl), SCMP_SYS(epoll_create1), SCMP_SYS(eventfd2),
            SCMP_SYS(pipe2), SCMP_SYS(timerfd_create), SCMP_SYS(timerfd_settime), SCMP_SYS(sendmsg),
            SCMP_SYS(sendto), SCMP_SYS(recvfrom), SCMP_SYS(process_vm_readv),
            // Whether a role store that is not root's is this user's.
            SCMP_SYS(geteuid)});
  if (how.criu_pause) list.let({SCMP_SYS(pidfd_getfd)});
  if (how.bells < 0) {
    list.let({SCMP_SYS(close)});
    return;
  }
  // The highest number that there is, which nothing else may come to have.
  const auto bells = static_cast<std::uint64_t>(how.bells);
  list.let(SCMP_SYS(close), {scmp_arg_cmp{0, SCMP_CMP_LT, bells, 0}});
  if (!how.criu_pause) list.let(SCMP_SYS(pidfd_getfd), {is(0, bells)});
  list.let({SCMP_SYS(io_uring_enter)});
  for (const unsigned each : ring_registrations)
    list.let(SCMP_SYS(io_uring_register), {is(1, each)});
}

}  // namespace

std::vector<int> kept_capabilities(const confinement& how) {
  if (how.who == confined::bell_maker) return {};
  std::vector<int> kept{CAP_SYS_PTRACE, CAP_DAC_READ_SEARCH};
  if (how.criu_pause) kept.push_back(CAP_CHECKPOINT_RESTORE);
  if (how.reservations && how.who == confined::agent) kept.push_back(CAP_SYS_ADMIN);
  return kept;
}

result<void> drop_capabilities(const confinement& how) {
  std::uint64_t kept = 0;
  for (const int each : kept_capabilities(how))
    kept |= std::uint64_t{1} << static_cast<unsigned>(each);
  // Of what it might get by an exec, which nothing gives it any more, nothing.
  for (int each = 0; ::prctl(PR_CAPBSET_READ, each) >= 0; ++each) {
    if ((kept >> static_cast<unsigned>(each) & 1U) != 0) continue;
    // EPERM: without CAP_SETPCAP it cannot, and no_new_privs has to do.
    if (::prctl(PR_CAPBSET_DROP, each) != 0 && errno != EPERM) return last_system_error();
  }
  if (::prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) != 0 ||
      ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0)
    return last_system_error();
  __user_cap_header_struct about{_LINUX_CAPABILITY_VERSION_3, 0};
  std::array<__user_cap_data_struct, _LINUX_CAPABILITY_U32S_3> sets{};
  if (::syscall(SYS_capget, &about, sets.data()) != 0) return last_system_error();
  for (std::size_t word = 0; word < sets.size(); ++word) {
    const auto stays = static_cast<std::uint32_t>(kept >> (32 * word));
    sets[word].effective &= stays;
    sets[word].permitted &= stays;
    sets[word].inheritable = 0;
  }
  if (::syscall(SYS_capset, &about, sets.data()) != 0) return last_system_error();
  return {};
}

result<void> filter_system_calls(const confinement& how) {
  if (sanitized) return {};
  allow_list list;
  let_run(list);
  switch (how.who) {
    case confined::agent:
      let_threads(list);
      let_trace(list);
      let_agent(list, how);
      break;
    case confined::guardian:
      let_threads(list);
      let_trace(list);
      list.let({SCMP_SYS(recvmsg), SCMP_SYS(close)});
      break;
    case confined::bell_maker:
      list.let({SCMP_SYS(io_uring_setup), SCMP_SYS(io_uring_register), SCMP_SYS(close),
                SCMP_SYS(sendto), SCMP_SYS(recvfrom)});
      break;
  }
  return list.load();
}

}  // namespace sluice::agent
