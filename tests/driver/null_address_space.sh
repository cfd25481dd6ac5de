#!/usr/bin/env bash
# usage: tests/driver/null_address_space.sh
# Reproduce the bug of adapters/kfd/kernel/README.md: a process with an address space on the first of two GPUs is
# suspended. The kernel stops without the fix, and does not with it. Needs the programs of a release build.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

script=$PWD/tests/driver/null_address_space.calls
calls=(build/release/bin/kfd_calls --check "$script")
for device in 942 1100; do
  code=0
  output=$(tests/driver/run.sh --device $device,$device "${calls[@]}" 2>&1) || code=$?
  if [ "$code" -ne 125 ] || ! grep -q 'Kernel panic.*Kernel mode fault at addr' <<<"$output"; then
    echo "null_address_space.sh: the kernel did not stop (code $code) on $device: $output" >&2
    exit 1
  fi
  echo "gfx$device: the driver followed a null pointer"
  tests/driver/run.sh --device $device,$device --patch adapters/kfd/kernel/flush-tlb-only-where-suspended.patch "${calls[@]}"
  echo "gfx$device: the patched driver did not"
done
