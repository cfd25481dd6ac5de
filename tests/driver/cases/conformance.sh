#!/bin/bash
# The recorded cases of driver calls, on two GPUs of one kind.
. "${BASH_SOURCE[0]%/*}/common.sh"
kfd_calls --check "$top/tests/conformance/cases.calls"
