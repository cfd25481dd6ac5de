#pragma once
/// \file
/// One connection: from its hello to its end.

#include "foreign_fd.hpp"
#include "message.hpp"
#include "peer_process.hpp"

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "sluice/client_host.hpp"
#include "sluice/client_server.hpp"
#include "sluice/client_words.h"
#include "sluice/reactor.hpp"
#include "sluice/role.hpp"
#include "sluice/time.hpp"

namespace sluice::client {

/// What a session needs of its server. Threading: reactor thread.
class session_home {
 public:
  virtual client_host& clients() = 0;
  virtual reactor& loop() = 0;
  /// Whether the process may have another client of that role, and if so notes it.
  /// \param why else a sentence for the client.
  virtual bool admit(const peer& who, role what, std::string& why) = 0;
  /// Whether the process may have that role by the rules of now.
  /// \param why else a sentence for the client.
  virtual bool allows(const peer& who, role what, std::string& why) = 0;
  /// Takes back one admit().
  virtual void dismiss(const peer& who, role what) = 0;
  /// Ends the session, later: it is destroyed outside of all that it does.
  virtual void drop(std::uint64_t session) = 0;
  /// Its due() may be earlier now.
  virtual void due_changed() = 0;
  /// Something of its is in flight from now on.
  virtual void has_begun() = 0;
  /// It is gone, and what it had in flight counts as ended.
  virtual void has_lost(const peer& who, std::uint64_t in_flight, std::string_view how) = 0;

 protected:
  ~session_home() = default;
};

/// Threading: reactor thread.
/// Lifetime:  destruction withdraws the client and ends all watches.
class session final : private remote_client {
 public:
  session(session_home& home, std::uint64_t number, foreign_fd socket, identified peer,
          time_point hello_until);
  ~session();
  session(const session&) = delete;
  session& operator=(const session&) = delete;

  /// Watches, and takes what has come already. \return false: it is over.
  bool start();
  std::uint64_t number() const noexcept { return number_; }
  /// When tick() wants to be called.
  time_point due() const noexcept;
  void tick(time_point now);
  /// Whether it has not said what it is.
  bool is_stranger() const noexcept { return hello_until_ != never; }
  /// Whether something is in flight, which would end with the process.
  bool is_busy() const noexcept { return busy_ && !over_; }
  /// Whether its page says the same as at the last call, as while its core is written.
  bool is_silent() noexcept;
  /// Ends it if it would not be admitted now.
  void ask_again();
  /// Ends it if its core is being written. Reads a file of /proc: 10 to 40 us.
  void look_for_core();
  /// Says why it will be hung up on. \return false.
  bool refuse(int error, std::string_view why);

 private:
  // remote_client
  void in_flight(bool any) override;
  void thrown_out(std::string_view why) override;

  void readable();
  void rung();
  /// \return false: it is over.
  bool take(message& what, time_point now);
  bool hello(message& what);
  void wait(const sluice_wire_wait& asked, time_point now);
  void stop_waiting(std::uint64_t number);
  void answer(std::uint64_t number, bool clear);
  bool watch_socket();
  bool watch_bell();
  /// \param how for the log, where something was in flight.
  void end(std::string_view how);

  session_home& home_;
  const std::uint64_t number_;
  const foreign_fd socket_;
  identified peer_;
  time_point hello_until_;  // Never once it was there.
  foreign_fd bell_;
  watch_id socket_watch_{};
  watch_id life_watch_{};
  watch_id bell_watch_{};

  role role_ = role::unmatched;  // As admitted.
  client_id client_{};           // None: it is offline, or nothing yet.
  std::shared_ptr<sluice_client_words> words_;
  std::map<std::uint64_t, std::uint64_t> waits_;  // The client's number to the scheduler's.

  bool busy_ = false;
  std::uint64_t seen_ = 0;  // Sum of its words, at the last is_silent().
  time_point unmute_socket_ = never;
  time_point unmute_bell_ = never;
  time_point window_{};  // Of the messages counted.
  int messages_ = 0;
  int idle_rings_ = 0;
  std::uint64_t moved_ = 0;  // Sum of the words that a ring is about, at the last one.
  bool over_ = false;
};

}  // namespace sluice::client
