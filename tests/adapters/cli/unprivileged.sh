#!/usr/bin/env bash
# usage: with_simulated_gpu.sh in_place.sh unprivileged.sh BIN_DIR LIB_DIR
# What adapters/cli/DAEMON.md says to type, and the daemon as the unit runs it: as a user of its own without capabilities, beside an agent that has
# CAP_SYS_PTRACE by its file (in the end more); offline work is another user's. The simulated GPU lies at /dev/kfd, for an
# agent with file capabilities takes no other.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../../support/eventually.sh"
bin=$1 lib=$2
unset SLUICE_KFD_DEVICE SLUICE_KFD_SYSFS SLUICE_KFD_DEBUGFS
source=$(realpath "$(dirname "${BASH_SOURCE[0]}")/../../..")
# block N: the page's N-th block of commands.
block() {
  awk -v wanted="$1" '/^```$/ {inside=0} inside && n == wanted {print} /^```sh$/ {inside=1; n++}' \
    "$source/adapters/cli/DAEMON.md"
}
skip() { echo "skipped: $1"; exit 77; }
fail() { echo "FAILED: $1"; [ ! -e "$log" ] || cat "$log"; exit 1; }
for program in setcap setpriv python3; do
  command -v "$program" >/dev/null || skip "no $program here"
done
daemon_user=(setpriv --reuid=64001 --regid=64001 --groups=64002 --bounding-set=-all,+sys_ptrace
  --inh-caps=-all)
work_user=(setpriv --reuid=64003 --regid=64003 --groups=64002 --bounding-set=-all --inh-caps=-all)

# In this mount namespace only.
mount -t tmpfs -o mode=755 sluice-test /run
log=/run/log
mkdir /run/bin
for program in sluice sluice-epoll sluice-agent offline_demo; do cp "$bin/$program" /run/bin/; done
cp "$lib/libsluice_client.so" /run/bin/
# As systemd-tmpfiles makes them, and the agent as OPERATING.md says.
install -d -m 755 -o 64001 -g 64001 /run/sluice
install -m 660 -o 64001 -g 64001 /dev/null /run/sluice/owner
install -D -m 644 -t /run/adapters/node "$source/adapters/node/sluice.toml"
# The second is the packages': tests/packages.sh.
[ "$(block 3 | grep -c .)" = 8 ] && block 2 | grep -q '^apt-get ' && [ -z "$(block 4)" ] || fail "commands that this test does not know"
block 3 | sed -n '3,7p' | sed 's|/usr/local/bin|/run/bin|; s|root:sluice|root:64001|
  s|/usr/local/share/doc/sluice|/run|; s|/etc/sluice|/run/etc|' >/run/commands
grep -q '^setcap ' /run/commands
bash -euo pipefail /run/commands || skip "no file capabilities on a tmpfs here"
[ "$(diff /run/adapters/node/sluice.toml /run/etc/sluice.toml | grep '^[<>]' | cut -d '#' -f 1 | tr -s ' ')" = \
  '< socket_group = "" 
> socket_group = "sluice-clients" 
< jobs = "log" 
> jobs = "/var/log/sluice/jobs" ' ] || fail "another configuration is installed"
pids=()
trap 'kill -KILL "${pids[@]}" 2>/dev/null || true' EXIT
# offline_work COMMAND...: by that command, in the background.
offline_work() {
  SLUICE_KFD_DEVICE=/dev/kfd SLUICE_KFD_SYSFS=/sys/class/kfd/kfd AMD_QUEUE_TAG=OFFLINE_AI \
    "$@" /run/bin/offline_demo --load train >/dev/null &
  offline=$!
  pids+=("$offline")
}
# It observes: checked, run, and ended. There is work that would want online queues watched.
offline_work "${daemon_user[@]}"
(cd /run && PATH=/run/bin:$PATH && eval "$(block 1 | sed -n 1p)" >checked &&
  exec "${daemon_user[@]}" bash -c "PATH=$PATH; exec $(block 1 | sed -n 2p)" 2>observed) &
observer=$!
pids+=("$observer")
eventually grep -qs "mode observe: it attaches to no process" /run/observed || fail "it does not observe"
# What it cannot see as that user, it says.
eventually grep -q "cannot read /sys/kernel/debug/kfd/mqds: [A-Z][a-z ]*; sluice detects online work only if" /run/observed ||
  fail "it does not say that it sees no pointers"
grep -q "^adapters/node/sluice.toml: ok: mode observe" /run/checked || fail "its example is not ok"
kill -TERM "$observer"
wait "$observer" || fail "observing ended with code $?"
kill -KILL "$offline"
wait "$offline" || true
cat >/run/enforce.toml <<END
[daemon]
mode = "enforce"
socket_group = 64002
[scheduler]
attach_after = "50ms"
attach_at_latest = "100ms"
max_suspend = "60s"
offline_floor = 0
[policy]
name = "fixed_timeslice"
[roles]
store = "/run/roles"
may_claim_online = { users = ["root"] }
END
chmod 644 /run/enforce.toml
# The agent has rights that the daemon has not, and so goes by the node's own configuration, which is root's.
cp -a /etc /run/etc.copy
install -d -m 755 /run/etc.copy/sluice
install -m 644 /run/enforce.toml /run/etc.copy/sluice/sluice.toml
mount --bind /run/etc.copy /etc
# A group that is not one of the daemon's.
sed 's/^socket_group.*/socket_group = 64005/' /run/enforce.toml >/run/strange.toml
code=0
timeout 20 "${daemon_user[@]}" /run/bin/sluice run --config /run/strange.toml 2>$log || code=$?
[ $code = 1 ] || fail "with a strange group it ended with code $code"
grep -q "clients' socket /run/sluice/clients.sock: cannot set group 64005 (Operation not permitted): user 64001, who runs this program, is not a member; run usermod -aG" $log ||
  fail "it does not say which group"

offline_work "${work_user[@]}"
tracer() { sed -n 's/^TracerPid:\t//p' "/proc/$offline/status"; }

# A daemon that says otherwise, of a process that the node's configuration does not call offline.
sed '/^store/a pids = [{pid = '"$offline"', role = "offline"}]' /run/enforce.toml >/run/hostile.toml
# As under systemd, whose journal wants priorities and has times of its own.
JOURNAL_STREAM=$(stat -c '%d:%i' $log) "${daemon_user[@]}" /run/bin/sluice run --config /run/hostile.toml 2>$log &
daemon=$!
pids+=("$daemon")
eventually grep -q "refused to attach to process $offline: it is not offline according to the agent's own rules in /etc/sluice/sluice.toml (1 refused so far)" $log ||
  fail "the agent attaches to what its host names"
[ "$(tracer)" = 0 ] || fail "it is traced all the same"
grep -q '^<6>\[info\] this program owns the node' $log || fail "the journal gets no priorities"
kill -TERM "$daemon"
wait "$daemon" || fail "the daemon ended with code $?"

"${daemon_user[@]}" /run/bin/sluice run --config /run/enforce.toml 2>$log &
daemon=$!
pids+=("$daemon")
eventually grep -qs "this program owns the node" $log || fail "the daemon does not own the node"
[ "$(stat -c '%a %g' /run/sluice/clients.sock)" = "660 64002" ] || fail "whose is the clients' socket?"
# Who may be a client may not therefore look at everybody.
[ "$(stat -c '%a %g' /run/sluice/control.sock)" = "660 64001" ] || fail "whose is the control socket?"
if "${work_user[@]}" /run/bin/sluice status >/dev/null 2>/run/denied; then fail "a client may look"; fi
grep -q "permission denied; run this command as .*control_group" /run/denied || fail "it does not say what to do"

capabilities() { sed -n 's/^CapEff:\t//p' "/proc/$1/status"; }
[ "$(capabilities "$daemon")" = 0000000000000000 ] || fail "the daemon has capabilities"
agent=$(sed -n '2s/ .*//p' /run/sluice/owner)
[ "$(capabilities "$agent")" = 0000000000080000 ] || fail "the agent has not just CAP_SYS_PTRACE"
grep -q '^Seccomp:.2$' "/proc/$agent/status" || fail "the agent has no filter"
grep -q '^NoNewPrivs:.1$' "/proc/$agent/status" || fail "the agent could gain privileges"

# Another user's environment is not the daemon's to read: its tag counts for nothing...
eventually grep -q "cannot read the environment of 1 process that uses a GPU (for example process $offline, offline_demo" $log ||
  fail "it does not report that it cannot read the process's tag"
[ "$(tracer)" = 0 ] || fail "it is traced although the daemon cannot read its tag"
# ... but an operator's word does.
/run/bin/sluice role set --store /run/roles --pid "$offline" offline >/dev/null
traced() { [ "$(tracer)" != 0 ]; }
eventually traced || fail "the offline process is not attached"

python3 - /run/bin/libsluice_client.so /run/sluice/clients.sock <<'END' &
import ctypes, sys, time
library = ctypes.CDLL(sys.argv[1])
class options(ctypes.Structure):
    _fields_ = [("size", ctypes.c_uint32), ("role", ctypes.c_uint32), ("socket", ctypes.c_char_p),
                ("name", ctypes.c_char_p), ("gpus", ctypes.c_void_p), ("gpu_count", ctypes.c_size_t),
                ("targets", ctypes.c_int64 * 3)]
how = options(size=ctypes.sizeof(options), socket=sys.argv[2].encode())
client = ctypes.c_void_p()
assert library.sluice_client_open(ctypes.byref(how), ctypes.byref(client)) == 0
assert library.sluice_client_begin(client) == 0
time.sleep(100)
END
online=$!
pids+=("$online")
held() { grep -q "{\"pid\":$offline,[^}]*\"suspended_queues\":[1-9]" "$SLUICE_SIM_ROOT/sim/stats.json"; }
runs() { ! held; }
eventually held || fail "the offline process is not suspended"
kill -TERM "$daemon"
wait "$daemon" || fail "the daemon ended with code $?"
eventually runs || fail "the offline process stands still"

# Two failures at once, which nobody finds out; what tests/faults/README.md says to type then.
start() {
  "$@" /run/bin/sluice run --config /run/enforce.toml 2>$log &
  daemon=$!
  pids+=("$daemon")
}
start "${daemon_user[@]}"
eventually held || fail "the next daemon does not suspend the offline process"
stopped_while_held() {
  agent=$(sed -n '2s/ .*//p' /run/sluice/owner)
  kill -STOP "$agent" "$daemon"
  sleep 0.1
  held && return
  kill -CONT "$agent" "$daemon"
  return 1
}
eventually stopped_while_held || fail "it is never held"
kill -KILL "$daemon"
wait "$daemon" || true
start "${daemon_user[@]}"
sleep 1.5  # More than the lease and 200 ms.
held || fail "somebody has found it out"
eval "$(grep -o 'kill -KILL \$(sed [^`]*' "$source/tests/faults/README.md")"
eventually runs || fail "what the page says to type does not help"
eventually grep -qs "this program owns the node" $log || fail "the follower does not take over"
kill -TERM "$daemon"
wait "$daemon" || fail "the follower ended with code $?"
kill -KILL "$online"
wait "$online" || true

# Tags, as the page says: with transparent.conf for the daemon, and not enough for the agent, then enough.
rm /run/roles
sed -i '/^may_claim_online/a may_claim_offline = { users = [64003] }' /run/enforce.toml
install -m 644 /run/enforce.toml /etc/sluice/sluice.toml
# of_unit KEY FILE: as setpriv wants capabilities.
of_unit() { sed -n "s/^$1=//p" "$source/adapters/cli/systemd/$2" | tr 'A-Z ' 'a-z\n' | sed 's/^cap_/+/' | paste -sd,; }
ambient=$(of_unit AmbientCapabilities transparent.conf)
transparent=(setpriv --reuid=64001 --regid=64001 --groups=64002
  --bounding-set="-all,$(of_unit CapabilityBoundingSet sluice.service.in)" --inh-caps="-all,$ambient" --ambient-caps="-all,$ambient")
start "${transparent[@]}"
eventually grep -q "refused to attach to process $offline: it is not offline according to the agent's own rules in /etc/sluice/sluice.toml: its environment, which may claim a role, cannot be read (Permission denied)" $log ||
  fail "the agent does not say that it sees no tags"
[ "$(tracer)" = 0 ] || fail "it is traced without a reason"
kill -TERM "$daemon"
wait "$daemon" || fail "the daemon ended with code $?"
eval "$(grep -o 'setcap [a-z_,]*+ep /usr/local/bin/sluice-agent' "$source/adapters/cli/DAEMON.md" | tail -n 1 |
  sed 's|/usr/local/bin|/run/bin|')"
start "${transparent[@]}"
eventually traced || fail "the agent does not go by a tag that it can read"
kill -TERM "$daemon"
wait "$daemon" || fail "the daemon ended with code $?"
echo passed
