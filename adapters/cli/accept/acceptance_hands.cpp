// How `sluice accept` acts on its victims and on the driver.

#include "acceptance_hands.hpp"

#include "output.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include <fmt/format.h>

#include "sluice/agent/agent_backend.hpp"
#include "sluice/duration_text.hpp"
#include "sluice/os/node_lock.hpp"
#include "sluice/os/process_identity.hpp"

namespace sluice::cli::acceptance {

namespace {

using namespace std::chrono_literals;

/// Long enough not to take a busy node for a dead agent.
constexpr duration lease = 5s;
/// Between two looks at what nobody wakes us for.
constexpr duration look_interval = 5ms;
/// For a kernel of a running victim to end, or of one that the guardian resumes; long enough for a
/// busy machine.
constexpr duration progress_patience = 20s;
/// For a killed victim to be gone: the driver may keep it in a call for as long as its own limit.
constexpr duration kill_patience = 10s;

}  // namespace

void fail(const std::string& why) { throw step_end{verdict::failed, why}; }

hands::hands(const settings& chosen, int signals, acting_choice on)
    : chosen_(chosen),
      signals_(signals),
      driver_(agent::make_agent_backend({.driver = std::move(on),
                                         .owner_lock = chosen.owner_lock,
                                         .lease = lease,
                                         // Also from the thread that starts the agent anew.
                                         .say = [this](std::string_view text) {
                                           const std::lock_guard held{words_mutex_};
                                           words_.emplace_back(text);
                                         }})) {}

hands::~hands() { driver_->stop(); }

bool hands::start(std::vector<std::unique_ptr<kfd::smi_stream>> resets) {
  resets_ = std::move(resets);
  const auto started = driver_->start(*this);
  for (const auto& each : take_words()) complain(each);
  if (!started) complain("cannot start the agent: " + started.error().message());
  return started.has_value();
}

std::vector<std::string> hands::take_words() {
  const std::lock_guard held{words_mutex_};
  return std::exchange(words_, {});
}

void hands::begin_step() { deadline_ = clock::now() + chosen_.limit; }

void hands::hear() {
  driver_->drain();
  driver_->flush();
  for (const auto& stream : resets_) {
    const auto events = stream->read();
    if (!events) continue;
    for (const auto& each : *events) {
      if (each.kind != kfd::smi_kind::gpu_pre_reset && each.kind != kfd::smi_kind::gpu_post_reset)
        continue;
      failures_.push_back({stream->gpu(), breaker_cause::reset});
      if (reset_.empty())
        reset_ = fmt::format("the driver reset GPU {}; see dmesg", number(stream->gpu()));
    }
  }
}

void hands::turn(int also, time_point until) {
  const time_point now = clock::now();
  const time_point next = driver_->tick(now);
  const duration sleep = std::clamp<duration>(std::min({next, until, now + look_interval}) - now,
                                              duration::zero(), look_interval);
  std::vector<pollfd> sources{{driver_->ready_fd(), POLLIN, 0},
                              {interrupted_ ? -1 : signals_, POLLIN, 0},
                              {also, POLLIN, 0}};
  for (const auto& each : resets_) sources.push_back({each->fd(), POLLIN, 0});
  const timespec limit{0, sleep.count()};
  ::ppoll(sources.data(), sources.size(), &limit, nullptr);
  if (sources[1].revents != 0) {
    interrupted_ = true;
    if (trouble_.empty()) trouble_ = "a signal interrupted this command";
  }
  hear();
}

void hands::wait(std::string_view what, const std::function<bool()>& until, int also) {
  if (!wait_for(deadline_ - clock::now(), until, also))
    fail(fmt::format("step time limit of {} exceeded while waiting for {}", to_text(chosen_.limit),
                     what));
}

bool hands::wait_for(duration limit, const std::function<bool()>& until, int also) {
  const time_point end = std::min(clock::now() + limit, deadline_);
  for (;;) {
    if (!trouble_.empty()) fail(trouble_);
    // The call that led to it says more.
    if (!reset_.empty() && !calling_) fail(reset_);
    if (until()) return true;
    if (clock::now() >= end) return false;
    turn(also, end);
  }
}

void hands::pause(duration length) {
  const time_point end = clock::now() + length;
  wait("the end of a measurement", [end] { return clock::now() >= end; });
}

void hands::attached(process_id target, error_code error) {
  if (target != target_) return;
  answer_ = error;
  if (error) target_ = {};
}
void hands::queue_added(const queue_info& queue) {
  if (queue.target != target_) return;
  queues_.insert_or_assign(queue.id, queue);
  gpu_ = queue.gpu;
}
void hands::queue_removed(process_id target, driver_queue_id queue) {
  if (target == target_) queues_.erase(queue);
}
void hands::completed(const batch_result& result) { result_ = result; }
void hands::detached(process_id target) {
  if (target != target_) return;
  target_ = {};
  queues_.clear();
}
void hands::gpu_lost(gpu_id gpu) {
  failures_.push_back({gpu, breaker_cause::stuck_call});
  if (trouble_.empty())
    trouble_ = fmt::format("driver call on GPU {} timed out; see dmesg", number(gpu));
}
void hands::lost(error_code) {
  lives_ = false;
  target_ = {};
  queues_.clear();
  if (!killed_ && trouble_.empty()) trouble_ = "the agent ended unexpectedly";
}

duration hands::attach(pid_t pid) {
  wait("the agent to start", [this] { return lives_; });
  const auto who = identity_of(pid);
  if (!who) fail("the victim ended unexpectedly");
  answer_.reset();
  queues_.clear();
  target_ = process_id{++ids_};
  const time_point begin = clock::now();
  if (const auto asked = driver_->attach(target_, pid, who->start_time); !asked) {
    target_ = {};
    fail("the agent refused an attach request: " + asked.error().message());
  }
  wait("the agent to attach", [this] { return answer_.has_value(); });
  if (*answer_ == errc::unknown_target) fail("the victim ended unexpectedly");
  if (*answer_) {
    std::string why;
    for (const auto& each : take_words()) why += "; " + each;
    fail("attach refused: " + answer_->message() + why);
  }
  return clock::now() - begin;
}

duration hands::detach() {
  const time_point begin = clock::now();
  if (const auto asked = driver_->detach(target_); !asked)
    fail("the agent refused a detach request: " + asked.error().message());
  wait("the agent to detach", [this] { return !attached(); });
  return clock::now() - begin;
}

void hands::let_go() noexcept {
  calling_ = false;
  try {
    const time_point end = clock::now() + kill_patience;
    if (attached() && lives_ && driver_->detach(target_))
      while (attached() && clock::now() < end) turn(-1, end);
  } catch (const std::exception&) {
    // The agent ends with us.
  }
  target_ = {};
}

std::string hands::aftermath() {
  const time_point end = clock::now() + chosen_.settle;
  hear();
  while (reset_.empty() && !interrupted_ && clock::now() < end) turn(-1, end);
  return reset_.empty() ? trouble_ : reset_;
}

void hands::still_there(pid_t victim) {
  if (trouble_.empty())
    trouble_ = fmt::format(
        "victim process {} was killed but has not ended; a GPU reset or a reboot ends it", victim);
}

std::vector<queue_info> hands::queues() const {
  std::vector<queue_info> all;
  for (const auto& [id, each] : queues_)
    if (each.type == queue_kind::compute) all.push_back(each);
  return all;
}

duration hands::change(command_kind kind) {
  const std::string_view verb = kind == command_kind::suspend ? "suspend" : "resume";
  std::map<gpu_id, std::vector<driver_queue_id>> where;
  for (const auto& each : queues()) where[each.gpu].push_back(each.id);
  if (where.empty())
    fail(attached() ? "the victim no longer has compute queues" : "the victim ended unexpectedly");
  duration took{};
  for (const auto& [gpu, ids] : where) {
    batch work;
    work.id = ++ids_;
    work.target = target_;
    work.gpu = gpu;
    work.kind = kind;
    work.count = static_cast<std::uint16_t>(std::min(ids.size(), max_batch_queues));
    std::copy_n(ids.begin(), work.count, work.queues.begin());
    result_.reset();
    if (const auto given = driver_->submit(work); !given)
      fail(fmt::format("the agent refused a {} request: {}", verb, given.error().message()));
    driver_->flush();
    calling_ = true;
    wait(fmt::format("the driver to {} the queues", verb), [this] { return result_.has_value(); });
    calling_ = false;
    const auto& got = *result_;
    for (std::size_t i = 0; i < got.count; ++i) {
      const auto outcome = got.outcomes[i];
      if (outcome == outcome::done) continue;
      if (outcome == outcome::failed && got.driver_errno == 0) {
        failures_.push_back({gpu, breaker_cause::preemption_failed});
        fail(fmt::format(
            "the driver reported ERROR for the {} of queue {}: the hardware failed; see "
            "dmesg",
            verb, number(got.queues[i])));
      }
      if (outcome == outcome::target_gone) fail("the victim ended unexpectedly");
      fail(fmt::format("the driver did not {} queue {}: {}", verb, number(got.queues[i]),
                       got.driver_errno != 0 ? error_text(got.driver_errno)
                                             : "it is unknown, new or being destroyed (INVALID)"));
    }
    took += got.finished - got.started;
  }
  return took;
}

void hands::quantum_set(process_id target, gpu_id, duration, error_code error) {
  if (target == target_) quantum_answer_ = error;
}

void hands::set_quantum(duration length) {
  quantum_answer_.reset();
  if (const auto asked = driver_->set_quantum(target_, gpu_, length); !asked)
    fail("the agent refused a request for a quantum: " + asked.error().message());
  driver_->flush();
  wait("the driver to set the quantum",
       [this] { return quantum_answer_.has_value() || !attached(); });
  if (!attached()) fail("the victim ended unexpectedly");
  if (*quantum_answer_)
    fail(fmt::format("the driver did not set a quantum of {}: {}", to_text(length),
                     quantum_answer_->message()));
}

pid_t hands::agent() const {
  const auto found = node_lock::look(chosen_.owner_lock);
  return found && *found && (*found)->program == ::getpid() ? (*found)->agent : 0;
}

time_point hands::kill_agent(pid_t which) {
  killed_ = true;
  const time_point now = clock::now();
  ::kill(which, SIGKILL);
  wait("the agent to end", [this] { return !lives_; });
  killed_ = false;
  return now;
}

// --- victim -------------------------------------------------------------------------------------

namespace {

/// Only what may be done between fork and exec.
[[noreturn]] void become(const char* program, char* const* words, char* const* settings, int in,
                         int out, pid_t parent) {
  ::setpgid(0, 0);  // Ctrl-C is for us alone
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(127);
  constexpr rlimit no_core{0, 0};
  ::setrlimit(RLIMIT_CORE, &no_core);
  ::dup2(in, STDIN_FILENO);
  ::dup2(out, STDOUT_FILENO);
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  for (const int each : {SIGPIPE, SIGTSTP, SIGTTIN, SIGTTOU}) ::signal(each, SIG_DFL);
  ::execve(program, words, settings);
  ::_exit(127);
}

}  // namespace

victim::victim(hands& by, const settings& chosen, unsigned queues) : by_(by) {
  std::array<int, 2> to{}, from{};
  if (::pipe2(to.data(), O_CLOEXEC) != 0) fail("cannot create a pipe: " + error_text(errno));
  to_ = unique_fd{to[1]};
  unique_fd in{to[0]};
  if (::pipe2(from.data(), O_CLOEXEC) != 0) fail("cannot create a pipe: " + error_text(errno));
  from_ = unique_fd{from[0]};
  unique_fd out{from[1]};
  std::vector<std::string> words{chosen.victim, "--queues", std::to_string(queues)};
  // Offline by the default rules, which an agent with file capabilities asks for.
  std::vector<std::string> settings{"AMD_QUEUE_TAG=OFFLINE_AI"};
  for (char** each = environ; *each != nullptr; ++each)
    if (!std::string_view{*each}.starts_with("AMD_QUEUE_")) settings.emplace_back(*each);
  std::vector<char*> argv, envp;
  for (auto& each : words) argv.push_back(each.data());
  for (auto& each : settings) envp.push_back(each.data());
  argv.push_back(nullptr);
  envp.push_back(nullptr);
  const pid_t self = ::getpid();
  pid_ = ::fork();
  if (pid_ < 0) fail("cannot start the victim: " + error_text(errno));
  if (pid_ == 0) become(argv[0], argv.data(), envp.data(), in.get(), out.get(), self);
  life_ = unique_fd{static_cast<int>(::syscall(SYS_pidfd_open, pid_, 0))};
  // From here on the destructor does not run where this throws.
  try {
    ::fcntl(from_.get(), F_SETFL, O_NONBLOCK);
    ::fcntl(to_.get(), F_SETFL, O_NONBLOCK);
    in.reset();
    out.reset();  // so that its end shows
    const auto ready = hear("to start");
    if (ready != fmt::format("ready 1 {}", queues))
      fail(fmt::format(
          "the victim printed '{}' instead of 'ready 1 {}'; check the program of --victim",
          printable(ready), queues));
  } catch (...) {
    kill();
    throw;
  }
}

victim::~victim() { kill(); }

void victim::kill() {
  if (status_) return;
  ::kill(pid_, SIGKILL);
  const time_point end = clock::now() + kill_patience;
  while (!reap() && clock::now() < end) ::usleep(1000);
  if (status_) return;
  complain(fmt::format(
      "victim process {} was killed but has not ended; a GPU reset or a reboot ends it", pid_));
  by_.still_there(pid_);
}

bool victim::reap() {
  int status = 0;
  if (!status_ && ::waitpid(pid_, &status, WNOHANG) == pid_) status_ = status;
  return status_.has_value();
}

void victim::tell(const std::string& line) {
  const std::string text = line + "\n";
  // A pipe that nobody reads any more is found out by the answer that does not come.
  (void)!::write(to_.get(), text.data(), text.size());
}

std::string victim::hear(const std::string& what) {
  bool over = false;
  std::string line;
  by_.wait(
      "the victim " + what,
      [&] {
        std::array<char, 256> piece;
        for (;;) {
          if (const auto end = said_.find('\n'); end != said_.npos) {
            line = said_.substr(0, end);
            said_.erase(0, end + 1);
            return true;
          }
          const ssize_t got = ::read(from_.get(), piece.data(), piece.size());
          if (got < 0 && errno != EINTR) return false;
          if (got == 0) return over = true;
          if (got > 0) said_.append(piece.data(), static_cast<std::size_t>(got));
        }
      },
      from_.get());
  if (!over) return line;
  const auto status = ends(std::chrono::seconds{1});
  fail(status ? "the victim ended unexpectedly: " + status_text(*status)
              : "the victim closed its standard output but has not ended");
}

std::string victim::ask(const std::string& line) {
  tell(line);
  return hear("to answer '" + line + "'");
}

namespace {
void expect_ok(const std::string& line, const std::string& answer) {
  if (answer != "ok")
    fail(
        fmt::format("the victim answered '{}' with '{}' instead of 'ok'", line, printable(answer)));
}
}  // namespace

void victim::run(duration kernel, unsigned percent) {
  const auto line = fmt::format("run {} {}", kernel.count(), percent);
  expect_ok(line, ask(line));
}
void victim::idle() { expect_ok("idle", ask("idle")); }
void victim::once(duration kernel, unsigned percent) {
  const auto line = fmt::format("once {} {}", kernel.count(), percent);
  expect_ok(line, ask(line));
}

victim::counted victim::count() {
  const auto text = ask("count");
  constexpr std::string_view word = "count ";
  const auto gap = text.find(' ', word.size());
  if (text.starts_with(word) && gap != text.npos) {
    const auto done =
        whole_number<std::uint64_t>(std::string_view{text}.substr(word.size(), gap - word.size()));
    const auto longest = whole_number<std::int64_t>(std::string_view{text}.substr(gap + 1));
    if (done && longest && *longest >= 0) return {*done, duration{*longest}};
  }
  fail(fmt::format("the victim answered 'count' with '{}' instead of 'count DONE NS'",
                   printable(text)));
}

std::optional<int> victim::ends(duration limit) {
  by_.wait_for(
      limit, [this] { return reap(); }, life_.get());
  return status_;
}

std::string status_text(int status) {
  if (WIFEXITED(status)) return fmt::format("exit code {}", WEXITSTATUS(status));
  // NOLINTNEXTLINE(concurrency-mt-unsafe): one thread
  return fmt::format("signal {} ({})", WTERMSIG(status), ::strsignal(WTERMSIG(status)));
}

void bench::expect_quiet(victim& held, duration span, std::string_view meanwhile) {
  // What ended before may be told late.
  const time_point end = clock::now() + std::max<duration>(span * 5, 500ms);
  while (clock::now() < end) {
    (void)held.count();
    by.pause(span);
    if (held.count().done == 0) return;
  }
  fail(fmt::format("the victim's kernels still run {}", meanwhile));
}

void bench::expect_progress(victim& running, std::string_view when) {
  const time_point end = clock::now() + progress_patience;
  (void)running.count();
  while (clock::now() < end) {
    by.pause(1ms);
    if (running.count().done > 0) return;
  }
  fail(fmt::format("no kernel of the victim completed {}", when));
}

}  // namespace sluice::cli::acceptance
