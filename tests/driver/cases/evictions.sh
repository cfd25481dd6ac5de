#!/bin/bash
# The driver evicts and restores the queues of a process by itself: a suspended queue stays off the GPU until sluice
# resumes it.
. "${BASH_SOURCE[0]%/*}/common.sh"

start_calls
with_memory=("a open" "a acquire gpu=0" "a runtime 1" "a alloc p kind=userptr size=4096" "a map p" "a queue" "a smi")
# evicted_and_restored: the events of SMI that the process has read.
events=
evicted_and_restored() {
  call "a smi_read"
  [[ $result != events* ]] || events+=${result#* poll=true}
  [[ $events == " 9"*" a" ]]
}

echo "pages of the process change while it runs"
party "${with_memory[@]}"
call "a smi_mask 0x301"
maps 1 || fail "the queue is not mapped"
call "a discard p"
eventually evicted_and_restored
eventually maps 1

echo "pages of the process change while it is suspended"
hold "$process"
maps 0 || fail "a queue is mapped while its process is suspended"
events=
call "a discard p"
eventually evicted_and_restored
# The driver sends the event before it restores the queues.
sleep 0.2
maps 0 || fail "the driver's restore mapped a suspended queue"
sluice resume "$process" >resume.log || fail "resume"
wait "$holder" || fail "suspend ended with code $?"
eventually maps 1

echo "a page fault while it is suspended"
hold "$process"
call "a fault"
page_fault() { call "a smi_read" && [ "$result" = "events poll=true 1" ]; }
eventually page_fault
sluice resume "$process" >resume.log || fail "resume"
wait "$holder" || fail "suspend ended with code $?"
maps 0 || fail "a process with a page fault runs"
