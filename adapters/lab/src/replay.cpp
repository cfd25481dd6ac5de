#include "replay.hpp"

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "sluice/recording.hpp"
#include "sluice/scheduler_core.hpp"

namespace sluice::lab {
namespace {

using namespace std::chrono_literals;

/// Two turns of the scheduler are at least so far apart.
constexpr duration least_turn = 1us;

/// How the recorded driver answered.
struct call_time {
  duration until_start{};  ///< From the turn that handed it over.
  duration length{};
  duration until_seen{};  ///< Until the turn that took its answer in.
  const rec::done* said = nullptr;
  std::size_t line = 0;
};
/// To attach(), reserve() or set_quantum().
struct attach_answer {
  error_code refused;  ///< At once.
  error_code error;
  duration until_seen{};
  std::size_t line = 0;
};
struct detach_answer {
  duration until_seen{};
  std::size_t line = 0;
};

/// A target on a GPU.
using place = std::pair<identity, gpu_id>;
using call_key = std::tuple<identity, gpu_id, command_kind>;

/// All of a recording's answers, and which lines are news rather than answers.
struct script {
  explicit script(const recording& of);
  void add_quantum(const identity& whose, gpu_id gpu, const attach_answer& answer);

  std::map<process_id, identity> who;  ///< By the recorded scheduler's numbers.
  std::map<identity, std::vector<attach_answer>> attaches;
  std::map<identity, std::vector<detach_answer>> detaches;
  std::map<gpu_id, std::vector<attach_answer>> reservations;
  std::map<place, std::vector<attach_answer>> quanta;
  /// For targets that were told of none there: an accepted one, where there is any.
  std::map<gpu_id, attach_answer> quantum_on;
  std::map<call_key, std::vector<call_time>> calls;
  std::map<std::pair<gpu_id, command_kind>, call_time> median_on;
  std::map<command_kind, call_time> median;
  /// Lines of sessions, reservations and quanta that ended by themselves.
  std::set<std::size_t> unasked;
  bool has_pointers = false;
};

call_time median_of(std::vector<call_time> all) {
  const auto middle = all.begin() + static_cast<std::ptrdiff_t>((all.size() - 1) / 2);
  std::nth_element(all.begin(), middle, all.end(), [](const call_time& a, const call_time& b) {
    return std::tie(a.until_seen, a.line) < std::tie(b.until_seen, b.line);
  });
  call_time found = *middle;
  found.said = nullptr;  // Its outcome was its own.
  return found;
}

script::script(const recording& of) {
  std::map<std::uint64_t, time_point> handed;
  std::map<process_id, time_point> attaching;
  std::map<process_id, time_point> detaching;
  std::map<gpu_id, std::vector<time_point>> reserving;
  std::map<std::pair<process_id, gpu_id>, time_point> setting;
  std::map<std::pair<gpu_id, command_kind>, std::vector<call_time>> on;
  std::map<command_kind, std::vector<call_time>> of_kind;
  for (const recording::entry& each : of.entries) {
    if (const auto* const asked = std::get_if<rec::attach>(&each.what)) {
      const identity whose{asked->pid, asked->start};
      who[asked->process] = whose;
      if (asked->error) {
        attaches[whose].push_back({asked->error, {}, {}, each.line});
      } else {
        attaching[asked->process] = each.at;
      }
    } else if (const auto* const said = std::get_if<rec::attached>(&each.what)) {
      const auto since = attaching.find(said->process);
      if (since == attaching.end()) continue;
      attaches[who[said->process]].push_back({{}, said->error, each.at - since->second, each.line});
      attaching.erase(since);
    } else if (const auto* const leave = std::get_if<rec::detach>(&each.what)) {
      if (!leave->error) detaching[leave->process] = each.at;
    } else if (const auto* const left = std::get_if<rec::detached>(&each.what)) {
      attaching.erase(left->process);
      const auto since = detaching.find(left->process);
      if (since == detaching.end()) {
        unasked.insert(each.line);
        continue;
      }
      detaches[who[left->process]].push_back({each.at - since->second, each.line});
      detaching.erase(since);
    } else if (const auto* const batch = std::get_if<rec::handed>(&each.what)) {
      if (!batch->error) handed[batch->id] = each.at;
    } else if (const auto* const done = std::get_if<rec::done>(&each.what)) {
      const auto since = handed.find(done->id);
      if (since == handed.end()) continue;
      const call_time took{std::max(done->started - since->second, duration::zero()),
                           done->finished - done->started, each.at - since->second, done,
                           each.line};
      calls[{who[done->process], done->gpu, done->kind}].push_back(took);
      on[{done->gpu, done->kind}].push_back(took);
      of_kind[done->kind].push_back(took);
      handed.erase(since);
    } else if (const auto* const wish = std::get_if<rec::reserve>(&each.what)) {
      if (wish->error) {
        reservations[wish->gpu].push_back({wish->error, {}, {}, each.line});
      } else {
        reserving[wish->gpu].push_back(each.at);
      }
    } else if (const auto* const kept = std::get_if<rec::reserved>(&each.what)) {
      auto& open = reserving[kept->gpu];
      if (open.empty()) {
        unasked.insert(each.line);
        continue;
      }
      reservations[kept->gpu].push_back({{}, kept->error, each.at - open.front(), each.line});
      open.erase(open.begin());
    } else if (const auto* const told = std::get_if<rec::quantum>(&each.what)) {
      if (told->error) {
        add_quantum(who[told->process], told->gpu, {told->error, {}, {}, each.line});
      } else {
        setting[{told->process, told->gpu}] = each.at;
      }
    } else if (const auto* const set = std::get_if<rec::quantum_set>(&each.what)) {
      const auto since = setting.find({set->process, set->gpu});
      if (since == setting.end()) {
        unasked.insert(each.line);
        continue;
      }
      add_quantum(who[set->process], set->gpu,
                  {{}, set->error, each.at - since->second, each.line});
      setting.erase(since);
    } else if (std::holds_alternative<rec::lost>(each.what)) {
      handed.clear();
      reserving.clear();
      setting.clear();
      attaching.clear();
      detaching.clear();
    } else if (const auto* const seen = std::get_if<rec::seen>(&each.what)) {
      has_pointers = has_pointers || seen->what.kind == observation_kind::pointers_seen;
    }
  }
  for (auto& [key, all] : on) median_on[key] = median_of(std::move(all));
  for (auto& [kind, all] : of_kind) median[kind] = median_of(std::move(all));
}

void script::add_quantum(const identity& whose, gpu_id gpu, const attach_answer& answer) {
  quanta[{whose, gpu}].push_back(answer);
  attach_answer& any = quantum_on.try_emplace(gpu, answer).first->second;
  if (any.refused || any.error) any = answer;
}

class settable_clock final : public time_source {
 public:
  time_point now() const noexcept override { return now_; }
  void set(time_point now) noexcept { now_ = now; }

 private:
  time_point now_{};
};

class text_sink final : public record_sink {
 public:
  bool put(std::string_view line) noexcept override {
    text_.append(line);
    return true;
  }
  const std::string& text() const noexcept { return text_; }

 private:
  std::string text_;
};

/// Answers as the script says, and tells what the recorded backend told by itself.
class replay_backend final : public backend {
 public:
  replay_backend(const script& answers, const time_source& time, const replay_options& options)
      : script_(answers), time_(time), options_(options) {}

  /// News of the recorded backend, for the next drain().
  void tell(const recording::entry& what) {
    post(time_.now(), what.line, [this, &what] { hear(what); });
  }
  time_point next() const noexcept {
    return pending_.empty() ? never : std::get<0>(pending_.begin()->first);
  }
  std::uint64_t calls() const noexcept { return calls_; }
  std::uint64_t estimated() const noexcept { return estimated_; }
  std::uint64_t given() const noexcept { return given_; }
  std::uint64_t unattached() const noexcept { return unattached_; }
  std::optional<command_kind> unknown_cost() const noexcept { return unknown_cost_; }

  std::string_view name() const noexcept override { return "replay"; }
  result<void> start(backend_listener& listener) override {
    listener_ = &listener;
    return {};
  }
  int ready_fd() const noexcept override { return -1; }
  void drain() override {
    const time_point now = time_.now();
    while (!pending_.empty() && std::get<0>(pending_.begin()->first) <= now) {
      const auto one = std::move(pending_.extract(pending_.begin()).mapped());
      one();
    }
  }
  result<void> attach(process_id target, pid_t pid, std::uint64_t start) override;
  result<void> detach(process_id target) override;
  result<void> submit(const batch& work) override;
  time_point tick(time_point) override { return never; }
  result<void> reserve(gpu_id gpu, double offline_share) override;
  result<void> set_quantum(process_id target, gpu_id gpu, duration length) override;
  void stop() override {}

 private:
  struct session {
    identity whose;
    bool open = false;
    std::uint64_t life = 0;  ///< Answers of an earlier one are dropped.
  };
  /// When, in the order of the recording, in the order asked.
  using moment = std::tuple<time_point, std::size_t, std::uint64_t>;

  void post(time_point due, std::size_t line, std::function<void()> what) {
    pending_.emplace(moment{due, line, ++posted_}, std::move(what));
  }
  /// The n-th of the list for the n-th to ask, and the last from then on.
  template <class Key, class Answer>
  static const Answer* take(const std::map<Key, std::vector<Answer>>& from, const Key& whose,
                            std::map<Key, std::size_t>& taken) {
    const auto found = from.find(whose);
    if (found == from.end()) return nullptr;
    const std::size_t index = taken[whose]++;
    return &found->second[std::min(index, found->second.size() - 1)];
  }
  std::optional<call_time> time_of(const call_key& key);
  void hear(const recording::entry& what);
  void end_session(process_id target, session& whose);
  void complete(const batch& work, const call_time& took, time_point handed);

  const script& script_;
  const time_source& time_;
  const replay_options& options_;
  backend_listener* listener_ = nullptr;
  std::map<moment, std::function<void()>> pending_;
  std::map<process_id, session> sessions_;  ///< By the replayed scheduler's numbers.
  std::map<identity, process_id> numbers_;
  std::map<identity, std::map<driver_queue_id, queue_info>> queues_;  ///< That a session shows now.
  std::map<identity, std::size_t> attaches_taken_;
  std::map<identity, std::size_t> detaches_taken_;
  std::map<call_key, std::size_t> calls_taken_;
  std::map<gpu_id, std::size_t> reservations_taken_;
  std::map<place, std::size_t> quanta_taken_;
  std::uint64_t posted_ = 0;
  std::uint64_t calls_ = 0;
  std::uint64_t estimated_ = 0;
  std::uint64_t given_ = 0;
  std::uint64_t unattached_ = 0;
  std::optional<command_kind> unknown_cost_;
  bool up_ = true;
};

result<void> replay_backend::attach(process_id target, pid_t pid, std::uint64_t start) {
  if (!up_) return errc::lost;
  const identity whose{pid, start};
  const attach_answer* const answer = take(script_.attaches, whose, attaches_taken_);
  if (answer == nullptr) {
    ++unattached_;
    return errc::not_managed;
  }
  if (answer->refused) return answer->refused;
  session& one = sessions_[target];
  one = {whose, false, one.life + 1};
  numbers_[whose] = target;
  post(time_.now() + answer->until_seen, answer->line,
       [this, target, life = one.life, error = answer->error] {
         session& now = sessions_[target];
         if (now.life != life) return;
         now.open = !error;
         listener_->attached(target, error);
         if (error) return;
         for (auto& [id, info] : queues_[now.whose]) {
           info.target = target;
           listener_->queue_added(info);
         }
       });
  return {};
}

result<void> replay_backend::detach(process_id target) {
  if (!up_) return errc::lost;
  const auto found = sessions_.find(target);
  if (found == sessions_.end() || !found->second.open) return errc::unknown_target;
  session& one = found->second;
  one.open = false;
  ++one.life;  // What is in flight is not answered any more.
  const detach_answer* const answer = take(script_.detaches, one.whose, detaches_taken_);
  const detach_answer known = answer != nullptr ? *answer : detach_answer{};
  post(time_.now() + known.until_seen, known.line, [this, target, life = one.life] {
    if (sessions_[target].life == life) listener_->detached(target);
  });
  return {};
}

std::optional<call_time> replay_backend::time_of(const call_key& key) {
  ++calls_;
  if (const auto found = script_.calls.find(key); found != script_.calls.end()) {
    if (const std::size_t index = calls_taken_[key]++; index < found->second.size()) {
      return found->second[index];
    }
  }
  ++estimated_;
  const command_kind kind = std::get<command_kind>(key);
  if (const auto near = script_.median_on.find({std::get<gpu_id>(key), kind});
      near != script_.median_on.end()) {
    return near->second;
  }
  if (const auto any = script_.median.find(kind); any != script_.median.end()) return any->second;
  const auto& given = kind == command_kind::suspend ? options_.suspend_cost : options_.resume_cost;
  if (!given) return std::nullopt;
  ++given_;
  return call_time{{}, *given, *given, nullptr, std::numeric_limits<std::size_t>::max()};
}

result<void> replay_backend::submit(const batch& work) {
  const auto found = sessions_.find(work.target);
  if (!up_) return errc::lost;
  if (found == sessions_.end() || !found->second.open) return errc::unknown_target;
  const auto took = time_of({found->second.whose, work.gpu, work.kind});
  if (!took) {
    unknown_cost_ = work.kind;
    return errc::not_supported;
  }
  post(time_.now() + took->until_seen, took->line,
       [this, work, took = *took, handed = time_.now(), life = found->second.life] {
         if (sessions_[work.target].life == life) complete(work, took, handed);
       });
  return {};
}

result<void> replay_backend::reserve(gpu_id gpu, double offline_share) {
  if (!up_) return errc::lost;
  const attach_answer* const answer = take(script_.reservations, gpu, reservations_taken_);
  if (answer == nullptr) return errc::not_supported;
  if (answer->refused) return answer->refused;
  post(time_.now() + answer->until_seen, answer->line,
       [this, gpu, offline_share, error = answer->error] {
         if (up_) listener_->reserved(gpu, offline_share, error);
       });
  return {};
}

result<void> replay_backend::set_quantum(process_id target, gpu_id gpu, duration length) {
  if (!up_) return errc::lost;
  const attach_answer* answer = take(script_.quanta, {sessions_[target].whose, gpu}, quanta_taken_);
  if (answer == nullptr) {
    const auto on = script_.quantum_on.find(gpu);
    if (on == script_.quantum_on.end()) return errc::not_supported;
    answer = &on->second;
  }
  if (answer->refused) return answer->refused;
  post(time_.now() + answer->until_seen, answer->line,
       [this, target, gpu, length, error = answer->error, life = sessions_[target].life] {
         if (sessions_[target].life == life) listener_->quantum_set(target, gpu, length, error);
       });
  return {};
}

void replay_backend::complete(const batch& work, const call_time& took, time_point handed) {
  batch_result said;
  said.id = work.id;
  said.target = work.target;
  said.gpu = work.gpu;
  said.kind = work.kind;
  said.count = work.count;
  said.started = handed + took.until_start;
  said.finished = said.started + took.length;
  if (took.said != nullptr) said.driver_errno = took.said->driver_errno;
  for (std::size_t i = 0; i < work.count; ++i) {
    said.queues[i] = work.queues[i];
    said.outcomes[i] = outcome::done;
    if (took.said == nullptr || took.said->outcomes.empty()) continue;
    const auto& recorded = took.said->queues;
    const auto same = std::find(recorded.begin(), recorded.end(), work.queues[i]);
    if (same != recorded.end()) {
      said.outcomes[i] = took.said->outcomes[static_cast<std::size_t>(same - recorded.begin())];
    }
  }
  listener_->completed(said);
}

void replay_backend::end_session(process_id target, session& whose) {
  const bool was_open = std::exchange(whose.open, false);
  ++whose.life;
  if (was_open) listener_->detached(target);
}

void replay_backend::hear(const recording::entry& what) {
  const auto whose = [&](process_id recorded) { return script_.who.at(recorded); };
  const auto open = [&](const identity& one) -> std::pair<process_id, session*> {
    const auto number = numbers_.find(one);
    if (number == numbers_.end()) return {};
    session& found = sessions_[number->second];
    return {number->second, found.open ? &found : nullptr};
  };
  if (const auto* const came = std::get_if<rec::queue>(&what.what)) {
    const identity owner = whose(came->what.target);
    queue_info& info = queues_[owner][came->what.id] = came->what;
    if (const auto [target, at] = open(owner); at != nullptr) {
      info.target = target;
      listener_->queue_added(info);
    }
  } else if (const auto* const went = std::get_if<rec::queue_gone>(&what.what)) {
    const identity owner = whose(went->process);
    queues_[owner].erase(went->queue);
    if (const auto [target, at] = open(owner); at != nullptr) {
      listener_->queue_removed(target, went->queue);
    }
  } else if (const auto* const left = std::get_if<rec::detached>(&what.what)) {
    const identity owner = whose(left->process);
    queues_.erase(owner);
    if (!script_.unasked.contains(what.line)) return;
    if (const auto [target, at] = open(owner); at != nullptr) end_session(target, *at);
  } else if (const auto* const ended = std::get_if<rec::reserved>(&what.what)) {
    if (up_ && script_.unasked.contains(what.line))
      listener_->reserved(ended->gpu, 1, ended->error);
  } else if (const auto* const over = std::get_if<rec::quantum_set>(&what.what)) {
    if (!script_.unasked.contains(what.line)) return;
    if (const auto [target, at] = open(whose(over->process)); at != nullptr) {
      listener_->quantum_set(target, over->gpu, {}, over->error);
    }
  } else if (const auto* const by = std::get_if<rec::acts_by>(&what.what)) {
    listener_->acts_by(by->what, by->fell_back);
  } else if (const auto* const stuck = std::get_if<rec::gpu_lost>(&what.what)) {
    listener_->gpu_lost(stuck->gpu);
  } else if (const auto* const gone = std::get_if<rec::lost>(&what.what)) {
    up_ = false;
    queues_.clear();
    for (auto& [target, each] : sessions_) {
      each.open = false;
      ++each.life;
    }
    listener_->lost(gone->reason);
  } else if (std::holds_alternative<rec::restored>(what.what)) {
    up_ = true;
    listener_->restored();
  }
}

/// Lines that the replayed scheduler brings about by itself do not move it.
bool comes_from_outside(const recording::entry& each, const script& answers) {
  return std::visit(
      [&](const auto& what) {
        using type = std::decay_t<decltype(what)>;
        if constexpr (std::is_same_v<type, rec::detached> || std::is_same_v<type, rec::reserved> ||
                      std::is_same_v<type, rec::quantum_set>) {
          return answers.unasked.contains(each.line);
        }
        return !(std::is_same_v<type, rec::attach> || std::is_same_v<type, rec::attached> ||
                 std::is_same_v<type, rec::detach> || std::is_same_v<type, rec::handed> ||
                 std::is_same_v<type, rec::done> || std::is_same_v<type, rec::reserve> ||
                 std::is_same_v<type, rec::quantum> || std::is_same_v<type, rec::off> ||
                 std::is_same_v<type, rec::forced> || std::is_same_v<type, rec::overflow> ||
                 std::is_same_v<type, rec::new_policy> || std::is_same_v<type, rec::turn>);
      },
      each.what);
}

class replay_run {
 public:
  replay_run(const recording& what, const replay_options& options)
      : what_(what), script_(what), backend_(script_, time_, options) {
    for (const recording::entry& each : what.entries) {
      const auto* const turn = std::get_if<rec::turn>(&each.what);
      if (turn != nullptr && turn->due != never) late_.push_back({turn->due, each.at});
    }
  }

  checked<replayed> run(std::unique_ptr<policy> decider);

 private:
  using entry = std::vector<recording::entry>::const_iterator;
  /// The recorded scheduler had been asked for a turn, and took none.
  struct oversleep {
    time_point since{};
    time_point until{};
  };

  /// From `at_` on: the next turn that took in something from outside.
  void find_turn();
  /// When a turn that is asked for comes: the recorded scheduler was late at times.
  time_point wake_up(time_point asked) const;
  void play(const recording::entry& each, time_point turn);

  const recording& what_;
  const script script_;
  settable_clock time_;
  replay_backend backend_;
  text_sink written_;
  policy_faults faults_;
  std::unique_ptr<scheduler_core> core_;
  std::map<client_id, online_client> clients_;
  entry at_, turn_;
  std::vector<oversleep> late_;  ///< By time.
};

void replay_run::find_turn() {
  bool wanted = false;
  for (turn_ = at_; turn_ != what_.entries.end(); ++turn_) {
    if (!std::holds_alternative<rec::turn>(turn_->what)) {
      wanted = wanted || comes_from_outside(*turn_, script_);
    } else if (wanted) {
      return;
    }
  }
}

time_point replay_run::wake_up(time_point asked) const {
  if (asked <= time_.now()) asked = time_.now() + least_turn;
  const auto turn = std::lower_bound(
      late_.begin(), late_.end(), asked,
      [](const oversleep& each, time_point wanted) { return each.until < wanted; });
  return turn != late_.end() && turn->since <= asked ? turn->until : asked;
}

void replay_run::play(const recording::entry& each, time_point turn) {
  if (const auto* const seen = std::get_if<rec::seen>(&each.what)) {
    time_.set(each.at);
    core_->observe(seen->source, seen->what);
    time_.set(turn);
  } else if (const auto* const came = std::get_if<rec::client>(&each.what)) {
    auto made = core_->register_client(
        {.name = came->name, .gpus = came->gpus, .targets = came->targets, .pid = came->pid});
    if (made) clients_[came->id] = std::move(*made);
  } else if (const auto* const work = std::get_if<rec::work>(&each.what)) {
    online_client& client = clients_[work->client];
    if (work->begins != 0) {
      time_.set(work->first);
      for (std::uint64_t i = 0; i < work->begins; ++i) client.begin();
      time_.set(turn);
    }
    for (std::uint64_t i = 0; i < work->ends; ++i) client.end();
    if (work->withdrawn) clients_.erase(work->client);
  } else if (const auto* const mark = std::get_if<rec::mark>(&each.what)) {
    online_client& client = clients_[mark->client];
    time_.set(mark->at);
    mark->begins ? client.begin_span(mark->span, mark->request)
                 : client.end_span(mark->span, mark->request);
    time_.set(turn);
  } else if (const auto* const rearm = std::get_if<rec::rearm>(&each.what)) {
    core_->rearm(rearm->gpu);
  } else if (std::holds_alternative<rec::stop>(each.what)) {
    core_->begin_stop();
  } else {
    backend_.tell(each);
  }
}

checked<replayed> replay_run::run(std::unique_ptr<policy> decider) {
  time_.set(what_.base);
  auto watched = std::make_unique<policy_watch>(std::move(decider), faults_);
  auto made = scheduler_core::create(what_.config, backend_, std::move(watched),
                                     {.time = &time_,
                                      .own_pid = what_.own_pid,
                                      .quiet = true,
                                      .record_into = &written_,
                                      .record = {.device = what_.device}});
  if (!made) return failure("cannot start the replay: " + made.error().message());
  core_ = std::move(*made);
  core_->awake();  // Nobody sleeps here: no client has to write the eventfd.
  if (auto started = core_->start(); !started) {
    return failure("cannot start the replay: " + started.error().message());
  }
  replayed got;
  time_point asked = what_.base;
  at_ = what_.entries.begin();
  find_turn();
  for (;;) {
    const time_point recorded = turn_ == what_.entries.end() ? never : turn_->at;
    const time_point now = std::min({recorded, asked, backend_.next()});
    if (now > what_.end || now == never) break;
    time_.set(std::max(now, time_.now()));
    if (recorded <= now) {
      for (; at_ != turn_; ++at_) play(*at_, turn_->at);
      ++at_;
      find_turn();
    }
    asked = wake_up(core_->step());
    got.misses_pointers = got.misses_pointers ||
                          (core_->pointer_interval() != duration::zero() && !script_.has_pointers);
    if (const auto kind = backend_.unknown_cost()) {
      const char* const name = *kind == command_kind::suspend ? "suspend" : "resume";
      return failure(
          fmt::format("{}: the duration of a {} is unknown: the recording has no such call; set "
                      "the duration with --{}-cost TIME",
                      what_.name, name, name));
    }
  }
  time_.set(what_.end);
  core_->finish_stop();
  auto run = parse_recording(written_.text(), what_.name);
  if (run.has_error()) return run.error();
  got.run = std::move(*run);
  got.faults = faults_;
  got.calls = backend_.calls();
  got.estimated = backend_.estimated();
  got.given = backend_.given();
  got.unattached = backend_.unattached();
  return got;
}

}  // namespace

checked<replayed> replay(const recording& what, std::unique_ptr<policy> decider,
                         const replay_options& options) {
  return replay_run(what, options).run(std::move(decider));
}

}  // namespace sluice::lab
