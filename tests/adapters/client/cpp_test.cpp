// The C++ headers over the C library, in the scheduler's own process.

#include "served_node.hpp"

#include <atomic>
#include <memory>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/bind_executor.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/use_future.hpp>
#include <gtest/gtest.h>

#include "sluice/client_acquire.hpp"
#include "sluice/null_backend.hpp"
#include "sluice/policy.hpp"

namespace sluice::test::cpp_test {
namespace {

namespace asio = boost::asio;

class Connection : public ::testing::Test {
 protected:
  void SetUp() override { serve(nullptr); }

  void serve(std::unique_ptr<backend> driver) {
    client::server_options options;
    options.socket = place_.path();
    node_.emplace(std::move(options), served_node::quick(), std::move(driver));
    ASSERT_TRUE(node_->runs());
    std::error_code error;
    client_ = client::connection::open({.socket = place_.path(), .name = "test"}, error);
    ASSERT_FALSE(error) << sluice_client_last_error();
    ASSERT_TRUE(eventually(patience, [&] { return client_.status().connected != 0; }));
  }

  socket_place place_;
  std::optional<served_node> node_;
  client::connection client_;
};

TEST_F(Connection, IsBusyAsLongAsATokenLives) {
  auto outer = client_.busy();
  {
    auto inner = client_.busy();
    const auto moved = std::move(inner);
    EXPECT_FALSE(inner);  // NOLINT: what a moved-from token is, is part of the contract
    EXPECT_EQ(client_.status().in_flight, 2U);
  }
  EXPECT_EQ(client_.status().in_flight, 1U);
  EXPECT_TRUE(node_->suspends());
  // What clients see is written at the turn's end.
  EXPECT_TRUE(eventually(patience, [&] { return client_.status().suspended == 1; }));
  EXPECT_EQ(client_.status().mode, std::uint32_t{SLUICE_CLIENT_MODE_ACTIVE});
  EXPECT_EQ(client_.status().scheduler_pid, getpid());
  outer.end();
  EXPECT_TRUE(node_->resumes());
}

TEST_F(Connection, LosesNothingBetweenThreads) {
  constexpr int threads = 4;
  constexpr int times = 5'000;
  std::vector<std::thread> all;
  for (int i = 0; i < threads; ++i) {
    all.emplace_back([&] {
      for (int j = 0; j < times; ++j) {
        const auto busy = client_.busy();
        const auto span = client_.span(client::span_kind::itl, 1);
      }
    });
  }
  for (auto& each : all) each.join();
  constexpr std::uint64_t expected = std::uint64_t{threads} * times;
  EXPECT_TRUE(eventually(patience, [&] { return node_->stats().begins == expected; }));
  EXPECT_TRUE(node_->resumes());
}

TEST_F(Connection, MarksItsSpans) {
  {
    const auto whole = client_.span(client::span_kind::request, 7);
    client_.begin_span(client::span_kind::ttft, 7, std::chrono::steady_clock::now() - 40s);
    client_.end_span(client::span_kind::ttft, 7);
  }
  const auto lengths = [&](sluice::span_kind kind) {
    return node_->stats().span_length[static_cast<std::size_t>(kind)];
  };
  EXPECT_TRUE(
      eventually(patience, [&] { return lengths(sluice::span_kind::request).count() == 1; }));
  EXPECT_EQ(lengths(sluice::span_kind::ttft).count(), 1U);
  // An end that is marked during a turn of the scheduler counts from the start of this turn.
  EXPECT_GE(lengths(sluice::span_kind::ttft).max(), 20s);
  EXPECT_LT(lengths(sluice::span_kind::ttft).max(), 60s);
}

TEST_F(Connection, CanBeAwaited) {
  asio::io_context context;
  auto done = asio::co_spawn(
      context,
      [&]() -> asio::awaitable<bool> {
        const auto busy = co_await client_.acquire(patience);
        co_return busy.was_clear() && node_->stats().suspended_now == 1;
      },
      asio::use_future);
  context.run();
  EXPECT_TRUE(done.get());
  EXPECT_TRUE(node_->resumes());
}

/// Decides, and lets everything run, so that who waits goes on waiting.
class idle final : public policy {
 public:
  explicit idle(std::shared_ptr<std::atomic<bool>> decides) : decides_(std::move(decides)) {}
  std::string_view name() const noexcept override { return "idle"; }
  void decide(const snapshot&, decision_sink&) override { *decides_ = true; }

 private:
  const std::shared_ptr<std::atomic<bool>> decides_;
};

/// From here on.
void served_by_idle(served_node& node) {
  const auto idles = std::make_shared<std::atomic<bool>>(false);
  node.core().set_policy(std::make_unique<idle>(idles));
  ASSERT_TRUE(eventually(patience, [&] { return idles->load(); }));
}

TEST_F(Connection, CanBeCancelledWhileItWaits) {
  asio::io_context context;
  asio::cancellation_signal cancel;
  std::optional<boost::system::error_code> outcome;
  served_by_idle(*node_);
  client_.acquire(60s, asio::bind_cancellation_slot(
                           cancel.slot(),
                           asio::bind_executor(context, [&](auto error, client::busy_token busy) {
                             outcome = error;
                             EXPECT_FALSE(busy);
                           })));
  EXPECT_EQ(client_.status().in_flight, 1U);
  cancel.emit(asio::cancellation_type::terminal);
  context.run();
  ASSERT_TRUE(outcome);
  EXPECT_EQ(*outcome, asio::error::operation_aborted);
  EXPECT_EQ(client_.status().in_flight, 0U);
}

// Symptom: while a node was paused, every request of a server that waits for clear GPUs was late by
// its whole limit.
TEST_F(Connection, IsNotKeptWaitingWhileNothingDecides) {
  served_by_idle(*node_);
  asio::io_context context;
  int answers = 0;
  const auto acquire = [&] {
    client_.acquire(60s, asio::bind_executor(context, [&](auto error, client::busy_token busy) {
                      EXPECT_FALSE(error);
                      EXPECT_TRUE(busy);
                      EXPECT_FALSE(busy.was_clear());
                      ++answers;
                    }));
  };
  const auto began = std::chrono::steady_clock::now();
  acquire();
  EXPECT_EQ(context.run_for(50ms), 0U) << "it waits";
  node_->core().set_policy(nullptr);
  context.run();
  acquire();
  context.restart();
  context.run();
  EXPECT_EQ(answers, 2);
  EXPECT_LT(std::chrono::steady_clock::now() - began, patience);
}

class ConnectionToAnObserver : public Connection {
 protected:
  void SetUp() override { serve(make_null_backend()); }
};

// Symptom: it was told that the GPUs were clear, and that a queue was suspended, while all ran.
TEST_F(ConnectionToAnObserver, IsNotToldThatItsGpusAreClear) {
  asio::io_context context;
  bool was_clear = true;
  const auto began = std::chrono::steady_clock::now();
  client_.acquire(60s, asio::bind_executor(context, [&](auto error, client::busy_token busy) {
                    EXPECT_FALSE(error);
                    was_clear = busy.was_clear();
                    // The scheduler has decided and believes that it has acted.
                    EXPECT_TRUE(node_->suspends());
                    EXPECT_EQ(client_.status().suspended, 0U);
                  }));
  context.run();
  EXPECT_FALSE(was_clear);
  EXPECT_LT(std::chrono::steady_clock::now() - began, patience) << "at once: nobody makes room";
  EXPECT_EQ(client_.status().mode, std::uint32_t{SLUICE_CLIENT_MODE_OBSERVING});
}

TEST(ConnectionWithoutAScheduler, IsNotKeptWaiting) {
  const socket_place place;
  std::error_code error;
  auto client = client::connection::open({.socket = place.path()}, error);
  ASSERT_FALSE(error) << sluice_client_last_error();
  asio::io_context context;
  const auto began = std::chrono::steady_clock::now();
  int answers = 0;
  for (int i = 0; i < 100; ++i) {
    client.acquire(60s, asio::bind_executor(context, [&](auto failed, client::busy_token busy) {
                     EXPECT_FALSE(failed);
                     EXPECT_TRUE(busy);
                     EXPECT_FALSE(busy.was_clear());
                     ++answers;
                   }));
  }
  context.run();
  EXPECT_EQ(answers, 100);
  EXPECT_LT(std::chrono::steady_clock::now() - began, patience);
}

TEST(ConnectionWithoutAScheduler, SaysWhichMarkFoundNoRoom) {
  const socket_place place;
  const std::string path = place.path();
  sluice_client_options options{};
  options.size = sizeof options;
  options.socket = path.c_str();
  sluice_connection* one = nullptr;
  ASSERT_EQ(sluice_client_open(&options, &one), 0);
  for (std::uint64_t request = 0; request < 1024; ++request) {
    ASSERT_EQ(sluice_client_begin_span(one, SLUICE_CLIENT_REQUEST, request), 0) << request;
  }
  EXPECT_EQ(sluice_client_begin_span(one, 3, 0), -EINVAL);
  EXPECT_EQ(sluice_client_end_span(one, SLUICE_CLIENT_REQUEST, 0), -ENOBUFS);
  EXPECT_STREQ(sluice_client_last_error(),
               "mark dropped: 1024 marks already wait for the scheduler");
  EXPECT_EQ(sluice_client_begin_span(one, 3, 0), -EINVAL);
  EXPECT_STREQ(sluice_client_last_error(), "invalid span kind 3: expected 0 to 2");
  EXPECT_EQ(sluice_client_close(one), 0);
}

TEST(ConnectionOptions, AreCheckedAndNamedInASentence) {
  std::error_code error;
  const auto refused = client::connection::open({.name = std::string(100, 'x')}, error);
  EXPECT_FALSE(refused);
  EXPECT_EQ(error, std::errc::invalid_argument);
  EXPECT_STREQ(sluice_client_last_error(),
               "invalid options.name of 100 bytes: expected at most 63");
  client::connection none;
  none.begin();
  EXPECT_FALSE(none.busy());
  EXPECT_FALSE(none.span(client::span_kind::itl, 1));
}

}  // namespace
}  // namespace sluice::test::cpp_test
