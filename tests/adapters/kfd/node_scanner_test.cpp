#include "node_scanner.hpp"

#include "family.hpp"
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

namespace sluice::kfd::node_scanner_test {
namespace {

using namespace std::chrono_literals;
using test::eventually;
using test::family;
using test::patience;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

/// A sysfs tree made of ordinary files, and processes that are not in it by themselves.
class NodeScanner : public ::testing::Test {
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

  static std::string text(const observation& seen) {
    const std::string queue = "queue " + std::to_string(static_cast<std::uint32_t>(seen.queue));
    switch (seen.kind) {
      case observation_kind::process_seen: return "process " + std::string{to_string(seen.what)};
      case observation_kind::process_gone: return "process gone";
      case observation_kind::queue_seen:
        return queue + " on " + std::to_string(static_cast<std::uint32_t>(seen.gpu)) +
               (seen.type == queue_kind::compute ? " compute" : " other");
      case observation_kind::queue_gone: return queue + " gone";
      case observation_kind::gpu_seen:
        return "gpu " + std::to_string(static_cast<std::uint32_t>(seen.gpu));
      case observation_kind::pointers_seen: return "pointers";
      case observation_kind::gpu_lost: return "gpu lost";
      case observation_kind::breaker_kept:
      case observation_kind::breaker_rearmed: return "a breaker's";
      case observation_kind::resync_begin: return "begin";
      case observation_kind::resync_end: return "end";
    }
    return "?";
  }
  static std::vector<std::string> look(node_scanner& scanner) {
    std::vector<std::string> seen;
    scanner.scan([&](const observation& each) { seen.push_back(text(each)); });
    return seen;
  }
  static std::vector<std::string> all(const node_scanner& scanner) {
    std::vector<std::string> seen;
    scanner.restate([&](const observation& each) { seen.push_back(text(each)); });
    return seen;
  }

  const test::temporary_directory made_;
  roots where_;
};

/// Execs a shell that waits, with `tag` as its AMD_QUEUE_TAG (empty: none).
std::function<int(int)> tagged(const std::string& tag) {
  return [tag](int said) {
    // The descriptor closes with the exec, which so says that it has happened.
    ::fcntl(said, F_SETFD, FD_CLOEXEC);
    if (tag.empty())
      ::unsetenv("AMD_QUEUE_TAG");
    else
      ::setenv("AMD_QUEUE_TAG", tag.c_str(), 1);
    ::execl("/bin/sleep", "sleep", "60", nullptr);
    return 1;
  };
}
void wait_for_exec(const family& target) { test::wait_for_exec(target, "sleep"); }

process_identity identity(pid_t pid) { return identity_of(pid).value(); }

TEST_F(NodeScanner, SeesGpusAndNotTheCpuNode) {
  node_scanner scanner{where_, {}, -1};
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
TEST_F(NodeScanner, TakesNobodyByHalfAPictureWhenDescriptorsRunOut) {
  const family target{tagged("ONLINE_AI")};
  wait_for_exec(target);
  roles::classification_rules rules;
  rules.by_cgroup = {{"/*", role::offline}};
  for (rlim_t more = 0; more <= 6; ++more) {
    std::vector<std::string> said;
    node_scanner scanner{where_, rules, -1,
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

TEST_F(NodeScanner, SeesAGpuThatAppears) {
  node_scanner scanner{where_, {}, -1};
  look(scanner);
  write("topology/nodes/2/gpu_id", "22136\n");
  write("topology/generation_id", "2\n");
  EXPECT_THAT(look(scanner), ElementsAre("gpu 22136"));
}

TEST_F(NodeScanner, FollowsAProcessAndItsQueues) {
  family target{tagged("OFFLINE_AI")};
  wait_for_exec(target);
  node_scanner scanner{where_, {}, -1};
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

TEST_F(NodeScanner, TellsAQueueFromTheNextOneUnderItsId) {
  family target{tagged("")};
  wait_for_exec(target);
  add_process(target.pid());
  add_queue(target.pid(), 0);
  node_scanner scanner{where_, {}, -1};
  look(scanner);
  // Recreated beside the old one, so that the file system cannot give it the old one's inode.
  const std::string queues = process(target.pid()) + "/queues/";
  std::filesystem::rename(queues + "0", where_.sysfs + "/old");
  add_queue(target.pid(), 0, 1);
  EXPECT_THAT(look(scanner), ElementsAre("queue 0 gone", "queue 0 on 4660 other"));
  EXPECT_THAT(look(scanner), IsEmpty());
}

int execs_when_told(int said, int told) {
  (void)!::write(said, "r", 1);
  char go = 0;
  if (::read(told, &go, 1) != 1) return 1;
  ::setenv("AMD_QUEUE_TAG", "OFFLINE_AI", 1);
  ::execl("/bin/sleep", "sleep", "60", nullptr);
  return 1;
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
class NodeScannerOfMany : public NodeScanner {
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

TEST_F(NodeScannerOfMany, SeesAtOnceThatAnyGotOrLostAQueue) {
  start_tagged("OFFLINE_AI");
  node_scanner scanner{where_, {}, -1};
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

TEST_F(NodeScannerOfMany, SeesAQueueInAnothersPlaceWhenItsProcessHasItsTurn) {
  start_tagged("OFFLINE_AI");
  node_scanner scanner{where_, {}, -1};
  look(scanner);
  for (const auto& each : many_) replace_queue(each->pid());
  std::vector<std::string> seen;
  for (std::size_t looks = 0; looks * node_scanner::whole_looks < many_.size(); ++looks)
    for (auto& each : look(scanner)) seen.push_back(std::move(each));
  EXPECT_EQ(std::ranges::count(seen, "queue 0 gone"), std::ssize(many_));
  EXPECT_EQ(std::ranges::count(seen, "queue 0 on 4660 other"), std::ssize(many_));
}

// Nobody else tells of it, and there its pointers are to be looked at.
TEST_F(NodeScannerOfMany, SeesAtOnceAnOnlineQueueInAnothersPlace) {
  start_tagged("ONLINE_AI");
  node_scanner scanner{where_, {}, -1};
  look(scanner);
  for (const auto& each : many_) {
    replace_queue(each->pid());
    EXPECT_THAT(look(scanner), ElementsAre("queue 0 gone", "queue 0 on 4660 other"));
  }
}

// With the program the driver takes its directory away, and makes another.
TEST_F(NodeScannerOfMany, SeesAtOnceThatOneExeced) {
  start(execs_when_told);
  for (const auto& each : many_) ASSERT_EQ(each->heard(), 'r');
  node_scanner scanner{where_, {}, -1};
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

TEST_F(NodeScannerOfMany, SeesAtOnceWhatBecomesOfThoseWithoutQueues) {
  start(execs_when_told);
  for (const auto& each : many_) {
    ASSERT_EQ(each->heard(), 'r');
    remove(process(each->pid()) + "/queues/0");
  }
  node_scanner scanner{where_, {}, -1};
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

TEST_F(NodeScanner, WaitsForAQueueWhoseFilesAreNotThereYet) {
  family target{tagged("")};
  wait_for_exec(target);
  node_scanner scanner{where_, {}, -1};
  std::filesystem::create_directories(process(target.pid()) + "/queues/3");
  look(scanner);
  EXPECT_THAT(look(scanner), IsEmpty());
  add_queue(target.pid(), 3);
  EXPECT_THAT(look(scanner), ElementsAre("queue 3 on 4660 compute"));
}

TEST_F(NodeScanner, HonoursTheTagOfAnAllowedUserOnly) {
  family online{tagged("ONLINE_AI")};
  wait_for_exec(online);
  add_process(online.pid());
  node_scanner trusting{where_, {}, -1};
  look(trusting);
  EXPECT_THAT(all(trusting), ElementsAre("begin", "gpu 4660", "process online", "end"));
  node_scanner distrusting{where_, {.may_claim_online = {.users = {::getuid() + 1}}}, -1};
  look(distrusting);
  EXPECT_THAT(all(distrusting), ElementsAre("begin", "gpu 4660", "process unmatched", "end"));
}

TEST_F(NodeScanner, LeavesAnUnknownTagUnmatched) {
  family target{tagged("BEST_EFFORT")};
  wait_for_exec(target);
  add_process(target.pid());
  node_scanner scanner{where_, {}, -1};
  EXPECT_THAT(look(scanner), ElementsAre("gpu 4660", "process unmatched"));
}

TEST_F(NodeScanner, PrefersWhatWasSaidExplicitly) {
  family target{tagged("ONLINE_AI")};
  wait_for_exec(target);
  add_process(target.pid());
  node_scanner scanner{where_, {.by_process = {{identity(target.pid()), role::offline}}}, -1};
  EXPECT_THAT(look(scanner), ElementsAre("gpu 4660", "process offline"));
}

// The pid's next owner has another start time, and nothing of what was said of the one before.
TEST_F(NodeScanner, GivesARecycledPidNothingOfWhatWasSaidOfItsFormerOwner) {
  family target{tagged("ONLINE_AI")};
  wait_for_exec(target);
  add_process(target.pid());
  process_identity former = identity(target.pid());
  --former.start_time;
  node_scanner registered{where_, {.by_process = {{former, role::offline}}}, -1};
  EXPECT_THAT(look(registered), ElementsAre("gpu 4660", "process online"));
  node_scanner untouched{where_, {.never_touch = {former}}, -1};
  EXPECT_THAT(look(untouched), ElementsAre("gpu 4660", "process online"));
}

TEST_F(NodeScanner, SaysWhoseRoleIsSaidAnew) {
  family target{tagged("ONLINE_AI")};
  wait_for_exec(target);
  add_queue(target.pid(), 0);
  node_scanner scanner{where_, {}, -1};
  EXPECT_THAT(look(scanner), ElementsAre("gpu 4660", "process online", "queue 0 on 4660 compute"));
  scanner.set_roles({{identity(target.pid()), role::offline}});
  EXPECT_THAT(look(scanner), ElementsAre("process offline"));
  EXPECT_THAT(look(scanner), IsEmpty());
  scanner.set_roles({});
  EXPECT_THAT(look(scanner), ElementsAre("process online"));
}

TEST_F(NodeScanner, KeepsASaidRoleThroughAnExec) {
  const std::string go = where_.sysfs + "/go";
  family target{[go](int said) {
    (void)!::write(said, "r", 1);
    while (::access(go.c_str(), F_OK) != 0) ::usleep(1000);
    ::setenv("AMD_QUEUE_TAG", "ONLINE_AI", 1);
    ::execl("/bin/sleep", "sleep", "60", nullptr);
    return 1;
  }};
  ASSERT_EQ(target.heard(), 'r');
  add_process(target.pid());
  node_scanner scanner{where_, {.by_process = {{identity(target.pid()), role::offline}}}, -1};
  EXPECT_THAT(look(scanner), ElementsAre("gpu 4660", "process offline"));
  write("go", "");
  wait_for_exec(target);
  EXPECT_THAT(look(scanner), ElementsAre("process offline"));
}

TEST_F(NodeScanner, NeverTouchesWhomItIsToldNotTo) {
  family target{tagged("OFFLINE_AI")};
  wait_for_exec(target);
  add_process(target.pid());
  node_scanner scanner{where_,
                       {.never_touch = {identity(target.pid())},
                        .by_process = {{identity(target.pid()), role::offline}}},
                       -1};
  EXPECT_THAT(look(scanner), ElementsAre("gpu 4660", "process unmatched"));
}

TEST_F(NodeScanner, NeverTakesItselfForOffline) {
  add_process(::getpid());
  node_scanner scanner{where_, {.by_process = {{identity(::getpid()), role::offline}}}, -1};
  EXPECT_THAT(look(scanner), ElementsAre("gpu 4660", "process unmatched"));
}

TEST_F(NodeScanner, ReadsTheRoleAgainAfterAnExec) {
  const std::string go = where_.sysfs + "/go";
  family target{[go](int said) {
    (void)!::write(said, "r", 1);
    while (::access(go.c_str(), F_OK) != 0) ::usleep(1000);
    ::setenv("AMD_QUEUE_TAG", "OFFLINE_AI", 1);
    ::execl("/bin/sleep", "sleep", "60", nullptr);
    return 1;
  }};
  ASSERT_EQ(target.heard(), 'r');
  add_process(target.pid());
  add_queue(target.pid(), 0);
  node_scanner scanner{where_, {}, -1};
  look(scanner);
  write("go", "");
  wait_for_exec(target);
  EXPECT_THAT(look(scanner),
              ElementsAre("queue 0 gone", "process offline", "queue 0 on 4660 compute"));
  EXPECT_THAT(look(scanner), IsEmpty());
}

// Its memory, which holds its environment, goes before it does: that looked like an exec into an
// empty environment, and the process lost its role.
TEST_F(NodeScanner, KeepsTheRoleOfAProcessThatIsExiting) {
  const family target{[](int) {
    ::setenv("AMD_QUEUE_TAG", "ONLINE_AI", 1);
    ::execlp("python3", "python3", "-c",
             "import threading, time; threading.Thread(target=time.sleep, args=(60,)).start()",
             nullptr);
    return 1;
  }};
  const pid_t pid = target.pid();
  pid_t second = 0;
  ASSERT_TRUE(eventually(patience, [&] {
    // Sanitizers have threads of their own before the exec.
    if (command_of(pid) != "python3") return false;
    (void)for_each_numbered_entry<pid_t>("/proc/" + std::to_string(pid) + "/task",
                                         [&](pid_t thread) { second = std::max(second, thread); });
    return second > pid;
  }));
  add_process(pid);
  add_queue(pid, 0);
  node_scanner scanner{where_, {}, -1};
  EXPECT_THAT(look(scanner), ElementsAre("gpu 4660", "process online", "queue 0 on 4660 compute"));
  // A thread that its tracer does not wait for keeps the process from being gone.
  ASSERT_EQ(::ptrace(PTRACE_SEIZE, second, nullptr, nullptr), 0);
  ::kill(pid, SIGKILL);
  ASSERT_TRUE(eventually(patience, [&] { return is_exiting(pid); }));
  const std::string memory = "/proc/" + std::to_string(pid) + "/statm";
  ASSERT_TRUE(eventually(patience, [&] { return std::ifstream{memory}.get() == '0'; }));
  EXPECT_THAT(look(scanner), IsEmpty());
  ASSERT_EQ(::waitpid(second, nullptr, __WALL), second);
  ASSERT_TRUE(eventually(patience, [&] { return look(scanner).size() == 2; }));
}

// Early in an exec there is no environment yet.
TEST_F(NodeScanner, KeepsTheRoleOfAProcessThatExecsAgainAndAgain) {
  const family target{[](int) {
    ::setenv("AMD_QUEUE_TAG", "ONLINE_AI", 1);
    ::execl("/bin/sh", "sh", "-c", R"(exec /bin/sh -c "$0" "$0")", R"(exec /bin/sh -c "$0" "$0")",
            nullptr);
    return 1;
  }};
  const pid_t pid = target.pid();
  ASSERT_TRUE(eventually(patience,
                         [&] { return command_of(pid) == "sh" && environment_end_of(pid) != 0; }));
  add_process(pid);
  add_queue(pid, 0);
  node_scanner scanner{where_, {}, -1};
  ASSERT_TRUE(eventually(patience, [&] {
    look(scanner);
    return std::ranges::count(all(scanner), "process online") == 1;
  }));
  for (int i = 0; i < 2000; ++i) {
    for (const std::string& each : look(scanner)) ASSERT_NE(each, "process unmatched") << i;
  }
}

TEST_F(NodeScanner, SeesAnExitThoughTheDirectoryIsStillThere) {
  auto target = std::make_unique<family>(tagged("OFFLINE_AI"));
  wait_for_exec(*target);
  const pid_t pid = target->pid();
  add_process(pid);
  add_queue(pid, 0);
  const unique_fd exits{::epoll_create1(0)};
  node_scanner scanner{where_, {}, exits.get()};
  look(scanner);
  target.reset();
  epoll_event event{};
  ASSERT_EQ(::epoll_wait(exits.get(), &event, 1, 5000), 1);
  const std::uint64_t exited =
      event.data.u64;  // epoll_event is packed; a reference would be misaligned
  EXPECT_EQ(exited, static_cast<std::uint64_t>(pid));
  EXPECT_THAT(look(scanner), ElementsAre("queue 0 gone", "process gone"));
  EXPECT_THAT(look(scanner), IsEmpty());
  EXPECT_EQ(::epoll_wait(exits.get(), &event, 1, 0), 0) << "its descriptor is still watched";
}

TEST_F(NodeScanner, RestatesWhatItKnows) {
  family target{tagged("OFFLINE_AI")};
  wait_for_exec(target);
  add_queue(target.pid(), 7);
  node_scanner scanner{where_, {}, -1};
  look(scanner);
  EXPECT_THAT(all(scanner), ElementsAre("begin", "gpu 4660", "process offline",
                                        "queue 7 on 4660 compute", "end"));
}

/// mqds with one compute queue of that process; `pointers` is where its amd_queue_t is.
std::string mqds_text(pid_t pid, std::uint32_t ring_page, unsigned priority,
                      std::uint32_t pointers = 0) {
  return test::mqds_text(pid, {.ring_base = std::uint64_t{ring_page} << 8U,
                               .priority = priority,
                               .read_pointer = pointers == 0 ? 0U : pointers + 0x80U,
                               .write_pointer = pointers == 0 ? 0U : pointers + 0x38U});
}

TEST_F(NodeScanner, LetsQueuesVoteByRingAndPriority) {
  family target{tagged("")};
  wait_for_exec(target);
  where_.debugfs = where_.sysfs + "/debug";
  add_queue(target.pid(), 0);
  write("debug/mqds", mqds_text(target.pid(), 0x1000, 11));
  roles::classification_rules rules{.queue_priority = true};
  node_scanner online{where_, rules, -1};
  EXPECT_THAT(look(online), ElementsAre("gpu 4660", "process online", "queue 0 on 4660 compute"));
  rules.by_ring = {{0x100000, 0x100000, role::offline}};
  node_scanner offline{where_, rules, -1};
  EXPECT_THAT(look(offline), ElementsAre("gpu 4660", "process offline", "queue 0 on 4660 compute"));
}

// Reading it takes every process's lock in the driver.
TEST_F(NodeScanner, ReadsMqdsOnlyWhenQueuesComeAndGo) {
  family target{tagged("")};
  wait_for_exec(target);
  where_.debugfs = where_.sysfs + "/debug";
  add_queue(target.pid(), 0);
  write("debug/mqds", mqds_text(target.pid(), 0x1000, 11));
  node_scanner scanner{where_, {.queue_priority = true}, -1};
  look(scanner);
  write("debug/mqds", mqds_text(target.pid(), 0x1000, 7));
  EXPECT_THAT(look(scanner), IsEmpty());
  add_queue(target.pid(), 1, 1);
  EXPECT_THAT(look(scanner), ElementsAre("process unmatched", "queue 1 on 4660 other"));
}

// For them alone, and only when somebody wants to know.
TEST_F(NodeScanner, FindsThePointersOfOnlineQueuesInMqds) {
  family online{tagged("ONLINE_AI")};
  family offline{tagged("OFFLINE_AI")};
  for (const family* each : {&online, &offline}) {
    wait_for_exec(*each);
    add_queue(each->pid(), 0);
  }
  where_.debugfs = where_.sysfs + "/debug";
  write("debug/mqds",
        mqds_text(online.pid(), 0x1000, 7, 0x20000) + mqds_text(offline.pid(), 0x2000, 7, 0x30000));
  node_scanner scanner{where_, {}, -1};
  look(scanner);
  const online_queue hidden{.gpu = gpu_id{4660}};
  ASSERT_EQ(scanner.online().size(), 1U);
  EXPECT_THAT(scanner.online()[0].queues, ElementsAre(hidden)) << "nobody wanted to know";
  scanner.want_pointers(true);
  EXPECT_THAT(look(scanner), IsEmpty());
  const auto seen = scanner.online();
  ASSERT_EQ(seen.size(), 1U);
  EXPECT_EQ(seen[0].who, identity(online.pid()));
  const online_queue found{gpu_id{4660}, {0x20080, 0x20038}, 0x100000, true};
  EXPECT_THAT(seen[0].queues, ElementsAre(found));
  // Not read again before a queue of an online process comes or goes.
  write("debug/mqds", mqds_text(online.pid(), 0x1000, 7, 0x40000));
  add_queue(offline.pid(), 1);
  look(scanner);
  EXPECT_EQ(scanner.online(), seen);
  // And until it shows all that sysfs does.
  add_queue(online.pid(), 1);
  look(scanner);
  const online_queue moved{gpu_id{4660}, {0x40080, 0x40038}, 0x100000, true};
  ASSERT_THAT(scanner.online()[0].queues, ElementsAre(moved, hidden));
  EXPECT_NE(scanner.online()[0].change, seen[0].change);
  write("debug/mqds",
        mqds_text(online.pid(), 0x1000, 7, 0x40000) + mqds_text(online.pid(), 0x3000, 7, 0x50000));
  look(scanner);
  const online_queue second{gpu_id{4660}, {0x50080, 0x50038}, 0x300000, true};
  EXPECT_THAT(scanner.online()[0].queues, ElementsAre(moved, second));
}

TEST_F(NodeScanner, SaysOnceThatItCannotFindPointers) {
  family online{tagged("ONLINE_AI")};
  wait_for_exec(online);
  add_queue(online.pid(), 0);
  where_.debugfs = where_.sysfs + "/missing";
  int said = 0;
  node_scanner scanner{where_, {}, -1, [&](std::string_view line) {
                         ++said;
                         EXPECT_NE(line.find("/missing/mqds"), line.npos) << line;
                       }};
  scanner.want_pointers(true);
  EXPECT_EQ(said, 1) << "at once, whether there is an online process or not";
  for (int looks = 0; looks < 3; ++looks) look(scanner);
  EXPECT_EQ(said, 1);
  EXPECT_EQ(scanner.online()[0].queues.size(), 1U);
}

// To another user, tags show nothing; that this is so shows.
TEST_F(NodeScanner, SaysOnceThatEnvironmentsAreHiddenFromIt) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  family target{tagged("OFFLINE_AI")};
  wait_for_exec(target);
  add_queue(target.pid(), 0);
  add_queue(::getpid(), 0);
  family agent{tagged("")};
  wait_for_exec(agent);
  add_process(agent.pid());
  std::filesystem::permissions(where_.sysfs, std::filesystem::perms{0755});
  const auto known = identity(target.pid());
  const auto self = identity(::getpid());
  const std::string name =
      "(for example process " + std::to_string(std::min(target.pid(), ::getpid())) + ", ";
  family other{[&](int said) {
    if (::setresgid(64003, 64003, 64003) != 0 || ::setresuid(64003, 64003, 64003) != 0) return 1;
    std::vector<std::string> lines;
    node_scanner scanner{where_, {}, -1, [&](std::string_view line) { lines.emplace_back(line); }};
    for (int looks = 0; looks < 3; ++looks) look(scanner);
    const bool right =
        lines.size() == 1 &&
        lines[0].starts_with("cannot read the environment of 2 processes that use a GPU " + name);
    // Roles that come from elsewhere want no environment.
    node_scanner told{where_, {}, -1, [&](std::string_view line) { lines.emplace_back(line); }};
    told.set_roles({{known, role::offline}, {self, role::offline}});
    look(told);
    const bool silent = lines.size() == 1;
    if (!right || !silent) {
      for (const std::string& line : lines) std::fprintf(stderr, "%s\n", line.c_str());
    }
    (void)!::write(said, right && silent ? "y" : "n", 1);
    return 0;
  }};
  EXPECT_EQ(other.heard(), 'y');
}

// Its tag, which another user cannot see, says that it is online.
TEST_F(NodeScanner, TakesNobodyForOfflineWhoMayClaimToBeOnlineUnseen) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  family target{tagged("ONLINE_AI")};
  wait_for_exec(target);
  add_process(target.pid());
  std::filesystem::permissions(where_.sysfs, std::filesystem::perms{0755});
  const auto role_for_another = [&](roles::claim_grant online) {
    const family other{[&](int said) {
      if (::setresgid(64003, 64003, 64003) != 0 || ::setresuid(64003, 64003, 64003) != 0) return 1;
      node_scanner scanner{
          where_, {.may_claim_online = online, .by_cgroup = {{"/", role::offline}}}, -1};
      const auto seen = look(scanner);
      for (const auto& [line, letter] :
           {std::pair{"process offline", "o"}, {"process unmatched", "u"}, {"process online", "a"}})
        if (std::ranges::find(seen, line) != seen.end()) (void)!::write(said, letter, 1);
      return 0;
    }};
    return other.heard();
  };
  EXPECT_EQ(role_for_another({.users = {::getuid()}}), 'u');
  EXPECT_EQ(role_for_another({}), 'o') << "its word does not count anyway";
}

// sysfs shows a queue a moment before or after mqds does.
TEST_F(NodeScanner, LooksAgainWhenMqdsDoesNotShowAQueueYet) {
  family target{tagged("")};
  wait_for_exec(target);
  where_.debugfs = where_.sysfs + "/debug";
  add_queue(target.pid(), 0);
  write("debug/mqds", "");
  node_scanner scanner{where_, {.by_ring = {{0, ~0ULL, role::offline}}}, -1};
  EXPECT_THAT(look(scanner),
              ElementsAre("gpu 4660", "process unmatched", "queue 0 on 4660 compute"));
  write("debug/mqds", mqds_text(target.pid(), 0x1000, 7));
  EXPECT_THAT(look(scanner), ElementsAre("process offline"));
}

TEST_F(NodeScanner, SaysOnceThatItCannotReadMqdsAndNothingWithoutARule) {
  family target{tagged("")};
  wait_for_exec(target);
  where_.debugfs = where_.sysfs + "/missing";
  add_queue(target.pid(), 0);
  int said = 0;
  const message_sink say = [&](std::string_view words) {
    EXPECT_NE(words.find("/missing/mqds"), words.npos) << words;
    ++said;
  };
  node_scanner without{where_, {}, -1, say};
  look(without);
  EXPECT_EQ(said, 0);
  node_scanner with{where_, {.queue_priority = true}, -1, say};
  look(with);
  add_queue(target.pid(), 1);
  look(with);
  EXPECT_EQ(said, 1);
}

TEST_F(NodeScanner, IsNotReadableWithoutATree) {
  roots nowhere;
  nowhere.sysfs = where_.sysfs + "/missing";
  EXPECT_FALSE((node_scanner{nowhere, {}, -1}.readable()));
}

}  // namespace
}  // namespace sluice::kfd::node_scanner_test
