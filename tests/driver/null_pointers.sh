#!/usr/bin/env bash
# usage: tests/driver/null_pointers.sh
# Reproduce the null pointers of adapters/kfd/kernel/README.md: the kernel stops without the fix, and does not with it.
# Needs the programs of a release build.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

# reproduce CALLS PATCH OPTION...
reproduce() {
  local calls=(build/release/bin/kfd_calls --check "$PWD/tests/driver/$1") patch=adapters/kfd/kernel/$2 code=0 output
  output=$(tests/driver/run.sh "${@:3}" "${calls[@]}" 2>&1) || code=$?
  if [ "$code" -ne 125 ] || ! grep -q 'Kernel panic.*Kernel mode fault at addr' <<<"$output"; then
    echo "null_pointers.sh: the kernel did not stop (code $code) at $1, ${*:3}: $output" >&2
    exit 1
  fi
  echo "$1, ${*:3}: the driver followed a null pointer"
  tests/driver/run.sh "${@:3}" --patch "$patch" "${calls[@]}"
  echo "$1, ${*:3}: the patched driver did not"
}

for device in 942 1100; do
  reproduce null_address_space.calls flush-tlb-only-where-suspended.patch --device $device,$device
  reproduce exit_during_enable.calls create-process-with-one-mm.patch --device $device --set unmap_us=2000000
done
