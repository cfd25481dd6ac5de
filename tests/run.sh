#!/usr/bin/env bash
# usage: tests/run.sh [--quick]
# Installs what is missing and runs every test: format, the release build with all its tests, the unit
# tests under the address, undefined-behaviour and thread sanitizers, and the runtime on epoll.
# --quick: the format check and the release build's unit tests only.
set -uo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
. examples/common.sh

quick=
case ${1-} in
  '') ;;
  --quick) quick=yes ;;
  -h | --help) sed -n '2,5s/^# //p' "$0" && exit 0 ;;
  *) sed -n '2s/^# //p' "$0" >&2 && exit 2 ;;
esac

install_missing "${sluice_build_packages[@]}" "${sluice_test_packages[@]}" || exit 1

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
# The device's tests mount file systems and trace processes.
all_tests() { as_root ctest --preset release "$@"; }
unit_tests() { ctest --preset "$1" -L unit -j2; }

step "format" format_check
if [ -n "$quick" ]; then
  step "release: build of the unit tests" build release sluice_unit_tests &&
    step "release: unit tests" unit_tests release
else
  step "release: build" build release all all_verify_interface_header_sets &&
    step "release: all tests" all_tests
  for preset in asan tsan; do
    step "$preset: build of the unit tests" build "$preset" sluice_unit_tests &&
      step "$preset: unit tests" unit_tests "$preset"
  done
  # Of a build that has no io_uring at all, what stands on the reactor.
  step "epoll: build" build epoll core_reactor_test core_scheduler_test online_demo &&
    step "epoll: reactor tests" ctest --preset epoll -R '^core_(reactor|scheduler)_test$'
fi

echo
echo "=== summary ($((SECONDS / 60)) min $((SECONDS % 60)) s)"
printf '%s\n' "${summary[@]}"
if [ -n "$failed" ]; then
  echo "FAILED"
  exit 1
fi
echo "all passed"
