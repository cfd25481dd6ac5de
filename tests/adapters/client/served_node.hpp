#pragma once
/// \file
/// A scheduler on a thread of its own, over one offline process with one queue on a backend that
/// answers at once, and its clients' socket in a directory of the test's. Nothing in it is
/// periodic: the scheduler takes a turn when something happens, so that a wake-up that gets lost is
/// seen.

#include "eventually.hpp"
#include "instant_backend.hpp"
#include "temporary_directory.hpp"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "sluice/backend.hpp"
#include "sluice/client_server.hpp"
#include "sluice/policies/fixed_timeslice.hpp"
#include "sluice/scheduler.hpp"

namespace sluice::test {

using namespace std::chrono_literals;

inline constexpr gpu_id the_gpu{0xa};
inline constexpr pid_t trainer = 100;

/// A directory for sockets, removed at the end.
class socket_place {
 public:
  const std::string& directory() const noexcept { return made_.path(); }
  /// In a directory that is not there yet.
  std::string path() const { return directory() + "/run/clients.sock"; }

 private:
  const temporary_directory made_;
};

/// A socket's file that nobody serves.
inline bool leave_a_socket(const std::string& path) {
  const int made = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof address.sun_path - 1);
  const bool bound = bind(made, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  close(made);
  return bound;
}

/// Shows the scheduler an offline process.
class offline_process final : public source {
 public:
  std::string_view name() const noexcept override { return "offline process"; }
  result<void> start(source_host& host) override {
    auto& to = host.claim_inbox();
    observation one;
    one.what = role::offline;
    one.type = queue_kind::compute;
    one.pid = trainer;
    one.start_time = 1;
    one.gpu = the_gpu;
    for (const auto kind : {observation_kind::process_seen, observation_kind::queue_seen}) {
      one.kind = kind;
      to.push(one);
    }
    return {};
  }
  void resync() override {}
  void stop() override {}
};

/// Who was registered and withdrawn, in order.
class role_log {
 public:
  void add(const std::string& what, const client::peer& who, role as) {
    const std::scoped_lock lock(mutex_);
    lines_.push_back(what + " " + std::to_string(who.pid) + " " + std::string(to_string(as)));
  }
  std::vector<std::string> lines() const {
    const std::scoped_lock lock(mutex_);
    return lines_;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<std::string> lines_;
};

class served_node {
 public:
  /// \param driver none: one that answers at once and knows the offline process's queue.
  explicit served_node(client::server_options options, scheduler_config config = quick(),
                       std::unique_ptr<backend> driver = nullptr) {
    auto loop = reactor::create();
    if (!loop) throw std::system_error(loop.error().value(), std::generic_category(), "reactor");
    if (!options.allow) options.allow = [](const client::peer&, role) { return true; };
    if (!options.registered) {
      options.registered = [this](const auto& who, role as) { roles.add("registered", who, as); };
      options.withdrawn = [this](const auto& who, role as) { roles.add("withdrawn", who, as); };
    }
    if (!driver) driver = make_instant();
    std::vector<std::unique_ptr<source>> sources;
    sources.push_back(std::make_unique<offline_process>());
    auto server = client::make_server(std::move(options));
    clients_ = server.get();
    sources.push_back(std::move(server));
    auto made = scheduler::create(
        config, std::move(*loop), std::move(driver),
        make_fixed_timeslice({.slice = 1us, .slice_of = {}, .weight_of = {}}), std::move(sources));
    if (!made) throw std::system_error(made.error().value(), std::generic_category(), "scheduler");
    core_ = std::move(*made);
  }
  ~served_node() { stop(); }

  result<void> start() {
    auto started = core_->start();
    if (started) runner_ = std::thread([this] { core_->run(); });
    return started;
  }
  void stop() {
    if (!runner_.joinable()) return;
    core_->stop();
    runner_.join();
  }
  /// Starts, and waits until the offline process is attached.
  bool runs() {
    return start() && eventually(patience, [&] { return stats().attaches == 1; });
  }
  statistics stats() const { return core_->stats(); }
  /// Whether the offline queue comes to be suspended, or to run, before patience ends.
  bool suspends() {
    return eventually(patience, [&] { return stats().suspended_now == 1; });
  }
  bool resumes() {
    return eventually(patience, [&] { return stats().suspended_now == 0; });
  }
  /// Whether a fifth of a second comes, before patience ends, in which it takes no turn.
  bool falls_asleep() {
    return eventually(patience, [&] {
      const auto before = stats().turns.value();
      std::this_thread::sleep_for(200ms);
      return stats().turns.value() == before;
    });
  }
  scheduler& core() { return *core_; }
  client::server& clients() { return *clients_; }

  static scheduler_config quick() {
    scheduler_config config;
    config.attach_after = 0ns;
    config.attach_at_latest = 0ns;
    config.offline_floor = 0;
    config.max_suspend = 60s;
    return config;
  }

  role_log roles;

 private:
  static std::unique_ptr<backend> make_instant() {
    auto made = std::make_unique<instant_backend>();
    made->add(trainer, the_gpu, 1);
    return made;
  }

  client::server* clients_ = nullptr;  // The scheduler's.
  std::unique_ptr<scheduler> core_;
  std::thread runner_;
};

}  // namespace sluice::test
