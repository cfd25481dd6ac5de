#!/usr/bin/env bash
# usage: tests/soak.sh [--minutes N] [--seed N] [--json FILE] [--logs DIRECTORY] [--verbose]
# Build and run the soak (tests/soak/README.md). Installs missing Debian packages first.
# It runs the daemon, its agent, clients and offline processes on the simulated device, under churn and faults.
#   --minutes N       Duration in minutes, 0.5 to 10080, fractions allowed [2].
#   --seed N          Seed of the events [random]. Even: batch commands; odd: debug sessions.
#   --json FILE       Also write the results to FILE.
#   --logs DIRECTORY  Keep the output of daemon and workers in DIRECTORY.
#   --verbose         Print each fault when it happens.
# Exit code 0: no kernel lost, no queue stuck, no process left, no leak. 1: a check failed. 2: wrong command line.
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
    -h | --help) sed -n '2,10s/^# //p' tests/soak.sh; exit 0 ;;
    --minutes)
      [[ ${2-} =~ ^[0-9]{1,5}(\.[0-9]+)?$ ]] && awk "BEGIN { exit !($2 >= 0.5 && $2 <= 10080) }" ||
        refuse "invalid --minutes '${2-}': expected a number from 0.5 to 10080" ;;
    --seed) [[ ${2-} =~ ^[0-9]{1,18}$ ]] || refuse "invalid --seed '${2-}': expected a whole number" ;;
    --json) [ -n "${2-}" ] && [ -d "$(cd "$caller" && dirname "$2")" ] || refuse "invalid --json '${2-}': expected a file in an existing directory" ;;
    --logs) [ -d "$(cd "$caller" && readlink -f "${2-}")" ] || refuse "invalid --logs '${2-}': expected an existing directory" ;;
    --verbose) shift; continue ;;
    *) refuse "unknown option '$1'" ;;
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
