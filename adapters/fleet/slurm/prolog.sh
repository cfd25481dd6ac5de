#!/bin/sh
# usage: prolog.sh [RULES [STORE]]
# Slurm's Prolog. slurmd runs this script as root before a job's first step on a node. The first matching line of
# RULES (default: /etc/sluice/slurm_roles) decides the role of the job's cgroup. epilog.sh removes this role.
# The script always exits with 0, because a failing prolog takes the node out of service. A job without a role is never
# suspended. If a call of `sluice` takes longer than 5 s, the script stops it and makes no further call.
# The script was not tested on a cluster: see adapters/fleet/README.md.
set -u
PATH=${PATH:+$PATH:}/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin  # slurmd sets none
rules=${1:-/etc/sluice/slurm_roles}
store=${2-}

say() { logger -t sluice -p daemon.warning -- "prolog, job ${SLURM_JOB_ID-?}: $1" 2>/dev/null || echo "sluice: $1" >&2; }
leave() {
  say "$1; no role is set for the job"
  exit 0
}
is_number() { case $1 in '' | *[!0-9]*) return 1 ;; esac; }

is_number "${SLURM_JOB_ID-}" && is_number "${SLURM_JOB_UID-}" || leave "SLURM_JOB_ID or SLURM_JOB_UID is not a number"
[ -r "$rules" ] || leave "cannot read $rules; install it, or correct its mode"

role=
while read -r what name which rest || [ -n "$what" ]; do
  case $what in
    '' | '#'*) continue ;;
    partition) is=${SLURM_JOB_PARTITION-} ;;
    account) is=${SLURM_JOB_ACCOUNT-} ;;
    reservation) is=${SLURM_JOB_RESERVATION-} ;;
    *) leave "$rules: unknown word '$what'; expected partition, account or reservation" ;;
  esac
  case $which in online | offline | unmatched) ;; *) leave "$rules: unknown role '$which'; expected online, offline or unmatched" ;; esac
  [ -z "$rest" ] || leave "$rules: unexpected words '$rest' after the role"
  if [ -n "$is" ] && [ "$is" = "$name" ]; then
    role=$which
    break
  fi
done <"$rules"
[ -n "$role" ] || exit 0

# Ranks on other nodes would wait for the suspended ones. If the daemon cannot read the job's environment, only this
# script can detect such a job.
if [ "$role" = offline ] && [ "${SLURM_JOB_NUM_NODES-}" != 1 ]; then
  leave "a job of ${SLURM_JOB_NUM_NODES:-an unknown number of} nodes cannot be offline: ranks on other nodes would wait for the suspended ones"
fi

# The names of Slurm's plugins for cgroup v2 (the second if several slurmd share a node) and v1.
for cgroup in "/system.slice/slurmstepd.scope/job_$SLURM_JOB_ID" \
  "/system.slice/${SLURMD_NODENAME:-_}_slurmstepd.scope/job_$SLURM_JOB_ID" \
  "/slurm/uid_$SLURM_JOB_UID/job_$SLURM_JOB_ID"; do
  case $cgroup in *[!A-Za-z0-9._/-]*) continue ;; esac
  said=$(timeout -k 1 4 sluice role set --cgroup "$cgroup" "$role" ${store:+--store "$store"} 2>&1) ||
    leave "${said:-'sluice role set' took longer than 4 s}"
done
exit 0
