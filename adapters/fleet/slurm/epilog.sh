#!/bin/sh
# usage: epilog.sh [STORE]
# Slurm's Epilog. slurmd runs this script as root after a job has ended on a node. The script removes the role that
# prolog.sh set for the job's cgroup. It always exits with 0, because a failing epilog takes the node out of service.
# If an entry stays in the store, it matches no job until Slurm reuses the job number.
# If a call of `sluice` takes longer than 5 s, the script stops it and makes no further call.
set -u
export PATH=${PATH:+$PATH:}/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin  # slurmd sets none
store=${1-}

case ${SLURM_JOB_ID-}:${SLURM_JOB_UID-} in :* | *: | *[!0-9:]*) exit 0 ;; esac
for cgroup in "/system.slice/slurmstepd.scope/job_$SLURM_JOB_ID" \
  "/system.slice/${SLURMD_NODENAME:-_}_slurmstepd.scope/job_$SLURM_JOB_ID" \
  "/slurm/uid_$SLURM_JOB_UID/job_$SLURM_JOB_ID" \
  "/slurm_${SLURMD_NODENAME:-_}/uid_$SLURM_JOB_UID/job_$SLURM_JOB_ID"; do
  # Most jobs have no role, so nothing to clear is not an error.
  timeout -k 1 4 sluice role clear --cgroup "$cgroup" ${store:+--store "$store"} >/dev/null 2>&1
  case $? in 124 | 137) break ;; esac
done
exit 0
