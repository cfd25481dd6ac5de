// A thousand connections at once that mean no good, of four processes and two users.

#include "raw_client.hpp"
#include "run_delay.hpp"
#include "served_node.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace sluice::test::crowd_test {
namespace {

constexpr int attackers = 4;
constexpr int connections = 250;  // Of each.
constexpr std::size_t most_of_a_process = 3;
constexpr std::size_t most_of_a_user = 8;
constexpr uid_t nobody = 65534;
/// How long a good client's work may wait for offline work to make room meanwhile, or to come back,
/// beside waits for a processor.
constexpr auto service_bound = 2s;

/// What a connection does. Each is tried by every attacker some twenty times.
enum class manner : int {
  silent,
  truncated_head,
  truncated_hello,
  oversized,
  without_descriptors,
  files_for_descriptors,
  unsealed_page,
  shrunk_page,
  forged_sender,
  sent_by_another,
  hard_of_hearing,
  registered_twice,
  registered,
  count
};

/// One connection, and what it sends first.
class rogue {
 public:
  rogue(const std::string& path, manner how, pid_t forged) : how_(how), line_(path) {
    auto hello = raw_client::good_hello();
    const int page = line_.page.get();
    const int bell = line_.bell.get();
    switch (how) {
      case manner::silent: return;
      case manner::truncated_head: send(&hello, 7, {}); return;
      case manner::truncated_hello: send(&hello, sizeof hello - 1, {page, bell}); return;
      case manner::oversized: {
        std::array<char, 8192> much{};
        std::memcpy(much.data(), &hello, sizeof hello);
        send(much.data(), much.size(), {page, bell});
        return;
      }
      case manner::without_descriptors: send(&hello, sizeof hello, {}); return;
      case manner::files_for_descriptors: {
        const unique_fd file(open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
        send(&hello, sizeof hello, {file.get(), line_.fd()});
        return;
      }
      case manner::unsealed_page: {
        const unique_fd loose(make_page(0));
        send(&hello, sizeof hello, {loose.get(), bell});
        // Where it were mapped by now, a read would be the server's end.
        EXPECT_EQ(ftruncate(loose.get(), 0), 0);
        return;
      }
      case manner::shrunk_page: {
        const unique_fd small(make_page(good_seals, 64));
        send(&hello, sizeof hello, {small.get(), bell});
        return;
      }
      case manner::forged_sender: forge(hello, forged); return;
      case manner::sent_by_another: {
        const pid_t other = fork();
        if (other == 0) {
          send(&hello, sizeof hello, {page, bell});
          _exit(0);
        }
        waitpid(other, nullptr, 0);
        return;
      }
      case manner::hard_of_hearing:
        shutdown(line_.fd(), SHUT_RD);
        send(&hello, sizeof hello, {page});
        return;
      case manner::registered_twice:
      case manner::registered: send(&hello, sizeof hello, {page, bell}); return;
      case manner::count: return;
    }
  }

  /// "admitted", or why not; "" where it was hung up on without a word.
  std::string outcome() {
    if (how_ == manner::hard_of_hearing) return "would not hear";
    if (!sent_) return "not sent";
    auto said = line_.welcome();
    if (!said) return "";
    if (said->error != 0) return said->why;
    if (how_ != manner::registered_twice) return "admitted";
    const auto hello = raw_client::good_hello();
    send(&hello, sizeof hello, {line_.page.get(), line_.bell.get()});
    said = line_.welcome();
    return said && said->error != 0 ? said->why : "";
  }

 private:
  void send(const void* what, std::size_t size, const std::vector<int>& fds) {
    sent_ = line_.send(what, size, fds) || sent_;
  }
  /// Root may say that another process sends it; to anybody else the kernel refuses.
  void forge(const sluice_wire_hello& hello, pid_t forged) {
    ucred other{forged, 0, 0};
    iovec data{const_cast<sluice_wire_hello*>(&hello), sizeof hello};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof other)] = {};
    msghdr to{};
    to.msg_iov = &data;
    to.msg_iovlen = 1;
    to.msg_control = control;
    to.msg_controllen = sizeof control;
    cmsghdr* const head = CMSG_FIRSTHDR(&to);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_CREDENTIALS;
    head->cmsg_len = CMSG_LEN(sizeof other);
    std::memcpy(CMSG_DATA(head), &other, sizeof other);
    sent_ = sendmsg(line_.fd(), &to, MSG_NOSIGNAL) == static_cast<ssize_t>(sizeof hello);
  }

  const manner how_;
  bool sent_ = true;
  raw_client line_;
};

/// A process that does all that when it is told to, keeps its connections, and says how each went.
class attacker {
 public:
  attacker(const std::string& path, uid_t user, pid_t victim) {
    EXPECT_EQ(pipe2(to_, O_CLOEXEC), 0);
    EXPECT_EQ(pipe2(from_, O_CLOEXEC), 0);
    pid_ = fork();
    if (pid_ != 0) {
      close(to_[0]);
      close(from_[1]);
      return;
    }
    close(to_[1]);
    if (user != geteuid() && (setgid(user) != 0 || setuid(user) != 0)) _exit(1);
    char told = 0;
    if (read(to_[0], &told, 1) != 1) _exit(2);
    std::vector<std::unique_ptr<rogue>> all;
    for (int i = 0; i < connections; ++i) {
      const auto how = static_cast<manner>(i % static_cast<int>(manner::count));
      all.push_back(std::make_unique<rogue>(path, how, victim));
    }
    std::string said;
    for (const auto& each : all) said += each->outcome() + "\n";
    (void)!write(from_[1], said.data(), said.size());
    close(from_[1]);
    (void)!read(to_[0], &told, 1);
    _exit(0);
  }
  ~attacker() {
    // By a word, for those that were forked later have this pipe, too.
    (void)!write(to_[1], "e", 1);
    close(to_[1]);
    close(from_[0]);
    waitpid(pid_, nullptr, 0);
  }
  attacker(const attacker&) = delete;
  attacker& operator=(const attacker&) = delete;

  void begin() const { (void)!write(to_[1], "g", 1); }
  /// Whether it has said all.
  bool has_ended() {
    pollfd one{from_[0], POLLIN, 0};
    while (poll(&one, 1, 0) == 1) {
      std::array<char, 4096> piece;
      const ssize_t got = read(from_[0], piece.data(), piece.size());
      if (got <= 0) return true;
      said_.append(piece.data(), static_cast<std::size_t>(got));
    }
    return false;
  }
  const std::string& said() const { return said_; }

 private:
  int to_[2];
  int from_[2];
  pid_t pid_ = 0;
  std::string said_;
};

std::size_t open_descriptors() {
  std::size_t count = 0;
  DIR* const all = opendir("/proc/self/fd");
  while (readdir(all) != nullptr) ++count;
  closedir(all);
  return count;
}

TEST(Crowd, OfAThousandHostileConnectionsKeepsNobodyFromItsService) {
  rlimit files{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &files), 0);
  files.rlim_cur = files.rlim_max;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &files), 0);
  if (files.rlim_cur < 2048) GTEST_SKIP() << "too few descriptors are allowed here";
  const bool as_root = geteuid() == 0;

  const socket_place place;
  ASSERT_EQ(chmod(place.directory().c_str(), 0755), 0);
  std::vector<std::unique_ptr<attacker>> all;
  for (int i = 0; i < attackers; ++i) {
    const uid_t user = as_root && i != 0 ? nobody : geteuid();
    all.push_back(std::make_unique<attacker>(place.path(), user, getpid()));
  }
  client::server_options options;
  options.socket = place.path();
  options.mode = 0666;
  options.most_of_a_process = most_of_a_process;
  options.most_of_a_user = most_of_a_user;
  options.say = [](std::string_view) {};
  served_node node(std::move(options));
  ASSERT_TRUE(node.runs());
  auto good = std::make_unique<raw_client>(place.path());
  auto* const words = good->join();
  run_delay waits;
  waits.add(getpid());
  const auto expect_in_time = [&](time_point since) {
    const auto now = clock::now();
    waits.look();
    EXPECT_LT(now - since, service_bound + waits.waited_by_any(since, now));
  };
  const auto work = [&] {
    waits.restart();
    const auto begun = clock::now();
    sluice_words_begin(words);
    good->ring();
    EXPECT_TRUE(node.suspends());
    expect_in_time(begun);
    const auto held = clock::now();
    EXPECT_NE(sluice_words_end(words), 0);
    good->ring();
    EXPECT_TRUE(node.resumes());
    expect_in_time(held);
    return clock::now() - begun;
  };
  duration longest_alone{};
  for (int i = 0; i < 5; ++i) longest_alone = std::max(longest_alone, work());
  const std::size_t before = open_descriptors();

  for (const auto& each : all) each->begin();
  duration longest{};
  int rounds = 0;
  ASSERT_TRUE(eventually(60s, [&] {
    longest = std::max(longest, work());
    ++rounds;
    return std::ranges::all_of(all, [](const auto& each) { return each->has_ended(); });
  }));
  const auto milliseconds = [](duration span) {
    return std::to_string(std::chrono::duration_cast<std::chrono::milliseconds>(span).count());
  };
  std::printf("served %d times meanwhile, in at most %s ms (alone %s ms)\n", rounds,
              milliseconds(longest).c_str(), milliseconds(longest_alone).c_str());

  std::map<std::string, int> outcomes;
  std::array<int, attackers> admitted{};
  for (std::size_t i = 0; i < all.size(); ++i) {
    std::istringstream said(all[i]->said());
    for (std::string line; std::getline(said, line);) {
      ++outcomes[line];
      if (line == "admitted") ++admitted[i];
    }
  }
  int answered = 0;
  for (const auto& [outcome, count] : outcomes) {
    std::printf("%5d  %s\n", count, outcome.c_str());
    answered += count;
  }
  EXPECT_EQ(answered, attackers * connections);
  EXPECT_EQ(outcomes.count(""), 0U) << "hung up on without a word";
  const auto seen = [&](const std::string& part) {
    return std::ranges::any_of(
        outcomes, [&](const auto& each) { return each.first.find(part) != std::string::npos; });
  };
  for (const char* const each :
       {"the client did not register in time", "a client's first message must be its registration",
        "come from different versions", "the client's page must be a memfd",
        "invalid message: ", "only the process that opened a connection may use it"})
    EXPECT_TRUE(seen(each)) << each;
  for (const int each : admitted) EXPECT_LE(each, static_cast<int>(most_of_a_process));
  EXPECT_TRUE(seen("limit reached: the process has 3 clients"));
  if (as_root) {
    EXPECT_LE(admitted[1] + admitted[2] + admitted[3], static_cast<int>(most_of_a_user));
    EXPECT_TRUE(seen("limit reached: user 65534 has 8 clients"));
  }

  all.clear();
  EXPECT_TRUE(eventually(patience,
                         [&] { return open_descriptors() <= before - std::size_t{2} * attackers; }))
      << open_descriptors() << " descriptors are open; " << before << " were, of which "
      << 2 * attackers << " were the test's";
  work();
  munmap(words, sizeof *words);
}

}  // namespace
}  // namespace sluice::test::crowd_test
