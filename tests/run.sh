#!/usr/bin/env bash
# usage: tests/run.sh [--long | --quick [AREA...]]
# Installs what is missing and runs every kind of test: the format check, the release build with its tests, unit
# tests and fuzz targets under the address and undefined-behaviour sanitizers, and tests with threads under the
# thread sanitizer, in a build without io_uring. At the end it prints how long each step took. tests/README.md
# tells what each kind proves.
# --long: what is repeated elsewhere and what takes long, too: run it before a release.
# --quick: only the format check and the unit tests of these areas (core, policies, kfd, agent, node, ...; without
#   an AREA of all), in a build made for it.
set -uo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
. examples/common.sh

usage() { sed -n '2s/^# //p' tests/run.sh; }
long=
quick=
areas=()
case ${1-} in
  '') ;;
  --long) long=yes; shift ;;
  --quick)
    quick=yes
    shift
    areas=("$@")
    set --
    ;;
  -h | --help) sed -n '2,10s/^# \{0,1\}//p' tests/run.sh; exit 0 ;;
  *) usage >&2; exit 2 ;;
esac
[ $# -eq 0 ] || { usage >&2; exit 2; }
for area in "${areas[@]}"; do
  if [ ! -d "tests/$area" ] && [ ! -d "tests/adapters/$area" ]; then
    echo "run.sh: no area $area: an area is a folder of tests or of tests/adapters" >&2
    exit 2
  fi
done

packages=("${sluice_build_packages[@]}" "${sluice_unit_test_packages[@]}")
[ -n "$quick" ] || packages+=("${sluice_test_packages[@]}" "${sluice_package_packages[@]}")
install_missing "${packages[@]}" || exit 1

began=$(date +%s)
mkdir -p build/logs
steps=build/logs/steps.$$
: >"$steps" || exit 1
# Of all processors together, in hundredths of a second: what the hypervisor gave to others.
steal() { awk '$1 == "cpu" { print $9 }' /proc/stat; }
stolen_before=$(steal)

# step NAME COMMAND...: runs it, remembers how it ended and what it took, and goes on. Steps may run beside each
# other: with `quiet=yes` a step prints only its end, or all if it failed.
step() {
  local name=$1 code=0 TIMEFORMAT='%0R %0U %0S' log
  log=build/logs/${name//[^a-z0-9]/_}.log
  shift
  echo "=== $name$(printf '%s' "${quiet:+ (beside other steps; prints to $log)}")"
  if [ -n "$quiet" ]; then
    { time "$@" >"$log" 2>&1; } 2>"$log.time" || code=$?
    [ "$code" -eq 0 ] || cat "$log"
  else
    { time "$@" > >(tee "$log") 2>&1; } 2>"$log.time" || code=$?
  fi
  echo "=== $name: $([ "$code" -eq 0 ] && echo passed || echo "FAILED with code $code")"
  echo "$name|$code|$(cat "$log.time")" >>"$steps"
  return "$code"
}
quiet=

format_check() {
  local files
  mapfile -t files < <(git -c safe.directory='*' ls-files '*.cpp' '*.hpp' '*.h' '*.c')
  [ ${#files[@]} -gt 0 ] || { echo "git lists no files here"; return 1; }
  clang-format --dry-run -Werror "${files[@]}"
}
# build PRESET [-DOPTION=VALUE...] [TARGET...]
build() {
  local preset=$1 options=()
  shift
  while [[ ${1-} == -D* ]]; do options+=("$1") && shift; done
  cmake --preset "$preset" "${options[@]}" && cmake --build --preset "$preset" ${1+--target "$@"}
}
# with_sanitizers: everything that clang builds. The build of tsan has Asio on epoll alone, and so is also what a build
# without io_uring must manage.
with_sanitizers() {
  step "asan: build of unit tests and fuzz targets" build asan sluice_unit_tests sluice_fuzz_targets &&
    { step "asan: unit tests" ctest --preset asan -L unit -j2
      step "asan: fuzz targets" ctest --preset asan -L fuzz -j2; }
  step "tsan: build of the tests with threads" build tsan sluice_threads_tests online_demo &&
    step "tsan: tests with threads" ctest --preset tsan -L threads -j2
}

if [ -n "$quick" ]; then
  step "format" format_check
  targets=(sluice_unit_tests)
  label=unit
  if [ ${#areas[@]} -gt 0 ]; then
    targets=("${areas[@]/#/sluice_unit_tests_}")
    label="^($(IFS='|'; echo "${areas[*]}"))\$"
  fi
  step "quick: build" build quick "${targets[@]}" &&
    step "quick: unit tests" ctest --preset quick -L unit -L "$label" -j2
else
  without_autogroups
  step "format" format_check
  [ -z "$long" ] || export SLUICE_TEST_LONG=1
  step "release: build" build release all all_verify_interface_header_sets
  released=$?
  # Tests mostly wait, so that the sanitizers' builds, at the lowest priority, get what they leave.
  quiet=yes
  with_sanitizers &
  quiet=
  renice -n 19 $! >/dev/null
  [ "$released" -ne 0 ] || step "release: tests" as_root ctest --preset release -LE alone -j3
  wait
  [ "$released" -ne 0 ] || step "release: tests that measure time" as_root ctest --preset release -L alone
  if [ -n "$long" ]; then
    step "long: quick tests of one area" tests/run.sh --quick core
    step "long: build of unit tests in release" build release -DSLUICE_UNIT_TESTS=ON sluice_unit_tests &&
      step "long: unit tests in release" ctest --preset release -L unit -j2
    step "long: fuzz targets, 20 s each" tests/fuzz.sh --build "$PWD/build/asan"
    step "long: all faults, ten minutes of false alarms" tests/faults.sh --long --build "$PWD/build/release"
    step "long: the owner's cases, 5 minutes each" tests/owner.sh --long
    step "long: soak by debug sessions, 10 minutes" tests/soak.sh --minutes 10 --seed 1
    step "long: soak by batch commands, 10 minutes" tests/soak.sh --minutes 10 --seed 2
    step "long: packages in a clean system" tests/packages.sh
  fi
fi

wall=$(($(date +%s) - began))
echo
echo "=== summary: step, wall time, CPU time (user and system)"
cpu=0
failed=
while IFS='|' read -r name code took; do
  read -r real user system <<<"$took"
  cpu=$((cpu + user + system))
  verdict=passed
  [ "$code" -eq 0 ] || { verdict="FAILED, code $code"; failed=yes; }
  printf '%-44s %5d s %5d s  %s\n' "$name" "$real" $((user + system)) "$verdict"
done <"$steps"
rm "$steps"
stolen=$(($(steal) - stolen_before))
printf 'wall time %d min %d s, CPU time %d s on %d processors, stolen by other machines %d s\n' \
  $((wall / 60)) $((wall % 60)) "$cpu" "$(nproc)" $((stolen / $(getconf CLK_TCK)))
if [ -n "$failed" ]; then
  echo "FAILED"
  exit 1
fi
echo "all passed"
