#include "sluice/node.hpp"

#include "control_desk.hpp"
#include "control_server.hpp"
#include "history.hpp"
#include "kept_sentences.hpp"
#include "node_scheduler.hpp"
#include "observer.hpp"
#include "observing.hpp"
#include "pause_watch.hpp"

#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "sluice/breaker_store.hpp"
#include "sluice/client_server.hpp"
#include "sluice/discovery.hpp"
#include "sluice/duration_text.hpp"
#include "sluice/node_view.hpp"
#include "sluice/os/node_lock.hpp"
#include "sluice/os/quiet_thread.hpp"
#include "sluice/policies/fixed_timeslice.hpp"
#include "sluice/scheduler.hpp"

namespace sluice {
namespace {

using namespace std::chrono_literals;

/// How often a follower looks whether the node has an owner.
constexpr duration look_every = 100ms;
/// And when the owner's program has ended, but its agent is still resuming.
constexpr duration look_soon = 10ms;
/// An agent that has not let go of the node by then (a driver call takes 9 s at most) has a host
/// that lives, in a pid namespace where this program cannot see it.
constexpr duration longest_end = 15s;
/// After an attempt that failed for another reason than an owner, doubled each time.
constexpr duration first_retry = 1s;
constexpr duration longest_retry = 30s;

/// How long who shows the node waits for its scheduler's next turn.
constexpr duration look_patience = 200ms;

/// How long a host that no longer runs its loop is waited for, beyond stop_limit.
constexpr duration hosted_patience = 5s;

/// For a log; of a process that is not known nothing.
std::string key_of(pid_t pid) { return pid == 0 ? "" : " pid=" + std::to_string(pid); }

std::string problem_of(const node_settings& settings) {
  std::string found = settings.scheduler.problem();
  return found.empty() ? settings.roles.problem() : found;
}

class node_impl final : public node, private steered_node {
 public:
  node_impl(node_options options, std::unique_ptr<observer> watcher)
      : options_(std::move(options)),
        observer_(std::move(watcher)),
        settings_(std::exchange(options_.settings, {})),
        pause_(options_.files, [this](const auto& why) { take_pause(why); }) {
    if (!settings_.make_policy) settings_.make_policy = [] { return make_fixed_timeslice(); };
    if (options_.breakers.empty())
      options_.breakers = breaker_store::default_path(options_.driver->device_key());
    add_readers(*observer_, *this,
                {.what = options_.observing,
                 .enforces = options_.mode == node_mode::enforce,
                 .paused = [this] { return paused_.load(); },
                 .simulated = [this] { return simulated_.load(); },
                 .driver_gone =
                     [this] {
                       const std::scoped_lock held{mutex_};
                       return driver_gone();
                     },
                 .without_gangs =
                     [this] {
                       const std::scoped_lock held{mutex_};
                       return without_gangs();
                     },
                 .targets =
                     [this] {
                       const std::scoped_lock held{mutex_};
                       return observe::targets_in(policy_text());
                     },
                 .warn = options_.warn,
                 .tell = options_.tell});
    if (options_.control) add_control();
    observer_->show(static_cast<steered_node&>(*this));
  }
  ~node_impl() override { stop(); }

  result<void> start() override {
    if (state_.load() != node_state::idle) return errc::stopped;
    if (const auto watched = pause_.start(); !watched) return watched;
    auto done = observer_->start();
    if (done) done = try_to_own();
    if (done || done.error() == errc::already_owned)
      done = start_quiet_thread(thread_, [this] {
        ::pthread_setname_np(::pthread_self(), "sluice-node");
        run();
      });
    if (!done) {
      pause_.stop();
      observer_->stop();
    }
    return done;
  }

  void stop() override {
    {
      const std::scoped_lock held{mutex_};
      stopping_ = true;
      if (scheduler_) scheduler_->stop();
    }
    wake_.notify_all();
    pause_.stop();
    if (thread_.joinable()) thread_.join();
    observer_->stop();
    ahead_.reset();
    state_.store(node_state::stopped);
  }

  client::connection connect(client::options with, std::error_code& error) const override {
    with.socket = options_.files.clients();
    return client::connection::open(with, error);
  }

  node_state state() const noexcept override { return state_.load(); }
  std::string owner() const override {
    if (state_.load() != node_state::following) return {};
    return node_lock::owner(options_.files.owner()).value_or("");
  }
  bool paused() const noexcept override { return paused_.load(); }
  node_mode mode() const noexcept override { return options_.mode; }
  std::unique_ptr<statistics> stats() const override {
    const std::scoped_lock held{mutex_};
    return scheduler_ ? std::make_unique<statistics>(scheduler_->stats())
                      : std::make_unique<statistics>();
  }

  // steered_node

  result<picture> look() override {
    // The scheduler stays while it is looked at; without mutex_, which its turns may wait for.
    const std::scoped_lock stays{look_mutex_};
    if (state_.load() != node_state::owning || !scheduler_) return errc::stopped;
    return scheduler_->look(look_patience);
  }

  node_facts facts() const override {
    const std::scoped_lock held{mutex_};
    node_facts made{.mode = options_.mode,
                    .driver = options_.driver->name(),
                    .paused = paused_.load(),
                    .simulated = simulated_.load(),
                    .driver_gone = driver_gone(),
                    .without_gangs = without_gangs(),
                    .policy = {},
                    .policy_by = {},
                    .role_store = settings_.roles.role_store};
    made.policy = policy_text();
    if (chosen_) made.policy_by = chosen_by_;
    return made;
  }

  std::shared_ptr<const roles::role_reasons> roles() const override {
    const std::scoped_lock held{mutex_};
    return owning() ? discovery_->reasons() : nullptr;
  }

  result<std::string> use_policy(const std::string& text, const std::string& who,
                                 std::string& message) override {
    if (!options_.find_policy) {
      message =
          "the program that owns the node does not support policy changes (its find_policy is "
          "empty)";
      return errc::not_supported;
    }
    auto found = options_.find_policy(text, message);
    if (!found) return found.error();
    std::string full = found->text;
    {
      const std::scoped_lock held{mutex_};
      chosen_ = std::move(*found);
      chosen_by_ = who;
      ++generation_;
    }
    renew_policy();
    return full;
  }

  result<void> change(node_settings next, std::string& message) override {
    message = problem_of(next);
    if (!message.empty()) return errc::bad_config;
    if (const auto done = check_roles(next.roles, message); !done) return done;
    bool new_policy = static_cast<bool>(next.make_policy);
    std::string kept;
    std::string before;
    const std::string after = next.policy_text;
    {
      const std::scoped_lock held{mutex_};
      before = policy_text();
      if (!new_policy) next.make_policy = settings_.make_policy;
      if (owning()) {
        if (const auto done = apply(next, kept, message); !done) return done;
      }
      settings_ = std::move(next);
      new_policy = chosen_.has_value() || new_policy;
      chosen_.reset();
      ++generation_;
    }
    if (!kept.empty()) options_.warn(kept);
    if (new_policy && !after.empty() && after != before)
      options_.tell("policy changed to " + after + (before.empty() ? "" : "; before: " + before));
    if (new_policy) renew_policy();
    return {};
  }

 private:
  // With mutex_ held.

  bool owning() const noexcept { return scheduler_ && !scheduler_->stopped(); }
  bool driver_gone() const noexcept { return owning() && discovery_->driver_gone(); }
  /// See node_facts. A reload may ask for gangs, or not any more; the source stays as it is.
  bool without_gangs() const noexcept {
    return owning() && options_.mode == node_mode::enforce &&
           settings_.roles.gangs.across_nodes != roles::gang_engine::none &&
           (!links_gangs_ || link_alone_.load());
  }

  const std::string& policy_text() const noexcept {
    return chosen_ ? chosen_->text : settings_.policy_text;
  }
  const policy_maker& maker() const noexcept {
    return chosen_ ? chosen_->make : settings_.make_policy;
  }

  /// \param next its roles are checked already: that reads a file, and the reactor waits for the
  ///        mutex.
  result<void> apply(const node_settings& next, std::string& kept, std::string& message) {
    scheduler_config config = next.scheduler;
    kept = config.keep_fixed(scheduler_->config());
    // What may be refused comes first.
    if (const auto set = scheduler_->set_config(config); !set) {
      message = set.error().message();
      return set;
    }
    if (!links_gangs_ && options_.mode == node_mode::enforce &&
        next.roles.gangs.across_nodes != roles::gang_engine::none)
      kept += std::string(kept.empty() ? "" : "; ") +
              "the daemon must be restarted for gang_across_nodes: until then, gangs on several "
              "nodes run";
    discovery_->set_rules(next.roles);
    if (clients_ != nullptr) clients_->rules_changed();  // who asks waits for mutex_
    return {};
  }

  void add_control() {
    auto past = std::make_unique<history>();
    desk_ = std::make_unique<control_desk>(
        desk_options{.files = options_.files,
                     .version = SLUICE_VERSION,
                     .owner = ::geteuid(),
                     .look_at_memory = [this] { return options_.driver->look(); },
                     .tell = options_.tell},
        static_cast<steered_node&>(*this), *past);
    control_server_options with;
    with.socket = options_.files.control();
    with.group = options_.control_group;
    with.say = options_.warn;
    observer_->add(std::move(past));
    observer_->add(std::make_unique<control_server>(
        std::move(with), observer_->loop(),
        [this](std::string_view line, const asker& who) { return desk_->answer(line, who); }));
  }

  // On the node's thread, but for the first attempt, which is start()'s.

  void run() {
    for (;;) {
      {
        const std::scoped_lock held{mutex_};
        if (stopping_ && !owning()) return;
      }
      if (state_.load() == node_state::owning) {
        serve();
      } else {
        follow();
      }
    }
  }

  /// Until the scheduler has stopped, which it does when it is told to.
  void serve() {
    scheduler_->run();  // with a hosted loop it returns at once
    time_point give_up = never;
    while (!scheduler_->stopped() && clock::now() < give_up) {
      std::unique_lock held{mutex_};
      if (!stopping_) {
        wake_.wait_for(held, look_every, [this] { return stopping_; });
        continue;
      }
      if (give_up == never)
        give_up = clock::now() + settings_.scheduler.stop_limit + hosted_patience;
      held.unlock();
      std::this_thread::sleep_for(1ms);
    }
    observer_->owns(false);
    const std::scoped_lock held{look_mutex_, mutex_};
    // Nobody runs the host's loop any more: its end resumes everything, too.
    if (!scheduler_->stopped()) scheduler_.reset();
    lock_.reset();
    if (stopping_) return;
    options_.warn(
        "another program took over the node while this program's agent was not running: " +
        node_lock::owner(options_.files.owner()).value_or("already ended") + "; following it");
    state_.store(node_state::following);
  }

  void follow() {
    if (options_.alive && clock::now() >= next_alive_) {
      options_.alive();
      next_alive_ = clock::now() + options_.alive_every;
    }
    if (clock::now() >= retry_at_) {
      const error_code before = told_failure_;
      const auto tried = try_to_own();
      if (tried) return;
      if (tried.error() != errc::already_owned) {
        if (tried.error() != before)
          options_.warn("cannot take over the node: " + tried.error().message() + "; retrying in " +
                        to_text(retry_) + ", later every " + to_text(longest_retry) +
                        "; logged again when the error changes");
        retry_at_ = clock::now() + retry_;
        retry_ = std::min(retry_ * 2, longest_retry);
      }
    }
    std::unique_lock held{mutex_};
    wake_.wait_for(held, ahead_ ? look_soon : look_every, [this] { return stopping_; });
  }

  /// \return errc::already_owned, or why it failed: told once, then it is no news.
  result<void> try_to_own() {
    if (const auto owner = node_lock::look(options_.files.owner()); owner && *owner) {
      forget_failure();
      if (state_.exchange(node_state::following) == node_state::idle)
        options_.tell("this node is owned by " + (*owner)->words + "; following it" +
                      key_of((*owner)->program));
      warn_of_observer(**owner);
      look_ahead((*owner)->ended);
      return errc::already_owned;
    }
    said_.keep();
    const auto tried = own();
    const bool outrun = !tried && tried.error() == errc::already_owned;
    const std::vector<std::string> said = said_.take();
    if (outrun) {
      state_.store(node_state::following);
      return tried;
    }
    if (!tried) {
      if (std::exchange(told_failure_, tried.error()) != tried.error())
        warn_of_failure(tried.error(), said);
      return tried;
    }
    forget_failure();
    for (const std::string& each : said) options_.warn(each);
    // By which lock: who has another directory is another owner.
    options_.tell(
        "this program owns the node (lock " + options_.files.owner() + ")" +
        (options_.mode == node_mode::enforce ? "" : "; mode observe: it attaches to no process"));
    state_.store(node_state::owning);
    observer_->owns(true);
    return {};
  }

  /// What is there can be read while the last owner's agent lets go of it.
  void look_ahead(bool ended) {
    const time_point now = clock::now();
    ended_at_ = ended ? std::min(ended_at_, now) : never;
    const bool ends = ended && now - ended_at_ < longest_end;
    if (!ends) ahead_.reset();
    if (!ends || ahead_) return;
    roles::classification_rules roles;
    {
      const std::scoped_lock held{mutex_};
      roles = settings_.roles;
      ahead_of_ = generation_;
    }
    ahead_ =
        make_discovery(options_.driver->make_survey(said_.sink()), std::move(roles), said_.sink());
    ahead_->look_ahead();
  }

  /// Once for each that owns the node.
  void warn_of_observer(const node_lock::holder& owner) {
    const bool observes = owner.what == node_lock::kind::observing;
    const std::string who = observes ? owner.words : "";
    if (std::exchange(observing_owner_, who) == who || who.empty()) return;
    if (options_.mode == node_mode::enforce)
      options_.warn("the owner, " + who +
                    ", only observes: nothing will be suspended until the owner runs in mode "
                    "enforce or ends" +
                    key_of(owner.program));
  }

  void forget_failure() {
    told_failure_ = {};
    retry_ = first_retry;
  }

  void warn_of_failure(error_code why, const std::vector<std::string>& said) const {
    const std::string lock = options_.files.owner();
    struct stat found {};
    const bool another_users = why == boost::system::errc::permission_denied &&
                               ::stat(lock.c_str(), &found) == 0 && found.st_uid != ::geteuid();
    if (another_users) {
      options_.warn("this program cannot own the node: lock " + lock + " belongs to user " +
                    std::to_string(found.st_uid) + ", but this program runs as user " +
                    std::to_string(::geteuid()) + "; run it as user " +
                    std::to_string(found.st_uid) +
                    ". Until then, offline work is suspended for this program's clients only if "
                    "another program owns the node");
    } else {
      for (const std::string& each : said) options_.warn(each);
    }
  }

  result<void> own() {
    std::unique_ptr<node_lock> lock;
    if (options_.mode == node_mode::observe) {
      auto taken = node_lock::acquire(options_.files.owner(), said_.sink(),
                                      {.what = node_lock::kind::observing});
      if (!taken) return taken.error();
      lock = std::move(*taken);
    }
    simulated_.store(options_.driver->simulated());
    node_settings settings;
    std::uint64_t generation = 0;
    {
      const std::scoped_lock held{mutex_};
      settings = settings_;
      settings.make_policy = paused_.load() ? nullptr : maker();
      generation = generation_;
      lost_ = false;
    }
    auto finder = ahead_of_ == generation ? std::move(ahead_) : nullptr;
    ahead_.reset();
    auto made = make_node_scheduler(
        options_, settings, std::move(finder), observer_->sink(),
        {.grants = [this](const client::peer& who, role what) { return grants(who, what); },
         .owned_by_another = [this] { lose(); },
         .link_alone = &link_alone_,
         .say = said_.sink()});
    if (!made) return made.error();
    if (const auto started = made->whole->start(); !started) return started;

    bool changed = false;
    {
      const std::scoped_lock held{look_mutex_, mutex_};
      scheduler_.swap(made->whole);  // the one before goes at the end, without the lock
      discovery_ = made->roles;
      links_gangs_ = settings.roles.gangs.across_nodes != roles::gang_engine::none;
      clients_ = made->clients;
      lock_ = std::move(lock);
      changed = generation != generation_;
      if (changed) {
        std::string kept;
        std::string message;
        if (!apply(settings_, kept, message) || !kept.empty()) options_.warn(kept + message);
      }
      if (stopping_ || lost_) scheduler_->stop();
    }
    if (changed) renew_policy();
    return {};
  }

  // On the scheduler's thread.

  bool grants(const client::peer& who, role what) const {
    const auto rules = [this] {
      const std::scoped_lock held{mutex_};
      return settings_.roles;
    }();
    return roles::may_be(rules, what, {who.pid, who.start_time}, who.user);
  }
  void lose() {
    const std::scoped_lock held{mutex_};
    lost_ = true;
    if (scheduler_) scheduler_->stop();
  }

  // On any thread, without mutex_.

  result<void> check_roles(const roles::classification_rules& next, std::string& message) const {
    roles::classification_rules before;
    {
      const std::scoped_lock held{mutex_};
      before = settings_.roles;
    }
    return sluice::check_rules(next, before, message);
  }

  void take_pause(const std::optional<std::string>& why) {
    {
      const std::scoped_lock held{mutex_};
      if (paused_.exchange(why.has_value()) == why.has_value()) return;
      ++generation_;
    }
    if (why) {
      options_.warn("paused: everything runs while " + options_.files.disabled() + " exists" +
                    (why->empty() ? "" : " (" + *why + ")"));
    } else {
      options_.tell("the pause has ended: " + options_.files.disabled() + " was removed");
    }
    renew_policy();
  }

  /// Gives the scheduler, where there is one, the policy of what is set now. It is made without the
  /// mutex, which the reactor waits for: a plugin may take its time.
  void renew_policy() {
    for (;;) {
      policy_maker make;
      std::uint64_t generation = 0;
      {
        const std::scoped_lock held{mutex_};
        if (!owning()) return;
        if (!paused_.load()) make = maker();
        generation = generation_;
      }
      auto made = make ? make() : nullptr;
      const std::scoped_lock held{mutex_};
      if (generation != generation_) continue;
      if (owning()) scheduler_->set_policy(std::move(made));
      return;
    }
  }

  node_options options_;
  kept_sentences said_{options_.warn};
  std::unique_ptr<control_desk> desk_;        // outlives the observer, whose thread it is on
  const std::unique_ptr<observer> observer_;  // outlives the scheduler, which writes to it
  std::atomic<node_state> state_{node_state::idle};
  std::atomic<bool> paused_{false};      // changed with mutex_ held
  std::atomic<bool> simulated_{false};   // the device, when this program last became the owner
  std::atomic<bool> link_alone_{false};  // the scheduler's; see gang_link_options

  /// Whoever replaces scheduler_ holds it, and who looks at that one; taken before mutex_.
  std::mutex look_mutex_;
  /// Guards what follows. Nothing that waits for the reactor happens under it, for handlers take
  /// it.
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  node_settings settings_;
  std::optional<named_policy> chosen_;  // at the control socket, instead of the settings'
  std::string chosen_by_;
  std::uint64_t generation_ = 0;  // of the settings, of chosen_ and of paused_
  bool stopping_ = false;
  bool lost_ = false;                     // another program has the lock
  std::unique_ptr<scheduler> scheduler_;  // the last one; replaced by the node's thread only
  discovery* discovery_ = nullptr;        // the scheduler's
  client::server* clients_ = nullptr;     // the scheduler's, if it takes any
  std::unique_ptr<node_lock> lock_;       // in observe

  // The node's thread's.
  time_point next_alive_{};
  time_point retry_at_{};
  duration retry_ = first_retry;
  error_code told_failure_;           // of the last attempt
  std::string observing_owner_;       // the owner, where it only observes
  std::unique_ptr<discovery> ahead_;  // has looked already
  std::uint64_t ahead_of_ = 0;        // its generation of the settings
  time_point ended_at_ = never;       // when the owner's program was seen to have ended

  bool links_gangs_ = false;  // Whether the scheduler has a source for sluice-gangs.
  std::thread thread_;
  pause_watch pause_;
};

}  // namespace

result<std::unique_ptr<node>> node::create(node_options options, std::string& message) {
  message = problem_of(options.settings);
  if (message.empty() && !options.driver) message = "driver is not set";
  if (message.empty() && options.alive && options.alive_every <= duration::zero())
    message = "alive_every must be greater than 0";
  if (message.empty() && options.settings.make_policy && !options.settings.make_policy())
    message = "make_policy returned no policy";
  if (!message.empty()) return errc::bad_config;
  auto watcher = observer::create();
  if (!watcher) {
    message = "cannot create the journal or the event loop that reports on the node: " +
              watcher.error().message();
    return watcher.error();
  }
  return std::unique_ptr<node>{new node_impl{std::move(options), std::move(*watcher)}};
}

}  // namespace sluice
