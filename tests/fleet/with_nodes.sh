# shellcheck shell=bash
# What the scripts here share: runs a program in namespaces of its own, which end with this script. Sourced.

top=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd) || exit 1
. "$top/examples/common.sh"
bin=${SLUICE_BIN:-$top/build/release/bin}

# with_nodes PROGRAM ARGUMENT...: adds `--work DIR BIN_DIR` before the arguments. The command $after_nodes runs when its
# processes have ended. Exit code 77: this machine cannot have nodes.
after_nodes=:
with_nodes() {
  local script
  script=$(basename "$0")
  [ "$(id -u)" -eq 0 ] || { echo "$script: run this as root: the nodes are namespaces" >&2 && return 77; }
  [ -e /dev/fuse ] || { echo "$script: /dev/fuse does not exist; the simulated GPU needs it" >&2 && return 77; }
  [ -x "$bin/sluice-sim" ] || { echo "$script: $bin/sluice-sim does not exist; build sluice first" >&2 && return 1; }
  install_missing "${sluice_fleet_packages[@]}" || return 1
  work=$(mktemp -d "${TMPDIR:-/tmp}/sluice-nodes-XXXXXX") || return 1
  chmod 755 "$work"
  at_exit '[ -z "${child-}" ] || kill -KILL "$child" 2>/dev/null; wait; $after_nodes; rm -rf --one-file-system "$work"'
  setpriv --pdeathsig KILL unshare --mount --net --uts --pid --fork --kill-child --mount-proc \
    python3 -B "$1" --work "$work" "$bin" "${@:2}" &
  child=$!
  wait "$child" || { local code=$? && child='' && return "$code"; }
  child=
}
