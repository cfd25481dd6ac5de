// `sluice role` as operators and job managers run it.

#include "command.hpp"
#include "temporary_directory.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <vector>

#include <boost/json.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sluice/roles/role_store.hpp"

namespace sluice::test::role_test {
namespace {

using ::testing::ContainsRegex;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class SluiceRole : public ::testing::Test {
 protected:
  /// Runs `sluice role`. \return its exit code.
  int role(std::vector<std::string> words) {
    words.insert(words.begin(), "role");
    return run(std::move(words));
  }
  int run(std::vector<std::string> words) {
    command made{
        SLUICE_PROGRAM, std::move(words), {"SLUICE_ROLES=store = '" + directory_ + "/lib/roles'"}};
    const auto code = made.ends();
    out_ = made.out();
    err_ = made.err();
    return code.value_or(-1);
  }
  roles::stored_roles stored() const {
    std::string message;
    const auto roles = roles::role_store{directory_ + "/lib/roles"}.read(message);
    EXPECT_TRUE(roles) << message;
    return roles ? *roles : roles::stored_roles{};
  }

  const std::string self_ = std::to_string(::getpid());
  const temporary_directory made_;
  const std::string directory_ = made_.path();
  std::string out_;
  std::string err_;
};

TEST_F(SluiceRole, SetsListsAndClears) {
  EXPECT_EQ(role({"list"}), 0);
  EXPECT_EQ(out_, directory_ + "/lib/roles: no roles and no releases\n");
  ASSERT_EQ(role({"set", "--pid", self_, "online"}), 0) << err_;
  ASSERT_EQ(role({"set", "--cgroup", "/batch/*", "offline"}), 0) << err_;
  ASSERT_EQ(role({"set", "--cgroup", "/batch/keep", "unmatched", "--position", "0"}), 0) << err_;
  EXPECT_EQ(out_ + err_, "");
  EXPECT_EQ(stored().by_process.at(identity_of(::getpid()).value()), role::online);
  EXPECT_THAT(stored().by_cgroup, ElementsAre(roles::cgroup_rule{"/batch/keep", role::unmatched},
                                              roles::cgroup_rule{"/batch/*", role::offline}));
  ASSERT_EQ(role({"list"}), 0) << err_;
  EXPECT_THAT(out_, ContainsRegex("- +online +" + self_ + " +[^ ]"));
  EXPECT_THAT(out_, ContainsRegex("0 +unmatched +- +/batch/keep"));
  EXPECT_THAT(out_, ContainsRegex("1 +offline +- +/batch/\\*"));
  ASSERT_EQ(role({"list", "--json"}), 0) << err_;
  const auto value = boost::json::parse(out_);
  EXPECT_EQ(value.at("processes").at(0).at("pid").to_number<pid_t>(), ::getpid());
  EXPECT_EQ(value.at("cgroups").at(1).at("role").as_string(), "offline");
  ASSERT_EQ(role({"clear", "--pid", self_}), 0) << err_;
  ASSERT_EQ(role({"clear", "--cgroup", "/batch/*"}), 0) << err_;
  EXPECT_TRUE(stored().by_process.empty());
  EXPECT_EQ(stored().by_cgroup.size(), 1U);
}

TEST_F(SluiceRole, ClearsAllRolesAtOnce) {
  ASSERT_EQ(role({"clear", "--all"}), 0) << "there is none";
  ASSERT_EQ(role({"set", "--pid", self_, "online"}), 0) << err_;
  ASSERT_EQ(role({"set", "--cgroup", "/batch/*", "offline"}), 0) << err_;
  ASSERT_EQ(role({"set", "--cgroup", "/serving", "online"}), 0) << err_;
  ASSERT_EQ(run({"release", self_, "--for", "1h"}), 0) << err_;
  EXPECT_EQ(role({"clear", "--all", "--cgroup", "/serving"}), 2);
  ASSERT_EQ(role({"clear", "--all"}), 0) << err_;
  EXPECT_TRUE(stored().by_process.empty());
  EXPECT_TRUE(stored().by_cgroup.empty());
  EXPECT_EQ(stored().released.size(), 1U) << "that is no role";
}

TEST_F(SluiceRole, SaysWhatIsWrong) {
  EXPECT_EQ(role({"clear", "--pid", self_}), 1);
  EXPECT_THAT(err_, ContainsRegex("^sluice: the role store .* has no entry for process " + self_));
  EXPECT_EQ(role({"set", "--pid", "4194304", "online"}), 1);
  EXPECT_EQ(err_, "sluice: there is no process 4194304\n");
  EXPECT_EQ(role({"set", "--cgroup", "batch", "online"}), 2);
  EXPECT_THAT(err_, HasSubstr("begins with /"));
  ASSERT_EQ(role({"set", "--cgroup", "/a", "online"}), 0);
  ASSERT_EQ(role({"set", "--cgroup", "/b", "online", "--position", "1"}), 0) << "at the end";
  EXPECT_EQ(role({"set", "--cgroup", "/b", "offline", "--position", "2"}), 1);
  EXPECT_EQ(err_, "sluice: position 2 is out of range: " + directory_ +
                      "/lib/roles has 1 other pattern; use 0 to 1; nothing was changed\n");
  EXPECT_THAT(stored().by_cgroup, ElementsAre(roles::cgroup_rule{"/a", role::online},
                                              roles::cgroup_rule{"/b", role::online}));
  ::chmod((directory_ + "/lib/roles").c_str(), 0666);
  for (const char* each : {"list", "set", "clear"}) {
    std::vector<std::string> words{each};
    if (words[0] != "list") words.insert(words.end(), {"--cgroup", "/a"});
    if (words[0] == "set") words.emplace_back("online");
    EXPECT_EQ(role(words), 1);
    EXPECT_THAT(err_, HasSubstr("is writable by group or others"));
  }
}

TEST_F(SluiceRole, ListsWhatIsReleasedUntilThatEnds) {
  ASSERT_EQ(run({"release", self_, "--for", "90m"}), 0) << err_;
  EXPECT_EQ(out_, "process " + self_ + " is released for 90min; 'sluice release " + self_ +
                      " --end' ends the release\n");
  ASSERT_EQ(role({"list"}), 0) << err_;
  EXPECT_THAT(out_, ContainsRegex("- +released for [0-9]+(s|min) +" + self_ + " +[^ ]"));
  ASSERT_EQ(role({"list", "--json"}), 0) << err_;
  const auto entry = boost::json::parse(out_).at("released").at(0);
  EXPECT_EQ(entry.at("pid").to_number<pid_t>(), ::getpid());
  EXPECT_GT(entry.at("left_ms").to_number<int>(), 80 * 60 * 1000);
  EXPECT_LE(entry.at("left_ms").to_number<int>(), 90 * 60 * 1000);
  ASSERT_EQ(run({"release", self_, "--end"}), 0) << err_;
  EXPECT_EQ(out_, "schedulers manage process " + self_ + " again\n");
  EXPECT_TRUE(stored().released.empty());
  EXPECT_EQ(run({"release", self_, "--end"}), 1);
  EXPECT_THAT(err_, HasSubstr("is not released"));
  EXPECT_EQ(run({"release", "4194304"}), 1);
  EXPECT_EQ(err_, "sluice: there is no process 4194304\n");
  for (const char* wrong : {"0s", "25h", "soon", "-1s"}) {
    EXPECT_EQ(run({"release", self_, "--for", wrong}), 2) << wrong;
    EXPECT_THAT(err_, ContainsRegex("invalid duration '[^']+': expected more than 0s, up to 24h"));
  }
  EXPECT_EQ(run({"release", self_, "--for", "1h", "--end"}), 2);
}

TEST_F(SluiceRole, RefusesCommandLinesThatMeanNothing) {
  const std::vector<std::vector<std::string>> wrong{
      {},
      {"set", "online"},
      {"set", "--pid", self_},
      {"set", "--pid", self_, "best"},
      {"set", "--pid", "0", "online"},
      {"set", "--pid", self_, "--cgroup", "/a", "online"},
      {"set", "--pid", self_, "online", "--position", "1"},
      {"set", "--all", "online"},
      {"clear"},
      {"list", "--pid", self_},
      {"list", "--store", "/a", "--config", "/b"},
  };
  for (const auto& words : wrong) {
    EXPECT_EQ(role(words), 2) << ::testing::PrintToString(words);
    EXPECT_THAT(err_, ContainsRegex("^sluice: [^\n]+\n$"));
  }
  EXPECT_FALSE(std::filesystem::exists(directory_ + "/lib"));
}

TEST_F(SluiceRole, TakesTheStoreFromAFileOrAConfiguration) {
  const std::string other = directory_ + "/other";
  ASSERT_EQ(role({"set", "--cgroup", "/a", "online", "--store", other}), 0) << err_;
  EXPECT_TRUE(std::filesystem::exists(other));
  EXPECT_TRUE(stored().by_cgroup.empty());
  EXPECT_EQ(role({"list", "--config", directory_ + "/missing.toml"}), 1);
  EXPECT_THAT(err_, HasSubstr("/missing.toml: cannot read the configuration"));
}

}  // namespace
}  // namespace sluice::test::role_test
