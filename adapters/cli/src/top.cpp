// sluice top: what the daemon does, as it does it.

#include "control_link.hpp"
#include "orphans.hpp"
#include "output.hpp"
#include "status_view.hpp"
#include "subcommand.hpp"
#include "terminal.hpp"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <boost/json.hpp>
#include <fmt/format.h>

#include "sluice/duration_text.hpp"
#include "sluice/time.hpp"

namespace sluice::cli {

namespace {

namespace json = boost::json;
using namespace std::chrono_literals;

constexpr std::string_view keys = "q quit  f filter  s sort  p pause  P policy  ? help";

struct top_options {
  node_files where;
  std::string interval = "1s";
  bool once = false;
  std::string filter;
};

std::vector<std::string> lines_of(std::string_view text) {
  std::vector<std::string> lines;
  while (!text.empty()) {
    const auto end = std::min(text.find('\n'), text.size());
    lines.emplace_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

class viewer {
 public:
  explicit viewer(const top_options& chosen)
      : where_(chosen.where),
        link_(chosen.where, [this] { return hear_meanwhile(); }),
        every_(std::chrono::duration_cast<std::chrono::milliseconds>(
            parse_duration(chosen.interval).value_or(1s))),
        filter_(chosen.filter) {}

  int once() {
    if (!look()) {
      complain(trouble_);
      return exit_failed;
    }
    std::string text;
    for (const std::string& each : page(terminal_width(), 0)) text += each + "\n";
    return print(text) ? exit_done : exit_failed;
  }

  int watch() {
    // Who asks for a daemon that is not there gets an answer, and no empty page.
    if (!look()) {
      complain(trouble_);
      return exit_failed;
    }
    terminal screen;
    screen_ = &screen;
    time_point next = clock::now() + every_;
    while (!ended_) {
      const auto room = terminal::now();
      screen.show(page(room.columns, room.rows));
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(next - clock::now());
      switch (screen.wait(typed_ahead_.empty() ? std::max(left, 0ms) : 0ms)) {
        case terminal::heard::key: typed_ahead_ += screen.last_key(); break;
        case terminal::heard::end: ended_ = true; break;
        case terminal::heard::resized:
        case terminal::heard::nothing: break;
      }
      while (!ended_ && !typed_ahead_.empty()) {
        const char key = typed_ahead_.front();
        typed_ahead_.erase(0, 1);
        take(key);
      }
      if (ended_ || clock::now() < next) continue;
      (void)look();
      next = clock::now() + every_;
    }
    screen_ = nullptr;
    return exit_done;
  }

 private:
  enum class mode : std::uint8_t { plain, help, filter, pause, policy };

  /// A daemon that hangs keeps nobody here. What else is typed meanwhile counts afterwards.
  bool hear_meanwhile() {
    if (screen_ == nullptr) return true;
    switch (screen_->wait(0ms)) {
      case terminal::heard::key: {
        const bool commands = typed_ahead_.empty() && (mode_ == mode::plain || mode_ == mode::help);
        typed_ahead_ += screen_->last_key();
        if (commands && typed_ahead_ == "q") ended_ = true;
        break;
      }
      case terminal::heard::end: ended_ = true; break;
      case terminal::heard::resized:
      case terminal::heard::nothing: break;
    }
    return !ended_;
  }

  bool look() {
    control_failure failed;
    auto answer = link_.ask({{"ask", "status"}}, failed);
    trouble_ = answer ? std::string() : failed.sentence;
    if (answer) {
      status_ = std::move(*answer);
      mark_orphans(status_, find_orphans(where_));
    }
    return answer.has_value();
  }

  bool paused() const {
    const auto* const node = status_.if_contains("node");
    const auto* const about = node != nullptr ? node->if_object() : nullptr;
    const auto* const why = about != nullptr ? about->if_contains("paused") : nullptr;
    return why != nullptr && !why->is_null();
  }

  /// \param rows 0: as many as it takes, and no line about keys.
  std::vector<std::string> page(std::size_t columns, std::size_t rows) const {
    std::vector<std::string> lines = node_lines(status_);
    lines.push_back(clients_line(status_));
    for (std::string& each : breaker_lines(status_)) lines.push_back(std::move(each));
    lines.emplace_back();
    if (mode_ == mode::help && rows != 0) {
      for (const std::string_view each :
           {"q, Ctrl-C  quit",
            "f          filter groups by number (g7), pid, command, role or state",
            "s          sort by role, time off, state, name",
            "p          pause the node (everything runs), or end the pause; asks to confirm",
            "P          switch the policy: NAME or NAME:KEY=VALUE,...",
            "?          show or hide this help", "",
            "OFF        suspended queues; for a group: suspended / all compute queues",
            "OFF%       share of the last minute in which offline work was suspended",
            "BACKLOG    busy periods of clients in flight; +: packets wait in online queues; ?: "
            "the "
            "end of online work is not visible",
            "GPU TIME   offline group, -TIME: the group was suspended for this time;",
            "           online group, +TIME: offline work on its GPUs was suspended for this",
            "           time while online work was in flight",
            "GPU        number as in 'sluice queues' and 'sluice hqds'; GPU_ID: as in the log",
            "SLOTS      slots for compute queues, as listed in the driver's topology;",
            "           'sluice hqds' counts the slots of every XCC"})
        lines.emplace_back(each);
    } else {
      for (auto& each : lines_of(gpu_table(status_, gpu_columns::few, columns)))
        lines.push_back(std::move(each));
      lines.emplace_back();
      for (auto& each : lines_of(group_table(status_, filter_, order_, columns)))
        lines.push_back(std::move(each));
    }
    if (rows == 0) return lines;
    const std::size_t room = rows - std::min<std::size_t>(rows, 1);
    if (lines.size() > room) {
      const std::size_t left_out = lines.size() - room + 1;
      lines.resize(room - std::min<std::size_t>(room, 1));
      lines.push_back(
          fmt::format("... {} more lines: use a filter (f) or a larger window", left_out));
    }
    lines.resize(room);
    lines.push_back(last_line());
    return lines;
  }

  std::string last_line() const {
    switch (mode_) {
      case mode::filter: return "filter (empty: all): " + typed_ + "_";
      case mode::policy: return "policy NAME[:KEY=VALUE,...]: " + typed_ + "_";
      case mode::pause:
        return paused() ? "end the pause? y/n" : "pause the node and resume everything? y/n";
      case mode::plain:
      case mode::help: break;
    }
    if (!trouble_.empty()) return trouble_;
    if (!said_.empty()) return said_;
    std::string line{keys};
    line += fmt::format("  (by {}{})", to_string(order_), filter_.empty() ? "" : ", " + filter_);
    return line;
  }

  void take(char key) {
    said_.clear();
    switch (mode_) {
      case mode::plain:
      case mode::help: take_command(key); break;
      case mode::pause:
        mode_ = mode::plain;
        if (key == 'y' || key == 'Y') change({{"ask", paused() ? "unpause" : "pause"}});
        break;
      case mode::filter:
      case mode::policy: take_text(key); break;
    }
  }

  void take_command(char key) {
    switch (key) {
      case 'q': ended_ = true; break;
      case '?': mode_ = mode_ == mode::help ? mode::plain : mode::help; break;
      case 'f': begin(mode::filter, filter_); break;
      case 'P': begin(mode::policy, ""); break;
      case 'p': mode_ = mode::pause; break;
      case 's': {
        const auto* const at = std::find(std::begin(group_orders), std::end(group_orders), order_);
        order_ = std::next(at) == std::end(group_orders) ? group_orders[0] : *std::next(at);
        break;
      }
      default: mode_ = mode::plain; break;
    }
  }

  void begin(mode which, const std::string& text) {
    mode_ = which;
    typed_ = text;
  }

  void take_text(char key) {
    constexpr char escape = 0x1b;
    constexpr char erase = 0x7f;
    constexpr std::size_t longest = 200;
    const mode was = mode_;
    if (key == '\n' || key == '\r') {
      mode_ = mode::plain;
      if (was == mode::filter) filter_ = typed_;
      if (was == mode::policy && !typed_.empty()) change({{"ask", "policy"}, {"use", typed_}});
    } else if (key == escape) {
      mode_ = mode::plain;
    } else if (key == erase || key == '\b') {
      if (!typed_.empty()) typed_.pop_back();
    } else if (key >= 0x20 && key < 0x7f && typed_.size() < longest) {
      typed_ += key;
    }
  }

  void change(json::object request) {
    control_failure failed;
    said_ = link_.ask(std::move(request), failed) ? "done" : failed.sentence;
    (void)look();
  }

  const node_files where_;
  control_link link_;
  const std::chrono::milliseconds every_;
  json::object status_;
  std::string trouble_;  // why there is nothing new
  std::string said_;     // of the last change
  std::string filter_;
  std::string typed_;
  std::string typed_ahead_;
  terminal* screen_ = nullptr;
  group_order order_ = group_order::role;
  mode mode_ = mode::plain;
  bool ended_ = false;
};

}  // namespace

subcommand add_top(CLI::App& program) {
  const auto chosen = std::make_shared<top_options>();
  auto* const command =
      program.add_subcommand("top", "Show the state of the node continuously; accept keys");
  command->footer(
      "Without a terminal, or with --once, the command prints one page and exits.\n"
      "Only root and the daemon's user may pause the node or switch the policy.\n"
      "Exit code 0: done; 1: no answer, or permission denied; 2: invalid command line.");
  command->add_option("--interval", chosen->interval, "Time between updates, 100ms to 1h")
      ->capture_default_str()
      ->type_name("TIME")
      ->check(CLI::Validator{[](std::string& text) -> std::string {
                               const auto given = parse_duration(text);
                               if (given && *given >= 100ms && *given <= 1h) return {};
                               return fmt::format("invalid duration '{}': expected 100ms to 1h",
                                                  printable(text));
                             },
                             ""});
  command->add_flag("--once", chosen->once, "Print one page and exit");
  command
      ->add_option("--filter", chosen->filter,
                   "Show only matching groups: g7, a pid, command or role")
      ->type_name("TEXT");
  add_directory(*command, chosen->where);
  return {command, [chosen] {
            viewer made{*chosen};
            return chosen->once || !terminal::is_one() ? made.once() : made.watch();
          }};
}

}  // namespace sluice::cli
