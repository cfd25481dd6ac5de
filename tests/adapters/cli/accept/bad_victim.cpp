// bad_victim: a victim of `sluice accept` on the simulated device that does what BAD_VICTIM says:
//
// | BAD_VICTIM | what it does |
// |---|---|
// | `silent` | does not come up |
// | `good` | nothing bad |
// | `few` | makes 2 queues, however many it is told to |
// | `pretends` | counts kernels that it never submits |
// | `slow` | while it is traced its kernels take five times as long |
// | `pauses` | unless it is traced, submits nothing for 1.5 s, 0.6 s after its start |
// | `dies` | ends with 9 as soon as it is traced |
// | `stays` | while it is traced does not exit |
// | `differs` | while it is traced ends with 7 instead of failing an assertion |
// | `stops` | ends nothing any more once it was traced and is not |
// | several words | once it was suspended, and at a fault while traced, puts them into `control` |
//
// BAD_VICTIM_LEAVES: what is written to the control file 20 ms after the victim has ended, however
// it ends: by then who killed it has seen that it is gone.

#include "device_view.hpp"
#include "eventually.hpp"
#include "sim_work.hpp"

#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <fstream>
#include <string>

namespace {

using namespace std::chrono_literals;
using namespace sluice::accept;

bool traced() {
  std::ifstream status{"/proc/self/status"};
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("TracerPid:")) return line.find_first_of("123456789") != line.npos;
  return false;
}

std::string root() { return std::getenv("SLUICE_SIM_ROOT"); }

void inject(const std::string& line) {
  std::ofstream{root() + "/sim/control"} << line << std::endl;
}

/// Before the device is opened: whoever has that counts as one who uses it.
void leave_behind(const char* line) {
  std::array<int, 2> life{};
  if (line == nullptr) return;
  if (::pipe(life.data()) != 0) cannot("no pipe");
  if (::fork() != 0) return;  // The end that is written to closes when this process ends.
  ::close(life[1]);
  char nothing{};
  (void)!::read(life[0], &nothing, 1);
  std::this_thread::sleep_for(20ms);
  inject(line);
  std::_Exit(0);
}

class bad_work final : public sim_work {
 public:
  bad_work(unsigned queues, std::string how)
      : sim_work(how == "few" ? 2 : queues), how_(std::move(how)) {
    std::thread{[this] { watch(); }}.detach();
  }

  void submit(unsigned queue, std::chrono::nanoseconds length, unsigned percent) override {
    if (how_ == "pauses" && !traced_ && std::chrono::steady_clock::now() >= begin_ + 600ms &&
        !paused_.exchange(true))
      std::this_thread::sleep_for(1500ms);
    if (pretends(queue)) return;
    sim_work::submit(queue, how_ == "slow" && traced() ? length * 5 : length, percent);
  }
  void wait(unsigned queue) override {
    while (over_) std::this_thread::sleep_for(1s);
    if (pretends(queue))
      std::this_thread::sleep_for(1ms);
    else
      sim_work::wait(queue);
    // Here, too, for watch() may be late.
    if (how_ == "stops" && traced_ && !traced()) over_ = true;
    while (over_) std::this_thread::sleep_for(1s);
  }
  void close() override {
    while (how_ == "stays" && traced_) std::this_thread::sleep_for(1s);
    sim_work::close();
  }
  [[noreturn]] void fail_assertion() override {
    if (how_ == "differs" && traced()) std::_Exit(7);
    std::abort();
  }
  [[noreturn]] void fault() override {
    if (injects() && traced()) inject(how_);  // watch() may be late
    std::abort();
  }

 private:
  bool pretends(unsigned queue) const {
    return how_ == "pretends" || (how_ == "few" && queue >= 2);
  }
  void watch() {
    while (!traced()) std::this_thread::sleep_for(1ms);
    traced_ = true;
    if (how_ == "dies") std::_Exit(9);
    if (how_ == "stops") {
      while (traced()) std::this_thread::sleep_for(100us);
      over_ = true;
    }
    if (!injects()) return;
    // An attach has other calls that could fail.
    const sluice::test::device_view device{root()};
    if (sluice::test::eventually(sluice::test::patience,
                                 [&] { return device.process(::getpid()).queue_suspends != 0; }))
      inject(how_);
  }
  bool injects() const { return how_.find(' ') != how_.npos; }

  const std::string how_;
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  std::atomic<bool> traced_{false};
  std::atomic<bool> paused_{false};
  std::atomic<bool> over_{false};
};

}  // namespace

int main(int argc, char** argv) {
  const unsigned queues = queues_of(argc, argv);
  const char* const how = std::getenv("BAD_VICTIM");
  if (how == nullptr) cannot("BAD_VICTIM says nothing");
  if (std::string{how} == "silent") std::this_thread::sleep_for(1h);
  leave_behind(std::getenv("BAD_VICTIM_LEAVES"));
  bad_work work{queues, how};
  return victim{work, queues}.obey();
}
