#include "doctor.hpp"

#include "stub_driver.hpp"
#include "temporary_directory.hpp"

#include <linux/capability.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>

#include <boost/json.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace sluice::cli::doctor_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

/// A machine made of files below a temporary directory, and a healthy driver with one GPU.
class Doctor : public testing::Test {
 protected:
  Doctor() {
    here_.prefix = directory_;
    here_.try_io_uring = [] { return 0; };
    here_.breakers = store_.path();
    here_.files.directory = directory_ + "/run";
    write("proc/sys/kernel/osrelease", "6.12.0\n");
    driver_->view.gpus.push_back({.id = gpu_id{51110}});
    driver_->checks = {{"device", verdict::good, "opened", "open(2)"}};
  }

  void write(const std::string& path, const std::string& text) const {
    const auto file = std::filesystem::path{directory_} / path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream{file} << text;
  }

  const test::temporary_directory made_;
  const std::string directory_ = made_.path();
  const breaker_store store_{directory_ + "/run/breakers"};
  const std::shared_ptr<test::stub_driver> driver_ = std::make_shared<test::stub_driver>("fake");
  examination here_;
};

TEST_F(Doctor, FindsNothingWrongWithAHealthyMachine) {
  std::vector<std::string> names;
  for (const auto& each : examine(here_, {driver_}, any_driver)) {
    names.push_back(each.name);
    if (each.name == "pid namespace") continue;  // not faked
    EXPECT_EQ(each.what, verdict::good) << each.name << ": " << each.found;
    EXPECT_NE(each.how, "") << each.name;
  }
  EXPECT_THAT(names, ElementsAre("kernel", "drivers", "device", "owner lock", "records", "pause",
                                 "breakers", "pid namespace", "autogroups", "io_uring"));
}

TEST_F(Doctor, ExaminesEveryDriverThatIsPresent) {
  const auto second = std::make_shared<test::stub_driver>("second");
  const auto gone = std::make_shared<test::stub_driver>("gone", "load it");
  second->checks = {{"device", verdict::blocked, "broken", "open(2)"}};
  const auto named = [&](std::string_view name) {
    std::vector<std::string> names;
    for (const auto& each : examine(here_, {driver_, gone, second}, name))
      if (each.name.ends_with("device")) names.push_back(each.name);
    return names;
  };
  EXPECT_THAT(named(any_driver), ElementsAre("fake: device", "second: device"));
  EXPECT_THAT(named("second"), ElementsAre("device"));
  EXPECT_THAT(named("gone"), ElementsAre());
}

TEST_F(Doctor, SaysWhichDriversThereAre) {
  const auto gone = std::make_shared<test::stub_driver>("gone", "load it");
  const auto other = std::make_shared<test::stub_driver>("other", "load that");
  const auto first = [](const drivers& found, const drivers& all) {
    return check_drivers(found, all).front();
  };
  EXPECT_EQ(first({driver_}, {driver_, gone}).found, "fake");
  EXPECT_EQ(first({driver_}, {driver_, gone}).how, "known drivers: fake, gone");
  EXPECT_EQ(first({gone}, {gone}).found, "gone is not present");
  EXPECT_EQ(first({gone}, {gone}).advice, "load it");
  EXPECT_EQ(first({gone}, {gone}).what, verdict::blocked);
  EXPECT_EQ(first({driver_, gone}, {driver_, gone}).what, verdict::note);
  const auto none = check_drivers({}, {gone, other});
  ASSERT_EQ(none.size(), 2U);
  EXPECT_TRUE(blocks(none));
  EXPECT_EQ(none[1].found, "other is not present");
  EXPECT_EQ(none[1].advice, "load that");
}

TEST_F(Doctor, ShowsOpenBreakers) {
  const auto& node = driver_->view;
  write("run/breakers",
        "sluice breakers 1\nopen 51110 51110 reset 1000000 -\nopen 7 51110 reset 1000000 -\n"
        "open 8 8 stuck_call 1000 2000\n");
  const auto all = check_breakers(store_, node);
  ASSERT_EQ(all.size(), 2U) << "the last one's time is over";
  EXPECT_EQ(all[0].name, "breakers");
  EXPECT_EQ(all[0].what, verdict::note) << "it is not shown any more";
  EXPECT_THAT(all[0].found,
              HasSubstr("the GPU with gpu_id 7: its breaker is open: the driver reset the GPU (the "
                        "failure was on GPU 0 (gpu_id 51110) of the same hive)"));
  EXPECT_THAT(all[1].found, HasSubstr("GPU 0 (gpu_id 51110): its breaker is open: the driver reset "
                                      "the GPU; since 1970-01-01 00:16:40 UTC, until re-armed"));
  EXPECT_THAT(all[1].advice, HasSubstr("sluice breaker rearm 51110"));
  EXPECT_EQ(all[1].name, "breakers");
  EXPECT_TRUE(blocks(all)) << "the node has no other GPU";
  auto two = node;
  two.gpus.push_back({.id = gpu_id{51367}});
  EXPECT_FALSE(blocks(check_breakers(store_, two)));
  write("run/breakers", "what\n");
  EXPECT_EQ(check_breakers(store_, node)[0].what, verdict::unknown);
  EXPECT_THAT(check_breakers(store_, node)[0].found,
              HasSubstr("run/breakers:1: invalid line \"what\""));
}

// Root may do all that, so this process is somebody else for a moment.
TEST_F(Doctor, SaysWhatAnotherUserMayNotChange) {
  const auto& node = driver_->view;
  EXPECT_EQ(check_owner_lock(here_.files).what, verdict::good) << "which is not there yet";
  EXPECT_FALSE(std::filesystem::exists(directory_ + "/run")) << "and stays so";
  if (::geteuid() != 0) GTEST_SKIP() << "needs root to be somebody else";
  std::filesystem::permissions(directory_, std::filesystem::perms{0755});
  write("run/owner", "");
  constexpr uid_t nobody = 65534;
  ASSERT_EQ(::seteuid(nobody), 0);
  const auto lock = check_owner_lock(here_.files);
  const auto breakers = check_breakers(store_, node);
  ASSERT_EQ(::seteuid(0), 0);
  EXPECT_EQ(lock.what, verdict::blocked);
  EXPECT_THAT(lock.found, HasSubstr("run/owner cannot be opened by this user"));
  ASSERT_EQ(breakers.size(), 2U);
  EXPECT_EQ(breakers[1].what, verdict::note);
  EXPECT_THAT(breakers[1].found, HasSubstr("run/breakers cannot be written by this user"));
  EXPECT_EQ(check_owner_lock(here_.files).what, verdict::good);
  EXPECT_EQ(check_pause(here_.files).what, verdict::good);
  write("run/disabled", "new\tfirmware\n");
  EXPECT_EQ(check_pause(here_.files).what, verdict::blocked);
  EXPECT_THAT(check_pause(here_.files).found, HasSubstr("run/disabled exists: new?firmware"));
  here_.files.directory += "/disabled/below_a_file";
  EXPECT_EQ(check_pause(here_.files).what, verdict::unknown);
  EXPECT_THAT(check_pause(here_.files).found, HasSubstr("Not a directory"));
  EXPECT_EQ(check_breakers(store_, node).size(), 1U);
}

TEST_F(Doctor, SaysThatEverybodyMayRunAnAgentWithCapabilities) {
  write("agent", "");
  here_.agent = directory_ + "/agent";
  ASSERT_EQ(::chmod(here_.agent.c_str(), 0751), 0);
  EXPECT_TRUE(check_agent(here_).empty()) << "it has none";
  // cap_sys_ptrace+ep, as setcap writes it.
  vfs_cap_data data{};
  data.magic_etc = VFS_CAP_REVISION_2 | VFS_CAP_FLAGS_EFFECTIVE;
  data.data[0].permitted = 1U << CAP_SYS_PTRACE;
  if (::setxattr(here_.agent.c_str(), "security.capability", &data, sizeof(data), 0) != 0)
    GTEST_SKIP() << "no file capabilities here: " << std::strerror(errno);
  auto all = check_agent(here_);
  ASSERT_EQ(all.size(), 1U);
  EXPECT_EQ(all[0].what, verdict::note);
  EXPECT_THAT(all[0].found, HasSubstr("every user may execute " + here_.agent));
  EXPECT_THAT(all[0].advice, HasSubstr("chmod o-x " + here_.agent));
  ASSERT_EQ(::chmod(here_.agent.c_str(), 0750), 0);
  all = check_agent(here_);
  ASSERT_EQ(all.size(), 1U);
  EXPECT_EQ(all[0].what, verdict::good);
}

TEST_F(Doctor, WarnsOfAutogroups) {
  EXPECT_EQ(check_autogroups(here_).what, verdict::good) << "no such kernel";
  write("proc/sys/kernel/sched_autogroup_enabled", "0\n");
  EXPECT_EQ(check_autogroups(here_).what, verdict::good);
  write("proc/sys/kernel/sched_autogroup_enabled", "1\n");
  EXPECT_EQ(check_autogroups(here_).what, verdict::note);
  EXPECT_THAT(check_autogroups(here_).advice, HasSubstr("kernel.sched_autogroup_enabled=0"));
}

TEST_F(Doctor, SaysWhyIoUringIsRefused) {
  write("proc/sys/kernel/io_uring_disabled", "2\n");
  auto all = check_io_uring(here_, EPERM);
  ASSERT_EQ(all.size(), 1U);
  EXPECT_EQ(all[0].what, verdict::note) << "there is an epoll build";
  EXPECT_THAT(all[0].how, HasSubstr("io_uring_disabled is 2"));
  EXPECT_THAT(all[0].advice, HasSubstr("kernel.io_uring_disabled=0"));
  write("proc/sys/kernel/io_uring_disabled", "0\n");
  EXPECT_THAT(check_io_uring(here_, EPERM)[0].advice, HasSubstr("seccomp"));
  all = check_io_uring(here_, ENOMEM);
  ASSERT_EQ(all.size(), 2U);
  EXPECT_EQ(all[1].name, "memlock");
}

TEST_F(Doctor, PrintsWhatIsBlockedAndWhatToDo) {
  const std::vector<check> all{
      {"a", verdict::good, "fine", "by looking"},
      {"b", verdict::blocked, "bad", "by looking twice", "mend it"},
  };
  EXPECT_EQ(doctor_text(all),
            "ok       a: fine\n"
            "         (by looking)\n"
            "BLOCKED  b: bad\n"
            "         (by looking twice)\n"
            "         -> mend it\n"
            "preemption does not work on this node: fix each BLOCKED check\n");
  const auto value = doctor_json(all);
  EXPECT_TRUE(value.at("blocked").as_bool());
  EXPECT_EQ(value.at("checks").at(1).at("verdict").as_string(), "blocked");
  EXPECT_FALSE(blocks({all[0]}));
}

}  // namespace
}  // namespace sluice::cli::doctor_test
