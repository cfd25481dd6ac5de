#!/usr/bin/env bash
# usage: tests/model/check.sh [-v]
# Check all states of the model in sluice.pml with spin. Its properties must hold, and each planted bug must violate one.
#   -v  Also print the way to each violation.
# Exits with 77 if spin or gcc is not installed.
set -uo pipefail

model=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/sluice.pml
verbose=
case ${1-} in
  '') ;;
  -v) verbose=yes ;;
  *) sed -n '2s/^# //p' "$0" >&2; exit 2 ;;
esac
for tool in spin gcc; do
  command -v "$tool" >/dev/null || { echo "check.sh: $tool is not installed" >&2; exit 77; }
done
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1

failed=
# run EXPECTED PROPERTY NAME DEFINITION...: safety: assertions, and no end where there should be none. resumed:
# the property of that name, under weak fairness. EXPECTED: holds or refuted.
run() {
  local expected=$1 property=$2 name=$3 start=$SECONDS found states
  shift 3
  local compile=(-DNOCLAIM) search=()
  if [ "$property" = resumed ]; then
    compile=(-DNFAIR=4)  # for more than ten processes
    search=(-a -f -N resumed)
  fi
  # What is refuted is refuted soon.
  [ "$expected" = holds ] && compile+=(-O2)
  rm -f pan* ./*.trail
  if ! spin "$@" -a "$model" >spin.log 2>&1; then
    cat spin.log
    found=broken
  elif ! gcc -w -DCOLLAPSE -DMEMLIM=2048 "${compile[@]}" -o pan pan.c; then
    found=broken
  else
    ./pan -m20000 "${search[@]}" >pan.log 2>&1
    # A search that was cut short found nothing in a part of the states.
    if grep -q 'errors: 0' pan.log && ! grep -qE 'depth too small|MEMLIM|out of memory|Search not completed' pan.log; then
      found=holds
    elif grep -qE '^pan:[0-9]+: (assertion violated|acceptance cycle|invalid end state)' pan.log; then
      found=refuted
    else
      tail -5 pan.log
      found=broken
    fi
  fi
  states=$(sed -n 's/^ *\([0-9.e+]*\) states, stored.*/\1/p' pan.log 2>/dev/null)
  printf '%-22s %-13s %-8s %10s states %4d s\n' "$name" "$property" "$found" "${states:-no}" $((SECONDS - start))
  if [ "$found" = refuted ] && [ -n "$verbose$([ "$expected" = holds ] && echo yes)" ]; then
    spin -t -p -g "$@" -k ./*.trail "$model" 2>&1 | tail -n 60
  fi
  if [ "$found" != "$expected" ]; then
    echo "  expected: $expected"
    failed=yes
  fi
}

# One process with two queues, so that outcomes can be partial; then two with a ring of one place each.
two=(-DTARGETS=2 -DQUEUES=1 -DRING=1 -DDEATHS=0 -DHOST=0 -DWISHES=1 -DROLES=0)
run holds safety "one process" -DENDS
run holds safety "two processes" "${two[@]}" -DENDS
run holds resumed "one process" -DROLES=1
run holds resumed "two processes" "${two[@]}"
run refuted safety "BUG_ROLE" -DBUG_ROLE
run refuted safety "BUG_DETACH" -DBUG_DETACH
run refuted safety "BUG_WAITS" "${two[@]}" -DBUG_WAITS
run refuted resumed "BUG_LEASE" -DBUG_LEASE
run refuted resumed "BUG_DOUBT" -DBUG_DOUBT
run refuted resumed "BUG_KERNEL" -DBUG_KERNEL
[ -z "$failed" ]
