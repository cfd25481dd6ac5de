#!/bin/bash
# usage: fuzz.sh SECONDS SEED
# The program of tests/driver/fuzz.sh, which starts this.
set -euo pipefail
top=$PWD
cd /tmp
mkdir corpus
"$top/build/driver/fuzz" corpus "$top/tests/fuzz/corpus/ioctls" -max_total_time="$1" -seed="$2" -max_len=2048 \
  -timeout=0 -rss_limit_mb=0 -detect_leaks=0 -print_final_stats=1 -verbosity=1 2>&1 | tail -n 40 || code=$?
for each in crash-* leak-* timeout-*; do
  [ ! -f "$each" ] || { echo "$each, base64:" && base64 "$each"; }
done
exit "${code-0}"
