#include "sluice/agent/confinement.hpp"

#include <fcntl.h>
#include <linux/capability.h>
#include <sched.h>
#include <seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

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
  void let(const allowed_call& one) {
    const int call = ::seccomp_syscall_resolve_name(std::string{one.name}.c_str());
    if (call == __NR_SCMP_ERROR && error_ == 0) error_ = -EINVAL;
    std::vector<scmp_arg_cmp> when;
    for (const auto& each : one.when)
      when.push_back({each.argument, SCMP_CMP_MASKED_EQ, each.mask, each.value});
    if (error_ == 0)
      error_ = ::seccomp_rule_add_array(filter_.get(), SCMP_ACT_ALLOW, call,
                                        static_cast<unsigned>(when.size()), when.data());
  }
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
  list.let(SCMP_SYS(prctl), {is(0, PR_SET_TIMERSLACK)});
  // The first thread, and abort(): so the process dies of that signal, not of this filter.
  list.let({SCMP_SYS(rt_sigaction)});
  list.let(SCMP_SYS(tgkill), {is(0, static_cast<std::uint64_t>(::getpid())), is(2, SIGABRT)});
}

/// To look at files, /proc among them, without writing.
void let_look(allow_list& list) {
  constexpr std::uint64_t changes =
      O_ACCMODE | O_CREAT | O_TRUNC | O_APPEND | (O_TMPFILE & ~O_DIRECTORY);
  list.let(SCMP_SYS(openat), {has(2, changes, O_RDONLY)});
  list.let({SCMP_SYS(pidfd_open), SCMP_SYS(pread64), SCMP_SYS(lseek), SCMP_SYS(getdents64),
            SCMP_SYS(newfstatat), SCMP_SYS(fstat), SCMP_SYS(readlink),
            // Whether a role store that is not root's is this user's.
            SCMP_SYS(geteuid)});
}

void let_agent(allow_list& list) {
  list.let({SCMP_SYS(epoll_wait), SCMP_SYS(epoll_ctl), SCMP_SYS(epoll_create1), SCMP_SYS(eventfd2),
            SCMP_SYS(pipe2), SCMP_SYS(timerfd_create), SCMP_SYS(timerfd_settime), SCMP_SYS(sendmsg),
            SCMP_SYS(sendto), SCMP_SYS(recvfrom), SCMP_SYS(ppoll)});
}

void let_close(allow_list& list, int kept_fd) {
  if (kept_fd < 0)
    list.let({SCMP_SYS(close)});
  else
    list.let(SCMP_SYS(close),
             {scmp_arg_cmp{0, SCMP_CMP_LT, static_cast<std::uint64_t>(kept_fd), 0}});
}

}  // namespace

result<void> drop_capabilities(const confinement& how) {
  std::uint64_t kept = 0;
  for (const int each : how.capabilities) kept |= std::uint64_t{1} << static_cast<unsigned>(each);
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
      let_look(list);
      let_agent(list);
      break;
    case confined::guardian:
      let_threads(list);
      let_look(list);
      list.let({SCMP_SYS(pidfd_send_signal)});
      break;
    case confined::helper: break;
  }
  let_close(list, how.kept_fd);
  for (const allowed_call& each : how.calls) list.let(each);
  return list.load();
}

}  // namespace sluice::agent
