#include "recording.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <limits>
#include <memory>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include <boost/json.hpp>
#include <fmt/format.h>

#include "sluice/recording.hpp"

namespace sluice::lab {
namespace {

namespace json = boost::json;

using namespace std::chrono_literals;

/// Times are no farther from a recording's beginning, and durations no longer.
constexpr duration farthest = 400 * 24h;
/// No clock has run for longer: 30 years.
constexpr std::int64_t oldest_clock = 1'000'000'000'000'000'000;
/// More begins or ends than a client has between two turns.
constexpr std::uint64_t most_at_once = 10'000'000;

/// What is wrong with a line, thrown by its readers.
struct wrong {
  std::string what;
};

/// The fields of one line.
class fields {
 public:
  fields(const json::object& of, time_point base) : of_(of), base_(base) {}

  template <class Number>
  Number number(std::string_view name) const {
    return read<Number>(name, of_.if_contains(name));
  }
  template <class Number>
  Number needed(std::string_view name) const {
    const json::value* const found = of_.if_contains(name);
    if (found == nullptr) throw wrong{fmt::format("field '{}' is missing", name)};
    return read<Number>(name, found);
  }
  template <class Id>
  Id id(std::string_view name) const {
    return Id{number<std::underlying_type_t<Id>>(name)};
  }
  double real(std::string_view name) const {
    const json::value* const found = of_.if_contains(name);
    json::error_code no;
    const double value = found == nullptr ? 0 : found->to_number<double>(no);
    if (no) throw wrong{fmt::format("field '{}': expected a number", name)};
    return value;
  }
  bool flag(std::string_view name) const {
    const json::value* const found = of_.if_contains(name);
    if (found == nullptr) return false;
    if (!found->is_bool()) throw wrong{fmt::format("field '{}': expected true or false", name)};
    return found->get_bool();
  }
  std::string_view text(std::string_view name) const {
    const json::value* const found = of_.if_contains(name);
    if (found == nullptr) return {};
    if (!found->is_string()) throw wrong{fmt::format("field '{}': expected a string", name)};
    return found->get_string();
  }
  /// One of the words; the one at index 0 where the field is missing.
  template <class Enum, std::size_t N>
  Enum word(std::string_view name, const std::array<std::string_view, N>& words) const {
    if (of_.if_contains(name) == nullptr) return Enum{};
    return to_word<Enum>(name, text(name), words);
  }
  template <class Enum, std::size_t N>
  static Enum to_word(std::string_view name, std::string_view value,
                      const std::array<std::string_view, N>& words) {
    const auto found = std::find(words.begin(), words.end(), value);
    if (found == words.end()) throw wrong{fmt::format("field '{}' has an unknown value", name)};
    return static_cast<Enum>(found - words.begin());
  }
  duration span(std::string_view name) const {
    const auto value = number<std::int64_t>(name);
    if (value < -farthest.count() || value > farthest.count()) {
      throw wrong{fmt::format("field '{}' exceeds 400 days", name)};
    }
    return duration(value);
  }
  /// \param missing what a field that is left out means.
  time_point when(std::string_view name, time_point missing = {}) const {
    return of_.if_contains(name) == nullptr ? missing : base_ + span(name);
  }
  error_code error() const {
    const auto value = number<int>("error");
    if (value == 0) return {};
    if (text("category") == "sluice") return {value, sluice_category()};
    return {value, boost::system::system_category()};
  }
  const json::array& list(std::string_view name) const {
    static const json::array none;
    const json::value* const found = of_.if_contains(name);
    if (found == nullptr) return none;
    if (!found->is_array()) throw wrong{fmt::format("field '{}': expected a list", name)};
    return found->get_array();
  }
  template <class Id>
  std::vector<Id> ids(std::string_view name) const {
    std::vector<Id> made;
    for (const json::value& each : list(name)) {
      made.push_back(Id{read<std::underlying_type_t<Id>>(name, &each)});
    }
    return made;
  }

 private:
  template <class Number>
  Number read(std::string_view name, const json::value* from) const {
    json::error_code no;
    const Number value = from == nullptr ? Number{} : from->to_number<Number>(no);
    if (no || (from != nullptr && from->is_double())) {
      throw wrong{fmt::format("field '{}': expected an integer in the range of this field", name)};
    }
    return value;
  }

  const json::object& of_;
  time_point base_;
};

constexpr std::array<std::string_view, 3> roles{"unmatched", "online", "offline"};
constexpr std::array<std::string_view, 5> works{"unknown", "waiting", "consumed", "finished",
                                                "running"};
constexpr std::array<std::string_view, 12> kinds{"process_seen", "process_gone", "queue_seen",
                                                 "queue_gone",   "gpu_seen",     "pointers_seen",
                                                 "gpu_lost",     "breaker_kept", "breaker_rearmed",
                                                 "resync_begin", "resync_end",   "gang_heard"};
constexpr std::array<std::string_view, 3> spans{"request", "ttft", "itl"};
constexpr std::array<std::string_view, 2> commands{"suspend", "resume"};
constexpr std::array<std::string_view, 4> outcomes{"done", "invalid", "failed", "target_gone"};

class reader {
 public:
  explicit reader(recording& into) : into_(into) {}

  void header(const json::object& line) {
    const fields from(line, {});
    if (from.text("is") != "recording") throw wrong{"the line is not a recording header"};
    if (const auto version = from.needed<int>("version"); version != recording_version) {
      throw wrong{
          fmt::format("format version {}; this program reads version {}; record again, or use the "
                      "release that recorded it",
                      version, recording_version)};
    }
    const auto clock = from.needed<std::int64_t>("clock_ns");
    if (clock < 0 || clock > oldest_clock) throw wrong{"field 'clock_ns' is out of range"};
    into_.base = time_point(duration(clock));
    into_.end = into_.base;
    into_.device = from.text("device");
    into_.policy = from.text("policy");
    into_.policy_text = from.text("policy_text");
    into_.backend = from.text("backend");
    into_.own_pid = from.number<pid_t>("own_pid");
    const json::value* const config = line.if_contains("config");
    if (config == nullptr || !config->is_object())
      throw wrong{"field 'config' is missing or not an object"};
    const fields with(config->get_object(), {});
    scheduler_config& to = into_.config;
    to.max_suspend = with.span("max_suspend");
    to.min_run = with.span("min_run");
    to.offline_floor = with.real("offline_floor");
    to.floor_window = with.span("floor_window");
    to.attach_after = with.span("attach_after");
    to.attach_at_latest = with.span("attach_at_latest");
    to.max_busy = with.span("max_busy");
    to.failure_backoff = with.span("failure_backoff");
    to.breaker_after = with.number<std::size_t>("breaker_after");
    to.breaker_rearm = with.span("breaker_rearm");
    to.policy_time_limit = with.span("policy_time_limit");
    to.stop_limit = with.span("stop_limit");
    to.inbox_capacity = with.number<std::size_t>("inbox_capacity");
    to.suspend_copy_queues = with.flag("suspend_copy_queues");
    to.see_unmarked = with.flag("see_unmarked");
    if (const std::string problem = to.problem(); !problem.empty()) throw wrong{problem};
  }

  /// \return false at the end.
  bool line(const json::object& object, std::size_t number) {
    const fields from(object, into_.base);
    const time_point at = into_.base + (from.needed<std::int64_t>("t"), from.span("t"));
    if (at < last_) throw wrong{"timestamp is earlier than on the previous line"};
    const std::string_view is = from.text("is");
    if (is == "end") {
      ended_ = true;
      into_.end = at;
      return false;
    }
    if (is == "gap") {
      const auto count = from.number<std::uint64_t>("count");
      into_.why =
          recording::cut{number, count,
                         fmt::format("{}:{}: {} lines are missing here: the disk was too slow",
                                     into_.name, number, count)};
      return false;
    }
    last_ = at;
    into_.entries.push_back({at, number, parse(is, from)});
    return true;
  }

  bool ended() const { return ended_; }

 private:
  client_id known_client(const fields& from) const {
    const auto id = from.id<client_id>("client");
    if (!clients_.contains(id)) {
      throw wrong{fmt::format("client {} is not registered", static_cast<std::uint64_t>(id))};
    }
    return id;
  }
  process_id known_process(const fields& from) const {
    const auto id = from.id<process_id>("process");
    if (!processes_.contains(id)) {
      throw wrong{fmt::format("process {} is not attached", static_cast<std::uint64_t>(id))};
    }
    return id;
  }
  std::vector<driver_queue_id> queues_of(const fields& from) const {
    auto made = from.ids<driver_queue_id>("queues");
    if (made.size() > max_batch_queues) {
      throw wrong{
          fmt::format("{} queues in one call; the limit is {}", made.size(), max_batch_queues)};
    }
    return made;
  }

  rec::what parse(std::string_view is, const fields& from) {
    if (is == "turn") return rec::turn{from.when("due", never)};
    if (is == "seen") return read_seen(from);
    if (is == "work") return read_work(from);
    if (is == "mark") {
      return rec::mark{known_client(from), from.word<span_kind>("span", spans),
                       from.number<std::uint64_t>("request"), from.flag("begins"), from.when("at")};
    }
    if (is == "batch") {
      return rec::handed{
          from.number<std::uint64_t>("id"),          known_process(from), from.id<gpu_id>("gpu"),
          from.word<command_kind>("kind", commands), queues_of(from),     from.error()};
    }
    if (is == "done") return read_done(from);
    if (is == "off") return rec::off{from.id<gpu_id>("gpu"), from.span("after")};
    if (is == "client") {
      rec::client made{
          from.id<client_id>("id"),
          std::string(from.text("name")),
          from.number<pid_t>("pid"),
          from.ids<gpu_id>("gpus"),
          {from.span("target_request"), from.span("target_ttft"), from.span("target_itl")}};
      if (made.id == client_id::none || !clients_.try_emplace(made.id).second) {
        throw wrong{"the client's id is 0 or already registered"};
      }
      return made;
    }
    if (is == "attach") {
      rec::attach made{from.id<process_id>("process"), from.number<pid_t>("pid"),
                       from.number<std::uint64_t>("start"), from.error()};
      processes_.insert(made.process);
      return made;
    }
    if (is == "attached") return rec::attached{known_process(from), from.error()};
    if (is == "detach") return rec::detach{known_process(from), from.error()};
    if (is == "detached") return rec::detached{known_process(from)};
    if (is == "queue") {
      return rec::queue{{known_process(from), from.id<driver_queue_id>("queue"),
                         from.id<gpu_id>("gpu"), read_kind(from),
                         from.number<std::uint64_t>("incarnation"),
                         from.number<std::uint64_t>("fault")}};
    }
    if (is == "queue_gone") {
      return rec::queue_gone{known_process(from), from.id<driver_queue_id>("queue")};
    }
    if (is == "overflow") return rec::overflow{from.number<std::uint64_t>("count")};
    if (is == "forced") return rec::forced{from.number<std::uint64_t>("count")};
    if (is == "rearm") return rec::rearm{from.id<gpu_id>("gpu")};
    if (is == "policy")
      return rec::new_policy{std::string(from.text("name")), from.flag("removed")};
    if (is == "reserve") return rec::reserve{from.id<gpu_id>("gpu"), from.error()};
    if (is == "reserved") return rec::reserved{from.id<gpu_id>("gpu"), from.error()};
    if (is == "quantum") {
      return rec::quantum{known_process(from), from.id<gpu_id>("gpu"), from.error()};
    }
    if (is == "quantum_set") {
      return rec::quantum_set{known_process(from), from.id<gpu_id>("gpu"), from.error()};
    }
    if (is == "acts_by") {
      rec::acts_by made{{from.text("mechanism"), {}}, from.flag("fell_back")};
      made.what.can = from.number<std::uint16_t>("can");
      return made;
    }
    if (is == "gpu_lost") return rec::gpu_lost{from.id<gpu_id>("gpu")};
    if (is == "lost") return rec::lost{from.error()};
    if (is == "restored") return rec::restored{};
    if (is == "stop") return rec::stop{};
    throw wrong{"field 'is' has an unknown value"};
  }

  static queue_kind read_kind(const fields& from) {
    const auto kind = from.id<queue_kind>("type");
    if (kind > queue_kind::copy) throw wrong{"field 'type' exceeds 1"};
    return kind;
  }

  rec::seen read_seen(const fields& from) {
    rec::seen made;
    made.source = from.number<unsigned>("source");
    if (made.source > 31) throw wrong{"field 'source' exceeds 31"};
    observation& to = made.what;
    if (from.text("what").empty()) throw wrong{"field 'what' is missing"};
    to.kind = from.word<observation_kind>("what", kinds);
    to.what = from.word<role>("role", roles);
    to.type = read_kind(from);
    to.work = from.word<online_work>("work", works);
    to.priority = from.number<std::uint8_t>("priority");
    if (to.priority > 15) throw wrong{"field 'priority' exceeds 15"};
    to.pid = from.number<pid_t>("pid");
    to.gpu = from.id<gpu_id>("gpu");
    to.queue = from.id<driver_queue_id>("queue");
    to.start_time = from.number<std::uint64_t>("start");
    to.group_key = from.number<std::uint64_t>("group");
    to.count = from.number<std::uint32_t>("count");
    to.waiting = from.number<std::uint32_t>("waiting");
    to.shows_work = from.flag("shows_work");
    to.at = to.kind == observation_kind::breaker_kept ? from.when("until", never)
            : to.kind == observation_kind::gang_heard ? from.when("until")
                                                      : from.when("at");
    return made;
  }

  rec::work read_work(const fields& from) {
    rec::work made{.client = known_client(from)};
    counters& before = clients_[made.client];
    if (before.withdrawn) throw wrong{"the client has already disconnected"};
    const auto step = [&](std::string_view name, std::uint64_t& last) {
      const auto now = from.number<std::uint64_t>(name);
      if (now < last || now - last > most_at_once) {
        throw wrong{fmt::format("field '{}' changes from {} to {}; expected a small increase", name,
                                last, now)};
      }
      return now - std::exchange(last, now);
    };
    made.begins = step("begun", before.begun);
    made.ends = step("ended", before.ended);
    made.first = from.when("first");
    made.withdrawn = before.withdrawn = from.flag("withdrawn");
    return made;
  }

  rec::done read_done(const fields& from) {
    rec::done made{from.number<std::uint64_t>("id"),
                   known_process(from),
                   from.id<gpu_id>("gpu"),
                   from.word<command_kind>("kind", commands),
                   from.when("started"),
                   from.when("finished"),
                   from.number<int>("errno"),
                   queues_of(from),
                   {}};
    for (const json::value& each : from.list("outcomes")) {
      if (!each.is_string()) throw wrong{"field 'outcomes' has an entry that is not a string"};
      made.outcomes.push_back(fields::to_word<outcome>("outcomes", each.get_string(), outcomes));
    }
    if (!made.outcomes.empty() && made.outcomes.size() != made.queues.size()) {
      throw wrong{"fields 'outcomes' and 'queues' differ in length"};
    }
    if (made.finished < made.started)
      throw wrong{"field 'finished' is earlier than field 'started'"};
    return made;
  }

  struct counters {
    std::uint64_t begun = 0;
    std::uint64_t ended = 0;
    bool withdrawn = false;
  };
  recording& into_;
  std::unordered_map<client_id, counters> clients_;
  std::unordered_set<process_id> processes_;
  time_point last_{};
  bool ended_ = false;
};

}  // namespace

checked<recording> parse_recording(std::string_view text, std::string name) {
  recording made;
  made.name = std::move(name);
  reader lines(made);
  json::parse_options lenient;
  lenient.allow_invalid_utf8 = true;  // A client may be called anything.
  std::size_t number = 0;
  for (std::string_view rest = text; !rest.empty();) {
    ++number;
    const auto newline = rest.find('\n');
    const bool whole = newline != rest.npos;
    // Without its newline it was being written when the recording ended.
    if (!whole && number > 1) break;
    const std::string_view line = rest.substr(0, newline);
    rest.remove_prefix(whole ? newline + 1 : rest.size());
    try {
      json::error_code no;
      const json::value parsed = json::parse(line, no, {}, lenient);
      if (no || !parsed.is_object()) throw wrong{"the line is not a JSON object"};
      if (number == 1) {
        lines.header(parsed.get_object());
      } else if (!lines.line(parsed.get_object(), number)) {
        break;
      }
    } catch (const wrong& found) {
      return failure(
          number == 1
              ? fmt::format("{}:1: cannot read the recording: {}", made.name, found.what)
              : fmt::format("{}:{}: the recording is damaged: {}", made.name, number, found.what));
    }
  }
  if (number == 0) return failure(made.name + ": not a recording: the file is empty");
  if (!lines.ended() && !made.why) {
    made.why = recording::cut{number, 0,
                              fmt::format("{}:{}: the recording ends early: its scheduler is "
                                          "still running, was killed, or ran out of disk space",
                                          made.name, number)};
  }
  // What no turn has taken in did not happen yet.
  while (!made.entries.empty() && !std::holds_alternative<rec::turn>(made.entries.back().what)) {
    made.entries.pop_back();
  }
  const time_point last = made.entries.empty() ? made.base : made.entries.back().at;
  made.end = made.why ? last : std::max(made.end, last);
  return made;
}

/// Hours at hundreds of requests per second; what is read is held in memory as a whole.
constexpr std::size_t most_bytes = std::size_t{1} << 30U;

checked<recording> read_recording(const std::string& path) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(
      std::fopen(path.c_str(), "re"),
      [](std::FILE* f) { return f == nullptr ? 0 : std::fclose(f); });
  if (file == nullptr) return failure("cannot open " + path + ": " + std::strerror(errno));
  std::string text;
  std::array<char, 65536> some;
  while (const std::size_t size = std::fread(some.data(), 1, some.size(), file.get())) {
    text.append(some.data(), size);
    if (text.size() > most_bytes) {
      return failure(
          fmt::format("{}: the recording is larger than {} bytes; record for a shorter time", path,
                      most_bytes));
    }
  }
  if (std::ferror(file.get()) != 0) {
    return failure("cannot read " + path + ": " + std::strerror(errno));
  }
  return parse_recording(text, path);
}

}  // namespace sluice::lab
