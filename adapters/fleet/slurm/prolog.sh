#!/bin/sh
# usage: prolog.sh [RULES [STORE [DIRECTORY]]]
# Slurm's Prolog. slurmd runs this script as root before a job's first step on a node. The first matching line of
# RULES (default: /etc/sluice/slurm_roles) decides the role of the job's cgroup. epilog.sh removes this role.
# The script always exits with 0, because a failing prolog takes the node out of service. A job without a role is never
# suspended. If a call of `sluice` takes longer than 5 s, the script stops it and makes no further call.
set -u
export PATH=${PATH:+$PATH:}/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin  # slurmd sets none
rules=${1:-/etc/sluice/slurm_roles}
store=${2-}
directory=${3:-/run/sluice}

say() {
  echo "sluice: prolog, job ${SLURM_JOB_ID-?}: $1" >&2
  logger -t sluice -p daemon.warning -- "prolog, job ${SLURM_JOB_ID-?}: $1" 2>/dev/null
}
leave() {
  say "$1; no role is set for the job"
  exit 0
}
is_number() { case $1 in '' | *[!0-9]*) return 1 ;; esac; }

is_number "${SLURM_JOB_ID-}" && is_number "${SLURM_JOB_UID-}" || leave "SLURM_JOB_ID or SLURM_JOB_UID is not a number"
[ -r "$rules" ] || leave "cannot read $rules; install it, or correct its mode"

role=
across=
while read -r what name which rest || [ -n "$what" ]; do
  case $what in
    '' | '#'*) continue ;;
    partition) is=${SLURM_JOB_PARTITION-} ;;
    account) is=${SLURM_JOB_ACCOUNT-} ;;
    reservation) is=${SLURM_JOB_RESERVATION-} ;;
    comment) is=${SLURM_JOB_COMMENT-} ;;
    *) leave "$rules: unknown word '$what'; expected partition, account, reservation or comment" ;;
  esac
  case $which in online | offline | unmatched) ;; *) leave "$rules: unknown role '$which'; expected online, offline or unmatched" ;; esac
  [ "$what:$which" = comment:offline ] || [ "$what" != comment ] ||
    leave "$rules: a comment cannot give the role $which: every user can write it; use offline"
  case $which:$rest in
    *: | offline:across_nodes) ;;
    *) leave "$rules: unexpected words '$rest' after the role; only offline may be followed by across_nodes" ;;
  esac
  if [ -n "$is" ] && [ "$is" = "$name" ]; then
    role=$which across=$rest
    break
  fi
done <"$rules"
[ -n "$role" ] || exit 0

# Ranks on other nodes would wait for the suspended ones. If the daemon cannot read the job's environment, only this
# script can detect such a job. A daemon with gang_across_nodes suspends nothing whose environment it cannot read.
if [ "$role" = offline ] && [ "${SLURM_JOB_NUM_NODES-}" != 1 ]; then
  [ -n "$across" ] ||
    leave "a job of ${SLURM_JOB_NUM_NODES:-an unknown number of} nodes cannot be offline: ranks on other nodes would wait for the suspended ones; to hold it on all nodes together, add across_nodes to the rule, and see gang_across_nodes"
  [ -S "$directory/gangs.sock" ] ||
    leave "a job of several nodes cannot be offline: $directory/gangs.sock does not exist, so no daemon in mode enforce with gang_across_nodes runs here"
fi

# The names of Slurm's plugins for cgroup v2 and v1. Those with the node's name are of a slurmd that may share a machine
# with others, such as Debian's.
for cgroup in "/system.slice/slurmstepd.scope/job_$SLURM_JOB_ID" \
  "/system.slice/${SLURMD_NODENAME:-_}_slurmstepd.scope/job_$SLURM_JOB_ID" \
  "/slurm/uid_$SLURM_JOB_UID/job_$SLURM_JOB_ID" \
  "/slurm_${SLURMD_NODENAME:-_}/uid_$SLURM_JOB_UID/job_$SLURM_JOB_ID"; do
  case $cgroup in *[!A-Za-z0-9._/-]*) continue ;; esac
  said=$(timeout -k 1 4 sluice role set --cgroup "$cgroup" "$role" ${store:+--store "$store"} 2>&1) ||
    leave "${said:-'sluice role set' took longer than 4 s}"
done
exit 0
