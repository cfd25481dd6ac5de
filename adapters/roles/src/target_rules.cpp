#include "sluice/roles/target_rules.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <utility>
#include <vector>

#include "sluice/os/proc.hpp"
#include "sluice/os/unique_fd.hpp"
#include "sluice/roles/classifier.hpp"
#include "sluice/roles/role_store.hpp"

namespace sluice::roles {

namespace {

/// Whether nobody but root decides what is in there. What lies above its directory is root's on
/// any system that is to hold.
bool is_roots(const std::string& path) {
  const std::string parent = std::filesystem::path{path}.parent_path().string();
  struct stat file {};
  struct stat around {};
  const auto shut = [](const struct stat& what) {
    return what.st_uid == 0 && (what.st_mode & (S_IWGRP | S_IWOTH)) == 0;
  };
  return ::lstat(path.c_str(), &file) == 0 && S_ISREG(file.st_mode) && shut(file) &&
         ::lstat(parent.c_str(), &around) == 0 && S_ISDIR(around.st_mode) && shut(around);
}

bool is_there(const std::string& path) {
  struct stat found {};
  return ::lstat(path.c_str(), &found) == 0 || (errno != ENOENT && errno != ENOTDIR);
}

}  // namespace

class target_rules::impl {
 public:
  impl(classification_rules rules, trust whom)
      : trust_(whom),
        store_(rules.role_store),
        rules_(std::move(rules)),
        wanted_(classifier{rules_}.wanted_variables()) {}

  role role_of(const process_identity& who, std::string& why) const {
    // Held while it is looked at: nobody else comes to have the pid.
    const unique_fd pidfd{static_cast<int>(::syscall(SYS_pidfd_open, who.pid, 0))};
    if (!pidfd || start_time_of(who.pid) != who.start_time) return role::unmatched;
    process_traits of{.who = who};
    // Half of a picture might make an online process offline.
    if (!read_changing_traits(of)) {
      why = "out of file descriptors: cannot read its user, groups and cgroup";
      return role::unmatched;
    }
    auto variables = read_variables(who.pid, wanted_);
    if (variables) of.variables = std::move(*variables);
    of.hidden_environment = !variables;
    classifier by{rules_};
    if (!store_.empty() && (trust_ == trust::any_file || is_roots(store_))) {
      auto stored = role_store{store_}.read(why);
      if (!stored) return role::unmatched;
      by.set_stored(std::move(*stored));
    }
    const role what = by.role_of(of, {}, false);
    pollfd ended{pidfd.get(), POLLIN, 0};
    if (::poll(&ended, 1, 0) != 0) return role::unmatched;
    if (what == role::unmatched && of.hidden_environment && by.may_claim(of)) {
      why = "its environment, which may claim a role, cannot be read (" +
            variables.error().message() +
            "); for processes of other users this needs CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH";
    }
    return what;
  }

 private:
  const trust trust_;
  const std::string store_;
  const classification_rules rules_;
  const std::set<std::string, std::less<>> wanted_;
};

target_rules::target_rules(std::unique_ptr<impl> state) : impl_(std::move(state)) {}
target_rules::~target_rules() = default;

role target_rules::role_of(const process_identity& who, std::string& why) const {
  return impl_->role_of(who, why);
}

result<std::unique_ptr<target_rules>> target_rules::load(const std::string& path, trust whom,
                                                         std::string& message) {
  const bool defaults = whom == trust::roots_files && !is_there(path);
  if (whom == trust::roots_files && !defaults && !is_roots(path)) {
    message =
        path +
        " and its directory must belong to root, and only root may write to them, because the file "
        "decides which processes the agent may attach to; run chown root and chmod go-w on both";
    return errc::bad_config;
  }
  std::vector<std::string> problems;
  auto rules = read_classification(defaults ? "" : path, problems);
  if (!rules) {
    message = problems.front();
    return rules.error();
  }
  return std::unique_ptr<target_rules>{
      new target_rules{std::make_unique<impl>(std::move(*rules), whom)}};
}

}  // namespace sluice::roles
