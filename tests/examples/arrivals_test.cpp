#include "options.hpp"
#include "scheduling_options.hpp"
#include "serving_options.hpp"
#include "workload.hpp"

#include <chrono>
#include <sstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sluice/duration_text.hpp"

namespace sluice::demo_tests::arrivals_test {
namespace {

using namespace std::chrono_literals;
using demo::arrivals;
using demo::checked;

checked<arrivals> read(const std::string& text) {
  std::istringstream in(text);
  return demo::read_trace(in, "t.csv");
}

const std::string header = "TIMESTAMP,ContextTokens,GeneratedTokens\n";

TEST(Trace, ReadsRowsWithFractionsAndEitherLineEnd) {
  const auto seen = read(
      "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
      "2023-11-16 23:59:59.9799600,4808,10\r\n"
      "2023-11-17 00:00:00,110,27\n"
      "2023-11-17 00:00:01.5,7433,14");
  ASSERT_TRUE(seen.has_value()) << seen.error().message;
  ASSERT_EQ(seen->requests.size(), 3u);
  EXPECT_EQ(seen->requests[0].at, 0ns);
  EXPECT_EQ(seen->requests[0].context_tokens, 4808u);
  EXPECT_EQ(seen->requests[0].generated_tokens, 10u);
  EXPECT_EQ(seen->requests[1].at, 20'040'000ns);
  EXPECT_EQ(seen->requests[2].at, 1'520'040'000ns);
  EXPECT_EQ(seen->window, seen->requests[2].at + 1ns);
}

struct malformed {
  std::string text;
  std::string message;
};

class MalformedTrace : public testing::TestWithParam<malformed> {};

TEST_P(MalformedTrace, NamesFileLineColumnAndReason) {
  const auto seen = read(GetParam().text);
  ASSERT_TRUE(seen.has_error());
  EXPECT_THAT(seen.error().message, testing::HasSubstr(GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(
    All, MalformedTrace,
    testing::Values(
        malformed{"", "t.csv:1:1: the file is empty"},
        malformed{"TIMESTAMP,Context\n", "t.csv:1:18: the first line must be TIMESTAMP,"},
        malformed{header, "t.csv:2:1: the file has no request"},
        malformed{header + "2023-11-16 18:17:03.97,1,1\n\n", "t.csv:3:1: the date must be"},
        malformed{header + "2023-13-16 18:17:03,1,1\n", "t.csv:2:6: the date must be"},
        malformed{header + "2023-02-29 18:17:03,1,1\n", "t.csv:2:9: the day must exist"},
        malformed{header + "2023-11-16T18:17:03,1,1\n", "t.csv:2:11: a space"},
        malformed{header + "2023-11-16 24:17:03,1,1\n", "t.csv:2:12: the time must be"},
        malformed{header + "2023-11-16 18:17:03.,1,1\n", "t.csv:2:21: the fraction"},
        malformed{header + "2023-11-16 18:17:03.1234567890,1,1\n", "t.csv:2:21: the fraction"},
        malformed{header + "2023-11-16 18:17:03.9999999999999999999999,1,1\n",
                  "t.csv:2:21: the fraction"},
        malformed{header + "2023-11-16 18:17:03;1,1\n", "t.csv:2:20: a comma"},
        malformed{header + "2023-11-16 18:17:03,-1,1\n", "t.csv:2:21: ContextTokens"},
        malformed{header + "2023-11-16 18:17:03,1\n", "t.csv:2:22: a comma must follow Cont"},
        malformed{header + "2023-11-16 18:17:03,1,\n", "t.csv:2:23: GeneratedTokens"},
        malformed{header + "2023-11-16 18:17:03,1,99999999999\n", "t.csv:2:23: GeneratedTokens"},
        malformed{header + "2023-11-16 18:17:03,1,1,1\n", "t.csv:2:24: unexpected text"},
        malformed{header + "2023-11-16 18:17:03,0,0\n", "t.csv:2:1: the request has no tokens"},
        malformed{header + "2023-11-16 18:17:03,1,1\n2023-11-16 18:17:02,1,1\n",
                  "t.csv:3:1: the timestamp is earlier"}));

TEST(Trace, ThatDoesNotExistIsNamed) {
  const auto seen = demo::read_trace_file("/nonexistent/trace.csv");
  ASSERT_TRUE(seen.has_error());
  EXPECT_EQ(seen.error().message, "cannot open /nonexistent/trace.csv: No such file or directory");
}

// `--trace /dev/zero` read without limit.
TEST(Trace, ThatIsOneEndlessLineIsRefused) {
  const auto seen = demo::read_trace_file("/dev/zero");
  ASSERT_TRUE(seen.has_error());
  EXPECT_EQ(seen.error().message, "/dev/zero:1:65537: the line is longer than 64 KiB");
  EXPECT_EQ(read(header + std::string(65536, 'x') + "\n").error().message,
            "t.csv:2:1: the date must be YYYY-MM-DD");
  EXPECT_EQ(read(header + std::string(65537, 'x') + "\n").error().message,
            "t.csv:2:65537: the line is longer than 64 KiB");
  EXPECT_EQ(read(header + std::string(65537, 'x')).error().message,
            "t.csv:2:65537: the line is longer than 64 KiB");
}

TEST(Trace, ThatIsADirectoryIsSaidToBeOne) {
  EXPECT_EQ(demo::read_trace_file("/tmp").error().message, "cannot read /tmp: Is a directory");
}

/// What the option refuses a value with; "" when it takes it.
std::string complaint(const std::string& option, const std::string& value) {
  demo::arrival_options arrivals;
  demo::serving_options serving;
  demo::scheduling_options scheduling;
  CLI::App app;
  arrivals.add_to(app);
  serving.add_to(app);
  scheduling.add_to(app, "");
  std::vector<std::string> backwards{value, option};
  try {
    app.parse(backwards);
  } catch (const CLI::ParseError& wrong) {
    return wrong.what();
  }
  return "";
}

// `--speedup nan` printed garbage, `--online-load nan` ended in std::length_error.
TEST(Options, RefuseNumbersOutOfTheirRange) {
  for (const char* option :
       {"--speedup", "--online-load", "--seed", "--most-active", "--window", "--attach-after",
        "--slice", "--decode-kernel", "--prefill-kernel", "--host-gap", "--drain-limit"}) {
    for (const char* value :
         {"nan", "inf", "-inf", "-1", "1e999", "18446744073709551616", "3x", ""}) {
      EXPECT_THAT(complaint(option, value), testing::StartsWith(std::string(option) + ": "))
          << option << " '" << value << "'";
    }
  }
  EXPECT_EQ(complaint("--speedup", "nan"),
            "--speedup: invalid number 'nan': expected a number from 0.001 to 1000");
  EXPECT_EQ(complaint("--window", "0"), "--window: invalid duration '0': expected 10ms to 1h");
  EXPECT_EQ(complaint("--prefill-kernel", "0us"),
            "--prefill-kernel: invalid duration '0us': expected 1us to 1s");
  EXPECT_EQ(complaint("--seed", "18446744073709551615"), "");
  EXPECT_EQ(complaint("--speedup", "0.5"), "");
}

// Zero is a value like another: attach at once, not "what the configuration says".
TEST(Options, PassOnThatTheyWereGivenZero) {
  demo::scheduling_options given;
  given.attach_after = 0s;
  EXPECT_THAT(given.arguments(), testing::IsSupersetOf({"--attach-after", "0ns"}));
  EXPECT_EQ(complaint("--attach-after", "0s"), "");
}

arrivals at(std::initializer_list<std::chrono::milliseconds> times) {
  arrivals made;
  for (const auto when : times) made.requests.push_back({when, 10, 1});
  made.window = made.requests.back().at + 1ns;
  return made;
}

TEST(Busiest, TakesTheFirstOfTheFullestStretches) {
  const arrivals cut = demo::busiest(at({0ms, 500ms, 1000ms, 1400ms, 1999ms, 3000ms, 3100ms}), 1s);
  EXPECT_EQ(cut.window, 1s);
  ASSERT_EQ(cut.requests.size(), 3u);
  EXPECT_EQ(cut.requests[0].at, 0ms);
  EXPECT_EQ(cut.requests[2].at, 900ms);
}

// The end is open: with [0, 1 s) the request at 1 s belongs to the next stretch.
TEST(Busiest, LeavesOutWhatArrivesAtItsEnd) {
  EXPECT_EQ(demo::busiest(at({0ms, 1000ms, 2500ms}), 1s).requests.size(), 1u);
}

TEST(Busiest, KeepsAShorterTraceWhole) {
  EXPECT_EQ(demo::busiest(at({0ms, 100ms}), 1s).requests.size(), 2u);
}

TEST(SpeedUp, DividesGapsAndWindowButNotTheWork) {
  const arrivals fast = demo::speed_up(demo::busiest(at({0ms, 400ms, 2000ms}), 1s), 2);
  EXPECT_EQ(fast.window, 500ms);
  EXPECT_EQ(fast.requests[1].at, 200ms);
  EXPECT_EQ(fast.requests[1].context_tokens, 10u);
}

TEST(Generate, GivesTheSameArrivalsForTheSameSeed) {
  const arrivals one = demo::generate(7, 4s);
  const arrivals two = demo::generate(7, 4s);
  const arrivals other = demo::generate(8, 4s);
  ASSERT_EQ(one.requests.size(), two.requests.size());
  for (std::size_t i = 0; i < one.requests.size(); ++i) {
    EXPECT_EQ(one.requests[i].at, two.requests[i].at);
    EXPECT_EQ(one.requests[i].generated_tokens, two.requests[i].generated_tokens);
  }
  EXPECT_NE(one.requests[1].at, other.requests[1].at);
}

// What makes the default a fair demonstration: silence in which offline work can run.
TEST(Generate, LeavesSilencesOfSeveralHundredMilliseconds) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    const arrivals made = demo::generate(seed, 4s);
    EXPECT_GE(made.requests.size(), 50u);
    int silences = 0;
    for (std::size_t i = 1; i < made.requests.size(); ++i) {
      ASSERT_LE(made.requests[i - 1].at, made.requests[i].at);
      if (made.requests[i].at - made.requests[i - 1].at >= 350ms) ++silences;
      EXPECT_GE(made.requests[i].generated_tokens, 4u);
      EXPECT_LE(made.requests[i].generated_tokens, 32u);
    }
    EXPECT_GE(silences, 2);
  }
}

TEST(ScaleToLoad, MakesAllWorkTheAskedShareOfTheWindow) {
  const arrivals work = demo::generate(3, 4s);
  const demo::token_costs costs = demo::scale_to_load(work, 0.4);
  const demo::token_totals all = demo::totals(work);
  const auto gpu_time = static_cast<double>(all.context) * costs.prefill +
                        static_cast<double>(all.generated) * costs.decode;
  EXPECT_NEAR(std::chrono::duration<double>(gpu_time).count(), 1.6, 1e-9);
  EXPECT_NEAR(costs.decode / costs.prefill, demo::decode_weight, 1e-9);
}

TEST(OfflineLoad, DrawsWithinWhatItsDescriptionSays) {
  demo::kernel_stream long_kernels(demo::shape_of(demo::load_kind::long_kernels), 1);
  demo::kernel_stream training(demo::shape_of(demo::load_kind::training), 1);
  for (int i = 0; i < 10'000; ++i) {
    const auto big = long_kernels.next();
    ASSERT_GE(big.length, 20ms);
    ASSERT_LE(big.length, 200ms);
    ASSERT_EQ(big.occupancy, 1.0);
    const auto small = training.next();
    ASSERT_GE(small.length, 10us);
    ASSERT_LE(small.length, 5ms);
    ASSERT_GE(small.occupancy, 0.25);
    ASSERT_LE(small.occupancy, 1.0);
    const auto gap = training.next_gap();
    ASSERT_GE(gap, 500us);
    ASSERT_LE(gap, 1500us);
  }
}

TEST(Duration, ReadsUnitsAndRefusesTheRest) {
  EXPECT_EQ(*demo::parse_duration("300us", 0ns), 300us);
  EXPECT_EQ(*demo::parse_duration("1.5 s", 0ns), 1500ms);
  EXPECT_EQ(*demo::parse_duration("8", 1s), 8s);
  EXPECT_EQ(demo::parse_duration("8", 0ns).error().message,
            "duration '8' needs a unit (ns, us, ms, s, min, h)");
  EXPECT_TRUE(demo::parse_duration("fast", 1s).has_error());
  EXPECT_EQ(demo::parse_duration("-1s", 1s).error().message,
            "invalid duration '-1s': expected 0 or more");
  EXPECT_TRUE(demo::parse_duration("3 parsecs", 1s).has_error());
  EXPECT_TRUE(demo::parse_duration("nan", 1s).has_error());
  EXPECT_TRUE(demo::parse_duration("1e300s", 1s).has_error());
}

TEST(Duration, SurvivesTheWayThroughAnArgument) {
  for (const demo::duration each :
       {demo::duration{0}, demo::duration{1}, demo::duration{300us}, demo::duration{20ms},
        demo::duration{4s}, demo::duration{4s + 1ns}}) {
    EXPECT_EQ(*demo::parse_duration(sluice::to_text(each), 0ns), each);
  }
}

}  // namespace
}  // namespace sluice::demo_tests::arrivals_test
