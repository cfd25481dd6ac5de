// The client library, when whoever answers at its socket lies: any messages with any descriptors,
// pages of any content, hang-ups; and the program's own calls between them.

#include "fuzz.hpp"
#include "lying_scheduler.hpp"
#include <fuzzer/FuzzedDataProvider.h>

#include <fcntl.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <deque>
#include <fstream>
#include <memory>
#include <vector>

#include "sluice/client.h"
#include "sluice/time.hpp"

namespace {

using namespace sluice;
using namespace std::chrono_literals;
using test::lying_scheduler;

/// One for all inputs.
lying_scheduler& liar() {
  static const fuzz::input_file place("clients.sock");
  static lying_scheduler one{place.path()};
  return one;
}

template <class Words>
class mapping {
 public:
  explicit mapping(int fd) {
    struct stat file {};
    if (fd < 0 || fstat(fd, &file) != 0 || file.st_size < off_t{sizeof(Words)}) return;
    void* const at = mmap(nullptr, sizeof(Words), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (at != MAP_FAILED) words_ = static_cast<std::uint8_t*>(at);
  }
  ~mapping() {
    if (words_ != nullptr) munmap(words_, sizeof(Words));
  }
  mapping(const mapping&) = delete;
  mapping& operator=(const mapping&) = delete;
  void scribble(FuzzedDataProvider& input) const {
    if (words_ == nullptr) return;
    const auto at = input.ConsumeIntegralInRange<std::size_t>(0, sizeof(Words) - 1);
    const auto bytes =
        input.ConsumeBytes<std::uint8_t>(std::min<std::size_t>(64, sizeof(Words) - at));
    std::copy(bytes.begin(), bytes.end(), words_ + at);
  }

 private:
  std::uint8_t* words_ = nullptr;
};

/// What a program asked for, and how often it was answered.
struct question {
  std::int64_t number = 0;
  bool stopped = false;
  std::atomic<int> answers{0};
};

class program {
 public:
  explicit program(FuzzedDataProvider& input) : input_(input) {
    sluice_client_options options{};
    options.size = sizeof options;
    options.socket = liar().path().c_str();
    fuzz::require(sluice_client_open(&options, &client_) == 0, "a client");
    fuzz::require(liar().accept(5s), "who is opened connects");
    meet();
  }
  ~program() {
    fuzz::require(sluice_client_close(client_) == 0, "a client can be closed");
    for (const auto& each : questions_)
      fuzz::require(each->answers == (each->stopped ? 0 : 1), "a wait is answered once");
    pages_.reset();
    liar().hang_up();
    liar().forget_callers();
  }
  program(const program&) = delete;
  program& operator=(const program&) = delete;

  void step() {
    switch (input_.ConsumeIntegralInRange<int>(0, 10)) {
      case 0: welcome(); break;
      case 1: answer(); break;
      case 2: anything(); break;
      case 3:
        if (pages_) pages_->client.scribble(input_);
        break;
      case 4:
        if (pages_) pages_->scheduler.scribble(input_);
        break;
      case 5: (void)sluice_client_begin(client_); break;
      case 6: (void)sluice_client_end(client_); break;
      case 7: mark(); break;
      case 8: ask(); break;
      case 9: stop_asking(); break;
      default:
        if (few()) hang_up();
    }
    if (input_.ConsumeBool()) settle();
  }

  /// What was sent has been dealt with, and the client answers its program.
  sluice_client_status settle() const {
    const auto until = clock::now() + 5s;
    while (liar().unread() > 0) {
      fuzz::require(clock::now() < until, "a client reads what it is sent");
      sched_yield();
    }
    sluice_client_status seen{};
    seen.size = sizeof seen;
    fuzz::require(sluice_client_get_status(client_, &seen) == 0, "a client has a status");
    fuzz::require(std::memchr(seen.why, 0, sizeof seen.why) != nullptr, "a sentence has an end");
    fuzz::require(seen.connected <= 1, "connected or not");
    fuzz::require(seen.connected != 0 || seen.role == 0, "a role is somebody's to grant");
    return seen;
  }

 private:
  struct mapped {
    mapping<sluice_client_words> client{liar().clients_page()};
    mapping<sluice_scheduler_words> scheduler{liar().page()};
  };

  bool few() { return input_.ConsumeIntegralInRange<int>(0, 7) == 0; }
  void meet() { pages_ = std::make_unique<mapped>(); }

  /// Own ones are closed once they are sent.
  int some_page() {
    made_ = -1;
    switch (few() ? input_.ConsumeIntegralInRange<int>(0, 6) : 7) {
      case 0: return made_ = lying_scheduler::make_page(input_.ConsumeIntegralInRange(0, 31));
      case 1:
        return made_ = lying_scheduler::make_page(F_SEAL_SHRINK | F_SEAL_GROW,
                                                  input_.ConsumeIntegralInRange<off_t>(0, 1 << 16));
      case 2: return liar().clients_page();
      case 3: return liar().bell();
      case 4: return STDERR_FILENO;
      case 5: return made_ = open("/dev/null", O_RDWR | O_CLOEXEC);
      case 6: return -1;
      default: return liar().page();
    }
  }
  void send(const void* what, std::size_t size, std::vector<int> fds) const {
    std::erase_if(fds, [](int fd) { return fd < 0; });
    (void)liar().send(what, size, fds);
  }
  void welcome() {
    sluice_wire_welcome said{};
    said.head = lying_scheduler::head(SLUICE_WIRE_WELCOME);
    said.role = 1;
    if (few()) said.error = input_.ConsumeIntegral<std::int32_t>();
    if (few()) said.role = input_.ConsumeIntegral<std::uint32_t>();
    if (few()) {
      const auto why = input_.ConsumeBytesAsString(sizeof said.why);
      std::memcpy(said.why, why.data(), why.size());
    }
    std::vector<int> fds{some_page()};
    if (few()) fds.push_back(liar().page());
    send(&said, sizeof said, fds);
    if (made_ >= 0) close(made_);
  }
  void answer() {
    sluice_wire_answer said{};
    said.head = lying_scheduler::head(SLUICE_WIRE_ANSWER);
    said.number = few() ? input_.ConsumeIntegral<std::uint64_t>()
                        : input_.ConsumeIntegralInRange<std::uint64_t>(0, 8);
    said.clear = input_.ConsumeIntegral<std::uint8_t>();
    send(&said, sizeof said, few() ? std::vector{liar().page()} : std::vector<int>{});
  }
  void anything() {
    const auto bytes =
        input_.ConsumeBytes<std::uint8_t>(input_.ConsumeIntegralInRange<std::size_t>(0, 400));
    std::vector<int> fds;
    for (int i = input_.ConsumeIntegralInRange<int>(0, 4); i > 0; --i)
      fds.push_back(input_.PickValueInArray(
          {liar().page(), liar().clients_page(), liar().bell(), STDERR_FILENO}));
    send(bytes.data(), bytes.size(), fds);
  }
  void mark() {
    const auto kind = input_.ConsumeIntegralInRange<std::uint32_t>(0, SLUICE_WORDS_SPANS);
    const auto request = input_.ConsumeIntegral<std::uint64_t>();
    for (int i = few() ? SLUICE_WORDS_MARKS : 1; i > 0; --i) {
      (void)(input_.ConsumeBool() ? sluice_client_begin_span(client_, kind, request)
                                  : sluice_client_end_span(client_, kind, request));
    }
  }
  void ask() {
    auto asked = std::make_unique<question>();
    const auto timeout = few() ? 0 : std::chrono::nanoseconds(60s).count();
    asked->number = sluice_client_wait(
        client_, timeout,
        [](void* context, std::int32_t) { ++static_cast<question*>(context)->answers; },
        asked.get());
    if (asked->number > 0) questions_.push_back(std::move(asked));
  }
  void stop_asking() {
    if (questions_.empty()) return;
    auto& which = *questions_[input_.ConsumeIntegralInRange<std::size_t>(0, questions_.size() - 1)];
    if (sluice_client_stop_waiting(client_, which.number) == 1) which.stopped = true;
  }
  /// Once: it takes the client 20 ms to come back, or a second where it was refused.
  void hang_up() {
    if (hung_up_) return;
    hung_up_ = true;
    pages_.reset();
    liar().hang_up();
    if (liar().accept(50ms)) meet();
  }

  FuzzedDataProvider& input_;
  sluice_connection* client_ = nullptr;
  std::unique_ptr<mapped> pages_;
  std::deque<std::unique_ptr<question>> questions_;
  int made_ = -1;
  bool hung_up_ = false;
};

void require_service() {
  FuzzedDataProvider nothing{nullptr, 0};
  const program good{nothing};
  liar().welcome();
  const auto until = clock::now() + 5s;
  while (good.settle().connected == 0) {
    fuzz::require(clock::now() < until, "a good welcome connects");
    sched_yield();
  }
}

void require_nothing_mapped() {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);)
    fuzz::require(line.find("/memfd:scheduler") == line.npos &&
                      line.find("/memfd:sluice-client") == line.npos,
                  "no page stays mapped");
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  FuzzedDataProvider input{data, size};
  (void)liar();
  const int before = fuzz::descriptors();
  {
    // What the last client was told must not make this one's beginning.
    const std::array<std::uint8_t, sizeof(sluice_scheduler_words)> zeros{};
    (void)!pwrite(liar().page(), zeros.data(), zeros.size(), 0);
    program one{input};
    for (int step = 0; step < 60 && input.remaining_bytes() > 0; ++step) one.step();
  }
  fuzz::require(fuzz::descriptors() == before, "no descriptor stays open");
  static unsigned inputs = 0;
  if (inputs++ % 64 == 0) {
    require_service();
    require_nothing_mapped();
  }
  return 0;
}
