#!/usr/bin/env bash
# Builds and runs the benchmarks: see tests/bench.sh --help. Installs missing Debian packages first.
set -euo pipefail

caller=$PWD
cd "$(dirname "${BASH_SOURCE[0]}")/.."
top=$PWD
. examples/common.sh

install_missing python3
# Help and mistakes before anything is built.
case " $* " in *" -h "* | *" --help "*) exec python3 tests/bench/table.py --help ;; esac
python3 tests/bench/table.py --check "$@"
install_missing "${sluice_build_packages[@]}" "${sluice_unit_test_packages[@]}" libbenchmark-dev
mkdir -p build
cmake --preset release >build/bench.configure.log 2>&1 || { cat build/bench.configure.log; exit 1; }
cmake --build --preset release --target benchmarks
cd "$caller"
as_root python3 "$top/tests/bench/table.py" "$@"
