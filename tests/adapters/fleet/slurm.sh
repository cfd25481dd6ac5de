#!/usr/bin/env bash
# usage: slurm.sh BIN_DIR: prolog.sh and epilog.sh as slurmd runs them (by their variables: there is no Slurm here), on
# a role store of its own.
set -euo pipefail
bin=$1
fleet=$(realpath "$(dirname "${BASH_SOURCE[0]}")/../../../adapters/fleet")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "FAILED: $1"; cat "$work/store" "$work/log" 2>/dev/null; exit 1; }
# A logger that tells this test.
printf '#!/bin/sh\necho "$*" >>%s/log\n' "$work" >"$work/logger"
chmod +x "$work/logger"
# job SCRIPT VARIABLE=VALUE... -- ARGUMENT...: slurmd gives it these variables and no others.
job() {
  local script=$work/etc/slurm/sluice/$1 variables=()
  shift
  while [ "$1" != -- ]; do variables+=("$1") && shift; done
  shift
  : >"$work/log"
  env -i PATH="$work:$bin" "${variables[@]}" /bin/sh "$script" "$@" || fail "$script ended with code $?"
}
of_job() { echo "SLURM_JOB_ID=$1 SLURM_JOB_UID=1000 SLURM_JOB_PARTITION=$2 SLURM_JOB_NUM_NODES=$3 SLURMD_NODENAME=gpu-1"; }
said() { "$bin/sluice" role list --store "$work/store" --json | python3 -c '
import json, sys
print(*sorted(each["cgroup"] + "=" + each["role"] for each in json.load(sys.stdin)["cgroups"]))'; }
all_of() { echo "/slurm/uid_1000/job_$1=$2 /slurm_gpu-1/uid_1000/job_$1=$2 /system.slice/gpu-1_slurmstepd.scope/job_$1=$2 /system.slice/slurmstepd.scope/job_$1=$2"; }
expect() { [ "$(said)" = "$1" ] || fail "said '$(said)', not '$1'"; }
logged() { grep -q "$1" "$work/log" || fail "it does not log '$1'"; }
# As the page says to install them.
awk '/^## / {here=/Slurm/} /^```$/ {inside=0} inside {print} /^```sh$/ {inside=here}' "$fleet/README.md" |
  sed "s|/usr/local/share/sluice/fleet|$fleet|g; s|/etc/|$work/etc/|g" >"$work/commands"
[ "$(wc -l <"$work/commands")" = 2 ] || fail "commands that this test does not know"
bash -euo pipefail "$work/commands"
rules=$work/etc/sluice/slurm_roles
grep -q '^# partition preempt offline$' "$rules" && ! grep -qv '^#' "$rules" || fail "rules count that nobody wrote"
sed -i 's/^# partition/partition/' "$rules"
prolog() { job prolog.sh $1 -- "${2-$rules}" "${3-$work/store}" "$work"; }
epilog() { job epilog.sh $1 -- "$work/store"; }

prolog "$(of_job 7 preempt 1)"
expect "$(all_of 7 offline)"
[ ! -s "$work/log" ] || fail "it logs what went well"
prolog "$(of_job 8 serving 1)"
expect "$({ all_of 7 offline; all_of 8 online; } | tr ' ' '\n' | LC_ALL=C sort | paste -sd' ')"
epilog "$(of_job 7 preempt 1)"
expect "$(all_of 8 online)"
epilog "$(of_job 8 serving 1)"
epilog "$(of_job 9 other 1)"
expect ""
prolog "$(of_job 10 other 1)"  # no line fits
expect ""
# Peers on other nodes would wait: nobody there is offline. To be online does no harm.
prolog "$(of_job 11 preempt 2)"
expect ""
logged "a job of 2 nodes cannot be offline: ranks on other nodes would wait for the suspended ones; .*; no role is set for the job"
prolog "$(of_job 11 serving 2)"
expect "$(all_of 11 online)"
epilog "$(of_job 11 serving 2)"
prolog "SLURM_JOB_ID=12 SLURM_JOB_UID=1000 SLURM_JOB_PARTITION=preempt"
logged "an unknown number of nodes"
# A rule can say that the daemons hold such jobs together.
printf 'partition preempt offline across_nodes\n' >"$work/rules"
prolog "$(of_job 18 preempt 2)" "$work/rules"
logged "gangs.sock does not exist, so no daemon in mode enforce with gang_across_nodes runs here"
expect ""
python3 -c 'import socket, sys; socket.socket(socket.AF_UNIX).bind(sys.argv[1])' "$work/gangs.sock"
prolog "$(of_job 18 preempt 2)" "$work/rules"
expect "$(all_of 18 offline)"
epilog "$(of_job 18 preempt 2)"
printf 'partition preempt online across_nodes\n' >"$work/rules"
prolog "$(of_job 18 preempt 2)" "$work/rules"
logged "unexpected words 'across_nodes'"
expect ""
# What cannot be done is logged, and the job goes on without a role.
prolog "$(of_job 13 preempt 1)" "$work/none"
logged "cannot read .*/none"
prolog "$(of_job '13;x' preempt 1)"
logged "SLURM_JOB_ID or SLURM_JOB_UID is not a number"
printf 'partition preempt ofline\n' >"$work/rules"
prolog "$(of_job 13 preempt 1)" "$work/rules"
logged "unknown role 'ofline'"
printf 'qos preempt offline\n' >"$work/rules"
prolog "$(of_job 13 preempt 1)" "$work/rules"
logged "unknown word 'qos'"
mkdir "$work/directory"
prolog "$(of_job 13 preempt 1)" "$rules" "$work/directory"
logged "no role"
expect ""
printf '# by account, without an end of line\n\naccount lab offline' >"$work/rules"
prolog "$(of_job 14 other 1) SLURM_JOB_ACCOUNT=lab" "$work/rules"
expect "$(all_of 14 offline)"
# Every user can write a comment, which so makes nothing online.
printf 'comment sluice-offline offline\n' >"$work/rules"
prolog "$(of_job 17 other 1) SLURM_JOB_COMMENT=sluice-offline" "$work/rules"
expect "$({ all_of 14 offline; all_of 17 offline; } | tr ' ' '\n' | LC_ALL=C sort | paste -sd' ')"
epilog "$(of_job 17 other 1)"
printf 'comment fast online\n' >"$work/rules"
prolog "$(of_job 17 other 1) SLURM_JOB_COMMENT=fast" "$work/rules"
logged "a comment cannot give the role online"
expect "$(all_of 14 offline)"
# A node's name that is no name gets no pattern.
epilog "$(of_job 14 other 1)"
prolog "SLURM_JOB_ID=15 SLURM_JOB_UID=1000 SLURM_JOB_PARTITION=preempt SLURM_JOB_NUM_NODES=1 SLURMD_NODENAME=*"
expect "/slurm/uid_1000/job_15=offline /system.slice/slurmstepd.scope/job_15=offline"
# A sluice that hangs holds nobody up for long, and is not asked again.
mkdir "$work/hangs"
printf '#!/bin/sh\necho asked >>%s/hung\nexec sleep 100\n' "$work" >"$work/hangs/sluice"
chmod +x "$work/hangs/sluice"
bin=$work/hangs
began=$SECONDS
prolog "$(of_job 16 preempt 1)" &
epilog "$(of_job 16 preempt 1)" &
wait
[ $((SECONDS - began)) -le 60 ] || fail "they wait $((SECONDS - began)) s for what hangs"
[ "$(wc -l <"$work/hung")" = 2 ] || fail "it is asked again"
logged "'sluice role set' took longer than 4 s; no role is set for the job"
echo passed
