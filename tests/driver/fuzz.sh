#!/usr/bin/env bash
# usage: tests/driver/fuzz.sh [--seconds N] [--seed N] [DEVICE...]
# Make random driver calls on two GPUs of each DEVICE [942 1100], with a kernel that checks its memory accesses. The
# driver has the fixes of adapters/kfd/kernel, without which these calls stop it, and the batch commands.
#   --seconds N  Duration per device [120].
#   --seed N     Seed of libFuzzer [1].
# A finding ends the run with an error. It prints the input, which `build/driver/fuzz FILE` repeats in such a machine.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
. examples/common.sh

seconds=120
seed=1
devices=()
while [ $# -gt 0 ]; do
  case $1 in
    --seconds) seconds=${2-}; shift ;;
    --seed) seed=${2-}; shift ;;
    -h | --help) sed -n '2,7s/^# \{0,1\}//p' tests/driver/fuzz.sh; exit 0 ;;
    -*) sed -n '2s/^# //p' tests/driver/fuzz.sh >&2; exit 2 ;;
    *) devices+=("$1") ;;
  esac
  shift || break
done
[[ "$seconds $seed" =~ ^[1-9][0-9]*\ [1-9][0-9]*$ ]] || { echo "fuzz.sh: --seconds and --seed must be whole numbers from 1 on" >&2; exit 2; }

install_missing clang || exit 1
mkdir -p build/driver
clang++ -std=c++20 -O1 -fsanitize=fuzzer -Iadapters/kfd/include -Iadapters/kfd/experimental/include -Iadapters/sim/include \
  -Icore/vocab/include -Itests/fuzz -Itests/support -Itests/conformance tests/driver/fuzz.cpp adapters/kfd/src/roots.cpp -o build/driver/fuzz.$$
mv build/driver/fuzz.$$ build/driver/fuzz
[ ${#devices[@]} -gt 0 ] || devices=(942 1100)
for each in "${devices[@]}"; do
  echo "fuzz.sh: $each, $seconds s, seed $seed" >&2
  tests/driver/run.sh --kasan --device "$each,$each" --memory 4G --patch adapters/kfd/kernel --patch adapters/kfd/kernel/batch \
    tests/driver/cases/fuzz.sh "$seconds" "$seed"
done
