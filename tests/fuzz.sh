#!/usr/bin/env bash
# usage: tests/fuzz.sh [--seconds N] [--seed N] [--build DIRECTORY] [NAME...]
# Build and run the fuzz targets NAME [all]. The first inputs are those of tests/fuzz/corpus and of earlier runs.
#   --seconds N        Duration per target [20]; 0 runs only the known inputs.
#   --seed N           Seed [SLUICE_TEST_SEED, else random]. It is printed.
#   --build DIRECTORY  Use the targets of this build directory instead of building them.
# The first finding is kept as DIRECTORY/fuzz/NAME.finding-* and ends the run with exit code 1.
set -uo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
. examples/common.sh

seconds=20
seed=${SLUICE_TEST_SEED:-$((RANDOM + 1))}
build=
names=()
while [ $# -gt 0 ]; do
  case $1 in
    --seconds) seconds=${2-}; shift ;;
    --seed) seed=${2-}; shift ;;
    --build) build=${2-}; shift ;;
    -h | --help) sed -n '2,7s/^# //p' tests/fuzz.sh; exit 0 ;;
    -*) sed -n '2s/^# //p' tests/fuzz.sh >&2; exit 2 ;;
    *) names+=("$1") ;;
  esac
  shift || break
done
set -- "${names[@]}"
[[ $seconds =~ ^[0-9]+$ ]] || { echo "fuzz.sh: invalid --seconds '$seconds': expected whole seconds" >&2; exit 2; }
# All seeds that a random test prints, except 0, for which libFuzzer draws a seed.
[[ $seed =~ ^[1-9][0-9]{0,9}$ ]] && [ "$seed" -le 4294967295 ] ||
  { echo "fuzz.sh: invalid seed '$seed': expected 1 to 4294967295" >&2; exit 2; }
for name; do
  [ -f "tests/fuzz/$name.cpp" ] || { echo "fuzz.sh: unknown target '$name'; available: the names of tests/fuzz/*.cpp" >&2; exit 2; }
done
if [ -z "$build" ]; then
  install_missing "${sluice_build_packages[@]}" "${sluice_unit_test_packages[@]}" "${sluice_test_packages[@]}" || exit 1
  build=$PWD/build/asan
  [ -f "$build/build.ninja" ] || cmake --preset asan >/dev/null || exit 1
  cmake --build --preset asan --target sluice_fuzz_targets || exit 1
fi
if [ $# -eq 0 ]; then
  for source in tests/fuzz/*.cpp; do
    set -- "$@" "$(basename "$source" .cpp)"
  done
fi

for name; do
  program=$build/bin/fuzz_$name
  [ -x "$program" ] || { echo "fuzz.sh: $program does not exist; omit --build to build the targets" >&2; exit 2; }
  found=$build/fuzz/$name
  seeds=tests/fuzz/corpus/$name
  mkdir -p "$found"
  [ -d "$seeds" ] || { echo "fuzz.sh: corpus $seeds does not exist; create it with at least one input" >&2; exit 2; }
  echo "=== $name, $seconds s, SLUICE_TEST_SEED=$seed"
  how_long=(-max_total_time="$seconds")
  [ "$seconds" -gt 0 ] || how_long=(-runs=0)
  UBSAN_OPTIONS=print_stacktrace=1 "$program" "${how_long[@]}" -timeout=10 -rss_limit_mb=2048 \
    -seed="$seed" -print_final_stats=1 -verbosity=0 -artifact_prefix="$found.finding-" "$found" "$seeds" || exit 1
done
