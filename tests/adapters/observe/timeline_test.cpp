#include "sluice/observe/timeline.hpp"

#include "entries.hpp"
#include "temporary_directory.hpp"
#include "test_seed.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include <boost/json.hpp>
#include <gtest/gtest.h>

#include "sluice/os/kept_file.hpp"

namespace sluice::observe::timeline_test {
namespace {

namespace json = boost::json;
using namespace test;

struct stretch {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::string name;
};
using track_id = std::pair<std::int64_t, std::int64_t>;

/// What is in a trace; reading it checks that it is one.
struct trace {
  std::map<std::int64_t, std::string> rows;
  std::map<track_id, std::string> tracks;
  std::map<track_id, std::vector<stretch>> slices;
  std::vector<std::string> marks;
  std::vector<std::pair<std::string, std::pair<stretch, stretch>>> arrows;
  std::vector<stretch> spans;

  const std::vector<stretch>& of(std::string_view row, std::string_view track) const {
    static const std::vector<stretch> none;
    for (const auto& [id, name] : tracks)
      if (name == track && rows.at(id.first).find(row) != std::string::npos) {
        const auto found = slices.find(id);
        return found == slices.end() ? none : found->second;
      }
    return none;
  }
};

const json::value& field(const json::object& of, std::string_view name) {
  static const json::value missing;
  const json::value* const found = of.if_contains(name);
  EXPECT_NE(found, nullptr) << name << " is missing in " << json::serialize(of);
  return found == nullptr ? missing : *found;
}
std::int64_t number(const json::object& of, std::string_view name) {
  return field(of, name).to_number<std::int64_t>();
}
std::string text(const json::object& of, std::string_view name) {
  return std::string{field(of, name).as_string()};
}

/// What a viewer makes of it: events in order of time, and of the file where that is the same.
trace read_trace(const std::string& content) {
  trace made;
  const json::value parsed = json::parse(content);
  std::map<std::string, std::vector<std::pair<char, json::object>>> ends;  // of arrows and spans
  for (const json::value& each : parsed.as_array()) {
    const json::object& event = each.as_object();
    const std::string what = text(event, "ph");
    const track_id on{number(event, "pid"), number(event, "tid")};
    EXPECT_GE(number(event, "ts"), 0);
    if (what == "M") {
      const std::string kind = text(event, "name");
      const json::object& with = field(event, "args").as_object();
      if (kind == "process_name") {
        EXPECT_TRUE(made.rows.try_emplace(on.first, text(with, "name")).second) << "twice";
      } else if (kind == "thread_name") {
        EXPECT_TRUE(made.tracks.try_emplace(on, text(with, "name")).second) << "twice";
        EXPECT_TRUE(made.rows.contains(on.first));
      }
      continue;
    }
    EXPECT_TRUE(made.rows.contains(on.first)) << "a row without a name: " << json::serialize(event);
    if (what == "X") {
      EXPECT_TRUE(made.tracks.contains(on)) << "a track without a name";
      const std::int64_t begin = number(event, "ts");
      EXPECT_GT(number(event, "dur"), 0);
      made.slices[on].push_back({begin, begin + number(event, "dur"), text(event, "name")});
    } else if (what == "i") {
      EXPECT_TRUE(made.tracks.contains(on));
      made.marks.push_back(text(event, "name"));
    } else if (what == "C") {
      EXPECT_GE(number(field(event, "args").as_object(), "busy periods"), 0);
    } else if (what == "s" || what == "f" || what == "b" || what == "e") {
      ends[text(event, "cat") + std::to_string(number(event, "id"))].emplace_back(what[0], event);
    } else {
      ADD_FAILURE() << "no event of this form: " << what;
    }
  }
  for (auto& [on, all] : made.slices) {
    std::ranges::stable_sort(all, {}, &stretch::begin);
    for (std::size_t i = 1; i < all.size(); ++i)
      EXPECT_GE(all[i].begin, all[i - 1].end) << "stretches of one track overlap";
  }
  const auto slice_at = [&](const json::object& event) -> stretch {
    const auto found = made.slices.find({number(event, "pid"), number(event, "tid")});
    const std::int64_t at = number(event, "ts");
    if (found != made.slices.end())
      for (const stretch& each : found->second)
        if (each.begin <= at && at < each.end) return each;
    ADD_FAILURE() << "an arrow that is on no stretch: " << json::serialize(event);
    return {};
  };
  for (const auto& [id, pair] : ends) {
    EXPECT_EQ(pair.size(), 2U) << id;
    if (pair.size() != 2) continue;
    const auto& [begin, end] = std::pair{pair[0], pair[1]};
    EXPECT_LE(number(begin.second, "ts"), number(end.second, "ts"));
    EXPECT_EQ(text(begin.second, "name"), text(end.second, "name"));
    if (begin.first == 's') {
      EXPECT_EQ(end.first, 'f');
      made.arrows.emplace_back(text(begin.second, "name"),
                               std::pair{slice_at(begin.second), slice_at(end.second)});
    } else {
      EXPECT_EQ(begin.first, 'b');
      EXPECT_EQ(end.first, 'e');
      made.spans.push_back(
          {number(begin.second, "ts"), number(end.second, "ts"), text(begin.second, "name")});
    }
  }
  return made;
}

class Timeline : public testing::Test {
 protected:
  std::string content(const std::string& of = {}) const {
    std::ostringstream all;
    all << std::ifstream{of.empty() ? path_ : of}.rdbuf();
    return all.str();
  }
  std::unique_ptr<trace_file> file(std::uint64_t most = trace_file::usual_most) const {
    return trace_file::create(path_, most).value();
  }
  /// Writes a trace of random entries and reads it again.
  trace random_trace(std::uint64_t seed) const {
    {
      const auto to = file();
      timeline made(*to, {.read = words});
      random_entries some(seed);
      time_point last = start;
      for (int i = 0; i < 500; ++i) {
        const journal_entry next = some.next();
        made.hear(next);
        last = next.at;
        if (some.below(100) == 0) made.missed(3);
        if (some.below(200) == 0) made.finish(last);
        if (some.below(100) != 0) continue;
        picture now{.at = last};
        now.gpus.push_back({.id = gpu_id{some.below(3)}, .busy = some.below(2) == 0});
        now.groups.push_back({.id = group_id{1}});
        now.groups[0].processes.push_back({.id = process_id{1 + some.below(5)},
                                           .pid = static_cast<pid_t>(1 + some.below(3)),
                                           .off = some.below(2) == 0});
        made.mend(now);
      }
      made.finish(last);
    }
    return read_trace(content());
  }

  const sluice::test::temporary_directory made_;
  const std::string directory_ = made_.path();
  const std::string path_ = directory_ + "/trace.json";
};

journal_entry arrival(duration at, duration since, duration until) {
  auto made = of_gpu(journal_kind::off, at);
  made.since = start + since;
  made.until = start + until;
  made.length = until - since;
  return made;
}

/// Online work comes and goes, one process makes room for it and runs again.
std::vector<journal_entry> one_preemption() {
  auto busy = of_gpu(journal_kind::busy, 10ms);
  auto off = arrival(13ms, 9500us, 12500us);
  auto span = of_gpu(journal_kind::span_end, 40ms);
  span.client = client_id{3};
  span.since = start + 10ms;
  span.until = start + 40ms;
  auto client = entry(journal_kind::client, 0ms);
  client.client = client_id{3};
  client.set_text("server");
  return {of_process(journal_kind::process, 0ms, 1),
          client,
          of_process(journal_kind::attach, 1ms, 1),
          of_process(journal_kind::attached, 2ms, 1),
          busy,
          of_process(journal_kind::held, 10ms, 1),
          batch(10ms, 1, command_kind::suspend, 1),
          of_process(journal_kind::process_off, 10ms, 1),
          done(13ms, 1, command_kind::suspend, 1, 11ms, 12500us),
          off,
          span,
          of_gpu(journal_kind::idle, 40ms),
          of_process(journal_kind::let_go, 40ms, 1),
          batch(40ms, 1, command_kind::resume, 2),
          done(42ms, 1, command_kind::resume, 2, 40100us, 41ms),
          on(42ms, 1, 32ms),
          of_process(journal_kind::process_gone, 50ms, 1),
          entry(journal_kind::stop, 60ms)};
}

TEST_F(Timeline, ShowsAPreemptionFromArrivalToResume) {
  {
    const auto to = file();
    timeline made(*to, {.read = words});
    for (const journal_entry& each : one_preemption()) made.hear(each);
    made.finish(start + 60ms);
  }
  const trace seen = read_trace(content());
  const auto is = [](const std::vector<stretch>& all, std::size_t i, std::string_view name,
                     std::int64_t begin, std::int64_t end) {
    return i < all.size() && all[i].name == name && all[i].begin == begin && all[i].end == end;
  };
  const auto& states = seen.of("train", "queues on GPU 7");
  EXPECT_EQ(states.size(), 4U);
  EXPECT_TRUE(is(states, 0, "suspending", 10'000, 12'500));
  EXPECT_TRUE(is(states, 1, "suspended", 12'500, 40'000));
  EXPECT_TRUE(is(states, 2, "resuming", 40'000, 41'000));
  EXPECT_TRUE(is(states, 3, "running", 41'000, 50'000));
  const auto& calls = seen.of("train", "driver calls, GPU 7");
  EXPECT_EQ(calls.size(), 2U);
  EXPECT_TRUE(is(calls, 0, "suspend 2 queues", 11'000, 12'500));
  EXPECT_TRUE(is(calls, 1, "resume 2 queues", 40'100, 41'000));
  EXPECT_TRUE(is(seen.of("GPU 7", "online work"), 0, "online work", 10'000, 40'000));
  EXPECT_TRUE(is(seen.of("GPU 7", "preemption"), 0, "arrival until offline work is suspended",
                 9'500, 12'500));
  EXPECT_TRUE(is(seen.of("train", "process"), 0, "queues suspended or in doubt", 10'000, 42'000));
  EXPECT_TRUE(is(seen.of("train", "session"), 0, "attaching", 1'000, 2'000));
  EXPECT_TRUE(is(seen.of("train", "session"), 1, "attached", 2'000, 50'000));
  EXPECT_EQ(seen.marks, (std::vector<std::string>{"hold", "released: policy", "stop"}));
  EXPECT_EQ(seen.spans.size(), 1U);
  ASSERT_EQ(seen.arrows.size(), 2U);
  EXPECT_EQ(seen.arrows[0].first, "makes room");
  EXPECT_EQ(seen.arrows[0].second.first.name, "arrival until offline work is suspended");
  EXPECT_EQ(seen.arrows[0].second.second.name, "suspend 2 queues");
  EXPECT_EQ(seen.arrows[1].first, "resumed by");
  EXPECT_EQ(seen.arrows[1].second.first.name, "suspend 2 queues");
  EXPECT_EQ(seen.arrows[1].second.second.name, "resume 2 queues");
}

// Symptom: no arrow where online work had ended before the driver had answered.
TEST_F(Timeline, LeadsFromOnlineWorkThatEndedBeforeTheDriverAnswered) {
  {
    const auto to = file();
    timeline made(*to, {.read = words});
    made.hear(of_process(journal_kind::process, 0ms, 1));
    made.hear(of_gpu(journal_kind::busy, 10ms));
    made.hear(batch(10ms, 1, command_kind::suspend, 1));
    made.hear(of_gpu(journal_kind::idle, 12ms));
    made.hear(done(13ms, 1, command_kind::suspend, 1, 11ms, 12500us));
    // Nothing was in flight: no arrow.
    made.hear(batch(20ms, 1, command_kind::resume, 2));
    made.hear(done(21ms, 1, command_kind::resume, 2, 20ms, 21ms));
    made.hear(batch(30ms, 1, command_kind::suspend, 3));
    made.hear(done(31ms, 1, command_kind::suspend, 3, 30ms, 31ms));
    made.finish(start + 60ms);
  }
  const trace seen = read_trace(content());
  ASSERT_EQ(seen.arrows.size(), 2U);
  EXPECT_EQ(seen.arrows[0].second.first.name, "online work");
  EXPECT_EQ(seen.arrows[0].second.second.begin, 11'000);
  EXPECT_EQ(seen.arrows[1].first, "resumed by");
}

// Symptom: the stretch was drawn by when the scheduler heard of its end, a turn or more after the
// call that it caused, and the arrow, which would have led back in time, not at all.
TEST_F(Timeline, LeadsFromEachArrivalToEachSuspendThatItCaused) {
  {
    const auto to = file();
    timeline made(*to, {.read = words});
    for (unsigned id = 1; id <= 3; ++id) made.hear(of_process(journal_kind::process, 0ms, id));
    const auto begin = [&](duration at, duration since) {
      auto entry = of_gpu(journal_kind::begin, at);
      entry.client = client_id{3};
      entry.turn = static_cast<std::uint64_t>(at / 1us);
      entry.count = 1;
      entry.since = start + since;
      made.hear(entry);
      auto busy = of_gpu(journal_kind::busy, at);
      busy.turn = entry.turn;
      made.hear(busy);
    };
    // Two processes, and answers that are heard late.
    begin(10'400us, 10ms);
    made.hear(batch(10'400us, 1, command_kind::suspend, 1));
    made.hear(batch(10'400us, 2, command_kind::suspend, 2));
    made.hear(done(18ms, 1, command_kind::suspend, 1, 10'500us, 13ms));
    made.hear(done(18ms, 2, command_kind::suspend, 2, 10'600us, 15ms));
    made.hear(arrival(18ms, 10ms, 15ms));
    made.hear(of_gpu(journal_kind::idle, 20ms));
    // A call that lasts for three periods, and a fourth one goes on.
    made.hear(batch(29ms, 2, command_kind::resume, 3));
    made.hear(done(29ms, 2, command_kind::resume, 3, 29ms, 29'500us));
    begin(30ms, 30ms);
    made.hear(batch(30ms, 2, command_kind::suspend, 4));
    made.hear(of_gpu(journal_kind::idle, 31ms));
    begin(32ms, 32ms);
    made.hear(of_gpu(journal_kind::idle, 33ms));
    begin(34ms, 34ms);
    made.hear(of_gpu(journal_kind::idle, 35ms));
    begin(36ms, 36ms);
    made.hear(done(40ms, 2, command_kind::suspend, 4, 30'100us, 39ms));
    // One that was held back until the work was over, of which its arrival tells.
    made.hear(of_gpu(journal_kind::idle, 41ms));
    made.hear(batch(50ms, 3, command_kind::suspend, 5));
    made.hear(done(52ms, 3, command_kind::suspend, 5, 50'100us, 51ms));
    made.hear(arrival(52ms, 40ms, 51ms));
    // One that no online work had a part in.
    made.hear(batch(60ms, 1, command_kind::suspend, 6));
    made.hear(done(62ms, 1, command_kind::suspend, 6, 60'100us, 61ms));
    made.finish(start + 70ms);
  }
  const trace seen = read_trace(content());
  std::map<std::int64_t, stretch> causes;  // by where the call begins
  for (const auto& [name, ends] : seen.arrows)
    if (name == "makes room") {
      EXPECT_TRUE(causes.try_emplace(ends.second.begin, ends.first).second) << "two arrows";
    }
  ASSERT_EQ(causes.size(), 4U);
  for (const std::int64_t call : {10'500, 10'600}) {
    EXPECT_EQ(causes[call].name, "arrival until offline work is suspended");
    EXPECT_EQ(causes[call].begin, 10'000);
    EXPECT_EQ(causes[call].end, 15'000);
  }
  EXPECT_EQ(causes[30'100].name, "online work");
  EXPECT_EQ(causes[30'100].begin, 30'000);
  EXPECT_EQ(causes[50'100].name, "arrival until offline work is suspended");
  // Online work begins when the client says so, not when the scheduler's turn came.
  EXPECT_EQ(seen.of("GPU 7", "online work").at(0).begin, 10'000);
}

// Stretches whose end was lost end where somebody looked.
TEST_F(Timeline, GoesByAPictureWhereEntriesWereLost) {
  {
    const auto to = file();
    timeline made(*to, {.read = words, .simulated = [] { return true; }});
    made.hear(entry(journal_kind::backend_back, 0ms));
    for (unsigned id = 1; id <= 2; ++id) {
      made.hear(of_process(journal_kind::process, 0ms, id));
      made.hear(batch(10ms, id, command_kind::suspend, id));
      made.hear(of_process(journal_kind::process_off, 10ms, id));
      made.hear(done(13ms, id, command_kind::suspend, id, 11ms, 12ms));
    }
    made.hear(of_gpu(journal_kind::busy, 10ms));
    picture now{.at = start + 20ms};
    now.gpus.push_back({.id = gpu_id{7}});
    now.groups.push_back({.id = group_id{2}});
    now.groups[0].processes.push_back({.id = process_id{2},
                                       .pid = 2,
                                       .what = role::offline,
                                       .attach = attach_picture::attached,
                                       .queues = {{.gpu = gpu_id{7}, .compute = 2}}});
    made.mend(now);
    made.finish(start + 60ms);
  }
  const trace seen = read_trace(content());
  EXPECT_EQ(seen.of("GPU 7", "online work").at(0).end, 20'000);
  EXPECT_EQ(seen.of("train\"1", "process").at(0).end, 20'000);
  EXPECT_EQ(seen.of("train\"1", "queues on GPU 7").back().end, 20'000);
  EXPECT_EQ(seen.of("train\"2", "process").at(0).end, 20'000);
  const auto& states = seen.of("train\"2", "queues on GPU 7");
  ASSERT_EQ(states.size(), 3U);
  EXPECT_EQ(states[1].end, 20'000);
  EXPECT_EQ(states[2].name, "running");
  bool named = false;
  for (const auto& [row, name] : seen.rows)
    named = named || name == "scheduler, on a simulated device";
  EXPECT_TRUE(named);
}

TEST_F(Timeline, IsATraceWhateverComes) {
  for (const std::uint64_t fixed : {1U, 2U, 3U}) EXPECT_FALSE(random_trace(fixed).slices.empty());
  const sluice::test::random_seed seed;
  for (unsigned round = 0; round < 20; ++round) {
    (void)random_trace(seed.value() + round);
    if (HasFailure()) FAIL() << "SLUICE_TEST_SEED=" << seed.value() + round << " begins with it";
  }
}

/// A program that is killed writes no end: what is there lacks the bracket alone.
TEST_F(Timeline, LacksTheBracketAloneWhereTheProgramWasKilled) {
  const auto to = file();
  timeline made(*to, {.read = words});
  for (const journal_entry& each : one_preemption()) made.hear(each);
  to->flush();
  const trace seen = read_trace(content() + "]");
  EXPECT_EQ(seen.of("train", "driver calls, GPU 7").size(), 2U);
}

// The last hours are what is asked for, not the first ones.
TEST_F(Timeline, GoesOnInAnotherFileWhereOneIsFull) {
  constexpr std::uint64_t most = 200'000;
  const sluice::test::random_seed seed;
  {
    const auto to = file(most);
    timeline made(*to, {.read = words});
    random_entries some(seed.value());
    for (int i = 0; i < 8000; ++i) made.hear(some.next());
    EXPECT_FALSE(to->error());
    // Across the files: what is open when one ends is in both.
    const auto last = some.next().at - start;
    made.hear(of_process(journal_kind::process, last, 77));
    made.hear(of_process(journal_kind::process_off, last, 77));
    to->flush();
    const auto which = [&] {
      struct stat found {};
      EXPECT_EQ(::stat(path_.c_str(), &found), 0);
      return found.st_ino;
    };
    const auto before = which();
    while (which() == before && !to->error()) {
      made.hear(of_process(journal_kind::held, last, 77));
      to->flush();
    }
    made.finish(start + last + 1s);
  }
  for (const std::string& each : {path_, path_ + ".1"}) {
    SCOPED_TRACE(each);
    EXPECT_LE(std::filesystem::file_size(each), most);
    const trace seen = read_trace(content(each));
    EXPECT_EQ(seen.of("train\"77", "process").size(), 1U);
  }
  EXPECT_GT(std::filesystem::file_size(path_ + ".1"), most - most / 8);
  EXPECT_FALSE(std::filesystem::exists(path_ + ".2"));
}

TEST_F(Timeline, KeepsTheFileOfTheRunBefore) {
  std::ofstream{path_} << std::string(worth_keeping, 'x');
  file().reset();
  EXPECT_EQ(content(path_ + ".1"), std::string(worth_keeping, 'x'));
  // One of a start that came to nothing does not displace it.
  file().reset();
  EXPECT_EQ(content(path_ + ".1"), std::string(worth_keeping, 'x'));
}

TEST_F(Timeline, SaysWhereEntriesAreMissing) {
  {
    const auto to = file();
    timeline made(*to, {.read = words});
    made.hear(entry(journal_kind::backend_back, 0ms));
    made.missed(12);
  }
  EXPECT_EQ(read_trace(content()).marks.back(), "12 journal entries were lost here");
}

}  // namespace
}  // namespace sluice::observe::timeline_test
