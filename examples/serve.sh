#!/usr/bin/env bash
# usage: serve.sh [--seconds N] [--connections N] [--tokens N] [--think MS] [-- OPTION OF inference_server...]
# Measure the inference server with wrk on a simulated GPU: alone, with offline work, and under sluice. The
# script installs missing packages (apt), builds, and prints a table. Options:
#   --seconds N      length of each run in s (10)
#   --connections N  number of clients, each with one request at a time (4)
#   --tokens N       tokens per answer (16)
#   --think MS       mean pause of a client between requests (300).
# The script fails if a request fails, if the offline process loses or repeats a kernel, or if a queue stays
# suspended.
set -euo pipefail

name=$(basename "$0")
top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
bin=${SLUICE_BIN:-$top/build/release/bin}
given=("$@")
seconds=10 connections=4 tokens=16 think=300
while [ $# -gt 0 ]; do
  case $1 in
    -h | --help) sed -n '2,10s/^# //p' "$0" && exit 0 ;;
    --) shift && break ;;
    --seconds | --connections | --tokens | --think)
      if ! [[ ${2-} =~ ^[1-9][0-9]{0,5}$ ]]; then
        echo "$name: $1 needs a number from 1 to 999999 (see --help)" >&2
        exit 2
      fi
      declare "${1#--}=$2"
      shift 2
      ;;
    *) echo "$name: unknown option $1 (see --help)" >&2 && exit 2 ;;
  esac
done
server_options=("$@")

# First call: make sure that everything is there, then begin again beside a simulated GPU.
if [ -z "${SLUICE_SIM_ROOT-}" ]; then
  # shellcheck source=examples/common.sh
  . "$top/examples/common.sh"
  if [ -z "${SLUICE_BIN-}" ]; then
    install_missing "${sluice_build_packages[@]}" wrk
    cd_top() { cd "$top" && "$@"; }
    [ -f "$top/build/release/build.ninja" ] || (cd_top cmake --preset release) >&2
    (cd_top cmake --build --preset release --target inference_server offline_demo sluice-sim) >&2
  fi
  exec env SLUICE_SIM="$bin/sluice-sim" "$top/examples/with_simulated_gpu.sh" "$0" "${given[@]}"
fi

fail() {
  echo "$name: $1" >&2
  exit 1
}
offline='' server='' load=''
cleanup() {
  local each
  for each in $load $server $offline; do kill -TERM "$each" 2>/dev/null || true; done
  for each in $load $server $offline; do wait "$each" 2>/dev/null || true; done
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# wait_until WHAT COMMAND...: until the command succeeds, 20 s at most.
wait_until() {
  local what=$1 deadline=$((SECONDS + 20))
  shift
  until "$@"; do
    [ "$SECONDS" -lt "$deadline" ] || fail "$what: timed out after 20 s"
    sleep 0.05
  done
}

# What the device counted of the offline process: now_ns kernels busy_ns suspended_queues.
offline_counts() {
  sed -n 's/^{"now_ns":\([0-9]*\),.*{"pid":'"$offline"',[^}]*"suspended_queues":\([0-9]*\),[^}]*"kernels_completed":\([0-9]*\),"busy_ns":\([0-9]*\),.*/\1 \3 \4 \2/p' \
    "$SLUICE_SIM_ROOT/sim/stats.json"
}
offline_works() { [[ $(offline_counts) =~ ^[0-9]+\ [1-9] ]]; }
offline_runs_again() { [[ $(offline_counts) == *\ 0 ]]; }
# between BEFORE AFTER: kernels per second and share of the GPU's time, of two offline_counts.
between() {
  awk '{now[NR] = $1; kernels[NR] = $2; busy[NR] = $3}
    END {ns = now[2] - now[1]; printf "%10.1f %8.1f %%", (kernels[2] - kernels[1]) * 1e9 / ns,
      100 * (busy[2] - busy[1]) / ns}' <<<"$1"$'\n'"$2"
}

log=$SLUICE_SIM_ROOT/server.log
start_server() {
  rm -f "$log"  # Not what the one before wrote.
  "$bin/inference_server" --port 0 --directory "$SLUICE_SIM_ROOT/run" "$@" >"$log" &
  server=$!
  wait_until "waiting for the server to listen" server_listens
  port=$(sed -n 's/^listening on 127.0.0.1://p' "$log")
}
server_listens() {
  kill -0 "$server" 2>/dev/null || fail "the server did not start"
  grep -qs '^listening on ' "$log"
}
stop_server() {
  kill -TERM "$server"
  wait "$server" || fail "the server exited with code $?"
  server=
}
metric() {
  exec 5<>"/dev/tcp/127.0.0.1/$port"
  printf 'GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n' >&5
  sed -n "s/^$1 \([0-9]*\).*/\1/p" <&5
  exec 5>&-
}
offline_is_attached() { [ "$(metric sluice_attaches_total)" -ge 1 ]; }

row='%-20s %10s %9s %9s %9s %7s %s\n'
nothing=$(printf '%10s %10s' - -)
# measure ROW: loads the server and prints a row of the table.
measure() {
  local before='' rate p50 p99 max failed
  [ -z "$offline" ] || before=$(offline_counts)
  # In the background, because bash handles no signal while a foreground command runs.
  wrk --threads 1 --connections "$connections" --duration "${seconds}s" --timeout 60s \
    --script "$top/examples/inference_server/generate.lua" "http://127.0.0.1:$port/generate" \
    -- "$tokens" "$think" >"$SLUICE_SIM_ROOT/wrk.log" &
  load=$!
  wait "$load" || fail "wrk failed: $(cat "$SLUICE_SIM_ROOT/wrk.log")"
  load=
  read -r rate p50 p99 max failed <<<"$(sed -n 's/^measured: //p' "$SLUICE_SIM_ROOT/wrk.log")"
  # shellcheck disable=SC2059
  printf "$row" "$1" "$rate" "$p50" "$p99" "$max" "$failed" \
    "$([ -n "$offline" ] && between "$before" "$(offline_counts)" || echo "$nothing")"
  [ "$failed" -eq 0 ] || fail "$failed requests failed: $(cat "$SLUICE_SIM_ROOT/wrk.log")"
}

echo "The GPU is simulated: times were measured on this machine, none on AMD hardware."
echo "$connections clients, $tokens tokens per answer, mean pause $think ms; runs of $seconds s"
echo
echo "                              latency to the last token, ms               offline"
# shellcheck disable=SC2059
printf "$row" '' requests/s p50 p99 max failed "$(printf '%10s %10s' kernels/s 'GPU time')"

start_server --no-scheduler "${server_options[@]}"
measure "online alone"
stop_server

AMD_QUEUE_TAG=OFFLINE_AI "$bin/offline_demo" --load long >"$SLUICE_SIM_ROOT/offline.log" &
offline=$!
wait_until "waiting for the offline process to work" offline_works
before=$(offline_counts)
sleep "$seconds" &
load=$!
wait "$load"
load=
# shellcheck disable=SC2059
printf "$row" "offline alone" - - - - - "$(between "$before" "$(offline_counts)")"

start_server --no-scheduler "${server_options[@]}"
measure "both, no scheduler"
stop_server

start_server --attach-after 0s "${server_options[@]}"
wait_until "waiting for the scheduler to attach to the offline process" offline_is_attached
measure "both, under sluice"
wait_until "waiting for the scheduler to resume everything" offline_runs_again
failed=$(metric sluice_failed_outcomes_total)
stop_server

echo
echo "under sluice the server $(sed -n '2,3p' "$log")"
[ "$failed" -eq 0 ] || fail "$failed driver commands failed"
offline_runs_again || fail "queues of the offline process are still suspended"
kill -TERM "$offline"
code=0
wait "$offline" || code=$?
offline=
echo "offline_demo: $(tail -n 1 "$SLUICE_SIM_ROOT/offline.log")"
[ "$code" -eq 0 ] || fail "the offline process exited with code $code"
