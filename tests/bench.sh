#!/usr/bin/env bash
# usage: tests/bench.sh [--quick] [--only REGEX] [--json FILE] [--write DOCUMENT]
# Installs what is missing, builds the benchmarks and runs them: a table of figures, each beside its floor, and the same
# as JSON in build/bench.json. Needs root for the simulated device. Give it a machine that does nothing else.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
case ${1-} in -h | --help) sed -n '2,4s/^# //p' tests/bench.sh && exit 0 ;; esac
. examples/common.sh

install_missing "${sluice_build_packages[@]}" "${sluice_test_packages[@]}"
mkdir -p build
cmake --preset release >build/bench.configure.log 2>&1 || { cat build/bench.configure.log; exit 1; }
cmake --build --preset release --target benchmarks
as_root python3 tests/bench/table.py build/release/bin --json build/bench.json "$@"
