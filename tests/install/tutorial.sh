#!/usr/bin/env bash
# usage: tutorial.sh FOLDER PREFIX WORK
# Types every command of FOLDER/README.md, in a copy of the folder outside the tree, with sluice installed in
# PREFIX. Where a block of text follows a block of commands, that is what they print.
set -euo pipefail
folder=$1 prefix=$2 work=$3
rm -rf --one-file-system "$work"
mkdir -p "$work/blocks"
cp -r "$folder" "$work/copy"

# Blocks as files: 01.sh, 01.text, 02.sh ...
awk -v out="$work/blocks" '
  /^```$/ {inside=0; close(file)}
  inside {print > file}
  /^```sh$/ {file = sprintf("%s/%02d.sh", out, ++n); printf "" > file; inside=1}
  /^```text$/ {file = sprintf("%s/%02d.text", out, n); printf "" > file; inside=1}' "$folder/README.md"
[ "$(find "$work/blocks" -name '*.sh' | wc -l)" -ge 5 ]
[ "$(find "$work/blocks" -name '*.text' | wc -l)" -ge 3 ]

export SLUICE_PREFIX=$prefix
cd "$work/copy"
for block in "$work"/blocks/*.sh; do
  echo "--- $(basename "$block")"
  cat "$block"
  # In this shell: the first block sets variables for the others.
  # shellcheck source=/dev/null
  source "$block" >"$work/output" || { cat "$work/output"; exit 1; }
  if [ -f "${block%.sh}.text" ]; then
    diff -u "${block%.sh}.text" "$work/output"
  fi
done
# What was typed ran from the prefix.
[ "$(command -v sluice)" = "$prefix/bin/sluice" ]
# What the page promises about the source, and what the wrong file says.
[ "$(wc -l <break_even.cpp)" -le 60 ]
printf '[policy]\nplugin = "README.md"\n' >wrong.toml
if build/try_policy wrong.toml 2>wrong; then
  echo "try_policy took a README for a plugin" >&2
  exit 1
fi
grep -q "try_policy: wrong.toml:2: README.md: is not a shared library" wrong
# It plays to sluice's own policies, too, and says what is missing.
printf '[policy]\nname = "fixed_timeslice"\nslice = "50ms"\n' >own.toml
build/try_policy own.toml >played
grep -qx ' 154.0 ms  offline resumed' played
printf '[policy]\nname = "fixed_timeslices"\n' >own.toml
build/try_policy own.toml 2>wrong || true
grep -q "try_policy: own.toml:1: unknown policy 'fixed_timeslices'; available: deadline, " wrong
printf '[scheduler]\n' >own.toml
build/try_policy own.toml 2>wrong || true
grep -qx "try_policy: own.toml: the table \[policy\] is missing; add it, with name or plugin" wrong
echo "every command of the page does what it says"
