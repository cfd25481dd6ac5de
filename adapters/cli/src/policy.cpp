// sluice policy: which policies there are, and what they can be told.

#include "output.hpp"
#include "policy_choice.hpp"
#include "python_policy.hpp"
#include "subcommand.hpp"

#include <algorithm>
#include <memory>
#include <string>

#include <fmt/format.h>

#include "sluice/policies/all.hpp"
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

int show(const std::string& what) {
  policy_registry known;
  for (policy_kind& kind : all_policies()) known.add(std::move(kind));
  std::string text;
  if (is_file(what)) {
    std::string message;
    const auto kind = load_policy_file(what, message);
    if (!kind) {
      complain(message);
      return exit_failed;
    }
    if (is_unusable(*kind)) {
      complain(fmt::format("{}: no policy can be made of its defaults: {}", what,
                           printable(refusal_of_defaults(*kind))));
      return exit_failed;
    }
    text = describe(*kind);
  } else if (!what.empty()) {
    const policy_kind* const kind = known.find(what);
    if (kind == nullptr) {
      complain(fmt::format("there is no policy {}; there is {}; the path of a plugin has a slash",
                           what, fmt::join(known.names(), ", ")));
      return exit_failed;
    }
    text = describe(*kind);
  } else {
    for (const auto name : known.names()) {
      text += fmt::format("{}: {}\n", name, known.find(name)->summary);
    }
  }
  return print(text) ? exit_done : exit_failed;
}

/// Plays random sequences to it, as policy_check.hpp says.
int check(const std::string& what) {
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
  return print(fmt::format("{}: {} random sequences of events, and nothing wrong\n", what,
                           options.sequences))
             ? exit_done
             : exit_failed;
}

}  // namespace

subcommand add_policy(CLI::App& program) {
  const auto what = std::make_shared<std::string>();
  const auto checks = std::make_shared<bool>(false);
  auto* const command =
      program.add_subcommand("policy", "List policies, and what they can be told");
  command->footer(
      "Without an argument: every policy of this build. With one: its parameters, as\n"
      "they stand in the table [policy] of a configuration, their defaults and ranges.\n"
      "A plugin is loaded for that, and a policy made of its defaults. Exit code 0: done;\n"
      "1: there is no such policy, the plugin cannot be used, or the check found something; 2: "
      "usage.");
  auto* const named = command
                          ->add_option("POLICY", *what,
                                       "A name, or the path of a plugin (.so) or Python file (.py)")
                          ->type_name("");
  command
      ->add_flag("--check", *checks,
                 "Play 1000 random sequences of events to it (POLICY or POLICY:KEY=VALUE,...), "
                 "and show the shortest in which it does what no policy may")
      ->needs(named);
  return {command, [what, checks] { return *checks ? check(*what) : show(*what); }};
}

}  // namespace sluice::cli
