#!/bin/sh
# usage: prolog.sh [RULES [STORE]]
# Slurm's Prolog, run by slurmd as root before a job's first step on a node: says the job's role, of its
# cgroup, by the first line that fits in RULES, /etc/sluice/slurm_roles unless given. epilog.sh takes it back.
# Always ends with 0, for a prolog that fails takes the node out of service: a job without a role is left alone.
# A `sluice` that hangs, or waits for the store's lock, is given up after 5 s, and is the last.
# Not run on a cluster: adapters/fleet/README.md.
set -u
PATH=${PATH:+$PATH:}/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin  # slurmd sets none
rules=${1:-/etc/sluice/slurm_roles}
store=${2-}

say() { logger -t sluice -p daemon.warning -- "prolog, job ${SLURM_JOB_ID-?}: $1" 2>/dev/null || echo "sluice: $1" >&2; }
leave() {
  say "$1; it gets no role"
  exit 0
}
is_number() { case $1 in '' | *[!0-9]*) return 1 ;; esac; }

is_number "${SLURM_JOB_ID-}" && is_number "${SLURM_JOB_UID-}" || leave "no SLURM_JOB_ID or SLURM_JOB_UID"
[ -r "$rules" ] || leave "$rules cannot be read"

role=
while read -r what name which rest || [ -n "$what" ]; do
  case $what in
    '' | '#'*) continue ;;
    partition) is=${SLURM_JOB_PARTITION-} ;;
    account) is=${SLURM_JOB_ACCOUNT-} ;;
    reservation) is=${SLURM_JOB_RESERVATION-} ;;
    *) leave "$rules: '$what' is none of partition, account, reservation" ;;
  esac
  case $which in online | offline | unmatched) ;; *) leave "$rules: '$which' is no role" ;; esac
  [ -z "$rest" ] || leave "$rules: more than three words: '$rest'"
  if [ -n "$is" ] && [ "$is" = "$name" ]; then
    role=$which
    break
  fi
done <"$rules"
[ -n "$role" ] || exit 0

# Its peers on other nodes would wait for those that are held. Where the daemon cannot read the job's environment,
# nobody else finds out.
if [ "$role" = offline ] && [ "${SLURM_JOB_NUM_NODES-}" != 1 ]; then
  leave "it has ${SLURM_JOB_NUM_NODES:-an unknown number of} nodes, so it cannot be offline"
fi

# As Slurm's plugins for cgroup v2 name them (the second where several slurmd share a node), and v1.
for cgroup in "/system.slice/slurmstepd.scope/job_$SLURM_JOB_ID" \
  "/system.slice/${SLURMD_NODENAME:-_}_slurmstepd.scope/job_$SLURM_JOB_ID" \
  "/slurm/uid_$SLURM_JOB_UID/job_$SLURM_JOB_ID"; do
  case $cgroup in *[!A-Za-z0-9._/-]*) continue ;; esac
  said=$(timeout -k 1 4 sluice role set --cgroup "$cgroup" "$role" ${store:+--store "$store"} 2>&1) ||
    leave "${said:-'sluice role set' took longer than 4 s}"
done
exit 0
