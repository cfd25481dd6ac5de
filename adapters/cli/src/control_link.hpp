#pragma once
/// \file
/// Asks the program that owns the node, over its control socket.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <CLI/CLI.hpp>
#include <boost/json/object.hpp>

#include "sluice/node_files.hpp"
#include "sluice/time.hpp"

namespace sluice::cli {

enum class control_problem : std::uint8_t {
  nobody,   ///< Nobody serves the socket.
  denied,   ///< This user may not open it, or may not ask that.
  refused,  ///< The other end said so.
  broken,   ///< It hung up, hangs, or says what nobody understands.
};

struct control_failure {
  control_problem what{};
  std::string sentence;  ///< What and what to do; printable.
};

/// One connection, made by the first question and anew after it broke.
///
/// Threading: one thread. Blocks until the daemon has said nothing for 5 s.
class control_link {
 public:
  /// \param meanwhile called some 20 times a second while an answer is awaited; false gives it up.
  explicit control_link(node_files where, std::function<bool()> meanwhile = nullptr)
      : where_(std::move(where)), meanwhile_(std::move(meanwhile)) {}
  ~control_link() { hang_up(); }
  control_link(const control_link&) = delete;
  control_link& operator=(const control_link&) = delete;

  /// \param request without its version.
  /// \param failed  what went wrong, where nothing is returned.
  std::optional<boost::json::object> ask(boost::json::object request, control_failure& failed);

 private:
  bool connect(control_failure& failed);
  /// Until the socket is ready, or `end`. \return 0, ETIMEDOUT or ECANCELED.
  int wait(short events, time_point end) const;
  void hang_up();

  const node_files where_;
  const std::function<bool()> meanwhile_;
  int socket_ = -1;
  std::string rest_;
};

/// What one line of a daemon says. \return nothing where it is no answer, or a refusal.
std::optional<boost::json::object> parse_answer(std::string_view line, control_failure& failed);

/// The option --directory.
void add_directory(CLI::App& to, node_files& where);
/// " --directory DIR" where that is not the default: for commands that sentences name.
std::string directory_words(const node_files& where);

}  // namespace sluice::cli
