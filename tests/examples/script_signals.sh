#!/usr/bin/env bash
# SIGINT or SIGTERM to with_simulated_gpu.sh alone reaches the command at once, once, and the script ends with
# 130 or 143 when the command has, leaving no mount and no directory. Ctrl-C on a terminal reaches the command
# once, and standard input is the command's. Killed, the script takes the device along. A process that the command
# leaves running ends before the device. Runs in a mount namespace of its own. The second argument is the library
# lost_wait.
set -euo pipefail
script=$1 lost_wait=$2
TMPDIR=$(mktemp -d)
export TMPDIR
trap 'rm -rf --one-file-system "$TMPDIR"' EXIT

fail() {
  echo "$*" >&2
  cat "$TMPDIR"/log >&2
  exit 1
}
nothing_left() {
  ! grep -q "$TMPDIR" /proc/self/mountinfo || fail "$1: a mount is left"
  [ -z "$(find "$TMPDIR" -mindepth 1 -maxdepth 1 -type d)" ] || fail "$1: a directory is left"
}

# Notes every signal, and ends a little after the first: a second one would still be noted. Not bash, which may
# take an interrupt for that of the program it waits for.
cat >"$TMPDIR/command" <<'END'
import os, signal, sys, time
noted = []
def note(number, _):
    noted.append(number)
    print(signal.Signals(number).name[3:], flush=True)
signal.signal(signal.SIGINT, note)
signal.signal(signal.SIGTERM, note)
print("ready", flush=True)
deadline = time.monotonic() + 10
while not noted and time.monotonic() < deadline:
    time.sleep(0.02)
time.sleep(0.3)
if os.path.exists(os.environ["SLUICE_KFD_DEVICE"]):
    print("the device is still there", flush=True)
sys.exit(5)
END
wait_until_says() {
  for _ in $(seq 1000); do
    ! grep -qs "$1" "$2" || return 0
    sleep 0.02
  done
  return 1
}
wait_until_ready() {
  wait_until_says ^ready "$TMPDIR/log" || fail "the command did not start"
}

for expected in INT:130 TERM:143; do
  signal=${expected%:*}
  : >"$TMPDIR/log"  # The last round's must not be taken for this one's.
  # Whatever bash starts in the background without job control ignores SIGINT.
  env --default-signal=INT "$script" python3 "$TMPDIR/command" >"$TMPDIR/log" 2>&1 &
  pid=$!
  wait_until_ready
  kill -s "$signal" "$pid"
  code=0
  wait "$pid" || code=$?
  [ "$code" -eq "${expected#*:}" ] || fail "SIG$signal: ended with $code"
  [ "$(grep -c "^$signal" "$TMPDIR/log")" -eq 1 ] || fail "SIG$signal: not noted once"
  grep -q "the device is still there" "$TMPDIR/log" || fail "SIG$signal: the device went first"
  nothing_left "SIG$signal"
done

# Symptom: it waited for ever where the signal came as the command ended: from timeout, which tells both.
code=0
LD_PRELOAD=$lost_wait timeout -s KILL 60 "$script" bash -c 'sleep 0.3; exit 42' >"$TMPDIR/log" 2>&1 || code=$?
[ "$code" -eq 143 ] || fail "SIGTERM as the command ends: ended with $code"
nothing_left "SIGTERM as the command ends"

# A terminal's Ctrl-C goes to the whole foreground group; so to the shell as well, which must be bash: dash would
# end at once. script takes $SHELL, else /bin/sh.
: >"$TMPDIR/log"
# The terminal stays until all is over: its end would be a signal, too.
{ wait_until_ready && printf '\003' && wait_until_says "ended with" "$TMPDIR/terminal"; } |
  SHELL=$BASH script -qefc "'$script' python3 '$TMPDIR/command' >'$TMPDIR/log' 2>&1; echo ended with \$?" /dev/null >"$TMPDIR/terminal" ||
  fail "Ctrl-C: script ended with $?"
grep -q "ended with 130" "$TMPDIR/terminal" || fail "Ctrl-C: $(cat "$TMPDIR/terminal")"
[ "$(grep -c '^INT' "$TMPDIR/log")" -eq 1 ] || fail "Ctrl-C: not noted once"
nothing_left Ctrl-C

[ "$(echo hello | "$script" cat 2>"$TMPDIR/log" | tail -1)" = hello ] || fail "standard input is not the command's"
code=0
"$script" bash -c 'exit 7' >"$TMPDIR/log" 2>&1 || code=$?
[ "$code" -eq 7 ] || fail "the command's exit code 7 became $code"
nothing_left "no signal"

"$script" bash -c 'echo "$PPID $SLUICE_SIM_ROOT"; exec sleep 60' >"$TMPDIR/log" 2>&1 &
for _ in $(seq 500); do
  read -r pid root < <(grep '^[0-9]' "$TMPDIR/log") && break
  sleep 0.02
done
device=$(pgrep -P "$pid" -x sluice-sim) || fail "there is no device to be seen"
command=$(pgrep -P "$pid" -x sleep) || fail "there is no command to be seen"
kill -KILL "$pid"
for _ in $(seq 250); do
  kill -0 "$device" 2>/dev/null || break
  sleep 0.02
done
kill "$command"
! kill -0 "$device" 2>/dev/null || { kill "$device" && fail "SIGKILL: the device is left"; }
[ ! -e "$root/fuse" ] || fail "SIGKILL: the device left its files"
rmdir "$root"

refuses() {  # refuses PATTERN ARGUMENT...
  code=0
  "$script" "${@:2}" >"$TMPDIR/log" 2>&1 || code=$?
  [ "$code" -eq 2 ] || fail "'${*:2}' ended with $code, not 2"
  if [ "$(wc -l <"$TMPDIR/log")" -ne 1 ] || ! grep -q -- "$1" "$TMPDIR/log"; then
    fail "'${*:2}' gives no line with '$1'"
  fi
}
refuses "COMMAND is missing"
refuses "COMMAND is missing" --profile mi300x
refuses "--profile needs " --profile
refuses "unknown option --gpu" --gpu 2 true
refuses "--gpus needs a number" --gpus
echo "signals, standard input and exit codes pass through"

# shellcheck disable=SC2016
"$script" bash -c 'setsid python3 "$TMPDIR/command" >"$TMPDIR/left" 2>&1 &
  until grep -qs ^ready "$TMPDIR/left"; do sleep 0.02; done' >"$TMPDIR/log" 2>&1
cat "$TMPDIR/left"
[ "$(grep -c TERM "$TMPDIR/left")" = 1 ] || fail "a process that was left running did not get one SIGTERM"
grep -q 'still there' "$TMPDIR/left" || fail "the device ended before a process that was left running"
nothing_left "after a process that was left running"
