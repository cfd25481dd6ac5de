#!/bin/bash
# The daemon with each policy. It attaches to offline_demo, serves a client, and leaves nothing suspended.
. "${BASH_SOURCE[0]%/*}/common.sh"
mkdir run

for policy in fixed_timeslice pointer_polling hqd_reservation fair_share priority deadline; do
  cat >node.toml <<END
[daemon]
mode = "enforce"
directory = "/tmp/run"
jobs = "/tmp/jobs"
[scheduler]
attach_after = "200ms"
[policy]
name = "$policy"
[roles]
store = ""
END
  sluice check node.toml >check.log || fail "check of $policy"
  sluice run --config node.toml >daemon.log 2>&1 &
  daemon=$!
  start_offline
  attached() { sluice why "$offline" --directory run 2>&1 | grep -q "attach process $offline: done"; }
  eventually attached
  if [ "$policy" = fixed_timeslice ]; then
    SLUICE_CLIENT_SOCKET=run/clients.sock 03_client >client.log 2>&1 || fail "03_client"
  elif [ "$policy" = pointer_polling ]; then
    AMD_QUEUE_TAG=ONLINE_AI online_demo --no-scheduler --window 4 --drain-limit 60s >online.log 2>&1 || fail "online_demo"
  fi
  sluice status --directory run >status.log || fail "status"
  case $policy in fixed_timeslice | pointer_polling)
    sluice why "$offline" --directory run >why.log || fail "why"
    grep -q 'suspended' why.log || fail "$policy suspended nothing"
    ;;
  esac
  end_offline
  kill -TERM "$daemon"
  wait "$daemon" || fail "the daemon ended with code $?"
  echo "$policy: passed"
done
