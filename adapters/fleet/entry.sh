#!/bin/sh
# usage: entry.sh [ARGUMENT...]
# What the daemon's container starts with, as root with the capabilities of kubernetes/sluice.yaml: does the three
# things that take them, and becomes `sluice run` with those arguments, as a user of its own without any.
# What is entered is the cgroup namespace of the process SLUICE_HOST_PID, 1 unless said.
set -eu
user=70001 clients=70002  # as in Containerfile

case ${1-} in -h | --help) exec sluice run --help ;; esac
[ -e /dev/kfd ] || { echo "sluice-entry: there is no /dev/kfd in this container: give it that device, and /dev/dri" >&2; exit 1; }
# A directory of the host, made by kubelet as root's.
[ "$(stat -c %u /run/sluice)" = $user ] || chown $user:$user /run/sluice
# /dev/kfd is its group's, which has another number on each host; but root's group opens more than that. Nothing
# here opens a render node.
groups=$clients
kfd=$(stat -c %g /dev/kfd)
[ "$kfd" = 0 ] || groups=$groups,$kfd
if [ "$kfd" = 0 ] && [ $((0$(stat -c %a /dev/kfd) & 6)) != 6 ]; then
  echo "sluice-entry: /dev/kfd is root's alone, and the daemon is not: give it a group of its own on the host (udev)" >&2
fi
# The most that the agent may have by its file, as far as the container has it.
keep=-all,+sys_ptrace,+dac_read_search
# With cgroup v2 a container has a cgroup namespace of its own, where paths of other pods begin with /../ and
# lack what both have in common: no pattern of /kubepods fits.
exec nsenter --cgroup="/proc/${SLUICE_HOST_PID:-1}/ns/cgroup" \
  setpriv --reuid=$user --regid=$user --groups="$groups" --bounding-set="$keep" --inh-caps=-all -- \
  sluice run "$@"
