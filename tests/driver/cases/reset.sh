#!/bin/bash
# The firmware hangs while a process is suspended, and the driver resets the GPU, with its hive: sluice names the lost
# work, and suspends nothing on these GPUs until their breakers are rearmed.
. "${BASH_SOURCE[0]%/*}/common.sh"
# The driver's limit for one preemption, which is 9 s.
echo 700 >/sys/module/amdgpu/parameters/queue_preemption_timeout_ms
gpus=$(cat /sys/class/kfd/kfd/topology/nodes/*/gpu_id | grep -vx 0)

echo "a reset while a process is suspended"
start_offline
hold "$offline"
echo 0 >/sys/module/sluice/parameters/hang
if sluice resume "$offline" >resume.log 2>&1; then fail "resume hides the reset"; fi
if wait "$holder"; then fail "suspend hides the reset"; fi
grep -Eq 'was reset while|the driver resets the GPU' suspend.log || fail "suspend does not name the reset"
if wait "$offline"; then fail "offline_demo hides the reset"; fi
grep -q 'a GPU of this process was reset' offline.log || fail "offline_demo does not name the reset"
eventually maps 0

echo "the breakers are open, until they are rearmed"
sluice breaker list >breaker.log || fail "breaker"
for gpu in $gpus; do
  awk '{ print $2 }' breaker.log | grep -qx "$gpu" || fail "the breaker of GPU $gpu is closed"
done
start_offline
if sluice suspend "$offline" --for 1s >suspend.log 2>&1; then fail "suspended in spite of the breaker"; fi
for gpu in $gpus; do
  sluice breaker rearm "$gpu" >rearm.log || fail "rearm"
done
sluice suspend "$offline" --for 200ms >suspend.log 2>&1 || fail "suspend after rearm"
eventually maps 1
end_offline

# offline_demo ends because of the reset, and may wait for sluice's answer to RUNTIME_ENABLE, which /proc/PID/syscall
# shows: User Mode Linux does not have this file.
if [ -e /proc/self/syscall ]; then
  echo "the driver fails to preempt the GPU when sluice attaches"
  start_offline
  echo 1 >/sys/module/sluice/parameters/fail_at
  if sluice suspend "$offline" >suspend.log 2>&1; then fail "suspend hides the failure"; fi
  if wait "$offline"; then fail "offline_demo hides the reset"; fi
  eventually maps 0
  sluice breaker list >breaker.log || fail "breaker"
  for gpu in $gpus; do
    awk '{ print $2 }' breaker.log | grep -qx "$gpu" || fail "the breaker of GPU $gpu is closed"
  done
fi

# Of what run.sh takes for a complaint, only errors that the driver prints about a reset are expected here.
dmesg >messages
! grep -E -A40 'WARNING:|BUG:|Oops|INFO: |possible ' messages >&2 || fail "the kernel complained"
dmesg -C
