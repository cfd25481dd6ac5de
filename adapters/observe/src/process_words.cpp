#include "sluice/observe/process_words.hpp"

#include <pwd.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <memory>
#include <optional>
#include <utility>

#include "sluice/os/whole_file.hpp"

namespace sluice::observe {
namespace {

constexpr std::size_t longest_name = 64;

/// Whoever started it chose these words: none of them may act on a terminal or break a line.
std::string tame(std::string_view text) {
  std::string made{text.substr(0, longest_name)};
  for (char& each : made) {
    const auto code = static_cast<unsigned char>(each);
    if (code < 0x20 || code >= 0x7f) each = '?';
  }
  return made;
}

std::string_view first_line(std::string_view text) { return text.substr(0, text.find('\n')); }

/// Field 22 of a stat line; the command in field 2 may hold spaces and parentheses.
std::optional<std::uint64_t> start_time_in(std::string_view stat) {
  auto at = stat.rfind(')');
  for (int field = 2; field < 22 && at != stat.npos; ++field) at = stat.find(' ', at + 1);
  if (at == stat.npos) return {};
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(stat.data() + at + 1, stat.data() + stat.size(), value);
  (void)end;
  return error == std::errc{} ? std::optional{value} : std::nullopt;
}

std::string name_of_user(uid_t user) {
  std::array<char, 4096> room;
  passwd entry{};
  passwd* found = nullptr;
  if (::getpwuid_r(user, &entry, room.data(), room.size(), &found) == 0 && found != nullptr)
    return tame(found->pw_name);
  return std::to_string(user);
}

/// The digits, letters and dashes at the front.
std::string_view word(std::string_view text) {
  const auto end = std::ranges::find_if_not(text, [](unsigned char each) {
    return std::isalnum(each) != 0 || each == '-' || each == '_';
  });
  return text.substr(0, static_cast<std::size_t>(end - text.begin()));
}

/// "job_4242" of ".../slurmstepd.scope/job_4242/step_0" or ".../slurm/uid_1000/job_4242".
std::string_view slurm_job(std::string_view path) {
  const auto slurm = path.find("slurm");
  if (slurm == path.npos) return {};
  constexpr std::string_view part = "/job_";
  const auto job = path.find(part, slurm);
  return job == path.npos ? std::string_view{} : word(path.substr(job + part.size()));
}

/// The uid of ".../kubepods/burstable/pod<uid>" or ".../kubepods-burstable-pod<uid>.slice". In the
/// second form, kubelet replaces each dash of the uid, which systemd would read as a level.
std::string pod_uid(std::string_view path) {
  for (auto at = path.find("kubepods"); at != path.npos; at = path.find("pod", at + 1)) {
    const bool begins = at != 0 && (path[at - 1] == '/' || path[at - 1] == '-');
    const std::string_view rest = path.substr(at);
    if (begins && rest.starts_with("pod") && rest.size() > 3) {
      std::string found{word(rest.substr(3))};
      if (!found.empty() && std::isxdigit(static_cast<unsigned char>(found.front())) != 0) {
        std::ranges::replace(found, '_', '-');
        return found;
      }
    }
  }
  return {};
}

std::string slurm_job_of_environment(const std::string& directory) {
  constexpr std::size_t most = std::size_t{4} << 20U;
  const auto text = read_whole_file(directory + "environ", most);
  if (!text) return {};
  constexpr std::string_view name = "SLURM_JOB_ID=";
  for (std::string_view rest = *text; !rest.empty();) {
    const std::string_view entry = rest.substr(0, rest.find('\0'));
    if (entry.starts_with(name)) return std::string{word(entry.substr(name.size()))};
    rest.remove_prefix(std::min(entry.size() + 1, rest.size()));
  }
  return {};
}

}  // namespace

std::string job_of_cgroups(std::string_view text) {
  for (; !text.empty(); text.remove_prefix(std::min(first_line(text).size() + 1, text.size()))) {
    const std::string_view line = first_line(text);
    if (const auto job = slurm_job(line); !job.empty()) return tame("slurm:" + std::string{job});
    if (const auto pod = pod_uid(line); !pod.empty()) return tame("pod:" + pod);
  }
  return {};
}

process_words read_process(pid_t pid, std::uint64_t start_time) {
  process_words found{.command = "?", .user = "?", .group = "?"};
  const std::string directory = "/proc/" + std::to_string(pid) + "/";
  struct stat about {};
  const auto command = read_whole_file(directory + "comm");
  if (!command || ::stat(directory.c_str(), &about) != 0) return found;
  std::string job;
  if (const auto cgroups = read_whole_file(directory + "cgroup")) job = job_of_cgroups(*cgroups);
  if (job.empty()) {
    const std::string slurm = slurm_job_of_environment(directory);
    if (!slurm.empty()) job = tame("slurm:" + slurm);
  }
  // Last: whose pid it is now, it was when the rest was read.
  const auto stat = read_whole_file(directory + "stat");
  if (!stat || start_time_in(*stat) != start_time) return found;
  found.command = tame(first_line(*command));
  found.user = name_of_user(about.st_uid);
  found.group = job.empty() ? found.command : job;
  return found;
}

process_reader reads_once(process_reader from) {
  struct last {
    pid_t pid = -1;
    std::uint64_t start_time = 0;
    process_words words;
  };
  return [from = std::move(from), kept = std::make_shared<last>()](pid_t pid, std::uint64_t start) {
    if (kept->pid != pid || kept->start_time != start) *kept = {pid, start, from(pid, start)};
    return kept->words;
  };
}

}  // namespace sluice::observe
