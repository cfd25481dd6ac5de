#!/usr/bin/env bash
# usage: tests/owner.sh [--long]
# Build and run the project owner's test cases on the simulated device (tests/integration/README.md).
# Prints the measured figures as a table. Exits with 1 if a case fails. Installs missing Debian packages first.
#   --long  Frequent preemption lasts 5 minutes with each mechanism instead of 20 s.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
. examples/common.sh

seconds=20
[ $# -le 1 ] || { sed -n '2s/^# //p' tests/owner.sh >&2; exit 2; }
case ${1-} in
  '') ;;
  --long) seconds=300 ;;
  -h | --help) sed -n '2,5s/^# //p' tests/owner.sh; exit 0 ;;
  *) sed -n '2s/^# //p' tests/owner.sh >&2; exit 2 ;;
esac

install_missing "${sluice_build_packages[@]}" "${sluice_unit_test_packages[@]}"
mkdir -p build
cmake --preset release >build/owner.configure.log 2>&1 || { cat build/owner.configure.log; exit 1; }
cmake --build --preset release --target integration_owners_cases_test
without_autogroups
log=build/owner.log
code=0
as_root env SLUICE_OWNERS_SECONDS="$seconds" build/release/bin/integration_owners_cases_test >"$log" 2>&1 || code=$?
if [ "$code" -eq 0 ]; then
  tail -n 1 "$log"
else
  cat "$log"
fi
echo
grep '^|' "$log" || true
exit "$code"
