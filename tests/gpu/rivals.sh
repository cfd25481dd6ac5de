#!/usr/bin/env bash
# usage: tests/gpu/rivals.sh DIR
# Build XSched for 'nvidia.sh --rivals DIR'. DIR/xsched-src is a clone of
# https://github.com/XpuOS/xsched with its submodules; the script writes
# DIR/xsched. It needs CMake and g++, but no GPU, CUDA toolkit or network.
# Exit code 0: built; 1: the build failed; 2: wrong usage.
set -euo pipefail

if [ $# -ne 1 ] || [ ! -r "$1/xsched-src/CMakeLists.txt" ]; then
  sed -n '2,6s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2
  exit 2
fi
source=$(cd "$1" && pwd)/xsched-src
target=$(dirname "$source")/xsched
build=$(mktemp -d)
trap 'rm -rf "$build"' EXIT
jobs=$(nproc)

# -w: the sources treat warnings as errors.
CFLAGS=-w CXXFLAGS=-w cmake -S "$source" -B "$build" -DCMAKE_BUILD_TYPE=Release -DPLATFORM_CUDA=ON >"$build/log" 2>&1 &&
  cmake --build "$build" --target xserver shimcuda -j "$((jobs < 16 ? jobs : 16))" >>"$build/log" 2>&1 || {
  grep -m 5 -i 'error' "$build/log" >&2 || tail -5 "$build/log" >&2
  exit 1
}
rm -rf "$target"
mkdir -p "$target/bin" "$target/lib"
cp "$build/service/xserver" "$target/bin"
cp "$build/preempt/libpreempt.so" "$build/platforms/cuda/libhalcuda.so" "$build/platforms/cuda/libshimcuda.so" "$target/lib"
# Programs that ask for the driver's library get the shim.
ln -s libshimcuda.so "$target/lib/libcuda.so"
ln -s libshimcuda.so "$target/lib/libcuda.so.1"
# A tree without Git may bring its revision.
if [ -r "$source/REVISION" ]; then
  cp "$source/REVISION" "$target/REVISION"
else
  git -c safe.directory='*' -C "$source" describe --always --long --dirty --tags >"$target/REVISION"
fi
echo "built $target: $(cat "$target/REVISION")"
