// What shells complete: subcommands, options, and the words or files that an option takes.

#include "command_tree.hpp"

#include <fmt/format.h>

namespace sluice::cli {

namespace {

/// "" for the program, " role set" for a subcommand: what the scripts call where they are.
std::string place(const described_command& command) {
  std::string text;
  for (const auto& word : command.path) text += " " + word;
  return text;
}

bool takes_file(const described_option& option) {
  return option.value.find("FILE") != std::string::npos ||
         option.value.find("DIR") != std::string::npos;
}

/// In single quotes, for any of the shells.
std::string shell_word(const std::string& text) {
  std::string made = "'";
  for (const char letter : text) made += letter == '\'' ? "'\\''" : std::string(1, letter);
  return made + "'";
}

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

const described_command& below(const std::vector<described_command>& all,
                               const described_command& of, const std::string& name) {
  auto path = of.path;
  path.push_back(name);
  for (const auto& each : all)
    if (each.path == path) return each;
  return of;
}

/// The words that lead to a subcommand, as patterns of a `case`.
std::string places(const std::vector<described_command>& all) {
  std::string text;
  for (const auto& each : all)
    if (!each.path.empty()) text += (text.empty() ? "" : " | ") + shell_word(place(each));
  return text;
}

/// A branch of a `case` for each option with a value: where it is and what stands before the word.
template <class Answer>
std::string value_branches(const std::vector<described_command>& all, const Answer& answer) {
  std::string text;
  for (const auto& command : all)
    for (const auto& option : command.options) {
      if (option.positional || option.value.empty()) continue;
      std::string patterns;
      for (const auto& each : option.names)
        patterns += (patterns.empty() ? "" : " | ") + shell_word(place(command) + " " + each);
      text += fmt::format("    {}) {} ;;\n", patterns, answer(option));
    }
  return text;
}

}  // namespace

std::string bash_completion(const std::vector<described_command>& all, const std::string& name) {
  std::string words;
  for (const auto& command : all) {
    std::string list = CLI::detail::join(command.subcommands, " ");
    for (const auto& option : command.options)
      for (const auto& word : option.positional ? option.choices : option.names)
        list += (list.empty() ? "" : " ") + word;
    words += fmt::format("    {}) words={} ;;\n", shell_word(place(command)), shell_word(list));
  }
  // Without an answer, -o default completes names of files.
  const auto values = value_branches(all, [](const described_option& option) {
    if (takes_file(option)) return std::string{"return"};
    return fmt::format("words={}; compopt +o default; at=' '",
                       shell_word(CLI::detail::join(option.choices, " ")));
  });
  return fmt::format(R"(# bash completion for {0}, made of its command line by `sluice manual`
_{0}() {{
  local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD - 1]}} at='' words='' index
  COMPREPLY=()
  for ((index = 1; index < COMP_CWORD; index++)); do
    case "$at ${{COMP_WORDS[index]}}" in
      {1}) at+=" ${{COMP_WORDS[index]}}" ;;
    esac
  done
  case "$at $before" in
{2}  esac
  case "$at" in
{3}  esac
  mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word")
}}
complete -o default -F _{0} {4}
)",
                     name, places(all), values, words, name);
}

std::string zsh_completion(const std::vector<described_command>& all, const std::string& name) {
  // name:what it is, in which a colon of the name's own is escaped.
  const auto entry = [](const std::string& word, const std::string& text) {
    return " " + shell_word(word + ":" + first_line(text));
  };
  std::string words;
  for (const auto& command : all) {
    std::string list;
    for (const auto& each : command.subcommands)
      list += entry(each, below(all, command, each).summary);
    for (const auto& option : command.options)
      for (const auto& word : option.positional ? option.choices : option.names)
        list += entry(word, option.text);
    words += fmt::format("    ({}) words_here=({}) ;;\n", shell_word(place(command)), list);
  }
  const auto values = value_branches(all, [](const described_option& option) {
    if (takes_file(option)) return std::string{"_files; return"};
    if (option.choices.empty()) return std::string{"return 1"};
    return fmt::format("compadd {}; return", CLI::detail::join(option.choices, " "));
  });
  return fmt::format(R"(#compdef {4}
# Made of the command line of {0} by `sluice manual`.
local at='' each
local -a words_before=("${{(@)words[2,CURRENT-1]}}") words_here
for each in $words_before; do
  case "$at $each" in
    {1}) at+=" $each" ;;
  esac
done
case "$at ${{words[CURRENT-1]}}" in
{2}esac
case "$at" in
{3}esac
_describe 'command or option' words_here || _files
)",
                     name, places(all), values, words, name);
}

std::string fish_completion(const std::vector<described_command>& all, const std::string& name) {
  std::string text =
      fmt::format("# fish completion for {}, made of its command line by `sluice manual`\n", name);
  for (const auto& command : all) {
    std::string when;
    for (const auto& word : command.path)
      when += (when.empty() ? "" : "; and ") + ("__fish_seen_subcommand_from " + word);
    if (!command.subcommands.empty()) {
      when += (when.empty() ? "" : "; and ") + std::string{"not __fish_seen_subcommand_from "} +
              CLI::detail::join(command.subcommands, " ");
    }
    const std::string start = fmt::format("complete -c {} -n {}", name, shell_word(when));
    for (const auto& each : command.subcommands)
      text += fmt::format("{} -f -a {} -d {}\n", start, each,
                          shell_word(first_line(below(all, command, each).summary)));
    for (const auto& option : command.options) {
      if (option.positional) {
        if (!option.choices.empty())
          text += fmt::format("{} -f -a {}\n", start,
                              shell_word(CLI::detail::join(option.choices, " ")));
        continue;
      }
      text += start;
      for (const auto& each : option.names)
        text += each.starts_with("--") ? " -l " + each.substr(2) : " -s " + each.substr(1);
      if (!option.value.empty()) text += takes_file(option) ? " -r" : " -x";
      if (!option.choices.empty())
        text += " -a " + shell_word(CLI::detail::join(option.choices, " "));
      text += " -d " + shell_word(first_line(option.text)) + "\n";
    }
  }
  return text;
}

}  // namespace sluice::cli
