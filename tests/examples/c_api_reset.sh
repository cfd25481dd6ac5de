#!/usr/bin/env bash
# usage: c_api_reset.sh OFFLINE_DEMO EXAMPLE...
# An example of the C API says when what it held was lost, by a reset of the GPU meanwhile, instead of "resumed".
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../support/eventually.sh"
with_gpu=$(dirname "${BASH_SOURCE[0]}")/../../examples/with_simulated_gpu.sh

# shellcheck disable=SC2016
out=$("$with_gpu" bash -c '
  set -euo pipefail
  "$1" --load train & offline=$!
  shift
  trap "kill $offline 2>/dev/null || true" EXIT
  has_queues() { [ "$(ls "$SLUICE_KFD_SYSFS/proc/$offline/queues" 2>/dev/null | wc -l)" -ge 3 ]; }
  eventually has_queues
  said=$(mktemp)
  PYTHONUNBUFFERED=1 stdbuf -oL "$@" "$offline" 1500 >"$said" & example=$!
  has_said() { grep -q "^suspended" "$said" || ! kill -0 "$example" 2>/dev/null; }
  eventually has_said
  echo "reset 51110" >"$SLUICE_SIM_ROOT/sim/control"
  code=0; wait "$example" || code=$?
  cat "$said" && rm "$said"
  echo "ended with $code"' bash "$@" 2>&1) || { echo "$out"; exit 1; }
echo "$out"
grep -Eq '^suspended .*for 1500 ms$' <<<"$out"
grep -qx 'ended with 1' <<<"$out"
if grep -qx 'resumed' <<<"$out"; then exit 1; fi
grep -Eq '^(02_c_api|suspend.py): .*(was reset while the process was held|has ended|is not held)' <<<"$out"
