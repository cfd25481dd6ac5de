#include "admission.hpp"

#include "host_line.hpp"

#include <sys/auxv.h>

#include <algorithm>
#include <utility>

#include "sluice/os/proc.hpp"

namespace sluice::agent {

namespace {

constexpr const char* own_configuration = "/etc/sluice/sluice.toml";

}  // namespace

result<std::unique_ptr<admission>> admission::make(const std::string& file, std::string& reason) {
  using trust = roles::target_rules::trust;
  const bool privileged = ::getauxval(AT_SECURE) != 0;
  const std::string path = privileged ? own_configuration : file;
  if (path.empty()) return std::unique_ptr<admission>{};
  auto rules =
      roles::target_rules::load(path, privileged ? trust::roots_files : trust::any_file, reason);
  if (!rules) return rules.error();
  return std::unique_ptr<admission>{new admission{path, std::move(*rules)}};
}

bool admission::is_offline(pid_t pid, std::uint64_t start_time) const {
  std::string why;
  return rules_->role_of({pid, start_time}, why) == role::offline;
}

bool admission::is_online(pid_t pid, std::uint64_t start_time) const {
  std::string why;
  return rules_->role_of({pid, start_time}, why) == role::online;
}

void admission::say_refused(const char* what, pid_t pid, const char* because, std::string why) {
  const auto count = refused_.fetch_add(1) + 1;
  if (!why.empty()) why.insert(0, ": ");
  say(note_kind::message, std::string("refused to ") + what + " process " + std::to_string(pid) +
                              ": it is " + because + " according to the agent's own rules in " +
                              path_ + why + " (" + std::to_string(count) + " refused so far)");
}

bool admission::admits(pid_t pid, std::uint64_t start_time) {
  std::string why;
  const role what = rules_->role_of({pid, start_time}, why);
  if (what == role::offline) return true;
  say_refused("attach to", pid, what == role::online ? "online" : "not offline", std::move(why));
  return false;
}

bool admission::lets_follow(pid_t pid, std::uint64_t start_time) {
  std::string why;
  if (rules_->role_of({pid, start_time}, why) == role::online) return true;
  {
    const process_identity who{pid, start_time};
    const std::scoped_lock held{mutex_};
    std::erase_if(not_followed_, [](const process_identity& each) {
      return start_time_of(each.pid) != each.start_time;
    });
    if (std::ranges::find(not_followed_, who) != not_followed_.end()) return false;
    not_followed_.push_back(who);
  }
  say_refused("look at the work of", pid, "not online", std::move(why));
  return false;
}

}  // namespace sluice::agent
