#include "control_link.hpp"

#include "output.hpp"

#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <utility>

#include <boost/json.hpp>
#include <fmt/format.h>

namespace sluice::cli {

namespace {

namespace json = boost::json;

constexpr timeval answer_patience{.tv_sec = 5, .tv_usec = 0};
/// Nodes with thousands of processes say as much.
constexpr std::size_t longest_answer = 64U << 20U;
constexpr int protocol = 1;

}  // namespace

bool control_link::connect(control_failure& failed) {
  if (socket_ >= 0) return true;
  const std::string path = where_.control();
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) {
    failed = {control_problem::nobody, printable(path) + ": the path is too long for a socket"};
    return false;
  }
  path.copy(address.sun_path, path.size());
  const int made = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (made < 0) {
    failed = {control_problem::broken, "no socket can be had: " + error_text(errno)};
    return false;
  }
  (void)::setsockopt(made, SOL_SOCKET, SO_RCVTIMEO, &answer_patience, sizeof answer_patience);
  (void)::setsockopt(made, SOL_SOCKET, SO_SNDTIMEO, &answer_patience, sizeof answer_patience);
  if (::connect(made, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) {
    socket_ = made;
    rest_.clear();
    return true;
  }
  const int error = errno;
  ::close(made);
  if (error == ENOENT || error == ECONNREFUSED) {
    failed = {control_problem::nobody,
              fmt::format("nobody answers at {}: no 'sluice run' or other sluice::node owns a node "
                          "by that directory; start one, or name its directory (--directory)",
                          printable(path))};
  } else if (error == EACCES) {
    failed = {control_problem::denied,
              fmt::format("{}: permission denied: ask as root, as the daemon's user or as a member "
                          "of the socket's group ([daemon] control_group)",
                          printable(path))};
  } else {
    failed = {control_problem::broken, fmt::format("{}: {}", printable(path), error_text(error))};
  }
  return false;
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
  request["version"] = protocol;
  const std::string line = json::serialize(request) + "\n";
  for (std::size_t sent = 0; sent < line.size();) {
    const ssize_t done = ::send(socket_, line.data() + sent, line.size() - sent, MSG_NOSIGNAL);
    if (done < 0 && errno == EINTR) continue;
    // Who refuses a connection says why and closes it: that is read below.
    if (done < 0 && errno == EPIPE) break;
    if (done < 0) return broken("the daemon does not hear: " + error_text(errno));
    sent += static_cast<std::size_t>(done);
  }
  std::array<char, 65536> room;
  for (std::size_t from = 0; rest_.find('\n', from) == rest_.npos;) {
    from = rest_.size();
    const ssize_t got = ::recv(socket_, room.data(), room.size(), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) return broken("the daemon does not answer within 5 s");
    if (got <= 0) return broken("the daemon hung up");
    rest_.append(room.data(), static_cast<std::size_t>(got));
    if (rest_.size() > longest_answer) return broken("the answer is too long");
  }
  const auto end = rest_.find('\n');
  boost::system::error_code error;
  json::value said = json::parse(std::string_view(rest_).substr(0, end), error);
  rest_.erase(0, end + 1);
  if (error || !said.is_object()) return broken("the answer is no JSON object");
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
  to.add_option("--directory", where.directory, "Where the node's files are ([daemon] directory)")
      ->capture_default_str()
      ->type_name("DIR");
}

std::string directory_words(const node_files& where) {
  if (where.directory == node_files{}.directory) return {};
  return " --directory " + printable(where.directory);
}

}  // namespace sluice::cli
