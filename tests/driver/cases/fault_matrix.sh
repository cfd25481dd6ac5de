#!/bin/bash
# usage: fault_matrix.sh [all]
# The fault matrix (tests/faults) with debug trap, and with batch commands if the driver has them, in QEMU. With `all`,
# all cells; else a part of them.
. "${BASH_SOURCE[0]%/*}/common.sh"
# The kernel of User Mode Linux corrupts memory when a process with io_uring's rings forks.
grep -qw 9p /proc/filesystems || fail "use --qemu"
export SLUICE_TEST_ON_DRIVER=1 SLUICE_FAULTS="${1-}"

echo "real driver, faked hardware"
faults_matrix_test --gtest_filter='Cells/*:FaultsOfExit.*' >matrix.log 2>&1 ||
  {
    # Of each test that failed, the whole output.
    awk '/^\[ RUN/ { test = "" } { test = test $0 "\n" } /^\[  FAILED.*ms\)$/ { printf "%s", test }' matrix.log
    fail "faults_matrix_test"
  }
grep -E '^(  [a-z]|\[  PASSED)' matrix.log
