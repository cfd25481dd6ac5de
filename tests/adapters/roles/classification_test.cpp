#include "sluice/roles/classification.hpp"

#include <grp.h>
#include <pwd.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace sluice::roles::classification_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

class LoadClassification : public testing::Test {
 protected:
  result<classification_rules> load(const std::string& content) {
    std::ofstream(path_) << content;
    return load_classification(path_, message_);
  }
  result<classification_rules> load_variable(const std::string& content) {
    ::setenv("SLUICE_ROLES", content.c_str(), 1);
    return load_classification("", message_);
  }
  LoadClassification() { ::unsetenv("SLUICE_ROLES"); }
  ~LoadClassification() override {
    ::unsetenv("SLUICE_ROLES");
    std::filesystem::remove(path_);
  }

  const std::string path_ = (std::filesystem::temp_directory_path() /
                             ("sluice_roles_" + std::to_string(getpid()) + ".toml"))
                                .string();
  std::string message_;
};

TEST(ClassificationRules, HasDefaultsWithoutAProblem) {
  const classification_rules rules;
  EXPECT_EQ(rules.problem(), "");
  EXPECT_THAT(rules.may_claim_online.users, ElementsAre(::getuid()));
  EXPECT_EQ(rules.online_priority, 10U);
  EXPECT_FALSE(rules.queue_priority);
}

TEST(ClassificationRules, NamesAProblem) {
  EXPECT_EQ((classification_rules{.online_priority = 16}.problem()),
            "online_priority is 16; it must be 0 to 15");
  EXPECT_EQ((classification_rules{.by_cgroup = {{"train*", role::offline}}}.problem()),
            "cgroups contains \"train*\"; a cgroup pattern must be one line that begins with /");
  EXPECT_THAT((classification_rules{.may_claim_online = {.cgroups = {""}}}.problem()),
              StartsWith("may_claim_online.cgroups contains \"\""));
  EXPECT_THAT((classification_rules{.gangs = {.cgroups = {"x"}}}.problem()),
              StartsWith("gang_cgroups contains \"x\""));
  EXPECT_THAT((classification_rules{.gangs = {.variables = {"A=B"}}}.problem()),
              StartsWith("gang_variables contains \"A=B\""));
  EXPECT_THAT((classification_rules{.by_environment = {{"", "x", role::online}}}.problem()),
              StartsWith("environment contains \"=x\" as online"));
  EXPECT_THAT((classification_rules{.by_environment = {{"K", "x", role::unmatched}}}.problem()),
              StartsWith("environment contains \"K=x\" as unmatched"));
  EXPECT_THAT((classification_rules{.by_ring = {{2, 1, role::online}}}.problem()),
              StartsWith("rings contains 0x2 to 0x1 as online"));
}

TEST_F(LoadClassification, ReadsWhatIsNamedAndKeepsTheOtherDefaults) {
  const auto rules = load(R"([scheduler]
max_suspend = "1s"
[roles]
store = "/run/roles"
may_claim_online = { users = [1000, "root"], groups = [44, "root"], cgroups = ["/serving.slice"] }
may_claim_offline = { users = ["*"] }
environment = [{ when = "SLURM_JOB_QOS=preempt*", role = "offline" },
               { when = "ROLE=a=b", role = "online" }]
cgroups = [{ when = '/a\x2db/*', role = "unmatched" }, { when = "/c", role = "online" }]
rings = [{ from = 0x7f0000000000, to = 0x7fffffffffff, role = "offline" }]
online_priority = 12
queue_priority = true
gangs = ["slurm"]
gang_variables = ["MY_GANG"]
gang_cgroups = ["/jobs/*"]
allow_partial_gang = true
)");
  ASSERT_TRUE(rules) << message_;
  EXPECT_EQ(rules->role_store, "/run/roles");
  EXPECT_EQ(rules->may_claim_online,
            (claim_grant{.users = {1000, 0}, .groups = {44, 0}, .cgroups = {"/serving.slice"}}));
  EXPECT_EQ(rules->may_claim_offline, (claim_grant{.everyone = true}));
  EXPECT_THAT(rules->by_environment,
              ElementsAre(environment_rule{"SLURM_JOB_QOS", "preempt*", role::offline},
                          environment_rule{"ROLE", "a=b", role::online}));
  EXPECT_THAT(rules->by_cgroup, ElementsAre(cgroup_rule{"/a\\x2db/*", role::unmatched},
                                            cgroup_rule{"/c", role::online}));
  EXPECT_THAT(rules->by_ring,
              ElementsAre(ring_rule{0x7f0000000000, 0x7fffffffffff, role::offline}));
  EXPECT_EQ(rules->online_priority, 12U);
  EXPECT_TRUE(rules->queue_priority);
  EXPECT_EQ(rules->gangs, (gang_rules{.variables = {"MY_GANG"},
                                      .cgroups = {"/jobs/*"},
                                      .ranks = false,
                                      .slurm = true,
                                      .pods = false,
                                      .allow_partial = true}));
  EXPECT_EQ(rules->by_pid, classification_rules{}.by_pid);
}

TEST_F(LoadClassification, MeansByAPidTheProcessThatHasItNow) {
  const auto rules = load("[roles]\npids = [{ pid = " + std::to_string(::getpid()) +
                          ", role = 'online' }, { pid = 4194305, role = 'offline' }]\n");
  ASSERT_TRUE(rules) << message_;
  EXPECT_THAT(rules->by_pid, ElementsAre(std::pair{identity_of(::getpid()).value(), role::online}));
}

TEST_F(LoadClassification, PutsTheVariableInPlaceOfTheFile) {
  ::setenv("SLUICE_ROLES", "online_priority = 3\ngangs = []", 1);
  const auto rules = load("[roles]\nonline_priority = 5\nallow_partial_gang = true\n");
  ASSERT_TRUE(rules) << message_;
  EXPECT_EQ(rules->online_priority, 3U);
  EXPECT_FALSE(rules->gangs.ranks);
  EXPECT_TRUE(rules->gangs.allow_partial);
}

TEST_F(LoadClassification, NamesTheVariableAsThePlaceOfAMistake) {
  ASSERT_FALSE(load_variable("gangs = []\nonline_priority = 99"));
  EXPECT_EQ(message_, "SLUICE_ROLES:2: online_priority is 99; it must be 0 to 15");
}

TEST_F(LoadClassification, TakesNoFileAndAFileWithoutTheTable) {
  EXPECT_TRUE(load_classification("", message_)) << message_;
  EXPECT_EQ(load("[scheduler]\n").value(), classification_rules{});
}

/// One line: where, which key, what it is, what it may be.
TEST_F(LoadClassification, NamesFileLineKeyValueAndWhatIsAllowed) {
  const struct {
    const char* text;
    const char* said;
  } cases[] = {
      {"store = 5", "store is 5; it must be a path in quotes, or \"\" for none"},
      {"online_priority = 16", "online_priority is 16; it must be 0 to 15"},
      {"online_priority = '9'", "online_priority is '9'; it must be 0 to 15"},
      {"queue_priority = 1", "queue_priority is 1; it must be true or false"},
      {"gangs = ['mpi']",
       "gangs is [ 'mpi' ]; it must be a list with any of \"ranks\", \"slurm\" and \"pods\""},
      {"gang_cgroups = ['jobs/*']",
       "gang_cgroups contains \"jobs/*\"; a cgroup pattern must be one line that begins with /"},
      {"gang_variables = [1]", "gang_variables is 1; it must be a list of strings in quotes"},
      {"allow_partial_gang = 'yes'", "allow_partial_gang is 'yes'; it must be true or false"},
      {"may_claim_online = ['root']", "may_claim_online is [ 'root' ]; it must be a table"},
      {"may_claim_online = { user = [] }", "may_claim_online is { user = [] }; it must be a table"},
      {"may_claim_online = { users = ['no such user'] }",
       "may_claim_online.users is 'no such user'; it must be the name or number of a user"},
      {"may_claim_offline = { users = [-1] }", "may_claim_offline.users is -1; it must be a list"},
      {"may_claim_offline = { users = [4294967295] }", "may_claim_offline.users is 4294967295"},
      {"may_claim_offline = { groups = ['no such group'] }",
       "may_claim_offline.groups is 'no such group'; it must be the name or number of a group"},
      {"may_claim_offline = { cgroups = ['x'] }",
       "may_claim_offline.cgroups contains \"x\"; a cgroup pattern"},
      {"environment = [{ when = 'KEY', role = 'online' }]",
       "environment is { role = 'online', when = 'KEY' }; it must be a list of { when = "
       "\"KEY=pattern\""},
      {"environment = [{ when = 'A=b', role = 'unmatched' }]", "it must be a list of"},
      {"environment = [{ when = 'A=b' }]", "it must be a list of"},
      {"cgroups = [{ when = '/a', role = 'best effort' }]",
       "role = \"online\", \"offline\" or \"unmatched\" }"},
      {"cgroups = [{ when = '/a', role = 'online', more = 1 }]", "it must be a list of"},
      {"cgroups = { when = '/a', role = 'online' }", "it must be a list: [ ... ]"},
      {"rings = [{ from = 2, to = 1, role = 'online' }]", "rings contains 0x2 to 0x1 as online"},
      {"rings = [{ from = -2, to = 1, role = 'online' }]", "it must be a list of { from ="},
      {"pids = [{ pid = 0, role = 'online' }]", "it must be a list of { pid = NUMBER"},
      {"priority = 3", "priority is not a setting of [roles]"},
  };
  for (const auto& each : cases) {
    message_.clear();
    const auto rules = load(std::string{"[roles]\n\n"} + each.text + "\n");
    ASSERT_FALSE(rules) << each.text;
    EXPECT_EQ(rules.error(), errc::bad_config);
    EXPECT_THAT(message_, StartsWith(path_ + ":3: ")) << each.text;
    EXPECT_THAT(message_, HasSubstr(each.said)) << each.text;
    EXPECT_EQ(message_.find('\n'), std::string::npos) << message_;
  }
}

TEST_F(LoadClassification, RefusesRolesThatAreNoTableAndASyntaxError) {
  ASSERT_FALSE(load("roles = 3\n"));
  EXPECT_EQ(message_, path_ + ":1: roles is 3; it must be a table: [roles]");
  ASSERT_FALSE(load("[roles]\nstore = = 3\n"));
  EXPECT_THAT(message_, StartsWith(path_ + ":2:"));
  ASSERT_FALSE(load_classification("/nonexistent/sluice.toml", message_));
  EXPECT_THAT(message_, HasSubstr("/nonexistent/sluice.toml"));
}

/// The README's table of settings names all of them, with their defaults.
TEST_F(LoadClassification, ReadsTheReadmesDefaults) {
  std::ifstream readme(SLUICE_README);
  std::string block;
  bool inside = false;
  for (std::string line; std::getline(readme, line);) {
    if (line == "```") inside = false;
    if (inside) block += line + "\n";
    if (line == "```toml") inside = true;
  }
  ASSERT_THAT(block, HasSubstr("\n[roles]\n"));
  const auto rules = load(block);
  ASSERT_TRUE(rules) << message_;
  EXPECT_EQ(*rules, classification_rules{});
  for (const auto* key : {"store", "may_claim_online", "may_claim_offline", "environment", "pids",
                          "cgroups", "rings", "online_priority", "queue_priority", "gangs",
                          "gang_variables", "gang_cgroups", "allow_partial_gang"}) {
    EXPECT_THAT(block, HasSubstr("\n" + std::string(key) + " = "));
  }
}

}  // namespace
}  // namespace sluice::roles::classification_test
