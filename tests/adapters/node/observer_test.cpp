#include "observer.hpp"

#include "eventually.hpp"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace sluice::test::observer_test {
namespace {

using namespace std::chrono_literals;

/// Shows the turn that it is told, and may write to the journal while it is looked at.
class shown_node final : public observed_node {
 public:
  explicit shown_node(observer& to) : to_(to) {}
  result<picture> look() override {
    if (looks++ < failures) return errc::busy;
    // Between the look and the picture a turn ends, and afterwards another one begins.
    to_.sink().put({.kind = journal_kind::stop, .number = 1, .turn = 100});
    to_.sink().put({.kind = journal_kind::stop, .number = 2, .turn = 101});
    return picture{.turns = 100};
  }
  std::unique_ptr<statistics> stats() const override { return std::make_unique<statistics>(); }

  std::atomic<int> looks{0};
  int failures = 0;

 private:
  observer& to_;
};

class noting_reader final : public journal_reader {
 public:
  explicit noting_reader(std::string& into, std::atomic<bool>& done) : into_(into), done_(done) {}
  void hear(const journal_entry& entry) override {
    if (entry.number == 0) return;
    into_ += "heard " + std::to_string(entry.number) + ", ";
    if (entry.number == 2) done_ = true;
  }
  void missed(std::uint64_t) override { into_ += "missed, "; }
  void mend(const picture& seen) override { into_ += "mend " + std::to_string(seen.turns) + ", "; }

 private:
  std::string& into_;
  std::atomic<bool>& done_;
};

class Observer : public testing::Test {
 protected:
  /// More than there is room for, before anybody reads.
  void overflow() {
    for (std::size_t i = 0; i < journal::usual_capacity + 10; ++i)
      made_->sink().put({.kind = journal_kind::stop, .turn = 7});
  }
  void run() {
    made_->add(std::make_unique<noting_reader>(told_, done_));
    made_->show(node_);
    overflow();
    ASSERT_TRUE(made_->start());
    made_->owns(true);
  }

  std::unique_ptr<observer> made_ = observer::create().value();
  shown_node node_{*made_};
  std::string told_;
  std::atomic<bool> done_{false};
};

// What was written before the picture is heard before it, what comes after it afterwards.
TEST_F(Observer, LooksWhereEntriesWereLost) {
  run();
  EXPECT_TRUE(eventually(patience, [&] { return done_.load(); }));
  made_->stop();
  EXPECT_EQ(told_, "missed, heard 1, mend 100, heard 2, ");
  EXPECT_EQ(node_.looks, 1);
}

TEST_F(Observer, LooksAgainWhereThatFails) {
  node_.failures = 1;
  run();
  EXPECT_TRUE(eventually(patience, [&] { return done_.load(); }));
  made_->stop();
  EXPECT_EQ(told_, "missed, heard 1, mend 100, heard 2, ");
  EXPECT_EQ(node_.looks, 2);
}

}  // namespace
}  // namespace sluice::test::observer_test
