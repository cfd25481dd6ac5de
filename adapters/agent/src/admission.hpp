#pragma once
/// \file
/// Whom the agent attaches to, whatever its host says.

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "sluice/os/process_identity.hpp"
#include "sluice/result.hpp"
#include "sluice/roles/target_rules.hpp"

namespace sluice::agent {

class admission {
 public:
  /// With more rights than its host the agent does not do whatever that says: the rules are those
  /// of /etc/sluice/sluice.toml, which is root's, or the defaults.
  /// \param file   else: whose table [roles] counts; empty: whomever the host names and the kernel
  ///               lets it touch.
  /// \return null there.
  static result<std::unique_ptr<admission>> make(const std::string& file, std::string& reason);

  /// Any thread.
  bool admits(pid_t pid, std::uint64_t start_time);
  /// Any thread. Often: logs a refusal once for each process.
  bool lets_follow(pid_t pid, std::uint64_t start_time);
  /// Any thread. Without a word about a process that is not.
  bool is_offline(pid_t pid, std::uint64_t start_time) const;
  /// Any thread. Not the opposite of is_offline(): the rules may match no process.
  bool is_online(pid_t pid, std::uint64_t start_time) const;

 private:
  admission(std::string path, std::unique_ptr<roles::target_rules> rules)
      : path_(std::move(path)), rules_(std::move(rules)) {}

  void say_refused(const char* what, pid_t pid, const char* because, std::string why);

  const std::string path_;
  const std::unique_ptr<roles::target_rules> rules_;
  std::atomic<std::uint64_t> refused_{0};
  std::mutex mutex_;
  std::vector<process_identity> not_followed_;  ///< As logged.
};

}  // namespace sluice::agent
