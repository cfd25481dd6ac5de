/// What the words of a CUDA program tell of its work, against words that behave as measured on an
/// H200 (driver 580.159.04, CUDA 13), and against others.

#include "work_view.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace sluice::nvidia {
namespace {

using namespace std::chrono_literals;

constexpr gpu_id here{7};
constexpr std::uint64_t node_at = 0x200600000;
constexpr std::uint64_t control_at = 0x204600000;
constexpr std::uint64_t mapping_bytes = 2U << 20U;
/// Where another GPU's context is, beyond that one's.
constexpr gpu_id there{8};
constexpr std::uint64_t beyond = 0x100000000;
constexpr std::uint32_t ring_entries = 1024;

/// A process with a CUDA context: its words, and the GPU that writes them.
class cuda_process {
 public:
  struct layout {
    std::uint64_t records_end = 0x10000;
    std::uint64_t states_end = 0x38000;
    std::uint64_t graphs_end = 0x28000;
    std::uint32_t begun = 0;  ///< What each channel had submitted before it is looked at.
    bool states = true;
  };
  explicit cuda_process(unsigned channels, layout where) : where_(where), channels_(channels) {
    node_.resize(mapping_bytes / 4);
    control_.resize(mapping_bytes / 4);
    for (unsigned index = 0; index < channels; ++index) {
      channels_[index].submitted = channels_[index].begun = where.begun + 17 * index;
      if (where.begun == 0) channels_[index].submitted = channels_[index].begun = 0;
      store(index);
    }
  }
  cuda_process() : cuda_process(20, {}) {}

  /// \param kernels run after it has begun; 0: it does something that ends at once.
  void submit(unsigned channel, unsigned kernels = 1) {
    channels_[channel].work.push_back(kernels);
    ++channels_[channel].submitted;
    store(channel);
  }
  /// The GPU begins the next submission. \return whether there was one.
  bool begin(unsigned channel) {
    auto& one = channels_[channel];
    if (one.work.empty() || one.running) return false;
    ++one.begun;
    const unsigned kernels = one.work.front();
    one.work.pop_front();
    store(channel);
    if (kernels == 0) return true;
    one.running = true;
    state(channel, 1);
    return true;
  }
  /// A copy: begun means ended.
  void end(unsigned channel) {
    auto& one = channels_[channel];
    if (!one.running) return;
    state(channel, 2);
    ++one.kernels;
    one.running = false;
  }
  void run(unsigned channel, unsigned kernels = 1) {
    submit(channel, kernels);
    begin(channel);
    end(channel);
  }
  /// A launch of a graph, whose states lie elsewhere.
  void graph_begins(unsigned graph) {
    word(control_, graph_at(graph)) = ++graphs_[graph] << 2U | 1U;
  }
  void graph_ends(unsigned graph) { word(control_, graph_at(graph)) = graphs_[graph] << 2U | 2U; }

  std::uint32_t& control_word(std::uint64_t offset) { return word(control_, offset); }
  std::uint64_t state_at(unsigned channel, std::uint32_t kernel) const {
    return where_.states_end - 0x100 - 0x80 * channel + 8 * (kernel % 8) + 4;
  }
  std::uint32_t& count_of(unsigned channel) {
    return word(control_, where_.records_end - 16 * (channel + 1));
  }
  std::uint32_t kernels_of(unsigned channel) const { return channels_[channel].kernels; }
  bool works() const {
    return std::ranges::any_of(channels_,
                               [](const auto& each) { return each.running || !each.work.empty(); });
  }

  words_reader reader() {
    return [this](std::uint64_t at, std::span<std::uint32_t> into) {
      for (auto& [begin, words] : {std::pair{node_at, &node_}, {control_at, &control_}}) {
        if (at < begin || at + into.size_bytes() > begin + mapping_bytes) continue;
        if (unreadable && begin == control_at) return false;
        std::copy_n(words->begin() + static_cast<std::ptrdiff_t>((at - begin) / 4), into.size(),
                    into.begin());
        ++reads;
        if (begin == node_at) ++channel_reads;
        words_read += into.size();
        return true;
      }
      return false;
    };
  }
  static std::vector<device_mapping> mappings() {
    return {{node_at, node_at + mapping_bytes, here},
            {control_at, control_at + mapping_bytes, gpu_id::none}};
  }

  bool unreadable = false;  ///< The words that the GPU writes.
  unsigned reads = 0;
  unsigned channel_reads = 0;
  std::size_t words_read = 0;

 private:
  struct one_channel {
    std::uint32_t submitted = 0;
    std::uint32_t begun = 0;
    std::uint32_t kernels = 0;
    bool running = false;
    std::deque<unsigned> work;
  };
  static std::uint32_t& word(std::vector<std::uint32_t>& in, std::uint64_t offset) {
    return in.at(offset / 4);
  }
  std::uint64_t graph_at(unsigned graph) const { return where_.graphs_end - 0x50 * graph - 4; }
  void state(unsigned channel, std::uint32_t what) {
    const std::uint32_t kernel = channels_[channel].kernels;
    if (where_.states) word(control_, state_at(channel, kernel)) = (kernel / 8 + 1) << 2U | what;
  }
  void store(unsigned index) {
    const one_channel& one = channels_[index];
    if (one.submitted == 0) return;
    const std::uint64_t userd = 0x3000 * std::uint64_t{index} + 0x2000;
    word(node_, userd + 0x40) = 0x10000 + 0x34 * one.submitted;
    word(node_, userd + 0x44) = 0x10000 + 0x34 * one.begun;
    word(node_, userd + 0x4c) = word(node_, userd + 0x60) = 2;
    word(node_, userd + 0x88) = one.begun % ring_entries;
    word(node_, userd + 0x8c) = one.submitted % ring_entries;
    const std::uint64_t record = where_.records_end - 16 * (std::uint64_t{index} + 1);
    if (one.begun == 0 || word(control_, record) == one.begun) return;
    const auto now = static_cast<std::uint64_t>(
        std::chrono::nanoseconds{std::chrono::system_clock::now().time_since_epoch()}.count());
    word(control_, record) = one.begun;
    word(control_, record + 8) = static_cast<std::uint32_t>(now);
    word(control_, record + 12) = static_cast<std::uint32_t>(now >> 32U);
  }

  layout where_;
  std::vector<one_channel> channels_;
  std::map<unsigned, std::uint32_t> graphs_;
  std::vector<std::uint32_t> node_;
  std::vector<std::uint32_t> control_;
};

class WorkView : public ::testing::Test {
 protected:
  void look() {
    time_ += 100us;
    view_.look(reader(), time_);
  }
  words_reader reader() {
    if (!second_) return process_->reader();
    return [first = process_->reader(), second = second_->reader()](std::uint64_t at, auto into) {
      return at < beyond + node_at ? first(at, into) : second(at - beyond, into);
    };
  }
  /// From now on, it also has a context on another GPU.
  void add_second(cuda_process::layout where = {}) {
    second_ = std::make_unique<cuda_process>(20, where);
    add_second_records();
  }
  void add_second_records() {
    auto mappings = cuda_process::mappings();
    mappings.push_back({beyond + control_at, beyond + control_at + mapping_bytes, gpu_id::none});
    mappings.insert(mappings.begin() + 1,
                    {beyond + node_at, beyond + node_at + mapping_bytes, there});
    view_.set_mappings(mappings);
  }
  void looks(unsigned count) {
    while (count-- > 0) look();
  }
  online_work work(gpu_id on = here) const {
    const auto found = std::ranges::find(view_.places(), on, &work_view::place::gpu);
    return found == view_.places().end() ? online_work::unknown : found->work;
  }
  void begin(unsigned channels = 20, cuda_process::layout where = {}) {
    process_ = std::make_unique<cuda_process>(channels, where);
    view_.set_mappings(cuda_process::mappings());
    looks(300);
  }
  /// Searches have pauses.
  void wait_for_a_search() {
    time_ += 10s;
    looks(300);
  }
  /// Until the words must be known.
  void learn(unsigned channel) { learn(channel, *process_); }
  void learn(unsigned channel, cuda_process& of) {
    wait_for_a_search();
    for (unsigned i = 0; i < 80; ++i) {
      of.submit(channel);
      look();
      of.begin(channel);
      look();
      of.end(channel);
      looks(20);
    }
  }
  cuda_process& process() { return *process_; }

  std::unique_ptr<cuda_process> process_;
  std::unique_ptr<cuda_process> second_;
  work_view view_;
  time_point time_{1h};
};

TEST_F(WorkView, SeesSubmittedRunningAndEnded) {
  begin();
  process().run(0);
  learn(0);
  ASSERT_EQ(work(), online_work::finished) << view_.why_unsure();
  process().submit(0);
  look();
  EXPECT_EQ(work(), online_work::waiting);
  EXPECT_EQ(view_.places().front().came, 1U);
  EXPECT_EQ(view_.places().front().waiting, 1U);
  process().begin(0);
  looks(50);
  EXPECT_EQ(work(), online_work::running);
  process().end(0);
  looks(2);
  EXPECT_EQ(work(), online_work::finished);
}

// With many channels a look takes so long that the next one would come late.
TEST_F(WorkView, SeesTheEndInOneLookAtManyChannels) {
  begin();
  for (unsigned channel = 0; channel < 8; ++channel) process().run(channel);
  for (unsigned channel = 0; channel < 8; ++channel) learn(channel);
  for (unsigned channel = 0; channel < 8; ++channel) {
    process().run(channel);
    looks(5);
  }
  process().submit(3);
  process().begin(3);
  looks(5);
  ASSERT_EQ(work(), online_work::running) << view_.why_unsure();
  process().end(3);
  look();
  EXPECT_EQ(work(), online_work::finished);
}

// A mapping may vanish while it is read.
TEST_F(WorkView, IsNotFinishedWhereItsWordsCannotBeRead) {
  begin();
  process().run(0);
  learn(0);
  process().submit(0);
  process().begin(0);
  looks(5);
  ASSERT_EQ(work(), online_work::running) << view_.why_unsure();
  process().unreadable = true;
  for (unsigned i = 0; i < 50; ++i) {
    look();
    ASSERT_NE(work(), online_work::finished) << i;
  }
  process().unreadable = false;
  looks(5);
  EXPECT_EQ(work(), online_work::running);
  process().end(0);
  looks(300);  // It searches whether it has missed something.
  EXPECT_EQ(work(), online_work::finished);
}

// Each read of a channel goes over PCIe.
TEST_F(WorkView, ReadsFewChannelsWhileKernelsRun) {
  begin();
  for (unsigned channel = 0; channel < 8; ++channel) process().run(channel);
  for (unsigned channel = 0; channel < 8; ++channel) learn(channel);
  for (unsigned channel = 0; channel < 8; ++channel) {
    process().run(channel);
    looks(5);
  }
  process().submit(3);
  process().begin(3);
  looks(8);
  ASSERT_EQ(work(), online_work::running) << view_.why_unsure();
  process().channel_reads = 0;
  looks(80);
  const unsigned busy = process().channel_reads;
  process().end(3);
  looks(8);
  process().channel_reads = 0;
  looks(80);
  EXPECT_LT(4 * busy, process().channel_reads);
}

// A search goes on from look to look: what begins meanwhile is seen in time.
TEST_F(WorkView, SearchesALittleAtEachLook) {
  process_ = std::make_unique<cuda_process>();
  view_.set_mappings(cuda_process::mappings());
  look();  // Looks that are far apart may take longer.
  std::size_t most_words = 0;
  unsigned most_reads = 0;
  for (unsigned i = 0; i < 3000; ++i) {
    if (i % 3 == 0) process().run(i / 3 % 20, i % 2);
    process().words_read = process().reads = 0;
    look();
    most_words = std::max(most_words, process().words_read);
    most_reads = std::max(most_reads, process().reads);
  }
  // All channels, and beside them a piece of each kind of search.
  EXPECT_LE(most_reads, 40U);
  EXPECT_LE(most_words, 48U * page_words);
}

// A request that begins and ends between two looks is an arrival all the same.
TEST_F(WorkView, CountsWhatEndedBetweenTwoLooks) {
  begin();
  process().run(0);
  learn(0);
  for (int i = 0; i < 5; ++i) process().run(0);
  look();
  EXPECT_EQ(view_.places().front().came, 5U);
}

// A process that ran for long before anybody looked: its rings have come round.
TEST_F(WorkView, LearnsOfAProcessThatRanBefore) {
  begin(20, {.begun = 70'000});
  learn(1);
  process().submit(1);
  process().begin(1);
  looks(3);
  EXPECT_EQ(work(), online_work::running);
  process().end(1);
  looks(2);
  EXPECT_EQ(work(), online_work::finished);
}

// A program that has always more to do than the GPU has done.
TEST_F(WorkView, LearnsOfAProcessThatNeverRests) {
  begin(20, {.begun = 3'000});
  for (unsigned i = 0; i < 30; ++i) process().submit(2);
  wait_for_a_search();
  for (unsigned i = 0; i < 200; ++i) {
    process().submit(2);
    process().begin(2);
    looks(3);
    process().end(2);
    looks(1);
  }
  EXPECT_EQ(view_.places().front().waiting, 30U);
  while (process().begin(2)) {
    looks(3);
    EXPECT_NE(work(), online_work::finished);
    process().end(2);
  }
  looks(3);
  EXPECT_EQ(work(), online_work::finished) << view_.why_unsure();
}

// The places are libcuda's own affair.
TEST_F(WorkView, FindsTheWordsWhereverTheyAre) {
  begin(6, {.records_end = 0x1f3000, .states_end = 0x8000, .graphs_end = 0x100000});
  process().run(0);
  learn(0);
  process().submit(0);
  process().begin(0);
  looks(3);
  EXPECT_EQ(work(), online_work::running);
  process().end(0);
  looks(2);
  EXPECT_EQ(work(), online_work::finished);
}

// Symptom: an end while a kernel ran, of a program whose state words are somewhere else.
TEST_F(WorkView, DeclaresNoEndWithoutStateWords) {
  begin(20, {.states = false});
  process().run(0);
  wait_for_a_search();
  for (unsigned i = 0; i < 400; ++i) {
    process().submit(0);
    look();
    process().begin(0);
    looks(3);
    EXPECT_NE(work(), online_work::finished);
    process().end(0);
    looks(3);
    EXPECT_NE(work(), online_work::finished);
  }
  looks(100);
  EXPECT_NE(view_.why_unsure().find("whether kernels run"), std::string::npos)
      << view_.why_unsure();
}

// Copies have no state word: their record moves at their end.
TEST_F(WorkView, SeesTheEndOfCopies) {
  begin();
  process().run(0);
  process().run(9, 0);
  learn(0);
  for (unsigned i = 0; i < 40; ++i) {
    process().submit(9, 0);
    looks(2);
    EXPECT_EQ(work(), online_work::waiting);
    process().begin(9);
    looks(100);
    EXPECT_EQ(work(), online_work::finished) << "copy " << i;
  }
  // Known now: no search delays it.
  process().submit(9, 0);
  look();
  process().begin(9);
  looks(2);
  EXPECT_EQ(work(), online_work::finished);
}

// A graph's states lie in a page of their own, in which nothing has changed before.
TEST_F(WorkView, FindsTheStatesOfANewGraph) {
  begin();
  process().run(0);
  learn(0);
  for (unsigned i = 0; i < 30; ++i) {
    process().submit(0, 0);
    look();
    process().begin(0);
    process().graph_begins(0);
    looks(3);
    EXPECT_NE(work(), online_work::finished) << "launch " << i;
    looks(60);
    EXPECT_NE(work(), online_work::finished) << "launch " << i;
    process().graph_ends(0);
    looks(60);
    EXPECT_EQ(work(), online_work::finished) << "launch " << i;
  }
}

// A stream that was not used before, whose words are in a page that is known.
TEST_F(WorkView, SeesANewStream) {
  begin();
  process().run(0);
  learn(0);
  for (unsigned channel = 1; channel < 8; ++channel) {
    process().submit(channel);
    process().begin(channel);
    looks(60);
    EXPECT_NE(work(), online_work::finished) << "channel " << channel;
    process().end(channel);
    looks(60);
    EXPECT_EQ(work(), online_work::finished) << "channel " << channel;
  }
}

TEST_F(WorkView, GivesUpWordsThatChangeInAnotherWay) {
  begin();
  process().run(0);
  learn(0);
  ASSERT_EQ(work(), online_work::finished);
  process().control_word(process().state_at(0, 3)) = 3;
  looks(20);
  EXPECT_EQ(work(), online_work::consumed);
  EXPECT_FALSE(view_.why_unsure().empty());
  process().run(0);
  looks(10);
  EXPECT_NE(work(), online_work::finished);
}

// A record that counts by itself.
TEST_F(WorkView, GivesUpARecordThatIsAhead) {
  begin();
  process().run(0);
  learn(0);
  for (int i = 0; i < 20; ++i) {
    process().count_of(0) += 3;
    looks(2);
    process().run(0);
    looks(2);
  }
  looks(600);
  process().submit(0);
  process().begin(0);
  looks(5);
  EXPECT_NE(work(), online_work::finished);
}

TEST_F(WorkView, ForgetsAMappingThatIsGone) {
  begin();
  process().run(0);
  learn(0);
  ASSERT_EQ(work(), online_work::finished);
  view_.set_mappings({cuda_process::mappings().front()});
  looks(10);
  EXPECT_NE(work(), online_work::finished);
  view_.set_mappings(cuda_process::mappings());
  looks(100);
  learn(0);
  EXPECT_EQ(work(), online_work::finished);
  // As after the last context on that GPU.
  view_.set_mappings({});
  looks(10);
  EXPECT_THAT(view_.places(), ::testing::IsEmpty());
}

// Symptom: nothing was ever seen of a GPU whose context had not been used when it was searched.
TEST_F(WorkView, SeesWorkOnAGpuThatIsUsedLater) {
  begin();
  add_second();
  looks(300);
  process().run(0);
  learn(0);
  wait_for_a_search();
  EXPECT_EQ(work(), online_work::finished);
  EXPECT_EQ(work(there), online_work::unknown);
  second_->run(0);
  for (int search = 0; search < 2; ++search) learn(0, *second_);  // Of records, then of channels.
  EXPECT_EQ(work(there), online_work::finished) << view_.why_unsure();
  second_->submit(0);
  look();
  EXPECT_EQ(work(there), online_work::waiting);
  second_->begin(0);
  looks(5);
  EXPECT_EQ(work(there), online_work::running);
  EXPECT_EQ(work(), online_work::finished);
  second_->end(0);
  looks(5);
  EXPECT_EQ(work(there), online_work::finished);
}

// As a model that is spread over both GPUs. Symptom: the work of one was shown on the other one.
TEST_F(WorkView, SeesWorkThatIsAlwaysOnBothGpus) {
  const auto submit = [](cuda_process& on) {
    on.submit(0);
    on.begin(0);
  };
  for (unsigned variant = 0; variant < 4; ++variant) {
    SCOPED_TRACE(variant);
    view_ = {};
    process_ = std::make_unique<cuda_process>();
    add_second();
    std::array both{process_.get(), second_.get()};
    if (variant % 2 == 1) std::ranges::reverse(both);
    // Before the first search, or during it.
    if (variant < 2)
      for (cuda_process* const each : both) each->run(0);
    looks(variant < 2 ? 1 : 200);
    for (unsigned i = variant; i < 2000; ++i) {
      submit(*both[0]);
      if (i % 10 == 0) look();
      submit(*both[1]);
      look();
      for (cuda_process* const each : both) each->end(0);
      looks(2);
    }
    time_ += 1s;
    for (cuda_process* const busy : both) {
      EXPECT_EQ(work(), online_work::finished) << view_.why_unsure();
      EXPECT_EQ(work(there), online_work::finished) << view_.why_unsure();
      submit(*busy);
      looks(5);
      EXPECT_EQ(work(busy == process_.get() ? here : there), online_work::running);
      EXPECT_EQ(work(busy == process_.get() ? there : here), online_work::finished);
      busy->end(0);
      looks(5);
    }
  }
}

// Symptom: on a busy machine, the record of one GPU was taken for that of the other one, whose own
// one was not known yet. Then the work of one waited for ever, and that of the other never ended.
TEST_F(WorkView, LeavesARecordOpenThatMayBeOfTwoGpus) {
  process_ = std::make_unique<cuda_process>();
  add_second();
  auto mappings = cuda_process::mappings();
  mappings.push_back({beyond + node_at, beyond + node_at + mapping_bytes, there});
  view_.set_mappings(mappings);  // Without the records of the second one.
  std::array both{process_.get(), second_.get()};
  const auto rounds = [&](unsigned count, bool apart) {
    for (; count > 0; --count) {
      for (cuda_process* const each : both) {
        each->submit(0);
        each->begin(0);
        if (apart) look();
      }
      look();
      for (cuda_process* const each : both) each->end(0);
      looks(2);
    }
  };
  for (cuda_process* const each : both) each->run(0);
  wait_for_a_search();
  looks(3000);
  rounds(200, false);
  EXPECT_EQ(work(), online_work::consumed);
  EXPECT_EQ(work(there), online_work::consumed);
  add_second_records();
  for (int search = 0; search < 3; ++search) {
    wait_for_a_search();
    rounds(200, true);
  }
  for (cuda_process* const busy : both) {
    EXPECT_EQ(work(), online_work::finished) << view_.why_unsure();
    EXPECT_EQ(work(there), online_work::finished) << view_.why_unsure();
    busy->submit(0);
    busy->begin(0);
    looks(5);
    EXPECT_EQ(work(busy == process_.get() ? here : there), online_work::running);
    EXPECT_EQ(work(busy == process_.get() ? there : here), online_work::finished);
    busy->end(0);
    looks(5);
  }
}

// The same for all schedules: while something of a known channel waits or runs, it is never
// finished; and what came is what was submitted.
TEST_F(WorkView, IsNeverFinishedWhileWorkRuns) {
  for (unsigned seed = 1; seed <= 20; ++seed) {
    std::mt19937 random{seed};
    const auto below = [&random](unsigned most) { return static_cast<unsigned>(random() % most); };
    view_ = {};
    begin(20, {.begun = seed % 2 == 0 ? 0U : 5'000U * seed});
    for (const unsigned channel : {0U, 1U, 2U}) {
      process().run(channel);
      learn(channel);
    }
    // In use: looked at each time.
    for (const unsigned channel : {0U, 1U, 2U}) process().run(channel);
    looks(20);
    std::uint64_t submitted = 0;
    std::uint64_t came = 0;
    for (unsigned step = 0; step < 20'000; ++step) {
      const unsigned channel = below(3);
      switch (below(4)) {
        case 0:
          process().submit(channel, below(4) == 0 ? 0U : 1U);
          ++submitted;
          break;
        case 1: process().begin(channel); break;
        case 2: process().end(channel); break;
        default: {
          look();
          for (const auto& each : view_.places()) came += each.came;
          if (process().works()) {
            ASSERT_NE(work(), online_work::finished) << "seed " << seed << ", step " << step;
          }
        }
      }
    }
    // Of a busy channel, what came shows a few looks later.
    for (unsigned count = 0; count < 8; ++count) {
      look();
      for (const auto& each : view_.places()) came += each.came;
    }
    EXPECT_EQ(came, submitted) << "seed " << seed;
    EXPECT_EQ(view_.why_unsure(), "") << "seed " << seed;
  }
}

// Memory that is anything: it ends, and claims nothing.
TEST_F(WorkView, SurvivesAnyMemory) {
  for (unsigned seed = 1; seed <= 20; ++seed) {
    std::mt19937 random{seed};
    work_view view;
    view.set_mappings(cuda_process::mappings());
    const words_reader read = [&](std::uint64_t, std::span<std::uint32_t> into) {
      if (random() % 50 == 0) return false;
      for (std::uint32_t& each : into)
        each = random() % 3 == 0 ? static_cast<std::uint32_t>(random()) : random() % 8;
      return true;
    };
    for (unsigned count = 0; count < 100; ++count) view.look(read, time_ += 100us);
  }
}

TEST(KernelStates, ForgetsWhatWordsOfAnotherKindProved) {
  constexpr std::uint64_t at = 0x7f0000000000;
  std::vector<std::uint32_t> memory(4 * page_words);
  kernel_states states{{at, at + 4 * page_bytes, gpu_id::none}};
  const auto look = [&] {
    return states.look(
        [&](std::uint64_t from, std::span<std::uint32_t> into) {
          std::copy_n(memory.begin() + static_cast<std::ptrdiff_t>((from - at) / 4), into.size(),
                      into.begin());
          return true;
        },
        8);
  };
  ASSERT_TRUE(look());
  states.search();
  for (std::uint32_t count = 1; count < 8; ++count) {
    for (const std::uint32_t what : {1U, 2U}) {
      for (unsigned word = 0; word < 8; ++word) memory[2 * page_words + word] = count << 2U | what;
      ASSERT_TRUE(look());
    }
  }
  ASSERT_TRUE(states.known());
  states.leave_out(at + 2 * page_bytes);
  EXPECT_FALSE(states.known());
}

}  // namespace
}  // namespace sluice::nvidia
