#pragma once
/// \file
/// Answers GET /metrics, and nothing else.

#include <functional>
#include <memory>
#include <string>

#include "sluice/observe/metrics.hpp"
#include "sluice/observe/metrics_address.hpp"
#include "sluice/result.hpp"

namespace sluice::observe {

/// Few connections, each with one short request, 5 s in all: who is slower, or asks for anything
/// else, is turned away. No TLS and no passwords: a proxy's matter.
///
/// Threading: one thread. Errors: result<T>. Nothing blocks, but for what `page` does.
class metrics_server {
 public:
  static constexpr std::size_t most_connections = 16;
  static constexpr duration longest_connection = std::chrono::seconds(5);

  /// A Unix socket takes the place of one that nobody serves, and is its owner's and its group's
  /// (0660).
  /// \param page makes what is answered.
  /// \param problem on failure, in words.
  /// \return the system's error, such as EADDRINUSE; errc::already_owned: another program serves
  /// the socket.
  [[nodiscard]] static result<std::unique_ptr<metrics_server>> listen(
      const metrics_address& at, std::function<std::string(metrics_form)> page,
      std::string& problem);
  ~metrics_server();
  metrics_server(const metrics_server&) = delete;
  metrics_server& operator=(const metrics_server&) = delete;

  /// Readable whenever serve() has something to do.
  int ready_fd() const noexcept;
  void serve();
  /// Whether who scrapes finds it: the file of a Unix socket may have been removed or replaced.
  bool is_in_place() const noexcept;
  /// The port it listens at, where it was asked for one that is free (0); 0: a Unix socket.
  std::uint16_t port() const noexcept;

 private:
  class impl;
  explicit metrics_server(std::unique_ptr<impl> body) noexcept;
  std::unique_ptr<impl> impl_;
};

}  // namespace sluice::observe
