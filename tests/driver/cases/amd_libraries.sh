#!/bin/bash
# AMD's libhsakmt, unmodified, as tests/adapters/sim/thunk_test.cpp uses it, and rocminfo with ROCr, which lists the GPU.
# They know gfx90a and gfx906.
. "${BASH_SOURCE[0]%/*}/common.sh"

# rocminfo looks for the driver's module, and libhsakmt for the vendor and the caches of the processor, which User Mode
# Linux does not show.
mkdir -p bin
printf '#!/bin/sh\necho "amdgpu 0 0"\n' >bin/lsmod
chmod +x bin/lsmod
printf 'processor\t: 0\nvendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel\t\t: 1\nmodel name\t: AMD EPYC\nstepping\t: 1\ncpu cores\t: 1\napicid\t\t: 0\n\n' >cpuinfo
mount --bind cpuinfo /proc/cpuinfo
mount -t tmpfs tmpfs /sys/devices/system
for cache in node/node0/cpu0/cache/index0 cpu/cpu0/cache/index0; do
  mkdir -p /sys/devices/system/$cache
  for property in level=1 type=Data size=32K coherency_line_size=64 number_of_sets=64 ways_of_associativity=8 \
    physical_line_partition=1 shared_cpu_list=0 shared_cpu_map=1; do
    echo "${property#*=}" >"/sys/devices/system/$cache/${property%%=*}"
  done
done
PATH=$PWD/bin:$PATH rocminfo >rocminfo.log 2>&1 || fail "rocminfo ended with code $?"
grep -qE 'Name: +gfx90' rocminfo.log || fail "rocminfo lists no GPU"
grep -E 'Name: +gfx90|Compute Unit|Marketing' rocminfo.log
# The faked hardware has other caches, no tiles and less memory than these three expect.
SLUICE_TEST_ON_DRIVER=1 sim_thunk --gtest_filter='-*.SeesCachesOfEachLevel:*.SetsATrapHandler*:*.LeavesNoDeviceMemoryBehind*' \
  >thunk.log 2>&1 || { grep -E '^\[  FAILED' thunk.log; fail "sim_thunk"; }
grep -E '^\[  PASSED' thunk.log
