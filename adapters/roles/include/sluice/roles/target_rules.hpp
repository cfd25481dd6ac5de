#pragma once
/// \file
/// The rules of classification for who has to know about one process at a time, and does not take
/// anybody's word for it: the acting side, which its scheduler tells what to attach to. Who follows
/// all processes of a node takes sluice/discovery.hpp.

#include <memory>
#include <string>

#include "sluice/os/process_identity.hpp"
#include "sluice/result.hpp"
#include "sluice/role.hpp"

namespace sluice::roles {

/// The table [roles] of a file, as it is when it is loaded, and the role store that it names, as it
/// is at each question. Neither SLUICE_ROLES nor what was said over a client's socket or by a
/// program counts, nor do queues vote.
///
/// Threading: any thread.
/// Errors:    load(): errc::bad_config, or the system's, with a sentence.
/// Cost:      role_of() reads some files of /proc and the store.
class target_rules {
 public:
  enum class trust {
    /// Of files that root owns, and that nobody else may write or replace. Where there is no such
    /// configuration the defaults hold; a store that is not so counts for nothing.
    roots_files,
    any_file,  ///< It must be there.
  };
  [[nodiscard]] static result<std::unique_ptr<target_rules>> load(const std::string& path,
                                                                  trust whom, std::string& message);
  ~target_rules();
  target_rules(const target_rules&) = delete;
  target_rules& operator=(const target_rules&) = delete;

  /// \param why where it is unmatched because something could not be read: what, and what to do.
  ///            Else it stays as it is.
  /// \return unmatched also for a process that is gone.
  [[nodiscard]] role role_of(const process_identity& who, std::string& why) const;

 private:
  class impl;
  explicit target_rules(std::unique_ptr<impl> state);
  std::unique_ptr<impl> impl_;
};

}  // namespace sluice::roles
