#pragma once
/// \file
/// GPU work for coroutines: kernels on one queue of the simulated GPU, waited for without blocking
/// the io_context. In a real server this file would be HIP: a kernel launch, and
/// hipLaunchHostFunc() or hsa_amd_signal_async_handler() to post its end to the io_context.

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>

#include <boost/asio/any_completion_handler.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>

#include "sluice/result.hpp"
#include "sluice/sim/client.hpp"
#include "sluice/time.hpp"

namespace inference {

/// Kernels that are launched together and waited for together. Each fills half of the GPU.
struct burst {
  unsigned kernels = 4;
  sluice::duration length = std::chrono::microseconds(100);  ///< Of one kernel.
};

/// Threading: the thread that runs the io_context. The driver offers nothing to poll for the end of
///            a kernel, only a call that blocks, so one thread of its own does nothing but that.
/// Lifetime:  destruction stops it and ends the thread; not while a coroutine is in run().
class gpu {
 public:
  [[nodiscard]] static sluice::result<std::unique_ptr<gpu>> open(boost::asio::io_context& context);
  ~gpu();
  gpu(const gpu&) = delete;
  gpu& operator=(const gpu&) = delete;

  /// Launches the kernels behind all that were launched before, and completes when the last one has
  /// finished.
  /// \return errc::lost when the GPU was reset, operation_aborted after stop().
  boost::asio::awaitable<sluice::error_code> run(burst work);
  /// Completes every run() without waiting for the GPU.
  void stop();

 private:
  struct pending {
    std::uint64_t last;  ///< Kernel.
    boost::asio::any_completion_handler<void(sluice::error_code)> done;
    boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work;
  };

  gpu(boost::asio::io_context& context, std::unique_ptr<sluice::sim::gpu_client> client,
      std::unique_ptr<sluice::sim::gpu_queue> queue);
  boost::asio::awaitable<sluice::result<std::uint64_t>> launch(burst work);
  bool stopping();
  void wait_for_bursts();
  static void complete(pending which, sluice::error_code with);

  boost::asio::io_context& context_;
  std::unique_ptr<sluice::sim::gpu_client> client_;
  std::unique_ptr<sluice::sim::gpu_queue> queue_;

  std::mutex mutex_;  // Guards what follows; never held while anybody waits for the GPU.
  std::condition_variable changed_;
  std::deque<pending> bursts_;  // In the order of their kernels.
  bool stopping_ = false;
  std::thread waiter_;
};

}  // namespace inference
