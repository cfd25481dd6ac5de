#!/usr/bin/env bash
# usage: readme.sh BIN
# What adapters/cli/README.md and the README above say to type, in one shell instead of several. BIN: where
# the programs are.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../../support/eventually.sh"
readme=$(dirname "${BASH_SOURCE[0]}")/../../../adapters/cli/README.md
work=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null || true; wait || true; rm -rf --one-file-system "$work"' EXIT
mkdir -p "$work/build/release"
ln -s "$1" "$work/build/release/bin"
ln -s "$(realpath "$(dirname "$readme")/../../examples")" "$work/examples"

# block N: the N-th block of commands below "Try it".
block() {
  awk -v wanted="$1" '/^## Try it/ {on=1} on && /^```$/ {inside=0} inside && n == wanted
    on && /^```sh$/ {inside=1; n++} on && /^## A daemon/ {exit}' "$readme" |
    sed "s|/tmp/gpu|$work/gpu|g"
}
cd "$work"
eval "$(grep -o 'export PATH=[^`]*' "$readme" | head -n 1)"
eval "$(block 1) > exports &"
has_exports() { [ "$(cat exports 2>/dev/null | wc -l)" -ge 6 ]; }
eventually has_exports
# What it prints is what the README shows.
diff <(block 2 | grep '^export') exports
# The last line of the second block holds; the third block is typed meanwhile, and ends it, also on a slow machine.
eval "$(block 2 | sed '$d')" >second
cat second
grep -Eq "^ *$pid .* offline " second
block 2 | tail -n 1 | grep -q -- ' --for 3s$'
eval "$(block 2 | tail -n 1 | sed 's/3s$/1min/') > held &"
holder=$!
eventually grep -qs '^held by' held
eval "$(block 3 | sed "s/PID/$pid/")" | tee third
grep -Eq "^ *$pid .* suspended " third
grep -q "all of its queues run again" third
wait "$holder"
cat held
grep -q "process $pid runs again" held

# The same on a simulated NVIDIA GPU, whose shell gets the lines after the first one.
mkdir "$work/h100"
block 4 >lines
[ "$(wc -l <lines)" = 5 ]
sed 1d lines | SLUICE_DIRECTORY="$work/h100" eval "$(head -n 1 lines)" >by_hand
cat by_hand
grep -q '^held by process [0-9]* for 3s' by_hand
grep -q '^process [0-9]* runs again' by_hand

# Recorded and replayed.
awk '/^## What would/ {on=1} on && /^```$/ {exit} inside {print} on && /^```sh$/ {inside=1}' "$readme" |
  sed "s|/tmp/gpu|$work/gpu|g" >commands
[ "$(grep -c 'sluice replay' commands)" = 2 ]
SLUICE_ROLES="store = '$work/roles'" bash -euo pipefail commands >replayed
cat replayed
grep -q '^as recorded' replayed
grep -q '^recorded policy, replayed' replayed
grep -q '"policy":"slo:' replayed
grep -q ',suspend,' calls.csv

# Logs of two runs.
samples=$(dirname "$readme")/../../tests/adapters/cli/analyze/samples
cp "$samples/hip_alone.log" alone.log
cp "$samples/hip_shared.log" shared.log
awk '/^## Which hardware/ {on=1} on && /^```$/ {exit} inside {print} on && /^```sh$/ {inside=1}' "$readme" >commands
[ "$(grep -c 'sluice analyze' commands)" = 2 ]
bash -euo pipefail commands >analyzed
cat analyzed
grep -q 'sharing, backlog' analyzed
grep -q '"most_users":2' analyzed

# A daemon, looked at and steered; here it has its files elsewhere.
export work
mkdir "$work/run"
printf '[daemon]\ndirectory = "%s"\n[roles]\nstore = ""\n' "$work/run" >daemon.toml
sluice run --config daemon.toml 2>daemon.log &
daemon=$!
sluice() { command sluice "$@" --directory "$work/run"; }
export -f sluice
is_explained() { sluice why "$pid" >/dev/null 2>&1; }
eventually is_explained
awk '/^## What is it doing/ {on=1} on && /^```$/ {exit} inside {print} on && /^```sh$/ {inside=1}' "$readme" |
  sed "s/PID/$pid/" >commands
[ "$(grep -c '^sluice' commands)" = 4 ]
bash -euo pipefail commands >shown
cat shown
grep -q "^sluice .*, mode observe (suspends nothing)" shown
grep -q "^process $pid (offline_demo) " shown
[ "$(grep -c "^g[0-9]* .* $pid " shown)" = 2 ]
grep -q "^the daemon runs fixed_timeslice:.*slice=5ms until" shown
unset -f sluice
kill "$daemon"
wait "$daemon"

# Given back for some time, and taken back. The store is the machine's otherwise.
export SLUICE_ROLES="store = '$work/roles'"
awk '/^## Give/ {on=1} on && /^```$/ {exit} inside {print} on && /^```sh$/ {inside=1}' "$readme" |
  sed "s/PID/$pid/" >commands
[ "$(grep -c 'sluice release' commands)" = 2 ]
bash -euo pipefail commands >given
grep -q "process $pid is released for 30min" given
grep -q "schedulers manage process $pid again" given

# Roles by hand: adapters/roles.
roles=$(dirname "$readme")/../roles/README.md
sed -n 's/^ *//; /^sluice role /p' "$roles" | sed "s/[$]*PID/$pid/" >commands
[ "$(grep -c . commands)" = 4 ]
bash -euo pipefail commands >said
cat said
grep -q "online *$pid " said
grep -q 'job_\*' said

# What became of jobs: the commands of adapters/observe, on lines of a file and of a log.
now=$(date -u +%Y-%m-%dT%H:%M:%S.000Z)
line="{\"time\":\"$now\",\"pid\":48123,\"start\":1,\"command\":\"python3\",\"user\":\"ann\",\"group\":\"slurm:4242\",\"role\":\"offline\",\"gpus\":[51110],\"end\":\"ended\",\"wall_s\":11520,\"suspended_s\":2465.3,\"share\":0.214,\"suspensions\":812,\"longest_s\":1.0,\"max_suspend\":9,\"offline_floor\":0}"
echo "$line" >jobs
echo "2026-01-31 13:37:00.123 [sluice] [info] job: $line part=node" >log
observe=$(dirname "$readme")/../observe/README.md
awk '/^## Why was/ {on=1} on && /^```$/ {exit} inside {print} on && /^```sh$/ {inside=1}' "$observe" |
  sed 's|^sluice jobs --since 24h$|& jobs|; s|journalctl -u sluice|cat log|' >commands
[ "$(grep -c 'sluice jobs' commands)" = 2 ]
bash -euo pipefail commands >told
# What the page shows, twice.
awk '/^## Why was/ {on=1} on && /^```$/ && n++ {inside=!inside; next} inside {print} inside == 0 && n > 2 {exit}' "$observe" >shown
diff <(cat shown shown) told

# The README above: a look and a hold. What it says to build is there already.
awk '/^## Look at a node/ {on=1} on && /^```$/ {exit} inside {print} on && /^```sh$/ {inside=1}' \
  "$(dirname "$readme")/../../README.md" | sed "s/PID/$pid/" >commands
built=$(sed -n '1s/.* --target //p' commands)
for program in $built; do
  [ -x "build/release/bin/$program" ]
done
sed -i 1d commands
[ "$(grep -c '^sluice' commands)" = 3 ]
bash -euo pipefail commands >looked
grep -q 'nothing blocks preemption' looked
grep -q "process $pid runs again" looked

# A reset while something is held opens a breaker, which is listed and closed.
sluice suspend "$pid" --for 20s >held &
holder=$!
eventually grep -qs '^held by' held
echo 'reset 51110' >gpu/sim/control
wait "$holder" || true
awk '/^## After a reset/ {on=1} on && /^```$/ {exit} inside {print} on && /^```sh$/ {inside=1}' "$readme" >commands
[ "$(grep -c '^sluice breaker' commands)" = 2 ]
bash -euo pipefail commands >closed
cat closed
grep -Eq ' 51110 .* reset ' closed
grep -Eq '51110.* is re-armed' closed

# The daemon with everything around it, typed into the shell that its first line opens. It needs no programs that
# the README does not say to build.
awk '/^## A daemon/ {on=1} on && /^```$/ {exit} inside {print} on && /^```sh$/ {inside=1}' "$readme" >commands
for program in $(grep -oE '\b(online_demo|offline_demo|03_client) ' commands); do
  [[ " $built " == *" $program "* ]]
done
sed '1!d' commands | grep -qx 'examples/with_simulated_gpu.sh bash'
# -e is of the test: the page's commands shall succeed.
(sed '1s/$/ -eo pipefail/' commands | env -u SLUICE_ROLES SLUICE_SIM="$work/build/release/bin/sluice-sim" bash -eo pipefail) >daemon
cat daemon
[ "$(grep -c '^node.toml: ok: mode enforce' daemon)" = 2 ]
grep -q '^113 requests, 0 unfinished' daemon
grep -q '^connected: online' daemon
grep -Eq '^sluice .*, mode enforce, up ' daemon
grep -Eq '^process [0-9]+ \(offline_demo\) ' daemon
grep -Eq '^offline_demo \(.*suspended .* [1-9][0-9]* times' daemon
