#!/usr/bin/env bash
# Install missing packages, build, and run the demo on a simulated GPU.
# The options are those of sluice-demo: examples/demo.sh --help
# With --gpu, run torch_server/demo.py on a real GPU: examples/demo.sh --gpu --help
set -euo pipefail

top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
options=()
for argument; do
  [ "$argument" = --gpu ] || options+=("$argument")
done
if [ ${#options[@]} -lt $# ]; then
  command -v python3 >/dev/null || {
    echo "demo.sh: python3 is missing; install it" >&2
    exit 2
  }
  exec python3 -B "$top/examples/torch_server/demo.py" ${options[@]+"${options[@]}"}
fi
. "$top/examples/common.sh"
demo=$top/build/release/bin/sluice-demo

profile=mi300x
previous=
for argument; do
  case $argument in
    --profile=*) profile=${argument#--profile=} ;;
    -h | --help)
      echo "usage: examples/demo.sh [OPTIONS OF sluice-demo], or examples/demo.sh --gpu --help"
      echo "Install missing packages (apt), build into build/release, and run sluice-demo as root in its"
      echo "own mount namespace."
      exec cat "$top/examples/demo/help.txt"  # What sluice-demo says: a test compares.
      ;;
  esac
  [ "$previous" != --profile ] || profile=$argument
  previous=$argument
done
echo "sluice demo: the GPU is simulated, with profile $profile."

install_missing "${sluice_build_packages[@]}"
cd_top() { cd "$top" && "$@"; }
[ -f "$top/build/release/build.ninja" ] || (cd_top cmake --preset release) >&2
(cd_top cmake --build --preset release --target sluice-demo 01_embed) >&2

if [ ! -c /dev/fuse ] && ! as_root modprobe fuse 2>/dev/null; then
  echo "demo.sh: /dev/fuse is missing, but the simulated device needs FUSE; run 'modprobe fuse', or start" >&2
  echo "the container with --device /dev/fuse --cap-add SYS_ADMIN" >&2
  exit 1
fi
in_own_mounts "$demo" "$@"
