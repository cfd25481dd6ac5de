#!/usr/bin/env bash
# SIGINT while online and offline work run under the scheduler: the demo ends with 130 within seconds, and
# neither a process nor a mount nor a directory is left. Runs in a mount namespace of its own.
set -euo pipefail
demo=$1
TMPDIR=$(mktemp -d)
export TMPDIR
trap 'rm -rf --one-file-system "$TMPDIR"' EXIT

fail() {
  echo "$*" >&2
  cat "$TMPDIR/out" "$TMPDIR/error" >&2
  exit 1
}

"$demo" --load long --window 2 --drain-limit 100ms >"$TMPDIR/out" 2>"$TMPDIR/error" &
pid=$!
for _ in $(seq 300); do
  children=$(pgrep -P "$pid" | tr '\n' ' ')
  # The device, the offline and the online program.
  if grep -q 'both, scheduled' "$TMPDIR/error" && [ "$(wc -w <<<"$children")" -eq 3 ]; then break; fi
  kill -0 "$pid" || fail "it ended before it could be interrupted"
  sleep 0.1
done
sleep 1
began=$SECONDS
kill -INT "$pid"
code=0
wait "$pid" || code=$?

[ "$code" -eq 130 ] || fail "ended with code $code, not 130"
[ $((SECONDS - began)) -le 10 ] || fail "took $((SECONDS - began)) s to end"
for child in $children; do
  ! kill -0 "$child" 2>/dev/null || fail "process $child is still there"
done
! grep -q "$TMPDIR" /proc/self/mountinfo || fail "a mount is left"
[ -z "$(find "$TMPDIR" -mindepth 1 -maxdepth 1 -type d)" ] || fail "a directory is left"
echo "stopped cleanly, $((SECONDS - began)) s after the signal"
