# What the cases share. A case runs as root on a machine of tests/driver/run.sh, whose /tmp and /run are its own.
# shellcheck shell=bash
set -euo pipefail
export PATH=$PWD/build/release/bin:$PATH LC_ALL=C.UTF-8
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
