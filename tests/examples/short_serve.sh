#!/usr/bin/env bash
# usage: SLUICE_BIN=DIRECTORY short_serve.sh
# examples/serve.sh, shortened. It fails by itself where a request failed or something was left suspended; here
# the figures must be what preemption is for: under sluice p99 is at most half of that without a scheduler, and
# offline work goes on. What others do on the machine counts as latency, so one run of three is enough.
set -euo pipefail
top=$(dirname "${BASH_SOURCE[0]}")/../..
# What examples/inference_server/README.md says to type.
typed=$(awk '/^```$/ && inside {exit} inside {print} /^```sh$/ {inside=1}' "$top/examples/inference_server/README.md")
[ "$typed" = "examples/serve.sh --seconds 30" ] || { echo "the page says '$typed'" && exit 1; }

for _ in 1 2 3; do
  out=$("$top"/${typed/30/3} 2>&1) || { echo "$out" && exit 1; }
  echo "$out"
  # Columns from the right: GPU time (2), kernels per second, failed, max, p99, p50, requests per second.
  figures() { awk -v row="$1" 'index($0, row) == 1 {print $(NF-'"$2"')}' <<<"$out"; }
  for row in "both, no scheduler" "both, under sluice"; do
    [ "$(figures "$row" 3)" = 0 ] || { echo "no figures of '$row'" && exit 1; }
  done
  grep -Eq '^([1-9][0-9]*) queue suspends, \1 resumes, ' <<<"$out" ||
    { echo "nothing was suspended, or not every suspend has its resume" && exit 1; }
  without=$(figures "both, no scheduler" 5)
  under=$(figures "both, under sluice" 5)
  kernels=$(figures "both, under sluice" 2)
  awk -v a="$kernels" 'BEGIN {exit !(a > 0)}' || { echo "offline work stood still" && exit 1; }
  if awk -v a="$under" -v b="$without" 'BEGIN {exit !(a > 0 && 2 * a <= b)}'; then
    echo "p99 $under ms instead of $without ms"
    exit 0
  fi
  echo "p99 is $under ms under sluice and $without ms without a scheduler"
done
exit 1
