#!/usr/bin/env bash
# usage: tests/coverage.sh
# Print the share of lines in core, policies and adapters that the tests of tests/run.sh execute, per folder.
# Builds everything with clang's coverage in build/coverage. There it runs what tests/run.sh runs by default: the unit
# tests of the preset asan and all tests of the preset release. A test that is shorter in one of these presets runs in
# its longer form. In place of the preset tsan it runs the tests of the event loop on epoll. It leaves out the labels
# fuzz and install, whose tests build programs of their own.
set -uo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
. examples/common.sh
case ${1-} in
  '') ;;
  -h | --help) sed -n '2,7s/^# //p' tests/coverage.sh; exit 0 ;;
  *) sed -n '2s/^# //p' tests/coverage.sh >&2; exit 2 ;;
esac

install_missing "${sluice_build_packages[@]}" "${sluice_unit_test_packages[@]}" "${sluice_test_packages[@]}" llvm-14 ||
  exit 1
folder=$PWD/build/coverage
profiles=$folder/profiles
# In a file that is mapped, counts of programs that are killed are kept, too.
flags="-O0 -fprofile-instr-generate=$profiles/%m%c.profraw -fcoverage-mapping -mllvm -runtime-counter-relocation"
cmake -S . -B "$folder" -G Ninja -DCMAKE_BUILD_TYPE=Debug -DCMAKE_C_COMPILER=clang -DCMAKE_CXX_COMPILER=clang++ \
  -DCMAKE_C_FLAGS="$flags" -DCMAKE_CXX_FLAGS="$flags" -DSLUICE_FAST_BUILD=ON -DCMAKE_UNITY_BUILD=ON &&
  cmake --build "$folder" || exit 1
rm -rf "$profiles"
mkdir -p "$profiles"
chmod 777 "$profiles"  # Some programs run as other users.
without_autogroups
unset SLUICE_TEST_LONG  # Only tests/run.sh --long sets it.
as_root ctest --test-dir "$folder" -LE 'fuzz|install' -j3 --output-on-failure ||
  echo "coverage.sh: some tests failed; the lines that they executed are counted" >&2

llvm-profdata-14 merge -sparse "$profiles"/*.profraw -o "$folder/all.profdata" || exit 1
objects=()
for each in "$folder"/bin/* "$folder"/lib/*.so*; do
  [ -L "$each" ] || ! [ -f "$each" ] || objects+=(-object "$each")
done
llvm-cov-14 export -summary-only -instr-profile "$folder/all.profdata" "${objects[@]}" 2>/dev/null |
  python3 -c '
import collections, json, sys
total = collections.defaultdict(lambda: [0, 0])
for file in json.load(sys.stdin)["data"][0]["files"]:
    name = file["filename"].removeprefix(sys.argv[1] + "/")
    folders = name.split("/")
    if folders[0] not in ("core", "policies", "adapters"):
        continue
    lines = file["summary"]["lines"]
    for key in "/".join(folders[:1 if folders[0] == "policies" else 2]), "all":
        total[key][0] += lines["covered"]
        total[key][1] += lines["count"]
for key, (covered, count) in sorted(total.items(), key=lambda each: (each[0] == "all", each[0])):
    print(f"{key:20} {covered:7} of {count:7} lines, {covered / count:6.2%}")
' "$PWD"
