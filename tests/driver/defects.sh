#!/usr/bin/env bash
# usage: tests/driver/defects.sh
# Reproduce the defects of amdkfd in adapters/kfd/kernel/README.md: the kernel complains or keeps a process without the
# fix, and does not with it. Needs the programs of a release build.
set -euo pipefail
[ $# -eq 0 ] || { sed -n '2,4s/^# //p' "${BASH_SOURCE[0]}"; [ "$1" = --help ] && exit 0 || exit 2; }
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

# reproduce DEFECT CALLS PATCH OPTION...: DEFECT is a pattern of what the kernel or kfd_calls reports.
reproduce() {
  local calls=(build/release/bin/kfd_calls --check "$PWD/tests/driver/$2") patch=adapters/kfd/kernel/$3 code=0 output
  output=$(tests/driver/run.sh "${@:4}" "${calls[@]}" 2>&1) || code=$?
  if [ "$code" -eq 0 ] || ! grep -q "$1" <<<"$output"; then
    echo "defects.sh: no defect (code $code) at $2, ${*:4}: $output" >&2
    exit 1
  fi
  echo "$2, ${*:4}: $1"
  tests/driver/run.sh "${@:4}" --patch "$patch" "${calls[@]}"
  echo "$2, ${*:4}: the patched driver does not have this defect"
}

null_pointer='Kernel panic.*Kernel mode fault at addr'
for device in 942 1100; do
  reproduce "$null_pointer" null_address_space.calls flush-tlb-only-where-suspended.patch --device $device,$device
  reproduce "$null_pointer" exit_during_enable.calls create-process-with-one-mm.patch --device $device --set unmap_us=2000000
done
reproduce 'KASAN: slab-use-after-free in kfd_dbg_trap_disable' taken_over_session.calls keep-debugger-if-enable-fails.patch --kasan
reproduce 'result: *no$' bad_packet.calls release-process-of-bad-queue.patch --device 1100,1100
