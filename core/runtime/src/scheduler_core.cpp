#include "sluice/scheduler_core.hpp"

#include "actual_state.hpp"
#include "attacher.hpp"
#include "breaker.hpp"
#include "client_ledger.hpp"
#include "front_desk.hpp"
#include "holds.hpp"
#include "intake.hpp"
#include "journalist.hpp"
#include "log.hpp"
#include "membership.hpp"
#include "pointer_ledger.hpp"
#include "quanta.hpp"
#include "reconciler.hpp"
#include "record_stream.hpp"
#include "recording_backend.hpp"
#include "remote_clients.hpp"
#include "reservations.hpp"
#include "seen_requests.hpp"
#include "table.hpp"
#include "table_picture.hpp"

#include <algorithm>
#include <array>
#include <exception>
#include <functional>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sluice/os/log_limiter.hpp"

namespace sluice {
namespace {

const steady_time real_time;

/// A policy that returns late this often within `strike_memory` is removed. A machine that was busy
/// once a day must not cost it its policy.
constexpr std::size_t most_strikes = 3;
constexpr duration strike_memory = std::chrono::minutes(1);

/// An observation of the backend's that says it took longer to come counts from then on.
constexpr duration longest_way = std::chrono::seconds(1);

class core_impl final : public scheduler_core, public backend_listener, public decision_sink {
 public:
  core_impl(const scheduler_config& config, backend& driver, std::unique_ptr<policy> decider,
            core_options options)
      : config_(config),
        time_(options.time != nullptr ? *options.time : real_time),
        record_(options.record_into == nullptr ? nullptr
                                               : std::make_unique<core::record_stream>(
                                                     *options.record_into, stats_, time_.now())),
        recorded_(record_ == nullptr ? nullptr
                                     : std::make_unique<core::recording_backend>(driver, *record_)),
        backend_(recorded_ == nullptr ? driver : *recorded_),
        journal_(stats_, backend_, options.quiet, record_.get(), options.journal),
        policy_(std::move(decider)),
        desk_(std::make_shared<core::front_desk>(time_, config, backend_.acts())),
        table_(stats_, options.own_pid, config_.suspend_copy_queues),
        members_(table_, stats_, journal_),
        intake_(table_, members_, journal_),
        actual_(table_, members_),
        remote_(desk_, table_),
        seen_(config_, table_, desk_, [this](pid_t pid, bool so) { marks_requests(pid, so); }),
        clients_(config_, table_, stats_, *desk_, seen_, options.own_pid, journal_, record_.get()),
        pointers_(table_),
        holds_(config_, table_, stats_, journal_, hears_gangs_),
        reconciler_(config_, table_, actual_, backend_, stats_, journal_, time_),
        reservations_(config_, table_, backend_, journal_),
        quanta_(config_, table_, backend_, journal_),
        attacher_(config_, table_, members_, actual_, backend_, journal_),
        breaker_(config_, table_, actual_, journal_),
        fallback_(std::move(options.fallback)) {
    holds_.policy_is(policy_ != nullptr);
    tell_policy({}, std::nullopt, time_.now());
    if (record_ == nullptr) return;
    record_->begin({.device = options.record.device,
                    .policy = policy_ ? policy_->name() : std::string_view(),
                    .policy_text = options.record.policy,
                    .backend = driver.name(),
                    .own_pid = options.own_pid,
                    .config = config_});
  }

  ~core_impl() override { desk_->close(); }

  // scheduler_core
  void on_breaker(std::function<void(const breaker_change&)> hear) override {
    breaker_.on_change(std::move(hear));
  }
  void on_marks(std::function<void(pid_t pid, bool so)> hear) override {
    hears_marks_ = std::move(hear);
  }
  void on_gang(std::function<void(const gang_state&)> hear) override {
    hears_gangs_ = std::move(hear);
  }
  result<void> start() override { return backend_.start(*this); }
  void observe(unsigned source, const observation& seen) override {
    observe(source, seen, time_.now());
  }
  void observe(unsigned source, const observation& seen, time_point now) override;
  void overflowed(unsigned source, std::uint64_t dropped) noexcept override;
  void resyncing(unsigned source) noexcept override {
    journal_.put({.kind = journal_kind::resync, .count = source},
                 std::max(table_.now(), time_.now()));
  }
  time_point step() override;
  duration pointer_interval() const noexcept override {
    const duration seen = seen_interval();
    if (seen == duration::zero()) return pointer_interval_;
    return pointer_interval_ == duration::zero() ? seen : std::min(seen, pointer_interval_);
  }
  void begin_stop() override;
  bool all_running() const noexcept override {
    return stats_.suspended_now == 0 && actual_.batches_in_flight() == 0 && reservations_.none() &&
           quanta_.none();
  }
  void finish_stop() override;
  result<online_client> register_client(client_options options) override;
  client_host& clients() noexcept override { return remote_; }
  void on_look(std::function<void()> turn) override { remote_.on_look(std::move(turn)); }
  void rearm(gpu_id which) override { desk_->add_rearm(which); }
  void set_policy(std::unique_ptr<policy> next) override { desk_->offer_policy(std::move(next)); }
  result<void> set_config(const scheduler_config& next) override {
    if (!next.problem().empty()) return errc::bad_config;
    return desk_->offer_config(next);
  }
  scheduler_config config() const override { return desk_->config(); }
  statistics stats() const override { return stats_; }
  picture look() const override;
  const statistics& live_stats() const noexcept override { return stats_; }
  void awake() noexcept override { desk_->wake().awake(); }
  bool fall_asleep() noexcept override {
    desk_->wake().sleep();
    return !clients_.has_news();
  }
  int wake_fd() const noexcept override { return desk_->wake().fd(); }
  void clear_wake_fd() noexcept override { desk_->wake().clear_eventfd(); }
  void wake() noexcept override { desk_->wake().ring_always(); }
  void ring() noexcept override { desk_->wake().ring(); }
  const world& seen() const noexcept override { return table_; }

  // backend_listener
  void attach_refused(process_id target, std::string_view why) override {
    if (auto* const one = table_.find(target)) one->attach_why = why;
  }
  void attached(process_id target, error_code error) override {
    if (auto* const one = table_.find(target)) attacher_.attached(*one, error, table_.now());
  }
  void queue_added(const queue_info& info) override {
    if (auto* const one = table_.find(info.target)) actual_.queue_added(*one, info);
  }
  void queue_removed(process_id target, driver_queue_id id) override {
    if (auto* const one = table_.find(target)) actual_.queue_removed(*one, id);
  }
  void completed(const batch_result& result) override {
    reconciler_.completed(result, table_.now());
    breaker_.completed(result, table_.now());
  }
  void detached(process_id target) override {
    if (auto* const one = table_.find(target)) attacher_.detached(*one, table_.now());
  }
  void acts_by(const capabilities& what, bool fell_back) override {
    journal_.put({.kind = journal_kind::acts_by, .count = fell_back ? 1U : 0U}, table_.now(),
                 {.text = what.name()});
    reservations_.acts_by(what);
    quanta_.acts_by(what);
    pointers_.acts_by(what);
  }
  void reserved(gpu_id gpu, double offline_share, error_code error) override {
    if (reservations_.answered(gpu, offline_share, error, table_.now())) {
      breaker_.failed(gpu, table_.now());
    }
  }
  void quantum_set(process_id target, gpu_id gpu, duration length, error_code error) override {
    quanta_.answered(target, gpu, length, error, table_.now());
  }
  void observed(const observation& seen) override;
  void gpu_lost(gpu_id id) override { breaker_.lost(id, table_.now()); }
  void lost(error_code reason) override {
    backend_up_ = false;
    journal_.put({.kind = journal_kind::backend_lost}, table_.now(), {.error = reason});
    attacher_.lost();
    reservations_.lost();
    quanta_.lost();
  }
  void restored() override {
    backend_up_ = true;
    journal_.put({.kind = journal_kind::backend_back}, table_.now());
    if (!stopping_) attacher_.restored();
  }

  // decision_sink
  void hold(group_id id, time_point until) override {
    if (auto* const one = table_.find_group(id)) holds_.declare_hold(*one, until);
  }
  void run(group_id id) override {
    if (auto* const one = table_.find_group(id)) holds_.declare_run(*one);
  }
  void wake_at(time_point when) override { policy_wake_ = std::min(policy_wake_, when); }
  void poll_pointers(duration every) override {
    pointer_interval_ = std::max(every, duration::zero());
  }
  void reserve(gpu_id gpu, double offline_share) override {
    reservations_.want(gpu, offline_share);
  }
  void set_quantum(group_id id, duration length) override {
    if (auto* const one = table_.find_group(id)) quanta_.want(*one, length);
  }
  void listen(span_kind what, bool at_once) override { desk_->listen(what, at_once); }
  void note(std::string_view text, std::span<const double> numbers) override;

 private:
  void decide(time_point now);
  void eject(std::string_view why);
  std::unique_ptr<policy> make_fallback() noexcept;
  /// \param removed why the one before is, where it is removed for what it did.
  void replace_policy(std::unique_ptr<policy> next, std::optional<std::string_view> removed);
  void close_arrivals();
  void publish() noexcept;
  /// What came of online work in this turn.
  void tell_events(time_point now);
  void tell_policy(std::string_view before, std::optional<std::string_view> removed,
                   time_point now);
  void marks_requests(pid_t pid, bool so);
  void saw_work(const observation& seen);
  duration seen_interval() const noexcept;
  bool is_clear(const client_page& page);

  scheduler_config config_;
  const time_source& time_;
  statistics stats_;
  const std::unique_ptr<core::record_stream>
      record_;  // Null: nothing is recorded; as what follows.
  const std::unique_ptr<core::recording_backend> recorded_;
  backend& backend_;
  core::journalist journal_;
  std::unique_ptr<policy> policy_;
  const std::shared_ptr<core::front_desk> desk_;  // Shared with the clients' pages.
  core::table table_;
  core::membership members_;
  core::intake intake_;
  core::actual_state actual_;
  core::remote_clients remote_;
  core::seen_requests seen_;
  core::client_ledger clients_;
  core::pointer_ledger pointers_;
  std::function<void(const gang_state&)> hears_gangs_;
  core::holds holds_;
  core::reconciler reconciler_;
  core::reservations reservations_;
  core::quanta quanta_;
  core::attacher attacher_;
  core::breaker breaker_;
  std::function<void(pid_t pid, bool so)> hears_marks_;  // May be empty, as the next.
  std::vector<event> events_;
  const std::function<std::unique_ptr<policy>()> fallback_;
  bool is_fallback_ = false;         // policy_ was made by it.
  bool policy_is_new_ = false;       // It has not had a turn.
  std::unique_ptr<policy> retired_;  // Destroyed at the end of the turn.
  time_point policy_wake_ = never;
  core::log_limiter notes_log_{8};
  duration pointer_interval_{};
  duration work_interval_{};  // As the backend was told.
  time_point next_tick_{};
  time_point due_ = never;  // The next turn, as the last one said.
  std::uint64_t turn_ = 0;
  /// When it was late, the last times but the newest one to come; the latest at the end.
  std::array<std::optional<time_point>, most_strikes - 1> strikes_;
  bool room_was_made_ = true;  // When a client last wanted it.
  bool stopping_ = false;
  bool finished_ = false;
  bool backend_up_ = true;
};

time_point core_impl::step() {
  const time_point now = time_.now();
  table_.set_now(now);
  journal_.set_turn(stats_.turns + 1);
  // A guess: as it was the last time, so that a policy which mostly lets everything run wakes
  // nobody.
  const bool room_wanted = policy_ && !stopping_ && clients_.wants_room();
  if (room_wanted && room_was_made_) backend_.expect();
  if (record_) record_->set_now(now);
  backend_.drain();
  if (now >= next_tick_) next_tick_ = backend_.tick(now);

  events_.clear();
  if (desk_->has_rearms()) {
    for (const gpu_id id : desk_->take_rearms()) {
      if (record_) record_->rearm(id);
      breaker_.rearm(id);
    }
  }
  breaker_.work(now);
  if (desk_->has_config()) {
    config_ = desk_->take_config();
    // Their deadlines follow from the limits.
    table_.for_each_group([this](core::group& one) { table_.touch(one); });
  }

  seen_.work(now);
  clients_.look(now, events_);
  members_.reshape();
  pointers_.look(now, events_);
  tell_events(now);
  if (std::any_of(events_.begin(), events_.end(), [this](const event& one) {
        return one.kind == event_kind::online_end ||
               (one.kind == event_kind::online_moved &&
                !core::has_online_work(*table_.find(one.gpu)));
      })) {
    attacher_.recheck();
  }
  holds_.before_policy(now);
  if (record_) record_->forced(stats_.forced_resumes);
  if (desk_->has_policy() && !stopping_) {
    auto next = desk_->take_policy();
    if (record_) record_->new_policy(next ? next->name() : std::string_view(), false);
    replace_policy(std::move(next), std::nullopt);
    is_fallback_ = false;
  }
  if (!stopping_ && std::exchange(policy_is_new_, false)) {
    table_.for_each_group([&](core::group& one) { table_.mark_changed(one); });
    policy_wake_ = now;
  }
  if (policy_ && !stopping_ &&
      (!events_.empty() || !table_.changed().empty() || policy_wake_ <= now)) {
    decide(now);
  }
  if (pointer_interval() == duration::zero()) pointers_.forget();
  if (seen_interval() == duration::zero()) seen_.forget();
  table_.clear_changed();
  quanta_.work(now);  // What is to be taken back is, before the attacher gives its process back.
  attacher_.work(now);
  members_.reshape();  // What the attacher gave back is no longer anyone's to suspend.
  // Before it is told of a gang that began anew in this turn.
  for (const std::uint64_t key : table_.gone_gangs()) {
    if (hears_gangs_) hears_gangs_({.key = key});
  }
  table_.gone_gangs().clear();
  holds_.after_policy(now);
  reservations_.work(now);
  const bool handed_over = reconciler_.reconcile(now);
  if (room_wanted) room_was_made_ = handed_over;
  // After the batches, which are not to wait behind it.
  if (const duration wanted = pointer_interval(); wanted != std::exchange(work_interval_, wanted)) {
    backend_.poll_work(wanted);
  }
  holds_.after_batches(now);
  close_arrivals();

  time_point waits = never;
  if (desk_->has_waits()) {
    // Nobody makes room: no wait is worth its time.
    const bool in_vain = !policy_ || stopping_;
    waits = desk_->answer_waits(in_vain ? never : now,
                                [&](const client_page& page) { return is_clear(page); });
  }
  retired_.reset();
  if (record_) record_->turn(due_);
  publish();
  journal_.pass_on();
  stats_.turns.add();
  stats_.turn.record(time_.now() - now);
  due_ = policy_is_new_ && !stopping_
             ? now
             : std::min({waits, next_tick_, policy_wake_, seen_.next(), clients_.next(),
                         holds_.next(), reconciler_.next(), reservations_.next(), quanta_.next(),
                         attacher_.next(), breaker_.next()});
  return due_;
}

void core_impl::decide(time_point now) {
  if (policy_wake_ <= now) policy_wake_ = never;
  const snapshot seen{now, ++turn_, events_, table_.changed(), table_};
  const time_point before = time_.now();
  try {
    policy_->decide(seen, *this);
  } catch (const std::exception& thrown) {
    eject(thrown.what());
    return;
  } catch (...) {
    eject("it threw an object that is not a std::exception");
    return;
  }
  const time_point after = time_.now();
  if (after - before <= config_.policy_time_limit) return;
  const auto first = strikes_.front();
  std::shift_left(strikes_.begin(), strikes_.end(), 1);
  strikes_.back() = after;
  if (first && after - *first <= strike_memory) {
    eject("it exceeded policy_time_limit three times within a minute");
  }
}

void core_impl::eject(std::string_view why) {
  auto next = make_fallback();
  is_fallback_ = next != nullptr;
  if (record_) record_->new_policy(next ? next->name() : std::string_view(), true);
  // Its first turn is the next: what this one held is resumed first.
  replace_policy(std::move(next), why);
}

std::unique_ptr<policy> core_impl::make_fallback() noexcept {
  if (is_fallback_ || !fallback_) return nullptr;
  try {
    return fallback_();
  } catch (const std::exception& thrown) {
    log_line(log_level::error, log_part::policy, {},
             "fallback policy: cannot be created: {}; everything runs", thrown.what());
  } catch (...) {
    log_line(log_level::error, log_part::policy, {},
             "fallback policy: cannot be created; everything runs");
  }
  return nullptr;
}

/// Nothing that the old one said is left standing.
void core_impl::replace_policy(std::unique_ptr<policy> next,
                               std::optional<std::string_view> removed) {
  holds_.policy_is(next != nullptr);
  reservations_.forget();
  quanta_.forget();
  pointer_interval_ = {};
  policy_wake_ = never;
  strikes_.fill({});
  retired_ = std::exchange(policy_, std::move(next));
  policy_is_new_ = policy_ != nullptr;
  tell_policy(retired_ ? retired_->name() : "none", removed, table_.now());
  // As decision_sink::listen() says of the start.
  desk_->listen(span_kind::request, policy_is_new_);
  desk_->listen(span_kind::ttft, policy_is_new_);
  desk_->listen(span_kind::itl, false);
}

void core_impl::note(std::string_view text, std::span<const double> numbers) {
  std::uint64_t unsaid = 0;
  if (!notes_log_.allow(table_.now(), unsaid)) return;
  try {
    std::string line;
    for (auto rest = text; !rest.empty();) {
      const auto gap = numbers.empty() ? rest.npos : rest.find("{}");
      line += rest.substr(0, gap);
      if (gap == rest.npos) break;
      line += fmt::format("{:g}", numbers.front());
      numbers = numbers.subspan(1);
      rest.remove_prefix(gap + 2);
    }
    if (unsaid != 0) line += fmt::format(" ({} earlier lines suppressed)", unsaid);
    log_line(log_level::warning, log_part::policy, {{"policy", policy_->name()}}, "policy {}: {}",
             policy_->name(), line);
  } catch (const std::bad_alloc&) {
    // The line is lost, the scheduler goes on.
  }
}

/// An arrival is measured only while something makes room for it; a policy that lets offline run is
/// not a slow one.
void core_impl::close_arrivals() {
  for (std::size_t i = 0; i < table_.gpu_count(); ++i) {
    auto& each = table_.gpu_number(i);
    if (!std::exchange(each.begun_this_turn, false) || !each.arrival_open) continue;
    const bool held = std::any_of(each.offline.begin(), each.offline.end(),
                                  [&](group_id id) { return table_.find_group(id)->held; });
    if (!held) each.arrival_open = each.decision_open = false;
  }
}

/// What clients in other processes can see.
void core_impl::publish() noexcept {
  sluice_scheduler_words& words = desk_->shared().words();
  const bool acts = backend_.acts();
  const std::uint32_t mode = stopping_ ? SLUICE_MODE_STOPPING
                             : !acts   ? SLUICE_MODE_OBSERVING
                             : policy_ ? SLUICE_MODE_ACTIVE
                                       : SLUICE_MODE_PASSIVE;
  __atomic_store_n(&words.mode, mode, __ATOMIC_RELAXED);
  __atomic_store_n(&words.suspended, acts ? stats_.suspended_now.value() : 0, __ATOMIC_RELAXED);
  __atomic_store_n(&words.turns, words.turns + 1, __ATOMIC_RELEASE);
}

void core_impl::tell_events(time_point now) {
  if (!journal_.on()) return;
  for (const event& one : events_) {
    journal_entry entry{.span = one.span,
                        .gpu = one.gpu,
                        .count = one.count,
                        .client = one.client,
                        .number = one.request,
                        .since = one.at - one.length,
                        .until = one.at,
                        .length = one.length};
    switch (one.kind) {
      case event_kind::online_begin: entry.kind = journal_kind::begin; break;
      case event_kind::online_end: entry.kind = journal_kind::end; break;
      case event_kind::online_moved: continue;  // as often as pointers are looked at
      case event_kind::span_begin: entry.kind = journal_kind::span_begin; break;
      case event_kind::span_end: entry.kind = journal_kind::span_end; break;
      case event_kind::span_abandoned: entry.kind = journal_kind::span_abandoned; break;
    }
    journal_.put(entry, now);
  }
  for (std::size_t i = 0; i < table_.gpu_count(); ++i) {
    core::gpu& each = table_.gpu_number(i);
    const gpu_view& view = table_.view_of(each);
    const bool busy = core::has_online_work(view);
    if (busy == std::exchange(each.told_busy, busy)) continue;
    if (busy) each.busy_since = now;
    journal_entry entry{.kind = busy ? journal_kind::busy : journal_kind::idle,
                        .gpu = each.id,
                        .since = each.busy_since};
    // A client's work has entries of its own.
    const core::process* const by =
        busy && view.online_in_flight == 0 ? table_.find(each.work_of) : nullptr;
    if (by != nullptr) {
      entry.pid = by->pid;
      entry.process = by->id;
    }
    journal_.put(entry, now);
  }
}

/// \param before empty: there was no scheduler.
void core_impl::tell_policy(std::string_view before, std::optional<std::string_view> removed,
                            time_point now) {
  journal_.put({.kind = journal_kind::policy, .count = removed ? 1U : 0U}, now,
               {.text = policy_ ? policy_->name() : std::string_view(),
                .name = before,
                .why = removed.value_or(std::string_view())});
}

picture core_impl::look() const {
  picture made = core::picture_of(table_);
  made.turns = stats_.turns;
  made.policy = policy_ ? policy_->name() : std::string_view();
  made.policy_is_fallback = is_fallback_;
  made.polls_pointers = pointer_interval() > duration::zero();
  made.see_unmarked = config_.see_unmarked;
  made.backend = backend_.name();
  made.acts = backend_.acts();
  made.backend_up = backend_up_;
  made.stopping = stopping_;
  return made;
}

bool core_impl::is_clear(const client_page& page) {
  const auto clear = [](const core::gpu& one) { return one.not_off == 0; };
  if (page.options.gpus.empty()) {
    for (std::size_t i = 0; i < table_.gpu_count(); ++i) {
      if (!clear(table_.gpu_number(i))) return false;
    }
    return true;
  }
  return std::all_of(page.options.gpus.begin(), page.options.gpus.end(), [&](gpu_id id) {
    const auto* const one = table_.find_gpu(id);
    return one == nullptr || clear(*one);
  });
}

void core_impl::observe(unsigned source, const observation& seen, time_point now) {
  now = std::max(table_.now(), now);
  table_.set_now(now);
  if (record_) {
    record_->set_now(now);
    record_->seen(source, seen);
  }
  switch (seen.kind) {
    case observation_kind::gpu_lost: breaker_.reset(seen.gpu, seen.at, now); break;
    case observation_kind::breaker_kept: breaker_.keep(seen.gpu, seen.at, now); break;
    case observation_kind::breaker_rearmed: breaker_.rearm(seen.gpu); break;
    case observation_kind::pointers_seen:
      // After the last request for looks has ended, one is old.
      if (pointer_interval() != duration::zero()) saw_work(seen);
      break;
    default: intake_.observe(source, seen);
  }
  backend_.observed(source, seen);
}

/// Another process may have made it up: only what pointers_seen means is taken over, and only of
/// what the sources know, so that it adds no rows.
void core_impl::observed(const observation& seen) {
  if (seen.kind != observation_kind::pointers_seen || pointer_interval() == duration::zero())
    return;
  if (table_.find(seen.pid, seen.start_time) == nullptr || table_.find_gpu(seen.gpu) == nullptr) {
    return;
  }
  const time_point now = table_.now();
  observation taken;
  taken.kind = seen.kind;
  taken.work = seen.work;
  taken.pid = seen.pid;
  taken.gpu = seen.gpu;
  taken.start_time = seen.start_time;
  taken.count = seen.count;
  taken.waiting = seen.waiting;
  taken.at = std::clamp(seen.at, now - longest_way, now);
  if (record_) record_->seen(backend_source, taken);
  saw_work(taken);
}

void core_impl::marks_requests(pid_t pid, bool so) {
  backend_.marks_requests(pid, so);
  if (hears_marks_) hears_marks_(pid, so);
  if (so) pointers_.forget(pid);
}

void core_impl::saw_work(const observation& seen) {
  if (seen_.is_marked(seen.pid)) return;  // It was under way when its client came.
  pointers_.observe(seen);
  if (seen_interval() != duration::zero()) seen_.observe(seen);
}

/// How often work of unmarked programs is wanted. Without a policy it is of no use.
duration core_impl::seen_interval() const noexcept {
  return stopping_ || !policy_ ? duration::zero() : seen_.interval(table_.now());
}

void core_impl::overflowed(unsigned source, std::uint64_t dropped) noexcept {
  if (dropped == 0) return;
  const time_point now = std::max(table_.now(), time_.now());
  journal_.put({.kind = journal_kind::overflow, .count = source, .number = dropped}, now);
  if (!record_) return;
  record_->set_now(now);
  record_->overflow(source, dropped);
}

void core_impl::begin_stop() {
  if (std::exchange(stopping_, true)) return;
  journal_.put({.kind = journal_kind::stop}, std::max(table_.now(), time_.now()));
  if (record_) {
    record_->set_now(std::max(table_.now(), time_.now()));
    record_->stop();
  }
  policy_wake_ = never;
  reservations_.forget();
  reservations_.work(table_.now());
  quanta_.forget();
  quanta_.work(table_.now());
  pointer_interval_ = {};
  holds_.release_all();
  attacher_.stop();
}

void core_impl::finish_stop() {
  if (std::exchange(finished_, true)) return;
  begin_stop();
  desk_->close();
  backend_.stop();
  journal_.pass_on();
  if (record_) record_->end();
}

result<online_client> core_impl::register_client(client_options options) {
  auto& desk = *desk_;
  if (desk.is_closed()) return errc::stopped;
  auto page = std::make_shared<client_page>(desk.next_id(), std::move(options), desk_,
                                            std::make_shared<sluice_client_words>(), nullptr);
  desk.register_page(page);
  return client_of(std::move(page));
}

}  // namespace

result<std::unique_ptr<scheduler_core>> scheduler_core::create(const scheduler_config& config,
                                                               backend& driver,
                                                               std::unique_ptr<policy> decider,
                                                               core_options options) {
  if (!config.problem().empty()) return errc::bad_config;
  auto made = std::make_unique<core_impl>(config, driver, std::move(decider), std::move(options));
  if (made->wake_fd() < 0) return error_code{EMFILE, boost::system::system_category()};
  return made;
}

}  // namespace sluice
