#include "sluice/discovery.hpp"

#include "look_pace.hpp"
#include "node_scanner.hpp"

#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "sluice/os/file_watch.hpp"
#include "sluice/os/proc.hpp"
#include "sluice/os/quiet_thread.hpp"
#include "sluice/os/unique_fd.hpp"
#include "sluice/roles/role_store.hpp"
#include "sluice/time.hpp"

namespace sluice {

namespace {

using namespace std::chrono_literals;

/// After so many observations in a row the inbox gets a moment to be emptied.
constexpr int burst = 128;

/// Events closer together than this tell of one reset.
constexpr duration one_reset = 30s;

// epoll data; pids are below these.
constexpr std::uint64_t from_wake = std::uint64_t{1} << 32U;
constexpr std::uint64_t from_store = from_wake + 1;
constexpr std::uint64_t from_releases = from_wake + 2;
constexpr std::uint64_t from_survey = from_wake + 3;  // and all above

class node_discovery final : public discovery {
 public:
  node_discovery(std::unique_ptr<survey> of, roles::classification_rules rules, message_sink say)
      : survey_(std::move(of)),
        name_(std::string{survey_->name()} + " discovery"),
        rules_(std::move(rules)),
        said_(rules_.by_process),
        say_(std::move(say)) {}
  ~node_discovery() override { stop(); }

  std::string_view name() const noexcept override { return name_; }

  void look_ahead() override {
    if (make_scanner())
      (void)start_quiet_thread(ahead_, [this] {
        ::pthread_setname_np(::pthread_self(), "sluice-discover");
        scanner_->scan([](const observation&) {});
      });
  }

  result<void> start(source_host& host) override {
    if (!ahead_.joinable())
      if (const auto made = make_scanner(); !made) return made;
    if (const auto added = add(wake_.get(), from_wake); !added) return added;
    release_end_ = unique_fd{::timerfd_create(CLOCK_BOOTTIME, TFD_CLOEXEC | TFD_NONBLOCK)};
    if (!release_end_) return last_system_error();
    if (const auto added = add(release_end_.get(), from_releases); !added) return added;
    std::string store;
    {
      const std::scoped_lock held{said_mutex_};
      store = rules_.role_store;
    }
    if (const auto opened = open_store(store); !opened) return opened;
    std::string missing;
    if (!is_readable(survey_->check(missing))) {
      say_(missing + "; " + survey_->remedy());
      return errc::not_supported;
    }
    lost_.clear();

    inbox_ = &host.claim_inbox();
    work_ = survey_->watch_work(host.claim_inbox());
    stopping_.store(false);
    said_changed_.store(true);  // since the rules were given
    resync_.store(true);        // the first look is the whole truth
    return start_quiet_thread(worker_, [this] { run(); });
  }

  void set_rules(roles::classification_rules rules) override {
    const std::scoped_lock held{said_mutex_};
    rules_ = std::move(rules);
    rules_changed_.store(true);
    ::eventfd_write(wake_.get(), 1);
  }

  void poll_pointers(duration every) override {
    if (!work_) return;
    work_->pace(every);
    const bool wanted = every != duration::zero();
    if (std::exchange(watches_work_, wanted) != wanted) follow_work();
  }

  void marks_requests(pid_t pid, bool so) override {
    if (!work_) return;
    {
      const std::scoped_lock held{said_mutex_};
      if (so)
        marking_.insert(pid);
      else
        marking_.erase(pid);
    }
    // Its client may have come since the last look: then nothing else repeats what was forgotten.
    if (!so) work_->restate();
    follow_work();
  }

  void resync() override {
    if (work_) work_->restate();
    resync_.store(true);
    ::eventfd_write(wake_.get(), 1);
  }

  result<void> set_role(const process_identity& who, role what) override {
    if (!lives(who)) return errc::unknown_target;
    {
      const std::scoped_lock held{said_mutex_};
      std::erase_if(said_, [](const auto& each) { return !lives(each.first); });
      said_[who] = what;
    }
    look_at_roles();
    return {};
  }

  result<void> withdraw_role(const process_identity& who) override {
    if (!lives(who)) return errc::unknown_target;
    {
      const std::scoped_lock held{said_mutex_};
      if (said_.erase(who) == 0) return errc::unknown_target;
    }
    look_at_roles();
    return {};
  }

  std::shared_ptr<const roles::role_reasons> reasons() const override {
    const std::scoped_lock held{reasons_mutex_};
    return reasons_;
  }

  bool driver_gone() const noexcept override {
    return driver_gone_.load(std::memory_order_relaxed);
  }

  void stop() override {
    if (!worker_.joinable()) {
      if (ahead_.joinable()) ahead_.join();
      return;
    }
    stopping_.store(true);
    ::eventfd_write(wake_.get(), 1);
    worker_.join();
    driver_gone_.store(false);
    work_.reset();
    watches_work_ = false;
    marking_.clear();
    scanner_.reset();
    store_watch_.reset();
  }

 private:
  result<void> make_scanner() {
    roles::classification_rules rules;
    {
      const std::scoped_lock held{said_mutex_};
      rules = rules_;
      rules_changed_.store(false);
    }
    if (const std::string wrong = rules.problem(); !wrong.empty()) {
      say_("invalid [roles]: " + wrong);
      return errc::bad_config;
    }
    waits_ = unique_fd{::epoll_create1(EPOLL_CLOEXEC)};
    if (!waits_ || !wake_) return last_system_error();
    scanner_ = std::make_unique<node_scanner>(*survey_, std::move(rules), waits_.get(), say_);
    return {};
  }

  result<void> add(int fd, std::uint64_t data) const {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u64 = data;
    if (::epoll_ctl(waits_.get(), EPOLL_CTL_ADD, fd, &event) != 0) return last_system_error();
    return {};
  }

  static bool is_readable(const result<void>& checked) {
    // Without a descriptor it cannot be known.
    return checked || roles::is_for_want_of_descriptors(checked.error().value());
  }

  static bool lives(const process_identity& who) {
    return start_time_of(who.pid) == who.start_time;
  }

  void follow_work() {
    follow_changed_.store(true);
    ::eventfd_write(wake_.get(), 1);
  }

  void look_at_roles() {
    said_changed_.store(true);
    // Its descriptor lives as long as this object, started or not.
    ::eventfd_write(wake_.get(), 1);
  }

  /// Follows that file from now on. use_stored() comes after this and read_store().
  result<void> open_store(const std::string& path) {
    store_ = roles::role_store{path};
    stored_ = {};
    store_watch_ = std::make_unique<file_watch>(path);
    if (store_watch_->fd() >= 0)
      if (const auto added = add(store_watch_->fd(), from_store); !added) return added;
    return store_watch_->changed() ? read_store() : result<void>{};
  }

  result<void> read_store() {
    std::string message;
    auto stored = store_.read(message);
    if (!stored) {
      say_(message);
      return stored.error();
    }
    stored_ = std::move(*stored);
    return {};
  }

  // Everything below runs on the worker's thread.

  void use_stored() {
    scanner_->set_stored(stored_);
    itimerspec next{};  // of zeros: none
    const auto first = std::ranges::min_element(stored_.released, {},
                                                [](const auto& each) { return each.second; });
    if (first != stored_.released.end()) {
      const auto seconds = std::chrono::floor<std::chrono::seconds>(first->second);
      next.it_value = {seconds.count(), std::chrono::nanoseconds{first->second - seconds}.count()};
    }
    ::timerfd_settime(release_end_.get(), TFD_TIMER_ABSTIME, &next, nullptr);
  }

  /// \return whether there was one whose time has come.
  bool end_releases() {
    if (stored_.released.empty()) return false;
    const roles::boot_time now = roles::boot_time_now();
    if (std::erase_if(stored_.released, [now](const auto& each) { return each.second <= now; }) ==
        0)
      return false;
    use_stored();
    return true;
  }

  /// \return whether there are other rules.
  bool take_rules() {
    if (!rules_changed_.exchange(false)) return false;
    roles::classification_rules rules;
    {
      const std::scoped_lock held{said_mutex_};
      rules = rules_;
    }
    rules.by_process.clear();  // said_ has what counts
    const std::string store = rules.role_store;
    scanner_->set_rules(std::move(rules));
    said_changed_.store(true);
    if (store != store_.path()) (void)open_store(store);  // says what is wrong with it
    use_stored();
    return true;
  }

  void run() {
    ::pthread_setname_np(::pthread_self(), "sluice-discover");
    if (ahead_.joinable()) ahead_.join();
    survey_->watch(waits_.get(), from_survey);
    use_stored();
    const node_scanner::emit push = [this](const observation& seen) { this->push(seen); };
    const node_scanner::emit drop = [](const observation&) {};
    time_point next = clock::now();
    while (!stopping_.load()) {
      bool follow = follow_changed_.exchange(false);
      const bool whole = resync_.exchange(false);
      const time_point now = clock::now();
      const bool rules = take_rules();
      const bool roles = said_changed_.exchange(false);
      if (roles) {
        const std::scoped_lock held{said_mutex_};
        scanner_->set_roles(said_);
      }
      // Refused: what it said before holds.
      const bool stored = store_watch_->changed() && read_store();
      if (stored) use_stored();
      const bool released = end_releases();
      if (whole || rules || roles || stored || released || now >= next) {
        in_a_row_ = 0;
        scanner_->scan(whole ? drop : push);
        look_for_driver();
        if (whole) {
          scanner_->restate(push);
          for (const auto& [gpu, at] : lost_) push(about_loss(gpu, at));
        }
        if (scanner_->take_new_reasons()) tell_reasons();
        follow = true;
        looked_ = clock::now();
        next = looked_ + pace_.next();
        if (survey_->renew_watches()) next = looked_ + look_pace::least;
      }
      if (follow && work_) {
        work_->follow(unmarked());
        const bool sees = work_->can_see();
        if (std::exchange(sees_work_, sees) != sees) scanner_->restate_gpus(push);
      }
      if (wait(next)) {
        next = std::min(next, looked_ + look_pace::least);
        // What triggered (an exited process, say) may go on triggering until the next look.
        std::this_thread::sleep_until(next);
      }
    }
  }

  /// Online processes whose work no client announces.
  std::vector<work_watch::process> unmarked() {
    auto online = scanner_->online();
    const std::scoped_lock held{said_mutex_};
    std::erase_if(online, [this](const auto& each) { return marking_.contains(each.who.pid); });
    return online;
  }

  void tell_reasons() {
    auto now = std::make_shared<const roles::role_reasons>(scanner_->reasons());
    const std::scoped_lock held{reasons_mutex_};
    reasons_ = std::move(now);
  }

  /// Waits for a trigger, or `until`. \return whether something suggests to look.
  bool wait(time_point until) {
    const duration left = std::max(until - clock::now(), duration{});
    std::array<epoll_event, 16> events;
    const int count =
        ::epoll_wait(waits_.get(), events.data(), static_cast<int>(events.size()),
                     static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(left).count()));
    bool look = false;
    for (int index = 0; index < count; ++index) {
      const std::uint64_t from = events[static_cast<std::size_t>(index)].data.u64;
      if (from == from_wake) {
        eventfd_t value = 0;
        ::eventfd_read(wake_.get(), &value);
        continue;
      }
      if (from == from_store) continue;  // the watch itself knows better whether there is news
      if (from == from_releases) {
        std::uint64_t times = 0;
        (void)!::read(release_end_.get(), &times, sizeof times);
        continue;
      }
      if (from >= from_survey) {
        survey_news news;
        survey_->read_events(from, news);
        if (news.look) look = true;
        if (news.queues_follow) pace_.device_opened();
        for (const gpu_id gpu : news.resets) lose(gpu);
        continue;
      }
      // A process exited; the look drops its descriptor, and epoll forgets it with that.
      look = true;
    }
    return look;
  }

  /// A driver that was unloaded, or a simulated one that has ended.
  void look_for_driver() {
    std::string missing;
    const auto checked = survey_->check(missing);
    if (!checked && is_readable(checked)) return;
    if (driver_gone_.exchange(!checked) == !checked) return;
    if (checked) {
      say_("the driver is back: " + survey_->location() + " can be read again");
    } else {
      say_("the driver is gone: " + missing +
           "; until the driver is back, sluice suspends no queue, because it cannot see which "
           "processes use a GPU; see dmesg");
    }
  }

  static observation about_loss(gpu_id gpu, time_point at) noexcept {
    observation seen;
    seen.kind = observation_kind::gpu_lost;
    seen.gpu = gpu;
    seen.at = at;
    return seen;
  }

  /// A GPU is being reset, or has been: several events tell of one reset.
  void lose(gpu_id gpu) {
    const time_point now = clock::now();
    const auto [known, first] = lost_.try_emplace(gpu, now);
    if (first || now - known->second > one_reset) {
      const auto id = std::to_string(static_cast<std::uint32_t>(gpu));
      say_("GPU " + id + " is reset by the driver; see dmesg for the cause gpu=" + id);
    }
    known->second = now;
    push(about_loss(gpu, now));
  }

  void push(observation seen) {
    seen.shows_work = seen.kind == observation_kind::gpu_seen && work_ != nullptr && sees_work_;
    // A full inbox counts the loss and asks for a resync: nothing to do here but to leave room.
    (void)inbox_->push(seen);
    if (++in_a_row_ % burst == 0 && !stopping_.load()) std::this_thread::sleep_for(1ms);
  }

  const std::unique_ptr<survey> survey_;
  const std::string name_;
  // Any thread's: the mutex guards rules and map, and the flags say that the worker's copies are
  // old.
  std::mutex said_mutex_;
  roles::classification_rules rules_;
  std::map<process_identity, role> said_;
  std::atomic<bool> rules_changed_{false};
  std::atomic<bool> said_changed_{false};
  std::set<pid_t> marking_;  // with said_mutex_: they mark their requests
  std::atomic<bool> follow_changed_{false};
  mutable std::mutex reasons_mutex_;
  std::shared_ptr<const roles::role_reasons> reasons_ =
      std::make_shared<const roles::role_reasons>();
  const message_sink say_;
  roles::role_store store_;
  std::unique_ptr<file_watch> store_watch_;
  roles::stored_roles stored_;  // as the store last said, less the releases that have ended since
  unique_fd release_end_;       // a timer: when the next release ends
  unique_fd waits_;
  const unique_fd wake_{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  std::map<gpu_id, time_point> lost_;  ///< When each was last heard to be reset.
  std::unique_ptr<node_scanner> scanner_;
  std::unique_ptr<work_watch> work_;  // from start() to stop(), where the driver has one
  bool sees_work_ = true;             // the worker's
  bool watches_work_ = false;         // the reactor thread's
  inbox_producer* inbox_ = nullptr;
  std::atomic<bool> driver_gone_{false};
  std::atomic<bool> stopping_{false};
  std::atomic<bool> resync_{false};
  int in_a_row_ = 0;
  look_pace pace_;
  time_point looked_{};
  std::thread ahead_;  // has scanner_ until it ends
  std::thread worker_;
};

}  // namespace

std::unique_ptr<discovery> make_discovery(std::unique_ptr<survey> of,
                                          roles::classification_rules rules, message_sink say) {
  return std::make_unique<node_discovery>(std::move(of), std::move(rules), std::move(say));
}

roles::role_reasons roles_now(survey& of, const roles::classification_rules& rules,
                              const message_sink& say) {
  node_scanner scanner{of, rules, -1, say};
  if (!rules.role_store.empty()) {
    std::string message;
    if (auto stored = roles::role_store{rules.role_store}.read(message))
      scanner.set_stored(std::move(*stored));
    else
      say(message);
  }
  scanner.scan([](const observation&) {});
  return scanner.reasons();
}

result<void> check_rules(const roles::classification_rules& rules,
                         const roles::classification_rules& before, std::string& message) {
  message = rules.problem();
  if (!message.empty()) return errc::bad_config;
  if (rules.role_store.empty() || rules.role_store == before.role_store) return {};
  const auto read = roles::role_store{rules.role_store}.read(message);
  return read ? result<void>{} : read.error();
}

}  // namespace sluice
