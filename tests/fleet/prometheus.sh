#!/usr/bin/env bash
# usage: tests/fleet/prometheus.sh [--quick]
# Run Prometheus and Alertmanager of Debian on four nodes of this machine, each a set of namespaces with a simulated GPU
# and a daemon of sluice. Real faults fire each alert of adapters/observe/alerts.yml. Each alert ends after its fault.
# All queries of the dashboard have an answer. Run it as root. It installs missing Debian packages first.
#   --quick  Two nodes and some of the alerts
# SLUICE_BIN is the folder with sluice's programs (default: the release build), SLUICE_THROWING a policy plugin that
# throws (default: that of the release build's tests).
# Exit code 0: no case failed; 1: a case failed; 77: not root, or no FUSE.
set -uo pipefail

case ${1-} in
  '' | --quick) ;;
  -h | --help) sed -n '2,9s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" && exit 0 ;;
  *) echo "prometheus.sh: unknown argument '$1' (see --help)" >&2 && exit 1 ;;
esac
. "$(dirname "${BASH_SOURCE[0]}")/with_nodes.sh" || exit 1
with_nodes "$top/tests/fleet/prometheus.py" "$@" --throwing "${SLUICE_THROWING:-$bin/../tests/core/plugins/throwing.so}"
