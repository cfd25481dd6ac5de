#!/usr/bin/env bash
# usage: c_api.sh OFFLINE_DEMO EXAMPLE...
# Runs an example of the C API, as examples/README.md says to (for longer), on a process that works on a
# simulated GPU: while it is suspended the GPU finishes nothing of its work, afterwards it goes on, and it keeps its
# books right to the end.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../support/eventually.sh"
top=$(dirname "${BASH_SOURCE[0]}")/../..
with_gpu=$top/examples/with_simulated_gpu.sh
example=$(basename "${@: -1}")
grep -Eq "^([A-Z_]+=[^ ]+ )?[a-z/]+/([a-z0-9_]+/)?$example PID 500$" "$top/examples/README.md" ||
  { echo "the page does not say '$example PID 500'" && exit 1; }

# shellcheck disable=SC2016
out=$("$with_gpu" bash -c '
  set -euo pipefail
  "$1" --load train & offline=$!
  shift
  trap "kill $offline 2>/dev/null || true" EXIT
  suspended() {
    grep -o "\"pid\":$offline,[^}]*" "$SLUICE_SIM_ROOT/sim/stats.json" | grep -o "\"suspended_queues\":[0-9]*"
  }
  has_queues() { [ "$(ls "$SLUICE_KFD_SYSFS/proc/$offline/queues" 2>/dev/null | wc -l)" -ge 3 ]; }
  eventually has_queues
  "$@" "$offline" 1500 & example=$!
  is_held() {
    seen=$(suspended)
    [ "$seen" = "\"suspended_queues\":3" ] || ! kill -0 "$example" 2>/dev/null
  }
  eventually is_held
  echo "while it is held: $seen"
  wait "$example"
  echo "afterwards: $(suspended)"
  kill "$offline"
  code=0; wait "$offline" || code=$?
  echo "the offline process ended with $code"' bash "$@" 2>&1) || { echo "$out"; exit 1; }
echo "$out"
grep -qx 'while it is held: "suspended_queues":3' <<<"$out"
grep -qx 'afterwards: "suspended_queues":0' <<<"$out"
grep -Eqx 'process [0-9]+, queue 2 on GPU 51110: priority [0-9]+, [0-9]+ bytes' <<<"$out"
grep -Eq '^suspended .*for 1500 ms$' <<<"$out"
grep -qx 'resumed' <<<"$out"
grep -qx "the offline process ended with 0" <<<"$out"  # else its books were wrong
