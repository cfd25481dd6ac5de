#!/usr/bin/env bash
# usage: tests/driver/witness.sh [--dbgapi DIR] [--thunk DIR] [--device 942|1100|90a]
# Run AMD's own libraries on the real driver and on the simulated device, as witnesses from outside. See README.md.
# CI does not run it. It needs the programs of a release build. Results of both devices follow each other; the exit code
# is 1 if a step fails on one of them.
# Options:
#   --dbgapi DIR   Source of ROCdbgapi, which tests/driver/witness.cpp uses.
#   --thunk DIR    Source of libhsakmt (of ROCR-Runtime), for tests/adapters/sim/thunk_test.cpp.
#   --device NAME  GPU of both devices: 942, 1100 or 90a [942].
# The sources stay as they are. All that is built is in build/witness.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/../.."
. examples/common.sh
top=$PWD
build=$top/build/witness
bin=$top/build/release/bin

# fail REASON [CODE]
fail() { echo "witness.sh: $1" >&2; exit "${2-1}"; }

dbgapi=
thunk=
device=942
while [ $# -gt 0 ]; do
  case $1 in
    --dbgapi) dbgapi=$(realpath "${2-}") || exit 2; shift ;;
    --thunk) thunk=$(realpath "${2-}") || exit 2; shift ;;
    --device) device=${2-}; shift ;;
    -h | --help) sed -n '2,10s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) sed -n '2s/^# //p' "$0" >&2; exit 2 ;;
  esac
  shift
done
[[ $device =~ ^(942|1100|90a)$ ]] || fail "invalid --device '$device'" 2
[ -n "$dbgapi$thunk" ] || fail "neither --dbgapi nor --thunk is given" 2
[ -x "$bin/integration_target" ] || fail "no release build: $bin/integration_target does not exist" 2
mkdir -p "$build"

# cmake_build NAME SOURCE OPTION...
cmake_build() {
  local name=$1 source=$2
  shift 2
  cmake -S "$source" -B "$build/$name" -G Ninja -DCMAKE_BUILD_TYPE=Debug -DCMAKE_C_FLAGS_DEBUG=-O0 -DCMAKE_CXX_FLAGS_DEBUG=-O0 "$@" >"$build/$name.log" 2>&1 &&
    cmake --build "$build/$name" >>"$build/$name.log" 2>&1 ||
    { tail -n 40 "$build/$name.log" >&2; fail "cannot build $source"; }
}

# The profile of the simulated device that has the shape of the faked hardware.
profile=$build/$device.toml
case $device in
  90a) sed 's/^name = .*/name = "gfx90a"/; s/90402/90010/' tests/conformance/gfx942.toml >"$profile" ;;
  *) cp "tests/conformance/gfx$device.toml" "$profile" ;;
esac

code=0
# on_both COMMAND...
on_both() {
  echo "--- real driver, gfx$device"
  tests/driver/run.sh --device "$device,$device" "$@" || { echo "exit code $?"; code=1; }
  echo "--- simulated device, gfx$device"
  examples/with_simulated_gpu.sh --profile "$profile" adapters/sim/in_place.sh "$@" || { echo "exit code $?"; code=1; }
}

if [ -n "$dbgapi" ]; then
  install_missing cmake g++ ninja-build libamd-comgr-dev libhsa-runtime-dev pci.ids
  # Debian's libamd-comgr-dev is older than the folder of its header.
  mkdir -p "$build/include/amd_comgr"
  ln -sf /usr/include/amd_comgr.h "$build/include/amd_comgr/amd_comgr.h"
  cmake_build dbgapi "$dbgapi" -DENABLE_ASSERTIONS=ON -DCMAKE_CXX_FLAGS="-isystem $build/include"
  g++ -std=c++20 -O0 -g -Wall -Wextra -o "$build/witness" tests/driver/witness.cpp \
    -isystem "$build/dbgapi/include/amd-dbgapi" -L "$build/dbgapi/lib" -lrocm-dbgapi -Wl,-rpath,"$build/dbgapi/lib"
  on_both "$build/witness" "$bin/integration_target"
fi

# With libhsakmt.a of today instead of Debian's library.
if [ -n "$thunk" ]; then
  install_missing cmake g++ ninja-build libdrm-dev libgtest-dev libnuma-dev pkg-config
  [ ! -d "$thunk/libhsakmt" ] || thunk=$thunk/libhsakmt
  cmake_build thunk "$thunk"
  g++ -std=c++20 -O0 -Wall -Wextra -o "$build/sim_thunk" tests/adapters/sim/thunk_test.cpp tests/support/child_process.cpp \
    -I tests/support -I adapters/sim/src -I adapters/sim/include -I adapters/kfd/include -I core/vocab/include \
    -isystem "$thunk/include" -isystem "$thunk/include/hsakmt" "$build/thunk/libhsakmt.a" \
    -lnuma -ldrm -ldrm_amdgpu -lgtest -lgtest_main
  # shellcheck disable=SC2016 # expanded there
  on_both bash -c '
    if [ -z "${SLUICE_SIM_ROOT-}" ]; then
      . tests/driver/cases/common.sh
      show_processor
      echo "not possible: caches and GB_ADDR_CONFIG, which the faked hardware does not have"
      export SLUICE_TEST_ON_DRIVER=1 GTEST_FILTER=-*.SeesCachesOfEachLevel:*.SetsATrapHandlerAndReadsTheTileConfiguration
    fi
    "$0" --gtest_brief=1 2>&1 | grep -v "^amdgpu_device_initialize"; exit "${PIPESTATUS[0]}"' "$build/sim_thunk"
fi
exit "$code"
