#!/bin/sh
# usage: epilog.sh [STORE]
# Slurm's Epilog, run by slurmd as root after a job has ended on a node: takes back what prolog.sh said of its
# cgroup. Always ends with 0, for an epilog that fails takes the node out of service; what stays in the store
# matches nothing until Slurm uses the job's number again.
# A `sluice` that hangs, or waits for the store's lock, is given up after 5 s, and is the last.
# Not run on a cluster: adapters/fleet/README.md.
set -u
PATH=${PATH:+$PATH:}/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin  # slurmd sets none
store=${1-}

case ${SLURM_JOB_ID-}:${SLURM_JOB_UID-} in :* | *: | *[!0-9:]*) exit 0 ;; esac
for cgroup in "/system.slice/slurmstepd.scope/job_$SLURM_JOB_ID" \
  "/system.slice/${SLURMD_NODENAME:-_}_slurmstepd.scope/job_$SLURM_JOB_ID" \
  "/slurm/uid_$SLURM_JOB_UID/job_$SLURM_JOB_ID"; do
  # Most jobs have no role: that there is nothing to clear is no failure.
  timeout -k 1 4 sluice role clear --cgroup "$cgroup" ${store:+--store "$store"} >/dev/null 2>&1
  case $? in 124 | 137) break ;; esac
done
exit 0
