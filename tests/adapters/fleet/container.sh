#!/usr/bin/env bash
# usage: with_simulated_gpu.sh in_place.sh container.sh BIN_DIR LIB_DIR
# The daemon as its container runs it, without the container: entry.sh as root with the capabilities of sluice.yaml, in a
# cgroup namespace of its own, under seccomp.json and under what refuses io_uring, with the configuration of sluice.yaml; the
# offline work is another user's. The simulated GPU lies at /dev/kfd, for an agent with file capabilities takes no other.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../../support/eventually.sh"
bin=$1 lib=$2
unset SLUICE_KFD_DEVICE SLUICE_KFD_SYSFS SLUICE_KFD_DEBUGFS
here=$(realpath "$(dirname "${BASH_SOURCE[0]}")")
fleet=$(realpath "$here/../../../adapters/fleet")
log=/run/log
python=$(PATH=/usr/bin:$PATH command -v python3) || true  # Debian's, for its python3-yaml; other users may run it, too
skip() { echo "skipped: $1"; exit 77; }
fail() { echo "FAILED: $1"; [ ! -e "$log" ] || cat "$log"; exit 1; }
for program in setcap setpriv nsenter "${python:-python3}"; do
  command -v "$program" >/dev/null || skip "no $program here"
done
"$python" -c 'import yaml' 2>/dev/null || skip "no python3-yaml here"

# In this mount namespace only: the image's programs, and its directories of the host.
mount -t tmpfs -o mode=755 sluice-test /run
mkdir /run/bin /run/etc.copy /run/sluice /run/roles
for program in sluice sluice-epoll sluice-agent offline_demo; do cp "$bin/$program" /run/bin/; done
cp "$lib"/libsluice_client.so* /run/bin/
chown root:70001 /run/bin/sluice-agent
chmod 0750 /run/bin/sluice-agent
setcap "$(sed -n 's/^ARG AGENT_CAPABILITIES=//p' "$fleet/Containerfile")" /run/bin/sluice-agent ||
  skip "no file capabilities on a tmpfs here"
cp -a /etc/. /run/etc.copy/
install -d -m 755 /run/etc.copy/sluice
# said WHAT: of the manifest.
said() { "$python" "$here/manifest.py" "$fleet/kubernetes/base/sluice.yaml" "$1"; }
# Its own configuration, which observes; then one that acts, in a hurry, by a role store of this test.
said configuration >/run/etc.copy/sluice/sluice.toml
grep -q '^mode = "observe"' /run/etc.copy/sluice/sluice.toml
mount --bind /run/etc.copy /etc
/run/bin/sluice check /etc/sluice/sluice.toml >/run/checked || fail "the configuration of sluice.yaml is wrong"
port=$("$python" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
sed -i "s/^metrics = .*/metrics = \"127.0.0.1:$port\"/" /etc/sluice/sluice.toml
sed -i 's/^mode = .*/mode = "enforce"/; s|^store = .*|store = "/run/roles/roles"|
  s/^may_claim_online = .*/may_claim_online = { users = [64004] }/' /etc/sluice/sluice.toml
cat >>/etc/sluice/sluice.toml <<'END'
[scheduler]
attach_after = "50ms"
attach_at_latest = "100ms"
max_suspend = "60s"
offline_floor = 0
END

pids=() cgroups=()
ended() {
  kill -KILL "${pids[@]}" 2>/dev/null || true
  wait
  for each in "${cgroups[@]}"; do rmdir "$each"; done
  rmdir "$top" "$all" 2>/dev/null || true
}
trap ended EXIT
# Two pods, as kubelet makes their cgroups with systemd's driver.
mkdir /run/cgroup
mount -t cgroup2 sluice-test /run/cgroup || skip "no cgroup v2 here"
all=/run/cgroup/kubepods.slice top=$all/kubepods-besteffort.slice
pod() { echo "$top/kubepods-besteffort-pod${1//-/_}.slice"; }
uids=("$(</proc/sys/kernel/random/uuid)" "$(</proc/sys/kernel/random/uuid)")
for each in "${uids[@]}"; do
  cgroups=("$(pod "$each")" "${cgroups[@]}")
  mkdir -p "$(pod "$each")" || skip "no cgroups can be made here"
done
# in_pod UID COMMAND...: becomes that command.
in_pod() {
  echo $BASHPID >"$(pod "$1")/cgroup.procs"
  shift
  exec "$@"
}
SLUICE_KFD_DEVICE=/dev/kfd SLUICE_KFD_SYSFS=/sys/class/kfd/kfd in_pod "${uids[0]}" setpriv --reuid=64003 --regid=64003 --groups=70002 \
  --bounding-set=-all --inh-caps=-all /run/bin/offline_demo --load train >/dev/null &
offline=$!
pids+=("$offline")
# Its role, as the container `pods` says it.
printf '#!/bin/sh\ncase $1 in replace) cat >/run/event.json ;; *) cat /run/pods.json ;; esac\n' >/run/bin/kubectl
chmod +x /run/bin/kubectl
cat >/run/pods.json <<END
{"items": [{"metadata": {"name": "train", "namespace": "batch", "uid": "${uids[0]}"}, "status": {"qosClass": "BestEffort"},
            "spec": {"nodeName": "gpu-1", "priorityClassName": "sluice-offline"}}]}
END
PATH=/run/bin:$PATH "$python" "$fleet/kubernetes/pod_roles.py" --once --node gpu-1 --class sluice-offline=offline \
  --store /run/roles/roles
cat >/run/online.py <<'END'
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
held() { grep -q "{\"pid\":$offline,[^}]*\"suspended_queues\":[1-9]" "$SLUICE_SIM_ROOT/sim/stats.json"; }
runs() { ! held; }
# As the container `events` reports it: by the metrics of this daemon.
reported() {
  "$python" "$fleet/kubernetes/pod_events.py" --once --node gpu-1 --kubectl /run/bin/kubectl \
    --metrics "http://127.0.0.1:$port/metrics" &&
    grep -qs "\"name\": \"train\", \"uid\": \"${uids[0]}\".*\"message\": \"held [1-9]" /run/event.json
}
groups() { sed -n 's/^Groups:\t\(.*[0-9]\) *$/\1/p' "/proc/$1/status"; }
capabilities() { sed -n 's/^CapEff:\t//p' "/proc/$1/status"; }
# capabilities_of_container: as setpriv wants them.
bound=-all$(said capabilities | tr 'A-Z' 'a-z' | sed 's/^/,+/' | tr -d '\n')

groups_expected=70002
# try NAME FILTER...: the daemon under that filter, from its start to its end.
try() {
  local name=$1 began=$SECONDS
  shift
  : >$log
  SLUICE_HOST_PID=$$ PATH=/run/bin:$PATH in_pod "${uids[1]}" unshare --cgroup setpriv --bounding-set="$bound" --inh-caps=-all \
    "$@" "$fleet/entry.sh" --config /etc/sluice/sluice.toml 2>$log &
  daemon=$!
  pids+=("$daemon")
  eventually grep -qs "this program owns the node" $log || fail "$name: the daemon does not own the node"
  [ "$(readlink "/proc/$daemon/ns/cgroup")" = "$(readlink /proc/$$/ns/cgroup)" ] || fail "$name: which cgroup namespace?"
  [ "$(capabilities "$daemon")" = 0000000000000000 ] || fail "$name: the daemon has capabilities"
  [ "$(stat -c %u "/proc/$daemon")" = 70001 ] || fail "$name: whose is the daemon?"
  [ "$(groups "$daemon")" = "$groups_expected" ] || fail "$name: the daemon's groups are $(groups "$daemon")"
  agent=$(sed -n '2s/ .*//p' /run/sluice/owner)
  [ "$(capabilities "$agent")" = 0000000000080000 ] || fail "$name: the agent has not just CAP_SYS_PTRACE"
  local filters
  filters=$(sed -n 's/^Seccomp_filters:\t//p' "/proc/$agent/status")
  [ "${filters:-2}" -ge 2 ] || fail "$name: the agent has $filters filters, not the container's and its own"
  setpriv --reuid=64004 --regid=64004 --groups=70002 --bounding-set=-all --inh-caps=-all \
    "$python" /run/online.py /run/bin/libsluice_client.so /run/sluice/clients.sock &
  online=$!
  pids+=("$online")
  eventually held || fail "$name: the offline process is not suspended"
  rm -f /run/event.json
  eventually reported || fail "$name: no event says that the pod was held"
  [ ! -e /run/sluice/control.sock ] || fail "$name: pods that see the clients' socket may look and steer"
  # The agent's bells need what the profiles of container runtimes refuse; it does without them.
  if [ "$name" = profile ] && printf '6.7\n%s\n' "$(uname -r)" | sort -CV; then
    ls -l "/proc/$agent/fd" | grep -q 'anon_inode:\[io_uring\]' || fail "$name: the agent has no bells"
  fi
  kill -KILL "$agent"
  eventually grep -q "restored; 1 processes attached again" $log || fail "$name: there is no other agent"
  eventually held || fail "$name: the offline process is not suspended again"
  kill -HUP "$daemon"
  eventually grep -q "reloaded: mode enforce" $log || fail "$name: it does not reload"
  kill -USR1 "$daemon"
  eventually grep -q "statistics: " $log || fail "$name: it tells no statistics"
  kill -KILL "$online"
  wait "$online" 2>/dev/null || true
  eventually runs || fail "$name: the offline process stands still"
  kill -TERM "$daemon"
  wait "$daemon" || fail "$name: the daemon ended with code $?"
  ! grep -q "Operation not permitted" $log || [ "$name" = default ] || fail "$name: something was refused"
  echo "$name: passed in $((SECONDS - began)) s"
}

if [ -n "${SLUICE_STRACE-}" ]; then  # How seccomp.json came to be.
  try strace strace -D -f -qq -o "$SLUICE_STRACE"
  exit
fi
# crun create waits for its start under the profile, by pselect6: no container starts without that.
cat >/run/wait.py <<'END'
import ctypes
library = ctypes.CDLL(None, use_errno=True)
for number in (270, 23):  # pselect6, select
    done = library.syscall(number, 0, None, None, None, (ctypes.c_long * 2)(), None)
    assert done == 0, (number, ctypes.get_errno())
END
"$python" "$here/under_seccomp.py" "$fleet/kubernetes/seccomp.json" "$python" /run/wait.py ||
  fail "seccomp.json refuses what a container's runtime waits by"
try profile "$python" "$here/under_seccomp.py" "$fleet/kubernetes/seccomp.json"
! grep -q "refuses io_uring" $log || fail "seccomp.json refuses io_uring"
# As the runtimes' own profiles do.
"$python" - "$fleet/kubernetes/seccomp.json" >/run/default.json <<'END'
import json, sys
profile = json.load(open(sys.argv[1]))
for rule in profile["syscalls"]:
    rule["names"] = [name for name in rule["names"] if not name.startswith("io_uring_")]
profile["syscalls"] = [rule for rule in profile["syscalls"] if rule["names"]]
json.dump(profile, sys.stdout)
END
# The simulated node is root's group's; as if it were another's.
printf '#!/bin/sh\n[ "$*" = "-c %%g /dev/kfd" ] && echo 70003 || exec %s "$@"\n' "$(command -v stat)" >/run/bin/stat
chmod +x /run/bin/stat
groups_expected="70002 70003"
try default "$python" "$here/under_seccomp.py" /run/default.json
grep -q "the kernel refuses io_uring (Operation not permitted); continuing as sluice-epoll" $log ||
  fail "it does not say that io_uring is refused"
echo passed
