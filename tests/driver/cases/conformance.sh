#!/bin/bash
# usage: conformance.sh [SCRIPT]
# Recorded cases of driver calls, on two GPUs of one kind. SCRIPT: of tests/conformance [cases.calls].
. "${BASH_SOURCE[0]%/*}/common.sh"
kfd_calls --check "$top/tests/conformance/${1-cases.calls}"
