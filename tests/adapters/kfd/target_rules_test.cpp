#include "sluice/kfd/target_rules.hpp"

#include "family.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sluice/kfd/role_store.hpp"

namespace sluice::kfd {
namespace {

using ::testing::HasSubstr;
using trust = target_rules::trust;

int sleep_on(int said) {
  (void)!::write(said, "r", 1);
  for (;;) ::pause();
}

class TargetRules : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "sluice-rules-XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    directory_ = pattern;
    ASSERT_EQ(process_.heard(), 'r');
    who_ = identity_of(process_.pid()).value();
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  std::string file() const { return directory_ + "/sluice.toml"; }
  std::string store() const { return directory_ + "/roles"; }
  void write(const std::string& more = "") const {
    std::ofstream{file()} << "[roles]\nstore = \"" << store() << "\"\n" << more;
  }
  void say_offline() const {
    std::string message;
    ASSERT_TRUE(role_store{store()}.set(who_, role::offline, message)) << message;
  }
  role found(trust whom) {
    const auto rules = target_rules::load(file(), whom, message_);
    EXPECT_TRUE(rules) << message_;
    return rules ? (*rules)->role_of(who_) : role::unmatched;
  }

  std::string directory_;
  std::string message_;
  const test::family process_{sleep_on};
  process_identity who_;
};

TEST_F(TargetRules, SayWhatTheirFileAndItsStoreSay) {
  write();
  EXPECT_EQ(found(trust::any_file), role::unmatched);
  say_offline();
  EXPECT_EQ(found(trust::any_file), role::offline);
  write("pids = [{pid = " + std::to_string(who_.pid) + ", role = \"online\"}]\n");
  ASSERT_EQ(::unlink(store().c_str()), 0);
  EXPECT_EQ(found(trust::any_file), role::online);
}

TEST_F(TargetRules, SayNothingOfWhoHasTheNumberOfAProcess) {
  write();
  say_offline();
  who_.start_time += 1;
  EXPECT_EQ(found(trust::any_file), role::unmatched);
}

// It may be what says that it is online.
TEST_F(TargetRules, TakeNobodyWhileTheStoreCannotBeRead) {
  write("pids = [{pid = " + std::to_string(who_.pid) + ", role = \"offline\"}]\n");
  EXPECT_EQ(found(trust::any_file), role::offline);
  std::ofstream{store()} << "no role store\n";
  EXPECT_EQ(found(trust::any_file), role::unmatched);
}

// It is the host's, which the rules are against.
TEST_F(TargetRules, DoNotHeedTheEnvironment) {
  write();
  const std::string lie = "pids = [{pid = " + std::to_string(who_.pid) + ", role = \"offline\"}]";
  ::setenv("SLUICE_ROLES", lie.c_str(), 1);
  EXPECT_EQ(found(trust::any_file), role::unmatched);
  ::unsetenv("SLUICE_ROLES");
}

TEST_F(TargetRules, AreTakenFromRootsFilesAlone) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to give files away";
  write();
  say_offline();
  EXPECT_EQ(found(trust::roots_files), role::offline);
  // The store of somebody else counts for nothing.
  ASSERT_EQ(::chown(store().c_str(), 65534, 65534), 0);
  EXPECT_EQ(found(trust::roots_files), role::unmatched);
  // A configuration of somebody else is refused, and one that others may write or replace.
  const auto refused = [&] {
    const auto rules = target_rules::load(file(), trust::roots_files, message_);
    return !rules && rules.error() == errc::bad_config &&
           message_.find(file() + " says whom the agent may attach to") != std::string::npos;
  };
  ASSERT_EQ(::chown(file().c_str(), 65534, 65534), 0);
  EXPECT_TRUE(refused());
  ASSERT_EQ(::chown(file().c_str(), 0, 0), 0);
  ASSERT_EQ(::chmod(file().c_str(), 0664), 0);
  EXPECT_TRUE(refused());
  ASSERT_EQ(::chmod(file().c_str(), 0644), 0);
  ASSERT_EQ(::chmod(directory_.c_str(), 0777), 0);
  EXPECT_TRUE(refused());
  ASSERT_EQ(::chmod(directory_.c_str(), 0755), 0);
  EXPECT_FALSE(refused());
  std::filesystem::rename(file(), file() + ".real");
  std::filesystem::create_symlink(file() + ".real", file());
  EXPECT_TRUE(refused());
}

TEST_F(TargetRules, AreTheDefaultsWhereRootHasSaidNothing) {
  EXPECT_EQ(found(trust::roots_files), role::unmatched);
  EXPECT_FALSE(target_rules::load(file(), trust::any_file, message_));
  EXPECT_THAT(message_, HasSubstr("cannot read the configuration"));
}

}  // namespace
}  // namespace sluice::kfd
