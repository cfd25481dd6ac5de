#include "control_desk.hpp"

#include "status_json.hpp"

#include <unistd.h>

#include <algorithm>
#include <exception>
#include <limits>
#include <memory>
#include <utility>

#include <boost/json.hpp>
#include <spdlog/fmt/fmt.h>

namespace sluice {
namespace {

namespace json = boost::json;
using namespace std::chrono_literals;

/// For so long one look serves all who ask, at least.
constexpr duration picture_lasts = 50ms;
constexpr duration picture_lasts_with_news = 5ms;
/// And for so many times what it took: whoever asks without end gets a 20th of the scheduler's
/// time.
constexpr int picture_lasts_looks = 20;
constexpr duration memory_lasts = 1s;
constexpr std::size_t deepest_request = 4;

/// The text under the key. \return nullptr: there is none, or it is something else.
const json::string* text_in(const json::object& from, std::string_view key) {
  const auto* const found = from.if_contains(key);
  return found == nullptr ? nullptr : found->if_string();
}

/// \return 0: there is no positive whole number under the key.
std::uint64_t number_in(const json::object& from, std::string_view key) {
  const auto* const found = from.if_contains(key);
  if (found == nullptr) return 0;
  if (const auto* const plain = found->if_int64(); plain != nullptr && *plain > 0)
    return static_cast<std::uint64_t>(*plain);
  const auto* const large = found->if_uint64();
  return large != nullptr ? *large : 0;
}

std::string_view ask_of(const json::object& request) {
  const json::string* const ask = text_in(request, "ask");
  return ask != nullptr ? std::string_view(*ask) : std::string_view();
}

std::string line_of(json::object answer) {
  answer["version"] = control_desk::protocol;
  return json::serialize(answer) + "\n";
}

bool is_one_line(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char each) { return each >= 0x20 && each < 0x7f; });
}

std::string words_of(const asker& who) {
  return fmt::format("user {} (process {})", who.user, who.pid);
}

std::string keys_of(const asker& who) { return fmt::format(" pid={} user={}", who.pid, who.user); }

}  // namespace

control_desk::control_desk(desk_options options, steered_node& node, const history& past)
    : options_(std::move(options)), node_(node), past_(past) {}

std::string control_desk::answer(std::string_view line, const asker& who) {
  json::object made;
  failure why;
  try {
    boost::system::error_code error;
    json::parse_options limits;
    limits.max_depth = deepest_request;
    const json::value request = json::parse(line, error, {}, limits);
    const json::object* const asked = error ? nullptr : request.if_object();
    if (asked == nullptr) {
      why = {"bad_request", "invalid request: expected one JSON object on one line"};
    } else if (number_in(*asked, "version") != protocol) {
      why = {"bad_version",
             fmt::format("unsupported protocol version: the daemon supports version {}; install "
                         "the command and the daemon from the same package",
                         protocol)};
    } else if (ask_of(*asked) == "status") {
      if (const std::string& made_before = status(why); why.code.empty()) return made_before;
    } else {
      made = do_request(*asked, who, why);
    }
  } catch (const std::exception& thrown) {
    why = {"failed", thrown.what()};
  }
  if (!why.code.empty())
    made = {{"error", json::object{{"code", why.code}, {"sentence", why.sentence}}}};
  return line_of(std::move(made));
}

json::object control_desk::do_request(const json::object& request, const asker& who, failure& why) {
  const std::string_view what = ask_of(request);
  if (what == "why") return explain(request, why);
  if (what == "policy") return policy(request, who, why);
  if (what == "pause") return pause(request, who, why);
  if (what == "unpause") return unpause(who, why);
  why = {"bad_request", "invalid 'ask': expected status, why, policy, pause or unpause"};
  return {};
}

const picture* control_desk::seen(failure& why) {
  const bool news = past_.heard() != pictured_after_;
  const duration lasts =
      std::max(news ? picture_lasts_with_news : picture_lasts, picture_lasts_looks * look_took_);
  if (picture_ && clock::now() - pictured_ < lasts) return &*picture_;
  const time_point begin = clock::now();
  auto looked = node_.look();
  status_.clear();
  if (!looked) {
    picture_.reset();
    why = {"failed", "cannot read the state of the scheduler: " + looked.error().message()};
    return nullptr;
  }
  picture_ = std::move(*looked);
  pictured_ = clock::now();
  look_took_ = pictured_ - begin;
  pictured_after_ = past_.heard();
  return &*picture_;
}

const node_view* control_desk::memory() {
  if (!options_.look_at_memory) return nullptr;
  const time_point now = clock::now();
  if (now >= memory_until_) {
    memory_.reset();
    if (auto looked = options_.look_at_memory()) memory_ = std::move(*looked);
    memory_until_ = clock::now() + memory_lasts;
  }
  return memory_ ? &*memory_ : nullptr;
}

json::object control_desk::node_words() const {
  const node_facts facts = node_.facts();
  json::value paused(nullptr);
  if (facts.paused) paused = json::object{{"why", paused_why(options_.files).value_or("")}};
  return {
      {"pid", ::getpid()},
      {"user", options_.owner},
      {"program_version", options_.version},
      {"directory", options_.files.directory},
      {"mode", facts.mode == node_mode::enforce ? "enforce" : "observe"},
      {"driver", facts.driver},
      {"simulated", facts.simulated},
      {"driver_gone", facts.driver_gone},
      {"up_ms", std::chrono::duration<double, std::milli>(clock::now() - started_).count()},
      {"paused", std::move(paused)},
      {"role_store",
       facts.role_store.empty() ? json::value(nullptr) : json::value(facts.role_store)},
      {"policy_text", facts.policy},
      {"policy_by", facts.policy_by.empty() ? json::value(nullptr) : json::value(facts.policy_by)}};
}

const std::string& control_desk::status(failure& why) {
  const picture* const found = seen(why);
  if (found == nullptr || !status_.empty()) return status_;
  const wall_moment now;
  const auto roles = node_.roles();
  json::object made =
      status_json(*found, *node_.stats(), past_, {.node = memory(), .roles = roles.get()}, now);
  json::object node = node_words();
  node["policy"] = found->policy;
  node["policy_is_fallback"] = found->policy_is_fallback;
  node["backend"] = found->backend;
  node["backend_up"] = found->backend_up;
  node["acts"] = found->acts;
  node["unmarked_work"] = unmarked_work(*found);
  made["node"] = std::move(node);
  made["spans"] = spans_json(past_, observe::targets_in(node_.facts().policy), now);
  made["time_unix_ms"] = now.unix_ms(now.steady);
  status_ = line_of(std::move(made));
  return status_;
}

json::object control_desk::explain(const json::object& request, failure& why) {
  const std::uint64_t pid = number_in(request, "pid");
  const std::uint64_t group_number = number_in(request, "group");
  if ((pid == 0) == (group_number == 0) ||
      pid > static_cast<std::uint64_t>(std::numeric_limits<pid_t>::max())) {
    why = {"bad_request",
           "invalid request: expected one of 'pid' and 'group', with a number above 0"};
    return {};
  }
  const picture* const found = seen(why);
  if (found == nullptr) return {};
  const wall_moment now;
  const auto paused =
      node_.facts().paused ? std::optional(paused_why(options_.files).value_or("")) : std::nullopt;
  group_id id = past_.group_numbered(group_number);
  const group_picture* group = nullptr;
  const process_picture* process = nullptr;
  for (const group_picture& each : found->groups) {
    if (pid == 0) {
      if (each.id == id) group = &each;
      continue;
    }
    for (const process_picture& one : each.processes) {
      if (static_cast<std::uint64_t>(one.pid) != pid) continue;
      group = &each;
      process = &one;
    }
  }
  const auto roles = node_.roles();
  const beside_picture beside{
      .node = memory(), .roles = roles.get(), .without_gangs = node_.facts().without_gangs};
  state_now state;
  if (group != nullptr) {
    id = group->id;
    state = state_of_group(*found, *group, process, past_, beside, paused, now);
  } else if (pid != 0) {
    const auto* const known = past_.find(static_cast<pid_t>(pid));
    const std::string client = client_sentence(past_, static_cast<pid_t>(pid), now);
    if (!client.empty() && (known == nullptr || known->ended != never)) {
      state = {"client", client};
    } else if (known == nullptr) {
      why = {
          "unknown",
          fmt::format("process {} is unknown to the scheduler: it uses no GPU, or ended more than "
                      "10 min ago; 'sluice status' lists the known processes",
                      pid)};
      return {};
    } else {
      id = known->group;
      state = {"ended", fmt::format("process {}{} has ended", pid,
                                    known->command.empty() ? "" : " (" + known->command + ")")};
    }
  } else if (id != group_id::none) {
    state = {"ended", fmt::format("all processes of group g{} have ended", group_number)};
  } else {
    why = {"unknown",
           fmt::format("group g{} is unknown to the scheduler; 'sluice status' lists the groups",
                       group_number)};
    return {};
  }
  json::object told{{"state", state.state}, {"sentence", state.sentence}};
  told["role_why"] = state.role_why.empty() ? json::value(nullptr) : json::value(state.role_why);
  told["acts"] = found->acts;
  told["simulated"] = node_.facts().simulated;
  told["pid"] = pid != 0 ? json::value(pid) : json::value(nullptr);
  const auto* const remembered = past_.find(id);
  told["group"] = remembered != nullptr ? json::value(remembered->number) : json::value(nullptr);
  told["decisions"] =
      remembered != nullptr ? decisions_json(*remembered, past_, now) : json::array();
  return {{"why", std::move(told)}, {"time_unix_ms", now.unix_ms(now.steady)}};
}

bool control_desk::may_change(const asker& who, failure& why) const {
  if (who.user == 0 || who.user == options_.owner) return true;
  why = {"denied", fmt::format("permission denied for user {}: run the command as root or as user "
                               "{}, which runs the daemon",
                               who.user, options_.owner)};
  return false;
}

json::object control_desk::policy(const json::object& request, const asker& who, failure& why) {
  const bool uses = request.contains("use");
  if (uses) {
    const json::string* const use = text_in(request, "use");
    if (use == nullptr || use->empty() || !is_one_line(*use)) {
      why = {"bad_request", "invalid 'use': expected NAME or NAME:KEY=VALUE,..."};
      return {};
    }
    if (!may_change(who, why)) return {};
    std::string message;
    const auto used = node_.use_policy(std::string(*use), words_of(who), message);
    if (!used) {
      why = {"refused", message};
      return {};
    }
    if (options_.tell)
      options_.tell(
          fmt::format("policy {} was selected by {} and stays until the configuration is reloaded "
                      "or this program ends{}",
                      *used, words_of(who), keys_of(who)));
    status_.clear();
  }
  const node_facts facts = node_.facts();
  json::object told{
      {"text", facts.policy},
      {"by", facts.policy_by.empty() ? json::value(nullptr) : json::value(facts.policy_by)},
      {"paused", facts.paused},
      {"decides", nullptr},
      {"is_fallback", false}};
  // One that was just chosen decides from the next turn on.
  failure ignored;
  if (const picture* const found = uses ? nullptr : seen(ignored)) {
    told["decides"] = found->policy;
    told["is_fallback"] = found->policy_is_fallback;
  }
  return {{"policy", std::move(told)}};
}

json::object control_desk::pause(const json::object& request, const asker& who, failure& why) {
  std::string reason;
  if (request.contains("why")) {
    const json::string* const text = text_in(request, "why");
    if (text == nullptr || text->size() > longest_reason || !is_one_line(*text)) {
      why = {
          "bad_request",
          fmt::format("invalid 'why': expected one line of at most {} printable ASCII characters",
                      longest_reason)};
      return {};
    }
    reason = std::string(*text);
  }
  if (!may_change(who, why)) return {};
  const auto before = paused_why(options_.files);
  if (!before || !reason.empty()) {
    std::string message;
    if (!pause_node(options_.files, reason, message)) {
      why = {"failed", message};
      return {};
    }
    status_.clear();
    if (options_.tell) options_.tell(words_of(who) + " requested a pause" + keys_of(who));
  }
  return {{"paused", true}, {"before", before.has_value()}};
}

json::object control_desk::unpause(const asker& who, failure& why) {
  if (!may_change(who, why)) return {};
  std::string message;
  const auto done = unpause_node(options_.files, message);
  if (!done && done.error() != boost::system::errc::no_such_file_or_directory) {
    why = {"failed", message};
    return {};
  }
  status_.clear();
  if (done && options_.tell)
    options_.tell(words_of(who) + " requested the end of the pause" + keys_of(who));
  return {{"paused", false}, {"before", done.has_value()}};
}

}  // namespace sluice
