#!/usr/bin/env bash
# SIGINT or SIGTERM in the middle of 01_embed: it says what it has done so far, and ends with 130 or 143.
set -euo pipefail
program=$1
with_gpu=$(dirname "${BASH_SOURCE[0]}")/../../examples/with_simulated_gpu.sh

for expected in INT:130 TERM:143; do
  # shellcheck disable=SC2016
  out=$("$with_gpu" bash -c '
    "$1" & pid=$!
    # Until it catches both signals, for at most a minute.
    for _ in $(seq 6000); do
      caught=$(sed -n "s/^SigCgt:\t/0x/p" "/proc/$pid/status") || exit
      [ $((caught & 0x4002)) -ne $((0x4002)) ] || break
      sleep 0.01
    done
    kill -s "$2" "$pid"
    code=0; wait "$pid" || code=$?
    echo "ended with $code"' bash "$program" "${expected%:*}" 2>&1)
  echo "$out"
  grep -Eq "^answered [0-9] requests; 0 queue suspends, 0 resumes$" <<<"$out"
  grep -qx "ended with ${expected#*:}" <<<"$out"
done
