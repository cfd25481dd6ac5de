#!/usr/bin/env bash
# usage: tests/driver/style.sh
# Check that the patches in adapters/kfd/kernel apply to the kernel source that run.sh has downloaded.
# Check the style of those in batch with the kernel's own program.
set -euo pipefail
[ $# -eq 0 ] || { sed -n '2,4s/^# //p' "${BASH_SOURCE[0]}"; [ "$1" = --help ] && exit 0 || exit 2; }
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
. examples/common.sh
tree=$(echo "$PWD"/build/driver/source-"$(cut -d' ' -f2 tests/driver/source)")
[ -d "$tree" ] || { echo "style.sh: no kernel source; download it: tests/driver/run.sh" >&2; exit 1; }

work=$(mktemp -d "${TMPDIR:-/tmp}/sluice-style.XXXXXX")
at_exit "rm -rf $work"
# apply NAME PATCH...: to a copy of the files that they change.
apply() {
  local name=$1 file
  shift
  mkdir "$work/$name"
  for file in $(sed -n 's,^--- a/,,p' "$@" | sort -u); do
    # A patch may change a file that one before it makes.
    [ ! -e "$tree/$file" ] || (cd "$tree" && cp --parents "$file" "$work/$name")
  done
  cat "$@" | patch -s -d "$work/$name" -p1
}
for each in adapters/kfd/kernel/*.patch; do apply "${each##*/}" "$each"; done
apply fixes adapters/kfd/kernel/*.patch
apply batch adapters/kfd/kernel/batch/*.patch
apply both adapters/kfd/kernel/*.patch adapters/kfd/kernel/batch/*.patch
# Who sends them signs them. MAINTAINERS has the folders of the new files.
# In a folder without git, for checkpatch takes files that git knows for source code.
cp adapters/kfd/kernel/batch/*.patch "$work"
cd "$work"
perl "$tree/scripts/checkpatch.pl" --no-tree --strict --no-signoff --ignore FILE_PATH_CHANGES --quiet ./*.patch
echo "the patches apply, and their style is the kernel's"
