// Real processes with generated environments, users, groups, cgroups and queues, under
// generated rules. What each of them is and whom it is suspended with is worked out here a second
// time, from what was generated and by other means, and must be the same for every one.

#include "family.hpp"
#include "node_scanner.hpp"
#include "temporary_directory.hpp"
#include "test_seed.hpp"

#include <grp.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "sluice/kfd/survey.hpp"
#include "sluice/os/proc.hpp"
#include "sluice/roles/role_store.hpp"

namespace sluice::kfd::generated_roles_test {
using namespace sluice::roles;

namespace {

using namespace std::chrono_literals;
using test::eventually;
using test::patience;

struct form {
  int processes;
  int rule_sets;
};
form chosen_form() {
  return sluice::test::long_tests() ? form{.processes = 200, .rule_sets = 20}
                                    : form{.processes = 50, .rule_sets = 5};
}

struct generated_queue {
  int id = 0;
  bool compute = true;
  bool in_mqds = true;
  std::uint64_t ring = 0;
  unsigned priority = 0;
};

/// All that a process was made with, and nothing that was read from it.
struct generated_process {
  pid_t pid = 0;
  process_identity who{};
  uid_t user = 0;
  std::set<gid_t> groups;
  std::string unified;  // its cgroup there, empty: not moved
  std::string pids_v1;  // and in a hierarchy of version 1
  std::vector<std::string> environment;
  std::vector<generated_queue> queues;
  bool alive = true;

  std::optional<std::string> variable(const std::string& name) const {
    for (const std::string& each : environment)
      if (each.substr(0, each.find('=')) == name) return each.substr(name.size() + 1);
    return {};
  }
  std::optional<unsigned long> number(const std::string& name) const {
    const auto text = variable(name);
    if (!text || text->empty() || text->size() > 9) return {};
    for (const char each : *text)
      if (each < '0' || each > '9') return {};
    return std::stoul(*text);
  }
};

/// The set of all places in the pattern that the text read so far may have led to; no backtracking.
bool work_out_glob(const std::string& pattern, const std::string& text) {
  struct piece {
    char kind;  // '*', '?', '[' or 'c' for itself
    std::string letters;
  };
  std::vector<piece> pieces;
  for (std::size_t at = 0; at < pattern.size(); ++at) {
    if (pattern[at] == '*' || pattern[at] == '?') {
      pieces.push_back({pattern[at], ""});
    } else if (pattern[at] == '[') {
      std::string letters;
      for (++at; pattern[at] != ']'; ++at) {
        if (pattern[at + 1] != '-') {
          letters += pattern[at];
          continue;
        }
        for (char each = pattern[at]; each <= pattern[at + 2]; ++each) letters += each;
        at += 2;
      }
      pieces.push_back({'[', letters});
    } else {
      pieces.push_back({'c', std::string(1, pattern[at])});
    }
  }
  std::set<std::size_t> places{0};
  const auto skip_stars = [&] {
    for (const std::size_t each : std::set<std::size_t>{places})
      for (std::size_t at = each; at < pieces.size() && pieces[at].kind == '*'; ++at)
        places.insert(at + 1);
  };
  skip_stars();
  for (const char letter : text) {
    std::set<std::size_t> next;
    for (const std::size_t at : places) {
      if (at == pieces.size()) continue;
      if (pieces[at].kind == '*')
        next.insert(at);
      else if (pieces[at].kind == '?' || pieces[at].letters.find(letter) != std::string::npos)
        next.insert(at + 1);
    }
    places = std::move(next);
    skip_stars();
  }
  return places.count(pieces.size()) > 0;
}

bool glob(const std::string& pattern, const std::string& text) {
  static std::map<std::pair<std::string, std::string>, bool> known;  // few questions, often asked
  const auto found = known.find({pattern, text});
  if (found != known.end()) return found->second;
  return known[{pattern, text}] = work_out_glob(pattern, text);
}

/// The longest way around: every prefix that ends where a name ends, shortest first.
std::optional<std::string> cgroup_under(const std::string& pattern, const std::string& path) {
  std::istringstream names{path};
  std::string prefix;
  std::string name;
  if (glob(pattern, "/")) return "/";
  while (std::getline(names, name, '/')) {
    if (name.empty()) continue;
    prefix += "/" + name;
    if (glob(pattern, prefix)) return prefix;
  }
  return {};
}

/// What the documentation of classification.hpp says, once more.
class oracle {
 public:
  oracle(const classification_rules& rules, const stored_roles& stored,
         const std::vector<generated_process>& all)
      : rules_(rules), stored_(stored) {
    for (const generated_process& each : all)
      if (each.alive) gangs_[gang(each)].push_back(&each);
  }

  role alone(const generated_process& of) const {
    // Every way that applies, with its rank; the lowest wins.
    std::map<std::tuple<int, std::size_t>, role> ways;
    if (std::count(rules_.never_touch.begin(), rules_.never_touch.end(), of.who) > 0)
      ways[{0, 0}] = role::unmatched;
    if (rules_.by_process.count(of.who) > 0) ways[{1, 0}] = rules_.by_process.at(of.who);
    if (stored_.by_process.count(of.who) > 0) ways[{2, 0}] = stored_.by_process.at(of.who);
    if (of.variable("AMD_QUEUE_TAG") == "ONLINE_AI" && may(of, role::online))
      ways[{3, 0}] = role::online;
    if (of.variable("AMD_QUEUE_TAG") == "OFFLINE_AI" && may(of, role::offline))
      ways[{3, 0}] = role::offline;
    if (const auto number = of.number("AMD_QUEUE_PRIORITY"); number && *number < 16) {
      const role what = *number < rules_.online_priority ? role::offline : role::online;
      if (may(of, what)) ways[{4, 0}] = what;
    }
    for (std::size_t index = rules_.by_environment.size(); index-- > 0;) {
      const environment_rule& each = rules_.by_environment[index];
      const auto value = of.variable(each.variable);
      if (value && glob(each.value, *value) && may(of, each.what)) ways[{5, index}] = each.what;
    }
    if (rules_.by_pid.count(of.who) > 0) ways[{6, 0}] = rules_.by_pid.at(of.who);
    for (std::size_t index = 0; index < stored_.by_cgroup.size(); ++index)
      if (lies_in(of, stored_.by_cgroup[index].cgroup))
        ways[{7, index}] = stored_.by_cgroup[index].what;
    for (std::size_t index = 0; index < rules_.by_cgroup.size(); ++index)
      if (lies_in(of, rules_.by_cgroup[index].cgroup))
        ways[{8, index}] = rules_.by_cgroup[index].what;
    if (!ways.empty()) return ways.begin()->second;
    return votes(of);
  }

  /// What joins processes; empty: nothing.
  std::string gang(const generated_process& of) const {
    const std::string user = std::to_string(of.user) + " ";
    for (const std::string& each : rules_.gangs.variables)
      if (of.variable(each).value_or("") != "") return "v " + user + each + *of.variable(each);
    for (const std::string& each : rules_.gangs.cgroups)
      for (const std::string& path : paths(of))
        if (const auto top = cgroup_under(each, path)) return "c " + *top;
    if (rules_.gangs.ranks && is_rank(of))
      return "r " + user + *of.variable("MASTER_ADDR") + " " +
             of.variable("MASTER_PORT").value_or("") + " " +
             std::to_string(*of.number("WORLD_SIZE"));
    if (rules_.gangs.slurm && of.variable("SLURM_JOB_ID").value_or("") != "")
      return "s " + user + *of.variable("SLURM_JOB_ID");
    static const std::regex pod{"(.*kubepods[^/]*/[^/]*/?[^/]*pod[0-9a-f]+[^/]*).*"};
    std::smatch found;
    if (rules_.gangs.pods)
      for (const std::string& path : paths(of))
        if (std::regex_match(path, found, pod)) return "p " + found[1].str();
    return "";
  }

  struct answer {
    role what;
    std::string gang;  // with its part, where roles divide it

    bool operator==(const answer&) const = default;
  };
  answer of(const generated_process& one) const {
    role what = alone(one);
    const std::string name = gang(one);
    if (name.empty()) return {what, ""};
    if (what == role::offline && !rules_.gangs.allow_partial && beyond(name))
      what = role::unmatched;
    if (name[0] == 'v' || name[0] == 'c' || name[0] == 'r') return {what, name};
    if (what == role::unmatched) return {what, ""};
    return {what, name + (what == role::online ? "+" : "-")};
  }

 private:
  static std::vector<std::string> paths(const generated_process& of) {
    std::vector<std::string> all;
    for (const std::string* each : {&of.unified, &of.pids_v1})
      if (!each->empty()) all.push_back(*each);
    return all;
  }
  static bool lies_in(const generated_process& of, const std::string& pattern) {
    for (const std::string& each : paths(of))
      if (cgroup_under(pattern, each)) return true;
    return false;
  }
  bool may(const generated_process& of, role what) const {
    const claim_grant& grant =
        what == role::online ? rules_.may_claim_online : rules_.may_claim_offline;
    bool granted = grant.everyone;
    for (const uid_t each : grant.users) granted |= each == of.user;
    for (const gid_t each : grant.groups) granted |= of.groups.count(each) > 0;
    for (const std::string& each : grant.cgroups) granted |= lies_in(of, each);
    return granted;
  }
  role votes(const generated_process& of) const {
    int online = 0;
    int offline = 0;
    int unknown = 0;
    for (const generated_queue& queue : of.queues) {
      if (!queue.compute) continue;
      if (!queue.in_mqds) {
        ++unknown;
        continue;
      }
      std::optional<role> what;
      for (const ring_rule& each : rules_.by_ring)
        if (!what && queue.ring >= each.first && queue.ring <= each.last) what = each.what;
      if (!what && rules_.queue_priority && queue.priority >= rules_.online_priority)
        what = role::online;
      if (what == role::online && may(of, role::online)) ++online;
      if (what == role::offline && may(of, role::offline)) ++offline;
    }
    if (online > 0) return role::online;
    return offline > 0 && unknown == 0 ? role::offline : role::unmatched;
  }
  static bool is_rank(const generated_process& of) {
    const auto rank = of.number("RANK");
    const auto size = of.number("WORLD_SIZE");
    return rank && size && *size > 1 && *rank < *size &&
           of.variable("MASTER_ADDR").value_or("") != "";
  }
  bool beyond(const std::string& name) const {
    std::set<unsigned long> ranks;
    unsigned long size = 0;
    for (const generated_process* each : gangs_.at(name)) {
      if (name[0] == 'r') {
        ranks.insert(*each->number("RANK"));
        size = *each->number("WORLD_SIZE");
      } else {
        const auto nodes = each->number("SLURM_NNODES") ? each->number("SLURM_NNODES")
                                                        : each->number("SLURM_JOB_NUM_NODES");
        if (nodes.value_or(1) > 1) return true;
      }
    }
    return ranks.size() < size;
  }

  const classification_rules& rules_;
  const stored_roles& stored_;
  std::map<std::string, std::vector<const generated_process*>> gangs_;  // the living, by gang()
};

class GeneratedRoles : public ::testing::Test {
 protected:
  void SetUp() override {
    where_.sysfs = directory_ + "/sysfs";
    where_.debugfs = directory_ + "/debugfs";
    std::filesystem::create_directories(where_.debugfs);
    write(where_.sysfs + "/topology/generation_id", "1\n");
    write(where_.sysfs + "/topology/nodes/0/gpu_id", "4660\n");
    base_ = "/" + std::filesystem::path{directory_}.filename().string();
    make_cgroups();
    std::cout << "users and groups: " << (::getuid() == 0 ? "generated" : "this one's only")
              << "; cgroups: unified " << (unified_.empty() ? "not writable" : unified_)
              << ", version 1 " << (v1_.empty() ? "not writable" : v1_) << "\n";
  }
  void TearDown() override {
    for (const generated_process& each : all_) {
      if (!each.alive) continue;
      ::kill(each.pid, SIGKILL);
      ::waitpid(each.pid, nullptr, 0);
    }
    for (const std::string& root : {unified_, v1_})
      if (!root.empty()) remove_cgroups(root + base_);
  }

  /// Starts generated processes, and compares what the scanner sees of them, before and after
  /// changes, with what was generated.
  void generate_and_compare(std::uint64_t seed);

  static void write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path{path}.parent_path());
    std::ofstream{path} << text;
  }

  // Generating ------------------------------------------------------------------------------------

  std::uint64_t below(std::uint64_t limit) { return random_() % limit; }
  bool chance(unsigned percent) { return below(100) < percent; }
  template <class Values>
  auto one_of(const Values& values) {
    return *(values.begin() + static_cast<std::ptrdiff_t>(below(values.size())));
  }
  template <class Value>
  std::vector<Value> some_of(std::vector<Value> values, std::size_t most) {
    std::shuffle(values.begin(), values.end(), random_);
    values.resize(std::min(values.size(), static_cast<std::size_t>(below(most + 1))));
    return values;
  }
  role any_claim() { return chance(50) ? role::online : role::offline; }
  role any_role() { return chance(15) ? role::unmatched : any_claim(); }

  void make_cgroups() {
    leaves_ = {"/serve",
               "/serve/inner",
               "/batch",
               "/batch/job_1",
               "/batch/job_2/step_0",
               "/odd\\x2dname.slice",
               "/kubepods/burstable/pod0a1b/c0",
               "/kubepods/burstable/pod0a1b/c1",
               "/kubepods.slice/kubepods-pod9f.slice/c0"};
    for (const char* root : {"/sys/fs/cgroup/unified", "/sys/fs/cgroup"}) {
      if (std::filesystem::exists(std::string{root} + "/cgroup.procs") && make_leaves(root)) {
        unified_ = root;
        break;
      }
    }
    if (make_leaves("/sys/fs/cgroup/pids") && unified_ != "/sys/fs/cgroup")
      v1_ = "/sys/fs/cgroup/pids";
  }
  bool make_leaves(const std::string& root) const {
    if (!std::filesystem::exists(root + "/cgroup.procs")) return false;
    for (const std::string& leaf : leaves_) {
      std::error_code failed;
      std::filesystem::create_directories(root + base_ + leaf, failed);
      if (failed) return false;
    }
    return true;
  }
  static void remove_cgroups(const std::string& path) {
    std::error_code ignored;
    std::vector<std::string> inner;
    for (const auto& each : std::filesystem::directory_iterator{path, ignored})
      if (each.is_directory()) inner.push_back(each.path().string());
    for (const std::string& each : inner) remove_cgroups(each);
    // A killed process leaves its cgroup a moment after it was reaped.
    (void)eventually(patience, [&] { return ::rmdir(path.c_str()) == 0 || errno != EBUSY; });
  }
  static bool move(pid_t pid, const std::string& cgroup) {
    std::ofstream file{cgroup + "/cgroup.procs"};
    file << pid << std::flush;
    return file.good();
  }

  /// Ranks, jobs: what several processes share.
  struct shared_gang {
    uid_t user;
    std::vector<std::string> environment;
    unsigned size = 0;
    unsigned given = 0;
  };
  std::vector<shared_gang> make_gangs() {
    std::vector<shared_gang> gangs;
    for (int index = 0; index < 14; ++index) {
      shared_gang gang{any_user(), {}, 0, 0};
      if (index < 8) {
        gang.size = static_cast<unsigned>(2 + below(4));
        gang.environment = {"MASTER_ADDR=" + std::string{chance(50) ? "localhost" : "10.0.0.7"},
                            "MASTER_PORT=" + std::to_string(29500 + index),
                            "WORLD_SIZE=" + std::to_string(gang.size)};
      } else {
        gang.environment = {"SLURM_JOB_ID=" + std::to_string(700 + index / 2)};
        if (chance(40))
          gang.environment.push_back(
              std::string{chance(50) ? "SLURM_NNODES=" : "SLURM_JOB_NUM_NODES="} +
              one_of(std::vector<std::string>{"1", "2", "x"}));
      }
      gangs.push_back(std::move(gang));
    }
    return gangs;
  }
  uid_t any_user() {
    return ::getuid() == 0 ? one_of(std::vector<uid_t>{0, 4001, 4002}) : ::getuid();
  }

  generated_process make_process(std::vector<shared_gang>& gangs) {
    generated_process made;
    made.user = any_user();
    auto& variables = made.environment;
    if (chance(35)) {
      shared_gang& gang = gangs[below(gangs.size())];
      // Mostly the next rank of its user; sometimes another's, or the same once more.
      if (!chance(10)) made.user = gang.user;
      variables = gang.environment;
      if (gang.size != 0) {
        const unsigned rank = gang.given++;
        if (!chance(5)) variables.push_back("RANK=" + std::to_string(rank % (gang.size + 1)));
      }
    }
    if (chance(25))
      variables.push_back("AMD_QUEUE_TAG=" + one_of(std::vector<std::string>{
                                                 "ONLINE_AI", "ONLINE_AI", "OFFLINE_AI",
                                                 "OFFLINE_AI", "OFFLINE", "", "online_ai"}));
    if (chance(3)) variables.emplace_back("AMD_QUEUE_TAG=OFFLINE_AI");  // perhaps the second of it
    if (chance(20))
      variables.push_back("AMD_QUEUE_PRIORITY=" +
                          (chance(20)
                               ? one_of(std::vector<std::string>{"16", "-1", "", "x", "07", "1e1"})
                               : std::to_string(below(16))));
    if (chance(25))
      variables.push_back("SLURM_JOB_QOS=" +
                          one_of(std::vector<std::string>{"preempt", "preempt-low", "normal", ""}));
    if (chance(25))
      variables.push_back(
          "MODE=" + one_of(std::vector<std::string>{"serve", "train", "batch", "a=b", "\\x"}));
    if (chance(10))
      variables.push_back("MY_GANG=" + one_of(std::vector<std::string>{"red", "blue", ""}));
    if (chance(10)) variables.emplace_back("XAMD_QUEUE_TAG=ONLINE_AI");
    if (chance(10)) variables.emplace_back("AMD_QUEUE_TAGS=ONLINE_AI");
    if (chance(5)) variables.emplace_back("AMD_QUEUE_TAG");  // no variable at all
    if (chance(20)) variables.push_back("PADDING=" + std::string(below(20000), 'p'));
    std::shuffle(variables.begin(), variables.end(), random_);
    std::erase(variables, "AMD_QUEUE_TAG");
    if (!unified_.empty() && chance(50)) made.unified = base_ + one_of(leaves_);
    if (!v1_.empty() && chance(20)) made.pids_v1 = base_ + one_of(leaves_);
    made.groups = {::getgid()};
    if (::getuid() == 0) {
      made.groups = {one_of(std::vector<gid_t>{0, 5001})};
      for (const gid_t each : {5001U, 5002U, 5003U})
        if (chance(20)) made.groups.insert(each);
    }
    const auto queues = below(5);
    for (std::uint64_t index = 0; index < queues; ++index) made.queues.push_back(make_queue(made));
    return made;
  }
  generated_queue make_queue(const generated_process& owner) {
    generated_queue queue;
    queue.id = owner.queues.empty() ? 0 : owner.queues.back().id + 1;
    queue.compute = !chance(25);
    queue.in_mqds = !chance(4);
    queue.ring = 0x7f0000000000 + (below(64) << 20U);
    queue.priority = static_cast<unsigned>(below(16));
    return queue;
  }

  void start(generated_process& one) {
    const pid_t parent = ::getpid();
    std::vector<char*> variables;
    for (std::string& each : one.environment) variables.push_back(each.data());
    variables.push_back(nullptr);
    // The real one first; setgroups() takes the supplementary ones.
    std::vector<gid_t> groups(one.groups.begin(), one.groups.end());
    std::shuffle(groups.begin(), groups.end(), random_);
    one.pid = ::fork();
    ASSERT_GE(one.pid, 0);
    if (one.pid == 0) {
      const bool placed = (one.unified.empty() || move(::getpid(), unified_ + one.unified)) &&
                          (one.pids_v1.empty() || move(::getpid(), v1_ + one.pids_v1)) &&
                          (::getuid() != 0 || (::setgroups(groups.size(), groups.data()) == 0 &&
                                               ::setresgid(groups[0], groups[0], groups[0]) == 0 &&
                                               ::setresuid(one.user, one.user, one.user) == 0));
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (!placed || ::getppid() != parent) ::_exit(98);
      char name[] = "sleep";
      char time[] = "600";
      char* const arguments[] = {name, time, nullptr};
      ::execve("/bin/sleep", arguments, variables.data());
      ::_exit(99);
    }
    all_.push_back(one);
  }

  classification_rules make_rules() {
    classification_rules rules;
    rules.role_store = directory_ + "/store/roles";
    const auto grant = [&] {
      claim_grant made;
      made.everyone = chance(15);
      made.users = some_of<uid_t>({0, 4001, 4002, ::getuid()}, 2);
      made.groups = some_of<gid_t>({0, 5001, 5002, 5003}, 1);
      made.cgroups = some_of(patterns(), 1);
      return made;
    };
    rules.may_claim_online = grant();
    rules.may_claim_offline = grant();
    for (const auto& [key, value] :
         some_of<std::pair<std::string, std::string>>({{"SLURM_JOB_QOS", "preempt*"},
                                                       {"SLURM_JOB_QOS", "?*"},
                                                       {"MODE", "serve"},
                                                       {"MODE", "[bt]*"},
                                                       {"MODE", "*a*"},
                                                       {"MODE", "\\x"},
                                                       {"MODE", "a=b"},
                                                       {"PADDING", "*"}},
                                                      4))
      rules.by_environment.push_back({key, value, any_claim()});
    for (const std::string& each : some_of(patterns(), 3))
      rules.by_cgroup.push_back({each, any_role()});
    for (const generated_process& each : all_) {
      if (chance(3)) rules.never_touch.push_back(each.who);
      if (chance(5)) rules.by_process[each.who] = any_role();
      if (chance(5)) rules.by_pid[each.who] = any_role();
      // What was said of the pid's former owner.
      if (chance(10)) rules.by_process[{each.pid, each.who.start_time - 1}] = role::online;
    }
    for (auto count = below(4); count > 0; --count) {
      const std::uint64_t first = 0x7f0000000000 + (below(64) << 20U);
      rules.by_ring.push_back({first, first + (below(16) << 20U), any_claim()});
    }
    rules.online_priority = static_cast<unsigned>(below(16));
    rules.queue_priority = chance(50);
    rules.gangs.ranks = chance(80);
    rules.gangs.slurm = chance(80);
    rules.gangs.pods = chance(80);
    rules.gangs.allow_partial = chance(25);
    if (chance(30)) rules.gangs.variables = {"MY_GANG"};
    if (chance(30)) rules.gangs.cgroups = {base_ + "/batch/job_*"};
    EXPECT_EQ(rules.problem(), "");
    return rules;
  }
  std::vector<std::string> patterns() const {
    return {base_ + "/serve",
            base_ + "/batch",
            base_ + "/batch/job_*",
            base_ + "/batch/job_[2-9]/step_?",
            base_ + "/odd\\x2d*",
            "/*/serve/inner",
            "/*pod0a1b*",
            base_ + "/kubepods*",
            base_,
            "/nowhere/*"};
  }

  // What the driver would show
  // ----------------------------------------------------------------------

  void show(const generated_process& of) {
    const std::string directory = where_.sysfs + "/proc/" + std::to_string(of.pid);
    std::filesystem::remove_all(directory);
    if (!of.alive) return;
    std::filesystem::create_directories(directory + "/queues");
    for (const generated_queue& each : of.queues) {
      const std::string queue = directory + "/queues/" + std::to_string(each.id);
      write(queue + "/gpuid", "4660");
      write(queue + "/type", each.compute ? "0" : "1");
    }
  }
  void show_mqds() {
    std::ostringstream text;
    char line[96];
    for (const generated_process& of : all_) {
      if (!of.alive) continue;
      text << "Process " << of.pid << " PASID 0x8001:\n";
      for (auto each = of.queues.rbegin(); each != of.queues.rend(); ++each) {
        if (!each->compute || !each->in_mqds) continue;
        text << "  Compute queue on device 1234\n";
        for (unsigned row = 0; row < 64; ++row) {
          std::uint32_t words[8] = {};
          if (row == 0) words[0] = 0xC0310800;
          if (row == 16) words[6] = each->priority;
          if (row == 17) {
            words[0] = static_cast<std::uint32_t>(each->ring >> 8U);
            words[1] = static_cast<std::uint32_t>(each->ring >> 40U);
          }
          std::snprintf(line, sizeof(line), "    %08x: %08x %08x %08x %08x %08x %08x %08x %08x\n",
                        row * 32, words[0], words[1], words[2], words[3], words[4], words[5],
                        words[6], words[7]);
          text << line;
        }
      }
    }
    write(where_.debugfs + "/mqds", text.str());
  }

  // Comparing
  // ---------------------------------------------------------------------------------------

  struct seen_process {
    role what = role::unmatched;
    std::uint64_t key = 0;
    int queues = 0;
  };
  void look(node_scanner& scanner) {
    scanner.scan([&](const observation& each) {
      switch (each.kind) {
        case observation_kind::process_seen:
          seen_[each.pid].what = each.what;
          seen_[each.pid].key = each.group_key;
          break;
        case observation_kind::process_gone: seen_.erase(each.pid); break;
        case observation_kind::queue_seen: ++seen_[each.pid].queues; break;
        case observation_kind::queue_gone: --seen_[each.pid].queues; break;
        default: break;
      }
    });
  }
  void compare(const classification_rules& rules, const stored_roles& stored) {
    const oracle truth{rules, stored, all_};
    std::map<std::string, std::uint64_t> key_of;
    std::map<std::uint64_t, std::string> gang_of_key;
    for (const generated_process& each : all_) {
      ASSERT_EQ(seen_.count(each.pid), each.alive ? 1U : 0U);
      if (!each.alive) continue;
      const oracle::answer expected = truth.of(each);
      const seen_process& got = seen_[each.pid];
      EXPECT_EQ(got.what, expected.what) << words(each) << "gang " << expected.gang;
      EXPECT_EQ(got.queues, std::ssize(each.queues));
      EXPECT_EQ(got.key != 0, !expected.gang.empty()) << words(each) << "gang " << expected.gang;
      if (got.key != 0) {
        EXPECT_EQ(key_of.emplace(expected.gang, got.key).first->second, got.key) << expected.gang;
        EXPECT_EQ(gang_of_key.emplace(got.key, expected.gang).first->second, expected.gang);
      }
      ++tally_[std::string{to_string(expected.what)}];
      if (!expected.gang.empty()) ++tally_[std::string{"in a gang "} + expected.gang[0]];
    }
  }
  static std::string words(const generated_process& of) {
    std::ostringstream text;
    text << "user " << of.user << " groups";
    for (const gid_t each : of.groups) text << " " << each;
    text << " cgroups " << of.unified << " " << of.pids_v1 << "\n";
    for (const std::string& each : of.environment) text << "  " << each.substr(0, 80) << "\n";
    for (const generated_queue& each : of.queues)
      text << "  queue " << each.id << " " << each.compute << each.in_mqds << std::hex << " "
           << each.ring << std::dec << " " << each.priority << "\n";
    return text.str();
  }

  std::mt19937_64 random_;
  const test::temporary_directory made_;
  const std::string directory_ = made_.path();
  std::string base_;  // of all generated cgroups
  std::string unified_;
  std::string v1_;
  std::vector<std::string> leaves_;
  roots where_;
  std::vector<generated_process> all_;
  std::map<pid_t, seen_process> seen_;
  std::map<std::string, int> tally_;
};

void GeneratedRoles::generate_and_compare(std::uint64_t seed) {
  const auto [processes, rule_sets] = chosen_form();
  random_.seed(seed);
  auto gangs = make_gangs();
  for (int index = 0; index < processes; ++index) {
    auto one = make_process(gangs);
    start(one);
  }
  for (generated_process& each : all_) {
    ASSERT_TRUE(eventually(30s, [&] { return command_of(each.pid) == "sleep"; })) << words(each);
    each.who = identity_of(each.pid).value();
  }
  for (const generated_process& each : all_) show(each);
  show_mqds();
  for (int set = 0; set < rule_sets && !HasFailure(); ++set) {
    seen_.clear();
    const classification_rules rules = make_rules();
    const auto tree = make_survey(where_);
    node_scanner scanner{*tree, rules, -1};
    look(scanner);
    compare(rules, {});
    ASSERT_FALSE(HasFailure()) << "rule set " << set << ", first look";

    // What the store says, through its file.
    std::filesystem::remove_all(directory_ + "/store");
    role_store store{rules.role_store};
    stored_roles stored;
    std::string message;
    for (const std::string& each : some_of(patterns(), 2)) {
      stored.by_cgroup.push_back({each, any_role()});
      ASSERT_TRUE(store.set(each, stored.by_cgroup.back().what, message)) << message;
    }
    for (int count = 0; count < 3; ++count) {
      const generated_process& each = all_[below(all_.size())];
      if (!each.alive) continue;
      stored.by_process[each.who] = any_role();
      ASSERT_TRUE(store.set(each.who, stored.by_process[each.who], message)) << message;
    }
    scanner.set_stored(store.read(message).value());
    // Queues, cgroups and lives change.
    for (generated_process& each : all_) {
      if (!each.alive) continue;
      const bool requeue = chance(10);
      if (requeue && chance(70) && !each.queues.empty()) each.queues.erase(each.queues.begin());
      if (requeue && chance(70)) each.queues.push_back(make_queue(each));
      if (!unified_.empty() && chance(5)) {
        each.unified = base_ + one_of(leaves_);
        ASSERT_TRUE(move(each.pid, unified_ + each.unified));
      }
      if (set % 5 == 4 && chance(3)) {
        ::kill(each.pid, SIGKILL);
        ::waitpid(each.pid, nullptr, 0);
        each.alive = false;
      }
      if (requeue || !each.alive) show(each);
    }
    show_mqds();
    look(scanner);
    compare(rules, stored);
    ASSERT_FALSE(HasFailure()) << "rule set " << set << ", second look";
  }
}

TEST_F(GeneratedRoles, AreAllRightAndStaySoWhenThingsChange) {
  generate_and_compare(1);
  for (const auto& [what, count] : tally_) std::cout << what << ": " << count << "\n";
  // All of it occurred, or the comparison proves little.
  for (const char* what : {"online", "offline", "unmatched", "in a gang r", "in a gang s"})
    EXPECT_GT(tally_[what], 0) << what;
}

TEST_F(GeneratedRoles, AreAllRightForAnySeed) {
  const sluice::test::random_seed seed;
  generate_and_compare(seed.value());
}

}  // namespace
}  // namespace sluice::kfd::generated_roles_test
