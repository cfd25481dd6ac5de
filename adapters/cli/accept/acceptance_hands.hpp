#pragma once
/// \file
/// How `sluice accept` acts: on the victim through the agent, as a scheduler does, but one thing at
/// a time; and on the victims themselves.

#include "acceptance.hpp"

#include <sys/types.h>

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sluice/acting.hpp"
#include "sluice/backend.hpp"
#include "sluice/kfd/roots.hpp"
#include "sluice/kfd/smi_events.hpp"
#include "sluice/os/unique_fd.hpp"
#include "sluice/queue_holder.hpp"

namespace sluice::cli::acceptance {

/// Ends a step before its end.
struct step_end : std::runtime_error {
  step_end(verdict what, const std::string& why) : std::runtime_error{why}, came_to{what} {}
  verdict came_to;
};
[[noreturn]] void fail(const std::string& why);

struct settings {
  kfd::roots where;  ///< Of steps that only apply to driver kfd.
  std::string victim;
  std::string owner_lock;
  int repeat = 100;
  duration window{};  ///< How long speeds are measured.
  duration limit{};   ///< Of a step.
  duration settle{};  ///< How long a reset is waited for once a step's victims are gone.
};

/// The agent, and whatever ends a step early: its limit, a signal, a reset, a preemption that
/// failed, an agent that is gone.
///
/// Threading: one thread. Lifetime: destruction lets everything run, for which it waits.
class hands final : private backend_listener {
 public:
  /// \param signals readable when this process is to end.
  /// \param on       what the agent is told to act on the driver.
  hands(const settings& chosen, int signals, acting_choice on);
  ~hands();
  hands(const hands&) = delete;
  hands& operator=(const hands&) = delete;

  /// \return false, after a complaint.
  bool start(std::vector<std::unique_ptr<kfd::smi_stream>> resets);

  void begin_step();
  /// Until it is so. Throws step_end at the step's limit, which names `what`, and for all above.
  void wait(std::string_view what, const std::function<bool()>& until, int also = -1);
  /// The same with a limit of its own. \return whether it came to be so.
  bool wait_for(duration limit, const std::function<bool()>& until, int also = -1);
  void pause(duration length);

  /// \return how long it took. Throws where it is refused.
  duration attach(pid_t pid);
  duration detach();
  bool attached() const { return target_ != process_id::none; }
  /// Of the attached process, compute queues alone.
  std::vector<queue_info> queues() const;
  /// One driver call for each GPU. Throws where a queue is not in the asked state afterwards.
  /// \return how long the driver took.
  duration change(command_kind kind);

  /// For the attached process on gpu(); zero: the driver's default. Throws where it is refused.
  void set_quantum(duration length);
  bool has(capability what) const { return can_.has(what); }

  /// The agent's pid, which the owner lock names. \return 0 where it cannot be read.
  pid_t agent() const;
  /// Kills it; then nothing is attached. \return when the kill was sent.
  time_point kill_agent(pid_t which);

  /// What was heard of since the last call: for the breakers.
  std::vector<gpu_failure> take_failures() { return std::exchange(failures_, {}); }
  /// Lets go of what is attached, whatever the step came to. Of its victims none lives any more.
  void let_go() noexcept;
  /// Waits for a reset that the step may bring: its last preemptions were those of its victims'
  /// end. \return why the step has failed, though all else of it passed; empty where nothing came
  /// up.
  std::string aftermath();
  /// A victim that not even SIGKILL ends.
  void still_there(pid_t victim);
  /// What the agent had to say since the last call.
  std::vector<std::string> take_words();
  /// Where the victims' queues were.
  gpu_id gpu() const noexcept { return gpu_; }

 private:
  void attached(process_id target, error_code error) override;
  void queue_added(const queue_info& queue) override;
  void queue_removed(process_id target, driver_queue_id queue) override;
  void completed(const batch_result& result) override;
  void detached(process_id target) override;
  void acts_by(const capabilities& what, bool) override { can_ = what; }
  void quantum_set(process_id target, gpu_id gpu, duration length, error_code error) override;
  void gpu_lost(gpu_id gpu) override;
  void lost(error_code reason) override;
  void restored() override { lives_ = true; }

  void turn(int also, time_point until);
  void hear();

  const settings& chosen_;
  const int signals_;
  std::unique_ptr<backend> driver_;
  std::vector<std::unique_ptr<kfd::smi_stream>> resets_;
  time_point deadline_ = time_point::max();
  std::uint64_t ids_ = 0;
  process_id target_{};
  std::optional<error_code> answer_;  // to attach()
  std::map<driver_queue_id, queue_info> queues_;
  std::optional<batch_result> result_;
  std::optional<error_code> quantum_answer_;  // to set_quantum()
  capabilities can_;
  gpu_id gpu_{};
  bool lives_ = true;
  bool killed_ = false;  // by us
  bool interrupted_ = false;
  bool calling_ = false;
  std::string trouble_;  // what ends the step
  std::string reset_;    // likewise, but for a call that is under way
  // Neither is ever cleared: after either no step follows.
  std::vector<gpu_failure> failures_;
  std::mutex words_mutex_;
  std::vector<std::string> words_;  // the agent's
};

/// A process that speaks the protocol of accept/victim.hpp. Dies with this process, or with this.
class victim {
 public:
  /// Throws step_end where it does not come up.
  victim(hands& by, const settings& chosen, unsigned queues);
  ~victim();
  victim(const victim&) = delete;
  victim& operator=(const victim&) = delete;

  pid_t pid() const noexcept { return pid_; }
  /// Throws step_end where it has ended, or answers anything but "ok".
  void run(duration kernel, unsigned percent);
  void idle();
  void once(duration kernel, unsigned percent);
  struct counted {
    std::uint64_t done = 0;
    duration longest{};
  };
  counted count();
  /// No answer is waited for.
  void tell(const std::string& line);
  /// \return its wait status once it has ended, nothing at the limit.
  std::optional<int> ends(duration limit);

 private:
  std::string ask(const std::string& line);
  std::string hear(const std::string& what);
  bool reap();
  void kill();

  hands& by_;
  pid_t pid_ = -1;
  std::optional<int> status_;
  unique_fd life_;  // readable once it has ended
  unique_fd to_;
  unique_fd from_;
  std::string said_;
};

/// "exit code 3", "signal 6 (Aborted)".
std::string status_text(int status);

/// What the steps share.
class bench {
 public:
  hands& by;
  const settings& chosen;

  /// Until nothing has run for `span`. Throws where something does.
  void expect_quiet(victim& held, duration span, std::string_view meanwhile);
  /// Until something ended. Throws where nothing does.
  void expect_progress(victim& running, std::string_view when);
};

}  // namespace sluice::cli::acceptance
