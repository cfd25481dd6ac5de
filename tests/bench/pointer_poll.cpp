// What a look at the pointers of 64 queues of another process costs: the whole look that discovery
// takes, with what it concludes, beside one bare process_vm_readv of the same words into the same
// room. Once with queues at rest (two words each), once with a kernel running in every queue (the
// completion signal's word as well). The other process only shares the memory and sleeps.
// usage: pointer_poll [--quick]

#include "fake_queue.hpp"
#include "pointer_view.hpp"
#include "series.hpp"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "sluice/os/process_identity.hpp"

namespace sluice::bench {
namespace {

constexpr std::size_t queue_count = 64;
constexpr gpu_id its_gpu{1};

/// Shares the memory of this process as it is now.
class sleeper {
 public:
  sleeper() : pid_(::fork()) {
    if (pid_ < 0) throw std::runtime_error("cannot fork");
    if (pid_ != 0) return;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (;;) ::pause();
  }
  ~sleeper() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  sleeper(const sleeper&) = delete;
  sleeper& operator=(const sleeper&) = delete;

  pid_t pid() const { return pid_; }

 private:
  pid_t pid_;
};

/// One process_vm_readv, and nothing else.
class bare_read {
 public:
  void add(std::uint64_t address) {
    remote_.push_back({reinterpret_cast<void*>(address), sizeof(std::uint64_t)});
    copied_.push_back(0);
  }
  bool from(pid_t pid) {
    const iovec local{copied_.data(), copied_.size() * sizeof(std::uint64_t)};
    return ::process_vm_readv(pid, &local, 1, remote_.data(), remote_.size(), 0) ==
           static_cast<ssize_t>(local.iov_len);
  }

 private:
  std::vector<iovec> remote_;
  std::vector<std::uint64_t> copied_;
};

/// What is compared: the view and the bare read of the words it needs, in turns.
struct comparison {
  online_work expected{};
  bare_read floor;
  series figure_series;
  series floor_series;
  std::vector<agent::followed_process::work> found{};

  void round(kfd::pointer_view& view, pid_t pid, int looks) {
    for (int i = 0; i < looks; ++i) {
      found.clear();
      time_point began = clock::now();
      const bool lives = view.look(began, found);
      figure_series.add(clock::now() - began);
      if (!lives || found.at(0).state != expected)
        throw std::runtime_error("a look did not see what the queues do");
      began = clock::now();
      const bool whole = floor.from(pid);
      floor_series.add(clock::now() - began);
      if (!whole) throw std::runtime_error("process_vm_readv did not read everything");
    }
    figure_series.end_round();
    floor_series.end_round();
  }
};

void measure(bool quick) {
  std::array<test::fake_queue, queue_count> queues;
  const sleeper other;
  kfd::online_process what;
  const auto who = identity_of(other.pid());
  if (!who) throw std::runtime_error("the other process is gone");
  what.who = *who;
  comparison rest{
      online_work::finished, {}, series{"look_at_rest"}, series{"floor_of_look_at_rest"}};
  comparison busy{
      online_work::running, {}, series{"look_running"}, series{"floor_of_look_running"}};
  for (const auto& each : queues) {
    what.queues.push_back(each.on(its_gpu));
    rest.floor.add(what.queues.back().at.read);
    rest.floor.add(what.queues.back().at.write);
  }
  auto view = kfd::pointer_view::make(what, "/nonexistent");
  if (!view) throw std::runtime_error("no view: " + view.error().message());
  if ((*view)->unreadable() != 0) throw std::runtime_error("the pointers cannot be read");
  std::vector<agent::followed_process::work> first;
  (void)(*view)->look(clock::now(), first);

  const int rounds = quick ? 2 : 9;
  const int looks = quick ? 50 : 2000;
  for (int i = 0; i < rounds; ++i) {
    rest.round(**view, other.pid(), looks);
    busy.floor = rest.floor;
    for (auto& each : queues) {
      busy.floor.add(each.next_signal_value());
      each.submit();
      each.consume();
    }
    busy.round(**view, other.pid(), looks);
    for (auto& each : queues) each.finish();
  }
  for (auto* const one : {&rest, &busy}) {
    one->figure_series.print();
    one->floor_series.print();
  }
}

}  // namespace
}  // namespace sluice::bench

int main(int argc, char** argv) {
  try {
    sluice::bench::measure(argc > 1 && std::string_view{argv[1]} == "--quick");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "pointer_poll: %s\n", error.what());
    return 1;
  }
  return 0;
}
