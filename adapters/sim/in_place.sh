#!/usr/bin/env bash
# usage: in_place.sh COMMAND [ARGUMENT...]
# Run COMMAND as root. COMMAND finds the simulated GPU of $SLUICE_SIM_ROOT at the paths of a real GPU. These paths are
# /dev/kfd, /dev/dri, /sys/class/kfd and /sys/devices/virtual/kfd. Use this script for programs with fixed paths, such
# as AMD's libraries. COMMAND runs in its own mount namespace, so the paths of other processes do not change. Example:
#   examples/with_simulated_gpu.sh adapters/sim/in_place.sh env HSA_OVERRIDE_GFX_VERSION=9.0.10 rocminfo
set -euo pipefail

name=$(basename "$0")
case ${1-} in
  -h | --help) sed -n '2,6s/^# //p' "$0" && exit 0 ;;
  '') echo "$name: COMMAND is missing (see --help)" >&2 && exit 2 ;;
esac
if [ ! -e "${SLUICE_SIM_ROOT-}/dev/kfd" ]; then
  echo "$name: no simulated GPU at SLUICE_SIM_ROOT='${SLUICE_SIM_ROOT-}'; start $name with examples/with_simulated_gpu.sh" >&2
  exit 1
fi
if [ -z "${SLUICE_SIM_IN_PLACE-}" ]; then
  . "$(dirname "${BASH_SOURCE[0]}")/../../examples/common.sh"
  in_own_mounts env SLUICE_SIM_IN_PLACE=1 SLUICE_SIM_ROOT="$SLUICE_SIM_ROOT" "$0" "$@"
fi
unset SLUICE_SIM_IN_PLACE

sysfs=$SLUICE_SIM_ROOT/sys/class/kfd/kfd
staging=$(mktemp -d "$SLUICE_SIM_ROOT/staging-XXXXXX")
# Becomes the directory DIR: a copy of it, made of bind mounts, to which more can be added; the entries NAME
# of the original are left out.
# cover DIR [NAME...]
cover() {
  local directory=$1 entry left_out
  shift
  mount -t tmpfs -o mode=755 "$name" "$staging"
  for entry in "$directory"/*; do
    for left_out; do
      [ "$entry" != "$directory/$left_out" ] || continue 2
    done
    if [ -L "$entry" ]; then
      cp -P "$entry" "$staging/"
    elif [ -d "$entry" ]; then
      mkdir "$staging/${entry##*/}"
      mount --rbind "$entry" "$staging/${entry##*/}"
    elif [ -e "$entry" ]; then
      : >"$staging/${entry##*/}"
      mount --bind "$entry" "$staging/${entry##*/}"
    fi
  done
  mount --move "$staging" "$directory"
}

cover /sys/devices/virtual kfd
mkdir /sys/devices/virtual/kfd
mount --bind "$sysfs/.." /sys/devices/virtual/kfd
cover /sys/class kfd
mkdir /sys/class/kfd
ln -s ../../devices/virtual/kfd/kfd /sys/class/kfd/kfd
cover /dev kfd dri
: >/dev/kfd
mount --bind "$SLUICE_SIM_ROOT/dev/kfd" /dev/kfd
mkdir /dev/dri
mount --bind "$SLUICE_SIM_ROOT/dev/dri" /dev/dri
# AMD's libhsakmt opens no device on a machine whose processors show no caches, as in some virtual machines.
for processor in /sys/devices/system/cpu/cpu[0-9]*; do
  [ ! -e "$processor/cache" ] || continue
  cover "$processor"
  mkdir -p "$processor/cache/index0"
  for property in level=1 type=Data size=32K coherency_line_size=64 number_of_sets=64 ways_of_associativity=8 \
    physical_line_partition=1 "shared_cpu_list=${processor##*/cpu}"; do
    echo "${property#*=}" >"$processor/cache/index0/${property%%=*}"
  done
done
rmdir "$staging"
# rocminfo asks lsmod first whether the driver is loaded, and there are kernels without modules.
mkdir -p "$SLUICE_SIM_ROOT/in_place"
printf '#!/bin/sh\necho "amdgpu 0 0"\n' >"$SLUICE_SIM_ROOT/in_place/lsmod"
chmod +x "$SLUICE_SIM_ROOT/in_place/lsmod"
PATH=$SLUICE_SIM_ROOT/in_place:$PATH
exec "$@"
