#include "control_desk.hpp"

#include "steered.hpp"

#include <unistd.h>

#include <filesystem>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <boost/json.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace sluice::test::control_desk_test {
namespace {

namespace json = boost::json;
using testing::ContainsRegex;
using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;

constexpr asker root{.pid = 1, .user = 0};
constexpr asker owner{.pid = 2, .user = 700};
constexpr asker other{.pid = 3, .user = 64003};

class ControlDesk : public testing::Test {
 protected:
  ControlDesk() { std::filesystem::create_directory(files_.directory); }
  ~ControlDesk() override { std::filesystem::remove_all(files_.directory); }

  json::object ask(const std::string& line, const asker& who = other) {
    const std::string text = desk_.answer(line, who);
    EXPECT_THAT(text, EndsWith("\n"));
    EXPECT_EQ(text.find('\n'), text.size() - 1) << "one line";
    json::object answer = json::parse(text).as_object();
    EXPECT_EQ(answer.at("version"), 1);
    return answer;
  }
  std::string code(const std::string& line, const asker& who = other) {
    const json::object answer = ask(line, who);
    const auto* const error = answer.if_contains("error");
    return error == nullptr ? "" : std::string(error->at("code").as_string());
  }
  json::object why() {
    return ask(R"({"version":1,"ask":"why","pid":4242})").at("why").as_object();
  }
  std::string state() { return std::string(why().at("state").as_string()); }
  std::string sentence() { return std::string(why().at("sentence").as_string()); }
  /// What is shown changes: the last look is not served again.
  template <class Change>
  void show(Change change) {
    change(node_.shown);
    std::this_thread::sleep_for(60ms);
  }
  group_picture& group() { return node_.shown.groups[0]; }

  const node_files files_{testing::TempDir() + "control_desk_" + std::to_string(::getpid())};
  std::vector<std::string> told_;
  fake_node node_;
  node_view node_view_;  ///< What a look at the node shows.
  history past_{name_of_test};
  script journal_{past_};
  control_desk desk_{{.files = files_,
                      .version = "9.9",
                      .owner = owner.user,
                      .look_at_memory = [this] { return result<node_view>(node_view_); },
                      .tell = [this](std::string_view line) { told_.emplace_back(line); }},
                     node_,
                     past_};
};

TEST_F(ControlDesk, RefusesWhatIsNoRequest) {
  for (const std::string& line :
       {std::string{},
        std::string{"hello"},
        std::string{"[]"},
        std::string{"{"},
        std::string{"{}"},
        std::string{"\0\xff", 2},
        std::string(4000, '['),
        std::string{R"({"version":"1","ask":"status"})"},
        std::string{R"({"version":2})"},
        std::string{R"({"version":1})"},
        std::string{R"({"version":1,"ask":7})"},
        std::string{R"({"version":1,"ask":"reboot"})"},
        std::string{R"({"version":1,"ask":"why"})"},
        std::string{R"({"version":1,"ask":"why","pid":-1})"},
        std::string{R"({"version":1,"ask":"why","pid":1e300})"},
        std::string{R"({"version":1,"ask":"why","pid":18446744073709551615})"},
        std::string{R"({"version":1,"ask":"why","pid":1,"group":1})"},
        std::string{R"({"version":1,"ask":"policy","use":{}})"},
        std::string{R"({"version":1,"ask":"policy","use":"a\nb"})"},
        std::string{R"({"version":1,"ask":"pause","why":"a\nb"})"}})
    EXPECT_THAT(code(line, root), ContainsRegex("^bad_(request|version)$")) << line;
  EXPECT_EQ(node_.changes, 0);
}

TEST_F(ControlDesk, ShowsTheNodeToEverybody) {
  journal_.process();
  journal_.begin();
  journal_.held();
  const json::object status = ask(R"({"version":1,"ask":"status"})");
  const auto& node = status.at("node").as_object();
  EXPECT_EQ(node.at("program_version"), "9.9");
  EXPECT_EQ(node.at("policy"), "fixed_timeslice");
  EXPECT_EQ(node.at("policy_text"), "fixed_timeslice:slice=20ms");
  EXPECT_EQ(node.at("policy_is_fallback"), false);
  EXPECT_EQ(node.at("simulated"), true);
  EXPECT_TRUE(node.at("paused").is_null());
  const auto& group = status.at("groups").at(0).as_object();
  EXPECT_EQ(group.at("group"), 1);
  EXPECT_EQ(group.at("processes").at(0).at("pid"), trainer_pid);
  EXPECT_GT(group.at("lost_ms").as_double(), 9000) << "since ten seconds ago";
  const auto& gpu = status.at("gpus").at(0).as_object();
  EXPECT_EQ(gpu.at("gpu_id"), 51110);
  EXPECT_EQ(gpu.at("offline_queues"), 2);
  EXPECT_GT(gpu.at("gained_ms").as_double(), 9000);
}

TEST_F(ControlDesk, SaysWhetherTargetsAreKept) {
  const auto spans = [&](int count) {
    for (int i = 0; i < count; ++i)
      journal_.put({.kind = journal_kind::span_end, .span = span_kind::request, .length = 7ms});
    show([](picture&) {});
    return ask(R"({"version":1,"ask":"status"})").at("spans").as_array();
  };
  EXPECT_TRUE(spans(0).empty());
  node_.policy = "slo:request.p99=10ms";
  EXPECT_TRUE(spans(99).at(0).at("kept").is_null()) << "too few";
  const auto kept = spans(1);
  EXPECT_EQ(kept.at(0).at("span"), "request");
  EXPECT_EQ(kept.at(0).at("count"), 100);
  EXPECT_EQ(kept.at(0).at("target_ms"), 10.0);
  EXPECT_EQ(kept.at(0).at("kept"), true);
  node_.policy = "slo:request.p99=5ms";
  EXPECT_EQ(spans(0).at(0).at("kept"), false);
  node_.policy = "fixed_timeslice:slice=20ms";
  EXPECT_TRUE(spans(0).at(0).at("target_ms").is_null());
}

// Symptom: a process counted as one with one queue, on a driver that does not list its queues.
TEST_F(ControlDesk, CountsNoQueuesThatAreNotListed) {
  process_picture serving{.id = process_id{9}, .pid = 4243, .start_time = 78};
  serving.what = role::online;
  serving.queues = {{.gpu = gpu_one, .compute = 1, .unlisted = true}};
  group_picture online{.id = group_id{9}, .what = role::online};
  online.processes.push_back(serving);
  node_.shown.groups.push_back(online);
  auto status = ask(R"({"version":1,"ask":"status"})");
  const auto& gpu = status.at("gpus").at(0);
  EXPECT_TRUE(gpu.at("online_queues").is_null());
  EXPECT_EQ(gpu.at("offline_queues"), 2);
  EXPECT_EQ(gpu.at("suspended_queues"), 0) << "no queue that is not listed is suspended";
  const auto& group = status.at("groups").at(1);
  EXPECT_TRUE(group.at("compute_queues").is_null());
  EXPECT_EQ(group.at("gpus"), json::array{51110}) << "it uses the GPU";
  const auto& queues = group.at("processes").at(0).at("queues").at(0);
  EXPECT_TRUE(queues.at("compute").is_null());
  EXPECT_TRUE(queues.at("others").is_null());
}

// Symptom: 0 bytes on a driver that shows no sizes of memory.
TEST_F(ControlDesk, ShowsUsedMemoryOnlyWhereTheDriverDoes) {
  const gpu_id second{7};
  node_.shown.gpus.push_back({.id = second});
  node_view_.gpus = {{.id = gpu_one}, {.id = second, .vram = 1000}};
  node_view_.processes.push_back({.pid = trainer_pid});
  const auto gpus = ask(R"({"version":1,"ask":"status"})").at("gpus").as_array();
  EXPECT_TRUE(gpus.at(0).at("vram_used_bytes").is_null());
  EXPECT_EQ(gpus.at(1).at("vram_used_bytes"), 0);
}

TEST_F(ControlDesk, SaysWhyAProcessIsHeld) {
  journal_.policy("fixed_timeslice");
  journal_.client("llama");
  journal_.process();
  journal_.begin();
  journal_.held();
  node_.shown.groups[0].held = true;
  node_.shown.groups[0].wanted_off = true;
  node_.shown.groups[0].wanted_until = clock::now() + 5s;
  node_.shown.groups[0].actual = run_state::suspended;
  const auto told = why();
  EXPECT_EQ(told.at("state"), "held");
  EXPECT_THAT(
      std::string(told.at("sentence").as_string()),
      ContainsRegex("^process 4242 \\(train\\) is held by policy fixed_timeslice since "
                    "[0-9:]+ \\([0-9.]+ s\\), for at most [45]\\.[0-9] s more unless the "
                    "policy renews the hold: client 'llama' has been busy on GPU 51110 for "));
  const auto& decision = told.at("decisions").at(0);
  EXPECT_EQ(decision.at("decision"), "held");
  EXPECT_EQ(decision.at("rule"), "policy");
  EXPECT_EQ(decision.at("commands").at(0).at("outcome"), "done");
  const auto by_group = ask(R"({"version":1,"ask":"why","group":1})").at("why").as_object();
  EXPECT_EQ(by_group.at("state"), "held");
  EXPECT_THAT(std::string(by_group.at("sentence").as_string()), HasSubstr("group g1 is held"));
}

// Symptom: the end of a hold that the policy renews was max_suspend after the last renewal.
TEST_F(ControlDesk, NamesTheEndByMaxSuspendOfARenewedHold) {
  journal_.process();
  journal_.held();
  show([](picture& seen) {
    seen.groups[0].held = true;
    seen.groups[0].wanted_until = clock::now() + 60s;
    seen.groups[0].must_run_at = clock::now() + 5s;
  });
  EXPECT_THAT(sentence(), ContainsRegex(", for at most [45]\\.[0-9] s more \\(max_suspend\\)"));
}

TEST_F(ControlDesk, SaysWhatIsSeenOfOnlineWorkAndForHowLong) {
  journal_.process();
  journal_.turn();
  journal_.put({.kind = journal_kind::busy, .gpu = gpu_one});
  journal_.held();
  const auto words = [&](online_work work, std::uint32_t waiting, duration waited, duration ran) {
    show([&](picture& seen) {
      seen.groups[0].held = true;
      gpu_picture& gpu = seen.gpus[0];
      gpu.work = work;
      gpu.online_waiting = waiting;
      gpu.online_waiting_since = waited == duration{} ? never : clock::now() - waited;
      gpu.online_running_since = ran == duration{} ? never : clock::now() - ran;
    });
    return sentence();
  };
  EXPECT_THAT(words(online_work::waiting, 3, 2s, {}),
              ContainsRegex("GPU 51110 for [0-9.]+ s \\(seen: submissions pending for "
                            "2\\.[0-9] s, 3 now\\)"));
  EXPECT_THAT(words(online_work::running, 0, {}, 3s),
              ContainsRegex("\\(seen: kernels running for 3\\.[0-9] s\\)"));
  EXPECT_THAT(words(online_work::waiting, 0, 2s, 3s),
              ContainsRegex("\\(seen: submissions pending for 2\\.[0-9] s; kernels running for "
                            "3\\.[0-9] s\\)"));
  EXPECT_THAT(
      words(online_work::consumed, 0, {}, {}),
      HasSubstr(" (seen: submissions, but not their ends; if that lasts, the log has the reason)"));
  EXPECT_THAT(words(online_work::finished, 0, {}, {}), Not(HasSubstr("seen: ")));
  const auto gpu = ask(R"({"version":1,"ask":"status"})").at("gpus").at(0).as_object();
  EXPECT_TRUE(gpu.at("online_waiting_since_unix_ms").is_null());
  EXPECT_TRUE(gpu.at("online_running_since_unix_ms").is_null());
}

TEST_F(ControlDesk, SaysWhetherWorkWithoutAClientIsSeen) {
  const auto words = [&](bool wanted, bool can, bool polls, online_work work) {
    show([&](picture& seen) {
      seen.see_unmarked = wanted;
      seen.polls_pointers = polls;
      seen.gpus[0].can_see_work = can;
      seen.gpus[0].work = work;
    });
    return ask(R"({"version":1,"ask":"status"})").at("node").at("unmarked_work");
  };
  EXPECT_EQ(words(false, true, false, online_work::unknown), "ignored");
  EXPECT_EQ(words(true, false, true, online_work::unknown), "hidden");
  EXPECT_EQ(words(true, true, false, online_work::unknown), "unwatched");
  EXPECT_EQ(words(false, true, true, online_work::running), "seen");
  EXPECT_EQ(words(true, true, true, online_work::consumed), "ends_hidden");
}

TEST_F(ControlDesk, SaysOfAnOnlineProcessWhatIsSeen) {
  journal_.process();
  show([](picture& seen) {
    seen.groups[0].what = seen.groups[0].processes[0].what = role::online;
    seen.gpus[0].online_running_since = clock::now() - 3s;
  });
  EXPECT_THAT(sentence(),
              ContainsRegex("online work is never held \\(seen: kernels running for [0-9.]+ s"));
}

TEST_F(ControlDesk, SaysWhyAProcessRuns) {
  journal_.process();
  EXPECT_EQ(sentence(),
            "process 4242 (train) is running: policy fixed_timeslice is not holding it");
  // Online work of a program that announces nothing.
  show([](picture& seen) {
    group_picture server = seen.groups[0];
    server.id = group_id{77};
    server.what = role::online;
    seen.groups.push_back(std::move(server));
  });
  EXPECT_THAT(sentence(), EndsWith("policy fixed_timeslice is not holding it; this policy detects "
                                   "only work that clients announce"));
  show([](picture& seen) { seen.polls_pointers = true; });
  EXPECT_THAT(sentence(), EndsWith("policy fixed_timeslice is not holding it"));
  show([](picture& seen) {
    seen.groups.pop_back();
    seen.policy.clear();
  });
  EXPECT_THAT(sentence(), HasSubstr("no policy is active"));
  node_.paused = true;
  ASSERT_EQ(code(R"({"version":1,"ask":"pause","why":"new disks"})", root), "");
  EXPECT_THAT(sentence(), EndsWith("is running: the node is paused: new disks"));
  node_.paused = false;

  journal_.decide(journal_kind::forced, journal_rule::max_suspend);
  show([](picture& seen) { seen.groups[0].forced = true; });
  EXPECT_EQ(state(), "forced");
  EXPECT_THAT(sentence(), HasSubstr("max_suspend forced it to run"));
  group().forced = false;

  show([](picture& seen) {
    seen.groups[0].manageable = false;
    seen.gpus[0].breaker_open = true;
  });
  EXPECT_EQ(state(), "unmanaged");
  EXPECT_THAT(sentence(), HasSubstr("the breaker of GPU 51110 is open"));
  show([](picture& seen) {
    seen.gpus[0].breaker_open = false;
    seen.groups[0].nodes = 2;
  });
  EXPECT_THAT(sentence(), HasSubstr("it is a gang on 2 nodes, which do not all answer and agree"));
  node_.without_gangs = true;
  EXPECT_THAT(sentence(), HasSubstr("it is a gang on 2 nodes, and sluice-gangs is not connected"));
  node_.without_gangs = false;
  show([](picture& seen) {
    seen.gpus[0].breaker_open = true;
    seen.groups[0].nodes = 1;
  });

  journal_.attached(error_code{EPERM, boost::system::system_category()});
  show([](picture& seen) {
    auto& process = seen.groups[0].processes[0];
    process.attach = attach_picture::none;
    process.attach_failures = 3;
  });
  EXPECT_THAT(sentence(), EndsWith("cannot be held: sluice cannot attach to process 4242: "
                                   "Operation not permitted (3 times in a row)"));

  for (const auto& [what, word] :
       {std::pair{role::online, "online"}, std::pair{role::unmatched, "unmatched"}}) {
    show([says = what](picture& seen) { seen.groups[0].processes[0].what = says; });
    EXPECT_EQ(state(), word);
  }
  show([](picture& seen) { seen.groups[0].processes[0].own = true; });
  EXPECT_EQ(state(), "own");
}

TEST_F(ControlDesk, SaysWhichRuleDecidedARole) {
  journal_.process();
  const auto give = [this](const roles::role_reason& why) {
    node_.reasons =
        std::make_shared<const roles::role_reasons>(roles::role_reasons{{{trainer_pid, 77}, why}});
    show([&](picture& seen) { seen.groups[0].what = seen.groups[0].processes[0].what = why.is; });
  };
  roles::role_reason tag{.is = role::offline,
                         .rule = roles::role_rule::tag,
                         .says = role::offline,
                         .detail = "AMD_QUEUE_TAG=OFFLINE_AI"};
  give(tag);
  EXPECT_EQ(why().at("role_why"), "offline by AMD_QUEUE_TAG=OFFLINE_AI");
  EXPECT_THAT(sentence(), Not(HasSubstr("AMD_QUEUE_TAG")));

  tag.is = role::unmatched;
  tag.bar = roles::role_bar::gang_incomplete;
  tag.ranks_seen = 1;
  tag.ranks = 2;
  give(tag);
  EXPECT_EQ(sentence(),
            "process 4242 (train) is running: offline by AMD_QUEUE_TAG=OFFLINE_AI, but its gang is "
            "not complete on this node (1 of 2 ranks); sluice does not suspend it");
  const auto status = ask(R"({"version":1,"ask":"status"})");
  const auto& process = status.at("groups").at(0).at("processes").at(0);
  EXPECT_EQ(process.at("role_rule"), "tag");
  EXPECT_EQ(process.at("role_bar"), "gang_incomplete");

  give({.is = role::online, .rule = roles::role_rule::store, .says = role::online});
  EXPECT_THAT(sentence(), HasSubstr("it is online by 'sluice role set', and"));
}

TEST_F(ControlDesk, SaysWhoKeepsAProcessFromBeingAttachedAndWhenItIsTriedAgain) {
  auto& traced = node_view_.processes.emplace_back();
  traced.pid = trainer_pid;
  traced.start_time = 77;
  traced.tracer = ::getpid();
  journal_.process();
  journal_.attached(error_code{EPERM, boost::system::system_category()});
  show([](picture& seen) {
    seen.groups[0].manageable = false;
    auto& process = seen.groups[0].processes[0];
    process.attach = attach_picture::none;
    process.attach_refused = true;
    process.attach_failures = 1;
    process.attach_again = clock::now() + 60s;
  });
  const std::string tracer = "traced by pid " + std::to_string(::getpid()) + " \\(";
  EXPECT_THAT(sentence(),
              ContainsRegex("cannot attach to process 4242: Operation not permitted: " + tracer +
                            "[^)]+\\); next attempt at [0-9:]+, in (59|60)\\.[0-9] s$"));
  const auto status = ask(R"({"version":1,"ask":"status"})");
  const auto& process = status.at("groups").at(0).at("processes").at(0).as_object();
  EXPECT_THAT(std::string(process.at("attach_failure").as_string()), ContainsRegex(tracer));
  EXPECT_THAT(std::string(process.at("attach_blocked_by").as_string()), HasSubstr("pid "));
  EXPECT_FALSE(process.at("attach_again_unix_ms").is_null());
  // The agent that holds it is nobody to blame.
  show([](picture& seen) {
    seen.groups[0].processes[0].attach = attach_picture::attached;
    seen.groups[0].processes[0].attach_failures = 0;
  });
  EXPECT_TRUE(ask(R"({"version":1,"ask":"status"})")
                  .at("groups")
                  .at(0)
                  .at("processes")
                  .at(0)
                  .at("attach_blocked_by")
                  .is_null());
}

TEST_F(ControlDesk, KnowsClientsThatUseNoGpu) {
  journal_.client("llama", 4300);
  node_.shown.clients.push_back({.id = client_id{5}, .name = "llama"});
  const auto explain = [this] {
    return ask(R"({"version":1,"ask":"why","pid":4300})").at("why").as_object();
  };
  EXPECT_EQ(explain().at("state"), "client");
  EXPECT_THAT(std::string(explain().at("sentence").as_string()), EndsWith("it is idle now"));
  journal_.begin();
  EXPECT_THAT(std::string(explain().at("sentence").as_string()),
              ContainsRegex("a client \\('llama'\\), .*; 'llama' has been busy on GPU 51110 for "));
  std::this_thread::sleep_for(60ms);
  const auto client = ask(R"({"version":1,"ask":"status"})").at("clients").at(0).as_object();
  EXPECT_EQ(client.at("pid"), 4300);
  EXPECT_EQ(client.at("busy"), true);
  EXPECT_FALSE(client.at("busy_since_unix_ms").is_null());
  journal_.turn();
  journal_.put({.kind = journal_kind::client_gone, .client = client_id{5}});
  EXPECT_EQ(code(R"({"version":1,"ask":"why","pid":4300})"), "unknown");
}

TEST_F(ControlDesk, SaysWhyABreakerIsOpenAndHowGpusAreNumbered) {
  auto& gpu_there = node_view_.gpus.emplace_back();
  gpu_there.id = gpu_one;
  gpu_there.ordinal = 3;
  gpu_there.pci = "0000:c1:00.0";
  journal_.process();
  journal_.turn();
  journal_.put({.kind = journal_kind::breaker_open, .cause = breaker_cause::reset, .gpu = gpu_one});
  show([](picture& seen) {
    seen.groups[0].manageable = false;
    seen.gpus[0].breaker_open = true;
    seen.gpus[0].breaker_until = clock::now() + 60s;
  });
  EXPECT_THAT(sentence(),
              ContainsRegex("breaker of GPU 51110 is open because the GPU was reset, until "
                            "[0-9:]+; 'sluice breaker rearm 51110' closes it"));
  const auto gpu = ask(R"({"version":1,"ask":"status"})").at("gpus").at(0).as_object();
  EXPECT_EQ(gpu.at("breaker_cause"), "the GPU was reset");
  EXPECT_EQ(gpu.at("ordinal"), 3);
  EXPECT_EQ(gpu.at("pci"), "0000:c1:00.0");
}

// One that an operator made online had gained nothing before that.
TEST_F(ControlDesk, CountsWhatAGroupGainsFromWhenItIsOnline) {
  constexpr group_id served{901};
  constexpr process_id server{801};
  const auto of_server = [&](role what) {
    journal_.turn();
    journal_.put({.kind = journal_kind::process,
                  .what = what,
                  .pid = 4243,
                  .process = server,
                  .group = served,
                  .start_time = 78});
  };
  journal_.process();
  of_server(role::offline);
  journal_.begin();
  journal_.held();
  journal_.turn(5s);
  of_server(role::online);
  journal_.turn(1s);
  process_picture process{.id = server, .pid = 4243, .start_time = 78};
  process.what = role::online;
  process.queues = {{.gpu = gpu_one, .compute = 1}};
  group_picture group{.id = served, .what = role::online};
  group.processes.push_back(process);
  node_.shown.groups.push_back(group);
  const auto status = ask(R"({"version":1,"ask":"status"})");
  const double on_gpu = status.at("gpus").at(0).at("gained_ms").as_double();
  const double gained = status.at("groups").at(1).at("gained_ms").as_double();
  EXPECT_GT(gained, 1000);
  EXPECT_NEAR(on_gpu - gained, 5000, 50);
}

TEST_F(ControlDesk, SaysWhatItWouldDoWhereItOnlyObserves) {
  journal_.process();
  journal_.begin();
  journal_.held();
  show([](picture& seen) {
    seen.acts = false;
    seen.groups[0].held = true;
  });
  EXPECT_EQ(state(), "would_be_held");
  EXPECT_THAT(sentence(), HasSubstr("would be held"));
  EXPECT_THAT(sentence(), EndsWith("the daemon only observes and suspends nothing"));
}

TEST_F(ControlDesk, KnowsWhoEndedAndNobodyElse) {
  journal_.process();
  journal_.begin();
  journal_.held();
  journal_.gone();
  node_.shown.groups.clear();
  EXPECT_EQ(sentence(), "process 4242 (train) has ended");
  EXPECT_EQ(why().at("decisions").as_array().size(), 1U);
  EXPECT_EQ(code(R"({"version":1,"ask":"why","pid":4243})"), "unknown");
  EXPECT_EQ(code(R"({"version":1,"ask":"why","group":77})"), "unknown");
  node_.broken = true;
  std::this_thread::sleep_for(60ms);
  EXPECT_EQ(code(R"({"version":1,"ask":"status"})"), "failed");
}

TEST_F(ControlDesk, LetsOnlyRootAndTheOwnerChangeAnything) {
  for (const char* const line :
       {R"({"version":1,"ask":"pause"})", R"({"version":1,"ask":"unpause"})",
        R"({"version":1,"ask":"policy","use":"fair_share"})"})
    EXPECT_EQ(code(line, other), "denied") << line;
  EXPECT_FALSE(paused_why(files_));
  EXPECT_EQ(node_.changes, 0);
  EXPECT_EQ(code(R"({"version":1,"ask":"policy"})", other), "") << "who may connect may look";

  EXPECT_EQ(code(R"({"version":1,"ask":"pause","why":"new disks"})", owner), "");
  EXPECT_EQ(paused_why(files_), "new disks");
  EXPECT_EQ(ask(R"({"version":1,"ask":"pause"})", root).at("before"), true);
  EXPECT_EQ(paused_why(files_), "new disks") << "a former reason stays";
  EXPECT_EQ(ask(R"({"version":1,"ask":"unpause"})", root).at("before"), true);
  EXPECT_EQ(ask(R"({"version":1,"ask":"unpause"})", root).at("before"), false);
  EXPECT_THAT(told_, testing::ElementsAre(
                         "user 700 (process 2) requested a pause pid=2 user=700",
                         "user 0 (process 1) requested the end of the pause pid=1 user=0"));

  const auto used = ask(R"({"version":1,"ask":"policy","use":"fair_share:a=1"})", owner);
  EXPECT_EQ(used.at("policy").at("text"), "fair_share:a=1");
  EXPECT_EQ(used.at("policy").at("by"), "user 700 (process 2)");
  EXPECT_EQ(code(R"({"version":1,"ask":"policy","use":"no_such"})", root), "refused");
}

TEST_F(ControlDesk, SaysOfWhichGroupAProcessIs) {
  journal_.process();
  show([](picture& seen) {
    seen.groups[0].processes.push_back({.id = process_id{801}, .pid = 4243});
  });
  EXPECT_THAT(sentence(), HasSubstr("process 4242 (train) in group g1 of 2 processes is running"));
}

TEST_F(ControlDesk, SaysThatAnotherPolicyDecidesThanWasAskedFor) {
  show([](picture& seen) {
    seen.policy = "something";
    seen.policy_is_fallback = true;
  });
  const auto told = ask(R"({"version":1,"ask":"policy"})").at("policy").as_object();
  EXPECT_EQ(told.at("text"), "fixed_timeslice:slice=20ms");
  EXPECT_EQ(told.at("decides"), "something");
  EXPECT_EQ(told.at("is_fallback"), true);
  const auto status = ask(R"({"version":1,"ask":"status"})");
  EXPECT_EQ(status.at("node").at("policy_is_fallback"), true);
  const auto used = ask(R"({"version":1,"ask":"policy","use":"fair_share"})", root);
  EXPECT_TRUE(used.at("policy").at("decides").is_null()) << "it has had no turn yet";
  EXPECT_EQ(ask(R"({"version":1,"ask":"status"})").at("node").at("policy_text"), "fair_share")
      << "what was kept of the former one is not served";
}

// A flood costs the scheduler a 20th of its time at most.
TEST_F(ControlDesk, LooksTheLessOftenTheLongerALookTakes) {
  node_.takes = 5ms;
  journal_.process();
  const time_point begin = clock::now();
  while (node_.looks < 3 && clock::now() - begin < 20s) {
    journal_.turn();
    journal_.begin();
    (void)ask(R"({"version":1,"ask":"status"})");
  }
  EXPECT_EQ(node_.looks, 3);
  EXPECT_LE(node_.looks, 1 + (clock::now() - begin) / 100ms);
}

// Each look is a turn of the scheduler.
TEST_F(ControlDesk, LooksOnceForWhoAsksOften) {
  const time_point begin = clock::now();
  for (int i = 0; i < 1000; ++i) (void)ask(R"({"version":1,"ask":"status"})");
  EXPECT_LE(node_.looks, 1 + (clock::now() - begin) / 50ms);
}

}  // namespace
}  // namespace sluice::test::control_desk_test
