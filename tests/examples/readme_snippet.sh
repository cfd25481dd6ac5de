#!/usr/bin/env bash
# The README shows code that compiles: the block after "This code is from [examples/01_embed]" is what stands between
# the [embed] marks of that example, two columns to the left. With --write, puts it there.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

code=$(sed -n '/\/\/ \[embed\]/,/\/\/ \[\/embed\]/{//!{s/^  //;p}}' examples/01_embed/main.cpp)
in_readme=$(awk '/^This code is from \[examples\/01_embed\]/ {found=1} found && /^```$/ {exit}
                 inside {print} found && /^```cpp$/ {inside=1}' README.md)
if [ -z "$code" ]; then
  echo "examples/01_embed/main.cpp has no [embed] marks" >&2
  exit 1
fi
if [ "${1-}" = --write ]; then
  CODE=$code awk '/^This code is from \[examples\/01_embed\]/ {found=1}
    found && /^```cpp$/ {print; print ENVIRON["CODE"]; skip=1; found=0; next}
    skip && /^```$/ {skip=0} !skip {print}' README.md >README.md.new
  mv README.md.new README.md
  exit 0
fi
diff -u <(echo "$code") <(echo "$in_readme") && echo "the README's snippet is the example's"
