// The scheduler's side of the clients' socket: connections that send any messages with any
// descriptors, and write anything into their pages.

#include "fuzz.hpp"
#include "instant_backend.hpp"
#include "send_with.hpp"
#include "wire.h"
#include <fuzzer/FuzzedDataProvider.h>

#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstring>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "sluice/client_server.hpp"
#include "sluice/policies/fixed_timeslice.hpp"
#include "sluice/scheduler.hpp"

namespace {

using namespace sluice;
using namespace std::chrono_literals;

constexpr int good_seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

void send_message(int socket, const void* what, std::size_t size, const std::vector<int>& fds) {
  (void)test::send_with(socket, what, size, fds, MSG_NOSIGNAL | MSG_DONTWAIT);
}

/// A scheduler with nothing but its clients; one for all inputs.
class node {
 public:
  node() {
    client::server_options options;
    options.socket = directory_.path();
    options.allow = [](const client::peer&, role) { return true; };
    options.registered = options.withdrawn = [](const client::peer&, role) {};
    options.say = options.tell = [](std::string_view) {};
    options.hello_limit = 10ms;
    auto loop = reactor::create();
    fuzz::require(loop.has_value(), "a reactor");
    std::vector<std::unique_ptr<source>> sources;
    sources.push_back(client::make_server(std::move(options)));
    auto made = scheduler::create(
        {}, std::move(*loop), std::make_unique<test::instant_backend>(),
        make_fixed_timeslice({.slice = 1ms, .slice_of = {}, .weight_of = {}}), std::move(sources));
    fuzz::require(made.has_value(), "a scheduler");
    core_ = std::move(*made);
    fuzz::require(core_->start().has_value(), "a scheduler that starts");
  }
  int connect() const {
    const int made = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    directory_.path().copy(address.sun_path, sizeof address.sun_path - 1);
    // Refused while the scheduler, which has few descriptors left, takes nobody for a moment.
    (void)::connect(made, reinterpret_cast<const sockaddr*>(&address), sizeof address);
    return made;
  }
  /// Who says a good hello is welcomed, whatever came before.
  void require_service() {
    const int socket = connect();
    const int page = memfd_create("good", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    const int bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    (void)!ftruncate(page, sizeof(sluice_client_words));
    (void)fcntl(page, F_ADD_SEALS, good_seals);
    sluice_wire_hello what{};
    what.head = {SLUICE_WIRE_HELLO, SLUICE_WIRE_VERSION, SLUICE_WORDS_LAYOUT, 0};
    what.role = 1;
    send_message(socket, &what, sizeof what, {page, bell});
    sluice_wire_welcome said{};
    ssize_t got = -1;
    const auto until = clock::now() + 5s;
    while (got < 0 && clock::now() < until) {
      core_->poll_once();
      got = ::recv(socket, &said, sizeof said, MSG_DONTWAIT);
    }
    fuzz::require(got == sizeof said && said.error == 0, "a good hello is welcomed");
    for (const int fd : {socket, page, bell}) close(fd);
    turn();
  }
  void turn() {
    for (int i = 0; i < 8 && core_->poll_once(); ++i) {
    }
  }

 private:
  const fuzz::input_file directory_{"clients.sock"};
  std::unique_ptr<scheduler> core_;
};

class connection {
 public:
  connection(const node& to, FuzzedDataProvider& input)
      : input_(input),
        socket_(to.connect()),
        page_(memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING)),
        bell_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    const bool good = !few();
    (void)!ftruncate(page_, good ? off_t{sizeof(sluice_client_words)}
                                 : input_.ConsumeIntegralInRange<off_t>(0, 1 << 16));
    (void)fcntl(page_, F_ADD_SEALS, few() ? input_.ConsumeIntegralInRange<int>(0, 63) : good_seals);
    if (!good) return;
    void* const at =
        mmap(nullptr, sizeof(sluice_client_words), PROT_READ | PROT_WRITE, MAP_SHARED, page_, 0);
    if (at != MAP_FAILED) words_ = static_cast<std::byte*>(at);
  }
  ~connection() {
    if (words_ != nullptr) munmap(words_, sizeof(sluice_client_words));
    for (const int fd : {socket_, page_, bell_}) close(fd);
  }
  connection(const connection&) = delete;
  connection& operator=(const connection&) = delete;

  void step() {
    switch (input_.ConsumeIntegralInRange<int>(0, 5)) {
      case 0: hello(); break;
      case 1: wait(); break;
      case 2: anything(); break;
      case 3: scribble(); break;
      case 4: eventfd_write(bell_, 1); break;
      default: {
        std::array<std::byte, 512> answer;
        (void)::recv(socket_, answer.data(), answer.size(), MSG_DONTWAIT);
      }
    }
  }

 private:
  bool few() { return input_.ConsumeIntegralInRange<int>(0, 15) == 0; }
  void send(const void* what, std::size_t size, const std::vector<int>& fds) const {
    send_message(socket_, what, size, fds);
  }
  void hello() {
    sluice_wire_hello what{};
    what.head = {SLUICE_WIRE_HELLO, SLUICE_WIRE_VERSION, SLUICE_WORDS_LAYOUT, 0};
    what.role = 1;
    if (few()) what.head.version = input_.ConsumeIntegral<std::uint32_t>();
    if (few()) what.role = input_.ConsumeIntegral<std::uint32_t>();
    if (input_.ConsumeBool()) {
      what.gpu_count = input_.ConsumeIntegral<std::uint8_t>();
      for (auto& each : what.gpus) each = input_.ConsumeIntegral<std::uint8_t>();
      for (auto& each : what.targets) each = input_.ConsumeIntegral<std::int64_t>();
      const auto name = input_.ConsumeBytesAsString(sizeof what.name);
      std::memcpy(what.name, name.data(), name.size());
    }
    send(&what, sizeof what, few() ? std::vector{bell_, page_} : std::vector{page_, bell_});
  }
  void wait() {
    sluice_wire_wait what{};
    what.head = {input_.ConsumeBool() ? SLUICE_WIRE_WAIT : SLUICE_WIRE_STOP_WAITING,
                 SLUICE_WIRE_VERSION, SLUICE_WORDS_LAYOUT, 0};
    what.number = input_.ConsumeIntegral<std::uint8_t>();
    what.timeout = input_.ConsumeIntegral<std::int64_t>();
    send(&what, sizeof what, {});
  }
  void anything() {
    const auto bytes = input_.ConsumeBytes<std::uint8_t>(
        few() ? 0 : input_.ConsumeIntegralInRange<std::size_t>(1, 700));
    std::vector<int> fds;
    for (int i = input_.ConsumeIntegralInRange<int>(0, 4); i > 0; --i) {
      fds.push_back(input_.PickValueInArray({page_, bell_, socket_, STDERR_FILENO}));
    }
    send(bytes.data(), bytes.size(), fds);
  }
  void scribble() {
    if (words_ == nullptr) return;
    const auto at = input_.ConsumeIntegralInRange<std::size_t>(0, sizeof(sluice_client_words) - 1);
    const auto bytes = input_.ConsumeBytes<std::uint8_t>(
        std::min<std::size_t>(64, sizeof(sluice_client_words) - at));
    std::copy(bytes.begin(), bytes.end(), reinterpret_cast<std::uint8_t*>(words_) + at);
    eventfd_write(bell_, 1);
  }

  FuzzedDataProvider& input_;
  const int socket_;
  const int page_;
  const int bell_;
  std::byte* words_ = nullptr;
};

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static node one;
  FuzzedDataProvider input{data, size};
  const int before = fuzz::descriptors();
  std::array<std::unique_ptr<connection>, 3> connections;
  for (int step = 0; step < 40 && input.remaining_bytes() > 0; ++step) {
    auto& which = connections[input.ConsumeIntegralInRange<std::size_t>(0, connections.size() - 1)];
    if (!which) which = std::make_unique<connection>(one, input);
    which->step();
    if (input.ConsumeBool()) one.turn();
    if (input.ConsumeIntegralInRange<int>(0, 15) == 0) which.reset();
  }
  for (auto& each : connections) each.reset();
  one.turn();
  static unsigned inputs = 0;
  // Threads of the server's close what it was passed. The first input finds what is made once.
  const auto until = clock::now() + 5s;
  while (inputs != 0 && fuzz::descriptors() > before) {
    fuzz::require(clock::now() < until, "no descriptor stays open");
    one.turn();
    std::this_thread::sleep_for(100us);
  }
  if (++inputs % 64 == 0) one.require_service();
  return 0;
}
