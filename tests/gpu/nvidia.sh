#!/usr/bin/env bash
# usage: tests/gpu/nvidia.sh [--gpu N] [--bundle DIR] [--trace FILE]
#                            [--rivals DIR] [--quick] [PART...]
#        tests/gpu/nvidia.sh report [--html PATH] FILE...
# Test sluice on this machine's NVIDIA GPUs. The GPUs must be unused. Run it as
# root. Without PART, run all parts.
#   --gpu N       Test only the GPU that nvidia-smi lists as N. Others may be in
#                 use, also by another run of this script. Default: all GPUs,
#                 which several need NVLink multicast off for (see README.md)
#   --bundle DIR  Use an unpacked portable archive (bin, lib, include).
#                 Default: the release build, or SLUICE_BIN
#   --trace FILE  Requests for the part llm, in the Azure LLM trace format.
#                 Default: the part is skipped
#   --rivals DIR  What rivals.sh has built, for the part rivals. Default: its row
#                 XSched has no figures
#   --quick       Run each part for at most 2 minutes instead of 8
# The script writes a JSON file and logs to $OUT, or else to ./nvidia-results.
# SLUICE_CUDA_ARCH is nvcc's -arch (default: native).
# Exit code 0: no part failed; 1: a part failed; 2: the tests cannot run here.
# report merges such files into a table, one column for each GPU model, driver
# and revision, and with --html into a page. It needs no GPU. Exit code 0: every
# part is present and all bounds are kept; 1: not so; 2: a file is unreadable.
set -uo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd) || exit 2
top=$(cd "$here/../.." && pwd) || exit 2

# unable SENTENCE: why the tests cannot run.
unable() {
  echo "nvidia.sh: $1" >&2
  exit 2
}

command -v python3 >/dev/null || unable "python3 is missing; install it"
if [ "${1-}" = report ]; then
  exec python3 -B "$here/nvidia.py" "$@"
fi

bin=${SLUICE_BIN:-$top/build/release/bin}
bundle=
quick=()
gpu=()
trace=()
rivals=()
parts=()
while [ $# -gt 0 ]; do
  case $1 in
    -h | --help)
      sed -n '2,22s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
      echo "PART:" $(python3 -B "$here/nvidia.py" parts) | fold -sw 78
      exit 0
      ;;
    --bundle)
      [ $# -gt 1 ] || unable "--bundle: the folder is missing"
      bundle=$(cd "$2" 2>/dev/null && pwd) || unable "--bundle: cannot open the folder $2"
      shift
      ;;
    --gpu)
      [ $# -gt 1 ] || unable "--gpu: the number is missing"
      [[ $2 =~ ^[0-9]+$ ]] || unable "--gpu: '$2' is no number that nvidia-smi lists"
      gpu=(--gpu "$2")
      shift
      ;;
    --trace)
      [ $# -gt 1 ] || unable "--trace: the file is missing"
      [ -r "$2" ] || unable "--trace: cannot read $2"
      trace=(--trace "$2")
      shift
      ;;
    --rivals)
      [ $# -gt 1 ] || unable "--rivals: the folder is missing"
      [ -d "$2" ] || unable "--rivals: cannot open the folder $2"
      rivals=(--rivals "$(cd "$2" && pwd)")
      shift
      ;;
    --quick) quick=(--quick) ;;
    -*) unable "unknown option '$1' (see --help)" ;;
    *) parts+=("$1") ;;
  esac
  shift
done
include=$top/adapters/client/include
if [ -n "$bundle" ]; then
  bin=$bundle/bin
  include=$bundle/include
fi
library=$(dirname "$bin")/lib/libsluice_client.so.0
wrong=$(python3 -B "$here/nvidia.py" parts ${parts[@]+"${parts[@]}"} 2>&1 >/dev/null) || unable "$wrong"

[ -r /proc/driver/nvidia/version ] ||
  unable "no NVIDIA driver is loaded (/proc/driver/nvidia/version does not exist); run this on a machine with an NVIDIA GPU"
[ "$(id -u)" -eq 0 ] || unable "run this as root: it suspends processes and reads the kernel's log"
command -v nvidia-smi >/dev/null || unable "nvidia-smi is missing; install the driver's utilities"
nvcc=$(command -v nvcc || ls "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc" 2>/dev/null) ||
  unable "nvcc is missing in PATH and in \$CUDA_HOME/bin; install the CUDA toolkit"
for program in sluice sluice-agent; do
  [ -x "$bin/$program" ] || unable "$bin/$program does not exist; build sluice, or use --bundle DIR"
done
[ -r "$library" ] || unable "$library does not exist; build sluice, or use --bundle DIR"
[ -r "$include/sluice/client.h" ] || unable "$include/sluice/client.h does not exist; use a complete archive"
dmesg >/dev/null 2>&1 || unable "dmesg cannot read the kernel's log; run this as root of the host"
grep -q nvidia <<<"$("$bin/sluice" queues --help)" || unable "$bin/sluice has no driver 'nvidia'; use a newer build"
users=$(nvidia-smi --query-compute-apps=pid,name --format=csv,noheader ${gpu[@]+"--id=${gpu[1]}"}) ||
  unable "nvidia-smi fails: $users"
[ -z "$users" ] || unable "a GPU is in use by process ${users%%$'\n'*}; end it first"

revision=${SLUICE_REVISION:-$(git -c safe.directory='*' -C "$top" describe --always --abbrev=12 --exclude='*' --dirty 2>/dev/null)}
out=${OUT:-nvidia-results}
mkdir -p "$out" || unable "cannot create $out"
build=$(mktemp -d) || unable "cannot create a temporary folder"
load=$build/gpu_load
"$nvcc" -std=c++17 -O2 "-arch=${SLUICE_CUDA_ARCH:-native}" -I "$include" "$here/gpu_load.cu" -o "$load" \
  -ldl -lpthread || {
  rm -rf "$build"
  unable "nvcc cannot compile gpu_load.cu; for another GPU than this machine's, set SLUICE_CUDA_ARCH, such as sm_90"
}
exec python3 -B "$here/nvidia.py" run --bin "$bin" --library "$library" --load "$load" --out "$out" \
  --revision "${revision:-unknown}" ${gpu[@]+"${gpu[@]}"} ${trace[@]+"${trace[@]}"} \
  ${rivals[@]+"${rivals[@]}"} ${quick[@]+"${quick[@]}"} ${parts[@]+"${parts[@]}"}
