#include "status_view.hpp"

#include <algorithm>
#include <cerrno>
#include <string>

#include <boost/json.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace sluice::cli::status_view_test {
namespace {

namespace json = boost::json;
using testing::ContainsRegex;
using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

json::object parsed(std::string_view text) { return json::parse(text).as_object(); }

json::object decision(std::string_view what, std::string_view rule, std::string_view event = "") {
  return {{"decision", what},
          {"time_unix_ms", 1000},
          {"event", event},
          {"rule", rule},
          {"policy", "fair_share"},
          {"commands", json::array{json::object{{"command", "suspend"},
                                                {"gpu_id", 51110},
                                                {"queues", 1},
                                                {"outcome", "done"},
                                                {"ms", 5.0}}}}};
}
json::object answer(json::array decisions, bool acts = true) {
  return {{"time_unix_ms", 2000},
          {"why", json::object{{"state", "held"},
                               {"sentence", "process 1 is so"},
                               {"acts", acts},
                               {"role_why", "offline by AMD_QUEUE_TAG=OFFLINE_AI"},
                               {"decisions", std::move(decisions)}}}};
}

TEST(WhyText, SaysTheSentenceFirstAndTheNewestDecisionLast) {
  EXPECT_THAT(why_text(answer({decision("held", "policy", "client 'a' began work on GPU 51110"),
                               decision("forced", "max_suspend")}),
                       10),
              ContainsRegex("^process 1 is so\nrole: offline by AMD_QUEUE_TAG=OFFLINE_AI\n"
                            "[0-9:.]+ +1.0s ago  policy fair_share suspended it: client 'a' began "
                            "work on GPU 51110; suspend 1 queue on GPU 51110: done in 5.0ms\n"
                            "[0-9:.]+ +1.0s ago  forced to run: it reached the limit max_suspend; "
                            "suspend [^\n]*\n$"));
}

TEST(WhyText, SaysThatTheDriverSuspendedNothing) {
  const auto refused = [](std::string_view outcome, int error, int invalid) {
    auto made = decision("held", "policy");
    auto& command = made.at("commands").as_array().front().as_object();
    command["outcome"] = outcome;
    command["errno"] = error;
    command["queues"] = 8;
    command["invalid"] = invalid;
    return made;
  };
  EXPECT_THAT(
      why_text(answer({refused("failed", EPERM, 8)}), 10),
      HasSubstr("policy fair_share requested a suspend, but no queue was suspended; suspend "
                "8 queues on GPU 51110: refused: sluice may not suspend this process; the "
                "daemon's log has the reason\n"));
  EXPECT_THAT(
      why_text(answer({refused("partly", 0, 8)}), 10),
      HasSubstr("no queue was suspended; suspend 8 queues on GPU 51110: refused: the driver "
                "does not know these queues"));
  // Some of them may be suspended.
  EXPECT_THAT(why_text(answer({refused("partly", 0, 7)}), 10),
              HasSubstr("policy fair_share suspended it; suspend 8 queues on GPU 51110: partly"));
  EXPECT_THAT(why_text(answer({refused("failed", EIO, 0)}), 10),
              HasSubstr("policy fair_share suspended it"));
}

TEST(WhyText, ShowsOnlyTheLastOnes) {
  json::array many;
  for (int i = 0; i < 5; ++i) many.push_back(decision("held", "policy"));
  many.push_back(decision("let_go", "expired"));
  const std::string text = why_text(answer(many), 2);
  EXPECT_THAT(text, HasSubstr("\n4 earlier decisions are not shown; --last 0 shows all\n"));
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 5);
  EXPECT_THAT(text, HasSubstr("resumed: the hold that the policy requested expired"));
  EXPECT_THAT(why_text(answer(many), 0), Not(HasSubstr("earlier")));
}

TEST(WhyText, SaysWouldWhereTheDaemonOnlyObserves) {
  const std::string text =
      why_text(answer({decision("held", "policy"), decision("forced", "max_suspend"),
                       json::object{{"decision", "attach"}, {"pid", 7}, {"outcome", "done"}}},
                      false),
               10);
  EXPECT_THAT(text, HasSubstr("  policy fair_share would suspend it; would suspend 1 queue on "
                              "GPU 51110\n"));
  EXPECT_THAT(text, HasSubstr("  would be forced to run: it reached the limit max_suspend"));
  EXPECT_THAT(text, EndsWith("  would attach process 7\n"));
  EXPECT_THAT(text, Not(HasSubstr("done")));
}

json::object status() {
  return parsed(R"({"time_unix_ms":10000,
    "node":{"mode":"enforce","acts":true,"backend_up":true,"policy":"fair_share","policy_text":"fair_share"},
    "gpus":[{"gpu_id":51110,"ordinal":3,"pci":"0000:c1:00.0","slots":24,"breaker_open":false}],
    "groups":[{"group":1,"role":"offline","state":"suspended","held":true,"manageable":true,
               "gpus":[51110],"name":"train","compute_queues":1,"suspended_queues":1,
               "processes":[{"pid":77,"role_bar":"none"}]}],
    "clients":[{"client":1,"name":"llama","pid":19143,"busy":true,"busy_since_unix_ms":6800},
               {"client":2,"name":"own","pid":null,"busy":false}],
    "statistics":{"decision":{"count":1,"p50_ms":0.3,"p99_ms":2.6},"failures":{"gpus_lost":1}}})");
}

TEST(StatusText, NamesGpusAsTheOtherCommandsDo) {
  const std::string text = status_text(status(), 0);
  EXPECT_THAT(text, ContainsRegex("\nGPU  GPU_ID  PCI  +SLOTS"));
  EXPECT_THAT(text, ContainsRegex("\n  3   51110  0000:c1:00.0 +24 "));
  EXPECT_THAT(text, ContainsRegex("\ng1 +offline +77  train +held +- +3 "));
  EXPECT_THAT(gpu_table(status(), gpu_columns::few, 0), Not(HasSubstr("0000:c1")));
  EXPECT_THAT(text, HasSubstr("online arrival to commands sent p50/p99 0.30/2.60 ms\n"));
  EXPECT_THAT(text, HasSubstr("failures: 1 GPU lost\n"));
}

TEST(StatusText, ShowsUnknownNumbersOfQueuesAsADash) {
  json::object unlisted = status();
  auto& gpu = unlisted["gpus"].as_array()[0].as_object();
  gpu["online_queues"] = nullptr;
  gpu["offline_queues"] = 0;
  gpu["suspended_queues"] = 0;
  auto& group = unlisted["groups"].as_array()[0].as_object();
  group["role"] = "unmatched";
  group["compute_queues"] = nullptr;
  group["suspended_queues"] = 0;
  const std::string text = status_text(unlisted, 0);
  EXPECT_THAT(text, ContainsRegex("\n  3   51110  0000:c1:00.0 +24 +- +0 +0 "));
  EXPECT_THAT(text, ContainsRegex("\ng1 +- +77  train +held +- +3 +- +- "))
      << "it is listed, because it uses a GPU";
}

TEST(StatusText, SaysWhetherWorkWithoutAClientIsSeen) {
  const auto lines = [](std::string_view state) {
    json::object made = status();
    made["node"].as_object()["unmarked_work"] = state;
    return status_text(made, 0);
  };
  EXPECT_THAT(lines("seen"), HasSubstr("\nonline work without a client: seen\n"));
  EXPECT_THAT(lines("hidden"), HasSubstr("cannot be seen; run 'sluice doctor'\n"));
  EXPECT_THAT(lines("unwatched"), HasSubstr("not looked at while nothing is offline\n"));
  EXPECT_THAT(lines("ends_hidden"), HasSubstr("not all of its ends; if that lasts, see the log\n"));
  EXPECT_THAT(lines("ignored"), Not(HasSubstr("without a client")));
}

TEST(StatusText, SaysThatNoClientAnnouncesTheWorkOfAnOnlineProgram) {
  json::object made = status();
  made["node"].as_object()["unmarked_work"] = "ignored";
  made["clients"] = json::array{};
  EXPECT_THAT(status_text(made, 0), Not(HasSubstr("without a client")));
  made["groups"].as_array()[0].as_object()["role"] = "online";
  EXPECT_THAT(status_text(made, 0),
              HasSubstr("without a client: ignored; set see_unmarked = true"));
}

TEST(StatusText, SaysWhoClientsAreAndSinceWhenTheyAreBusy) {
  EXPECT_EQ(clients_line(status()), "clients: 2 (llama pid 19143 busy for 3.2s, own)");
}

TEST(StatusText, SaysWhatToDoAboutAnOpenBreaker) {
  json::object broken = status();
  EXPECT_TRUE(breaker_lines(broken).empty());
  auto& gpu = broken["gpus"].as_array()[0].as_object();
  gpu["breaker_open"] = true;
  gpu["breaker_cause"] = "it was reset";
  gpu["breaker_until_unix_ms"] = 70000;
  EXPECT_THAT(
      status_text(broken, 0),
      ContainsRegex(
          "\nbreaker of GPU 3 \\(gpu_id 51110\\) is open: it was reset; sluice suspends nothing on "
          "this GPU until [0-9:.]+ \\(in 60.0s\\); when the GPU works "
          "again, run 'sluice breaker rearm 51110'\n"));
}

TEST(StatusText, SaysThatNothingIsHeldWhereItOnlyObserves) {
  json::object observing = status();
  observing["node"].as_object()["mode"] = "observe";
  observing["node"].as_object()["acts"] = false;
  const std::string text = status_text(observing, 0);
  EXPECT_THAT(text, HasSubstr("mode observe (suspends nothing), up "));
  EXPECT_THAT(text, ContainsRegex("\ng1 +offline +77  train +would be held "));
}

TEST(StatusText, SaysThatAShadowHoldsNothing) {
  json::object shadow = status();
  shadow["node"].as_object()["policy"] = "shadow/fair_share";
  EXPECT_THAT(status_text(shadow, 0),
              HasSubstr("mode enforce (but policy shadow suspends nothing), up "));
}

TEST(StatusText, SaysWhyAnOfflineProcessIsNotTouched) {
  json::object released = status();
  auto& group = released["groups"].as_array()[0].as_object();
  group["role"] = "unmatched";
  group["held"] = false;
  group["processes"].as_array()[0].as_object()["role_bar"] = "released";
  EXPECT_THAT(status_text(released, 0), ContainsRegex("\ng1 +released +77 "));
  EXPECT_EQ(role_words("unmatched", "gang_incomplete"), "gang");
  EXPECT_EQ(role_words("unmatched", "none"), "-");
}

TEST(StatusText, SaysWhetherTargetsAreKept) {
  json::object served = status();
  served["spans"] = parsed(R"({"all":[
      {"span":"request","count":200,"p99_ms":12.5,"target_ms":20,"kept":true},
      {"span":"ttft","count":200,"p99_ms":12.5,"target_ms":10,"kept":false},
      {"span":"itl","count":3,"p99_ms":12.5,"target_ms":10,"kept":null}]})")["all"];
  const std::string text = status_text(served, 0);
  EXPECT_THAT(text,
              HasSubstr("\ntarget: request p99 12.50 of 20 ms, kept (200 spans in the last "));
  EXPECT_THAT(text, HasSubstr("\ntarget: ttft p99 12.50 of 10 ms, MISSED (200 "));
  EXPECT_THAT(text, HasSubstr("\ntarget: itl p99 12.50 of 10 ms (3 "));
}

TEST(FleetTable, HasALineOfWordsForEachNode) {
  const auto line = [](const json::object& of) {
    const std::string text = fleet_table({{"a", "", of}}, 0);
    return text.substr(text.find('\n') + 1);
  };
  json::object one = status();
  one["node"].as_object()["driver"] = "kfd";
  EXPECT_THAT(line(one), ContainsRegex("^a +enforce +1 +kfd +[^ ]+ +[0-9]+% +1/1 +- +- +[^ ]+\n$"));
  one["gpus"].as_array()[0].as_object()["breaker_open"] = true;
  one["spans"] = parsed(R"({"all":[{"span":"request","target_ms":20,"kept":null}]})")["all"];
  EXPECT_THAT(line(one), ContainsRegex(" 1/1 +\\? +51110 "));
  one["spans"].as_array()[0].as_object()["kept"] = true;
  EXPECT_THAT(line(one), HasSubstr(" kept "));
  one["spans"].as_array()[0].as_object()["kept"] = false;
  EXPECT_THAT(line(one), HasSubstr(" missed:request "));
  one["node"].as_object()["backend_up"] = false;
  EXPECT_THAT(line(one), StartsWith("a     no-agent "));
  one["node"].as_object()["paused"] = json::object{{"why", ""}};
  EXPECT_THAT(line(one), StartsWith("a     paused "));
  one["node"].as_object()["policy"] = "";
  EXPECT_THAT(line(one), ContainsRegex(" kfd +- +[0-9]+% "));
  one["node"].as_object()["driver_gone"] = true;
  EXPECT_THAT(line(one), StartsWith("a     driver-gone "));
  EXPECT_EQ(fleet_table({{"b\x1b", "why", {}}}, 0),
            "NODE  STATE      GPUS  DRIVER  POLICY  BUSY%  HELD  TARGET  BREAKERS  VERSION\n"
            "b?    no-answer     -  -       -           -     -  -       -         -\n");
}

// Another program's, perhaps of another version.
TEST(StatusText, TakesWhateverADaemonAnswers) {
  for (const char* text : {R"({})", R"({"gpus":[-5,{}],"groups":[{"gpus":[-5]}],"clients":[{}]})",
                           R"({"groups":[{"gpus":[1e300],"processes":[7]}],"clients":7})",
                           R"({"statistics":{"failures":{"gpus_lost":1e300,"x":-1}}})"}) {
    EXPECT_THAT(status_text(parsed(text), 80), StartsWith("sluice "));
    EXPECT_THAT(why_text(parsed(text), 1), HasSubstr("\n"));
    EXPECT_THAT(fleet_table({{"a", "", parsed(text)}}, 80), StartsWith("NODE "));
  }
}

}  // namespace
}  // namespace sluice::cli::status_view_test
