// Clients that speak the protocol themselves, and badly.

#include "foreign_fd.hpp"
#include "open_descriptors.hpp"
#include "program.hpp"
#include "raw_client.hpp"
#include "served_node.hpp"
#include "test_seed.hpp"
#include <netinet/in.h>

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <random>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace sluice::test::hostile_test {
namespace {

using ::testing::HasSubstr;

class Hostile : public ::testing::Test {
 protected:
  void start(client::server_options options = {}) {
    options.socket = place_.path();
    node_.emplace(std::move(options));
    ASSERT_TRUE(node_->runs());
  }
  /// The scheduler's answer to a hello with these descriptors, as "error why".
  std::string answer_to(const sluice_wire_hello& hello, const std::vector<int>& fds) {
    raw_client one(place_.path());
    EXPECT_TRUE(one.send(&hello, sizeof hello, fds));
    const auto said = one.welcome();
    if (!said) return "no answer";
    return std::to_string(said->error) + " " + said->why;
  }
  /// Another client's work holds offline work, and lets go of it.
  bool others_are_served() {
    raw_client one(place_.path());
    auto* const words = one.join();
    bool all = true;
    for (int i = 0; i < 5; ++i) {
      sluice_words_begin(words);
      one.ring();
      all = all && node_->suspends();
      EXPECT_NE(sluice_words_end(words), 0);
      one.ring();
      all = all && node_->resumes();
    }
    munmap(words, sizeof *words);
    return all;
  }

  socket_place place_;
  std::optional<served_node> node_;
};

TEST_F(Hostile, PageThatCouldShrinkOrIsNoMemoryIsRefused) {
  start();
  const auto hello = raw_client::good_hello();
  const unique_fd bell(eventfd(0, EFD_CLOEXEC));
  const unique_fd no_seal(make_page(0));
  const unique_fd no_shrink(make_page(F_SEAL_GROW | F_SEAL_SEAL));
  const unique_fd small(make_page(good_seals, sizeof(sluice_client_words) - 1));
  const unique_fd large(make_page(good_seals, sizeof(sluice_client_words) + 1));
  const unique_fd read_only(make_page(good_seals | F_SEAL_WRITE));
  const unique_fd file(open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
  for (const int each : {no_seal.get(), no_shrink.get(), small.get(), large.get(), file.get()}) {
    EXPECT_THAT(answer_to(hello, {each, bell.get()}),
                HasSubstr("22 the client's page must be a memfd"));
  }
  EXPECT_THAT(answer_to(hello, {read_only.get(), bell.get()}),
              HasSubstr("22 the client's page cannot"));
  EXPECT_THAT(answer_to(hello, {}), HasSubstr("22 the client's page must be"));
  const unique_fd page(make_page());
  EXPECT_THAT(answer_to(hello, {page.get()}),
              HasSubstr("22 the client's second descriptor must be an eventfd"));
  EXPECT_THAT(answer_to(hello, {page.get(), file.get()}),
              HasSubstr("22 the client's second descriptor must be"));
  EXPECT_THAT(answer_to(hello, {page.get(), bell.get(), bell.get(), bell.get(), bell.get()}),
              HasSubstr("0 "));  // What is too much is closed.
  EXPECT_TRUE(others_are_served());
}

TEST_F(Hostile, BellThatRingsAsTheSchedulerStopsHarmsNobody) {
  client::server_options options;
  options.socket = place_.path();
  served_node here(std::move(options));
  auto& core = here.core();
  ASSERT_TRUE(core.start());
  raw_client one(place_.path());
  const auto hello = raw_client::good_hello();
  ASSERT_TRUE(one.send(&hello, sizeof hello, {one.page.get(), one.bell.get()}));
  pollfd answer{one.fd(), POLLIN, 0};
  ASSERT_TRUE(eventually(patience, [&] {
    core.poll_once();
    return poll(&answer, 1, 0) == 1;
  }));
  one.ring();
  core.stop();  // The turn that the bell makes is the last, and ends the session.
  EXPECT_TRUE(eventually(patience, [&] {
    core.poll_once();
    return core.stopped();
  }));
}

/// A TCP connection whose close() waits for a minute, or until this goes.
class lingering {
 public:
  lingering() {
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    auto* const address = reinterpret_cast<sockaddr*>(&at);
    socklen_t size = sizeof at;
    const unique_fd server(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    near_.emplace(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const bool connected =
        bind(server.get(), address, sizeof at) == 0 && listen(server.get(), 1) == 0 &&
        getsockname(server.get(), address, &size) == 0 && connect(near_->get(), address, size) == 0;
    EXPECT_TRUE(connected) << std::strerror(errno);
    far_.emplace(accept4(server.get(), nullptr, nullptr, SOCK_CLOEXEC));
    const linger slowly{1, 60};
    EXPECT_EQ(setsockopt(near_->get(), SOL_SOCKET, SO_LINGER, &slowly, sizeof slowly), 0);
    const std::vector<char> unread(1U << 16U);
    while (::send(near_->get(), unread.data(), unread.size(), MSG_DONTWAIT) > 0) {
    }
  }
  int fd() const { return near_->get(); }
  /// Whoever has it besides is the last to close it; if he was faster, this waits aside.
  void let_go() {
    letting_ = std::thread([this] { near_.reset(); });
  }
  ~lingering() {
    far_.reset();
    if (letting_.joinable()) letting_.join();
  }
  lingering(const lingering&) = delete;
  lingering& operator=(const lingering&) = delete;

 private:
  std::thread letting_;
  std::optional<unique_fd> near_;
  std::optional<unique_fd> far_;
};

TEST_F(Hostile, DescriptorsThatTakeLongToCloseHoldUpNobody) {
  start();
  for (const bool surplus : {false, true}) {
    lingering slow;
    raw_client one(place_.path());
    const auto hello = raw_client::good_hello();
    std::vector<int> fds{slow.fd(), slow.fd()};
    if (surplus) fds = {one.page.get(), one.bell.get(), slow.fd()};
    ASSERT_TRUE(one.send(&hello, sizeof hello, fds));
    slow.let_go();
    ASSERT_TRUE(one.welcome().has_value());
    EXPECT_TRUE(others_are_served());
  }
}

TEST_F(Hostile, DescriptorsThatAreNeverClosedKeepNobodyOut) {
  start();
  const auto threads = [] {
    return std::distance(std::filesystem::directory_iterator{"/proc/self/task"}, {});
  };
  const auto before = threads();
  // All but one of the threads that close are kept, and each client after that leaves three.
  std::vector<std::unique_ptr<lingering>> slow;
  for (int i = 0; i < 7; ++i) slow.push_back(std::make_unique<lingering>());
  {
    raw_client one(place_.path());
    const auto hello = raw_client::good_hello();
    std::vector<int> fds;
    for (const auto& each : slow) fds.push_back(each->fd());
    ASSERT_TRUE(one.send(&hello, sizeof hello, fds));
    for (const auto& each : slow) each->let_go();
    ASSERT_TRUE(one.welcome().has_value());
  }
  for (int i = 0; i < 100; ++i) {
    raw_client one(place_.path());
    const auto said = one.register_itself();
    ASSERT_TRUE(said) << "client " << i;
    EXPECT_EQ(said->error, 0) << said->why;
  }
  EXPECT_TRUE(others_are_served());
  EXPECT_TRUE(eventually(patience, [&] { return threads() >= before + 4; }));
  slow.clear();
  EXPECT_TRUE(eventually(patience, [&] { return threads() <= before + 2; }))
      << "those that closed stay for good";
}

// What closes was one thread for good where none could be had to look after it at first.
TEST(ClosesElsewhere, AreSharedOutOnceThreadsAreToBeHad) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to become a user who has no threads yet";
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // In a program begun anew.
  const auto run = [] {
    lingering slow;
    std::array<int, 2> ends{};
    rlimit threads{};
    if (pipe2(ends.data(), O_CLOEXEC) != 0 || getrlimit(RLIMIT_NPROC, &threads) != 0 ||
        setuid(1'000'000 + static_cast<uid_t>(getpid())) != 0)
      _exit(2);
    const auto running = std::distance(std::filesystem::directory_iterator{"/proc/self/task"}, {});
    const rlimit one_more{static_cast<rlim_t>(running) + 1, threads.rlim_max};
    if (setrlimit(RLIMIT_NPROC, &one_more) != 0) _exit(3);
    client::close_elsewhere(open("/dev/null", O_RDONLY | O_CLOEXEC));
    if (!eventually(patience, [] { return client::closes_waiting() == 0; })) _exit(4);
    if (setrlimit(RLIMIT_NPROC, &threads) != 0) _exit(5);
    client::close_elsewhere(slow.fd());
    client::close_elsewhere(ends[1]);
    pollfd closed{ends[0], POLLIN, 0};
    _exit(poll(&closed, 1, 10'000) == 1 ? 0 : 6);
  };
  EXPECT_EXIT(run(), ::testing::ExitedWithCode(0), "");
}

// Symptom: an empty message looks like the end of a connection, and left its descriptors open.
TEST_F(Hostile, EmptyMessagesLeaveNothingOpen) {
  start();
  const std::size_t before = open_descriptors();
  for (int i = 0; i < 5; ++i) {
    raw_client one(place_.path());
    const int fd = one.page.get();
    ASSERT_TRUE(one.send(nullptr, 0, {fd, fd, fd}));
    EXPECT_TRUE(one.is_hung_up());
  }
  // Threads of their own close what was passed.
  EXPECT_TRUE(eventually(patience, [&] { return open_descriptors() <= before; }));
  EXPECT_TRUE(others_are_served());
}

TEST_F(Hostile, RegistrationsThatMakeNoSenseAreRefused) {
  start();
  const unique_fd page(make_page());
  const unique_fd bell(eventfd(0, EFD_CLOEXEC));
  const std::vector fds{page.get(), bell.get()};
  auto hello = raw_client::good_hello();
  hello.head.layout = SLUICE_WORDS_LAYOUT + 1;
  EXPECT_THAT(answer_to(hello, fds), HasSubstr("different versions"));
  hello = raw_client::good_hello();
  hello.role = 3;
  EXPECT_THAT(answer_to(hello, fds), HasSubstr("invalid registration"));
  hello = raw_client::good_hello();
  hello.gpu_count = SLUICE_WIRE_GPUS + 1;
  EXPECT_THAT(answer_to(hello, fds), HasSubstr("invalid registration"));
  hello = raw_client::good_hello();
  hello.gpu_count = 1;
  hello.gpus[0] = 0xbad;
  EXPECT_THAT(answer_to(hello, fds),
              HasSubstr("unknown gpu_id 2989: the scheduler has not seen this GPU"));
  hello.gpus[0] = static_cast<std::uint32_t>(the_gpu);
  EXPECT_THAT(answer_to(hello, fds), HasSubstr("0 "));
  std::memset(hello.name, '\n', sizeof hello.name);  // And no end.
  EXPECT_THAT(answer_to(hello, fds), HasSubstr("0 "));
}

TEST_F(Hostile, NobodySpeaksForAnotherProcess) {
  start();
  raw_client one(place_.path());
  const pid_t child = fork();
  if (child == 0) {
    const auto hello = raw_client::good_hello();
    one.send(&hello, sizeof hello, {one.page.get(), one.bell.get()});
    _exit(0);
  }
  waitpid(child, nullptr, 0);
  const auto said = one.welcome();
  ASSERT_TRUE(said);
  EXPECT_EQ(said->error, EACCES);
}

TEST_F(Hostile, WhoSaysNothingOrNonsenseIsHungUpOn) {
  start({.socket = {},
         .hello_limit = 50ms,
         .allow = {},
         .registered = {},
         .withdrawn = {},
         .say = {}});
  raw_client silent(place_.path());
  EXPECT_TRUE(silent.is_hung_up());
  raw_client babbling(place_.path());
  EXPECT_TRUE(babbling.send("hello", 5));
  EXPECT_TRUE(babbling.is_hung_up());
  raw_client late(place_.path());
  auto* const words = late.join();
  EXPECT_TRUE(late.send("hello", 5));
  EXPECT_TRUE(late.is_hung_up());
  munmap(words, sizeof *words);
  EXPECT_TRUE(others_are_served());
}

TEST_F(Hostile, TheSchedulersPageCannotBeWrittenByAClient) {
  start();
  raw_client one(place_.path());
  int fd = -1;
  ASSERT_TRUE(one.register_itself(&fd));
  const unique_fd page(fd);
  EXPECT_EQ(mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
  void* const seen = mmap(nullptr, 4096, PROT_READ, MAP_SHARED, fd, 0);
  ASSERT_NE(seen, MAP_FAILED);
  EXPECT_NE(mprotect(seen, 4096, PROT_READ | PROT_WRITE), 0);
  const std::uint32_t wrong = 0;
  EXPECT_LT(pwrite(fd, &wrong, sizeof wrong, 0), 0);
  EXPECT_NE(ftruncate(fd, 0), 0);
  EXPECT_NE(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096), 0);
  EXPECT_GT(static_cast<const sluice_scheduler_words*>(seen)->turns, 0U);
  munmap(seen, 4096);
}

TEST_F(Hostile, CountersThatCannotBeThrowTheClientOut) {
  start();
  const auto lie = [&](auto&& change) {
    raw_client one(place_.path());
    auto* const words = one.join();
    sluice_words_begin(words);
    one.ring();
    ASSERT_TRUE(node_->suspends());
    const std::uint64_t before = node_->stats().clients_thrown_out;
    change(*words);
    one.ring();
    EXPECT_TRUE(one.is_hung_up());
    EXPECT_TRUE(node_->resumes());
    EXPECT_EQ(node_->stats().clients_thrown_out, before + 1);
    munmap(words, sizeof *words);
  };
  // What is mapped of clients' pages, which nothing shall keep.
  const auto mapped = [] {
    std::ifstream maps("/proc/self/maps");
    std::size_t found = 0;
    for (std::string line; std::getline(maps, line);) found += line.find("/memfd:") != line.npos;
    return found;
  };
  const std::size_t mapped_before = mapped();
  lie([](auto& words) { __atomic_store_n(&words.begun, 0, __ATOMIC_RELEASE); });
  lie([](auto& words) { __atomic_store_n(&words.begun, 1U << 21U, __ATOMIC_RELEASE); });
  lie([](auto& words) {
    __atomic_store_n(&words.begun, std::uint64_t{1} << 40U, __ATOMIC_RELEASE);
  });
  lie([](auto& words) { __atomic_store_n(&words.ended, ~std::uint64_t{0}, __ATOMIC_RELEASE); });
  EXPECT_TRUE(eventually(patience, [&] { return mapped() <= mapped_before; }));
  EXPECT_TRUE(others_are_served());
}

TEST_F(Hostile, WhoLiesAgainAndAgainFillsNoLog) {
  start();
  const auto begun = clock::now();
  constexpr std::uint64_t lies = 50;
  ::testing::internal::CaptureStderr();
  for (std::uint64_t i = 0; i < lies; ++i) {
    raw_client one(place_.path());
    auto* const words = one.join();
    __atomic_store_n(&words->begun, 1U << 21U, __ATOMIC_RELEASE);
    one.ring();
    EXPECT_TRUE(one.is_hung_up());
    munmap(words, sizeof *words);
  }
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(node_->stats().clients_thrown_out, lies);
  std::size_t lines = 0;
  for (auto at = log.find("disconnected:"); at != log.npos;
       at = log.find("disconnected:", at + 1)) {
    ++lines;
  }
  // Eight at once, and one a second.
  EXPECT_GE(lines, 1U);
  EXPECT_LE(lines, 9U + static_cast<std::size_t>((clock::now() - begun) / 1s));
}

TEST_F(Hostile, GarbageInThePageHarmsNobodyElse) {
  const test::random_seed seed;
  start();
  std::atomic<bool> done{false};
  std::thread garbage([&] {
    std::mt19937_64 random(seed.value());
    while (!done) {
      raw_client one(place_.path());
      auto* const words = one.join();
      for (int i = 0; i < 20; ++i) {
        // Marks that look as if they were there, with anything in them.
        const std::uint64_t from = __atomic_load_n(&words->taken, __ATOMIC_RELAXED);
        for (std::uint64_t ticket = from; ticket < from + SLUICE_WORDS_MARKS; ++ticket) {
          sluice_mark& mark = words->marks[ticket % SLUICE_WORDS_MARKS];
          mark.request = random();
          mark.at = static_cast<std::int64_t>(random());
          mark.kind = static_cast<std::uint32_t>(random() % 5);
          mark.begins = static_cast<std::uint32_t>(random());
          __atomic_store_n(&mark.number, ticket + 1, __ATOMIC_RELEASE);
        }
        words->used = random();
        words->lost = random();
        words->first_unseen = static_cast<std::int64_t>(random());
        words->taken = random();
        one.ring();
      }
      words->begun = random();
      words->ended = random();
      one.ring();
      munmap(words, sizeof *words);
    }
  });
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(others_are_served());
  done = true;
  garbage.join();
  EXPECT_TRUE(node_->resumes());
}

TEST_F(Hostile, BellThatIsNeverSilentOrBlocksDelaysNobody) {
  start();
  raw_client one(place_.path());
  auto* const words = one.join();
  // Flags belong to the open file, which both share.
  ASSERT_EQ(fcntl(one.bell.get(), F_SETFL, 0), 0);
  std::atomic<bool> done{false};
  std::thread flood([&] {
    while (!done) one.ring();
  });
  const std::uint64_t before = node_->stats().turns;
  const auto begun = clock::now();
  EXPECT_TRUE(others_are_served());
  std::this_thread::sleep_until(begun + 200ms);
  const std::uint64_t turns = node_->stats().turns - before;
  const auto took = std::chrono::duration<double>(clock::now() - begun).count();
  // A hundred rings about nothing, then ten milliseconds of peace.
  EXPECT_LT(static_cast<double>(turns), 20'000 * took) << "in " << took << " s";
  done = true;
  flood.join();
  munmap(words, sizeof *words);
}

TEST_F(Hostile, WhoFloodsTheSocketAndReadsNothingIsDroppedOrWaits) {
  start();
  raw_client one(place_.path());
  auto* const words = one.join();
  ASSERT_EQ(fcntl(one.fd(), F_SETFL, O_NONBLOCK), 0);
  std::atomic<bool> done{false};
  std::thread flood([&] {
    sluice_wire_wait wait{};
    wait.head = {SLUICE_WIRE_WAIT, SLUICE_WIRE_VERSION, SLUICE_WORDS_LAYOUT, 0};
    for (; !done; ++wait.number) {
      if (!one.send(&wait, sizeof wait) && errno != EAGAIN) return;
    }
  });
  EXPECT_TRUE(others_are_served());
  EXPECT_TRUE(one.is_hung_up());
  done = true;
  flood.join();
  munmap(words, sizeof *words);
}

TEST(ServerOptions, AreChecked) {
  const socket_place place;
  client::server_options options;
  options.socket = place.path();
  options.most_clients = 0;
  std::string said;
  options.say = [&](std::string_view line) { said = line; };
  served_node node(options);
  EXPECT_EQ(node.start().error(), errc::bad_config);
  EXPECT_THAT(said, HasSubstr("expected 1 to 4096"));
}

TEST_F(Hostile, ClientsAndStrangersAreBounded) {
  client::server_options options;
  options.most_of_a_process = 3;
  options.hello_limit = 20s;
  start(std::move(options));
  std::vector<std::unique_ptr<raw_client>> strangers;
  for (int i = 0; i < 100; ++i) strangers.push_back(std::make_unique<raw_client>(place_.path()));
  const auto refused = strangers.back()->welcome();
  ASSERT_TRUE(refused);
  EXPECT_THAT(refused->why, HasSubstr("too many connections"));
  // They keep nobody out who says what it is.
  program good;
  ASSERT_EQ(good.ask("open " + place_.path() + " 1"), "ok");
  EXPECT_TRUE(eventually(
      patience, [&] { return good.ask("status").find("connected=1") != std::string::npos; }));
  strangers.resize(1);  // The others are gone once this one is alone.
  EXPECT_TRUE(eventually(patience, [&] {
    raw_client one(place_.path());
    pollfd answer{one.fd(), POLLIN, 0};
    return poll(&answer, 1, 20) == 0;
  }));
  std::vector<std::unique_ptr<raw_client>> clients;
  for (int i = 0; i < 3; ++i) {
    clients.push_back(std::make_unique<raw_client>(place_.path()));
    auto* const words = clients.back()->join();
    munmap(words, sizeof *words);
  }
  raw_client one(place_.path());
  const auto said = one.register_itself();
  ASSERT_TRUE(said);
  EXPECT_THAT(said->why, HasSubstr("limit reached: the process has 3 clients"));
}

}  // namespace
}  // namespace sluice::test::hostile_test
