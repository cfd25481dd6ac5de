#!/usr/bin/env bash
# usage: tests/run.sh [--long | --quick [AREA...]]
# Run every kind of test (tests/README.md). Installs missing Debian packages first.
# The steps are the format check and the release build with its tests. Unit tests and fuzz targets run with the address
# and undefined-behaviour sanitizers. Tests with threads run with the thread sanitizer, in a build without io_uring.
# Cases run on the real amdkfd in User Mode Linux (tests/driver/README.md).
# At the end the script prints the duration of each step.
#   --long   Also run the long and the repeated forms. Use it before you close an issue.
#   --quick  Run only the format check and the unit tests of each AREA, in a separate build. Without AREA, run the
#            unit tests of all areas. Areas: core, policies, kfd, agent, node, ...
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
  *) echo "run.sh: unknown option '$1'; for one area: --quick $1" >&2; usage >&2; exit 2 ;;
esac
[ $# -eq 0 ] || { echo "run.sh: unexpected argument '$1'" >&2; usage >&2; exit 2; }
case ${areas[0]-} in -*) echo "run.sh: unknown area '${areas[0]}'" >&2; usage >&2; exit 2 ;; esac
packages=("${sluice_build_packages[@]}" "${sluice_unit_test_packages[@]}")
[ -n "$quick" ] || packages+=("${sluice_test_packages[@]}" "${sluice_fleet_packages[@]}" "${sluice_package_packages[@]}")
install_missing "${packages[@]}" || exit 1

# Of a program that fails, print only the tests that failed.
export GTEST_BRIEF=1
began=$(date +%s)
mkdir -p build/logs
steps=build/logs/steps.$$
: >"$steps" || exit 1
at_exit "rm -f $steps"
# Prints the time that the hypervisor gave to other machines, as the sum over all processors, in clock ticks.
steal() { awk '$1 == "cpu" { print $9 }' /proc/stat; }
stolen_before=$(steal)

# record NAME CODE TIMES: the result of a step, for the summary. TIMES: seconds of wall, user and system time.
record() {
  case $2 in
    0) echo "=== $1: passed" ;;
    77) echo "=== $1: skipped" ;;
    *) echo "=== $1: FAILED with code $2" ;;
  esac
  echo "$1|$2|$3" >>"$steps"
}

# step NAME COMMAND...: runs the command, records its result, and returns its exit code. Steps may run in parallel:
# with `quiet=yes` a step prints only its end and warnings, or its whole output if it failed.
step() {
  local name=$1 code=0 TIMEFORMAT='%0R %0U %0S' log
  log=build/logs/${name//[^a-z0-9]/_}.log
  shift
  echo "=== $name$(printf '%s' "${quiet:+ (in parallel; output in $log)}")"
  # A subshell counts no processor time of steps that run in parallel.
  if [ -n "$quiet" ]; then
    (time "$@" >"$log" 2>&1) 2>"$log.time" || code=$?
    if [ "$code" -ne 0 ]; then cat "$log"; else grep -h '^run.sh: WARNING' "$log" || true; fi
  else
    (time "$@" > >(tee "$log") 2>&1) 2>"$log.time" || code=$?
  fi
  # Beside the times, the shell reports there which signal ended the command.
  record "$name" "$code" "$(grep -xE '[0-9]+ [0-9]+ [0-9]+' "$log.time" || echo 0 0 0)"
  return "$code"
}
quiet=

format_check() {
  local files
  # New files too, which git does not know yet.
  mapfile -t files < <(git -c safe.directory='*' ls-files --cached --others --exclude-standard '*.cpp' '*.hpp' '*.h' '*.c')
  [ ${#files[@]} -gt 0 ] || { echo "git lists no source files"; return 1; }
  mapfile -t files < <(ls -d "${files[@]}" 2>/dev/null)
  clang-format --dry-run -Werror "${files[@]}"
}
# build PRESET [-DOPTION=VALUE...] [TARGET...]
build() {
  local preset=$1 options=()
  shift
  while [[ ${1-} == -D* ]]; do options+=("$1") && shift; done
  # Compilers allocate much memory. In virtual machines on which a page fault is slow (20 us), huge pages save a quarter
  # of clang's processor time.
  local GLIBC_TUNABLES=glibc.malloc.hugetlb=1
  export GLIBC_TUNABLES
  cmake --preset "$preset" "${options[@]}" && cmake --build --preset "$preset" ${1+--target "$@"}
}
# build_unit_tests AREA...: in the preset quick.
build_unit_tests() {
  local area available
  cmake --preset quick >/dev/null || return 1
  available=$(cmake --build --preset quick --target help | sed -n 's/^sluice_unit_tests_\([a-z_]*\):.*/\1/p')
  for area; do
    if ! grep -qx -- "$area" <<<"$available"; then
      echo "run.sh: unknown area '$area'; available: $(paste -s -d ' ' <<<"$available")" >&2
      return 2
    fi
  done
  build quick "${@/#/sluice_unit_tests_}"
}
driver_cases=(accept suspend c_api preemption daemon pause evictions hostile oversubscribed packets faults reset)
# driver_cases [OPTION...] -- CASE...: each case on a machine of tests/driver/run.sh.
driver_cases() {
  local options=() failed=0
  while [ "$1" != -- ]; do options+=("$1") && shift; done
  shift
  for each; do
    echo "--- $each"
    tests/driver/run.sh "${options[@]}" "tests/driver/cases/$each.sh" || failed=$?
  done
  return "$failed"
}
# on_driver DEVICE: what runs on amdkfd by default.
on_driver() {
  step "amdkfd on a faked $1" driver_cases --device "$1" -- "${driver_cases[@]}"
  step "amdkfd on a hive of two faked $1: reset" tests/driver/run.sh --device "$1,$1" --set hive=1 \
    tests/driver/cases/reset.sh
  step "amdkfd on two faked $1: address spaces" tests/driver/run.sh --device "$1,$1" tests/driver/cases/address_spaces.sh
  step "amdkfd on two faked $1: calls" tests/driver/run.sh --device "$1,$1" tests/driver/cases/conformance.sh
  step "sequences compared with amdkfd, $1" tests/conformance/differential.py --device "$1" --sequences 5000
  return 0
}
# dkms_package: of amdgpu with the batch commands, for the kernel package whose source the driver's test bed has.
dkms_package() {
  local version
  read -r _ version <tests/driver/source
  rm -rf build/dkms
  install_missing bc gcc-12 git kmod make pahole && adapters/kfd/kernel/dkms.sh --build "${version%%-*}+deb12-amd64" build/dkms
}
# batch_on_driver DEVICE: amdkfd with the batch commands.
batch_on_driver() {
  local options=(--patch adapters/kfd/kernel/batch)
  step "long: batch commands on a faked $1, lockdep" driver_cases "${options[@]}" --lockdep --memory 6G --device "$1" -- \
    batch preemption daemon faults reset
  for script in batch cases; do
    step "long: batch commands on two faked $1, KASAN: $script.calls" tests/driver/run.sh "${options[@]}" --kasan \
      --device "$1,$1" tests/driver/cases/conformance.sh $script.calls
  done
  step "long: batch commands on a faked $1, KASAN" driver_cases "${options[@]}" --kasan --device "$1" -- faults reset
  step "long: batch commands on a faked $1, two processors: fault matrix" tests/driver/run.sh "${options[@]}" --qemu \
    --device "$1" tests/driver/cases/fault_matrix.sh all
  return 0
}
# long_on_driver DEVICE: what --long adds on amdkfd, with checks of locks and memory accesses, and on two processors.
long_on_driver() {
  local seed=${SLUICE_TEST_SEED:-$RANDOM}
  echo "SLUICE_TEST_SEED=$seed"
  step "long: amdkfd on a faked $1, lockdep" driver_cases --lockdep --device "$1" -- "${driver_cases[@]}"
  step "long: amdkfd on two faked $1, KASAN: calls" tests/driver/run.sh --kasan --device "$1,$1" \
    tests/driver/cases/conformance.sh
  step "long: amdkfd on two faked $1, KASAN: random calls" tests/driver/run.sh --kasan --device "$1,$1" \
    tests/driver/cases/noise.sh "$seed" 200
  step "long: amdkfd on a faked $1, two processors" driver_cases --qemu --device "$1" -- "${driver_cases[@]}"
  step "long: fault matrix on a faked $1, two processors" tests/driver/run.sh --qemu --device "$1" \
    tests/driver/cases/fault_matrix.sh all
  step "long: amdkfd on two faked $1, two processors: calls" tests/driver/run.sh --qemu --device "$1,$1" \
    tests/driver/cases/conformance.sh
  step "long: amdkfd on two faked $1, two processors: random calls" tests/driver/run.sh --qemu --device "$1,$1" \
    tests/driver/cases/noise.sh "$seed" 100
  step "long: sequences compared with amdkfd, $1" tests/conformance/differential.py --qemu --device "$1" \
    --seed "$seed" --sequences 10000
  step "long: hostile processes, $1" tests/driver/run.sh --device "$1" tests/driver/cases/hostile.sh "$seed"
  step "long: amdkfd on two faked $1, KASAN: fuzz" tests/driver/fuzz.sh --seed "$seed" "$1"
  batch_on_driver "$1"
  return 0
}
# with_sanitizers: everything that clang builds. The build of tsan has Asio on epoll alone, and so is also what a build
# without io_uring must manage.
with_sanitizers() {
  step "asan: build of unit tests and fuzz targets" build asan sluice_unit_tests sluice_fuzz_targets &&
    { step "asan: unit tests" as_root ctest --preset asan -L unit -j2
      step "asan: fuzz targets" as_root ctest --preset asan -L fuzz -j2; }
  step "tsan: build of the tests with threads" build tsan sluice_threads_tests online_demo &&
    step "tsan: tests with threads" as_root ctest --preset tsan -L threads -j2
  return 0
}

# long_and_mostly_waiting: the long steps that need little processor time.
long_and_mostly_waiting() {
  step "long: all faults, ten minutes of false alarms" tests/faults.sh --long --build "$PWD/build/release"
  step "long: soak by debug sessions, 10 minutes" tests/soak.sh --minutes 10 --seed 1
  step "long: soak by batch commands, 10 minutes" tests/soak.sh --minutes 10 --seed 2
  return 0
}

if [ -n "$quick" ]; then
  step "format" format_check
  if [ ${#areas[@]} -gt 0 ]; then
    label="^($(IFS='|'; echo "${areas[*]}"))\$"
    step "quick: build" build_unit_tests "${areas[@]}" && step "quick: unit tests" ctest --preset quick -L unit -L "$label" -j2
  else
    step "quick: build" build quick sluice_unit_tests && step "quick: unit tests" ctest --preset quick -L unit -j2
  fi
else
  without_autogroups
  step "format" format_check
  [ -z "$long" ] || export SLUICE_TEST_LONG=1
  step "release: build" build release all all_verify_interface_header_sets
  released=$?
  # Each a process group of its own, which ends with this script.
  sanitizers='' kernel=''
  at_exit 'for group in $sanitizers $kernel; do kill -TERM -- "-$group" 2>/dev/null; done'
  as_root true || exit 1  # What runs in the background cannot ask for a password.
  set -m
  quiet=yes with_sanitizers &
  sanitizers=$!
  # Code 77: the kernel source cannot be downloaded. In CI that is an error. SCHED_IDLE takes the processor time that
  # the others leave.
  driver=1
  [ "$released" -ne 0 ] || { quiet=yes step "amdkfd: build" chrt --idle 0 tests/driver/run.sh & kernel=$!; }
  set +m
  [ "$released" -ne 0 ] || step "release: tests" as_root ctest --preset release -LE alone -j3
  wait "$sanitizers" || record "sanitizers" $? "0 0 0"
  sanitizers=
  if [ -n "$kernel" ]; then
    wait "$kernel"
    driver=$?
    kernel=
    grep -q '^amdkfd: build|' "$steps" || record "amdkfd: build" "$driver" "0 0 0"
  fi
  [ "$released" -ne 0 ] || step "release: tests that measure time" as_root ctest --preset release -L alone \
    --fixture-exclude-setup installed  # The tests before have installed it.
  if [ "$driver" -eq 0 ]; then
    step "amdkfd: patches" tests/driver/style.sh
    quiet=yes
    on_driver 942 &
    on_driver 1100
    wait $! || record "amdkfd on a faked 942" $? "0 0 0"
    quiet=
  fi
  if [ -n "$long" ]; then
    step "long: build of unit tests in release" build release -DSLUICE_UNIT_TESTS=ON sluice_unit_tests
    unit_tests=$?
    # Its figures need the processors: nothing else runs meanwhile.
    step "long: the owner's cases, 5 minutes each" tests/owner.sh --long
    set -m
    quiet=yes long_and_mostly_waiting &
    waiting=$!
    set +m
    at_exit "kill -TERM -- -$waiting 2>/dev/null"
    step "long: quick tests of one area" env -u SLUICE_TEST_LONG tests/run.sh --quick core
    [ $unit_tests -ne 0 ] || step "long: unit tests in release" as_root ctest --preset release -L unit -j2
    step "long: fuzz targets, 20 s each" tests/fuzz.sh --build "$PWD/build/asan"
    step "long: Slurm cluster of four nodes" tests/fleet/slurm.sh --long
    step "long: alerts of Prometheus on four nodes" tests/fleet/prometheus.sh
    step "long: commands over ssh on four nodes" tests/fleet/ssh.sh
    step "long: packages in a clean system" tests/packages.sh
    step "long: deliberate changes of the simulated device" tests/conformance/mutations.py
    step "long: programs for pods against Kubernetes' API server" as_root tests/adapters/fleet/kubernetes/api.py --real \
      "$PWD/build/release/bin/sluice"
    if [ "$driver" -eq 0 ]; then
      step "long: defects of the driver, and fixes" tests/driver/defects.sh
      step "long: DKMS package with the batch commands" dkms_package
      for device in 90a 906; do
        step "long: amdkfd on a faked $device" driver_cases --device $device -- "${driver_cases[@]}" amd_libraries
      done
      quiet=yes
      long_on_driver 942 &
      long_on_driver 1100
      wait $! || record "long: amdkfd on a faked 942" $? "0 0 0"
      quiet=
    fi
    wait "$waiting" || record "long: faults and soak" $? "0 0 0"
  fi
fi

wall=$(($(date +%s) - began))
echo
echo "=== summary: step, wall time, CPU time (user and system)"
cpu=0
failed=
skipped=0
while IFS='|' read -r name code took; do
  read -r real user system <<<"$took"
  cpu=$((cpu + user + system))
  verdict=passed
  case $code in
    0) ;;
    77) verdict=skipped; skipped=$((skipped + 1)) ;;
    *) verdict="FAILED, code $code"; failed=yes ;;
  esac
  printf '%-44s %5d s %5d s  %s\n' "$name" "$real" $((user + system)) "$verdict"
done <"$steps"
stolen=$(($(steal) - stolen_before))
printf 'wall time %d min %d s, CPU time %d s on %d processors, stolen by other machines %d s\n' \
  $((wall / 60)) $((wall % 60)) "$cpu" "$(nproc)" $((stolen / $(getconf CLK_TCK)))
if [ -n "$failed" ]; then
  echo "FAILED"
  exit 1
fi
echo "all passed$([ "$skipped" -eq 0 ] || echo ", except $skipped skipped")"
