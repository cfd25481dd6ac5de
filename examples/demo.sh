#!/usr/bin/env bash
# Installs what is missing, builds, and runs the demo on a simulated GPU.
# Options are those of sluice-demo: examples/demo.sh --help
set -euo pipefail

top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
. "$top/examples/common.sh"
demo=$top/build/release/bin/sluice-demo

profile=mi300x
previous=
for argument; do
  case $argument in
    --profile=*) profile=${argument#--profile=} ;;
    -h | --help)
      echo "usage: examples/demo.sh [OPTIONS OF sluice-demo]"
      echo "Installs what is missing (apt), builds into build/release, and runs sluice-demo as root in"
      echo "a mount namespace of its own."
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
  echo "demo.sh: there is no /dev/fuse: the simulated device needs FUSE (modprobe fuse; in a" >&2
  echo "container: --device /dev/fuse --cap-add SYS_ADMIN)" >&2
  exit 1
fi
in_own_mounts "$demo" "$@"
