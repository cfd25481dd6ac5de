# For scripts to source.
# shellcheck shell=bash

# eventually COMMAND...: repeats COMMAND until it succeeds. After 30 s, prints it and fails.
eventually() {
  local end=$((SECONDS + 30))
  until "$@"; do
    [ $SECONDS -lt $end ] || { echo "not within 30 s: $*" >&2 && return 1; }
    sleep 0.02
  done
}
export -f eventually
