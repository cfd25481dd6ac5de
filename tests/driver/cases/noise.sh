#!/bin/bash
# Random driver calls of three processes at the same time, on two GPUs of one kind.
. "${BASH_SOURCE[0]%/*}/common.sh"
"$top/tests/conformance/noise.sh" "${1-1}" "${2-20}" >noise.calls
kfd_calls --check noise.calls
