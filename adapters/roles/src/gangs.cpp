#include "sluice/roles/gangs.hpp"

#include "pattern.hpp"

#include <algorithm>
#include <limits>

#include "sluice/os/proc.hpp"

namespace sluice::roles {

namespace {

const std::string* filled_value_of(const process_traits& of, std::string_view variable) {
  const auto found = of.variables.find(variable);
  return found == of.variables.end() || found->second.empty() ? nullptr : &found->second;
}

std::optional<std::uint64_t> number_of(const process_traits& of, std::string_view variable) {
  const std::string* const value = filled_value_of(of, variable);
  return value == nullptr ? std::nullopt : parse_number<std::uint64_t>(*value);
}

/// Names are lists of parts that no part can imitate: values of the environment hold no NUL.
class name_of_parts {
 public:
  explicit name_of_parts(std::string_view kind) : text_(kind) {}
  name_of_parts& operator<<(std::string_view part) {
    text_ += '\0';
    text_ += part;
    return *this;
  }
  name_of_parts& operator<<(std::uint64_t part) { return *this << std::to_string(part); }
  std::string take() { return std::move(text_); }

 private:
  std::string text_;
};

/// An address that means another host, or container, in every network namespace.
bool is_loopback(std::string_view address) {
  return address == "localhost" || address.starts_with("localhost.") ||
         address.starts_with("127.") || address == "::1" || address == "[::1]" ||
         address == "ip6-localhost" || address == "0.0.0.0";
}

std::optional<gang_membership> by_configuration(const gang_rules& rules,
                                                const process_traits& process) {
  for (const std::string& variable : rules.variables) {
    const std::string* const value = filled_value_of(process, variable);
    if (value == nullptr || !process.as) continue;
    return gang_membership{
        .name = (name_of_parts{"variable"} << process.as->user << variable << *value).take(),
        .whole = true};
  }
  for (const std::string& pattern : rules.cgroups)
    for (const std::string& path : process.cgroups)
      if (const std::string_view top = matching_cgroup(pattern, path); !top.empty())
        return gang_membership{.name = (name_of_parts{"cgroup"} << top).take(), .whole = true};
  return {};
}

std::optional<gang_membership> by_ranks(const process_traits& process) {
  const auto rank = number_of(process, "RANK");
  const auto size = number_of(process, "WORLD_SIZE");
  const std::string* const address = filled_value_of(process, "MASTER_ADDR");
  if (!rank || !size || address == nullptr || !process.as) return {};
  if (*size < 2 || *rank >= *size) return {};
  const std::string* const port = filled_value_of(process, "MASTER_PORT");
  name_of_parts name{"ranks"};
  name << process.as->user << *address << (port == nullptr ? "" : *port) << *size;
  if (is_loopback(*address)) name << process.network;
  return gang_membership{.name = name.take(), .whole = true, .rank = *rank, .size = *size};
}

/// A component of such a job has a job number and nodes of its own, and may wait for the others.
bool is_heterogeneous(const process_traits& process) {
  return number_of(process, "SLURM_HET_SIZE").value_or(1) > 1;
}

std::optional<gang_membership> across_nodes(const gang_rules& rules,
                                            const process_traits& process) {
  if (rules.across_nodes != gang_engine::slurm || !process.as) return {};
  const auto job = number_of(process, "SLURM_JOB_ID");
  // Not those of a step: the job's other steps may be what it waits for.
  auto nodes = number_of(process, "SLURM_JOB_NUM_NODES");
  if (!nodes) nodes = number_of(process, "SLURM_NNODES");
  constexpr std::uint64_t most = std::numeric_limits<std::uint32_t>::max();
  if (!job || *job > most || !nodes || *nodes < 2 || *nodes > most) return {};
  if (is_heterogeneous(process)) return {};
  return gang_membership{
      .name = (name_of_parts{"slurm, several nodes"} << process.as->user << *job).take(),
      .nodes = static_cast<std::uint32_t>(*nodes),
      .key_across = slurm_job{process.as->user, static_cast<std::uint32_t>(*job)}.key()};
}

std::optional<gang_membership> by_slurm(const process_traits& process) {
  const std::string* const job = filled_value_of(process, "SLURM_JOB_ID");
  if (job == nullptr || !process.as) return {};
  return gang_membership{.name = (name_of_parts{"slurm"} << process.as->user << *job).take()};
}

/// The path down to the pod: ".../kubepods/burstable/pod<uid>" (cgroupfs), or
/// ".../kubepods-burstable.slice/kubepods-burstable-pod<uid>.slice" (systemd).
std::string_view pod_of(std::string_view path) {
  bool inside = false;
  for (std::size_t begin = 1; begin < path.size();) {
    const std::size_t end = std::min(path.find('/', begin), path.size());
    const std::string_view part = path.substr(begin, end - begin);
    const bool pod = inside && (part.starts_with("pod") || part.find("-pod") != part.npos);
    if (pod) return path.substr(0, end);
    inside = inside || part.find("kubepods") != part.npos;
    begin = end + 1;
  }
  return {};
}

std::optional<gang_membership> by_pod(const process_traits& process) {
  for (const std::string& path : process.cgroups)
    if (const std::string_view pod = pod_of(path); !pod.empty())
      return gang_membership{.name = (name_of_parts{"pod"} << pod).take()};
  return {};
}

}  // namespace

std::set<std::string, std::less<>> variables_of_gangs(const gang_rules& rules) {
  std::set<std::string, std::less<>> wanted{"SLURM_NNODES", "SLURM_JOB_NUM_NODES",
                                            "SLURM_HET_SIZE"};
  wanted.insert(rules.variables.begin(), rules.variables.end());
  if (rules.ranks) wanted.insert({"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"});
  if (rules.slurm || rules.across_nodes == gang_engine::slurm) wanted.insert("SLURM_JOB_ID");
  return wanted;
}

gang_membership gang_of(const gang_rules& rules, const process_traits& process) {
  auto found = by_configuration(rules, process);
  if (!found) found = across_nodes(rules, process);
  if (!found && rules.ranks) found = by_ranks(process);
  if (!found && rules.slurm) found = by_slurm(process);
  if (!found && rules.pods) found = by_pod(process);
  if (!found) return {};
  if (found->size == 0 && found->nodes == 0) {
    auto nodes = number_of(process, "SLURM_NNODES");
    if (!nodes) nodes = number_of(process, "SLURM_JOB_NUM_NODES");
    found->far = (nodes && *nodes > 1) || is_heterogeneous(process);
  }
  return *found;
}

void gang_book::begin() {
  std::erase_if(gangs_, [](const auto& each) { return !each.second.seen; });
  for (auto& [name, each] : gangs_) {
    each.ranks.clear();
    each.seen = each.far = false;
  }
}

void gang_book::see(const gang_membership& member) {
  if (member.name.empty()) return;
  gang& in = gangs_[member.name];
  in.seen = true;
  in.far |= member.far;
  if (member.size != 0) in.ranks.insert(member.rank);
}

gang_book::settled gang_book::settle(const gang_membership& member, role what) {
  role_reason why;
  why.is = what;
  return settle(member, why);
}

gang_book::settled gang_book::settle(const gang_membership& member, role_reason& why) {
  if (member.name.empty()) return {why.is, 0};
  gang& in = gangs_[member.name];
  const bool incomplete = in.ranks.size() < member.size;
  if (why.is == role::offline && (in.far || incomplete) && !allow_partial_) {
    why.is = role::unmatched;
    why.bar = incomplete ? role_bar::gang_incomplete : role_bar::gang_beyond;
    why.ranks_seen = in.ranks.size();
    why.ranks = member.size;
  }
  const role what = why.is;
  if (what == role::offline && member.nodes != 0) return {what, member.key_across, member.nodes};
  if (member.whole) return {what, key_of(in.key)};
  if (what == role::unmatched) return {what, 0};
  return {what, key_of(what == role::offline ? in.offline_key : in.key)};
}

}  // namespace sluice::roles
