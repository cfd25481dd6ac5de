#include "command_tree.hpp"

namespace sluice::cli {

namespace {

/// "{a,b}" as its words; nothing of anything else.
std::vector<std::string> choices_in(const std::string& type) {
  const auto open = type.find('{');
  const auto close = type.find('}', open);
  if (open == std::string::npos || close == std::string::npos) return {};
  return CLI::detail::split(type.substr(open + 1, close - open - 1), ',');
}

described_option describe_option(const CLI::Option& option) {
  described_option made;
  made.positional = option.get_positional();
  if (made.positional) {
    made.names.push_back(option.get_name(true));
  } else {
    for (const auto& name : option.get_snames()) made.names.push_back("-" + name);
    for (const auto& name : option.get_lnames()) made.names.push_back("--" + name);
  }
  made.text = option.get_description();
  made.required = option.get_required();
  if (option.get_items_expected_max() == 0) return made;
  made.several = option.get_items_expected_max() > 1;
  // As --help has it: a name, then what is checked: "N:INT in [1 - 64]".
  const std::string type = option.get_type_name();
  made.choices = choices_in(type);
  if (made.positional) return made;
  made.value = type.substr(0, type.find(':'));
  if (!made.choices.empty()) made.value = CLI::detail::join(made.choices, "|");
  if (made.value.empty()) made.value = "VALUE";
  if (const std::string usual = option.get_default_str(); !usual.empty() && usual != "[]")
    made.text += usual.starts_with('[') ? " " + usual : " [" + usual + "]";
  return made;
}

/// Groups of options are nameless subcommands, which have a --help of their own as well.
void add_options(const CLI::App& app, described_command& to) {
  for (const auto* option : app.get_options())
    if (!option->get_group().empty() && !(app.get_name().empty() && option == app.get_help_ptr()))
      to.options.push_back(describe_option(*option));
  for (const auto* each : app.get_subcommands({}))
    if (each->get_name().empty() && !each->get_group().empty()) add_options(*each, to);
}

void add_command(const CLI::App& app, const std::vector<std::string>& path,
                 std::vector<described_command>& to) {
  described_command made{path, app.get_description(), app.get_footer(), {}, {}};
  add_options(app, made);
  std::vector<const CLI::App*> below;
  for (const auto* each : app.get_subcommands({})) {
    if (each->get_name().empty() || each->get_group().empty()) continue;
    below.push_back(each);
    made.subcommands.push_back(each->get_name());
  }
  to.push_back(std::move(made));
  for (const auto* each : below) {
    auto longer = path;
    longer.push_back(each->get_name());
    add_command(*each, longer, to);
  }
}

}  // namespace

std::vector<described_command> describe(const CLI::App& program) {
  std::vector<described_command> all;
  add_command(program, {}, all);
  return all;
}

}  // namespace sluice::cli
