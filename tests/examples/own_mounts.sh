#!/usr/bin/env bash
# usage: own_mounts.sh COMMAND...: runs it as root in a mount namespace of its own.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../../examples/common.sh"
in_own_mounts "$@"
