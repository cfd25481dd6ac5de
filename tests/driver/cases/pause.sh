#!/bin/bash
# A process that uses the driver without ROCm's debug support: with criu_pause, sluice pauses it as a whole. If the agent
# is killed, its guardian unpauses the process. If all of sluice is killed, an administrator does.
. "${BASH_SOURCE[0]%/*}/common.sh"
write_configuration 'max_suspend = "60s"'

# kill_everything: the daemon, the agent and the guardian, while there is online work.
kill_everything() {
  begin_online
  eventually maps 0
  parts=("$daemon" "$(pgrep -x sluice-agent)" "$(pgrep -x sluice-guardian)")
  # What is stopped cannot react to the end of the others.
  kill -STOP "${parts[@]}"
  kill -KILL "${parts[@]}"
  wait "$daemon" 2>/dev/null || [ $? -eq 137 ] || fail "the daemon ended before it was killed"
  end_online
  eventually all_ended
}
all_ended() { ! kill -0 "${parts[@]}" 2>/dev/null; }

start_target target 2 2000 no-runtime
eventually maps 2

echo "without criu_pause, sluice does not suspend it"
if sluice suspend "${pid[target]}" --for 100ms >suspend.log 2>&1; then fail "suspended a process without runtime"; fi
grep -q 'criu_pause' suspend.log || fail "the refusal does not name criu_pause"

echo "paused while there is online work"
start_daemon "${pid[target]}"
begin_online
eventually maps 0
end_online
eventually maps 2

echo "the agent is killed: the guardian unpauses it"
begin_online
eventually maps 0
ask target completed
before=$answer
pkill -KILL -x sluice-agent
eventually completes_more target "$before"
end_online
# What a new agent does if there was no guardian.
! grep -q 'ended without resuming' daemon.log || fail "the guardian did not unpause the process"
eventually maps 2

echo "the daemon, the agent and the guardian are killed: sluice rescue"
eventually pgrep -x sluice-agent >/dev/null
eventually pgrep -x sluice-guardian >/dev/null
kill_everything
maps 0 || fail "the driver unpaused the process"
sluice rescue --directory run >rescue.log 2>&1 || fail "sluice rescue: $(cat rescue.log)"
eventually maps 2

echo "the daemon, the agent and the guardian are killed: the next daemon unpauses it"
start_daemon "${pid[target]}"
kill_everything
start_daemon "${pid[target]}"
eventually maps 2
eventually grep -q 'ended without resuming 1 process; now resumed: 1' daemon.log
kill -TERM "$daemon"
wait "$daemon" || fail "the daemon ended with code $?"
end_target target
eventually maps 0
