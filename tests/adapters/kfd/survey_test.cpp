#include "sluice/kfd/survey.hpp"

#include "family.hpp"
#include "looks.hpp"
#include "mqds_text.hpp"
#include "temporary_directory.hpp"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sluice/os/proc.hpp"

namespace sluice::kfd::survey_test {
namespace {

using namespace std::chrono_literals;
using test::all;
using test::eventually;
using test::execs_when_told;
using test::family;
using test::look;
using test::patience;
using test::tagged;
using test::wait_for_exec;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

/// A sysfs tree made of ordinary files, processes that are not in it by themselves, and a scanner
/// that looks through the survey.
class Survey : public ::testing::Test {
 protected:
  void SetUp() override {
    where_.sysfs = made_.path();
    std::filesystem::create_directories(where_.sysfs + "/proc");
    write("topology/generation_id", "1\n");
    write("topology/nodes/0/gpu_id", "0\n");
    write("topology/nodes/1/gpu_id", "4660\n");
  }

  void write(const std::string& path, const std::string& text) const {
    const std::filesystem::path whole = where_.sysfs + "/" + path;
    std::filesystem::create_directories(whole.parent_path());
    std::ofstream{whole} << text;
  }
  void add_queue(pid_t pid, int id, int type = 0) const {
    // As the driver prints them: no line end.
    const std::string queue = "proc/" + std::to_string(pid) + "/queues/" + std::to_string(id) + "/";
    write(queue + "gpuid", "4660");
    write(queue + "type", std::to_string(type));
    write(queue + "size", "65536");
  }
  void add_process(pid_t pid) const {
    std::filesystem::create_directories(process(pid) + "/queues");
  }
  void remove(const std::string& path) const { std::filesystem::remove_all(path); }
  std::string process(pid_t pid) const { return where_.sysfs + "/proc/" + std::to_string(pid); }

  /// Another survey of the tree. It lives until the test ends.
  survey& tree(message_sink say = messages_to_stderr()) {
    return *surveys_.emplace_back(make_survey(where_, std::move(say)));
  }

  const test::temporary_directory made_;
  roots where_;
  std::vector<std::unique_ptr<survey>> surveys_;
};

TEST_F(Survey, SeesGpusAndNotTheCpuNode) {
  node_scanner scanner{tree(), {}, -1};
  EXPECT_THAT(look(scanner), ElementsAre("gpu 4660"));
  EXPECT_THAT(look(scanner), IsEmpty());
}

/// While it lives no more than so many descriptors can be opened.
class few_descriptors {
 public:
  explicit few_descriptors(rlim_t more) {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    // The lowest that is free: all below are taken.
    const unique_fd next{::open("/", O_PATH | O_CLOEXEC)};
    const rlimit few{static_cast<rlim_t>(next.get()) + more, before_.rlim_max};
    ::setrlimit(RLIMIT_NOFILE, &few);
  }
  ~few_descriptors() { ::setrlimit(RLIMIT_NOFILE, &before_); }
  few_descriptors(const few_descriptors&) = delete;
  few_descriptors& operator=(const few_descriptors&) = delete;

 private:
  rlimit before_{};
};

// An online process in a cgroup that says offline was taken for offline where its environment could
// not be read for want of a descriptor, and stayed it.
TEST_F(Survey, TakesNobodyByHalfAPictureWhenDescriptorsRunOut) {
  const family target{tagged("ONLINE_AI")};
  wait_for_exec(target);
  roles::classification_rules rules;
  rules.by_cgroup = {{"/*", role::offline}};
  for (rlim_t more = 0; more <= 6; ++more) {
    std::vector<std::string> said;
    node_scanner scanner{tree(), rules, -1,
                         [&](std::string_view words) { said.emplace_back(words); }};
    look(scanner);
    add_process(target.pid());
    add_queue(target.pid(), 0);
    std::vector<std::string> seen;
    {
      const few_descriptors limit{more};
      seen = look(scanner);
    }
    EXPECT_THAT(seen, ::testing::AnyOf(IsEmpty(), ElementsAre("process online"),
                                       ElementsAre("process online", "queue 0 on 4660 compute")))
        << more << " descriptors left";
    // It reports a lack of descriptors whenever something stays unseen.
    if (seen.size() < 2) {
      EXPECT_THAT(said, ElementsAre(::testing::StartsWith("out of file descriptors"))) << more;
    }
    if (more == 6) {
      EXPECT_EQ(seen.size(), 2U);
    }
    look(scanner);
    EXPECT_THAT(all(scanner),
                ::testing::IsSupersetOf({"process online", "queue 0 on 4660 compute"}))
        << more;
    {
      // The undefined-behaviour sanitizer needs descriptors to check a matcher.
      const few_descriptors none{0};
      look(scanner);
      seen = all(scanner);
    }
    EXPECT_THAT(seen, ::testing::Contains("process online")) << "it is known";
    remove(process(target.pid()));
  }
}

TEST_F(Survey, SeesAGpuThatAppears) {
  node_scanner scanner{tree(), {}, -1};
  look(scanner);
  write("topology/nodes/2/gpu_id", "22136\n");
  write("topology/generation_id", "2\n");
  EXPECT_THAT(look(scanner), ElementsAre("gpu 22136"));
}

TEST_F(Survey, FollowsAProcessAndItsQueues) {
  family target{tagged("OFFLINE_AI")};
  wait_for_exec(target);
  node_scanner scanner{tree(), {}, -1};
  look(scanner);
  add_process(target.pid());
  EXPECT_THAT(look(scanner), ElementsAre("process offline"));
  add_queue(target.pid(), 0);
  add_queue(target.pid(), 1, 1);
  EXPECT_THAT(look(scanner), ElementsAre("queue 0 on 4660 compute", "queue 1 on 4660 other"));
  EXPECT_THAT(look(scanner), IsEmpty());
  remove(process(target.pid()) + "/queues/0");
  EXPECT_THAT(look(scanner), ElementsAre("queue 0 gone"));
  remove(process(target.pid()));
  EXPECT_THAT(look(scanner), ElementsAre("queue 1 gone", "process gone"));
}

TEST_F(Survey, TellsAQueueFromTheNextOneUnderItsId) {
  family target{tagged("")};
  wait_for_exec(target);
  add_process(target.pid());
  add_queue(target.pid(), 0);
  node_scanner scanner{tree(), {}, -1};
  look(scanner);
  // Recreated beside the old one, so that the file system cannot give it the old one's inode.
  const std::string queues = process(target.pid()) + "/queues/";
  std::filesystem::rename(queues + "0", where_.sysfs + "/old");
  add_queue(target.pid(), 0, 1);
  EXPECT_THAT(look(scanner), ElementsAre("queue 0 gone", "queue 0 on 4660 other"));
  EXPECT_THAT(look(scanner), IsEmpty());
}

/// The name of the new program shows a moment before its environment does.
void wait_for_environment(const family& target) {
  ASSERT_TRUE(eventually(patience, [&] {
    std::ifstream file{"/proc/" + std::to_string(target.pid()) + "/environ"};
    const std::string text{std::istreambuf_iterator<char>{file}, {}};
    return text.find("AMD_QUEUE_TAG=OFFLINE_AI") != text.npos;
  }));
}

/// More than get a whole look at each look, each with a queue.
class SurveyOfMany : public Survey {
 protected:
  template <class Body>
  void start(const Body& body) {
    for (std::size_t i = 0; i < 2 * node_scanner::whole_looks + 1; ++i) {
      many_.push_back(std::make_unique<family>(body));
      add_queue(many_.back()->pid(), 0);
    }
  }
  void start_tagged(const std::string& tag) {
    start(tagged(tag));
    for (const auto& each : many_) wait_for_exec(*each);
  }
  void replace_queue(pid_t pid) const {
    const std::string queues = process(pid) + "/queues/";
    std::filesystem::rename(queues + "0", where_.sysfs + "/old" + std::to_string(pid));
    add_queue(pid, 0, 1);
  }

  std::vector<std::unique_ptr<family>> many_;
};

TEST_F(SurveyOfMany, SeesAtOnceThatAnyGotOrLostAQueue) {
  start_tagged("OFFLINE_AI");
  node_scanner scanner{tree(), {}, -1};
  look(scanner);
  for (const auto& each : many_) {
    add_queue(each->pid(), 1);
    EXPECT_THAT(look(scanner), ElementsAre("queue 1 on 4660 compute"));
  }
  for (const auto& each : many_) {
    remove(process(each->pid()) + "/queues/0");
    EXPECT_THAT(look(scanner), ElementsAre("queue 0 gone"));
  }
  EXPECT_THAT(look(scanner), IsEmpty());
}

TEST_F(SurveyOfMany, SeesAQueueInAnothersPlaceWhenItsProcessHasItsTurn) {
  start_tagged("OFFLINE_AI");
  node_scanner scanner{tree(), {}, -1};
  look(scanner);
  for (const auto& each : many_) replace_queue(each->pid());
  std::vector<std::string> seen;
  for (std::size_t looks = 0; looks * node_scanner::whole_looks < many_.size(); ++looks)
    for (auto& each : look(scanner)) seen.push_back(std::move(each));
  EXPECT_EQ(std::ranges::count(seen, "queue 0 gone"), std::ssize(many_));
  EXPECT_EQ(std::ranges::count(seen, "queue 0 on 4660 other"), std::ssize(many_));
}

// Nobody else tells of it, and there its pointers are to be looked at.
TEST_F(SurveyOfMany, SeesAtOnceAnOnlineQueueInAnothersPlace) {
  start_tagged("ONLINE_AI");
  node_scanner scanner{tree(), {}, -1};
  look(scanner);
  for (const auto& each : many_) {
    replace_queue(each->pid());
    EXPECT_THAT(look(scanner), ElementsAre("queue 0 gone", "queue 0 on 4660 other"));
  }
}

// With the program the driver takes its directory away, and makes another.
TEST_F(SurveyOfMany, SeesAtOnceThatOneExeced) {
  start(execs_when_told);
  for (const auto& each : many_) ASSERT_EQ(each->heard(), 'r');
  node_scanner scanner{tree(), {}, -1};
  look(scanner);
  for (const auto& each : many_) {
    each->tell('g');
    wait_for_environment(*each);
    remove(process(each->pid()));
    add_queue(each->pid(), 0);
    EXPECT_THAT(look(scanner),
                ElementsAre("queue 0 gone", "process offline", "queue 0 on 4660 compute"));
  }
}

TEST_F(SurveyOfMany, SeesAtOnceWhatBecomesOfThoseWithoutQueues) {
  start(execs_when_told);
  for (const auto& each : many_) {
    ASSERT_EQ(each->heard(), 'r');
    remove(process(each->pid()) + "/queues/0");
  }
  node_scanner scanner{tree(), {}, -1};
  look(scanner);
  for (const auto& each : many_) {
    each->tell('g');
    wait_for_environment(*each);
    EXPECT_THAT(look(scanner), ElementsAre("process offline"));
  }
  for (const auto& each : many_) {
    add_queue(each->pid(), 0);
    EXPECT_THAT(look(scanner), ElementsAre("queue 0 on 4660 compute"));
  }
}

TEST_F(Survey, WaitsForAQueueWhoseFilesAreNotThereYet) {
  family target{tagged("")};
  wait_for_exec(target);
  node_scanner scanner{tree(), {}, -1};
  std::filesystem::create_directories(process(target.pid()) + "/queues/3");
  look(scanner);
  EXPECT_THAT(look(scanner), IsEmpty());
  add_queue(target.pid(), 3);
  EXPECT_THAT(look(scanner), ElementsAre("queue 3 on 4660 compute"));
}

/// mqds with one compute queue of that process.
std::string mqds_text(pid_t pid, std::uint32_t ring_page, unsigned priority) {
  return test::mqds_text(pid, {.ring_base = std::uint64_t{ring_page} << 8U, .priority = priority});
}

TEST_F(Survey, LetsQueuesVoteByRingAndPriority) {
  family target{tagged("")};
  wait_for_exec(target);
  where_.debugfs = where_.sysfs + "/debug";
  add_queue(target.pid(), 0);
  write("debug/mqds", mqds_text(target.pid(), 0x1000, 11));
  roles::classification_rules rules{.queue_priority = true};
  node_scanner online{tree(), rules, -1};
  EXPECT_THAT(look(online), ElementsAre("gpu 4660", "process online", "queue 0 on 4660 compute"));
  rules.by_ring = {{0x100000, 0x100000, role::offline}};
  node_scanner offline{tree(), rules, -1};
  EXPECT_THAT(look(offline), ElementsAre("gpu 4660", "process offline", "queue 0 on 4660 compute"));
}

// Reading it takes every process's lock in the driver.
TEST_F(Survey, ReadsMqdsOnlyWhenQueuesComeAndGo) {
  family target{tagged("")};
  wait_for_exec(target);
  where_.debugfs = where_.sysfs + "/debug";
  add_queue(target.pid(), 0);
  write("debug/mqds", mqds_text(target.pid(), 0x1000, 11));
  node_scanner scanner{tree(), {.queue_priority = true}, -1};
  look(scanner);
  write("debug/mqds", mqds_text(target.pid(), 0x1000, 7));
  EXPECT_THAT(look(scanner), IsEmpty());
  add_queue(target.pid(), 1, 1);
  EXPECT_THAT(look(scanner), ElementsAre("process unmatched", "queue 1 on 4660 other"));
}

// sysfs shows a queue a moment before or after mqds does.
TEST_F(Survey, LooksAgainWhenMqdsDoesNotShowAQueueYet) {
  family target{tagged("")};
  wait_for_exec(target);
  where_.debugfs = where_.sysfs + "/debug";
  add_queue(target.pid(), 0);
  write("debug/mqds", "");
  node_scanner scanner{tree(), {.by_ring = {{0, ~0ULL, role::offline}}}, -1};
  EXPECT_THAT(look(scanner),
              ElementsAre("gpu 4660", "process unmatched", "queue 0 on 4660 compute"));
  write("debug/mqds", mqds_text(target.pid(), 0x1000, 7));
  EXPECT_THAT(look(scanner), ElementsAre("process offline"));
}

TEST_F(Survey, SaysOnceThatItCannotReadMqdsAndNothingWithoutARule) {
  family target{tagged("")};
  wait_for_exec(target);
  where_.debugfs = where_.sysfs + "/missing";
  add_queue(target.pid(), 0);
  int said = 0;
  const message_sink say = [&](std::string_view words) {
    EXPECT_NE(words.find("/missing/mqds"), words.npos) << words;
    ++said;
  };
  node_scanner without{tree(), {}, -1, say};
  look(without);
  EXPECT_EQ(said, 0);
  node_scanner with{tree(), {.queue_priority = true}, -1, say};
  look(with);
  add_queue(target.pid(), 1);
  look(with);
  EXPECT_EQ(said, 1);
}

TEST_F(Survey, IsNotReadableWithoutATree) {
  std::string message;
  EXPECT_TRUE(tree().check(message)) << message;
  where_.sysfs += "/missing";
  EXPECT_EQ(tree().check(message).error(), boost::system::errc::no_such_file_or_directory);
  EXPECT_NE(message.find("/missing/proc: "), message.npos) << message;
}

}  // namespace
}  // namespace sluice::kfd::survey_test
