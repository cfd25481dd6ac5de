#!/bin/bash
# On two GPUs: some drivers crash when a process is suspended that has no address space on one of them. sluice refuses it.
. "${BASH_SOURCE[0]%/*}/common.sh"
start_calls

# refused: sluice does not suspend `process`, and its reason names the address space.
refused() {
  local code=0
  sluice suspend "$process" --for 100ms >suspend.log 2>&1 || code=$?
  [ "$code" -eq 1 ] || fail "sluice suspend ended with code $code"
  grep -q 'has no address space on GPU' suspend.log || fail "the reason does not name the address space"
  maps 1 || fail "a queue was unmapped"
}

echo "it has not opened the render node of the second GPU"
party "a open" "a acquire gpu=0" "a runtime 1" "a queue"
eventually maps 1
refused

echo "it has opened the render node, and not called ACQUIRE_VM"
# There is no GPU of this number. The call opens the last one's render node before it fails.
call "a acquire gpu=7"
[ "$result" = EINVAL ] || fail "ACQUIRE_VM of an unknown GPU: $result"
refused

echo "it has called ACQUIRE_VM for both"
call "a acquire gpu=1"
[ "$result" = 0 ] || fail "ACQUIRE_VM: $result"
sluice suspend "$process" --for 100ms >suspend.log 2>&1 || fail "sluice suspend ended with code $?"
eventually maps 1
call "case end"
eventually maps 0
