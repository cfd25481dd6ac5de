#!/bin/bash
# AMD's libhsakmt, unmodified, as tests/adapters/sim/thunk_test.cpp uses it, and rocminfo with ROCr, which lists the GPU.
# They know gfx90a and gfx906.
. "${BASH_SOURCE[0]%/*}/common.sh"

show_processor
PATH=$PWD/bin:$PATH rocminfo >rocminfo.log 2>&1 || fail "rocminfo ended with code $?"
grep -qE 'Name: +gfx90' rocminfo.log || fail "rocminfo lists no GPU"
grep -E 'Name: +gfx90|Compute Unit|Marketing' rocminfo.log
# The faked hardware has other caches, no tiles and less memory than these three expect.
SLUICE_TEST_ON_DRIVER=1 sim_thunk --gtest_filter='-*.SeesCachesOfEachLevel:*.SetsATrapHandler*:*.LeavesNoDeviceMemoryBehind*' \
  >thunk.log 2>&1 || { grep -E '^\[  FAILED' thunk.log; fail "sim_thunk"; }
grep -E '^\[  PASSED' thunk.log
