#!/usr/bin/env bash
# usage: stopped_online.sh ONLINE_DEMO OFFLINE_DEMO
# SIGINT or SIGTERM while online_demo keeps offline work off the GPU: the resumes of its end are in its counts.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../support/eventually.sh"
with_gpu=$(dirname "${BASH_SOURCE[0]}")/../../examples/with_simulated_gpu.sh

for expected in INT:130 TERM:143; do
  # shellcheck disable=SC2016
  out=$("$with_gpu" bash -c '
    AMD_QUEUE_TAG=OFFLINE_AI "$2" --load train & offline=$!
    env --default-signal=INT "$1" --attach-after 0s --wait-for-offline 1 --slice 900ms \
      --owner-lock "$SLUICE_SIM_ROOT/owner" &
    online=$!
    eventually grep -q "\"suspended_queues\":3" "$SLUICE_SIM_ROOT/sim/stats.json"
    kill -s "$3" "$online"
    code=0; wait "$online" || code=$?
    echo "ended with $code"
    kill "$offline"; wait "$offline" || true
    rm -f "$SLUICE_SIM_ROOT/owner"' bash "$1" "$2" "${expected%:*}" 2>&1)
  echo "$out"
  grep -Eq "^[1-9][0-9]* queue suspends, " <<<"$out"
  grep -Eq "^([0-9]+) queue suspends, \\1 resumes " <<<"$out"
  grep -qx "ended with ${expected#*:}" <<<"$out"
done
