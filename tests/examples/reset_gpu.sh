#!/usr/bin/env bash
# usage: reset_gpu.sh ONLINE_DEMO OFFLINE_DEMO
# After a reset of their GPU the demo programs say so and end at once, instead of waiting for dead queues; a
# serving loop that could not finish its requests does not end well either.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../support/eventually.sh"
with_gpu=$(dirname "${BASH_SOURCE[0]}")/../../examples/with_simulated_gpu.sh
said="was reset: its queues and their work are lost"

# after_reset COMMAND...: runs it, resets the GPU once it has kernels done, and prints how it ended.
after_reset() {
  # shellcheck disable=SC2016
  "$with_gpu" bash -c '
    # Far beyond what a reset takes, far below the limits of the programs themselves.
    timeout -s KILL 60 "$@" & program=$!
    eventually grep -q "\"kernels_completed\":[1-9]" "$SLUICE_SIM_ROOT/sim/stats.json"
    echo "reset $(head -n 1 "$SLUICE_KFD_SYSFS/topology/nodes/1/gpu_id")" >"$SLUICE_SIM_ROOT/sim/control"
    code=0; wait "$program" || code=$?
    echo "ended with $code"' bash "$@" 2>&1
}

expect() {
  grep -Eq "$1" <<<"$out" || { echo "expected: $1" && exit 1; }
}

for load in long train; do
  out=$(after_reset "$2" --load "$load" --seconds 60s)
  echo "$out"
  expect "^offline_demo: .*$said"
  expect "^ended with 1$"
done
out=$(after_reset "$1" --no-scheduler --window 60s)
echo "$out"
expect "^online_demo: .*$said"
expect "^ended with 1$"

# Ten times as much as the GPU can do.
code=0
out=$("$with_gpu" "$1" --no-scheduler --window 1s --online-load 10 --drain-limit 1ms 2>&1) || code=$?
echo "$out"
expect "^online_demo: [1-9][0-9]* of [0-9]+ requests were not finished within the drain limit of 1 ms: "
[ "$code" -eq 1 ]
