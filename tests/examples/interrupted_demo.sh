#!/usr/bin/env bash
# SIGINT while online and offline work run under the scheduler: the demo ends with 130 within seconds, and
# neither a process nor a mount nor a directory is left. The same, at once, for SIGINT, SIGTERM and SIGHUP while
# it starts, and when it ends by itself. Runs in a mount namespace of its own.
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

nothing_left() {
  ! grep -q "$TMPDIR" /proc/self/mountinfo || fail "$1: a mount is left"
  [ -z "$(find "$TMPDIR" -mindepth 1 -maxdepth 1 -type d)" ] || fail "$1: a directory is left"
}

# One in the first milliseconds ended it only after 5 s: the device, just forked, had not seen it. SIGHUP left
# everything behind.
shell=$(readlink "/proc/$$/exe")
set -m  # What bash starts in the background ignores SIGINT without it.
for delay in 0.003 0.004 0.005 0.006 0.008 0.01 0.015 0.03 0.1; do
  for expected in INT:130 TERM:143 HUP:129; do
    began=${EPOCHREALTIME//[^0-9]/}
    "$demo" >"$TMPDIR/out" 2>"$TMPDIR/error" &
    pid=$!
    # Before it is the demo, a signal would run this shell's trap instead.
    while [ "$(readlink "/proc/$pid/exe")" = "$shell" ]; do :; done
    sleep "$delay"
    kill -s "${expected%:*}" "$pid"
    code=0
    wait "$pid" 2>/dev/null || code=$?
    [ "$code" -eq "${expected#*:}" ] || fail "SIG${expected%:*} after $delay s: ended with code $code"
    passed=$(((${EPOCHREALTIME//[^0-9]/} - began) / 1000))
    [ "$passed" -lt 5000 ] || fail "SIG${expected%:*} after $delay s: took $passed ms to end"
    nothing_left "SIG${expected%:*} after $delay s"
  done
done
set +m

# A closed terminal: what it still prints fails, which ended it by an exception.
script -qec "exec '$demo' --load long" /dev/null >"$TMPDIR/out" 2>"$TMPDIR/error" </dev/null &
terminal=$!
pid=
for _ in $(seq 1000); do
  if grep -q 'online alone' "$TMPDIR/out" && pid=$(pgrep -P "$terminal" -x sluice-demo); then break; fi
  sleep 0.02
done
[ -n "$pid" ] || fail "closed terminal: the demo did not reach 'online alone' within 20 s"
kill -KILL "$terminal"
wait "$terminal" 2>/dev/null || true
for _ in $(seq 1000); do
  kill -0 "$pid" 2>/dev/null || break
  sleep 0.02
done
! kill -0 "$pid" 2>/dev/null || fail "closed terminal: it goes on"
nothing_left "closed terminal"

mkdir "$TMPDIR/there"
for root in there made; do
  "$demo" --load long --window 300ms --drain-limit 100ms --root "$TMPDIR/$root" >"$TMPDIR/out" 2>"$TMPDIR/error" ||
    fail "--root $root: ended with code $?"
done
rmdir "$TMPDIR/there" || fail "--root there: something is left in it"
nothing_left "--root made"

"$demo" --root "$TMPDIR/made" --load long --window 2 --drain-limit 100ms >"$TMPDIR/out" 2>"$TMPDIR/error" &
pid=$!
ready=
for _ in $(seq 600); do
  # The device, the offline and the online program; none at first, which pgrep calls a failure.
  children=$(pgrep -P "$pid" | tr '\n' ' ') || true
  # Only the scheduler suspends queues, so the two programs run under it.
  if grep -q 'both, scheduled' "$TMPDIR/error" && [ "$(wc -w <<<"$children")" -eq 3 ] &&
    grep -q '"queue_suspends": *[1-9]' "$TMPDIR/made/sim/stats.json"; then
    ready=yes
    break
  fi
  kill -0 "$pid" || fail "it ended before it could be interrupted"
  sleep 0.1
done
[ -n "$ready" ] || fail "within 60 s the scheduler did not suspend the offline program"
began=$SECONDS
kill -INT "$pid"
code=0
wait "$pid" || code=$?

[ "$code" -eq 130 ] || fail "ended with code $code, not 130"
[ $((SECONDS - began)) -le 10 ] || fail "took $((SECONDS - began)) s to end"
for child in $children; do
  ! kill -0 "$child" 2>/dev/null || fail "process $child is still there"
done
nothing_left "SIGINT"
echo "stopped cleanly, $((SECONDS - began)) s after the signal"
