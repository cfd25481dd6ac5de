#pragma once
/// \file
/// The RM clients of one process, reached over duplicates of its descriptors.

#include "address_space.hpp"
#include "client_objects.hpp"
#include "device_users.hpp"

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

#include "sluice/os/unique_fd.hpp"
#include "sluice/result.hpp"
#include "sluice/time.hpp"

namespace sluice::nvidia {

/// A duplicate keeps objects and memory of the process alive after the process closed its own
/// descriptor. So refresh() must be called at least once a second while this exists, and the
/// process's end ends it.
///
/// Threading: one thread at a time.
class process_clients {
 public:
  /// Needs the right to attach to the process.
  /// \param pidfd of the process, which is certain to be the right one.
  /// \param longest_search how long a refresh() may search the process's memory for clients. The
  ///                       next one continues that search, which finds none before its end.
  /// \return the system's error.
  [[nodiscard]] static result<process_clients> open(pid_t pid, unique_fd pidfd,
                                                    const device_file& device,
                                                    duration longest_search);

  /// \return false to keep the client, and to be called again.
  using client_function = std::function<bool(const client_objects&)>;

  /// Adopts descriptors that the process has opened since, closes duplicates of those that it has
  /// closed, and reads the objects of each client.
  /// \param leaves as for drop_closed().
  /// \param stops  asked before each descriptor of the process, and before each question to the
  ///               driver about objects. Once it returns true, no more are asked: then the next
  ///               call reads what is missing.
  /// \param stops_search the same for pieces of memory that are searched for clients.
  /// \return errc::unknown_target if the process ended or runs another program: then close this
  ///         object.
  [[nodiscard]] result<void> refresh(const client_function& leaves = {},
                                     const stop_function& stops = {},
                                     const stop_function& stops_search = {});
  /// Closes duplicates of descriptors that the process has closed, and the clients with them.
  /// \param leaves called for each of these clients before: it lives on if another process, or
  ///               another descriptor of this one, has the open file (is_shared()).
  void drop_closed(const client_function& leaves = {});

  /// A change of its addresses follows refresh() and drop_closed().
  [[nodiscard]] const std::vector<client_objects>& clients() const noexcept { return clients_; }
  /// Returns the descriptor in the process over which a client was made. -1: unknown.
  [[nodiscard]] int descriptor_of(const client_objects& of) const noexcept;
  /// Returns why sluice does not understand this process: the end of a sentence about it.
  [[nodiscard]] std::string not_understood() const;
  /// Lists descriptors of other processes that share an open file with this one, out of `users`.
  [[nodiscard]] std::vector<remote_fd> sharers(const std::vector<remote_fd>& users) const;
  /// Returns whether any process has the open file of a client, over which this one reaches it.
  /// Also true if this process or one of `sharers`, as they were last seen, may have it, but there
  /// are no rights over it any more.
  [[nodiscard]] bool is_shared(const client_objects& of,
                               const std::vector<remote_fd>& sharers) const;
  /// Returns whether a search is under way: call refresh() soon.
  [[nodiscard]] bool is_searching() const noexcept { return searching_; }
  /// Returns how long the last search took, or has taken so far.
  [[nodiscard]] duration searched_for() const noexcept { return searched_for_; }
  [[nodiscard]] bool is_alive() const noexcept { return memory_.is_alive(); }

 private:
  struct file {
    int number = -1;  ///< In the process.
    unique_fd copy;
  };

  process_clients(pid_t pid, unique_fd pidfd, const device_file& device, address_space memory,
                  duration longest_search)
      : pid_(pid),
        pidfd_(std::move(pidfd)),
        device_(&device),
        memory_(std::move(memory)),
        longest_search_(longest_search) {}
  result<void> adopt(const stop_function& stops);
  bool has_file(const remote_fd& which) const;
  void find_clients(const stop_function& stops);
  /// \param looks until then.
  void search_soon(unsigned looks);
  void add_client(uapi::NvHandle handle, uapi::NvHandle newest);
  void drop_freed();

  pid_t pid_;
  unique_fd pidfd_;
  const device_file* device_;
  address_space memory_;
  duration longest_search_;
  std::vector<file> files_;
  std::vector<client_objects> clients_;
  unsigned search_in_ = 0;     ///< Looks until the memory is searched for clients.
  unsigned search_pause_ = 1;  ///< Looks between that search and the next one.
  time_point search_from_{};   ///< No search before.
  bool searching_ = false;
  bool again_ = false;  ///< Something came since the search began.
  duration searched_for_{};
};

}  // namespace sluice::nvidia
