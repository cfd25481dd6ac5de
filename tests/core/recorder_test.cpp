#include "recorder.hpp"

#include "core_bench.hpp"
#include "temporary_directory.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "sluice/os/kept_file.hpp"

namespace sluice::tests::recorder_test {
namespace {

/// A named pipe that somebody has open who need not read it.
struct pipe_file {
  pipe_file() {
    EXPECT_EQ(mkfifo(path.c_str(), 0600), 0);
    reader = open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    EXPECT_GE(reader, 0);
  }
  ~pipe_file() { close(reader); }
  const test::temporary_directory here;
  const std::string path = here.path() + "/pipe";
  int reader = -1;
};

std::string text_of(const std::string& path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::size_t count(const std::string& text, const std::string& what) {
  std::size_t number = 0;
  for (auto at = text.find(what); at != text.npos; at = text.find(what, at + 1)) ++number;
  return number;
}

/// Online work comes and goes beside two processes. \return the batches.
std::vector<std::tuple<std::uint64_t, process_id, command_kind>> drive(core_bench& bench,
                                                                       int cycles) {
  bench.create(100, role::offline, gpu_a, {0, 1});
  bench.create(200, role::offline, gpu_b, {7});
  auto client = bench.client();
  bench.attach_all();
  bench.driver.set_delay(1ms);
  for (int i = 0; i < cycles; ++i) {
    client.begin();
    client.begin_span(span_kind::ttft, static_cast<std::uint64_t>(i));
    bench.run_for(30ms);
    client.end_span(span_kind::ttft, static_cast<std::uint64_t>(i));
    client.end();
    bench.run_for(20ms);
  }
  std::vector<std::tuple<std::uint64_t, process_id, command_kind>> all;
  for (const batch& each : bench.driver.batches())
    all.emplace_back(each.id, each.target, each.kind);
  return all;
}

TEST(Recorder, WritesWhatCameInAndWhatWasDone) {
  const test::temporary_directory here;
  {
    const auto recorder = core::recorder::create({.file = here.path() + "/all"}).value();
    core_bench bench(quick_config(), make_fixed_timeslice({.slice = 20ms}), {}, recorder.get());
    EXPECT_EQ(drive(bench, 10).size(), 40U);
    bench.core->finish_stop();
    EXPECT_EQ(bench.stats().lost_records, 0U);
  }
  const std::string text = text_of(here.path() + "/all");
  EXPECT_EQ(text.rfind("{\"t\":0,\"is\":\"recording\",\"version\":2,", 0), 0U);
  EXPECT_EQ(count(text, "\"is\":\"batch\""), 40U);
  EXPECT_EQ(count(text, "\"is\":\"done\""), 40U);
  EXPECT_EQ(count(text, "\"is\":\"attached\""), 2U);
  EXPECT_EQ(count(text, "\"is\":\"queue\""), 3U);
  EXPECT_EQ(count(text, "\"is\":\"seen\""), 5U);
  EXPECT_EQ(count(text, "\"is\":\"work\""), 20U);
  EXPECT_EQ(count(text, "\"is\":\"mark\""), 20U);
  EXPECT_EQ(count(text, "\"is\":\"off\""), 20U);
  EXPECT_EQ(count(text, "\"is\":\"gap\""), 0U);
  EXPECT_NE(text.find("\"client\":1,\"begun\":10,\"ended\":9,"), text.npos);
  EXPECT_EQ(text.substr(text.rfind('{', text.size() - 2)).find(",\"is\":\"end\"}\n"),
            text.size() - text.rfind('{', text.size() - 2) - 13);
}

TEST(Recorder, KeepsTheRecordingBefore) {
  const test::temporary_directory here;
  std::ofstream{here.path() + "/all"} << std::string(worth_keeping, 'x');
  for (int starts = 0; starts < 3; ++starts) {
    const auto made = core::recorder::create({.file = here.path() + "/all"});
    ASSERT_TRUE(made);
  }
  EXPECT_EQ(text_of(here.path() + "/all.1"), std::string(worth_keeping, 'x'));
  EXPECT_EQ(text_of(here.path() + "/all"), "");
}

TEST(Recorder, WritesThroughNobodysLink) {
  const test::temporary_directory here;
  std::ofstream{here.path() + "/kept"} << "kept";
  ASSERT_EQ(symlink((here.path() + "/kept").c_str(), (here.path() + "/all").c_str()), 0);
  const auto made = core::recorder::create({.file = here.path() + "/all"});
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error(), boost::system::errc::too_many_symbolic_link_levels);
  EXPECT_EQ(text_of(here.path() + "/kept"), "kept");
}

TEST(Recorder, WritesWhatClientsWant) {
  const test::temporary_directory here;
  {
    const auto recorder = core::recorder::create({.file = here.path() + "/all"}).value();
    core_bench bench(quick_config(), make_fixed_timeslice({.slice = 20ms}), {}, recorder.get());
    client_options options;
    options.name = "server";
    options.targets = {400ms, 0ms, 20ms};
    const auto client = bench.core->register_client(options);
    ASSERT_TRUE(client);
    bench.step();
    const client_view* const seen = bench.core->seen().find(client->id());
    ASSERT_NE(seen, nullptr);
    EXPECT_EQ(seen->targets, options.targets);
    bench.core->finish_stop();
  }
  EXPECT_NE(text_of(here.path() + "/all")
                .find("\"is\":\"client\",\"id\":1,\"name\":\"server\","
                      "\"target_request\":400000000,\"target_itl\":20000000}"),
            std::string::npos);
}

/// Asked for and granted, ended by the driver, given up at once, ended.
TEST(Recorder, WritesReservationsAndWhatTheDriverSaidToThem) {
  const test::temporary_directory here;
  {
    const auto recorder = core::recorder::create({.file = here.path() + "/all"}).value();
    core_bench bench(quick_config(), make_policy([](const snapshot&, decision_sink& out) {
                       out.reserve(gpu_a, 0.25);
                     }),
                     {}, recorder.get());
    bench.create(100, role::offline, gpu_a, {0});
    bench.driver.act_by(testing::batched_calls);
    bench.settle();
    bench.driver.end_reservation(gpu_a, {EFAULT, boost::system::system_category()});
    bench.step();
    bench.driver.refuse_reservation(errc::full);
    bench.run_for(10s);
    bench.core->finish_stop();
  }
  std::ifstream in(here.path() + "/all");
  std::vector<std::string> said;
  for (std::string line; std::getline(in, line);) {
    const auto what = line.find("\"is\":\"reserve");
    if (what != line.npos) said.push_back(line.substr(what));
  }
  const std::vector<std::string> expected{
      R"("is":"reserve","gpu":10,"share":1})",
      R"("is":"reserved","gpu":10,"share":1})",
      R"("is":"reserve","gpu":10,"share":0.25})",
      R"("is":"reserved","gpu":10,"share":0.25})",
      R"("is":"reserved","gpu":10,"share":1,"error":14,"category":"system"})",
      R"("is":"reserve","gpu":10,"share":1,"error":2,"category":"sluice"})",
      R"("is":"reserve","gpu":10,"share":1})",
      R"("is":"reserved","gpu":10,"share":1})",
      R"("is":"reserve","gpu":10,"share":0.25})",
      R"("is":"reserved","gpu":10,"share":0.25})",
      R"("is":"reserve","gpu":10,"share":1})"};
  EXPECT_EQ(said, expected);
}

TEST(Recorder, WritesWhatIsTakenInOfWhatTheBackendSees) {
  const test::temporary_directory here;
  {
    const auto recorder = core::recorder::create({.file = here.path() + "/all"}).value();
    core_bench bench(quick_config(), make_policy([](const snapshot&, decision_sink& out) {
                       out.poll_pointers(1ms);
                     }),
                     {}, recorder.get());
    bench.create(300, role::online, gpu_a, {0});
    bench.settle();
    observation seen;
    seen.kind = observation_kind::pointers_seen;
    seen.pid = 300;
    seen.start_time = start_time;
    seen.gpu = gpu_a;
    seen.what = static_cast<role>(9);
    seen.work = online_work::waiting;
    seen.count = 3;
    bench.driver.see(seen);
    seen.pid = 301;
    bench.driver.see(seen);
    bench.step();
    bench.core->finish_stop();
  }
  const std::string text = text_of(here.path() + "/all");
  EXPECT_EQ(count(text, "\"what\":\"pointers_seen\""), 1U);
  EXPECT_EQ(count(text,
                  "\"source\":31,\"what\":\"pointers_seen\",\"pid\":300,\"start\":77,"
                  "\"gpu\":10,\"work\":\"waiting\",\"count\":3"),
            1U);
}

TEST(Recorder, WritesQuantaAndWhatTheDriverSaidToThem) {
  const test::temporary_directory here;
  {
    const auto recorder = core::recorder::create({.file = here.path() + "/all"}).value();
    core_bench bench(quick_config(), make_policy([](const snapshot& seen, decision_sink& out) {
                       for (const group_id id : seen.changed) out.set_quantum(id, 50us);
                     }),
                     {}, recorder.get());
    bench.create(100, role::offline, gpu_a, {0});
    bench.create(200, role::offline, gpu_b, {0});
    bench.driver.offer_quanta(gpu_a);
    bench.driver.refuse_quantum(errc::full);
    bench.run_for(10s);
    bench.driver.end_quantum(100, gpu_a, {EFAULT, boost::system::system_category()});
    bench.run_for(10s);
    bench.core->finish_stop();
  }
  std::ifstream in(here.path() + "/all");
  std::vector<std::string> said;
  for (std::string line; std::getline(in, line);) {
    // Of the one process; the numbers of processes are the scheduler's own.
    const auto gpu = line.find("\"gpu\":10");
    const auto what = line.find("\"is\":\"quantum");
    if (what == line.npos || gpu == line.npos) continue;
    said.push_back(line.substr(what, line.find(',', what) - what) + line.substr(gpu));
  }
  const std::vector<std::string> expected{
      R"("is":"quantum""gpu":10,"length":50000,"error":2,"category":"sluice"})",
      R"("is":"quantum""gpu":10,"length":50000})",
      R"("is":"quantum_set""gpu":10,"length":50000})",
      R"("is":"quantum_set""gpu":10,"error":14,"category":"system"})",
      R"("is":"quantum""gpu":10,"length":50000})",
      R"("is":"quantum_set""gpu":10,"length":50000})",
      R"("is":"quantum""gpu":10})"};
  EXPECT_EQ(said, expected);
}

TEST(Recorder, WhatNobodyReadsIsLostAndSaidAndTheSchedulerGoesOn) {
  const pipe_file pipe;
  // What it decides when nothing is recorded.
  core_bench other;
  const auto expected = drive(other, 1000);

  auto recorder = core::recorder::create({.file = pipe.path, .buffer = 8192}).value();
  core_bench bench(quick_config(), make_fixed_timeslice({.slice = 20ms}), {}, recorder.get());
  EXPECT_EQ(drive(bench, 1000), expected);
  const std::uint64_t lost = bench.stats().lost_records;
  EXPECT_GT(lost, 1000U);

  // Read on: there is room again, and the next line comes after a gap. All that was lost is said.
  std::string text;
  const auto read_some = [&] {
    std::array<char, 65536> some;
    pollfd wait{pipe.reader, POLLIN, 0};
    if (poll(&wait, 1, 200) <= 0) return false;
    const ssize_t size = read(pipe.reader, some.data(), some.size());
    if (size > 0) text.append(some.data(), static_cast<std::size_t>(size));
    return size > 0;
  };
  while (read_some()) {
  }
  bench.core->finish_stop();
  const auto deadline = clock::now() + 20s;
  while (count(text, "\"is\":\"end\"") == 0 && clock::now() < deadline) read_some();
  EXPECT_EQ(bench.stats().lost_records, lost);
  std::uint64_t said = 0;
  const std::string gap = "\"is\":\"gap\",\"count\":";
  for (auto at = text.find(gap); at != text.npos; at = text.find(gap, at + 1)) {
    said += std::stoull(text.substr(at + gap.size(), 20));
  }
  EXPECT_EQ(said, lost);
  recorder.reset();
}

TEST(Recorder, EndsAlthoughNobodyReads) {
  const pipe_file pipe;
  auto recorder = core::recorder::create({.file = pipe.path}).value();
  const std::string line(1000, 'x');
  for (int i = 0; i < 1000; ++i) EXPECT_TRUE(recorder->put(line));
  recorder->pass_on();
  const auto began = clock::now();
  recorder.reset();
  EXPECT_LT(clock::now() - began, 10s);
}

/// The end waits for a second in all, in which such a reader takes 0.4 MB.
TEST(Recorder, EndsAlthoughSomebodyReadsSlowly) {
  const pipe_file pipe;
  auto recorder = core::recorder::create({.file = pipe.path}).value();
  const std::string line(1000, 'x');
  for (int i = 0; i < 4000; ++i) EXPECT_TRUE(recorder->put(line));
  recorder->pass_on();
  std::atomic<bool> ended{false};
  std::atomic<ssize_t> taken{0};
  std::thread slow([&] {
    std::array<char, 4096> some;
    while (!ended) {
      taken += std::max<ssize_t>(read(pipe.reader, some.data(), some.size()), 0);
      std::this_thread::sleep_for(10ms);  // 4 MB in 10 s.
    }
  });
  const ssize_t before = taken;
  recorder.reset();
  EXPECT_LT(taken - before, 2'000'000);
  ended = true;
  slow.join();
}

TEST(Recorder, AFileThatCannotBeWrittenIsAnError) {
  const test::temporary_directory here;
  EXPECT_EQ(core::recorder::create({.file = here.path() + "/no/where"}).error(),
            boost::system::errc::no_such_file_or_directory);
  EXPECT_EQ(core::recorder::create({.file = here.path() + "/all", .buffer = 1}).error(),
            errc::bad_config);
}

/// A disk that is full takes nothing more.
TEST(Recorder, AFullDiskEndsTheRecordingAndNothingElse) {
  auto recorder = core::recorder::create({.file = "/dev/full"});
  if (!recorder) GTEST_SKIP() << "there is no /dev/full";
  core_bench bench(quick_config(), make_fixed_timeslice({.slice = 20ms}), {}, recorder->get());
  const auto deadline = clock::now() + 20s;
  while (bench.stats().lost_records == 0 && clock::now() < deadline) {
    bench.see(300, role::online);
    bench.step();
  }
  EXPECT_GT(bench.stats().lost_records, 0U);
}

}  // namespace
}  // namespace sluice::tests::recorder_test
