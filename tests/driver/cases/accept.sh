#!/bin/bash
# Every step of the acceptance test of new hardware.
. "${BASH_SOURCE[0]%/*}/common.sh"
echo "real driver, faked hardware"
sluice accept --victim "$(command -v sluice-sim-victim)"
