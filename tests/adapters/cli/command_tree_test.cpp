#include "command_tree.hpp"

#include <gtest/gtest.h>

namespace sluice::cli {

namespace {

class CommandTree : public ::testing::Test {
 protected:
  CommandTree() {
    program_.get_formatter()->column_width(24);
    program_.footer("Exit code 0: done.");
    auto* const set = program_.add_subcommand("set", "Say it's so")->add_subcommand("role", "More");
    set->footer(".Begins with a dot\nand C:\\ is no instruction.\nExit code 0: said.");
    set->add_option("WHAT", what_, "What to say")->check(CLI::IsMember({"this", "that"}));
    auto* const group = set->add_option_group("Whose");
    group->add_option("-p,--pid", pid_, "One process")->type_name("PID");
    group->add_option("--config", what_, "Read this")->type_name("FILE");
    set->add_flag("--json", json_, "As JSON");
    program_.add_subcommand("secret", "Not listed")->group("");
    all_ = describe(program_);
  }

  CLI::App program_{"Tries things.", "try"};
  std::string what_ = "this";
  int pid_ = 0;
  bool json_ = false;
  std::vector<described_command> all_;
};

const described_option* find(const described_command& in, const std::string& name) {
  for (const auto& each : in.options)
    for (const auto& word : each.names)
      if (word == name) return &each;
  return nullptr;
}

TEST_F(CommandTree, HasWhatHelpListsAndNothingElse) {
  ASSERT_EQ(all_.size(), 3u);
  EXPECT_EQ(all_[0].subcommands, std::vector<std::string>{"set"});
  EXPECT_EQ(all_[1].path, std::vector<std::string>{"set"});
  EXPECT_EQ(all_[2].path, (std::vector<std::string>{"set", "role"}));
  std::size_t helps = 0;
  for (const auto& each : all_[2].options) helps += each.names.back() == "--help" ? 1u : 0u;
  EXPECT_EQ(helps, 1u) << "an option group's --help is not one of the command";
}

TEST_F(CommandTree, KnowsWhatAnOptionTakes) {
  const auto* const what = find(all_[2], "WHAT");
  ASSERT_NE(what, nullptr);
  EXPECT_TRUE(what->positional);
  EXPECT_EQ(what->choices, (std::vector<std::string>{"this", "that"}));
  const auto* const pid = find(all_[2], "--pid");
  ASSERT_NE(pid, nullptr) << "options of groups are the command's";
  EXPECT_EQ(pid->names, (std::vector<std::string>{"-p", "--pid"}));
  EXPECT_EQ(pid->value, "PID");
  const auto* const json = find(all_[2], "--json");
  ASSERT_NE(json, nullptr);
  EXPECT_EQ(json->value, "");
}

TEST_F(CommandTree, PageTakesNoTextForAnInstruction) {
  const auto page = manual_page(all_, 1, "try", "try 1");
  EXPECT_TRUE(page.starts_with(".TH TRY\\-SET 1 ")) << page;
  EXPECT_NE(page.find("\n\\&.Begins with a dot\nand C:\\e is no instruction.\n"), std::string::npos)
      << page;
  EXPECT_NE(page.find(".SH TRY SET ROLE\n"), std::string::npos) << page;
  EXPECT_NE(page.find("\\fB\\-p\\fR, \\fB\\-\\-pid\\fR \\fIPID\\fR"), std::string::npos) << page;
  const auto text = manual_page_of_text("a.conf", "5", "a file", "'x' = -1\n", "try 1");
  EXPECT_NE(text.find("\n\\(aqx\\(aq = \\-1\n"), std::string::npos) << text;
}

TEST_F(CommandTree, TextOfAFileComesAfterItsIntroduction) {
  const auto text = manual_page_of_text("sluice.toml", "5", "a file", "[daemon]\n", "try 1");
  const auto introduction = text.find(".SH DESCRIPTION\nThis TOML file configures the daemon ");
  const auto keys = text.find(".SH ALL KEYS AND DEFAULTS\n.nf\n[daemon]\n.fi\n.SH FILES\n");
  EXPECT_NE(introduction, std::string::npos) << text;
  EXPECT_NE(keys, std::string::npos) << text;
  EXPECT_LT(introduction, keys);
}

TEST_F(CommandTree, CompletionQuotesWhatItSays) {
  EXPECT_NE(zsh_completion(all_, "try").find("'set:Say it'\\''s so'"), std::string::npos);
  EXPECT_NE(fish_completion(all_, "try").find("-a set -d 'Say it'\\''s so'"), std::string::npos);
  const auto bash = bash_completion(all_, "try");
  EXPECT_NE(bash.find("    ' set role --config') return ;;\n"), std::string::npos) << bash;
  EXPECT_EQ(bash.find("secret"), std::string::npos) << bash;
}

}  // namespace

}  // namespace sluice::cli
