#!/usr/bin/env bash
# usage: tests/fleet/ssh.sh [--quick]
# Run `sluice fleet status` and adapters/fleet/rollout.py on four nodes of this machine, each a set of namespaces with a
# simulated GPU, a daemon of sluice and sshd. Run it as root. It installs missing Debian packages first.
#   --quick  Two nodes and some of the cases
# SLUICE_BIN is the folder with sluice's programs (default: the release build).
# Exit code 0: no case failed; 1: a case failed; 77: not root, or no FUSE.
set -uo pipefail

case ${1-} in
  '' | --quick) ;;
  -h | --help) sed -n '2,7s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" && exit 0 ;;
  *) echo "ssh.sh: unknown argument '$1' (see --help)" >&2 && exit 1 ;;
esac
. "$(dirname "${BASH_SOURCE[0]}")/with_nodes.sh" || exit 1
with_nodes "$top/tests/fleet/ssh.py" "$@"
