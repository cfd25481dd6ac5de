#!/usr/bin/env bash
# usage: operating.sh BIN
# What adapters/kfd/OPERATING.md says to type, and what it promises of it, on a simulated GPU; and that the log
# lines and counters it names exist. BIN: where the programs are.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../../support/eventually.sh"
top=$(realpath "$(dirname "${BASH_SOURCE[0]}")/../../..")
page=$top/adapters/kfd/OPERATING.md
bin=$(realpath "$1")
work=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null || true; wait || true; rm -rf --one-file-system "$work"' EXIT

fail() {
  echo "$*" >&2
  [ ! -e "$work/online" ] || tail -n 20 "$work/online" >&2
  exit 1
}
# until_true COMMAND...: waits for it.
until_true() { eventually "$@" || fail "gave up"; }
# block N: the page's N-th block of commands, for the process and the paths of this test.
block() {
  awk -v wanted="$1" '/^ *```$/ {inside=0} inside && n == wanted {sub(/^ +/, ""); print}
    /^ *```sh$/ {inside=1; n++}' "$page" |
    sed "s|/run/sluice/owner|$work/owner|g; s|PID|${offline-}|"
}
# column N HEADER: the code words in the N-th column of the table whose first is HEADER.
column() {
  awk -v header="| $2 |" 'index($0, header) == 1 {on=1; next} on && !/^\|/ {exit} on' "$page" |
    cut -d '|' -f $(($1 + 1)) | grep -o '`[^`]*`' | tr -d '`'
}

column 1 contains >"$work/lines"
[ "$(wc -l <"$work/lines")" -ge 8 ]
# Literals that are split over lines are joined.
cat "$top"/core/runtime/src/*.cpp "$top"/adapters/{agent,driver,kfd,node}/src/*.cpp | tr '\n' ' ' |
  sed -E 's/" +"//g' >"$work/sources"
while IFS= read -r line; do
  grep -qF -- "$line" "$work/sources" || fail "nobody logs '$line'"
done <"$work/lines"
# A breaker opens, and one that was open goes on in a scheduler that starts: both are to wake somebody.
opens=$(grep -m 1 'breaker has opened' "$page" | sed 's/^| `//; s/`.*//')
[ "$(grep -oF -- "$opens" "$work/sources" | wc -l)" = 2 ] || fail "'$opens' is not what both log"
column 2 metric >"$work/counters"
[ "$(wc -l <"$work/counters")" -ge 10 ]
while IFS= read -r counter; do
  grep -qw -- "$counter" "$top/core/runtime/include/sluice/statistics.hpp" ||
    fail "there is no counter '$counter'"
done <"$work/counters"

# The lines that kfd and MES write; one that is no trouble.
dmesg() {
  cat <<'LINES'
amdgpu: qcm fence wait loop timeout expired
amdgpu: The cp might be in an unrecoverable state due to an unsuccessful queues preemption
amdgpu: HIQ MQD's queue_doorbell_id0 is not 0, Queue preemption time out
amdgpu: MES failed to respond to msg=REMOVE_QUEUE
amdgpu: MES might be in unrecoverable state, issue a GPU reset
amdgpu: Runlist is getting oversubscribed due to too many queues.
LINES
}
[ "$(eval "$(block 5)" | wc -l)" = 5 ]

export SLUICE_ROLES="store = '$work/roles'" SLUICE_AGENT=$work/sluice-agent PATH=$bin:$PATH
cp "$bin/sluice-agent" "$SLUICE_AGENT" # a copy, for others may be using the program
chmod 0750 "$SLUICE_AGENT"             # as DAEMON.md says: others may not run it, neither before nor afterwards
sluice sim --root "$work/gpu" >"$work/exports" &
until_true grep -q SLUICE_NVIDIA_PROC "$work/exports"
. "$work/exports"

traced() { [ "$(awk '/^TracerPid:/ {print $2}' "/proc/$offline/status")" != 0 ]; }
untraced() { ! traced; }
suspended() { grep -q '"suspended_queues":[1-9]' "$work/gpu/sim/stats.json"; }
kernels() {
  grep -o "\"pid\":$offline,[^}]*" "$work/gpu/sim/stats.json" | grep -o '"kernels_completed":[0-9]*' | cut -d : -f 2
}
more_than() { [ "$(kernels)" -gt "$1" ]; }
goes_on() { until_true more_than "$(kernels)"; }

AMD_QUEUE_TAG=OFFLINE_AI offline_demo --load train >/dev/null &
offline=$!
until_true grep -q "\"pid\":$offline," "$work/gpu/sim/stats.json"

# Rolling out: a look, and holds by hand.
eval "$(block 1)" >"$work/look"
grep -q 'nothing blocks preemption' "$work/look"
grep -Eq "^ *$offline .* offline " "$work/look"
eval "$(block 2)" >"$work/holds"
[ "$(grep -c "process $offline runs again" "$work/holds")" = 2 ]

# The agent is switched off beside a program that goes on serving, and on again.
online_demo --window 10min --attach-after 0s --wait-for-offline 1 --owner-lock "$work/owner" >"$work/online" 2>&1 &
online=$!
until_true suspended
eval "$(block 3)"
until_true untraced
until_true grep -q 'suspending nothing more until the backend is restored' "$work/online"
until_true grep -q 'sluice-agent.*Permission denied' "$work/online"
untraced || fail "somebody traces process $offline although there is no agent"
if suspended; then fail "queues are suspended although there is no agent"; fi
goes_on
kill -0 "$online" || fail "the serving program has ended"
again=$(grep -o 'To allow preemption again, run `chmod [^`]*`' "$page" | cut -d '`' -f 2)
eval "${again:?}"
[ "$(stat -c %a "$SLUICE_AGENT")" = 750 ] || fail "the agent's mode is not what it was"
until_true traced
until_true suspended
# An agent of a container has a path that names another file here, or none: then nothing is touched.
mkdir "$work/elsewhere"
cp "$bin/sluice-agent" "$work/elsewhere/"
lines=$(block 3 | sed "s|readlink .*\")|echo $work/elsewhere/sluice-agent)|")
if eval "$lines"; then fail "another file than the agent's is switched off"; fi
[ -x "$work/elsewhere/sluice-agent" ] && kill -0 "$agent" || fail "the agent is switched off by another file's path"

# One process is given back, and taken again.
eval "$(block 4 | sed -n 1p)" >"$work/release"
grep -q "process $offline is released for" "$work/release"
untraced || fail "process $offline is traced although it is released"
goes_on
eval "$(block 4 | sed -n 2p)"
until_true traced

# The program is stopped, the hard way.
until_true suspended
kill -KILL "$online"
until_true untraced
goes_on
if suspended; then fail "queues are suspended although nobody schedules"; fi
[ -z "$(block 6)" ] || fail "a block of commands that this test does not know"
kill "$offline"
wait "$offline" || true
echo "what the page says can be typed"
