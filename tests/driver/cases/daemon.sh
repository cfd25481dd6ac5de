#!/bin/bash
# The daemon with each policy. It attaches to offline_demo, serves a client, and leaves nothing suspended.
. "${BASH_SOURCE[0]%/*}/common.sh"
mkdir run

policies=$(sluice policy 2>/dev/null | sed -n 's/^\([a-z_]*\): .*/\1/p')
grep -qx fixed_timeslice <<<"$policies" || fail "sluice policy lists no policies"
for policy in $policies; do
  case $policy in
    shadow) parameters='of = "fixed_timeslice"' ;;
    slo) parameters='request.p99 = "100ms"' ;;
    *) parameters= ;;
  esac
  cat >node.toml <<END
[daemon]
mode = "enforce"
directory = "/tmp/run"
jobs = "/tmp/jobs"
[scheduler]
attach_after = "200ms"
[policy]
name = "$policy"
$parameters
[roles]
store = ""
END
  sluice check node.toml >check.log || fail "check of $policy"
  sluice run --config node.toml >daemon.log 2>&1 &
  daemon=$!
  start_offline
  attached() { sluice why "$offline" --directory run 2>&1 | grep -q "attach process $offline: done"; }
  eventually attached
  if [ "$policy" = pointer_polling ]; then
    AMD_QUEUE_TAG=ONLINE_AI online_demo --no-scheduler --window 4 --drain-limit 60s >online.log 2>&1 || fail "online_demo"
  else
    SLUICE_CLIENT_SOCKET=run/clients.sock 03_client >client.log 2>&1 || fail "03_client"
  fi
  sluice status --directory run >status.log || fail "status"
  sluice why "$offline" --directory run >why.log || fail "why"
  # hqd_reservation and shadow suspend nothing here, and slo acts on marked spans, which 03_client does not have.
  case $policy in
    hqd_reservation | shadow | slo) ;;
    *) grep -q 'suspended' why.log || fail "$policy suspended nothing" ;;
  esac
  end_offline
  kill -TERM "$daemon"
  wait "$daemon" || fail "the daemon ended with code $?"
  echo "$policy: passed"
done
