#include "analyze.hpp"

#include "output.hpp"
#include "subcommand.hpp"
#include "table.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <map>
#include <memory>
#include <set>
#include <string_view>
#include <utility>

#include <boost/json.hpp>
#include <fmt/format.h>

namespace sluice::cli {

namespace {

namespace json = boost::json;

struct analyze_options {
  std::vector<std::string> files;
  bool json = false;
};

/// What a log says of all its queues together.
struct totals {
  std::map<std::string, std::uint64_t> of_kind;
  std::set<pid_t> processes;
  std::uint64_t shared = 0, dispatches = 0, barriers = 0, acquired = 0, released = 0, behind = 0,
                before = 0;
  std::uint64_t traced = 0;  // queues that ftrace saw made
  histogram backlog;
};

totals total_of(const log_usage& usage) {
  totals all;
  for (const auto& each : usage.queues) {
    ++all.of_kind[kind_of(each)];
    all.processes.insert(each.pid);
    if (each.shared()) ++all.shared;
    all.dispatches += each.dispatches;
    all.barriers += each.barriers;
    all.acquired += each.acquired;
    all.released += each.released;
    all.behind += each.behind_others;
    all.before += each.packets_before;
    all.backlog.merge(each.backlog);
  }
  for (const auto& each : usage.tasks) all.traced += each.created();
  return all;
}

/// What dispatches had before them, of one queue or of all.
struct backlog_figures {
  const histogram& packets_before;
  std::uint64_t sum;
  std::uint64_t behind;  // dispatches that had any

  bool known() const noexcept { return packets_before.count() != 0; }  // some line has the indices
  double mean() const noexcept { return per_dispatch(sum); }
  double share_behind() const noexcept { return per_dispatch(behind); }
  std::uint64_t at(double percent) const noexcept {
    return packets(packets_before.percentile(percent));
  }
  std::uint64_t most() const noexcept { return packets(packets_before.max()); }

 private:
  double per_dispatch(std::uint64_t all) const noexcept {
    return known() ? static_cast<double>(all) / static_cast<double>(packets_before.count()) : 0;
  }
};

backlog_figures backlog_of(const hardware_queue& queue) {
  return {queue.backlog, queue.packets_before, queue.behind_others};
}
backlog_figures backlog_of(const totals& all) { return {all.backlog, all.before, all.behind}; }

/// Mean, P50, P95, maximum, share that had any; "-" where no line has the indices.
std::vector<std::string> cells_of(const backlog_figures& figures) {
  if (!figures.known()) return {"-", "-", "-", "-", "-"};
  return {fmt::format("{:.1f}", figures.mean()), std::to_string(figures.at(50)),
          std::to_string(figures.at(95)), std::to_string(figures.most()),
          fmt::format("{:.1f}%", 100 * figures.share_behind())};
}

std::string count_text(const few_values& values) {
  return fmt::format("{}{}", values.count(), values.more() ? "+" : "");
}

std::string pid_text(pid_t pid) { return pid != 0 ? std::to_string(pid) : "-"; }

std::string several(std::uint64_t count, std::string_view what, std::string_view plural) {
  return fmt::format("{} {}", count, count == 1 ? what : plural);
}

std::string kinds_text(const totals& all) {
  std::string out;
  for (const auto& [kind, count] : all.of_kind)
    out += fmt::format("{}{} {}", out.empty() ? "" : "; ", count, kind);
  return out;
}

/// Logs without SWq name a queue by its object where it is made, and by its ring where it is used.
bool may_count_twice(const log_usage& usage) {
  bool unused = false, unmade = false;
  for (const auto& each : usage.queues) {
    if (each.object != 0 || each.of_runtime) continue;
    unused = unused || (each.created != 0 && each.dispatches == 0);
    unmade = unmade || (each.created == 0 && each.dispatches != 0);
  }
  return unused && unmade;
}

constexpr std::array<std::pair<line_kind, const char*>, line_kinds> names_of_kinds{{
    {line_kind::dispatch, "dispatches"},
    {line_kind::barrier, "barriers"},
    {line_kind::created, "created"},
    {line_kind::acquired, "acquired"},
    {line_kind::released, "released"},
    {line_kind::deleted, "deleted"},
    {line_kind::other_log, "other_log"},
    {line_kind::driver_call, "driver_calls"},
    {line_kind::other_trace, "other_trace"},
    {line_kind::unknown, "unknown"},
}};

std::string file_text(const analyzed_file& file, std::size_t width) {
  const auto& usage = file.usage;
  const auto all = total_of(usage);
  std::string out =
      fmt::format("{}: {}", printable(file.name), several(usage.lines, "line", "lines"));
  std::string_view before = ": ";
  for (const auto& [kind, name] : names_of_kinds) {
    if (usage.count(kind) == 0) continue;
    out += fmt::format("{}{} {}", before, name, usage.count(kind));
    before = ", ";
  }
  out += "\n";
  if (usage.first_unknown != 0)
    out += fmt::format("first unknown line: line {}: {}\n", usage.first_unknown,
                       printable(usage.first_unknown_text));
  if (usage.left_out != 0)
    out += fmt::format(
        "{} not counted in the figures below: the queue is unknown, or the log has too many queues "
        "or tasks\n",
        several(usage.left_out, "line is", "lines are"));
  if (!usage.queues.empty()) {
    out += fmt::format("{} of {}: {}; {} shared by several streams",
                       several(usage.queues.size(), "hardware queue", "hardware queues"),
                       several(all.processes.size(), "process", "processes"), kinds_text(all),
                       all.shared);
    if (usage.limit_per_priority)
      out += fmt::format("; HIP creates at most {} per priority and device",
                         *usage.limit_per_priority);
    out += "\n";
    if (may_count_twice(usage))
      out +=
          "some queues may be counted twice: the log's lines have no SWq (old ROCm), so\n"
          "the line that creates a queue and the lines that use it show different addresses\n";
    using enum table::align;
    table rows{{{"PID", right},
                {"QUEUE", right},
                {"KIND"},
                {"STREAMS", right},
                {"USERS", right},
                {"THREADS", right},
                {"ACQUIRED", right},
                {"RELEASED", right},
                {"DISPATCHES", right},
                {"BARRIERS", right},
                {"MEAN", right},
                {"P50", right},
                {"P95", right},
                {"MAX", right},
                {"BEHIND", right}}};
    for (const auto& each : usage.queues) {
      std::vector<std::string> cells{pid_text(each.pid),
                                     fmt::format("{:#x}", each.address),
                                     kind_of(each),
                                     count_text(each.streams),
                                     std::to_string(each.most_users),
                                     count_text(each.threads),
                                     std::to_string(each.acquired),
                                     std::to_string(each.released),
                                     std::to_string(each.dispatches),
                                     std::to_string(each.barriers)};
      for (auto& cell : cells_of(backlog_of(each))) cells.push_back(std::move(cell));
      rows.add(std::move(cells));
    }
    out += "\n" + rows.text(width);
  }
  if (!usage.tasks.empty()) {
    using enum table::align;
    table rows{{{"PID", right}, {"TASK", left, true}, {"FUNCTION"}, {"CALLS", right}}};
    for (const auto& task : usage.tasks)
      for (std::size_t i = 0; i < driver_functions.size(); ++i)
        if (task.calls[i] != 0)
          rows.add({pid_text(task.pid), task.name.empty() ? "-" : printable(task.name),
                    std::string{driver_functions[i]}, std::to_string(task.calls[i])});
    out += fmt::format("\n{} created in the driver\n\n{}",
                       several(all.traced, "queue was", "queues were"), rows.text(width));
  }
  return out;
}

/// One column per file.
std::string side_by_side(const std::vector<analyzed_file>& files, std::size_t width) {
  std::vector<table::column> columns{{""}};
  std::vector<std::vector<std::string>> rows{{"processes"},
                                             {"hardware queues"},
                                             {"by kind"},
                                             {"shared by streams"},
                                             {"dispatches"},
                                             {"barriers"},
                                             {"acquires"},
                                             {"releases"},
                                             {"backlog, mean"},
                                             {"backlog, P50"},
                                             {"backlog, P95"},
                                             {"backlog, max"},
                                             {"dispatches with packets ahead"},
                                             {"queues created in the driver"},
                                             {"unknown lines"}};
  for (const auto& file : files) {
    columns.push_back({printable(file.name), table::align::right, true});
    const auto all = total_of(file.usage);
    std::vector<std::string> cells{std::to_string(all.processes.size()),
                                   std::to_string(file.usage.queues.size()),
                                   all.of_kind.empty() ? "-" : kinds_text(all),
                                   std::to_string(all.shared),
                                   std::to_string(all.dispatches),
                                   std::to_string(all.barriers),
                                   std::to_string(all.acquired),
                                   std::to_string(all.released)};
    for (auto& cell : cells_of(backlog_of(all))) cells.push_back(std::move(cell));
    cells.push_back(std::to_string(all.traced));
    cells.push_back(std::to_string(file.usage.count(line_kind::unknown)));
    for (std::size_t i = 0; i < rows.size(); ++i) rows[i].push_back(std::move(cells[i]));
  }
  table shown{std::move(columns)};
  for (auto& row : rows) shown.add(std::move(row));
  return shown.text(width);
}

/// "A | B" of a pair, "-" where there is no queue.
template <class Cell>
std::string both(const queue_pair& pair, const Cell& cell) {
  const auto one = [&](const hardware_queue* queue) {
    return queue != nullptr ? std::string{cell(*queue)} : "-";
  };
  return one(pair.first) + " | " + one(pair.second);
}

std::string joined(const std::vector<std::string>& words) {
  std::string out;
  for (const auto& each : words) out += (out.empty() ? "" : ", ") + each;
  return out.empty() ? "-" : out;
}

std::string pairs_text(const std::vector<queue_pair>& pairs, std::size_t width) {
  if (pairs.empty()) return {};
  using enum table::align;
  table rows{{{"KIND"}, {"QUEUE"}, {"SHARED"}, {"DISPATCHES"}, {"P95"}, {"DIFFERS", left, true}}};
  for (const auto& pair : pairs)
    rows.add({pair.kind,
              both(pair, [](const auto& each) { return fmt::format("{:#x}", each.address); }),
              both(pair, [](const auto& each) { return each.shared() ? "yes" : "no"; }),
              both(pair, [](const auto& each) { return std::to_string(each.dispatches); }),
              both(pair, [](const auto& each) { return cells_of(backlog_of(each))[2]; }),
              joined(pair.differs)});
  return "\n" + rows.text(width);
}

json::value backlog_json(const backlog_figures& figures) {
  if (!figures.known()) return nullptr;
  return json::object{{"dispatches", figures.packets_before.count()},
                      {"mean", figures.mean()},
                      {"p50", figures.at(50)},
                      {"p95", figures.at(95)},
                      {"max", figures.most()},
                      {"behind_others_share", figures.share_behind()}};
}

json::value pid_json(pid_t pid) { return pid != 0 ? json::value(pid) : json::value(nullptr); }

template <class Value>
json::value known_or_null(const std::optional<Value>& value) {
  return value ? json::value(*value) : json::value(nullptr);
}

json::object file_json(const analyzed_file& file) {
  const auto& usage = file.usage;
  json::object counts;
  for (const auto& [kind, name] : names_of_kinds) counts[name] = usage.count(kind);
  json::array queues, tasks;
  for (const auto& each : usage.queues)
    queues.push_back(json::object{{"pid", pid_json(each.pid)},
                                  {"address", fmt::format("{:#x}", each.address)},
                                  {"kind", kind_of(each)},
                                  {"priority", known_or_null(each.priority)},
                                  {"cooperative", known_or_null(each.cooperative)},
                                  {"ring_packets", known_or_null(each.ring_packets)},
                                  {"shared", each.shared()},
                                  {"streams", each.streams.count()},
                                  {"most_users", each.most_users},
                                  {"threads", each.threads.count()},
                                  {"created", each.created},
                                  {"deleted", each.deleted},
                                  {"acquired", each.acquired},
                                  {"released", each.released},
                                  {"dispatches", each.dispatches},
                                  {"barriers", each.barriers},
                                  {"backlog", backlog_json(backlog_of(each))}});
  for (const auto& each : usage.tasks) {
    json::object calls;
    for (std::size_t i = 0; i < driver_functions.size(); ++i)
      if (each.calls[i] != 0) calls[driver_functions[i]] = each.calls[i];
    tasks.push_back(json::object{{"pid", pid_json(each.pid)},
                                 {"task", printable(each.name)},
                                 {"queues_created", each.created()},
                                 {"calls", std::move(calls)}});
  }
  const auto all = total_of(usage);
  return json::object{
      {"file", printable(file.name)},
      {"lines", usage.lines},
      {"lines_by_kind", std::move(counts)},
      {"first_unknown_line",
       usage.first_unknown != 0 ? json::value(usage.first_unknown) : json::value(nullptr)},
      {"lines_in_no_figure", usage.left_out},
      {"limit_per_priority", known_or_null(usage.limit_per_priority)},
      {"processes", all.processes.size()},
      {"shared_queues", all.shared},
      {"backlog", backlog_json(backlog_of(all))},
      {"queues", std::move(queues)},
      {"tasks", std::move(tasks)}};
}

/// Where it is in its log.
json::value index_of(const log_usage& usage, const hardware_queue* queue) {
  for (std::size_t i = 0; i < usage.queues.size(); ++i)
    if (&usage.queues[i] == queue) return i;
  return nullptr;
}

/// \return false, after a complaint, when it cannot be read.
bool read_log(const std::string& path, log_usage& usage) {
  struct closing {
    int fd;
    ~closing() {
      if (fd > STDIN_FILENO) ::close(fd);
    }
  };
  const bool input = path == "-";
  const closing file{input ? STDIN_FILENO : ::open(path.c_str(), O_RDONLY | O_NOCTTY | O_CLOEXEC)};
  const auto fails = [&] {
    complain(fmt::format("{}: cannot read the log: {}", input ? "standard input" : printable(path),
                         error_text(errno)));
    return false;
  };
  if (file.fd < 0) return fails();
  runtime_log_parser parser;
  std::vector<char> some(std::size_t{1} << 16U);
  for (;;) {
    const ssize_t got = ::read(file.fd, some.data(), some.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return fails();
    if (got == 0) break;
    parser.feed({some.data(), static_cast<std::size_t>(got)});
  }
  usage = parser.finish();
  return true;
}

int analyze(const analyze_options& chosen) {
  if (std::ranges::count(chosen.files, "-") > 1) {
    complain(
        "'-' is given more than once: standard input can be read only once; name other logs as "
        "files");
    return exit_usage;
  }
  std::vector<analyzed_file> files;
  for (const auto& path : chosen.files) {
    files.push_back({path, {}});
    if (!read_log(path, files.back().usage)) return exit_failed;
  }
  const bool printed =
      chosen.json ? print(analysis_json(files)) : print(analysis_text(files, terminal_width()));
  bool good = printed;
  for (const auto& each : files) {
    if (each.usage.any()) continue;
    complain(fmt::format("{}: {}", each.name == "-" ? "standard input" : printable(each.name),
                         each.usage.lines == 0
                             ? "is empty"
                             : "no line looks like AMD_LOG_LEVEL=5 output or ftrace"));
    good = false;
  }
  return good ? exit_done : exit_failed;
}

}  // namespace

std::string kind_of(const hardware_queue& queue) {
  if (queue.of_runtime) return "runtime's own";
  constexpr std::array names{"low", "normal", "high"};
  std::string kind = queue.priority ? names.at(*queue.priority) : "unknown";
  if (queue.cooperative.value_or(false)) kind += ", cooperative";
  return kind;
}

std::vector<queue_pair> compare(const log_usage& first, const log_usage& second) {
  std::map<std::string,
           std::pair<std::vector<const hardware_queue*>, std::vector<const hardware_queue*>>>
      of_kind;
  for (const auto& each : first.queues) of_kind[kind_of(each)].first.push_back(&each);
  for (const auto& each : second.queues) of_kind[kind_of(each)].second.push_back(&each);
  std::vector<queue_pair> pairs;
  for (const auto& [kind, queues] : of_kind) {
    for (std::size_t i = 0; i < std::max(queues.first.size(), queues.second.size()); ++i) {
      queue_pair pair{.kind = kind};
      if (i < queues.first.size()) pair.first = queues.first[i];
      if (i < queues.second.size()) pair.second = queues.second[i];
      if (pair.first == nullptr || pair.second == nullptr) {
        pair.differs = {"number"};
      } else {
        if (pair.first->shared() != pair.second->shared()) pair.differs.emplace_back("sharing");
        if (pair.first->dispatches != pair.second->dispatches)
          pair.differs.emplace_back("dispatches");
        if (cells_of(backlog_of(*pair.first)) != cells_of(backlog_of(*pair.second)))
          pair.differs.emplace_back("backlog");
      }
      pairs.push_back(std::move(pair));
    }
  }
  return pairs;
}

std::string analysis_text(const std::vector<analyzed_file>& files, std::size_t width) {
  std::string out;
  for (const auto& each : files) out += (out.empty() ? "" : "\n") + file_text(each, width);
  if (files.size() > 1) out += "\n" + side_by_side(files, width);
  if (files.size() == 2) out += pairs_text(compare(files[0].usage, files[1].usage), width);
  return out;
}

json::value analysis_json(const std::vector<analyzed_file>& files) {
  json::array shown;
  for (const auto& each : files) shown.push_back(file_json(each));
  json::value compared = nullptr;
  if (files.size() == 2) {
    auto& pairs = compared.emplace_array();
    for (const auto& pair : compare(files[0].usage, files[1].usage)) {
      json::array differs;
      for (const auto& each : pair.differs) differs.emplace_back(each);
      pairs.push_back(json::object{{"kind", pair.kind},
                                   {"first", index_of(files[0].usage, pair.first)},
                                   {"second", index_of(files[1].usage, pair.second)},
                                   {"differs", std::move(differs)}});
    }
  }
  return json::object{
      {"version", 1}, {"files", std::move(shown)}, {"compared", std::move(compared)}};
}

subcommand add_analyze(CLI::App& program) {
  const auto chosen = std::make_shared<analyze_options>();
  auto* const command =
      program.add_subcommand("analyze", "Show which hardware queues a run used, from its logs");
  command->footer(
      "Reads HIP logs (AMD_LOG_LEVEL=5) and ftrace text, and compares the files.\n"
      "STREAMS: streams that used the queue. USERS: largest number of users at one time\n"
      "(the queue's reference count). MEAN to MAX: at a dispatch, packets ahead of it\n"
      "that the GPU had not read (wptr - rptr). BEHIND: share of dispatches with\n"
      "packets ahead. Unknown lines are counted. The command was tested on samples\n"
      "written from the log formats, not on logs from hardware.\n" +
      std::string{exit_codes});
  command->add_option("FILE", chosen->files, "Log files; '-' is standard input")
      ->required()
      ->type_name("");
  command->add_flag("--json", chosen->json, "Print one line of JSON");
  return {command, [chosen] { return analyze(*chosen); }};
}

}  // namespace sluice::cli
