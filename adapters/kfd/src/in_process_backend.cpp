#include "sluice/kfd/in_process_backend.hpp"

#include <chrono>

#include "sluice/kfd/device.hpp"
#include "sluice/kfd/lanes.hpp"

namespace sluice::kfd {

namespace {

using namespace std::chrono_literals;

/// Longer than a driver call in flight may last, so that stop() leaves no thread behind.
constexpr duration stop_patience = 10s;

class in_process_backend final : public backend {
 public:
  explicit in_process_backend(in_process_options options) : options_(std::move(options)) {}
  ~in_process_backend() override { stop(); }

  std::string_view name() const noexcept override { return "kfd, in process"; }

  result<void> start(backend_listener& listener) override {
    if (lanes_) return {};
    listener_ = &listener;
    if (!options_.owner_lock.empty()) {
      auto locked = node_lock::acquire(options_.owner_lock, options_.say);
      if (!locked) return locked.error();
      lock_ = std::move(*locked);
    }
    auto opened = device::open(options_.roots.device, options_.say);
    if (!opened) return give_up(opened.error());
    device_ = std::move(*opened);
    auto created = lanes::create(*device_, {.batch_commands = options_.batch_commands,
                                            .sysfs = options_.roots.sysfs,
                                            .say = options_.say});
    if (!created) return give_up(created.error());
    lanes_ = std::move(*created);
    return {};
  }

  int ready_fd() const noexcept override { return lanes_ ? lanes_->ready_fd() : -1; }

  void drain() override {
    if (!lanes_) return;
    lanes_->flush();  // For whoever submits without it.
    while (lanes_->next(report_)) deliver(report_, *listener_);
  }

  result<void> attach(process_id target, pid_t pid, std::uint64_t start_time) override {
    if (!lanes_) return errc::stopped;
    return lanes_->attach(target, pid, start_time);
  }

  result<void> detach(process_id target) override {
    if (!lanes_) return errc::stopped;
    return lanes_->detach(target);
  }

  result<void> submit(const batch& work) override {
    if (!lanes_) return errc::stopped;
    return lanes_->submit(work);
  }

  result<void> reserve(gpu_id gpu, double offline_share) override {
    if (!lanes_) return errc::stopped;
    return lanes_->reserve(gpu, offline_share);
  }

  void flush() override {
    if (lanes_) lanes_->flush();
  }

  time_point tick(time_point now) override { return lanes_ ? lanes_->check(now) : never; }

  void stop() override {
    if (lanes_) lanes_->stop(stop_patience);
    lanes_.reset();
    device_.reset();
    lock_.reset();
  }

 private:
  error_code give_up(const error_code& why) {
    device_.reset();
    lock_.reset();
    return why;
  }

  in_process_options options_;
  backend_listener* listener_ = nullptr;
  std::unique_ptr<node_lock> lock_;
  std::unique_ptr<device> device_;
  std::unique_ptr<lanes> lanes_;
  report report_;
};

}  // namespace

std::unique_ptr<backend> make_in_process_backend(in_process_options options) {
  return std::make_unique<in_process_backend>(std::move(options));
}

}  // namespace sluice::kfd
