#include "sluice/observe/metrics_server.hpp"

#include "http_request.hpp"
#include "run_delay.hpp"
#include "temporary_directory.hpp"

#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace sluice::observe::metrics_server_test {
namespace {

using namespace std::chrono_literals;

TEST(MetricsAddress, IsASocketOrANumber) {
  const auto unix_socket = parse_metrics_address("unix:/run/sluice/metrics.sock");
  ASSERT_TRUE(unix_socket);
  EXPECT_TRUE(unix_socket->local);
  EXPECT_EQ(unix_socket->unix_path, "/run/sluice/metrics.sock");
  for (const char* const local : {"127.0.0.1:9464", "[::1]:9464", "127.8.8.8:0"}) {
    ASSERT_TRUE(parse_metrics_address(local)) << local;
    EXPECT_TRUE(parse_metrics_address(local)->local) << local;
  }
  for (const char* const open : {"0.0.0.0:9464", "[::]:9464", "192.168.1.2:9464"}) {
    ASSERT_TRUE(parse_metrics_address(open)) << open;
    EXPECT_FALSE(parse_metrics_address(open)->local) << open;
  }
  for (const char* const wrong :
       {"", ":9464", "9464", "localhost:9464", "127.0.0.1", "127.0.0.1:", "127.0.0.1:65536",
        "127.0.0.1:1x", "unix:", "unix:metrics.sock", "::1:9464", "[::1]"})
    EXPECT_FALSE(parse_metrics_address(wrong)) << wrong;
  EXPECT_FALSE(parse_metrics_address("unix:/" + std::string(120, 'a')));
}

TEST(HttpRequest, IsForMetricsOrIsRefused) {
  EXPECT_EQ(read_request("GET /metrics HTTP/1.1\r\n").status, 0);
  EXPECT_EQ(read_request("GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n").status, 200);
  EXPECT_EQ(read_request("GET /metrics?x=1 HTTP/1.0\r\n\r\n").status, 200);
  EXPECT_EQ(read_request("GET /metricsx HTTP/1.1\r\n\r\n").status, 404);
  EXPECT_EQ(read_request("POST /metrics HTTP/1.1\r\n\r\n").status, 405);
  EXPECT_EQ(read_request("GET /metrics\r\n\r\n").status, 400);
  EXPECT_EQ(read_request("\r\n\r\n").status, 400);
  EXPECT_EQ(read_request(std::string(longest_request, 'a')).status, 431);
  const auto form = [](std::string_view accept) {
    return read_request("GET /metrics HTTP/1.1\r\n" + std::string{accept} + "\r\n\r\n").form;
  };
  EXPECT_EQ(form("Accept: text/plain"), metrics_form::prometheus);
  EXPECT_EQ(form("aCCept: Application/OpenMetrics-text;version=1.0.0,text/plain;q=0.5"),
            metrics_form::openmetrics);
  EXPECT_EQ(form("X: application/openmetrics-text"), metrics_form::prometheus);
}

class MetricsServer : public testing::Test {
 protected:
  ~MetricsServer() override { stop(); }
  void stop() {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
    server.reset();
  }

  void listen(const std::string& at) {
    std::string problem;
    auto made = metrics_server::listen(
        *parse_metrics_address(at),
        [this](metrics_form form) { return form == metrics_form::openmetrics ? "# EOF\n" : page; },
        problem);
    ASSERT_TRUE(made.has_value()) << problem;
    server = std::move(*made);
    thread_ = std::thread{[this] {
      while (!stop_) {
        pollfd ready{server->ready_fd(), POLLIN, 0};
        if (::poll(&ready, 1, 5) == 1) server->serve();
      }
    }};
  }

  int connect_unix() const {
    const int fd = ::socket(AF_UNIX, SOCK_STREAM, 0);
    sockaddr_un at{};
    at.sun_family = AF_UNIX;
    std::strncpy(at.sun_path, (directory + "/m.sock").c_str(), sizeof at.sun_path - 1);
    EXPECT_EQ(::connect(fd, reinterpret_cast<const sockaddr*>(&at), sizeof at), 0);
    return fd;
  }
  int connect_port() const {
    const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_port = htons(server->port());
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::connect(fd, reinterpret_cast<const sockaddr*>(&at), sizeof at), 0);
    return fd;
  }
  /// All that is answered until the connection ends.
  static std::string rest_of(int fd) {
    std::string all;
    std::array<char, 4096> some;
    for (ssize_t got = 0; (got = ::recv(fd, some.data(), some.size(), 0)) > 0;)
      all.append(some.data(), static_cast<std::size_t>(got));
    ::close(fd);
    return all;
  }
  static std::string ask(int fd, std::string_view request) {
    EXPECT_EQ(::send(fd, request.data(), request.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(request.size()));
    return rest_of(fd);
  }

  const sluice::test::temporary_directory place;
  const std::string directory = place.path();
  std::string page = "a 1\n";
  std::unique_ptr<metrics_server> server;

 private:
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

TEST_F(MetricsServer, AnswersInTheFormThatIsAskedFor) {
  listen("127.0.0.1:0");
  EXPECT_EQ(ask(connect_port(), "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"),
            "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
            "Content-Length: 4\r\nConnection: close\r\n\r\na 1\n");
  EXPECT_TRUE(
      ask(connect_port(), "GET /metrics HTTP/1.1\r\nAccept: application/openmetrics-text\r\n\r\n")
          .ends_with("\r\n\r\n# EOF\n"));
  EXPECT_TRUE(ask(connect_port(), "HEAD /metrics HTTP/1.1\r\n\r\n").ends_with("close\r\n\r\n"));
  EXPECT_TRUE(ask(connect_port(), "GET / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404 "));
}

TEST_F(MetricsServer, SendsALargePageToWhoReadsSlowly) {
  page.assign(std::size_t{8} << 20U, 'x');
  listen("unix:" + directory + "/m.sock");
  const std::string all = ask(connect_unix(), "GET /metrics HTTP/1.1\r\n\r\n");
  EXPECT_TRUE(all.ends_with(page));
}

TEST_F(MetricsServer, TakesTheRequestInPieces) {
  listen("unix:" + directory + "/m.sock");
  struct stat about {};
  ASSERT_EQ(::stat((directory + "/m.sock").c_str(), &about), 0);
  EXPECT_EQ(about.st_mode & 0777U, 0660U);
  const int fd = connect_unix();
  for (const char each : std::string_view{"GET /metrics HTTP/1.1\r\n\r"})
    ASSERT_EQ(::send(fd, &each, 1, MSG_NOSIGNAL), 1);
  EXPECT_TRUE(ask(fd, "\n").ends_with("a 1\n"));
}

TEST_F(MetricsServer, TurnsAwayWhoIsTooMany) {
  listen("unix:" + directory + "/m.sock");
  std::vector<int> idle;
  for (std::size_t i = 0; i < metrics_server::most_connections; ++i) {
    idle.push_back(connect_unix());
    ASSERT_EQ(::send(idle.back(), "GET", 3, MSG_NOSIGNAL), 3);
  }
  // At once, not when its time is over.
  sluice::test::run_delay waits;
  waits.add(::getpid());
  const time_point asked = clock::now();
  EXPECT_EQ(rest_of(connect_unix()), "");
  const time_point answered = clock::now();
  waits.look();
  EXPECT_LT(answered - asked,
            metrics_server::longest_connection / 2 + waits.waited_by_any(asked, answered));
  ::close(idle.back());
  idle.pop_back();
  // As soon as one is gone, which the server has to see first.
  std::string answer;
  for (const auto until = std::chrono::steady_clock::now() + 5s;
       answer.empty() && std::chrono::steady_clock::now() < until;) {
    const int fd = connect_unix();
    (void)!::send(fd, "GET /metrics HTTP/1.1\r\n\r\n", 25, MSG_NOSIGNAL);
    answer = rest_of(fd);
  }
  EXPECT_TRUE(answer.ends_with("a 1\n"));
  for (const int each : idle) ::close(each);
}

TEST_F(MetricsServer, LeavesWhatIsNoSocketAlone) {
  std::filesystem::create_directory(directory + "/m.sock");
  std::string problem;
  const auto refused = metrics_server::listen(
      *parse_metrics_address("unix:" + directory + "/m.sock"), [](metrics_form) { return ""; },
      problem);
  EXPECT_EQ(refused.error(), boost::system::errc::file_exists);
  EXPECT_NE(problem.find("m.sock"), problem.npos);
}

// Symptom: the second of two daemons took the socket, and removed it at its end.
TEST_F(MetricsServer, TakesNoSocketThatAnotherOneServes) {
  listen("unix:" + directory + "/m.sock");
  std::string problem;
  const auto refused = metrics_server::listen(
      *parse_metrics_address("unix:" + directory + "/m.sock"), [](metrics_form) { return "other"; },
      problem);
  EXPECT_EQ(refused.error(), errc::already_owned);
  EXPECT_NE(problem.find("is served by another"), problem.npos) << problem;
  EXPECT_TRUE(server->is_in_place());
  EXPECT_TRUE(ask(connect_unix(), "GET /metrics HTTP/1.1\r\n\r\n").ends_with("a 1\n"));
}

TEST_F(MetricsServer, KnowsThatItsFileIsGone) {
  listen("unix:" + directory + "/m.sock");
  const std::string path = directory + "/m.sock";
  std::filesystem::remove(path);
  EXPECT_FALSE(server->is_in_place());
  std::ofstream{path} << "another";
  EXPECT_FALSE(server->is_in_place());
  stop();
  EXPECT_TRUE(std::filesystem::exists(path)) << "which is not its own";
}

// Symptom: the answer was overtaken by a reset, for there was more to read.
TEST_F(MetricsServer, IsHeardByWhoSaysTooMuch) {
  listen("127.0.0.1:0");
  const std::string all = ask(connect_port(), std::string(300'000, 'a'));
  EXPECT_TRUE(all.starts_with("HTTP/1.1 431 ")) << all;
  EXPECT_TRUE(all.ends_with("use GET /metrics\n")) << all;
}

}  // namespace
}  // namespace sluice::observe::metrics_server_test
