# shellcheck shell=bash disable=SC2034
# What the scripts share: the Debian packages that sluice needs and how to get them, root, and a mount
# namespace. Sourced by examples/*.sh and tests/run.sh.

sluice_build_packages=(
  cmake ninja-build g++ pkg-config
  libboost1.81-dev liburing-dev libspdlog-dev libfmt-dev libfuse3-dev libcli11-dev
  libtomlplusplus-dev libsystemd-dev libseccomp-dev libssl-dev libgtest-dev libgmock-dev)

# On top of the above, for unit tests (tests/run.sh --quick): the format check, a compiler cache and a fast linker, and
# Python for policies written in it.
sluice_unit_test_packages=(ccache clang-format git lld python3 libpython3.11)

# On top of these, for all tests: sanitizer builds with clang, valgrind, a load for HTTP servers, Python servers as
# clients of the scheduler, AMD's own libraries as clients of the simulated device, a model checker, AMD's compiler
# (65 MB, 350 MB once installed), a library for benchmarks, pgrep, and Prometheus (19 MB, 96 MB once installed).
sluice_test_packages=(
  clang libclang-rt-dev libbenchmark-dev procps valgrind wrk prometheus
  python3-pip python3-prometheus-client python3-starlette python3-uvicorn python3-yaml apparmor doxygen
  libhsakmt-dev rocminfo spin hipcc libamdhip64-dev)

# For tests on clusters (tests/fleet): Slurm with its accounts, networks of namespaces; etcd; Prometheus, ssh, and
# what takes a process from sluice.
sluice_fleet_packages=(
  slurm-wlm slurmdbd munge mariadb-server iproute2
  etcd-server curl openssl nftables procps
  prometheus prometheus-alertmanager python3-yaml openssh-client openssh-server strace)

# For tests of Debian packages: what looks at them, and the manual and completions in them.
sluice_package_packages=(abigail-tools binutils dpkg-dev fish lintian make man-db xz-utils zsh)

# Ctrl-C ends the script, whatever the command it waits for makes of it.
trap 'exit 130' INT
trap 'exit 143' TERM

as_root() {
  if [ "$(id -u)" -eq 0 ]; then
    "$@"
  elif command -v sudo >/dev/null; then
    # sudo drops the environment, and with it the settings of the tests.
    local name kept=()
    for name in CI GTEST_BRIEF SLUICE_TEST_LONG SLUICE_TEST_SEED; do
      [ -z "${!name+set}" ] || kept+=("$name=${!name}")
    done
    sudo env "${kept[@]}" "$@"
  else
    echo "$(basename "$0"): '$1' needs root, and sudo is not installed; run this script as root" >&2
    return 1
  fi
}

# install_missing PACKAGE...: installs those that are not there, and nothing when all are.
install_missing() {
  if ! command -v dpkg-query >/dev/null; then
    echo "$(basename "$0"): not a Debian system; these packages must be installed already: $*" >&2
    return 0
  fi
  local package missing=()
  for package; do
    dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed ||
      missing+=("$package")
  done
  [ ${#missing[@]} -gt 0 ] || return 0
  echo "installing ${missing[*]} ..." >&2
  local install=(env DEBIAN_FRONTEND=noninteractive
    apt-get install -y -q -o DPkg::Lock::Timeout=600 --no-install-recommends "${missing[@]}")
  # Package lists may be missing or out of date; fetch them only when they are needed.
  if ! apt-cache show "${missing[@]}" >/dev/null 2>&1 || ! as_root "${install[@]}" >&2; then
    as_root apt-get update -q >&2 && as_root "${install[@]}" >&2
  fi
}

# at_exit COMMAND: evaluates COMMAND when the script ends, after those of earlier calls.
at_exit_commands=()
at_exit() {
  at_exit_commands+=("$1")
  trap 'for command in "${at_exit_commands[@]}"; do eval "$command"; done' EXIT
}

# without_autogroups: until the script ends, Linux does not put each session into a scheduling group of its own. With
# these groups, Linux 6.18 on a busy machine delays a ready thread by up to 10 s, for which no scheduler of a GPU can
# make up; without them, by a few ms. Scripts that overlap share a lock; the last one restores the setting.
without_autogroups() {
  local file=/proc/sys/kernel/sched_autogroup_enabled lock=/run/lock/sluice-autogroups
  [ -e "$file" ] || return 0
  # The file is empty, or contains the value to restore.
  if ! as_root mkdir -p "${lock%/*}" || ! as_root touch "$lock" || ! exec {autogroups_lock}<"$lock" ||
    ! flock -s "$autogroups_lock"; then
    echo "$(basename "$0"): cannot lock $lock; tests that measure time may fail on a busy machine" >&2
    return 0
  fi
  if [ "$(cat "$file")" = 1 ]; then
    if ! as_root sh -c "echo 1 >$lock && echo 0 2>/dev/null >$file"; then
      echo "$(basename "$0"): cannot set $file to 0; tests that measure time may fail on a busy machine" >&2
      return 0
    fi
    echo "$(basename "$0"): kernel.sched_autogroup_enabled is 0 until this script ends"
  fi
  at_exit "! flock -x -n $autogroups_lock || [ ! -s $lock ] || as_root sh -c 'cat $lock >$file; : >$lock'"
}

# in_own_mounts COMMAND...: becomes the command, as root, in a mount namespace of its own, so that no mount
# outlives it.
in_own_mounts() {
  as_root true || exit 1
  local private=()
  # Where / is no mount point (a plain chroot), its propagation cannot be changed, and need not be.
  as_root unshare --mount true 2>/dev/null || private=(--propagation unchanged)
  if [ "$(id -u)" -eq 0 ]; then
    exec unshare --mount "${private[@]}" "$@"
  else
    exec sudo unshare --mount "${private[@]}" "$@"
  fi
}
