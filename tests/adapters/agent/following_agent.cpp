/// An agent whose driver only follows: it answers each follow() at once with one observation, which
/// has the interval in microseconds as its count, and the agent's pid as its queue. With the
/// setting `outlives`, holds outlive it, of which release() is refused while a file of that name is
/// there. With the setting `attaches` it attaches to all, and what it observes of a process that is
/// known to be offline is online_work::finished. With the setting `refuses_online` it does not
/// attach to a process that is known to be online.

#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <string>

#include "sluice/agent/acting_driver.hpp"
#include "sluice/os/unique_fd.hpp"

namespace {

using namespace sluice;

class following_side final : public acting_side {
 public:
  following_side(bool can, bool lies, bool attaches, bool refuses_online,
                 const agent::acting_host& host)
      : lies_(lies),
        attaches_(attaches),
        refuses_online_(refuses_online),
        host_(host),
        ready_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    report first;
    first.kind = report_kind::acts_by;
    first.acting = can ? capabilities{"following", {capability::read_backlog}}
                       : capabilities{"not following", {}};
    say(first);
  }

  int ready_fd() const noexcept override { return ready_.get(); }
  bool next(report& out) override {
    if (reports_.empty()) {
      eventfd_t count = 0;
      ::eventfd_read(ready_.get(), &count);
      return false;
    }
    out = reports_.front();
    reports_.pop_front();
    return true;
  }
  result<void> attach(process_id target, pid_t pid, std::uint64_t start_time) override {
    if (!attaches_ && (!host_.admits || !host_.admits(pid, start_time))) return errc::not_managed;
    if (refuses_online_ && host_.is_online(pid, start_time)) return errc::not_managed;
    report made;
    made.kind = report_kind::attached;
    made.target = target;
    say(made);
    return {};
  }
  result<void> detach(process_id target) override {
    if (!attaches_) return errc::unknown_target;
    report made;
    made.kind = report_kind::detached;
    made.target = target;
    say(made);
    return {};
  }
  result<void> submit(const batch&) override { return errc::unknown_target; }
  result<void> follow(pid_t pid, std::uint64_t start_time, duration every) override {
    report made;
    made.kind = report_kind::observed;
    observation& seen = made.seen;
    seen.kind = observation_kind::pointers_seen;
    seen.pid = pid;
    seen.start_time = start_time;
    seen.gpu = gpu_id{1};
    seen.queue = driver_queue_id{static_cast<std::uint32_t>(::getpid())};
    seen.work = host_.is_offline(pid, start_time) ? online_work::finished : online_work::waiting;
    seen.count = static_cast<std::uint32_t>(every / std::chrono::microseconds{1});
    seen.at = clock::now();
    if (lies_) {
      report lie = made;
      lie.seen.work = static_cast<online_work>(200);
      say(lie);
      lie.seen.kind = static_cast<observation_kind>(77);
      lie.seen.what = static_cast<role>(9);
      lie.seen.type = static_cast<queue_kind>(9);
      lie.seen.at = time_point::max();
      say(lie);
      lie.kind = static_cast<report_kind>(99);
      say(lie);
    }
    say(made);
    return {};
  }
  bool stop(duration) override { return true; }

 private:
  void say(const report& what) {
    reports_.push_back(what);
    ::eventfd_write(ready_.get(), 1);
  }

  const bool lies_;
  const bool attaches_;
  const bool refuses_online_;
  const agent::acting_host host_;
  std::deque<report> reports_;
  unique_fd ready_;
};

class following_driver final : public agent::acting_driver {
 public:
  std::string_view name() const noexcept override { return "following"; }
  bool set(std::string_view key, std::string_view, std::string&) override {
    if (key == "cannot") can_ = false;
    if (key == "lies") lies_ = true;
    if (key == "outlives") outlives_ = true;
    if (key == "attaches") attaches_ = true;
    if (key == "refuses_online") refuses_online_ = true;
    return key == "cannot" || key == "lies" || key == "outlives" || key == "attaches" ||
           key == "refuses_online";
  }
  result<std::unique_ptr<acting_side>> open(const agent::acting_host& host) override {
    return std::make_unique<following_side>(can_, lies_, attaches_, refuses_online_, host);
  }
  agent::confinement needs(agent::confined) const override { return {}; }
  bool outlives_agent() const noexcept override { return outlives_; }
  result<void> release(const hold& what, const message_sink&) override {
    struct stat about {};
    if (::stat(std::string{what.text()}.c_str(), &about) == 0) return errc::busy;
    return {};
  }

 private:
  bool can_ = true;
  bool lies_ = false;
  bool outlives_ = false;
  bool attaches_ = false;
  bool refuses_online_ = false;
};

}  // namespace

int main(int argc, char** argv) {
  return sluice::agent::run_agent(argc, argv,
                                  {[] { return std::make_unique<following_driver>(); }});
}
