// The one translation unit of the runtime that knows Asio, but for the headers asio.hpp and
// acquire.hpp. Compiled once per Asio backend (see ../CMakeLists.txt).

#include "sluice/reactor.hpp"

#include "log.hpp"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <optional>
#include <thread>
#include <type_traits>
#include <unordered_map>
#include <utility>

#include <boost/asio/basic_waitable_timer.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/basic_stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/strand.hpp>
#include <boost/system/system_error.hpp>

#include "sluice/asio.hpp"

namespace sluice {
namespace {

namespace asio = boost::asio;

#if defined(BOOST_ASIO_HAS_IO_URING_AS_DEFAULT)
constexpr auto built_backend = reactor_backend::io_uring;
#elif defined(BOOST_ASIO_HAS_EPOLL)
constexpr auto built_backend = reactor_backend::epoll;
#else
#error "Asio was configured for neither io_uring nor epoll: link sluice::asio"
#endif

constexpr int most_per_poll = 64;

/// Lets one thread in at a time, the same thread again. A lock, but one that is free whenever a
/// strand or a single loop thread already keeps handlers apart, so that handlers pay two atomic
/// operations; only exclusive() and the destructor ever wait on it.
class gate {
 public:
  void enter() noexcept {
    const auto self = std::this_thread::get_id();
    if (owner_.load(std::memory_order_relaxed) != self) {
      for (std::thread::id seen{}; !owner_.compare_exchange_weak(
               seen, self, std::memory_order_acquire, std::memory_order_relaxed);
           seen = {}) {
        if (seen != std::thread::id{}) owner_.wait(seen, std::memory_order_relaxed);
      }
    }
    ++depth_;
  }
  void leave() noexcept {
    if (--depth_ != 0) return;
    owner_.store({}, std::memory_order_release);
    owner_.notify_one();
  }
  bool here() const noexcept {
    return owner_.load(std::memory_order_relaxed) == std::this_thread::get_id();
  }

 private:
  std::atomic<std::thread::id> owner_{};
  unsigned depth_ = 0;  // The owner's.
};

/// What outlives the reactor: owned by it and by the handlers that Asio still holds.
struct turnstile {
  gate entry;
  bool open = true;           // Guarded by entry; false once the reactor is gone.
  std::uint64_t handled = 0;  // Guarded by entry. Asio's own count includes its internal work.
};

class inside {
 public:
  explicit inside(turnstile& at) noexcept : at_(at) { at_.entry.enter(); }
  ~inside() { at_.entry.leave(); }
  inside(const inside&) = delete;
  inside& operator=(const inside&) = delete;

 private:
  turnstile& at_;
};

/// Room for one descriptor's or timer's operations, so that arming again allocates nothing. Flags
/// are atomic because on a hosted context an operation may be freed on another thread than the one
/// that will arm the next.
class handler_memory {
 public:
  void* allocate(std::size_t size) {
    if (size <= slot_size) {
      for (std::size_t i = 0; i < slots_.size(); ++i) {
        if (!used_[i].test_and_set(std::memory_order_acquire)) return slots_[i].bytes;
      }
    }
    return ::operator new(size);
  }
  void release(void* memory) noexcept {
    for (std::size_t i = 0; i < slots_.size(); ++i) {
      if (slots_[i].bytes == memory) {
        used_[i].clear(std::memory_order_release);
        return;
      }
    }
    ::operator delete(memory);
  }

 private:
  static constexpr std::size_t slot_size = 384;
  struct slot {
    alignas(std::max_align_t) std::byte bytes[slot_size];
  };
  std::array<slot, 3> slots_;
  std::array<std::atomic_flag, 3> used_{};
};

template <class T>
class slot_allocator {
 public:
  using value_type = T;
  explicit slot_allocator(handler_memory& memory) noexcept : memory_(&memory) {}
  template <class U>
  slot_allocator(const slot_allocator<U>& other) noexcept : memory_(other.memory_) {}
  T* allocate(std::size_t count) {
    static_assert(alignof(T) <= alignof(std::max_align_t));
    return static_cast<T*>(memory_->allocate(count * sizeof(T)));
  }
  void deallocate(T* memory, std::size_t) noexcept { memory_->release(memory); }
  template <class U>
  bool operator==(const slot_allocator<U>& other) const noexcept {
    return memory_ == other.memory_;
  }

 private:
  template <class>
  friend class slot_allocator;
  handler_memory* memory_;
};

/// A completion handler that owns its subject and brings the subject's memory.
template <class Subject>
class handler {
 public:
  using allocator_type = slot_allocator<void>;
  handler(std::shared_ptr<Subject> subject, std::uint64_t round) noexcept
      : subject_(std::move(subject)), round_(round) {}
  allocator_type get_allocator() const noexcept { return allocator_type(subject_->memory); }
  void operator()(error_code error) noexcept {
    // A copy of its own: the subject may be dropped from the table by what it calls.
    const std::shared_ptr<Subject> subject = subject_;
    const inside turn(*subject->home);
    if (subject->alive) Subject::fired(subject, error, round_);
  }

 private:
  std::shared_ptr<Subject> subject_;
  std::uint64_t round_;
};

/// Every watched descriptor, gathered in one epoll set, of which Asio waits for the set alone.
///
/// Why: with io_uring, Asio 1.81 must never be made to cancel a descriptor's operation. Its cancel
/// requests leave user_data unset, which liburing no longer clears, so once the ring has gone round
/// (16384 requests) each cancellation completes some other operation as well; and a released
/// descriptor's bookkeeping is handed to the next one before the cancelled operation is back. Both
/// lose wake-ups. Here the one operation is never cancelled: it is made to end by the bell.
/// The price is one epoll_wait per wake-up; adding and removing take effect at once.
template <class Executor>
struct watch_set {
  watch_set(Executor executor, std::shared_ptr<turnstile> at)
      : home(std::move(at)), bell(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)), set(executor) {
    const int fd = epoll_create1(EPOLL_CLOEXEC);
    if (fd < 0 || bell < 0 || !add(fd, bell, watch_id::none, reactor::trigger::level)) {
      const error_code why = last_system_error();
      if (fd >= 0) close(fd);
      if (bell >= 0) close(bell);
      throw boost::system::system_error(why);
    }
    set.assign(fd);
  }
  ~watch_set() { close(bell); }
  watch_set(const watch_set&) = delete;
  watch_set& operator=(const watch_set&) = delete;

  static bool add(int to, int fd, watch_id id, reactor::trigger by) noexcept {
    epoll_event wanted{};
    wanted.events = by == reactor::trigger::edge ? EPOLLIN | EPOLLET : EPOLLIN;
    wanted.data.u64 = static_cast<std::uint64_t>(id);
    return epoll_ctl(to, EPOLL_CTL_ADD, fd, &wanted) == 0;
  }
  /// Only while something is watched: an idle reactor is no work that keeps a host's context
  /// running.
  static void arm(const std::shared_ptr<watch_set>& self) {
    if (self->armed || self->watches.empty()) return;
    self->armed = true;
    self->set.async_wait(asio::posix::descriptor_base::wait_read, handler<watch_set>(self, 0));
  }
  static void fired(const std::shared_ptr<watch_set>& self, error_code error, std::uint64_t) {
    self->armed = false;
    if (error) {
      // Not from anything that watched descriptors do.
      log_line(log_level::error, log_part::scheduler, {},
               "reactor: stopped waiting for file descriptors: {}", error.message());
      return;
    }
    std::array<epoll_event, 32> ready;
    const int count =
        epoll_wait(self->set.native_handle(), ready.data(), static_cast<int>(ready.size()), 0);
    for (int i = 0; i < count && self->alive; ++i) {
      // By number: an earlier handler of this round may have ended this watch.
      const watch_id id{ready[static_cast<std::size_t>(i)].data.u64};
      if (id == watch_id::none) {
        eventfd_t ignored = 0;
        eventfd_read(self->bell, &ignored);
        continue;
      }
      const auto found = self->watches.find(id);
      if (found == self->watches.end()) continue;
      // A copy, for the handler may end its own watch.
      const auto call = found->second.ready;
      ++self->home->handled;
      (*call)();
    }
    if (self->alive) arm(self);
  }
  void remove(watch_id id) noexcept {
    const auto found = watches.find(id);
    if (found == watches.end()) return;
    epoll_ctl(set.native_handle(), EPOLL_CTL_DEL, found->second.fd, nullptr);
    watches.erase(found);
    if (watches.empty() && armed) eventfd_write(bell, 1);
  }
  void end() noexcept {
    alive = false;
    watches.clear();
    eventfd_write(bell, 1);
  }

  struct watch {
    int fd = -1;
    std::shared_ptr<std::function<void()>> ready;  // Shared with a call that is under way.
  };

  // First, so that it outlives the operation of the descriptor below.
  handler_memory memory;
  std::shared_ptr<turnstile> home;
  int bell;
  asio::posix::basic_stream_descriptor<Executor> set;  // Owns the epoll descriptor.
  std::unordered_map<watch_id, watch> watches;
  bool armed = false;
  bool alive = true;
};

/// How much earlier than wanted a punctual timer is set: about as late as one wake-up in ten comes
/// at least, so that few come early and wait awake for the rest.
class wake_lead {
 public:
  static constexpr duration most = std::chrono::microseconds{100};

  duration length() const noexcept { return length_; }
  void learn(duration late) noexcept {
    length_ = late < length_ ? length_ - std::min<duration>(length_ - late, 9 * step)
                             : std::min<duration>(length_ + step, most);
  }

 private:
  static constexpr duration step = std::chrono::microseconds{1};
  duration length_{};
};

template <class Executor>
struct timer_state {
  timer_state(Executor executor, std::shared_ptr<turnstile> at, std::function<void()> call,
              bool on_time)
      : home(std::move(at)),
        expired(std::move(call)),
        timer(std::move(executor)),
        punctual(on_time) {}

  /// A wait that ends early enough is left alone: most re-arming moves a deadline out, and then
  /// costs nothing.
  static void arm(const std::shared_ptr<timer_state>& self, time_point when) {
    self->wanted = when;
    if (when == never || self->armed <= when) return;
    self->armed = when;
    ++self->round;
    self->asked = self->punctual ? std::max(when - self->lead.length(), clock::now()) : when;
    self->timer.expires_at(self->asked);
    self->timer.async_wait(handler<timer_state>(self, self->round));
  }
  static void fired(const std::shared_ptr<timer_state>& self, error_code, std::uint64_t round) {
    if (round != self->round) return;  // Superseded by an earlier deadline.
    self->armed = never;
    time_point now = clock::now();
    self->lead.learn(now - self->asked);
    if (self->wanted == never) return;
    if (now < self->wanted) {
      if (!self->punctual || self->wanted - now > wake_lead::most) {
        arm(self, self->wanted);
        return;
      }
      while (clock::now() < self->wanted) {
      }
    }
    self->wanted = never;
    ++self->home->handled;
    self->expired();
  }
  void end() noexcept {
    alive = false;
    try {
      timer.cancel();
    } catch (const boost::system::system_error&) {
      // Nothing was waiting, then.
    }
  }

  handler_memory memory;
  std::shared_ptr<turnstile> home;
  std::function<void()> expired;
  asio::basic_waitable_timer<clock, asio::wait_traits<clock>, Executor> timer;
  time_point wanted = never;
  time_point armed = never;
  time_point asked = never;  // Of Asio, for `armed`.
  const bool punctual;
  wake_lead lead;
  std::uint64_t round = 0;
  bool alive = true;
};

template <class Executor>
class asio_reactor final : public reactor {
 public:
  /// May throw what Asio throws: the kernel's refusal shows at the first descriptor.
  asio_reactor(std::unique_ptr<asio::io_context> own, Executor executor)
      : own_(std::move(own)), executor_(std::move(executor)) {
    if (own_) work_.emplace(own_->get_executor());
    set_ = std::make_shared<watch_set<Executor>>(executor_, home_);
  }
  ~asio_reactor() override {
    const inside turn(*home_);
    home_->open = false;
    set_->end();
    for (auto& [id, one] : timers_) one->end();
  }

  reactor_backend backend() const noexcept override { return built_backend; }
  bool hosted() const noexcept override { return own_ == nullptr; }

  result<watch_id> watch(int fd, std::function<void()> ready, trigger by) override {
    const watch_id id{++last_id_};
    const auto made = set_->watches.emplace(
        id, typename watch_set<Executor>::watch{
                fd, std::make_shared<std::function<void()>>(std::move(ready))});
    if (!set_->add(set_->set.native_handle(), fd, id, by)) {
      const error_code why = last_system_error();
      set_->watches.erase(made.first);
      return why;
    }
    watch_set<Executor>::arm(set_);
    return id;
  }
  void unwatch(watch_id id) noexcept override { set_->remove(id); }

  result<timer_id> add_timer(std::function<void()> expired, bool punctual) override {
    try {
      const timer_id id{++last_id_};
      timers_.emplace(id, std::make_shared<timer_state<Executor>>(executor_, home_,
                                                                  std::move(expired), punctual));
      return id;
    } catch (const boost::system::system_error& refused) {
      return refused.code();
    }
  }
  void arm(timer_id id, time_point when) override {
    if (const auto found = timers_.find(id); found != timers_.end()) {
      timer_state<Executor>::arm(found->second, when);
    }
  }
  void remove(timer_id id) noexcept override {
    const auto found = timers_.find(id);
    if (found == timers_.end()) return;
    // Out of the table first, and alive until here: this may be its own handler.
    const auto one = std::move(found->second);
    timers_.erase(found);
    one->end();
  }

  void post(std::function<void()> work) override {
    asio::post(executor_, [home = home_, work = std::move(work)]() noexcept {
      const inside turn(*home);
      if (!home->open) return;
      ++home->handled;
      work();
    });
  }
  void exclusive(const std::function<void()>& work) override {
    const auto home = home_;  // `work` may destroy the reactor.
    const inside turn(*home);
    work();
  }
  bool running_here() const noexcept override { return home_->entry.here(); }

  void run() override {
    if (!own_) return;
    own_->run();
    own_->restart();
  }
  bool poll_once() override {
    if (!own_) return false;
    // Unguarded: whoever polls is the only one who runs handlers.
    const auto before = home_->handled;
    // Bounded: a descriptor that stays readable would keep poll() going for ever.
    for (int i = 0; i < most_per_poll && own_->poll_one() != 0; ++i) {
    }
    return home_->handled != before;
  }
  void stop() noexcept override {
    if (own_) own_->stop();
  }

 private:
  std::unique_ptr<asio::io_context> own_;
  std::optional<asio::executor_work_guard<asio::io_context::executor_type>> work_;
  Executor executor_;
  std::shared_ptr<turnstile> home_ = std::make_shared<turnstile>();
  std::uint64_t last_id_ = 0;
  std::shared_ptr<watch_set<Executor>> set_;  // Shared with its operation.
  std::unordered_map<timer_id, std::shared_ptr<timer_state<Executor>>> timers_;
};

}  // namespace

result<std::unique_ptr<reactor>> reactor::create() {
  try {
    // The hint says that one thread runs it; posting from others stays allowed.
    auto context = std::make_unique<asio::io_context>(1);
    auto executor = context->get_executor();
    return std::unique_ptr<reactor>(std::make_unique<asio_reactor<asio::io_context::executor_type>>(
        std::move(context), executor));
  } catch (const boost::system::system_error& refused) {
    return refused.code();
  }
}

result<std::unique_ptr<reactor>> make_reactor(asio::io_context& context) {
  try {
    auto executor = asio::make_strand(context);
    return std::unique_ptr<reactor>(
        std::make_unique<asio_reactor<decltype(executor)>>(nullptr, executor));
  } catch (const boost::system::system_error& refused) {
    return refused.code();
  }
}

}  // namespace sluice
