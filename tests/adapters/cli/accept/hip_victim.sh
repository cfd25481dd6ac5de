#!/usr/bin/env bash
# usage: hip_victim.sh SOURCE
# That hipcc compiles the victim of `sluice accept` for AMD GPUs. Skipped where there is no hipcc.
set -euo pipefail
if ! command -v hipcc >/dev/null; then
  echo "skipped: hipcc is not installed (Debian: apt install hipcc libamdhip64-dev)"
  exit 77
fi
work=$(mktemp -d)
trap 'rm -rf --one-file-system "$work"' EXIT
# As the page says it; there is no GPU here whose generation hipcc could ask for.
line=$(grep -o '^hipcc .*' "$(dirname "${BASH_SOURCE[0]}")/../../../../adapters/cli/ACCEPT.md")
cd "$(dirname "$1")"
eval "${line/-o hip-victim/--offload-arch=gfx90a -Wall -Wextra -Werror -o $work/victim}"
# Without a GPU it says so in one line; that much of it can be run anywhere.
code=0
"$work/victim" --queues 2 2>"$work/said" || code=$?
[ "$code" = 1 ] && [ "$(wc -l <"$work/said")" -le 1 ] || { cat "$work/said" && exit 1; }
