// Random histories of a node, played to a whole scheduler in virtual time and judged by a reference
// model; what fails is made small and printed as a test.

#include "model/history.hpp"
#include "test_seed.hpp"

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <iostream>
#include <string>

#include <gtest/gtest.h>
#include <spdlog/sinks/null_sink.h>
#include <spdlog/spdlog.h>

namespace sluice::tests::model_test {
namespace {

constexpr std::size_t steps_of_history = 2000;
struct form {
  std::uint64_t drawn;  ///< Histories of the drawn seed.
  std::uint64_t fixed;  ///< Histories of fixed seeds.
};
form histories() {
  // With sanitizers a step takes fifteen times as long.
#if defined(SLUICE_SANITIZED)
  return test::long_tests() ? form{.drawn = 5, .fixed = 2} : form{.drawn = 1, .fixed = 2};
#else
  return test::long_tests() ? form{.drawn = 50, .fixed = 10} : form{.drawn = 4, .fixed = 4};
#endif
}
/// What is found by then is printed, small or not.
constexpr std::chrono::seconds shrink_limit{120};

class Model : public ::testing::Test {
 protected:
  // What goes wrong here on purpose is not worth thousands of lines.
  static void SetUpTestSuite() {
    spdlog::drop("sluice");
    spdlog::null_logger_mt("sluice");
  }
  static void TearDownTestSuite() { spdlog::drop("sluice"); }

  /// The fewest steps to a complaint of the same kind: another one would lead elsewhere.
  static steps make_small(const steps& all, const verdict& found,
                          model_driver::planted bug = model_driver::planted::none) {
    const std::string kind = found.complaint.substr(0, found.complaint.find(':') + 1);
    const auto give_up = std::chrono::steady_clock::now() + shrink_limit;
    return shrink({all.begin(), all.begin() + static_cast<std::ptrdiff_t>(found.at)},
                  [&](const steps& some) {
                    return std::chrono::steady_clock::now() < give_up &&
                           play(some, bug).complaint.starts_with(kind);
                  });
  }
  static void report(const steps& all, const verdict& found) {
    const steps least = make_small(all, found);
    FAIL() << found.complaint << "\nmade smaller, from " << found.at << " to " << least.size()
           << " steps: " << play(least).complaint << "\n  play({\n"
           << to_text(least) << "  })";
  }
};

struct sums {
  std::uint64_t commands = 0;
  std::uint64_t turns = 0;
  std::uint64_t overflows = 0;
  std::uint64_t forced = 0;
  std::uint64_t restarts = 0;
  std::uint64_t for_peers = 0;
  void add(const verdict& one) {
    commands += one.commands;
    turns += one.turns;
    overflows += one.overflows;
    forced += one.forced;
    restarts += one.restarts;
    for_peers += one.for_peers;
  }
};

/// No event is lost or doubled, every command makes sense, no limit is exceeded, no process stays
/// suspended.
TEST_F(Model, AgreesThroughRandomSteps) {
  const test::random_seed seed;
  for (std::uint64_t number = 0; number < histories().drawn; ++number) {
    const steps history = make_steps(seed.value() + number, steps_of_history);
    const verdict found = play(history);
    if (!found.well()) {
      std::cout << "SLUICE_TEST_SEED=" << seed.value() + number
                << " begins with the history that failed\n";
      return report(history, found);
    }
  }
}

/// The same histories in each run, so that a change shows at once.
TEST_F(Model, AgreesThroughHistoriesOfFixedSeeds) {
  // This seed's history and the next drop observations, and hold gangs for their peers.
  constexpr std::uint64_t first = 41;
  sums all;
  for (std::uint64_t seed = first; seed < first + histories().fixed; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const steps history = make_steps(seed, steps_of_history);
    const verdict found = play(history);
    if (!found.well()) return report(history, found);
    all.add(found);
  }
  std::printf(
      "%llu turns, %llu commands, %llu dropped observations, %llu forced resumes, %llu "
      "agent restarts, %llu suspends for peers\n",
      static_cast<unsigned long long>(all.turns), static_cast<unsigned long long>(all.commands),
      static_cast<unsigned long long>(all.overflows), static_cast<unsigned long long>(all.forced),
      static_cast<unsigned long long>(all.restarts),
      static_cast<unsigned long long>(all.for_peers));
  // Otherwise the histories prove little.
  const std::uint64_t total = histories().fixed * steps_of_history;
  EXPECT_GT(all.commands, total / 20);
  EXPECT_GT(all.overflows, total / 1000);
  EXPECT_GT(all.forced, total / 2000);
  EXPECT_GT(all.restarts, total / 2000);
  EXPECT_GT(all.for_peers, total / 2000);
}

/// As they were printed; attach_test.cpp and gang_test.cpp have the same by hand.
TEST_F(Model, AgreesThroughHistoriesThatOnceFailed) {
  const steps histories[] = {
      // A number used again on another GPU, then the session's end: the queue was forgotten.
      {
          {op::start, 5, 24},
          {op::create, 5, 3},
          {op::wait, 8000},
          {op::destroy, 5},
          {op::create, 5, 4},
          {op::wait, 100},
          {op::exec, 5, 0, 1},
      },
      // The queue on a lost GPU went, and its process was never attached.
      {
          {op::start, 2, 96},
          {op::configure, 1},
          {op::create, 2, 411},
          {op::wait},
          {op::lose_gpu},
          {op::create, 2, 28},
          {op::destroy, 2, 0, 1},
          {op::rest},
      },
      // Another gang, and another max_suspend.
      {
          {op::start, 2},
          {op::enlist},
          {op::begin},
          {op::create, 2, 3},
          {op::role, 2, 96},
          {op::wait, 9649},
          {op::role, 2, 6},
          {op::wait, 98354},
      },
      // The driver refused the only process here of a gang on two nodes: the other was not told.
      {
          {op::start, 5, 29},
          {op::create, 5, 3},
          {op::policy, 2},
          {op::fault, 5},
          {op::peers, 1, 9, 1},
          {op::wait, 10000},
      },
      // The gang ended and began anew in one turn, and was told to be gone last.
      {
          {op::start, 4, 9},
          {op::role, 4, 0, 1},
          {op::turn},
          {op::role, 4, 9},
      },
      // It ended before it was told of.
      {
          {op::start, 2, 9},
          {op::exit, 2},
      },
      // A resume failed after a suspend had failed: it was not refused for the whole backoff.
      {
          {op::configure, 2},
          {op::start, 1, 533},
          {op::create, 1},
          {op::create, 1},
          {op::fault, 1, 2, 1},
          {op::fault, 1, 2},
          {op::peers, 1, 9, 1},
          {op::create, 1, 3},
          {op::wait, 12000},
      },
      // It stayed refused for the sake of a queue that was gone.
      {
          {op::start, 4},
          {op::create, 4, 4},
          {op::create, 4, 3},
          {op::configure, 1},
          {op::role, 4, 353},
          {op::wait, 303000},
          {op::fault, 4, 1},
          {op::peers, 1, 15, 1},
          {op::wait, 13901},
          {op::destroy, 4},
      },
      // A process whose queue had been refused came to another gang, which was asked at once.
      {
          {op::start, 3, 164},
          {op::create, 3, 3},
          {op::policy, 2},
          {op::fault, 3},
          {op::wait, 10000},
          {op::role, 3, 83},
      },
  };
  for (const steps& each : histories) EXPECT_EQ(play(each).complaint, "");
}

/// What a driver's bug comes to in a long history is found, and made so small that it can be read.
TEST_F(Model, MakesTheHistoryOfAPlantedBugSmall) {
#if defined(SLUICE_SANITIZED)
  GTEST_SKIP() << "takes a minute with sanitizers; the preset release runs it";
#endif
  for (const auto bug :
       {model_driver::planted::loses_a_resume, model_driver::planted::forgets_a_removal}) {
    std::uint64_t seed = 0;
    steps all;
    verdict found;
    do {
      all = make_steps(++seed, 500);
      found = play(all, bug);
    } while (found.well() && seed < 100);
    ASSERT_FALSE(found.well()) << "bug " << static_cast<int>(bug);
    const steps least = make_small(all, found, bug);
    std::printf("from %zu to %zu steps: %s\n%s", found.at, least.size(),
                play(least, bug).complaint.c_str(), to_text(least).c_str());
    EXPECT_LE(least.size(), 10U);
    EXPECT_TRUE(play(least).well()) << "without the bug: " << play(least).complaint;
    // Every step is needed.
    for (std::size_t i = 0; i < least.size(); ++i) {
      steps without = least;
      without.erase(without.begin() + static_cast<std::ptrdiff_t>(i));
      EXPECT_NE(play(without, bug).complaint.substr(0, 5), play(least, bug).complaint.substr(0, 5))
          << "step " << i;
    }
  }
}

}  // namespace
}  // namespace sluice::tests::model_test
