#!/bin/bash
# Packets that take longer, never end, or are invalid: sluice takes their queues off the GPU and puts them back.
. "${BASH_SOURCE[0]%/*}/common.sh"

set_parameter() { echo "$2" >"/sys/module/sluice/parameters/$1"; }

# suspend_and_resume COUNT: of offline_demo; then COUNT queues are mapped.
suspend_and_resume() {
  hold "$offline"
  maps 0 || fail "a queue is mapped while its process is suspended"
  sluice resume "$offline" >resume.log || fail "resume"
  wait "$holder" || fail "suspend ended with code $?"
  eventually maps "$1"
}

kill_offline() {
  local code=0
  kill -KILL "$offline"
  wait "$offline" 2>/dev/null || code=$?
  [ $code -eq 137 ] || fail "offline_demo ended with code $code before it was killed"
  eventually maps 0
}

# run_kernel: of 1 ms, in a process of its own; sets `took`, in ms.
run_kernel() {
  local begun
  start_target kernel 1 0
  begun=$(date +%s%N)
  ask kernel "run 1000"
  eventually completes_more kernel 0
  took=$((($(date +%s%N) - begun) / 1000000))
  end_target kernel
}

echo "a packet takes 200 ms longer"
set_parameter packet_delay_us 200000
run_kernel
[ "$took" -ge 200 ] || fail "the kernel ended before its time"
set_parameter packet_delay_us 0

echo "a packet never ends"
set_parameter packet_hang_at 1
start_offline
started() { grep -q ' started [1-9]' /sys/kernel/debug/sluice0/executions; }
eventually started
[ "$(cat /sys/module/sluice/parameters/packet_hang_at)" = 0 ] || fail "no packet hangs"
set_parameter trace 1
suspend_and_resume 1
set_parameter trace 0
dmesg >messages
grep -q 'sluice: device 0: ' messages || fail "the commands to the firmware were not logged"
kill_offline

echo "a packet is invalid: MES takes its queue off the GPU, a runlist does not"
set_parameter packet_error_at 1
start_offline
failed() { [ "$(cat /sys/module/sluice/parameters/packet_error_at)" = 0 ]; }
eventually failed
left=1
! grep -q '^gfx_target_version 11' /sys/class/kfd/kfd/topology/nodes/1/properties || left=0
eventually maps $left
pasid=$(cat "/sys/class/kfd/kfd/proc/$offline/pasid")
packets_started() { awk -v pasid="$pasid" '$2 == pasid { print $6 }' /sys/kernel/debug/sluice0/executions; }
before=$(packets_started)
[ -n "$before" ] || fail "offline_demo has no queue"
suspend_and_resume $left
# The GPU has looked at all queues when a later packet has run.
run_kernel
[ "$(packets_started)" = "$before" ] || fail "the queue took packets after the invalid one"
kill_offline
