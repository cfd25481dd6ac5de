#!/usr/bin/env bash
# usage: results.sh BIN
# What adapters/lab/RESULTS.md and policies/README.md say to type, with a minute of arrivals for an hour and a small trace. BIN: where the programs are.
set -euo pipefail
lab=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/../../../adapters/lab
results=$lab/RESULTS.md
PATH=$1:$PATH
work=$(mktemp -d)
trap 'rm -rf --one-file-system "$work"' EXIT
cd "$work"
awk '/^```$/ {inside=0} inside {print} /^```sh$/ {inside=1}' "$results" "$lab/../../policies/README.md" | sed 's/--duration 1h/--duration 1min/' >commands
[ "$(grep -c 'sluice lab' commands)" = 7 ]
export TRACE=$work/trace.csv
{ echo TIMESTAMP,ContextTokens,GeneratedTokens
  for second in $(seq 10 59); do echo "2023-11-16 18:17:$second.5,1000,10"; done; } >"$TRACE"
bash -euo pipefail commands >out 2>err || { cat err; exit 1; }
# Every row of its tables is one that comes out.
grep -o '`slo:[^`]*`' "$results" | tr -d '`' | sort -u >named
[ "$(wc -l <named)" -ge 8 ]
while read -r name; do
  grep -qF "  $name " out || { echo "nothing prints $name"; exit 1; }
done <named
