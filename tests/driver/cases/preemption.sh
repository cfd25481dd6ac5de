#!/bin/bash
# The demo's two programs: online requests beside kernels of 20 to 200 ms, without and with a scheduler.
. "${BASH_SOURCE[0]%/*}/common.sh"

# p99 NAME: of the requests in NAME.log, in ms.
p99() { sed -n 's/^.*; latency p50 .* p99 \([0-9.]*\) \(m\?s\) max.*/\1 \2/p' "$1.log" | awk '{ print $2 == "s" ? $1 * 1000 : $1 }'; }

start_offline
# It ends with code 1, because requests are left unfinished; the comparison below needs its p99.
online_demo --no-scheduler --window 3 >unscheduled.log 2>&1 || true
end_offline

start_offline
online_demo --wait-for-offline 1 --attach-after 200ms --window 3 >scheduled.log 2>&1 || fail "online_demo"
end_offline

echo "real driver, faked hardware: p99 of online requests without a scheduler $(p99 unscheduled) ms, with it $(p99 scheduled) ms"
grep ' queue suspends, ' scheduled.log
grep -q ' 0 unfinished; ' scheduled.log || fail "requests were not finished"
grep -q ', 0 failed outcomes' scheduled.log || fail "a suspend or a resume failed"
awk -v with="$(p99 scheduled)" -v without="$(p99 unscheduled)" 'BEGIN { exit !(with > 0 && 3 * with < without) }' ||
  fail "preemption did not shorten the latency to a third"
