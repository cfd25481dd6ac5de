// sluice manual, which --help does not list: writes the manual pages and the shells' completions
// that an installation has.

#include "command_tree.hpp"
#include "manual_texts.hpp"
#include "output.hpp"
#include "subcommand.hpp"

#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>

#include <fmt/format.h>

#include "sluice/os/whole_file.hpp"

namespace sluice::cli {

namespace {

/// As text of a page: nothing in it is an instruction, and quotes and hyphens can be copied to a
/// shell.
std::string roff(const std::string& text) {
  std::string made;
  bool line_begins = true;
  for (const char letter : text) {
    if (line_begins && letter == '.') made += "\\&";
    if (letter == '\\') {
      made += "\\e";
    } else if (letter == '\'') {
      made += "\\(aq";
    } else if (letter == '-') {
      made += "\\-";
    } else {
      made += letter;
    }
    line_begins = letter == '\n';
  }
  return made;
}

std::string capitals(std::string text) {
  for (char& letter : text)
    if (letter >= 'a' && letter <= 'z') letter = static_cast<char>(letter - 'a' + 'A');
  return text;
}

/// Paragraphs, and what is indented line by line as it is.
std::string filled(const std::string& text) {
  std::string made;
  std::istringstream lines{text};
  bool as_it_is = false;
  for (std::string line; std::getline(lines, line);) {
    if (line.empty()) {
      made += as_it_is ? ".fi\n.PP\n" : ".PP\n";
      as_it_is = false;
      continue;
    }
    const bool indented = line.starts_with(' ');
    if (indented != as_it_is) made += indented ? ".nf\n" : ".fi\n";
    as_it_is = indented;
    made += roff(line) + "\n";
  }
  return made + (as_it_is ? ".fi\n" : "");
}

std::string head(const std::string& name, const std::string& section, const std::string& summary,
                 const std::string& version) {
  return fmt::format(".TH {} {} \"\" \"{}\" \"{}\"\n.SH NAME\n{} \\- {}\n", roff(capitals(name)),
                     section, version, section == "1" ? "User commands" : "System administration",
                     roff(name), roff(summary));
}

std::string name_of_page(const std::string& program, const described_command& command,
                         const char* between) {
  std::string text = program;
  for (const auto& word : command.path) text += between + word;
  return text;
}

std::string synopsis(const std::string& program, const described_command& command) {
  std::string text = fmt::format(".B {}\n", roff(name_of_page(program, command, " ")));
  text += "[\\fIOPTIONS\\fR]\n";
  for (const auto& option : command.options)
    if (option.positional)
      text += fmt::format("{}\\fI{}\\fR{}{}\n", option.required ? "" : "[", roff(option.names[0]),
                          option.several ? "..." : "", option.required ? "" : "]");
  if (!command.subcommands.empty()) text += "\\fISUBCOMMAND\\fR\n";
  return text;
}

std::string options(const described_command& command) {
  std::string text;
  for (const auto& option : command.options) {
    std::string names;
    for (const auto& name : option.names)
      names += (names.empty() ? "" : ", ") +
               fmt::format("\\f{}{}\\fR", option.positional ? 'I' : 'B', roff(name));
    if (!option.value.empty()) names += fmt::format(" \\fI{}\\fR", roff(option.value));
    if (option.positional && !option.choices.empty())
      names += ": " + roff(CLI::detail::join(option.choices, ", "));
    text += fmt::format(".TP\n{}{}\n{}\n", names, option.required ? " (required)" : "",
                        roff(option.text));
  }
  return text;
}

/// What a page says beyond its options.
std::string added(const std::string& page, bool description = false) {
  std::string text;
  for (const auto& each : added_sections()) {
    if (each.page != page || (each.title == "DESCRIPTION") != description) continue;
    text += ".SH " + std::string{each.title} + "\n" + filled(std::string{each.text});
  }
  return text;
}

struct options_of_manual {
  std::string folder;
  std::vector<std::string> pages;
};

bool write(const std::filesystem::path& path, const std::string& text) {
  std::error_code ignored;  // The open says it.
  std::filesystem::create_directories(path.parent_path(), ignored);
  std::ofstream file{path};
  file << text << std::flush;
  if (file) return true;
  complain(fmt::format("cannot write {}; check its folder and the free disk space", path.string()));
  return false;
}

int write_all(const CLI::App& program, const options_of_manual& chosen) {
  const std::filesystem::path folder{chosen.folder};
  const std::string& name = program.get_name();
  const auto all = describe(program);
  const auto page_at = [&](const std::string& page, const std::string& section) {
    return folder / ("man" + section) / (page + "." + section);
  };
  for (std::size_t index = 0; index < all.size(); ++index) {
    if (all[index].path.size() > 1) continue;
    if (!write(page_at(name_of_page(name, all[index], "-"), "1"),
               manual_page(all, index, name, program.version())))
      return exit_failed;
  }
  for (std::size_t index = 0; index + 2 < chosen.pages.size(); index += 3) {
    const auto& page = chosen.pages[index];
    const auto dot = page.rfind('.');
    const auto text = read_whole_file(chosen.pages[index + 1]);
    if (dot == std::string::npos || !text || text->empty()) {
      complain(
          fmt::format("--page {}: the name has no section, or {} is empty or unreadable; expected "
                      "NAME.SECTION FILE TEXT",
                      page, chosen.pages[index + 1]));
      return exit_failed;
    }
    if (!write(page_at(page.substr(0, dot), page.substr(dot + 1)),
               manual_page_of_text(page.substr(0, dot), page.substr(dot + 1),
                                   chosen.pages[index + 2], *text, program.version())))
      return exit_failed;
  }
  return write(page_at(name + "-epoll", "1"), ".so man1/" + name + ".1\n") &&
                 write(folder / "bash" / name, bash_completion(all, name)) &&
                 write(folder / "zsh" / ("_" + name), zsh_completion(all, name)) &&
                 write(folder / "fish" / (name + ".fish"), fish_completion(all, name))
             ? exit_done
             : exit_failed;
}

}  // namespace

std::string manual_page(const std::vector<described_command>& all, std::size_t first,
                        const std::string& program, const std::string& version) {
  const described_command& top = all[first];
  // Of the program the first line says what it is, and there is more.
  auto first_line = top.summary.substr(0, top.summary.find('\n'));
  if (first_line.ends_with('.')) first_line.pop_back();
  std::string text = head(name_of_page(program, top, "-"), "1", first_line, version) +
                     ".SH SYNOPSIS\n" + synopsis(program, top);
  std::string footer = top.footer;
  std::string exit_status;
  if (const auto at = footer.find("Exit code"); at != std::string::npos) {
    exit_status = footer.substr(at);
    footer.resize(at);
  }
  if (top.path.empty())
    text += ".SH DESCRIPTION\n" + filled(top.summary) + filled(footer);
  else if (!footer.empty())
    text += ".SH DESCRIPTION\n" + filled(footer);
  text += ".SH OPTIONS\n" + options(top);
  std::string others;
  if (top.path.empty()) {
    text += ".SH SUBCOMMANDS\nEach subcommand has its own page, for example\n.BR " +
            roff(program + "-" + top.subcommands.front()) + " (1).\n";
    for (const auto& each : all) {
      if (each.path.size() != 1) continue;
      text += fmt::format(".TP\n\\fB{}\\fR\n{}\n", roff(each.path[0]), roff(each.summary));
      others += fmt::format(".BR {} (1),\n", roff(program + "-" + each.path[0]));
    }
    others += ".BR sluice\\-agent (8),\n.BR sluice\\-sim (8),\n";
  } else {
    for (std::size_t index = first + 1; index < all.size() && all[index].path.size() > 1; ++index) {
      const auto& each = all[index];
      text += fmt::format(".SH {}\n{}.PP\n{}\n", roff(capitals(name_of_page(program, each, " "))),
                          synopsis(program, each), roff(each.summary));
      // Exit codes that are the program's have been said.
      if (each.footer != top.footer) text += ".PP\n" + filled(each.footer);
      text += options(each);
    }
    others += fmt::format(".BR {} (1),\n", roff(program));
  }
  text += added(name_of_page(program, top, "-"));
  if (!exit_status.empty()) text += ".SH EXIT STATUS\n" + filled(exit_status);
  return text + ".SH SEE ALSO\n" + others + ".BR sluice.toml (5)\n";
}

std::string manual_page_of_text(const std::string& name, const std::string& section,
                                const std::string& summary, const std::string& text,
                                const std::string& version) {
  const std::string description = added(name, true);
  return head(name, section, summary, version) + description +
         (description.empty() ? ".SH DESCRIPTION\n" : ".SH ALL KEYS AND DEFAULTS\n") + ".nf\n" +
         roff(text) + ".fi\n" + added(name) +
         ".SH SEE ALSO\n.BR sluice (1),\n.BR sluice\\-run (1),\n.BR sluice\\-check (1)\n";
}

subcommand add_manual(CLI::App& program) {
  const auto chosen = std::make_shared<options_of_manual>();
  auto* const command =
      program.add_subcommand("manual", "Write manual pages and shell completions into a folder");
  command->group("");
  command->add_option("FOLDER", chosen->folder, "Folder for man1, man5, man8, bash, zsh and fish")
      ->required()
      ->type_name("");
  command
      ->add_option("--page", chosen->pages,
                   "Add a page: NAME.SECTION, the file with its text, and a one-line summary")
      ->type_size(3)
      ->type_name("NAME.SECTION FILE TEXT");
  return {command, [chosen, &program] { return write_all(program, *chosen); }};
}

}  // namespace sluice::cli
