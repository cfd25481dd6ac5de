#!/bin/bash
# Processes that are killed or stopped: no kernel is lost, and no queue stays suspended.
. "${BASH_SOURCE[0]%/*}/common.sh"

# Whether the queue of offline_demo is not mapped.
held() { ! grep -q "^pasid $(printf %x "$(cat "/sys/class/kfd/kfd/proc/$offline/pasid")") " /sys/kernel/debug/sluice*/firmware; }

no_agent() { ! pgrep -x sluice-agent >/dev/null; }

# schedule: starts online_demo, which embeds a scheduler; sets `online`. Returns after its first suspend.
schedule() {
  eventually no_agent  # of the scheduler before
  online_demo --wait-for-offline 1 --attach-after 200ms --window 3 --drain-limit 60s >online.log 2>&1 &
  online=$!
  eventually pgrep -x sluice-agent >/dev/null
  eventually held
}

echo "the agent is killed: the scheduler starts another one"
start_offline
schedule
first=$(pgrep -x sluice-agent)
kill -KILL "$first"
another() { pgrep -x sluice-agent | grep -qvx "$first"; }
eventually another
wait "$online" || fail "online_demo ended with code $?"
grep -q ' 0 unfinished; ' online.log || fail "requests were not finished"
eventually maps 1
end_offline

echo "the scheduler is killed"
start_offline
schedule
kill -KILL "$online"
eventually maps 1
end_offline

echo "the agent is stopped: its guardian ends it, and the scheduler starts another one"
start_offline
schedule
first=$(pgrep -x sluice-agent)
kill -STOP "$first"
eventually another
wait "$online" || fail "online_demo ended with code $?"
eventually maps 1
end_offline

echo "a target that is stopped while it is suspended"
start_offline
hold "$offline"
kill -STOP "$offline"
sluice resume "$offline" >resume.log || fail "resume"
wait "$holder" || fail "suspend ended with code $?"
eventually maps 1
kill -CONT "$offline"
end_offline
