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
# party_with_queue LINE...: a new party, after the queues of the one before are gone.
party_with_queue() {
  call "case party"
  eventually maps 1
  party "a open" "a acquire gpu=0" "a runtime 1" "a queue" "$@"
  eventually maps 2
}
# released COUNT: ends `sluice suspend`, which has done its work or reports what the process has done; then so many
# queues are mapped.
released() {
  local code=0
  sluice resume "$process" >resume.log 2>&1 || code=$?
  [ "$code" -le 1 ] || fail "sluice resume ended with code $code"
  wait "$holder" || code=$?
  [ "$code" -le 1 ] || fail "sluice suspend ended with code $code"
  eventually maps "$1"
}

start_target beside 1 2000
eventually maps 1
start_calls

echo "it is traced by another process"
party_with_queue "c seize @a"
refused traced
maps 2 || fail "a queue was unmapped"

echo "it debugs itself, and goes on to do so"
party_with_queue "a enable @a"
refused 'debug session'
call "a snapshot @a"
call "a suspend @a 0"
[ "$result" = "1 [0]" ] || fail "its own suspend: $result"
call "a resume @a 0"
[ "$result" = "1 [0]" ] || fail "its own resume: $result"
maps 2 || fail "a queue was unmapped"

echo "it resumes its own queues"
party_with_queue
hold "$process"
call "a resume @a all"
eventually maps 2
released 2

echo "it ends the session"
party_with_queue
hold "$process"
call "a disable @a"
eventually maps 2
eventually grep -q "debug session with process $process has ended" suspend.log
released 2

echo "a tracer of it takes the session over: sluice resumes it when the tracer has ended"
party_with_queue
hold "$process"
call "c open"
call "c seize @a"
call "c enable @a"
[[ $result == EALREADY* ]] || fail "ENABLE of a tracer: $result"
kill -INT "$holder"
eventually grep -q "cannot resume process $process .*has taken its debug session over" suspend.log
kill -0 "$holder" || fail "sluice suspend ended while the process was suspended"
maps 1 || fail "the driver resumed a session that was taken over"
call "kill c"
eventually maps 2
released 2

echo "its main thread ends"
party_with_queue
hold "$process"
call "a end_main_thread"
sluice resume "$process" >resume.log 2>&1 || fail "resume of a process without its main thread"
released 2

echo "it disables its runtime"
party_with_queue
hold "$process"
call "a & runtime 0"
call "a join"
[ "$result" = 0 ] || fail "RUNTIME_ENABLE: $result"
released 2

echo "it creates a queue and destroys another one while it is suspended"
party_with_queue
hold "$process"
call "a queue"
eventually maps 1
call "a & destroy 0"
call "a pending"
[ "$result" = blocked ] || fail "the queue of a suspended process was destroyed"
released 2
call "a join"
[ "$result" = 0 ] || fail "DESTROY_QUEUE: $result"

# A gfx906 has one debugged process at a time, which is the one beside.
if grep -qs '^gfx_target_version 90006$' /sys/class/kfd/kfd/topology/nodes/*/properties; then
  call "case end"
  end_target beside
  exit
fi

echo "beside a daemon, it ends the session again and again"
write_configuration 'max_suspend = "60s"'
party_with_queue
# attached_again COUNT: at least so often.
attached_again() { [ "$(grep -c "process $process: attached; sluice schedules it again" daemon.log)" -ge "$1" ]; }
# The agent's children at its start have its name, too.
agent_of_daemon() { sed -n '2s/ .*//p' run/owner; }
start_daemon "$process"
agent=$(agent_of_daemon)
begin_online
for ((i = 0; i < 3; i++)); do
  eventually maps 0
  call "a disable @a"
  eventually attached_again $((i + 1))
done
end_online
eventually maps 2
[ "$(agent_of_daemon)" = "$agent" ] && kill -0 "$agent" || fail "the process has ended the agent"

echo "beside the daemon, it begins a session of its own, and the agent is killed: the other process runs again"
party_with_queue
eventually attached "$process"
begin_online
eventually maps 0
ask beside completed
before=$answer
call "a disable @a"
call "a enable @a"
[[ $result == 0* ]] || fail "its own ENABLE: $result"
eventually maps 1
eventually grep -q "cannot manage process $process: another program has a debug session with it" daemon.log
kill -KILL "$agent"
eventually completes_more beside "$before"
end_online
another_agent() { [[ $(agent_of_daemon) =~ ^[0-9]+$ ]] && [ "$(agent_of_daemon)" != "$agent" ]; }
eventually another_agent
agent=$(agent_of_daemon)

echo "beside the daemon, it makes random driver calls"
seed=${1-1}
party_with_queue
eventually attached "$process"
begin_online
eventually maps 0
for ((i = 0; i < 10; i++)); do
  call "a noise 100 $process seed=$seed$i"
  [ "$result" = 100 ] || fail "noise: $result"
done
end_online
echo "kill a" >&"$calls"
eventually maps 1
[ "$(agent_of_daemon)" = "$agent" ] && kill -0 "$agent" || fail "the process has ended the agent"
sluice breaker list >breaker.log
grep -q 'no breaker is open' breaker.log || fail "a breaker is open: $(cat breaker.log)"
kill -TERM "$daemon"
wait "$daemon" || fail "the daemon ended with code $?"
end_target beside
eventually maps 0
