#include "sluice/policy_registry.hpp"

#include <unistd.h>

#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <memory>
#include <stdexcept>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sluice/policies/all.hpp"

namespace sluice::policy_registry_test {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;

policy_registry everything() {
  policy_registry registry;
  for (policy_kind& kind : all_policies()) registry.add(std::move(kind));
  return registry;
}

class Parameters : public testing::Test {
 protected:
  std::string check() { return check_parameters(schema_, values_); }

  const std::vector<parameter> schema_{
      parameter::span("slice", 20ms, 1ms, 1h, "a span"),
      parameter::span("slice_of.*", 20ms, 1ms, 1h, "spans"),
      parameter::number("share", 0.5, 0, 1, "a number"),
      parameter::count("depth", 4, 1, 8, "a count"),
      parameter::flag("loud", false, "a flag"),
      parameter::text("mode", "x", "a text"),
      parameter::span("ttft.p99", 0ms, 1ms, 1h, "a target").but_optional()};
  parameters values_;
};

TEST_F(Parameters, FillInDefaults) {
  EXPECT_EQ(check(), "");
  EXPECT_EQ(values_.span("slice"), 20ms);
  EXPECT_EQ(values_.number("share"), 0.5);
  EXPECT_EQ(values_.count("depth"), 4);
  EXPECT_FALSE(values_.flag("loud"));
  EXPECT_EQ(values_.text("mode"), "x");
  EXPECT_FALSE(values_.has("ttft.p99"));
  EXPECT_FALSE(values_.has("slice_of.*"));
}

TEST_F(Parameters, TakeTextForSpansAndWholeNumbersForNumbers) {
  values_.set("slice", std::string("250ms"));
  values_.set("share", std::int64_t{1});
  EXPECT_EQ(check(), "");
  EXPECT_EQ(values_.span("slice"), 250ms);
  EXPECT_EQ(values_.number("share"), 1.0);
}

// Symptom: "std::get: wrong index for variant" and "map::at" were all that a policy's author read.
TEST_F(Parameters, SayWhichWasAskedForAsWhat) {
  EXPECT_EQ(check(), "");
  const auto said = [&](auto ask) -> std::string {
    try {
      ask();
    } catch (const std::logic_error& thrown) {
      return thrown.what();
    }
    return "nothing";
  };
  EXPECT_EQ(said([&] { values_.text("slice"); }),
            "parameter \"slice\" was requested as a text, but it is a span");
  EXPECT_EQ(said([&] { values_.number("depth"); }),
            "parameter \"depth\" was requested as a number, but it is a count");
  EXPECT_EQ(said([&] { values_.flag("nonesuch"); }), "parameter \"nonesuch\" has no value");
}

TEST_F(Parameters, BelowAPrefixAreListed) {
  values_.set("slice_of.51110", std::string("5ms"));
  EXPECT_EQ(check(), "");
  int seen = 0;
  values_.for_each_below("slice_of", [&](std::string_view key, const parameter_value& value) {
    ++seen;
    EXPECT_EQ(key, "51110");
    EXPECT_EQ(std::get<duration>(value), 5ms);
  });
  EXPECT_EQ(seen, 1);
}

TEST_F(Parameters, NameKeyValueAndRangeOfAProblem) {
  const auto problem = [&](std::string key, parameter_value value) {
    parameters given;
    given.set(std::move(key), std::move(value));
    return check_parameters(schema_, given);
  };
  EXPECT_EQ(problem("slice", 2h), "slice is 2h; it must be 1ms to 1h");
  EXPECT_EQ(problem("slice_of.1", 2h), "slice_of.1 is 2h; it must be 1ms to 1h");
  EXPECT_EQ(problem("slice", std::string("soon")),
            "slice is \"soon\"; it must be a duration with a unit, such as \"20ms\": 1ms to 1h");
  EXPECT_EQ(problem("slice", std::int64_t{20}),
            "slice is 20; it must be a duration with a unit, such as \"20ms\": 1ms to 1h");
  EXPECT_EQ(problem("share", 1.5), "share is 1.5; it must be 0 to 1");
  EXPECT_EQ(problem("share", std::nan("")), "share is nan; it must be 0 to 1");
  EXPECT_EQ(problem("depth", 2.5), "depth is 2.5; it must be a whole number, 1 to 8");
  EXPECT_EQ(problem("loud", std::int64_t{1}), "loud is 1; it must be true or false");
  EXPECT_EQ(problem("mode", true), "mode is true; it must be a string");
  EXPECT_THAT(problem("slices", 5ms), HasSubstr("slices is not a parameter of this policy; its "
                                                "parameters are slice, slice_of.*, share"));
}

TEST(PolicyRegistry, MakesWhatWasAddedByName) {
  std::string message;
  const auto made = everything().make("fixed_timeslice", {}, message);
  ASSERT_TRUE(made) << message;
  EXPECT_EQ((*made)->name(), "fixed_timeslice/client_done");
}

TEST(PolicyRegistry, SaysWhatItKnowsWhenItDoesNotKnowAName) {
  std::string message;
  EXPECT_EQ(everything().make("nonesuch", {}, message).error(), errc::unknown_target);
  EXPECT_THAT(message, HasSubstr("unknown policy 'nonesuch'; available: "));
  EXPECT_THAT(message, HasSubstr("fixed_timeslice"));
}

TEST(PolicyRegistry, EveryPolicyIsMadeFromItsDefaultsOrSaysWhatItNeeds) {
  const policy_registry registry = everything();
  for (const auto name : registry.names()) {
    std::string message;
    const auto made = registry.make(name, {}, message);
    EXPECT_NE(made.has_value(), !message.empty()) << name << ": " << message;
    EXPECT_FALSE(registry.find(name)->summary.empty()) << name;
    for (const auto& one : registry.find(name)->schema) EXPECT_FALSE(one.help.empty()) << one.key;
  }
}

TEST(PolicyRegistry, WrapsOneThatIsGivenTheOtherParameters) {
  const auto registry = everything();
  std::string message;
  parameters values;
  values.set("of", std::string("fixed_timeslice"));
  values.set("release", std::string("slice_end"));
  const auto made = registry.make("shadow", values, message);
  ASSERT_TRUE(made) << message;
  EXPECT_EQ((*made)->name(), "shadow/fixed_timeslice/slice_end");

  values.set("slice", 2h);
  EXPECT_EQ(registry.make("shadow", values, message).error(), errc::bad_config);
  EXPECT_EQ(message, "slice is 2h; it must be 1us to 1h");
  EXPECT_EQ(registry.make("shadow", {}, message).error(), errc::bad_config);
  EXPECT_THAT(
      message,
      HasSubstr(
          "the parameter 'of' is missing; it must name the policy that shadow wraps; available: "));
  values.set("of", std::string("shadow"));
  EXPECT_EQ(registry.make("shadow", values, message).error(), errc::bad_config);
  EXPECT_THAT(message, HasSubstr("the parameter 'of' is \"shadow\"; it must name the policy"));
}

class LoadPolicy : public testing::Test {
 protected:
  result<std::unique_ptr<policy>> load(const std::string& content) {
    std::ofstream(path_) << content;
    return load_policy(everything(), path_, "fixed_timeslice", message_, &text_);
  }
  ~LoadPolicy() override { std::filesystem::remove(path_); }

  const std::string path_ = (std::filesystem::temp_directory_path() /
                             ("sluice_policy_" + std::to_string(getpid()) + ".toml"))
                                .string();
  std::string message_;
  std::string text_;
};

TEST_F(LoadPolicy, SaysItAsACommandLineDoesWithEveryParameter) {
  ASSERT_TRUE(load("[policy]\nslice = \"5ms\"\n")) << message_;
  EXPECT_EQ(text_, "fixed_timeslice:release=client_done,slice=5ms");
  ASSERT_TRUE(load("")) << message_;
  EXPECT_EQ(text_, "fixed_timeslice:release=client_done,slice=20ms");
  ASSERT_TRUE(load("[policy]\nname = \"shadow\"\nof = \"fixed_timeslice\"\nslice = \"1ms\"\n"));
  EXPECT_EQ(text_, "shadow:of=fixed_timeslice,slice=1ms");
}

TEST_F(LoadPolicy, TakesNameAndParameters) {
  const auto made = load("[policy]\nname = \"fixed_timeslice\"\nrelease = \"slice_end\"\n");
  ASSERT_TRUE(made) << message_;
  EXPECT_EQ((*made)->name(), "fixed_timeslice/slice_end");
}

// Symptom: a mistyped [polcy] left a node with the default policy, and said nothing.
TEST_F(LoadPolicy, RefusesWhatNoReaderOfTheFileKnows) {
  EXPECT_EQ(load("[roles]\nstore = \"\"\n\n[polcy]\nslice = \"5ms\"\n").error(), errc::bad_config);
  EXPECT_EQ(message_, path_ +
                          ":4: unknown table 'polcy'; available: [scheduler], "
                          "[policy], [roles], [daemon]");
  EXPECT_EQ(load("zeal = 1\nmax_suspend = \"1s\"\n[policy]\n").error(), errc::bad_config);
  EXPECT_THAT(message_, HasSubstr(":1: unknown table 'zeal'"));
  EXPECT_TRUE(load("scheduler.min_run = \"1s\"\n[roles]\nstore = \"\"\n")) << message_;
  EXPECT_FALSE(load("[gpus]\nx = 1\n"));
  EXPECT_TRUE(load_policy(everything(), path_, "fixed_timeslice", message_, nullptr, {"gpus"}))
      << message_;
}

TEST_F(LoadPolicy, IsMadeAsOftenAsIsWanted) {
  const auto read = [&](const std::string& content) {
    std::ofstream(path_) << content;
    std::vector<std::string> problems;
    auto done = read_policy(everything(), path_, problems);
    if (!done) message_ = problems.front();
    return done;
  };
  const auto chosen = read("[policy]\nname = \"fixed_timeslice\"\nslice = \"5ms\"\n");
  ASSERT_TRUE(chosen && *chosen) << message_;
  EXPECT_EQ((*chosen)->text, "fixed_timeslice:release=client_done,slice=5ms");
  EXPECT_NE((*chosen)->make(), nullptr);
  EXPECT_NE((*chosen)->make(), nullptr);
  const auto none = read("[scheduler]\nmin_run = \"1s\"\n");
  EXPECT_TRUE(none && !*none) << message_;
  EXPECT_FALSE(read("[policy]\nname = \"fixed_timeslice\"\nslice = 5\n"));
  EXPECT_THAT(message_, HasSubstr(path_ + ":3: slice is 5; it must be a duration"));
  EXPECT_FALSE(read("\n[policy]\nslice = \"5ms\"\n"));
  EXPECT_EQ(message_, path_ + ":2: [policy] has neither name nor plugin; set one of them");
  EXPECT_FALSE(load_policy(everything(), path_, {}, message_));
  std::ofstream(path_) << "[scheduler]\n";
  EXPECT_FALSE(load_policy(everything(), path_, {}, message_));
  EXPECT_EQ(message_, path_ + ": the table [policy] is missing; add it, with name or plugin");
}

TEST_F(LoadPolicy, IsTheGivenOneWithoutTheTable) {
  const auto made = load("[scheduler]\nmin_run = \"1s\"\n");
  ASSERT_TRUE(made) << message_;
  EXPECT_EQ((*made)->name(), "fixed_timeslice/client_done");
}

// What `sluice accept` measured, of the dearer GPU, and beside it what is said by hand.
TEST_F(LoadPolicy, TakesCostsFromAMeasuredProfile) {
  const std::string profile = path_ + ".profile";
  const auto said = [&](const std::string& text) { std::ofstream(profile) << text; };
  const std::string slo = "[policy]\nname = \"slo\"\nrequest.p99 = \"1s\"\nprofile = \"" +
                          std::filesystem::path(profile).filename().string() + "\"\n";
  said(
      "[measured]\nsimulated = true\n"
      "[[gpu]]\nsuspend_cost = \"2ms\"\nresume_cost = \"7ms\"\n"
      "[[gpu]]\nsuspend_cost = \"3ms\"\nresume_cost = \"6ms\"\n");
  ASSERT_TRUE(load(slo)) << message_;
  EXPECT_EQ(text_, "slo:offline=0,request.p99=1s,resume_cost=7ms,suspend_cost=3ms");
  ASSERT_TRUE(load(slo + "resume_cost = \"1ms\"\n")) << message_;
  EXPECT_THAT(text_, HasSubstr("resume_cost=1ms,suspend_cost=3ms"));
  // By a command line, and under another policy.
  parameters values;
  values.set("request.p99", 1s);
  values.set("profile", profile);
  EXPECT_TRUE(everything().make("slo", values, message_)) << message_;
  values.set("of", std::string("slo"));
  EXPECT_TRUE(everything().make("shadow", values, message_)) << message_;

  const std::string costs = "[[gpu]]\nsuspend_cost = \"2ms\"\nresume_cost = \"7ms\"\n";
  said("[measured]\naccepted = true\n" + costs);
  EXPECT_TRUE(load(slo)) << message_;
  said("[measured]\naccepted = false\n" + costs);
  EXPECT_EQ(load(slo).error(), errc::bad_config);
  EXPECT_THAT(message_, HasSubstr(":4: profile " + profile + " contains accepted = false: a step"));
  said("[measured]\naccepted = \"yes\"\n" + costs);
  EXPECT_FALSE(load(slo));
  EXPECT_THAT(message_, HasSubstr(profile + ":2: accepted must be true or false"));

  said("[[gpu]]\nsuspend_cost = \"3min\"\n");
  EXPECT_EQ(load(slo).error(), errc::bad_config);
  EXPECT_EQ(message_, path_ + ":4: profile " + profile +
                          ":2: suspend_cost must be a duration in quotes, from 1us to 10s");
  EXPECT_FALSE(everything().make("slo", values, message_));
  said("[[gpu]]\ngpu_id = 5\n");
  EXPECT_FALSE(load(slo));
  EXPECT_THAT(message_, HasSubstr(profile + " contains no costs: no [[gpu]] has suspend_cost"));
  std::filesystem::remove(profile);
  EXPECT_FALSE(load(slo));
  EXPECT_EQ(message_,
            path_ + ":4: profile " + profile +
                ": cannot be read: No such file or directory; a relative path is relative "
                "to the configuration's folder");
  EXPECT_FALSE(everything().make("slo", values, message_));
  EXPECT_EQ(message_, "profile " + profile + ": cannot be read: No such file or directory");
  EXPECT_FALSE(load("[policy]\nname = \"fixed_timeslice\"\nprofile = \"x\"\n"));
  EXPECT_THAT(message_, HasSubstr(":3: profile is not a parameter of this policy"));
}

TEST_F(LoadPolicy, NamesFileLineKeyValueAndRange) {
  EXPECT_EQ(load("[policy]\n\nslice = \"2h\"\n").error(), errc::bad_config);
  EXPECT_EQ(message_, path_ + ":3: slice is 2h; it must be 1us to 1h");
  EXPECT_FALSE(load("[policy]\nname = \"nonesuch\"\n"));
  EXPECT_THAT(message_, HasSubstr(path_ + ":1: unknown policy 'nonesuch'; available: "));
  const std::string targets = "ttft.p99 = \"400ms\"\nitl.p99 = \"60ms\"\noffline = 0.1\n";
  EXPECT_TRUE(load("[policy]\nname = \"slo\"\n" + targets)) << message_;
  EXPECT_TRUE(load("[policy]\nname = \"shadow\"\nof = \"slo\"\n" + targets)) << message_;
  EXPECT_FALSE(load("[policy]\nname = \"slo\"\n"));
  EXPECT_EQ(message_, path_ +
                          ":1: slo requires a target; set at least one of request.p99, ttft.p99, "
                          "itl.p99");
  EXPECT_FALSE(load("[policy]\nname = \"shadow\"\nof = \"slo\"\nrequest.p99 = \"1us\"\n"));
  EXPECT_EQ(message_, path_ + ":4: request.p99 is 1us; it must be 100us to 10min");
  EXPECT_FALSE(load("[policy]\nname = 5\n"));
  EXPECT_THAT(message_, HasSubstr(":2: name must be a policy's name in quotes"));
  EXPECT_FALSE(load("[policy]\nslice = [1]\n"));
  EXPECT_THAT(message_, HasSubstr(":2: a parameter must be a string, a number, true or false"));
  EXPECT_FALSE(load("policy = 5\n"));
  EXPECT_THAT(message_, HasSubstr(":1: policy must be a table: [policy]"));
  EXPECT_FALSE(load("[policy]\nrelease = \"never\"\n"));
  EXPECT_THAT(message_, HasSubstr(":2: release is \"never\"; it must be client_done or slice_end"));
}

}  // namespace
}  // namespace sluice::policy_registry_test
