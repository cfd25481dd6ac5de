#include "control_link.hpp"

#include "output.hpp"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <thread>
#include <utility>

#include <boost/json.hpp>
#include <fmt/format.h>

namespace sluice::cli {

namespace {

namespace json = boost::json;

constexpr duration answer_patience = std::chrono::seconds(5);
constexpr duration meanwhile_every = std::chrono::milliseconds(50);
/// Nodes with thousands of processes say as much.
constexpr std::size_t longest_answer = 64U << 20U;
constexpr int protocol = 1;

/// \return false: nobody wants to wait.
bool wait_a_little(const std::function<bool()>& meanwhile) {
  if (meanwhile && !meanwhile()) return false;
  std::this_thread::sleep_for(std::chrono::milliseconds(10));
  return true;
}

}  // namespace

bool control_link::connect(control_failure& failed) {
  if (socket_ >= 0) return true;
  const std::string path = where_.control();
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) {
    failed = {control_problem::nobody,
              printable(path) +
                  ": the path is too long for a Unix socket; use a directory with a shorter path"};
    return false;
  }
  path.copy(address.sun_path, path.size());
  const int made = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (made < 0) {
    failed = {control_problem::broken, "cannot create a socket: " + error_text(errno)};
    return false;
  }
  const time_point end = clock::now() + answer_patience;
  int error = 0;
  // With as many before it as the daemon lets wait, there is nothing to be woken by.
  do {
    error = ::connect(made, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0
                ? 0
                : errno;
  } while (error == EAGAIN && wait_a_little(meanwhile_) && clock::now() < end);
  if (error == 0) {
    socket_ = made;
    rest_.clear();
    return true;
  }
  ::close(made);
  if (error == ENOENT || error == ECONNREFUSED) {
    failed = {control_problem::nobody,
              fmt::format("no daemon answers at {}; start 'sluice run' or a program that embeds "
                          "sluice::node, or pass the daemon's directory with --directory",
                          printable(path))};
  } else if (error == EACCES) {
    failed = {
        control_problem::denied,
        fmt::format("{}: permission denied; run this command as root, as the daemon's user or as a "
                    "member of the socket's group (control_group of [daemon])",
                    printable(path))};
  } else if (error == EAGAIN) {
    failed = {control_problem::broken,
              printable(path) + ": the daemon did not answer within 5 s; see the daemon's log"};
  } else {
    failed = {control_problem::broken, fmt::format("{}: {}", printable(path), error_text(error))};
  }
  return false;
}

int control_link::wait(short events, time_point end) const {
  for (;;) {
    const duration left = end - clock::now();
    if (left <= duration::zero()) return ETIMEDOUT;
    pollfd one{.fd = socket_, .events = events, .revents = 0};
    const auto most = std::chrono::ceil<std::chrono::milliseconds>(
        meanwhile_ ? std::min(left, meanwhile_every) : left);
    if (::poll(&one, 1, static_cast<int>(most.count())) > 0) return 0;
    if (meanwhile_ && !meanwhile_()) return ECANCELED;
  }
}

void control_link::hang_up() {
  if (socket_ >= 0) ::close(std::exchange(socket_, -1));
}

std::optional<json::object> control_link::ask(json::object request, control_failure& failed) {
  if (!connect(failed)) return {};
  const auto broken = [&](const std::string& what) -> std::optional<json::object> {
    hang_up();
    failed = {control_problem::broken, printable(where_.control() + ": " + what)};
    return {};
  };
  const auto late = [&](int error) {
    return broken(error == ETIMEDOUT ? "the daemon did not answer within 5 s; see the daemon's log"
                                     : "the request was cancelled");
  };
  request["version"] = protocol;
  const std::string line = json::serialize(request) + "\n";
  for (std::size_t sent = 0; sent < line.size();) {
    if (const int error = wait(POLLOUT, clock::now() + answer_patience); error != 0)
      return late(error);
    const ssize_t done = ::send(socket_, line.data() + sent, line.size() - sent, MSG_NOSIGNAL);
    if (done < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    // Who refuses a connection says why and closes it: that is read below.
    if (done < 0 && errno == EPIPE) break;
    if (done < 0) return broken("cannot send to the daemon: " + error_text(errno));
    sent += static_cast<std::size_t>(done);
  }
  std::array<char, 65536> room;
  for (std::size_t from = 0; rest_.find('\n', from) == rest_.npos;) {
    from = rest_.size();
    if (const int error = wait(POLLIN, clock::now() + answer_patience); error != 0)
      return late(error);
    const ssize_t got = ::recv(socket_, room.data(), room.size(), 0);
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (got <= 0)
      return broken("the daemon closed the connection without an answer; see the daemon's log");
    rest_.append(room.data(), static_cast<std::size_t>(got));
    if (rest_.size() > longest_answer) return broken("the daemon's answer is longer than 64 MiB");
  }
  const auto end = rest_.find('\n');
  auto answer = parse_answer(std::string_view(rest_).substr(0, end), failed);
  rest_.erase(0, end + 1);
  if (!answer && failed.what == control_problem::broken) return broken(failed.sentence);
  return answer;
}

std::optional<json::object> parse_answer(std::string_view line, control_failure& failed) {
  boost::system::error_code error;
  json::value said = json::parse(line, error);
  if (error || !said.is_object()) {
    failed = {control_problem::broken, "the daemon's answer is not a JSON object"};
    return {};
  }
  json::object& answer = said.as_object();
  const auto* const refusal = answer.if_contains("error");
  if (refusal == nullptr) return std::move(answer);
  const auto text = [&](std::string_view key) {
    const auto* const in = refusal->is_object() ? refusal->as_object().if_contains(key) : nullptr;
    return in != nullptr && in->is_string() ? printable(in->as_string()) : std::string("?");
  };
  failed = {text("code") == "denied" ? control_problem::denied : control_problem::refused,
            text("sentence")};
  return {};
}

void add_directory(CLI::App& to, node_files& where) {
  to.add_option("--directory", where.directory,
                "Directory of the node's files ([daemon] directory)")
      ->envname("SLUICE_DIRECTORY")
      ->capture_default_str()
      ->type_name("DIR");
}

std::string directory_words(const node_files& where) {
  if (where.directory == node_files{}.directory) return {};
  return " --directory " + printable(where.directory);
}

}  // namespace sluice::cli
