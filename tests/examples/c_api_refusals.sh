#!/usr/bin/env bash
# usage: c_api_refusals.sh EXAMPLE...
# An example of the C API says in one line why it suspends nothing: of a process that does not use the
# driver, which stays so, and of one that has no queue.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../support/eventually.sh"
with_gpu=$(dirname "${BASH_SOURCE[0]}")/../../examples/with_simulated_gpu.sh

# shellcheck disable=SC2016
"$with_gpu" bash -c '
  set -euo pipefail
  sleep 60 & stranger=$!
  bash -c "exec 3<>\"\$SLUICE_KFD_DEVICE\"; while :; do sleep 1; done" & idle=$!
  trap "kill $stranger $idle 2>/dev/null || true" EXIT
  eventually test -e "$SLUICE_KFD_SYSFS/proc/$idle"
  says() {  # PID SENTENCE EXAMPLE...
    pid=$1 sentence=$2 code=0
    shift 2
    said=$("$@" "$pid" 100 2>&1) || code=$?
    echo "$said"
    [ "$code" = 1 ] && [ "$(wc -l <<<"$said")" = 1 ] && [[ $said == *": "*"process $pid $sentence" ]]
  }
  entry=$SLUICE_KFD_SYSFS/proc/$stranger
  says $stranger "does not use the AMD compute driver (no $entry)" "$@"
  [ ! -e "$entry" ]
  says $idle "has no compute queue; nothing was suspended" "$@"' bash "$@"
