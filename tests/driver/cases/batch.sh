#!/bin/bash
# The batch commands of a driver with the patches of adapters/kfd/kernel/batch: what they cost, what debugfs shows, and a
# reservation of hardware queues.
. "${BASH_SOURCE[0]%/*}/common.sh"

# It also fails for other reasons, such as a missing setting of the machine.
sluice doctor >doctor.log 2>&1 || true
grep -q 'batch commands.*available (patched driver)' doctor.log || fail "the driver has no batch commands"
mes=
[ "$(awk '$1 == "gfx_target_version" { print $2 }' /sys/class/kfd/kfd/topology/nodes/1/properties)" -lt 110000 ] || mes=yes

driver_costs | tee costs.md
# $5: driver calls, $6: runlists, of a suspend and a resume. MES has no runlist.
awk -F'|' -v mes="$mes" '$4 ~ /batch commands/ { ++rows; wrong += $5 != 1 || (!mes && $6 != 1) } END { exit wrong || rows != 6 }' \
  costs.md || fail "a suspend of several processes is more than one call or one runlist"

echo "debugfs names a held queue"
write_configuration
start_offline
start_daemon "$offline"
# shown WHAT: whether this is said of the queue of offline_demo.
shown() { grep -qx "    $1" <<<"$(grep -B4 -A4 "Process: pid $offline pasid" /sys/kernel/debug/kfd/queues)"; }
shown 'Queue ID: 0 (0x0)' && shown 'queue count: 1' || fail "debugfs does not list the queue"
eventually shown 'is active: yes'
begin_online
eventually shown 'is active: no'
end_online
eventually shown 'is active: yes'

echo "the daemon is killed, the agent after it: the queue runs"
begin_online
eventually shown 'is active: no'
kill -KILL "$daemon"
# The agent may have ended by itself, and the client has lost its scheduler.
pkill -KILL -x sluice-agent || true
eventually shown 'is active: yes'
exec {online}>&-
wait "$client" || true
end_offline
rm -rf run

# A quarter of 24 hardware queues: 6.
echo "a reservation: 16 busy queues of two processes take turns on 6 hardware queues"
if [ -n "$mes" ]; then
  echo "MES chooses hardware queues by itself"
  exit 0
fi
write_configuration
sed -i 's/^name = "fixed_timeslice"/name = "hqd_reservation"\noffline_percent = 25/' node.toml
start_target one 8 2000
start_target two 8 2000
eventually maps 16
start_daemon "${pid[one]}"
eventually attached "${pid[two]}"
limited() { [ "$(mapped)" -le 6 ]; }
eventually limited
for target in one two; do
  ask $target completed
  before=$answer
  eventually completes_more $target $((before + 80))
  limited || fail "more than 6 queues are mapped"
done
kill -TERM "$daemon"
wait "$daemon" || fail "the daemon ended with code $?"
eventually maps 16
end_target one
end_target two
