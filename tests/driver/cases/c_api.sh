#!/bin/bash
# The C API, from C and from Python: suspends the queues of a process for a time.
. "${BASH_SOURCE[0]%/*}/common.sh"

start_offline
eventually maps 1
for program in 02_c_api "python3 $top/examples/02_c_api/suspend.py"; do
  SLUICE_KFD_LIBRARY=$top/build/release/lib/libsluice_kfd.so $program "$offline" 1000 >api.log 2>&1 &
  eventually maps 0
  wait $! || fail "$program ended with code $?"
  eventually maps 1
  echo "$program: passed"
done
end_offline
