// Policies in Python files.

#include "python_policy.hpp"

#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "sluice/policy_registry.hpp"
#include "sluice/testing/policy_check.hpp"
#include "sluice/testing/policy_harness.hpp"

namespace sluice::cli::python_policy_test {
namespace {

using namespace std::chrono_literals;

const std::string folder = SLUICE_CUSTOM_POLICY;
constexpr gpu_id gpu{51110};
constexpr gpu_id other{51111};

std::unique_ptr<policy> make(const std::string& path, parameters values = {}) {
  std::string message;
  const auto kind = load_policy_file(path, message);
  EXPECT_TRUE(kind) << message;
  if (!kind) return nullptr;
  auto made = make_policy(*kind, std::move(values), message);
  EXPECT_TRUE(made) << message;
  return made ? std::move(*made) : nullptr;
}

/// A policy file beside the example's module.
class PythonPolicy : public ::testing::Test {
 protected:
  PythonPolicy() {
    std::filesystem::create_directories(path_);
    std::filesystem::copy_file(folder + "/sluice_policy.py", path_ + "/sluice_policy.py");
  }
  ~PythonPolicy() override { std::filesystem::remove_all(path_); }
  std::string write(const std::string& content) const {
    std::ofstream(path_ + "/mine.py") << content;
    return path_ + "/mine.py";
  }
  std::string refusal(const std::string& content) const {
    std::string message;
    const auto path = write(content);
    EXPECT_FALSE(load_policy_file(path, message));
    EXPECT_EQ(message.substr(0, path.size()), path);
    return message.substr(path.size());
  }
  const std::string path_ =
      (std::filesystem::temp_directory_path() / ("sluice_python_test_" + std::to_string(getpid())))
          .string();
};

/// What each hears and says, as the harness records it.
std::vector<testing::recording_sink::call> history(std::unique_ptr<policy> subject) {
  testing::policy_harness node(std::move(subject));
  node.table().add_group(group_id{7}, role::offline, {gpu, other});
  node.table().add_group(group_id{8}, role::online, {gpu});
  node.table().add_group(group_id{9}, role::offline, {other});
  for (const std::uint64_t id : {7U, 8U, 9U, 10U}) node.change(group_id{id});
  for (int i = 0; i < 20; ++i) {
    auto& view = *node.table().edit(gpu);
    view.suspend_cost = i * 1ms;
    view.resume_cost = i * 500us;
    node.begin(gpu, 2);
    node.advance(3ms);
    node.end(gpu);
    node.blink(other);
    node.end(gpu);
    node.advance(i * 2ms);
    node.change(group_id{9});
  }
  return node.calls();
}

TEST_F(PythonPolicy, DecidesAsTheSameOneInCpp) {
  parameters values;
  values.set("factor", 1.5);
  values.set("least", 300us);
  const auto python = history(make(folder + "/break_even.py", values));
  const auto cpp = history(make(SLUICE_BREAK_EVEN_PLUGIN, values));
  EXPECT_GT(python.size(), 100U);
  EXPECT_EQ(python, cpp);
}

/// The check plays each sequence to two instances and compares what they say: one is in Python.
TEST_F(PythonPolicy, DecidesAsTheSameOneInCppWhateverHappens) {
  bool python = false;
  const auto failure = testing::check_policy(
      [&] {
        python = !python;
        return make(python ? folder + "/break_even.py" : SLUICE_BREAK_EVEN_PLUGIN);
      },
      {.sequences = 200});
  EXPECT_FALSE(failure) << failure->text();
}

TEST_F(PythonPolicy, IsToldAndShownEverything) {
  const auto path = write(R"(
import sluice_policy as s

class Mine:
    def __init__(self, a, b_c, d, e, f):
        assert (a, b_c, d, e, f) == (True, -5, 0.25, 7_000_000, "text"), (a, b_c, d, e, f)

    def decide(self, seen, out):
        assert (seen.now, seen.turn) == (5, 6)
        (one, two) = seen.events
        assert (one.kind, one.gpu, one.client, one.count, one.at) == (s.ONLINE_END, 11, 12, 13, 14)
        assert (two.kind, two.span, two.request, two.length) == (s.SPAN_END, s.ITL, 15, 16)
        assert seen.changed == [21, 22]
        (gpu,) = seen.gpus
        assert (gpu.id, gpu.online_in_flight, gpu.lost, gpu.can_reserve) == (11, 31, 0, 1)
        assert (gpu.can_set_quantum, gpu.can_see_work) == (1, 1)
        assert (gpu.slots, gpu.work, gpu.suspend_cost) == (32, s.WORK_CONSUMED, 33)
        assert (gpu.resume_cost, gpu.last_move, gpu.last_begin, gpu.last_end) == (34, 35, 36, 37)
        assert gpu.offline == [21]
        assert seen.gpu(11).id == 11 and seen.gpu(12) is None
        group = seen.group(21)
        assert (group.role, group.state, group.manageable) == (s.OFFLINE, s.MIXED, 1)
        assert (group.priority, group.queues, group.state_since) == (9, 41, 42)
        assert (group.gpus, group.queues_on) == ([11], [1])
        assert seen.group(22) is None
        assert (seen.client(12).name, seen.client(12).gpus) == ("a name", [])
        assert seen.client(12).targets == [0, 0, 0]
        assert seen.client(13) is None
        out.hold(21)
        out.hold(22, 51)
        out.run(23)
        out.wake_at(52)
        out.poll_pointers(53)
        out.reserve(54, 0.5)
        out.set_quantum(21, 57)
        out.listen(s.ITL, True)
        out.note("{} of {}", 55, 56.5)

sluice_get_policy_plugin = s.export("mine", "all of it", [
    s.flag("a", True, "a"), s.count("b.c", -5, -9, 9, "b"), s.number("d", 0.25, 0, 1, "d"),
    s.span("e", 7_000_000, 0, 10**9, "e"), s.text("f", "text", "f")], Mine)
)");
  const auto subject = make(path);
  ASSERT_NE(subject, nullptr);
  testing::fake_world table;
  auto& group = table.add_group(group_id{21}, role::offline, {gpu_id{11}});
  group.actual = run_state::mixed;
  group.priority = 9;
  group.queues = 41;
  group.state_since = time_point(42ns);
  table.add_client(client_id{12}, "a name");
  auto& view = *table.edit(gpu_id{11});
  view.online_in_flight = 31;
  view.can_reserve = true;
  view.can_set_quantum = true;
  view.can_see_work = true;
  view.slots = 32;
  view.work = online_work::consumed;
  view.suspend_cost = 33ns;
  view.resume_cost = 34ns;
  view.last_move = time_point(35ns);
  view.last_begin = time_point(36ns);
  view.last_end = time_point(37ns);
  const std::vector<event> events{
      {event_kind::online_end, gpu_id{11}, client_id{12}, 13, time_point(14ns), {}, 0, {}},
      {event_kind::span_end, {}, {}, 1, {}, span_kind::itl, 15, 16ns}};
  const std::vector<group_id> changed{group_id{21}, group_id{22}};
  testing::recording_sink sink;
  subject->decide({time_point(5ns), 6, events, changed, table}, sink);
  using verb = testing::recording_sink::verb;
  const std::vector<testing::recording_sink::call> expected{
      {.what = verb::hold, .group = group_id{21}, .until = never},
      {.what = verb::hold, .group = group_id{22}, .until = time_point(51ns)},
      {.what = verb::run, .group = group_id{23}},
      {.what = verb::wake_at, .until = time_point(52ns)},
      {.what = verb::poll_pointers, .every = 53ns},
      {.what = verb::reserve, .gpu = gpu_id{54}, .offline_share = 0.5},
      {.what = verb::set_quantum, .group = group_id{21}, .length = 57ns},
      {.what = verb::listen, .span = span_kind::itl, .at_once = true},
      {.what = verb::note, .text = "{} of {}", .numbers = {55, 56.5}}};
  EXPECT_EQ(sink.calls, expected);
}

TEST_F(PythonPolicy, ThatRaisesFailsWithTheLine) {
  const auto subject =
      make(write("import sluice_policy as s\n"
                 "class Mine:\n"
                 "    def decide(self, seen, out):\n"
                 "        1 / 0\n"
                 "sluice_get_policy_plugin = s.export('mine', 'fails', [], Mine)\n"));
  ASSERT_NE(subject, nullptr);
  testing::fake_world table;
  testing::recording_sink sink;
  try {
    subject->decide({time_point(5ns), 6, {}, {}, table}, sink);
    FAIL() << "nothing was thrown";
  } catch (const std::exception& thrown) {
    EXPECT_EQ(thrown.what(), "ZeroDivisionError: division by zero (" + path_ + "/mine.py:4)");
  }
}

// Symptom: a print() stood in the middle of what `sluice replay --json` printed.
TEST_F(PythonPolicy, PrintsToStandardError) {
  const auto path = write(
      "import sluice_policy as s\n"
      "print('while it is loaded')\n"
      "class Mine:\n"
      "    def decide(self, seen, out):\n"
      "        print('while it decides')\n"
      "sluice_get_policy_plugin = s.export('mine', 'prints', [], Mine)\n");
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  const auto subject = make(path);
  testing::fake_world table;
  testing::recording_sink sink;
  if (subject != nullptr) subject->decide({time_point(5ns), 6, {}, {}, table}, sink);
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "while it is loaded\nwhile it decides\n");
  EXPECT_EQ(::testing::internal::GetCapturedStdout(), "");
}

// Symptom: the error named a line of sluice_policy.py, and "argument 2" of a call of its own.
TEST_F(PythonPolicy, ThatSaysNonsenseFailsWithItsOwnLineAndArgument) {
  const auto said = [&](const std::string& call) -> std::string {
    const auto subject =
        make(write("import sluice_policy as s\n"
                   "class Mine:\n"
                   "    def decide(self, seen, out):\n"
                   "        " +
                   call +
                   "\n"
                   "sluice_get_policy_plugin = s.export('mine', 'fails', [], Mine)\n"));
    testing::fake_world table;
    testing::recording_sink sink;
    try {
      subject->decide({time_point(5ns), 6, {}, {}, table}, sink);
    } catch (const std::exception& thrown) {
      return thrown.what();
    }
    return "nothing";
  };
  const std::string where = " (" + path_ + "/mine.py:4)";
  EXPECT_EQ(said("out.hold('a', 5)"),
            "TypeError: hold(): group must be a whole number, not 'a'" + where);
  EXPECT_EQ(said("out.hold(1, 2.5)"),
            "TypeError: hold(): until must be a whole number, not 2.5" + where);
  EXPECT_EQ(said("out.reserve(1, 'half')"),
            "TypeError: reserve(): offline_share must be a number, not 'half'" + where);
  EXPECT_EQ(said("out.note('{}', 'one')"),
            "TypeError: note(): each value must be a number, not 'one'" + where);
  EXPECT_EQ(said("out.hold(-1)"), "ValueError: hold(): group must be 0 or more, not -1" + where);
}

// Symptom: a decide() that called sys.exit() counted as done, turn after turn.
TEST_F(PythonPolicy, ThatExitsFailsLikeOneThatRaises) {
  const auto path = write(
      "import sys\n"
      "import sluice_policy as s\n"
      "class Mine:\n"
      "    def __init__(self, early):\n"
      "        if early: sys.exit(3)\n"
      "    def decide(self, seen, out):\n"
      "        sys.exit(4)\n"
      "sluice_get_policy_plugin = s.export('mine', 'exits', [s.flag('early', False, 'x')], "
      "Mine)\n");
  const auto subject = make(path);
  ASSERT_NE(subject, nullptr);
  testing::fake_world table;
  testing::recording_sink sink;
  try {
    subject->decide({time_point(5ns), 6, {}, {}, table}, sink);
    FAIL() << "nothing was thrown";
  } catch (const std::exception& thrown) {
    EXPECT_EQ(thrown.what(), "SystemExit: 4 (" + path + ":7)");
  }
  std::string message;
  parameters early;
  early.set("early", true);
  const auto kind = load_policy_file(path, message);
  ASSERT_TRUE(kind) << message;
  EXPECT_FALSE(make_policy(*kind, early, message));
  EXPECT_NE(message.find("SystemExit: 3"), std::string::npos) << message;
}

TEST_F(PythonPolicy, HasOptionalParameters) {
  const auto path = write(R"(
import sluice_policy as s

class Mine:
    def __init__(self, **given):
        assert given in ({}, {"a": True, "b": 5, "c_d": 0.5, "e": 7, "f": "x"}), given

    def decide(self, seen, out):
        pass

sluice_get_policy_plugin = s.export("mine", "all of it", [
    s.flag("a", None, "a"), s.count("b", None, 1, 9, "b"), s.number("c.d", None, 0, 1, "c"),
    s.span("e", None, 1, 10**9, "e"), s.text("f", None, "f")], Mine)
)");
  EXPECT_NE(make(path), nullptr);
  parameters values;
  values.set("a", true);
  values.set("b", std::int64_t{5});
  values.set("c.d", 0.5);
  values.set("e", duration(7));
  values.set("f", std::string("x"));
  EXPECT_NE(make(path, values), nullptr);
}

TEST_F(PythonPolicy, ThatCannotBeLoadedIsRefusedWithTheLine) {
  EXPECT_EQ(refusal("x = 1\n"), ": the file does not define sluice_get_policy_plugin()");
  EXPECT_EQ(refusal("x = 1\ny = (\n"), ":2: '(' was never closed");
  EXPECT_EQ(refusal("\nimport nonesuch\n"), ":2: ModuleNotFoundError: No module named 'nonesuch'");
  EXPECT_EQ(refusal("import sluice_policy as s\n"
                    "sluice_get_policy_plugin = s.export('Mine', '', [], None)\n"),
            ": has the name \"Mine\"; a name must consist of lower-case letters, digits and _");
  std::string message;
  EXPECT_FALSE(load_policy_file("/nonexistent/mine.py", message));
  EXPECT_EQ(message, "/nonexistent/mine.py: No such file or directory");
}

/// Simulations run on many threads at once.
TEST_F(PythonPolicy, WorksOnManyThreads) {
  const auto expected = history(make(folder + "/break_even.py"));
  std::vector<std::thread> threads;
  std::vector<int> wrong(4);
  for (int& each : wrong) {
    threads.emplace_back([&] {
      for (int i = 0; i < 5; ++i) {
        if (history(make(folder + "/break_even.py")) != expected) ++each;
      }
    });
  }
  for (auto& each : threads) each.join();
  EXPECT_EQ(wrong, std::vector<int>(4));
}

}  // namespace
}  // namespace sluice::cli::python_policy_test
