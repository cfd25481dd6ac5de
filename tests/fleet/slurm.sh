#!/usr/bin/env bash
# usage: tests/fleet/slurm.sh [--quick | --long] [CASE...]
# Run jobs on a Slurm cluster on this machine: four nodes, each a set of namespaces with a simulated GPU, a daemon of
# sluice and slurmd. Run it as root. It installs missing Debian packages first. Without CASE, it runs all cases.
#   --quick  Two nodes instead of four
#   --long   Also the cases that take minutes
# SLUICE_BIN is the folder with sluice's programs (default: the release build).
# Exit code 0: no case failed; 1: a case failed; 77: not root, no FUSE, or no cgroups v1.
set -uo pipefail

nodes=4 long=
case ${1-} in
  -h | --help) sed -n '2,9s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" && exit 0 ;;
  --quick) nodes=2 && shift ;;
  --long) long=--long && shift ;;
  -*) echo "slurm.sh: unknown option '$1' (see --help)" >&2 && exit 1 ;;
esac
. "$(dirname "${BASH_SOURCE[0]}")/with_nodes.sh" || exit 1
[ "$(id -u)" -ne 0 ] || [ -w /sys/fs/cgroup/freezer ] || { echo "slurm.sh: /sys/fs/cgroup/freezer is not writable; it needs cgroups v1" >&2 && exit 77; }

# The nodes' processes are in groups below this one.
group=sluice-fleet-$$
remove_groups() {
  local each
  for _ in $(seq 50); do  # Processes may take a moment to end.
    for each in /sys/fs/cgroup/"$group" /sys/fs/cgroup/*/"$group"; do
      [ ! -d "$each" ] || find "$each" -depth -type d -exec rmdir {} \; 2>/dev/null
    done
    compgen -G "/sys/fs/cgroup/*/$group" >/dev/null || break
    sleep 0.1
  done
}
after_nodes=remove_groups
with_nodes "$top/tests/fleet/slurm.py" --nodes "$nodes" $long --group "$group" "$@"
