#!/bin/bash
# What an operator does by hand, and what the driver does when one of the two sides is killed.
. "${BASH_SOURCE[0]%/*}/common.sh"

sluice doctor >doctor.log || fail "doctor"
grep -q '^nothing blocks preemption$' doctor.log || fail "doctor found something"

start_offline
eventually maps 1
sluice queues >queues.log
grep -q "$offline" queues.log || fail "queues does not show process $offline"
# slots: of the process, that sluice hqds shows in use.
slots() { sluice hqds >hqds.log && awk -v pid="$offline" '$8 == pid' hqds.log | wc -l; }
[ "$(slots)" -eq 1 ] || fail "hqds does not show the slot of process $offline"

echo "suspended for a time, then running again"
sluice suspend "$offline" --for 1s >suspend.log &
eventually maps 0
wait $! || fail "suspend --for"
eventually maps 1

echo "resumed by another command"
hold "$offline"
maps 0 || fail "a queue is mapped while its process is suspended"
[ "$(slots)" -eq 0 ] || fail "hqds shows a slot of a suspended process"
sluice resume "$offline" >resume.log || fail "resume"
wait "$holder" || fail "suspend ended with code $?"
eventually maps 1

echo "an unmap takes 200 ms: so does the suspend"
echo 200000 >/sys/module/sluice/parameters/unmap_us
unmaps() { sed -n 's/.* unmaps \([0-9]*\) .*/\1/p' /sys/kernel/debug/sluice0/firmware; }
before=$(unmaps)
begun=$(date +%s%N)
hold "$offline"
maps 0 || fail "a queue is mapped while its process is suspended"
[ $((($(date +%s%N) - begun) / 1000000)) -ge $((200 * ($(unmaps) - before))) ] || fail "sluice did not wait for the end of an unmap"
sluice resume "$offline" >resume.log || fail "resume"
wait "$holder" || fail "suspend ended with code $?"
echo 0 >/sys/module/sluice/parameters/unmap_us
eventually maps 1

echo "a killed holder: the kernel resumes the queues"
hold "$offline"
maps 0 || fail "a queue is mapped while its process is suspended"
kill -KILL "$holder"
eventually maps 1

echo "a queue of a suspended process is destroyed after it was resumed, and not before"
hold "$offline"
maps 0 || fail "a queue is mapped while its process is suspended"
kill -TERM "$offline"
sleep 0.2 # for a fault to show; a busy machine hides one, and makes none up
[ -d "/sys/class/kfd/kfd/proc/$offline/queues/0" ] || fail "the queue of a suspended process was destroyed"
sluice resume "$offline" >resume.log || fail "resume"
wait "$holder" || fail "suspend ended with code $?"
wait "$offline" || fail "offline_demo ended with code $?"
grep -q 'each exactly once and in order' offline.log || fail "offline_demo lost work"

echo "a target that is killed while it is suspended leaves nothing behind"
start_offline
hold "$offline"
kill -KILL "$offline"
eventually [ ! -e "/sys/class/kfd/kfd/proc/$offline" ]
wait
maps 0 || fail "queues are left"
