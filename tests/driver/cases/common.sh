# What the cases share. A case runs as root on a machine of tests/driver/run.sh, whose /tmp and /run are its own.
# shellcheck shell=bash
set -euo pipefail
top=$PWD
export PATH=$PWD/build/release/bin:$PATH LC_ALL=C.UTF-8
[ -x "$top/build/release/bin/sluice" ] || {
  echo "${0##*/}: build first: cmake --preset release && cmake --build --preset release" >&2
  exit 2
}
cd /tmp

fail() {
  echo "FAILED: $*" >&2
  local each
  for each in ./*.log; do
    [ ! -s "$each" ] || { echo "--- $each" >&2 && tail -n 20 "$each" >&2; }
  done
  exit 1
}

# eventually COMMAND...: waits until it succeeds, at most 20 s.
eventually() {
  local end=$((SECONDS + 20))
  until "$@"; do
    [ $SECONDS -lt $end ] || fail "not within 20 s: $*"
    sleep 0.05
  done
}

# mapped: how many queues the firmware of all devices has mapped.
mapped() { cat /sys/kernel/debug/sluice*/firmware | grep -c '^pasid' || true; }
maps() { [ "$(mapped)" -eq "$1" ]; }

# Starts offline_demo with `load`, writing to offline.log; sets `offline`.
start_offline() {
  AMD_QUEUE_TAG=OFFLINE_AI offline_demo --load "${1-long}" >offline.log 2>&1 &
  offline=$!
  eventually [ -d "/sys/class/kfd/kfd/proc/$offline/queues/0" ]
}

# hold PID: suspends it by a command; sets `holder`. Returns when the command answers `sluice resume`.
hold() {
  rm -f suspend.log
  sluice suspend "$1" >suspend.log 2>&1 &
  holder=$!
  eventually grep -qs '^held by process' suspend.log
}

# Ends offline_demo, which has verified that each kernel ran exactly once.
end_offline() {
  kill -TERM "$offline"
  wait "$offline" || fail "offline_demo ended with code $?"
  grep -q 'each exactly once and in order' offline.log || fail "offline_demo lost work"
  eventually maps 0
}

declare -A to from pid
# start_target NAME ARGUMENT...: an offline integration_target; sets pid[NAME].
start_target() {
  local fd
  rm -f "to.$1" "from.$1"
  mkfifo "to.$1" "from.$1"
  AMD_QUEUE_TAG=OFFLINE_AI integration_target "${@:2}" <"to.$1" >"from.$1" 2>"target.$1.log" &
  pid[$1]=$!
  exec {fd}>"to.$1" && to[$1]=$fd
  exec {fd}<"from.$1" && from[$1]=$fd
  read -r -t 60 answer <&"$fd" && [ "$answer" = ready ] || fail "target $1 did not start"
}
# ask NAME COMMAND: of that target; sets `answer`.
ask() {
  echo "$2" >&"${to[$1]}"
  read -r -t 60 answer <&"${from[$1]}" || fail "target $1 did not answer '$2'"
}
completes_more() { ask "$1" completed && [ "$answer" -gt "$2" ]; }
# end_target NAME: which has verified that each kernel ran once, in order, and whole.
end_target() {
  local input=${to[$1]} output=${from[$1]}
  ask "$1" drain
  [ "$answer" = 0 ] || fail "target $1 lost $answer kernels"
  # It frees its memory itself: at an exit with memory, lockdep may warn (adapters/kfd/kernel/README.md).
  echo "end" >&"${to[$1]}"
  wait "${pid[$1]}" || fail "target $1 ended with code $?"
  exec {input}>&- {output}<&-
  unset "to[$1]" "from[$1]" "pid[$1]"
}

# write_configuration LINE...: of a daemon with the policy fixed_timeslice, whose files are in run; the lines go below
# [scheduler].
write_configuration() {
  mkdir -p run
  printf '%s\n' '[daemon]' 'mode = "enforce"' 'directory = "/tmp/run"' '[kfd]' 'criu_pause = true' '[policy]' \
    'name = "fixed_timeslice"' '[roles]' 'store = ""' '[scheduler]' 'attach_after = "200ms"' "$@" >node.toml
}
# start_daemon PID: with this configuration; sets `daemon`. Returns when it has attached to the process.
start_daemon() {
  sluice run --config node.toml >daemon.log 2>&1 &
  daemon=$!
  eventually attached "$1"
}
attached() { sluice why "$1" --directory run 2>&1 | grep -q "attach process $1: done"; }
# begin_online: a client that has online work until end_online.
begin_online() {
  rm -f online
  mkfifo online
  PYTHONPATH=$top/adapters/client/python SLUICE_CLIENT_LIBRARY=$top/build/release/lib/libsluice_client.so.0 \
    SLUICE_CLIENT_SOCKET=/tmp/run/clients.sock python3 -c '
import sluice, sys
with sluice.connect(name="online", required=True).busy():
    sys.stdin.read()' <online >online.log 2>&1 &
  client=$!
  exec {online}>online
}
end_online() {
  exec {online}>&-
  wait "$client" || fail "the client ended with code $?"
}

# start_calls: processes whose driver calls the case makes (kfd_calls of tests/conformance/README.md). They are offline.
start_calls() {
  mkfifo calls results
  exec {results}<>results
  AMD_QUEUE_TAG=OFFLINE_AI kfd_calls calls >results 2>calls.log &
  exec {calls}>calls
}
# call LINE: sets `result`.
call() {
  echo "$1" >&"$calls"
  read -r -t 60 result <&"$results" || fail "no result of '$1'"
  result=${result#"$1"}
  result=${result# -> }
}
# party LINE...: calls of new processes, which must succeed; ends those of the party before. Sets `process` to the id of
# process a.
party() {
  local each
  call "case party"
  for each; do
    call "$each"
    [[ $result == 0* ]] || fail "$each: $result"
  done
  call "a pid"
  process=$result
}

# show_processor: what AMD's libraries look for and User Mode Linux does not show: the vendor and the caches of the
# processor (libhsakmt), and in bin the program by which rocminfo finds the driver's module.
show_processor() {
  local cache property
  mkdir -p bin
  printf '#!/bin/sh\necho "amdgpu 0 0"\n' >bin/lsmod
  chmod +x bin/lsmod
  printf 'processor\t: 0\nvendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel\t\t: 1\nmodel name\t: AMD EPYC\nstepping\t: 1\ncpu cores\t: 1\napicid\t\t: 0\n\n' >cpuinfo
  mount --bind cpuinfo /proc/cpuinfo
  mount -t tmpfs tmpfs /sys/devices/system
  for cache in node/node0/cpu0/cache/index0 cpu/cpu0/cache/index0; do
    mkdir -p /sys/devices/system/$cache
    for property in level=1 type=Data size=32K coherency_line_size=64 number_of_sets=64 ways_of_associativity=8 \
      physical_line_partition=1 shared_cpu_list=0 shared_cpu_map=1; do
      echo "${property#*=}" >"/sys/devices/system/$cache/${property%%=*}"
    done
  done
}
