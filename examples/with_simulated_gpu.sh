#!/usr/bin/env bash
# usage: with_simulated_gpu.sh [--profile NAME|FILE] [--gpus N] COMMAND [ARGUMENT...]
# Run COMMAND as root, with a simulated GPU, or N, until COMMAND ends. These variables contain the paths of the
# device: SLUICE_KFD_DEVICE, SLUICE_KFD_SYSFS and SLUICE_KFD_DEBUGFS if the profile is for AMD's driver. If it is for
# NVIDIA's: SLUICE_NVIDIA_DEVICE and SLUICE_NVIDIA_PROC. $SLUICE_SIM_ROOT/sim/stats.json contains the counters of the
# device. The exit code is that of COMMAND. Processes that COMMAND leaves running get SIGTERM. The script forwards
# SIGINT and SIGTERM to COMMAND, waits for COMMAND to end, and then exits with 130 or 143.
set -euo pipefail

name=$(basename "$0")
top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
sim=${SLUICE_SIM:-$top/build/release/bin/sluice-sim}
usage_error() {
  echo "$name: $1 (see --help)" >&2
  exit 2
}
profile=mi300x
gpus=()
while [[ ${1-} == -* ]]; do
  case $1 in
    -h | --help) sed -n '2,7s/^# //p' "$0" && exit 0 ;;
    --profile)
      [ -n "${2-}" ] || usage_error "--profile needs the name of a profile or a file"
      profile=$2
      shift 2
      ;;
    --profile=?*) profile=${1#--profile=} && shift ;;
    --gpus)
      [ -n "${2-}" ] || usage_error "--gpus needs a number"
      gpus=(--gpus "$2")
      shift 2
      ;;
    *) usage_error "unknown option $1" ;;
  esac
done
[ $# -gt 0 ] || usage_error "COMMAND is missing"
if [ ! -x "$sim" ]; then
  echo "$name: $sim does not exist; run examples/demo.sh to build it" >&2
  exit 1
fi

# A mount namespace of our own: whatever happens, no mount outlives it.
if [ -z "${SLUICE_SIM_NAMESPACE-}" ]; then
  . "$top/examples/common.sh"
  in_own_mounts env SLUICE_SIM_NAMESPACE=1 SLUICE_SIM="$sim" "$0" --profile "$profile" ${gpus[@]+"${gpus[@]}"} "$@"
fi
unset SLUICE_SIM_NAMESPACE

SLUICE_SIM_ROOT=$(mktemp -d "${TMPDIR:-/tmp}/sluice-sim-XXXXXX")
export SLUICE_SIM_ROOT
device_pid=
# What COMMAND left running: the processes with this device in their environment.
left_running() {
  local pid
  for pid in $(grep -lzsFx "SLUICE_SIM_ROOT=$SLUICE_SIM_ROOT" /proc/[0-9]*/environ | cut -d/ -f3); do
    [ "$pid" = "$device_pid" ] || [ ! -e "/proc/$pid" ] || echo "$pid"
  done
}
cleanup() {
  trap '' INT TERM  # A second signal would leave the directory and its mounts behind.
  if [ -n "$device_pid" ]; then
    local each
    # Once each: a second signal could cut their cleaning up short. Some may have ended meanwhile.
    for each in $(left_running); do
      kill -TERM "$each" 2>/dev/null || true
    done
    for _ in $(seq 100); do
      [ -n "$(left_running)" ] || break
      sleep 0.1
    done
    kill -TERM "$device_pid" 2>/dev/null || true
    wait "$device_pid" 2>/dev/null || echo "$name: the simulated device exited with code $?" >&2
  fi
  rm -rf --one-file-system "$SLUICE_SIM_ROOT"
}
trap cleanup EXIT

command_pid=
stopped_by=
stop() {
  stopped_by=$1
  interrupted=1
  [ -n "$command_pid" ] || return 0
  # Ctrl-C has reached the command already, which is of our process group; a second one could cut its
  # cleaning up short. So what comes while we are in a terminal's foreground counts as Ctrl-C.
  local group foreground
  read -r _ _ _ _ group _ _ foreground _ <<<"$(sed 's/([^)]*)/-/' /proc/$$/stat)"
  if [ "$1" = TERM ] || [ "$group" != "$foreground" ]; then
    kill -s "$1" "$command_pid" 2>/dev/null || true
  fi
}
trap 'stop INT' INT
trap 'stop TERM' TERM
exit_if_stopped() {
  case $stopped_by in INT) exit 130 ;; TERM) exit 143 ;; esac
}

# In a session of its own: Ctrl-C is for the command, and the device outlives that; but not this script, even
# where that is killed.
mkfifo "$SLUICE_SIM_ROOT/ready"
# Opened first: what the device writes would be lost if it closed its end before we have ours.
exec 8<>"$SLUICE_SIM_ROOT/ready"
setsid "$sim" --root "$SLUICE_SIM_ROOT" --profile "$profile" ${gpus[@]+"${gpus[@]}"} --with-parent $$ --ready-fd 9 \
  9>&8 8<&- &
device_pid=$!
until read -r -N 1 -t 0.2 -u 8 _; do
  exit_if_stopped
  if ! kill -0 "$device_pid" 2>/dev/null; then
    echo "$name: the simulated device did not start" >&2
    exit 1
  fi
done
exec 8<&-
rm "$SLUICE_SIM_ROOT/ready"

export SLUICE_KFD_DEVICE=$SLUICE_SIM_ROOT/dev/kfd
export SLUICE_KFD_SYSFS=$SLUICE_SIM_ROOT/sys/class/kfd/kfd
export SLUICE_KFD_DEBUGFS=$SLUICE_SIM_ROOT/sys/kernel/debug/kfd
export SLUICE_NVIDIA_DEVICE=$SLUICE_SIM_ROOT/dev/nvidiactl
export SLUICE_NVIDIA_PROC=$SLUICE_SIM_ROOT/proc/driver/nvidia
exit_if_stopped
# In the background, because bash handles no signal while a foreground command runs; but in our process
# group and with our standard input, and without the deafness to Ctrl-C that comes with it.
(trap - INT QUIT && exec "$@") <&0 &
command_pid=$!
[ -z "$stopped_by" ] || kill -s "$stopped_by" "$command_pid" 2>/dev/null || true
while :; do
  interrupted=
  code=0
  wait "$command_pid" || code=$?
  # Where the signal came just as wait had reaped the command, bash 5.2 has lost that and would wait for ever.
  [ -n "$interrupted" ] && kill -0 "$command_pid" 2>/dev/null || break
done
exit_if_stopped
exit "$code"
