#!/usr/bin/env bash
# usage: valgrind.sh SLUICE CLIENT_EXAMPLE CLIENT_PROGRAM OFFLINE_DEMO KFD_PROGRAM
# Runs programs of both C APIs under valgrind, beside the daemon and on the simulated device: a wrong access, a value that
# nobody set, memory or a descriptor that is not given back is an error.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../../support/eventually.sh"
with_gpu=$(dirname "${BASH_SOURCE[0]}")/../../../examples/with_simulated_gpu.sh

# shellcheck disable=SC2016
exec "$with_gpu" --profile mi300x-batch bash -c '
  set -euo pipefail
  sluice=$1 example=$2 program=$3 offline=$4 kfd=$5
  node=$SLUICE_SIM_ROOT/node
  mkdir "$node"
  # checked PROGRAM [ARGUMENT...]: its output, where valgrind has nothing to say.
  checked() {
    local code=0
    valgrind --quiet --error-exitcode=99 --leak-check=full --show-leak-kinds=definite,possible \
      --child-silent-after-fork=yes --track-fds=yes --log-file="$node/valgrind.%p" "$@" || code=$?
    # A descriptor that is not inherited is named with the place where it was opened.
    if [ "$code" -ne 0 ] || grep -qE "^==[0-9]+==    at 0x" "$node"/valgrind.*; then
      echo "$1 ended with $code; valgrind says:" >&2
      cat "$node"/valgrind.* >&2
      return 1
    fi
    rm "$node"/valgrind.*
  }

  printf "[daemon]\nmode = \"enforce\"\ndirectory = \"%s\"\n[roles]\nstore = \"\"\n" "$node" >"$node/sluice.toml"
  export SLUICE_CLIENT_SOCKET=$node/clients.sock SLUICE_BREAKERS=$node/breakers
  "$sluice" run --config "$node/sluice.toml" 2>"$node/log" & daemon=$!
  trainer=
  trap "kill \$daemon \$trainer 2>/dev/null || true; wait" EXIT
  eventually test -S "$SLUICE_CLIENT_SOCKET"

  out=$(checked "$example" 10)
  echo "$out"
  grep -qx "connected: online" <<<"$out"
  grep -qx "answered 10 requests" <<<"$out"

  out=$(printf "%s\n" "open $SLUICE_CLIENT_SOCKET 1" "wait 50" begin "hammer 3 1000" end fork_and_close status close |
    checked "$program")
  echo "$out"
  grep -q "connected=1" <<<"$out"
  [ "$(tail -n 1 <<<"$out")" = 0 ]  # close
  kill -TERM "$daemon"
  wait "$daemon"

  "$offline" --load train >/dev/null & trainer=$!
  has_queues() { [ "$(ls "$SLUICE_KFD_SYSFS/proc/$trainer/queues" 2>/dev/null | wc -l)" -ge 3 ]; }
  eventually has_queues
  checked "$kfd" "$trainer"
  kill "$trainer"
  wait "$trainer"
' bash "$@"
