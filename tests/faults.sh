#!/usr/bin/env bash
# usage: tests/faults.sh [--long] [--calm SECONDS] [--build DIRECTORY]
# Build and run the fault matrix on real processes, as CTest runs it. See tests/faults/README.md.
# Options:
#   --long             Run all cells and all faults of the device with every mechanism. Then test for false alarms.
#   --calm SECONDS     Duration of the test for false alarms [0; with --long: 600].
#   --build DIRECTORY  Use the programs of this build directory instead of building them.
set -uo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
. examples/common.sh

which=pairs
calm=
build=
while [ $# -gt 0 ]; do
  case $1 in
    --long) which=all ;;
    --calm) calm=${2-}; [[ $calm =~ ^[0-9]+$ ]] || { echo "faults.sh: invalid --calm '$calm': expected whole seconds" >&2; exit 2; }; shift ;;
    --build) build=${2-}; [ -n "$build" ] || { echo "faults.sh: --build needs a directory" >&2; exit 2; }; shift ;;
    -h | --help) sed -n '2,7s/^# //p' tests/faults.sh; exit 0 ;;
    *) sed -n '2s/^# //p' tests/faults.sh >&2; exit 2 ;;
  esac
  shift
done
if [ -z "$calm" ]; then
  calm=0
  [ "$which" = all ] && calm=600
fi
if [ -z "$build" ]; then
  install_missing "${sluice_build_packages[@]}" || exit 1
  build=$PWD/build/release
  [ -f "$build/build.ninja" ] || cmake --preset release >/dev/null || exit 1
  cmake --build --preset release --target faults_unit_test faults_matrix_test faults_injections_test \
    faults_steps_test faults_calm_test || exit 1
fi

without_autogroups
failed=
for name in unit matrix steps injections calm; do
  program=$build/bin/faults_${name}_test
  [ -x "$program" ] || { echo "faults.sh: $program does not exist; omit --build to build it" >&2; exit 2; }
  [ "$name" = calm ] && [ "$calm" -eq 0 ] && continue
  echo "=== $name"
  as_root env SLUICE_FAULTS="$which" SLUICE_CALM_SECONDS="$calm" "$program" --gtest_brief=1 || failed="$failed $name"
done
[ -z "$failed" ] || { echo "faults.sh: failed:$failed" >&2; exit 1; }
