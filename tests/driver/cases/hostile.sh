#!/bin/bash
# usage: hostile.sh [SEED]
# Offline processes that do not cooperate: sluice refuses them with a reason or loses only them, a process beside them
# loses no kernel, and nothing stays suspended.
. "${BASH_SOURCE[0]%/*}/common.sh"

# refused PATTERN: sluice does not suspend `process`, and its reason has this text.
refused() {
  local code=0
  sluice suspend "$process" --for 100ms >suspend.log 2>&1 || code=$?
  [ "$code" -ne 0 ] || fail "sluice suspended process $process"
  grep -q "$1" suspend.log || fail "no reason '$1'"
}
# released: ends `sluice suspend`, however it regards what the process has done meanwhile.
released() {
  sluice resume "$process" >resume.log 2>&1 || true
  wait "$holder" || true
  eventually maps "$1"
}

start_target beside 1 2000
eventually maps 1
start_calls
with_queue=("a open" "a acquire gpu=0" "a runtime 1" "a queue")

echo "it is traced by another process"
party "${with_queue[@]}" "c seize @a"
refused traced
maps 2 || fail "a queue was unmapped"

echo "it debugs itself, and goes on to do so"
party "${with_queue[@]}" "a enable @a"
refused 'debug session'
call "a snapshot @a"
call "a suspend @a 0"
[ "$result" = "1 [0]" ] || fail "its own suspend: $result"
call "a resume @a 0"
[ "$result" = "1 [0]" ] || fail "its own resume: $result"
maps 2 || fail "a queue was unmapped"

echo "it resumes its own queues"
party "${with_queue[@]}"
hold "$process"
call "a resume @a all"
eventually maps 2
released 2

echo "it ends the session"
party "${with_queue[@]}"
hold "$process"
call "a disable @a"
eventually maps 2
released 2
grep -qE 'session with process .* has ended|runs again' suspend.log || fail "sluice does not notice the end of the session"

echo "it disables its runtime"
party "${with_queue[@]}"
hold "$process"
call "a & runtime 0"
call "a join"
[ "$result" = 0 ] || fail "RUNTIME_ENABLE: $result"
released 2

echo "it creates a queue and destroys another one while it is suspended"
party "${with_queue[@]}"
hold "$process"
call "a queue"
eventually maps 1
call "a & destroy 0"
call "a pending"
[ "$result" = blocked ] || fail "the queue of a suspended process was destroyed"
released 2
call "a join"
[ "$result" = 0 ] || fail "DESTROY_QUEUE: $result"

echo "beside a daemon, it ends the session again and again"
write_configuration 'max_suspend = "60s"'
party "${with_queue[@]}"
start_daemon "$process"
agent=$(pgrep -x sluice-agent)
begin_online
for ((i = 0; i < 3; i++)); do
  eventually maps 0
  call "a disable @a"
  eventually maps 1
done
end_online
eventually maps 2
[ "$(pgrep -x sluice-agent)" = "$agent" ] || fail "the process has ended the agent"

echo "beside the daemon, it makes random driver calls"
seed=${1-1}
party "${with_queue[@]}"
eventually attached "$process"
begin_online
call "a noise 1000 $process seed=$seed"
[ "$result" = 1000 ] || fail "noise: $result"
end_online
echo "kill a" >&"$calls"
eventually maps 1
[ "$(pgrep -x sluice-agent)" = "$agent" ] || fail "the process has ended the agent"
sluice breaker list >breaker.log
grep -q 'no breaker is open' breaker.log || fail "a breaker is open: $(cat breaker.log)"
kill -TERM "$daemon"
wait "$daemon" || fail "the daemon ended with code $?"
end_target beside
eventually maps 0
