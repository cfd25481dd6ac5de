#!/usr/bin/env bash
# usage: tests/soak.sh [--minutes N] [--seed N] [--json FILE] [--logs DIRECTORY] [--verbose]
# Installs what is missing, builds the soak and runs it for N minutes (default 2, at least 0.5; fractions
# will do): the daemon, its agent, clients and offline processes on the simulated device, under churn and
# faults. Ends with 0 when nothing was lost, stuck or left and nothing rises: tests/soak/README.md.
set -euo pipefail

caller=$PWD
cd "$(dirname "${BASH_SOURCE[0]}")/.."
top=$PWD
. examples/common.sh

# Help and mistakes before anything is built.
refuse() {
  echo "soak.sh: $1" >&2
  sed -n '2s/^# //p' tests/soak.sh >&2
  exit 2
}
arguments=("$@")
while [ $# -gt 0 ]; do
  case $1 in
    -h | --help) sed -n '2,5s/^# //p' tests/soak.sh; exit 0 ;;
    --minutes)
      [[ ${2-} =~ ^[0-9]{1,5}(\.[0-9]+)?$ ]] && awk "BEGIN { exit !($2 >= 0.5 && $2 <= 10080) }" ||
        refuse "--minutes takes a number from 0.5 to 10080, not '${2-}'" ;;
    --seed) [[ ${2-} =~ ^[0-9]{1,18}$ ]] || refuse "--seed takes a whole number, not '${2-}'" ;;
    --json) [ -n "${2-}" ] && [ -d "$(cd "$caller" && dirname "$2")" ] || refuse "--json takes a file in a directory that is there, not '${2-}'" ;;
    --logs) [ -d "$(cd "$caller" && readlink -f "${2-}")" ] || refuse "--logs takes a directory, not '${2-}'" ;;
    --verbose) shift; continue ;;
    *) refuse "there is no option '$1'" ;;
  esac
  shift 2
done

install_missing "${sluice_build_packages[@]}" "${sluice_unit_test_packages[@]}"
mkdir -p build
cmake --preset release >build/soak.configure.log 2>&1 || { cat build/soak.configure.log; exit 1; }
cmake --build --preset release --target soak
without_autogroups
cd "$caller"
as_root "$top/build/release/bin/soak" "${arguments[@]}"
