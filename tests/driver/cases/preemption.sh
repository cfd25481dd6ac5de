#!/bin/bash
# The demo's two programs: online requests alone, and beside kernels of 20 to 200 ms without and with a scheduler.
. "${BASH_SOURCE[0]%/*}/common.sh"

# p99 NAME: of the requests in NAME.log, in ms.
p99() { sed -n 's/^.*; latency p50 .* p99 \([0-9.]*\) \(m\?s\) max.*/\1 \2/p' "$1.log" | awk '{ print $2 == "s" ? $1 * 1000 : $1 }'; }

online_demo --no-scheduler --window 3 --drain-limit 60s >alone.log 2>&1 || fail "online_demo"

start_offline
# It ends with code 1, because requests are left unfinished; the comparison below needs its p99.
online_demo --no-scheduler --window 3 --drain-limit 15s >unscheduled.log 2>&1 || true
end_offline

start_offline
online_demo --wait-for-offline 1 --attach-after 200ms --window 3 --drain-limit 60s >scheduled.log 2>&1 || fail "online_demo"
end_offline

echo "real driver, faked hardware: p99 of online requests alone $(p99 alone) ms, without a scheduler $(p99 unscheduled) ms," \
  "with it $(p99 scheduled) ms"
grep ' queue suspends, ' scheduled.log
grep -q ' 0 unfinished; ' scheduled.log || fail "requests were not finished"
grep -q ', 0 failed outcomes' scheduled.log || fail "a suspend or a resume failed"
# How much slower requests become depends on the machine, and so does their latency alone.
awk -v alone="$(p99 alone)" -v without="$(p99 unscheduled)" -v with="$(p99 scheduled)" \
  'BEGIN { exit !(with > 0 && without > 2 * alone && 2 * (with - alone) < without - alone) }' ||
  fail "preemption did not halve what offline work adds to the latency"
