#!/bin/sh
# usage: entry.sh [ARGUMENT...]
# Entry point of the daemon's container. The script starts as root with the capabilities of its manifest in kubernetes.
# It sets the owner of /run/sluice, enters the cgroup namespace of process SLUICE_HOST_PID (default: 1), and drops
# its capabilities. Then it runs `sluice run` with the arguments, as user 70001.
set -eu
user=70001 clients=70002  # as in Containerfile

case ${1-} in -h | --help) exec sluice run --help ;; esac
[ -e /dev/kfd ] || [ -e /dev/nvidiactl ] || {
  echo "sluice-entry: cannot start: this container has no GPU; AMD: add the devices /dev/kfd and /dev/dri to it; NVIDIA: run it with NVIDIA's container runtime" >&2
  exit 1
}
# kubelet creates this directory of the host as root.
[ "$(stat -c %u /run/sluice)" = $user ] || chown $user:$user /run/sluice
groups=$clients
if [ -e /dev/kfd ]; then
  # The group of /dev/kfd may open it; its number differs between hosts. Do not join group root, which may open more.
  # The daemon opens no render node.
  kfd=$(stat -c %g /dev/kfd)
  [ "$kfd" = 0 ] || groups=$groups,$kfd
  if [ "$kfd" = 0 ] && [ $((0$(stat -c %a /dev/kfd) & 6)) != 6 ]; then
    echo "sluice-entry: the daemon (user $user) cannot open /dev/kfd: only root may open it; set another group for /dev/kfd on the host (udev rule)" >&2
  fi
fi
# Upper limit for the capabilities of the agent's file.
keep=-all,+sys_ptrace,+dac_read_search
# With cgroup v2 a container has its own cgroup namespace. There the paths of other pods begin with /../, and no
# pattern of /kubepods matches them.
exec nsenter --cgroup="/proc/${SLUICE_HOST_PID:-1}/ns/cgroup" \
  setpriv --reuid=$user --regid=$user --groups="$groups" --bounding-set="$keep" --inh-caps=-all -- \
  sluice run "$@"
