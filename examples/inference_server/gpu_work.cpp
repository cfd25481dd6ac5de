#include "gpu_work.hpp"

#include <algorithm>
#include <utility>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/async_result.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>

namespace inference {

namespace asio = boost::asio;
using namespace std::chrono_literals;
using sluice::error_code;

sluice::result<std::unique_ptr<gpu>> gpu::open(asio::io_context& context) {
  auto client = sluice::sim::gpu_client::open({});
  if (client.has_error()) return client.error();
  // Priority 11 is what ROCr gives a stream of high priority.
  auto queue = (*client)->create_queue({.packets = 4096, .priority = 11});
  if (queue.has_error()) return queue.error();
  return std::unique_ptr<gpu>(new gpu(context, std::move(*client), std::move(*queue)));
}

gpu::gpu(asio::io_context& context, std::unique_ptr<sluice::sim::gpu_client> client,
         std::unique_ptr<sluice::sim::gpu_queue> queue)
    : context_(context),
      client_(std::move(client)),
      queue_(std::move(queue)),
      waiter_([this] { wait_for_bursts(); }) {}

gpu::~gpu() {
  stop();
  waiter_.join();
}

bool gpu::stopping() {
  const std::lock_guard lock(mutex_);
  return stopping_;
}

void gpu::stop() {
  const std::lock_guard lock(mutex_);
  stopping_ = true;
  changed_.notify_one();
}

asio::awaitable<error_code> gpu::run(burst work) {
  const auto last = co_await launch(work);
  if (last.has_error()) co_return last.error();
  constexpr auto no_throw = asio::as_tuple(asio::use_awaitable);
  const auto [failed] = co_await asio::async_initiate<decltype(no_throw), void(error_code)>(
      [this, kernel = *last](auto handler) {
        pending one{kernel, std::move(handler), asio::make_work_guard(context_)};
        const std::lock_guard lock(mutex_);
        if (stopping_) return complete(std::move(one), asio::error::operation_aborted);
        bursts_.push_back(std::move(one));
        changed_.notify_one();
      },
      no_throw);
  co_return failed;
}

/// \return the last kernel's index.
asio::awaitable<sluice::result<std::uint64_t>> gpu::launch(burst work) {
  sluice::sim::kernel next{
      .length = work.length, .waves = std::max(client_->wave_slots() / 2, 1u), .notify = false};
  std::uint64_t last = 0;
  for (unsigned left = work.kernels; left > 0;) {
    next.notify = left == 1;  // Each wake-up costs.
    const auto index = queue_->submit(next);
    if (index.has_value()) {
      last = *index;
      --left;
    } else if (index.error() == sluice::errc::full) {
      if (stopping()) co_return error_code(asio::error::operation_aborted);
      queue_->ring();
      asio::steady_timer room(context_, 1ms);
      co_await room.async_wait(asio::use_awaitable);
    } else {
      co_return index.error();
    }
  }
  queue_->ring();
  co_return last;
}

void gpu::wait_for_bursts() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return stopping_ || !bursts_.empty(); });
    if (stopping_) break;
    const std::uint64_t last = bursts_.front().last;
    lock.unlock();
    const auto done = queue_->wait(last, 100ms);  // Not longer, to see stopping_.
    lock.lock();
    if (done.has_error() && done.error() == boost::system::errc::timed_out) continue;
    pending front = std::move(bursts_.front());
    bursts_.pop_front();
    complete(std::move(front), done.has_error() ? done.error() : error_code{});
  }
  while (!bursts_.empty()) {
    pending front = std::move(bursts_.front());
    bursts_.pop_front();
    complete(std::move(front), asio::error::operation_aborted);
  }
}

void gpu::complete(pending which, error_code with) {
  // With the work guard: the io_context has work until the handler has run.
  const auto executor = which.work.get_executor();
  asio::post(executor, [all = std::move(which), with]() mutable { std::move(all.done)(with); });
}

}  // namespace inference
