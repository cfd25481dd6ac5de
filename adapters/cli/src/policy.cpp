// sluice policy: which policies there are, what they can be told, and which one runs.

#include "control_link.hpp"
#include "output.hpp"
#include "policy_choice.hpp"
#include "python_policy.hpp"
#include "status_view.hpp"
#include "subcommand.hpp"

#include <algorithm>
#include <memory>
#include <string>

#include <boost/json.hpp>
#include <fmt/format.h>

#include "sluice/policy_registry.hpp"
#include "sluice/testing/policy_check.hpp"

namespace sluice::cli {

namespace {

/// A path, and no policy's name.
bool is_file(const std::string& what) {
  return what.find('/') != std::string::npos || what.ends_with(".so") || what.ends_with(".py");
}

/// As it stands in a file: there, a duration has quotes.
std::string file_text(const parameter_value& value) {
  const std::string text = to_text(value);
  return std::holds_alternative<duration>(value) ? '"' + text + '"' : text;
}

/// What stands before a parameter's range.
std::string_view need(const policy_kind& kind, const parameter& one) {
  if (kind.wrap && one.key == "of") return "required; ";
  return one.optional || one.key.ends_with(".*") ? "optional; " : "";
}

/// Why none can be made of the defaults; empty: one can.
std::string refusal_of_defaults(const policy_kind& kind) {
  std::string why;
  if (kind.make && !make_policy(kind, {}, why)) return why;
  return {};
}

/// Whether none can be made whatever is given: there is nothing that has to be given.
bool is_unusable(const policy_kind& kind) {
  return std::none_of(
             kind.schema.begin(), kind.schema.end(),
             [](const parameter& one) { return one.optional || one.key.ends_with(".*"); }) &&
         !refusal_of_defaults(kind).empty();
}

std::string describe(const policy_kind& kind) {
  std::string text = printable(fmt::format("{}: {}", kind.name, kind.summary)) + "\n";
  for (const parameter& one : kind.schema) {
    const std::string_view before = need(kind, one);
    text += "  " +
            printable(fmt::format("{} = {}  # {}{}{}{}", one.key,
                                  before.empty() ? file_text(one.fallback) : "...", before,
                                  range_text(one), one.help.empty() ? "" : ": ", one.help)) +
            "\n";
  }
  // What a schema cannot say, such as one of several: the policy's own words.
  if (const std::string missing = refusal_of_defaults(kind); !missing.empty())
    text += "  # " + printable(missing) + "\n";
  return text;
}

/// What a daemon says runs, as command lines write it; empty: none answers, or it does not know.
struct running_policy {
  std::string text;
  std::string by;  ///< Who chose it, where that was not its configuration.
  bool paused = false;
  std::string decides;  ///< In words, where that is another one or none.
};

running_policy running_in(const boost::json::object& answer) {
  running_policy found;
  const auto* const said = answer.if_contains("policy");
  const auto* const about = said != nullptr ? said->if_object() : nullptr;
  if (about == nullptr) return found;
  const auto text = [&](std::string_view key) {
    const auto* const in = about->if_contains(key);
    return in != nullptr && in->is_string() ? printable(in->as_string()) : std::string();
  };
  const auto flag = [&](std::string_view key) {
    const auto* const in = about->if_contains(key);
    return in != nullptr && in->is_bool() && in->as_bool();
  };
  running_policy made{
      .text = text("text"), .by = text("by"), .paused = flag("paused"), .decides = {}};
  const auto* const decides = about->if_contains("decides");
  const bool known = decides != nullptr && decides->is_string();
  if (known && !made.paused && (flag("is_fallback") || decides->as_string().empty()))
    made.decides = decider_words(text("decides"), flag("is_fallback"), made.text);
  return made;
}

/// \param failed why there is none.
running_policy ask_running(const node_files& where, control_failure& failed) {
  const auto answer = control_link{where}.ask({{"ask", "policy"}}, failed);
  return answer ? running_in(*answer) : running_policy{};
}

std::string running_words(const running_policy& running) {
  return fmt::format("{}{}{}", running.decides.empty() ? running.text : running.decides,
                     running.by.empty() ? "" : ", selected by " + running.by,
                     running.paused ? "; the node is paused" : "");
}

int show(const std::string& what, const node_files& where) {
  const policy_registry known = *policies_for({});
  std::string text;
  if (is_file(what)) {
    std::string message;
    const auto kind = load_policy_file(what, message);
    if (!kind) {
      complain(message);
      return exit_failed;
    }
    if (is_unusable(*kind)) {
      complain(fmt::format("{}: cannot create the policy with its default parameters: {}", what,
                           printable(refusal_of_defaults(*kind))));
      return exit_failed;
    }
    text = describe(*kind);
  } else if (!what.empty()) {
    const policy_kind* const kind = known.find(what);
    if (kind == nullptr) {
      if (const auto colon = what.find(':'); known.find(what.substr(0, colon)) != nullptr) {
        complain(
            fmt::format("'{}' sets parameters; add --use to switch the daemon to it, or "
                        "--check to test it",
                        what));
        return exit_usage;
      }
      complain(fmt::format("unknown policy '{}'; available: {}; or name a plugin file (.so, .py)",
                           what, fmt::join(known.names(), ", ")));
      return exit_failed;
    }
    text = describe(*kind);
    control_failure ignored;
    const auto running = ask_running(where, ignored);
    if (running.text == what || running.text.starts_with(what + ":"))
      text += "  # the daemon runs " + running_words(running) + "\n";
  } else {
    for (const auto name : known.names()) {
      text += fmt::format("{}: {}\n", name, known.find(name)->summary);
    }
    control_failure failed;
    const auto running = ask_running(where, failed);
    text += running.text.empty() ? failed.sentence + "\n"
                                 : "the daemon runs " + running_words(running) + "\n";
  }
  return print(text) ? exit_done : exit_failed;
}

/// Has a running daemon take it.
int use(const std::string& what, const node_files& where) {
  control_failure failed;
  const auto answer = control_link{where}.ask({{"ask", "policy"}, {"use", what}}, failed);
  if (!answer) {
    complain(failed.sentence);
    return exit_failed;
  }
  const auto running = running_in(*answer);
  std::string text =
      fmt::format("the daemon runs {} until it reloads its configuration or exits{}\n",
                  running.text, running.paused ? "; the node is paused" : "");
  // What this policy does not protect, for an operator who switches away from one that does.
  const policy_registry known = *policies_for({});
  if (const policy_kind* const kind = known.find(what.substr(0, what.find(':'))))
    text += fmt::format("{}: {}\n", kind->name, kind->summary);
  return print(text) ? exit_done : exit_failed;
}

/// Plays random sequences to it, as policy_check.hpp says.
int check_policy(const std::string& what) {
  const auto known = policies_for({what});
  if (known.has_error()) {
    complain(known.error().message);
    return exit_failed;
  }
  const auto make = policy_maker(*known, what);
  if (make.has_error()) {
    complain(make.error().message);
    return exit_failed;
  }
  const testing::check_options options;
  if (const auto failure = testing::check_policy(*make, options)) {
    complain(fmt::format("{}: {}", what, failure->text()));
    return exit_failed;
  }
  return print(fmt::format("{}: passed {} random sequences of events\n", what, options.sequences))
             ? exit_done
             : exit_failed;
}

}  // namespace

subcommand add_policy(CLI::App& program) {
  struct options {
    std::string what;
    bool checks = false;
    bool uses = false;
    node_files where;
  };
  const auto chosen = std::make_shared<options>();
  auto* const command =
      program.add_subcommand("policy", "List policies and their parameters, or change the policy");
  command->footer(
      "Without POLICY: lists the policies of this build and the policy of the daemon.\n"
      "With POLICY: lists the policy's parameters, defaults and ranges in the format\n"
      "of the table [policy]. For a plugin, the command loads and runs its code.\n"
      "--check tests the policy with 1000 random sequences of events. If the policy\n"
      "breaks a rule, the command prints the shortest sequence that shows the fault.\n"
      "--use switches the daemon to POLICY until the daemon reloads its configuration.\n"
      "Only root and the daemon's user may do this.\n"
      "Exit code 0: done; 1: unknown policy, unusable plugin, failed check, or refused\n"
      "by the daemon; 2: invalid command line.");
  auto* const named =
      command->add_option("POLICY", chosen->what, "Policy, or plugin (.so, .py) [:KEY=VALUE,...]")
          ->type_name("");
  auto* const checks =
      command->add_flag("--check", chosen->checks, "Test the policy (POLICY[:KEY=VALUE,...])")
          ->needs(named);
  command->add_flag("--use", chosen->uses, "Switch the daemon to POLICY (NAME[:KEY=VALUE,...])")
      ->needs(named)
      ->excludes(checks);
  add_directory(*command, chosen->where);
  return {command, [chosen] {
            if (chosen->checks) return check_policy(chosen->what);
            return chosen->uses ? use(chosen->what, chosen->where)
                                : show(chosen->what, chosen->where);
          }};
}

}  // namespace sluice::cli
