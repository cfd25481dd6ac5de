#include "sluice/roles/target_rules.hpp"

#include "family.hpp"
#include "temporary_directory.hpp"

#include <linux/capability.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sluice/roles/role_store.hpp"

namespace sluice::roles::target_rules_test {
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
    ASSERT_EQ(process_.heard(), 'r');
    who_ = identity_of(process_.pid()).value();
  }

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
    return rules ? (*rules)->role_of(who_, why_) : role::unmatched;
  }

  const test::temporary_directory made_;
  const std::string directory_ = made_.path();
  std::string message_;
  std::string why_;
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
  EXPECT_THAT(why_, HasSubstr(store() + ":1: "));
}

/// Of this thread, while it lives.
class without_capabilities {
 public:
  explicit without_capabilities(std::initializer_list<unsigned> which) {
    EXPECT_EQ(::syscall(SYS_capget, &about_, before_.data()), 0);
    auto less = before_;
    for (const unsigned each : which) less[each / 32].effective &= ~(1U << each % 32);
    EXPECT_EQ(::syscall(SYS_capset, &about_, less.data()), 0);
  }
  ~without_capabilities() { EXPECT_EQ(::syscall(SYS_capset, &about_, before_.data()), 0); }
  without_capabilities(const without_capabilities&) = delete;
  without_capabilities& operator=(const without_capabilities&) = delete;

 private:
  __user_cap_header_struct about_{_LINUX_CAPABILITY_VERSION_3, 0};
  std::array<__user_cap_data_struct, _LINUX_CAPABILITY_U32S_3> before_{};
};

// With CAP_SYS_PTRACE alone another user's environment cannot be read, and was taken for empty.
TEST_F(TargetRules, MakeNobodyOfflineWhoMayClaimToBeOnlineUnseen) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to become another user";
  constexpr uid_t user = 64003;
  const test::family tagged{[](int) {
    const char* const arguments[] = {"sleep", "60", nullptr};
    const char* const environment[] = {"AMD_QUEUE_TAG=ONLINE_AI", nullptr};
    if (::setgid(user) != 0 || ::setuid(user) != 0) return 1;
    return ::execve("/bin/sleep", const_cast<char**>(arguments), const_cast<char**>(environment));
  }};
  const std::string environment = "/proc/" + std::to_string(tagged.pid()) + "/environ";
  ASSERT_TRUE(test::eventually(test::patience, [&] {
    std::string text;
    return std::getline(std::ifstream{environment}, text, '\0') && text.ends_with("ONLINE_AI");
  }));
  who_ = identity_of(tagged.pid()).value();
  // Matches every cgroup.
  const std::string everybody = "cgroups = [{when = \"/\", role = \"offline\"}]\n";
  const std::string granted = "may_claim_online = {users = [" + std::to_string(user) + "]}\n";
  const auto hidden = [&] {
    const without_capabilities those{CAP_DAC_READ_SEARCH, CAP_DAC_OVERRIDE};
    EXPECT_FALSE(std::ifstream{environment}.is_open());
    why_.clear();
    return found(trust::any_file);
  };
  write(everybody + granted);
  EXPECT_EQ(found(trust::any_file), role::online);
  EXPECT_EQ(hidden(), role::unmatched);
  EXPECT_THAT(why_, HasSubstr("its environment, which may claim a role, cannot be read "
                              "(Permission denied)"));
  // Whose word does not count need not be heard.
  write(everybody);
  EXPECT_EQ(hidden(), role::offline);
  EXPECT_EQ(why_, "");
  // Nor what it claims to be when it is said what it is.
  write(everybody + granted);
  say_offline();
  EXPECT_EQ(hidden(), role::offline);
  // Of one that may be offline by its tag alone the reason is said.
  ASSERT_EQ(::unlink(store().c_str()), 0);
  write("may_claim_offline = {users = [" + std::to_string(user) + "]}\n");
  EXPECT_EQ(hidden(), role::unmatched);
  EXPECT_THAT(why_, HasSubstr("CAP_DAC_READ_SEARCH"));
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
           message_.find(file() + " and its directory must belong to root") != std::string::npos;
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
}  // namespace sluice::roles::target_rules_test
