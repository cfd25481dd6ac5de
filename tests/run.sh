#!/usr/bin/env bash
# usage: tests/run.sh [--quick]
# Installs what is missing and runs every test: format, the release build with all its tests, the unit
# tests under the address and undefined-behaviour sanitizers, the fuzz targets for 20 s each, and the tests
# with threads under the thread sanitizer, in a build that has no io_uring.
# --quick: the format check and the release build's unit tests only.
set -uo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
. examples/common.sh

quick=
case ${1-} in
  '') ;;
  --quick) quick=yes ;;
  -h | --help) sed -n '2,6s/^# //p' tests/run.sh; exit 0 ;;
  *) sed -n '2s/^# //p' tests/run.sh >&2; exit 2 ;;
esac

install_missing "${sluice_build_packages[@]}" "${sluice_test_packages[@]}" \
  "${sluice_package_packages[@]}" || exit 1

summary=()
failed=
# step NAME COMMAND...: runs it, remembers how it ended, goes on.
step() {
  local name=$1 start=$SECONDS code=0
  shift
  echo
  echo "=== $name"
  "$@" || code=$?
  if [ "$code" -eq 0 ]; then
    summary+=("$(printf '%-42s passed  %4d s' "$name" $((SECONDS - start)))")
  else
    summary+=("$(printf '%-42s FAILED  %4d s  (code %d)' "$name" $((SECONDS - start)) "$code")")
    failed=yes
  fi
  return "$code"
}

format_check() {
  local files
  mapfile -t files < <(git -c safe.directory='*' ls-files '*.cpp' '*.hpp' '*.h' '*.c')
  [ ${#files[@]} -gt 0 ] || { echo "git lists no files here"; return 1; }
  clang-format --dry-run -Werror "${files[@]}"
}
# build PRESET [TARGET...]
build() {
  local preset=$1
  shift
  local log="build/$preset.configure.log"
  mkdir -p build
  cmake --preset "$preset" >"$log" 2>&1 || { cat "$log"; return 1; }
  cmake --build --preset "$preset" ${1+--target "$@"}
}
# The device's tests mount file systems and trace processes. They wait more than they compute, so two at a
# time do not disturb each other; those that would are RUN_SERIAL.
all_tests() { as_root ctest --preset release -j2; }
# labelled_tests PRESET LABEL
labelled_tests() { ctest --preset "$1" -L "$2" -j2; }

step "format" format_check
if [ -n "$quick" ]; then
  step "release: build of the unit tests" build release sluice_unit_tests &&
    step "release: unit tests" labelled_tests release unit
else
  step "release: build" build release all all_verify_interface_header_sets &&
    step "release: all tests" all_tests
  if step "asan: build of unit tests and fuzz targets" build asan sluice_unit_tests sluice_fuzz_targets; then
    step "asan: unit tests" labelled_tests asan unit
    step "asan: fuzz targets, 20 s each" labelled_tests asan fuzz
  fi
  # This one has Asio on epoll alone, and so is what a build without io_uring must manage, too.
  step "tsan: build of the tests with threads" build tsan sluice_threads_tests online_demo &&
    step "tsan: tests with threads" labelled_tests tsan threads
fi

echo
echo "=== summary ($((SECONDS / 60)) min $((SECONDS % 60)) s)"
printf '%s\n' "${summary[@]}"
if [ -n "$failed" ]; then
  echo "FAILED"
  exit 1
fi
echo "all passed"
