#include "world.hpp"

#include "eventually.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <stdexcept>
#include <string_view>
#include <thread>
#include <utility>

namespace sluice::soak {

namespace {

using namespace std::chrono_literals;
using test::eventually;

constexpr std::array<std::uint32_t, 2> gpus{51110, 51367};
/// Two GPUs of different hives, so that a reset of one leaves the breaker of the other closed. The
/// rest is as in the profile mi300x, or mi300x with batch commands.
constexpr const char* profile = "name = \"soak\"\n[driver]\nbatch_commands = ";
constexpr const char* profile_gpus =
    "\n[[gpu]]\ngpu_id = 51110\nhive_id = 1\n"
    "[[gpu]]\ngpu_id = 51367\nhive_id = 2\n";
/// The agent's, by default: where daemon or agent is kept from running for half of it, it may
/// lapse.
constexpr auto lease = 500ms;

constexpr auto tick = 10ms;
constexpr auto look_every = 500ms;
constexpr auto sample_every = 1s;
constexpr auto rest_every = 5min;
/// Of what a process does when asked to end: its kernels may have to wait for online work.
constexpr auto ending_limit = 150s;
constexpr std::size_t most_problems = 40;
constexpr std::size_t log_lines_of_a_problem = 20;

enum : std::size_t { resident, anonymous, descriptors, threads };

struct measure {
  const char* name;
  const char* unit;
};
constexpr std::array<measure, measures> measured{
    {{"RSS", "KiB"}, {"anonymous", "KiB"}, {"descriptors", ""}, {"threads", ""}}};

constexpr bound memory_bound(double once) { return {.once = once, .per_hour = 256}; }
/// Samples are taken under churn: the bound allows for descriptors and threads that exist at that
/// moment.
constexpr bound count_bound{.once = 3, .per_hour = 3};
struct bounded_process {
  const char* name;
  std::array<bound, measures> most;
};
/// Memory rises until all of it has been used once, and then stays. The daemon has a journal of 2.5
/// MiB, which fills within minutes, 1.8 MiB for each inbox in use and 1.6 MiB of an io_uring, which
/// is not anonymous. The device keeps the accounts of the last 256 processes that ended.
constexpr std::array<bounded_process, 3> bounded{
    {{"daemon", {memory_bound(6144), memory_bound(4096), count_bound, count_bound}},
     {"agent", {memory_bound(4096), memory_bound(2048), count_bound, count_bound}},
     {"device", {memory_bound(4096), memory_bound(4096), count_bound, count_bound}}}};

constexpr const char* resume_refused = "a resume is refused";

const std::string policies_by_default = "name = \"pointer_polling\"\n";

std::string seconds(duration value) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.3f s", std::chrono::duration<double>(value).count());
  return text.data();
}

double entries(const std::string& directory) {
  std::error_code failed;
  const std::filesystem::directory_iterator all{directory, failed};
  return failed ? 0 : static_cast<double>(std::distance(begin(all), end(all)));
}

/// All zero when it is not there.
using usage = std::array<double, measures>;

usage usage_of(pid_t pid) {
  usage found{};
  const std::string of = "/proc/" + std::to_string(pid);
  std::ifstream file{of + "/smaps_rollup"};
  for (std::string line; pid > 0 && std::getline(file, line);) {
    if (line.starts_with("Rss:")) found[resident] = std::strtod(line.c_str() + 4, nullptr);
    if (line.starts_with("Anonymous:")) found[anonymous] = std::strtod(line.c_str() + 10, nullptr);
  }
  if (found[resident] == 0) return {};
  found[descriptors] = entries(of + "/fd");
  found[threads] = entries(of + "/task");
  return found;
}

/// What a process has open, and how often.
std::string open_files(pid_t pid) {
  std::map<std::string, int> all;
  std::error_code failed;
  const std::string of = "/proc/" + std::to_string(pid) + "/fd";
  for (const auto& each : std::filesystem::directory_iterator{of, failed}) {
    const auto what = std::filesystem::read_symlink(each.path(), failed).string();
    ++all[what.starts_with("socket:") ? "socket" : what];
  }
  std::string text;
  for (const auto& [what, times] : all)
    text += (text.empty() ? "" : ", ") + what + " " + std::to_string(times);
  return text;
}

}  // namespace

world::world(const plan& what, const std::atomic<int>& stop)
    : plan_(what),
      stop_(stop),
      bits_(what.seed),
      device_(
          {.profile = std::string{profile} + (what.by_batch() ? "true" : "false") + profile_gpus}),
      directory_(device_.root() + "/run"),
      config_(device_.root() + "/sluice.toml"),
      logs_(what.logs.empty() ? directory_ : what.logs) {
  // What others leave behind becomes ours, so that nothing is left unseen.
  if (::prctl(PR_SET_CHILD_SUBREAPER, 1) != 0)
    throw std::runtime_error{"cannot become the reaper of orphaned processes"};
  std::filesystem::create_directory(directory_);
  for (const std::uint32_t queues : {3U, 3U, 2U, 2U})
    slots_.push_back({.where = place::offline, .queues = queues});
  for (int i = 0; i < 2; ++i) slots_.push_back({.where = place::online, .queues = 1});
  slots_.push_back({.where = place::bystander, .queues = 1});
  faults_ = every_fault();
}

world::~world() = default;

findings world::run() {
  configure(policies_by_default);
  start_daemon();
  const auto whole = std::chrono::duration_cast<duration>(
      std::chrono::duration<double, std::ratio<60>>(plan_.minutes));
  // As agent and device are before anything has happened. The daemon makes some of its threads when
  // it first needs them, and so is looked at later.
  rest();
  figures_["daemon"] = {};
  const time_point start = clock::now();
  warm_at_["device"] = start + whole / 5;
  say("phase: faults end the daemon and the agent");
  live(act::daemons_die, whole * 3 / 20);
  rest();
  figures_["daemon"] = {};
  warm_at_["daemon"] = clock::now() + whole * 17 / 100;
  say("phase: faults end the agent");
  // Rests may take long: each act has most of its time all the same.
  live(act::agents_die, std::max(start + whole / 2 - clock::now(), whole / 5));
  rest();
  warm_at_["agent"] = clock::now() + whole / 10;
  say("phase: daemon and agent stay");
  const duration at_the_end = std::min<duration>(whole / 20, 10s);
  const time_point end = std::max(start + whole - at_the_end, clock::now() + whole * 3 / 10);
  while (end > clock::now()) {
    const duration left = end - clock::now();
    live(act::nobody_of_sluice_dies, left < 2 * rest_every ? left : duration{rest_every});
    rest();
  }
  judge();
  say("phase: the daemon stops under load");
  live(act::nobody_of_sluice_dies, at_the_end);
  shut_down();
  found_.minutes = std::chrono::duration<double, std::ratio<60>>(clock::now() - start).count();
  if (found_.queue_suspends == 0) {
    const std::string what = "no queue was ever suspended";
    found_.requests > 100 ? problem(what) : not_shown(what);
  }
  if (plan_.by_batch() && found_.looks_by_batch == 0) {
    const std::string what =
        "batch commands held no queue in " + std::to_string(found_.looks) + " samples";
    found_.looks > 1000 ? problem(what) : not_shown(what);
  }
  if (!plan_.by_batch() && found_.looks_by_batch != 0)
    problem("batch commands were used, which the device does not offer");
  return std::move(found_);
}

// --- Chance --------------------------------------------------------------------------------------

std::uint32_t world::upto(std::uint32_t n) {
  return std::uniform_int_distribution<std::uint32_t>{0, n - 1}(bits_);
}
duration world::between(duration low, duration high) {
  return duration{std::uniform_int_distribution<duration::rep>{low.count(), high.count()}(bits_)};
}

// --- Processes -----------------------------------------------------------------------------------

std::unique_ptr<test::child_process> world::start(const std::vector<std::string>& words,
                                                  const std::string& tag,
                                                  const std::string& log) const {
  // Until the program is another, our own handlers would take what it is told. What a worker is
  // told before it listens waits until it does.
  sigset_t endings;
  sigset_t before;
  sigemptyset(&endings);
  for (const int each : {SIGTERM, SIGINT, SIGHUP}) sigaddset(&endings, each);
  ::sigprocmask(SIG_BLOCK, &endings, &before);
  auto started = std::make_unique<test::child_process>([&](test::channel&) {
    for (const std::string& setting : device_.environment()) {
      const auto equals = setting.find('=');
      ::setenv(setting.substr(0, equals).c_str(), setting.c_str() + equals + 1, 1);
    }
    ::setenv("SLUICE_BREAKERS", (directory_ + "/breakers").c_str(), 1);
    ::setenv("SLUICE_AGENT", SLUICE_AGENT_PROGRAM, 1);
    if (!tag.empty()) ::setenv("AMD_QUEUE_TAG", tag.c_str(), 1);
    if (words[0] != SLUICE_SOAK_WORKER) {
      for (const int each : {SIGTERM, SIGINT, SIGHUP}) ::signal(each, SIG_DFL);
      ::sigprocmask(SIG_SETMASK, &before, nullptr);
    }
    const int out =
        ::open((logs_ + "/" + log).c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    ::dup2(out, STDOUT_FILENO);
    ::dup2(out, STDERR_FILENO);
    std::vector<std::string> copy = words;
    std::vector<char*> arguments;
    for (auto& word : copy) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    ::execv(arguments[0], arguments.data());
    return 99;
  });
  ::sigprocmask(SIG_SETMASK, &before, nullptr);
  return started;
}

void world::configure(const std::string& policy) const {
  std::ofstream{config_ + ".new"} << "[daemon]\nmode = \"enforce\"\ndirectory = \"" << directory_
                                  << "\"\nstatistics_interval = \"0s\"\n"
                                     "[scheduler]\nattach_after = \"200ms\"\n"
                                     "attach_at_latest = \"500ms\"\n[policy]\n"
                                  << policy << "[roles]\nstore = \"\"\n";
  std::filesystem::rename(config_ + ".new", config_);
}

void world::start_daemon() {
  daemon_ = start({SLUICE_PROGRAM, "run", "-c", config_}, "", "daemon.log");
  daemon_may_end_ = false;
  agent_ = 0;  // Its own; that of the last one ended with it.
  watch_processors();
  // Or it cannot be told anything yet: SIGHUP would end it.
  if (!eventually(20s, [&] { return agent() > 0 || daemon_->wait(0ms); }) || daemon_->wait(0ms))
    problem("the daemon did not become the owner of the node");
}

void world::watch_processors() {
  given_.emplace();
  given_->add(daemon_->pid());
  if (agent_ > 0) given_->add(agent_, true);
}

pid_t world::agent() const {
  std::ifstream lock{directory_ + "/owner"};
  pid_t host = 0;
  std::string name;
  pid_t acting = 0;
  lock >> host >> name >> acting;
  return lock && daemon_ && host == daemon_->pid() ? acting : 0;
}

std::vector<std::pair<std::string, pid_t>> world::sluice_processes() const {
  return {{"daemon", daemon_->pid()}, {"agent", agent()}, {"device", device_.pid()}};
}

std::unique_ptr<world::worker> world::start_worker(const slot& where) {
  auto made = std::make_unique<worker>();
  made->where = where.where;
  made->gpu = gpus[upto(gpus.size())];
  made->path = directory_ + "/books." + std::to_string(workers_++);
  made->seen = open_books(made->path);
  made->started = clock::now();
  made->ends_at =
      made->started + (where.where == place::visitor ? between(50ms, 1500ms) : between(3s, 40s));
  const auto chance = upto(10);
  made->how = chance < 6 ? ending::finish : chance < 8 ? ending::leave : ending::be_killed;
  const bool online = where.where == place::online;
  const char* const role = !online ? "offline" : upto(3) == 0 ? "silent" : "client";
  made->process =
      start({SLUICE_SOAK_WORKER, role, std::to_string(bits_()), made->path,
             std::to_string(where.queues), std::to_string(made->gpu), directory_ + "/clients.sock"},
            online                            ? "ONLINE_AI"
            : where.where == place::bystander ? ""
                                              : "OFFLINE_AI",
            "workers.log");
  return made;
}

void world::tell(worker& one) {
  one.told = true;
  one.process->signal(one.how == ending::finish  ? SIGTERM
                      : one.how == ending::leave ? SIGINT
                                                 : SIGKILL);
  one.process->signal(SIGCONT);
  one.goes_on_at.reset();
  one.ends_at = clock::now() + ending_limit;
}

/// Takes a worker's books in, once it has ended.
void world::settle(worker& one, int status) {
  const pid_t pid = one.process->pid();
  const std::string who = "worker " + std::to_string(pid);
  const auto& its = *one.seen;
  test::device_view::process_view device;
  if (!eventually(10s, [&] {
        device = view_.process(pid);
        return !device.alive;
      }))
    problem("the device did not notice the end of " + who);
  // It had no queue yet: what the device says is of somebody else with that pid.
  if (its.queues == 0) device = {};
  look_at(one, device);
  found_.queue_suspends += device.queue_suspends;
  found_.queues += its.queues;
  found_.submitted += its.submitted;
  found_.executed += device.kernels_completed;
  found_.lost += its.lost;
  found_.repeated += its.repeated;
  found_.out_of_order += its.out_of_order;
  found_.too_short += its.too_short;
  found_.requests += its.requests;
  found_.every_10_ms += its.every_10_ms;
  found_.longest_request =
      std::max(found_.longest_request, duration{static_cast<duration::rep>(its.longest_request)});

  const auto numbers = [&] {
    std::ostringstream text;
    text << " (submitted " << its.submitted << ", seen finished " << its.finished << ", dropped "
         << its.dropped << ", wrong " << its.wrong() << "; the device started "
         << device.kernels_started << " and completed " << device.kernels_completed << ")";
    return text.str();
  };
  if (its.wrong() != 0) problem(who + " has wrong kernels" + numbers());
  if (device.kernels_started < device.kernels_completed || device.kernels_started > its.submitted)
    problem(who + ": kernels started twice or not at all" + numbers());

  const bool exited = WIFEXITED(status);
  const int code = exited ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  bool whole = true;  // Its books are to the end.
  if (code == worker_lost_its_gpu && one.has_page_fault) {
    ++found_.workers["ended by a page fault"];
  } else if (code == worker_lost_its_gpu && last_reset_ && *last_reset_ > one.started - 5s) {
    ++found_.workers["ended by a GPU's reset"];
  } else if (code == 128 + SIGKILL && (one.may_be_killed || one.how == ending::be_killed)) {
    ++found_.workers["killed"];
    whole = false;
  } else if (code == worker_done && one.told && one.how == ending::finish) {
    ++found_.workers["finished"];
  } else if (code == worker_done && one.told && one.how == ending::leave) {
    ++found_.workers["left with kernels in flight"];
    whole = false;
  } else if (code == worker_failed && last_reset_ && clock::now() < *last_reset_ + 10s) {
    ++found_.workers["refused by a failing GPU"];
  } else {
    problem(who + " ended unexpectedly with code " + std::to_string(code) + numbers());
    return;
  }
  const std::uint64_t unfinished = its.dropped + its.reset;
  found_.dropped += its.dropped;
  found_.reset += its.reset;
  if (whole) {
    if (device.kernels_completed != its.finished || its.submitted != its.finished + unfinished)
      problem(who + ": its books and the device's counts differ" + numbers());
  } else {
    found_.died += its.submitted -
                   std::min<std::uint64_t>(device.kernels_completed + unfinished, its.submitted);
    if (device.kernels_completed < its.finished || device.kernels_completed > its.submitted)
      problem(who + ": its books and the device's counts differ" + numbers());
  }
  std::filesystem::remove(one.path);
}

/// What it waits for, for a problem's text.
std::string world::state_of(const worker& one) const {
  const pid_t pid = one.process->pid();
  const std::string of = "/proc/" + std::to_string(pid);
  std::ostringstream text;
  text << (one.where == place::online ? "online" : "offline") << " worker " << pid << " (";
  std::ifstream status{of + "/status"};
  for (std::string line; std::getline(status, line);) {
    for (const char* const key : {"State:", "TracerPid:"})
      if (line.starts_with(key)) text << line << ", ";
  }
  const auto seen = view_.process(pid);
  text << seen.queues << " queues, " << seen.suspended_queues << " suspended, "
       << one.seen->submitted << " kernels submitted, " << one.seen->finished << " finished";
  std::error_code failed;
  for (const auto& task : std::filesystem::directory_iterator{of + "/task", failed}) {
    std::string call;
    std::getline(std::ifstream{task.path() / "syscall"} >> std::ws, call);
    text << "; a thread in " << call;
  }
  text << ")";
  return text.str();
}

void world::look_at(worker& one, const test::device_view::process_view& seen) {
  const std::string who = "worker " + std::to_string(one.process->pid());
  const duration longest{static_cast<duration::rep>(seen.longest_suspension)};
  if (plan_.verbose && longest > 1200ms && longest > one.longest_said + 200ms) {
    one.longest_said = longest;
    say("a queue of " + who + " has been suspended for " + seconds(longest));
  }
  found_.longest_suspension = std::max(found_.longest_suspension, longest);
  if (one.stuck) return;
  if (longest > longest_allowed_suspension) {
    one.stuck = true;
    ++found_.stuck;
    problem("a queue of " + who + " was suspended for " + seconds(longest));
  }
  const bool never = one.where == place::online || one.where == place::bystander;
  if (never && seen.queue_suspends != 0) {
    one.stuck = true;
    problem(who + (one.where == place::online ? ", which is online," : ", which has no role,") +
            " was suspended");
  }
}

void world::run_errand(const std::string& what, const std::vector<std::string>& words) {
  std::vector<std::string> all{SLUICE_PROGRAM};
  all.insert(all.end(), words.begin(), words.end());
  // Without an agent, which may end by itself where the driver refuses to resume, nobody obeys.
  const bool wants_agent = what == "pause";
  errands_.push_back({what, now_ == act::nobody_of_sluice_dies && !wants_agent,
                      start(all, "", "errands.log"), clock::now()});
}

void world::reap_orphans() {
  const auto ours = [&](pid_t pid) {
    if (pid == device_.pid() || (daemon_ && pid == daemon_->pid())) return true;
    const auto is = [pid](const auto& each) { return each.process->pid() == pid; };
    return std::any_of(slots_.begin(), slots_.end(),
                       [&](const auto& each) { return each.who && is(*each.who); }) ||
           std::any_of(visitors_.begin(), visitors_.end(),
                       [&](const auto& each) { return is(*each); }) ||
           std::any_of(errands_.begin(), errands_.end(), is);
  };
  for (;;) {
    siginfo_t who{};
    if (::waitid(P_ALL, 0, &who, WEXITED | WNOHANG | WNOWAIT) != 0 || who.si_pid == 0 ||
        ours(who.si_pid))
      return;  // Others wait behind it until its owner has looked.
    ::waitpid(who.si_pid, nullptr, 0);
  }
}

// --- Acts ----------------------------------------------------------------------------------------

void world::live(act now, duration length) {
  const time_point end = clock::now() + length;
  now_ = now;
  next_fault_ = clock::now() + 2s;
  next_silence_ = clock::now() + between(10s, 40s);
  while (clock::now() < end) {
    const time_point began = clock::now();
    keep_slots();
    make_fault(now);
    turn();
    if (began >= next_silence_) {
      silence();
      next_silence_ = clock::now() + between(20s, 60s);
    }
    std::this_thread::sleep_until(began + tick);
  }
}

/// What goes on in every act and every rest.
void world::turn() {
  if (stop_.load() != 0) throw interrupted{};
  const time_point now = clock::now();
  for (auto each = errands_.begin(); each != errands_.end();) {
    const auto status = each->process->wait(0ms);
    if (!status && now < each->started + 60s) {
      ++each;
      continue;
    }
    if (!status) problem("'" + each->what + "' does not end");
    if (status && *status != 0 && each->must_succeed)
      problem("'" + each->what + "' ended with wait status " + std::to_string(*status));
    each = errands_.erase(each);
  }
  std::vector<later> due;
  for (auto each = later_.begin(); each != later_.end();) {
    if (each->at > now) {
      ++each;
      continue;
    }
    due.push_back(std::move(*each));
    each = later_.erase(each);
  }
  for (auto& each : due) each.what();
  if (daemon_ && daemon_->wait(0ms)) {
    if (!daemon_may_end_)
      problem("the daemon ended with wait status " + std::to_string(*daemon_->wait(0ms)));
    start_daemon();
  }
  mind_agent();
  if (now >= next_look_) {
    next_look_ = now + look_every;
    look();
  }
  if (now >= next_sample_) {
    next_sample_ = now + sample_every;
    sample();
  }
  reap_orphans();
}

/// Counts the agents that died without our having ended them. A resume that was refused may do it,
/// once: where no other way is left to make the target run, the agent ends by itself. So does a
/// daemon or an agent that is kept from running for longer than the lease while the other is not
/// (what holds up both is nobody's silence: lease.hpp).
void world::mind_agent() {
  const time_point now = clock::now();
  given_->look();
  found_.longest_wait = std::max(found_.longest_wait, given_->longest());
  // If this process was kept from looking, the waits of an agent that has died are unknown.
  const bool looked_late = now - std::exchange(minded_agent_at_, now) >= lease / 2;
  if (looked_late || given_->longest() >= lease / 2) starved_at_ = now;
  given_->restart();
  const pid_t acting = agent();
  if (agent_ > 0 && (::kill(agent_, 0) != 0 || (acting > 0 && acting != agent_))) {
    const pid_t dead = std::exchange(agent_, 0);
    // Our faults of these processes are 4 s apart; on a busy machine they take a while.
    const bool ours = now < sluice_is_whole_at_ + 2s && std::exchange(agent_may_die_, false);
    if (!ours) {
      agent_died_at_ = now;
      const bool starved = starved_at_ && now < *starved_at_ + 2s;
      ++(starved ? found_.agents_died_starved : found_.agents_died);
      const std::string what = "the agent, process " + std::to_string(dead) +
                               ", died unexpectedly" +
                               (starved ? "; it or the daemon waited for a processor" : "");
      say(what);
      if (found_.agents_died > found_.refused_resumes)
        problem(what + ": " + std::to_string(found_.agents_died) + " so far, and " +
                std::to_string(found_.refused_resumes) + " resumes were refused");
    }
  }
  if (agent_ == 0 && acting > 0 && ::kill(acting, 0) == 0) {
    agent_ = acting;
    watch_processors();
  }
}

void world::keep_slots() {
  const time_point now = clock::now();
  const auto ended = [&](worker& one) {
    if (one.goes_on_at && now >= *one.goes_on_at) {
      one.process->signal(SIGCONT);
      one.goes_on_at.reset();
    }
    if (const auto status = one.process->wait(0ms)) {
      settle(one, *status);
      return true;
    }
    if (now < one.ends_at) return false;
    if (!one.told) {
      tell(one);
      return false;
    }
    problem(state_of(one) + " does not end");
    one.process->signal(SIGKILL);
    one.how = ending::be_killed;
    one.ends_at = now + ending_limit;
    return false;
  };
  for (auto& each : slots_) {
    if (each.who && ended(*each.who)) {
      each.who.reset();
      each.again_at = now + between(0ms, 200ms);
    }
    if (!each.who && now >= each.again_at && !(silence_ && each.where == place::online))
      each.who = start_worker(each);
  }
  for (auto each = visitors_.begin(); each != visitors_.end();)
    each = ended(**each) ? visitors_.erase(each) : each + 1;
  if (now >= next_visitor_) {
    next_visitor_ = now + between(1s, 6s);
    visitors_.push_back(start_worker({.where = place::visitor, .queues = 1 + upto(2)}));
  }
}

void world::look() {
  static constexpr std::string_view held_queues = "\"held_queues\":";
  const std::string all = view_.text();
  if (now_ == act::nobody_of_sluice_dies) {
    ++found_.looks;
    for (auto at = all.find(held_queues); at != all.npos; at = all.find(held_queues, at + 1)) {
      if (std::strtoul(all.c_str() + at + held_queues.size(), nullptr, 10) == 0) continue;
      ++found_.looks_by_batch;
      break;
    }
  }
  const auto look_in = [&](worker& one) {
    const auto seen = test::device_view::process(one.process->pid(), all);
    if (seen.alive && one.seen->queues != 0) look_at(one, seen);
  };
  for (auto& each : slots_)
    if (each.who) look_in(*each.who);
  for (auto& each : visitors_) look_in(*each);
}

void world::sample() {
  for (const auto& [name, pid] : sluice_processes()) {
    const usage now = usage_of(pid);
    if (now == usage{}) continue;  // It is not there at the moment.
    auto& of = figures_[name];
    if (std::exchange(of.pid, pid) != pid) of.samples = {};
    for (std::size_t i = 0; i < measures; ++i) of.samples[i].add(clock::now(), now[i]);
  }
}

void world::make_fault(act now) {
  if (clock::now() < next_fault_) return;
  next_fault_ = clock::now() + between(200ms, 1500ms);
  const auto may_be = [&](const fault& each) { return now <= each.until; };
  unsigned sum = 0;
  for (const auto& each : faults_) sum += may_be(each) ? each.weight : 0;
  auto drawn = upto(sum);
  for (const auto& each : faults_) {
    if (!may_be(each)) continue;
    if (drawn < each.weight) {
      if (each.inject()) {
        ++found_.faults[each.name];
        if (each.name == resume_refused) ++found_.refused_resumes;
        if (plan_.verbose) say(each.name);
      }
      return;
    }
    drawn -= each.weight;
  }
}

/// Everybody ends in order.
void world::end_workers() {
  const auto end = [&](worker& one) {
    if (!one.told) {
      one.how = ending::finish;
      tell(one);
    }
  };
  const auto has_ended = [&](worker& one) {
    const auto status = one.process->wait(0ms);
    if (status) settle(one, *status);
    return status.has_value();
  };
  for (auto& each : slots_)
    if (each.who) end(*each.who);
  for (auto& each : visitors_) end(*each);
  const bool gone = eventually(ending_limit, [&] {
    for (auto& each : slots_)
      if (each.who && has_ended(*each.who)) each.who.reset();
    for (auto each = visitors_.begin(); each != visitors_.end();)
      each = has_ended(**each) ? visitors_.erase(each) : each + 1;
    if (daemon_) turn();
    return visitors_.empty() && std::none_of(slots_.begin(), slots_.end(),
                                             [](const auto& each) { return each.who != nullptr; });
  });
  if (gone) return;
  for (const auto& each : slots_)
    if (each.who) problem(state_of(*each.who) + " does not end");
  for (const auto& each : visitors_) problem(state_of(*each) + " does not end");
  for (auto& each : slots_) each.who.reset();  // Kills.
  visitors_.clear();
}

/// Of the workers that live.
std::uint64_t world::suspended() const {
  const std::string all = view_.text();
  std::uint64_t sum = 0;
  for (const auto& each : slots_)
    if (each.who) sum += test::device_view::process(each.who->process->pid(), all).suspended_queues;
  for (const auto& each : visitors_)
    sum += test::device_view::process(each->process->pid(), all).suspended_queues;
  return sum;
}

/// Online work ends, under a policy that suspends for that alone: offline work must all come back.
/// In the bustle a queue that was forgotten would be resumed after the next request.
void world::silence() {
  silence_ = true;
  configure(policies_by_default);
  daemon_->signal(SIGHUP);
  const auto goes_on_until = [&](duration limit, auto&& holds) {
    return eventually(limit, [&] {
      keep_slots();
      turn();
      return holds();
    });
  };
  for (auto& each : slots_) {
    if (!each.who || each.where != place::online || each.who->told) continue;
    each.who->how = ending::finish;
    tell(*each.who);
  }
  const bool is_silent = goes_on_until(ending_limit, [&] {
    return std::none_of(slots_.begin(), slots_.end(),
                        [](const auto& each) { return each.who && each.where == place::online; });
  });
  if (!is_silent) problem("online workers do not end");
  time_point next{};
  if (!goes_on_until(longest_allowed_suspension, [&] {
        if (clock::now() < next) return false;
        next = clock::now() + 50ms;
        return suspended() == 0;
      })) {
    ++found_.stuck;
    problem(std::to_string(suspended()) + " queues stay suspended without online work");
  }
  silence_ = false;
}

/// No worker, no fault, the configuration of the beginning: what is there now is there for good.
void world::rest() {
  control("no-faults");
  if (std::any_of(slots_.begin(), slots_.end(),
                  [](const auto& each) { return each.who != nullptr; }))
    silence();
  end_workers();
  const auto quiet = [&](duration limit, auto&& holds) {
    return eventually(limit, [&] {
      turn();
      return holds();
    });
  };
  if (!quiet(120s, [&] { return errands_.empty() && later_.empty() && !paused_; }))
    problem("commands do not end");
  run_errand("breaker rearm", {"breaker", "rearm", "--all"});
  configure(policies_by_default);
  daemon_->signal(SIGHUP);
  if (!quiet(30s, [&] { return agent() > 0 && errands_.empty(); }))
    problem("no agent runs at rest");
  // Sessions end, lanes and connections go; what is late is not lost yet.
  std::map<std::string, usage> last;
  time_point same_since = clock::now();
  if (!quiet(30s, [&] {
        for (const auto& [name, pid] : sluice_processes()) {
          const usage now = usage_of(pid);
          const auto& first = figures_[name].at_rest;
          for (const std::size_t what : {descriptors, threads}) {
            if (now == usage{} || now[what] != last[name][what] ||
                (!first[what].empty() && now[what] > first[what].front()))
              same_since = clock::now();
          }
          last[name] = now;
        }
        std::this_thread::sleep_for(50ms);
        return clock::now() > same_since + 2s;
      }))
    problem("daemon, agent and device did not return to their first descriptors and threads; the " +
            std::string{"daemon has "} + open_files(daemon_->pid()) + "; the agent has " +
            open_files(agent()));
  std::string line = "at rest (RSS and anonymous KiB, descriptors, threads):";
  for (const auto& [name, now] : last) {
    line += ' ' + name;
    for (std::size_t i = 0; i < measures; ++i) {
      figures_[name].at_rest[i].push_back(now[i]);
      line += ' ' + std::to_string(static_cast<long>(now[i]));
    }
    line += ';';
  }
  say(line);
}

/// The daemon is told to end while queues are suspended.
void world::shut_down() {
  control("no-faults");
  // Whoever is evicted comes back: nobody would see to it later.
  if (!eventually(60s, [&] {
        keep_slots();
        turn();
        return later_.empty() && errands_.empty();
      }))
    problem("commands do not end");
  // Under online work that goes on, unless all workers are between two phases.
  if (!eventually(30s, [&] {
        keep_slots();
        turn();
        return suspended() > 0;
      }))
    not_shown("no queue is suspended when the daemon is to stop");
  const pid_t acting = agent();
  daemon_may_end_ = true;
  daemon_->signal(SIGTERM);
  const auto ended = daemon_->wait(30s);
  const time_point gone = clock::now();
  if (!ended)
    problem("the daemon does not stop");
  else if (*ended != 0)
    problem("the daemon stopped with wait status " + std::to_string(*ended));
  daemon_.reset();
  if (acting > 0 && !eventually(20s, [&] {
        reap_orphans();
        return ::kill(acting, 0) != 0;
      }))
    problem("the agent still runs after its daemon ended");
  if (!eventually(longest_allowed_suspension, [&] { return suspended() == 0; }))
    problem("queues are suspended " + seconds(clock::now() - gone) + " after the daemon's end");
  end_workers();
  look();

  if (const int status = device_.stop(SIGTERM); status != 0)
    problem("the device stopped with wait status " + std::to_string(status) + ": " +
            device_.output());
  for (auto& each : errands_)
    if (!each.process->wait(20s)) problem("'" + each.what + "' does not end");
  errands_.clear();
  reap_orphans();
  const pid_t self = ::getpid();
  const std::string left = test::read_file("/proc/" + std::to_string(self) + "/task/" +
                                           std::to_string(self) + "/children");
  siginfo_t who{};
  if (::waitid(P_ALL, 0, &who, WEXITED | WNOHANG | WNOWAIT) == 0)
    problem("processes still run: " + left);
  if (test::read_file("/proc/self/mountinfo").find(device_.root()) != std::string::npos)
    problem("a mount remains in " + device_.root());
}

/// What was sampled since the warm-up, against the bounds.
void world::judge() {
  for (const auto& [name, most] : bounded) {
    const auto& of = figures_[name];
    for (std::size_t i = 0; i < measures; ++i) {
      watched one{.process = name,
                  .what = measured[i].name,
                  .unit = measured[i].unit,
                  .seen = of.samples[i].since(warm_at_[name]),
                  .bound_per_hour = 0,
                  .at_rest = of.at_rest[i]};
      one.bound_per_hour = most[i].over(one.seen.hours);
      const std::string which = std::string{name} + ": " + one.what;
      // Of an agent that died a moment ago there cannot be more: mind_agent() judges its death.
      const bool is_new = name == std::string_view{"agent"} && agent_died_at_ &&
                          clock::now() < *agent_died_at_ + 2 * 10 * sample_every;
      if (one.seen.samples < 10 && !is_new) not_shown(which + " has too few samples");
      if (one.seen.rises(one.bound_per_hour)) problem(which + " rises");
      found_.figures.push_back(std::move(one));
    }
  }
}

// --- Faults --------------------------------------------------------------------------------------

world::worker* world::any_worker(place where) {
  std::vector<worker*> found;
  for (auto& each : slots_)
    if (each.who && each.where == where && !each.who->told && !each.who->goes_on_at)
      found.push_back(each.who.get());
  return found.empty() ? nullptr : found[upto(static_cast<std::uint32_t>(found.size()))];
}

/// \return false where the device does not take it: it has no such process, say.
bool world::control(const std::string& line) const {
  const int fd = ::open((device_.root() + "/sim/control").c_str(), O_WRONLY | O_CLOEXEC);
  const std::string text = line + "\n";
  const bool taken =
      fd >= 0 && ::write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  if (fd >= 0) ::close(fd);
  return taken;
}

bool world::stop_for_a_while(pid_t pid, duration length) {
  if (pid <= 0 || ::kill(pid, SIGSTOP) != 0) return false;
  later_.push_back({clock::now() + length, [pid] { ::kill(pid, SIGCONT); }});
  return true;
}

/// An operator re-arms what that opened.
void world::gpu_fails(const std::string& line) {
  last_reset_ = clock::now();
  control(line);
  later_.push_back({clock::now() + between(2s, 4s), [this] {
                      last_reset_ = clock::now();  // A reset takes a while.
                      run_errand("breaker rearm", {"breaker", "rearm", "--all"});
                    }});
}

std::vector<world::fault> world::every_fault() {
  constexpr auto steady = act::nobody_of_sluice_dies;
  const auto time_text = [this](duration low, duration high) {
    return std::to_string(
               std::chrono::duration_cast<std::chrono::milliseconds>(between(low, high)).count()) +
           "ms";
  };
  const auto any_gpu = [this] { return std::to_string(gpus[upto(gpus.size())]); };
  // Sluice's own processes, one at a time: two that fail at once are more than is promised.
  const auto to_sluice = [this](auto&& act_on) {
    return [this, act_on] {
      if (clock::now() < sluice_is_whole_at_ || !act_on()) return false;
      sluice_is_whole_at_ = clock::now() + 4s;
      agent_may_die_ = true;
      return true;
    };
  };
  const auto end_daemon = [this](int with) {
    return [this, with] {
      daemon_may_end_ = true;
      daemon_->signal(with);
      return true;
    };
  };
  const auto at_worker = [this](place where, auto&& act_on) {
    return [this, where, act_on] {
      worker* const one = any_worker(where);
      return one != nullptr && act_on(*one);
    };
  };
  const auto kill_it = [this](worker& one) {
    one.how = ending::be_killed;
    tell(one);
    return true;
  };
  const auto stop_it = [this](worker& one) {
    one.process->signal(SIGSTOP);
    one.goes_on_at = clock::now() + between(100ms, 2s);
    return true;
  };
  const auto call = [this](const std::string& line) {
    return [this, line] { return control(line); };
  };
  const bool batch = plan_.by_batch();
  const std::string suspend = batch ? "BATCH_UNMAP_QUEUES" : "DBG_TRAP:SUSPEND_QUEUES";
  const std::string resume = batch ? "FAST_REMAP" : "DBG_TRAP:RESUME_QUEUES";
  // Whose batch command was refused uses debug sessions from then on: the agents of the last act
  // shall not.
  const act refused_until = batch ? act::daemons_die : steady;

  return {
      {"the daemon is killed", 6, act::daemons_die, to_sluice(end_daemon(SIGKILL))},
      {"the daemon is told to end", 6, act::daemons_die, to_sluice(end_daemon(SIGTERM))},
      {"the daemon stands still", 3, act::agents_die,
       to_sluice([this] { return stop_for_a_while(daemon_->pid(), between(300ms, 2s)); })},
      {"the agent is killed", 6, act::agents_die,
       to_sluice([this] { return agent() > 0 && ::kill(agent(), SIGKILL) == 0; })},
      {"the agent stands still", 3, act::agents_die,
       to_sluice([this] { return stop_for_a_while(agent(), 3s); })},
      {"an online worker is killed", 4, steady, at_worker(place::online, kill_it)},
      {"an online worker stands still", 4, steady, at_worker(place::online, stop_it)},
      {"an offline worker is killed", 4, steady, at_worker(place::offline, kill_it)},
      {"an offline worker stands still", 4, steady, at_worker(place::offline, stop_it)},
      {"an offline worker is killed within a suspend", batch ? 0U : 3U, steady,
       at_worker(place::offline,
                 [this](worker& one) {
                   one.may_be_killed =
                       control("kill-target 1ms target=" + std::to_string(one.process->pid())) ||
                       one.may_be_killed;
                   return one.may_be_killed;
                 })},
      {"a process is evicted for a while", 3, steady,
       at_worker(place::offline,
                 [this](worker& one) {
                   const std::string of =
                       std::to_string(one.process->pid()) + " " + std::to_string(one.gpu);
                   if (!control("evict " + of)) return false;
                   later_.push_back({clock::now() + between(10ms, 400ms),
                                     [this, of] { control("restore " + of); }});
                   return true;
                 })},
      {"a process has a page fault", 2, steady,
       at_worker(place::offline,
                 [this](worker& one) {
                   one.has_page_fault = control("vmfault " + std::to_string(one.process->pid()) +
                                                " " + std::to_string(one.gpu)) ||
                                        one.has_page_fault;
                   return one.has_page_fault;
                 })},
      {"a process cannot be debugged", 1, steady,
       at_worker(place::offline,
                 [this](worker& one) {
                   return control("activation " + std::to_string(one.process->pid()) + " error");
                 })},
      {"a suspend takes long", 4, steady,
       [=, this] { return control("delay " + suspend + " " + time_text(20ms, 300ms)); }},
      {"a resume takes long", 4, steady,
       [=, this] { return control("delay " + resume + " " + time_text(20ms, 300ms)); }},
      {"a suspend is refused", 3, refused_until, call("answer " + suspend + " ENOMEM")},
      {resume_refused, 2, refused_until, call("answer " + resume + " ENOMEM")},
      {"a session is refused", 2, steady, call("answer DBG_TRAP:ENABLE EBUSY")},
      {"a list of queues is refused", 2, steady, call("answer DBG_TRAP:GET_QUEUE_SNAPSHOT ENOMEM")},
      {"queues come and go slowly", 2, steady,
       [this] {
         return control("delay CREATE_QUEUE 100ms") && control("delay DESTROY_QUEUE 100ms");
       }},
      {"a GPU is reset", 1, steady,
       [=, this] {
         if (last_reset_ && clock::now() < *last_reset_ + 15s) return false;
         gpu_fails("reset " + any_gpu());
         return true;
       }},
      {"a preemption fails in hardware", 1, steady,
       [=, this] {
         if (last_reset_ && clock::now() < *last_reset_ + 15s) return false;
         gpu_fails("fail-cycle " + any_gpu() + " 20ms" + (upto(2) == 0 ? " goes-on" : ""));
         return true;
       }},
      {"the daemon is given another policy", 4, steady,
       [this] {
         static constexpr std::array names{"pointer_polling", "pointer_polling", "fixed_timeslice",
                                           "fair_share", "priority"};
         if (clock::now() < sluice_is_whole_at_) return false;
         configure("name = \"" + std::string{names[upto(names.size())]} + "\"\n");
         daemon_->signal(SIGHUP);
         return true;
       }},
      {"the node is paused for a while", 2, steady,
       [this] {
         if (paused_ || clock::now() < sluice_is_whole_at_) return false;
         paused_ = true;
         run_errand("pause", {"pause", "--why", "soak", "--directory", directory_});
         later_.push_back({clock::now() + between(1s, 3s), [this] {
                             paused_ = false;
                             run_errand("unpause", {"unpause", "--directory", directory_});
                           }});
         return true;
       }},
      {"an operator looks", 3, steady,
       [this] {
         run_errand("queues", {"queues"});
         return true;
       }},
  };
}

// --- What is found -------------------------------------------------------------------------------

void world::problem(const std::string& what) {
  std::fprintf(stderr, "soak: %s: PROBLEM: %s\n", seconds(clock::now() - began_).c_str(),
               what.c_str());
  if (found_.problems.size() == most_problems) return;
  std::deque<std::string> last;
  std::ifstream log{logs_ + "/daemon.log"};
  for (std::string line; std::getline(log, line); last.push_back(line))
    if (last.size() == log_lines_of_a_problem) last.pop_front();
  for (const auto& line : last) std::fprintf(stderr, "  %s\n", line.c_str());
  found_.problems.push_back(seconds(clock::now() - began_) + ": " + what);
}

void world::not_shown(const std::string& what) {
  say("not shown: " + what);
  found_.not_shown.push_back(what);
}

void world::say(const std::string& what) const {
  std::fprintf(stderr, "soak: %s: %s\n", seconds(clock::now() - began_).c_str(), what.c_str());
}

}  // namespace sluice::soak
