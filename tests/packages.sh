#!/usr/bin/env bash
# usage: tests/packages.sh [FOLDER]
# Build the Debian packages in build/package and test them in a clean Debian in FOLDER.
# Without FOLDER the clean Debian is in a new folder in /tmp, which is removed at the end. The test installs the
# packages, builds examples/embed_minimal with find_package and with pkg-config, and runs the daemon as its service does,
# with a simulated GPU. Takes 15 minutes on 2 cores. Needs root and the Debian mirror of apt.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. tests/support/eventually.sh
. examples/common.sh

fail() { echo "FAILED: $*" >&2; exit 1; }

# Inside the clean system, where the tree lies at /sluice.
inside() {
  export DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8
  echo "--- installing the packages"
  quietly() { "$@" >/tmp/output 2>&1 || { cat /tmp/output; fail "$*"; }; }
  quietly apt-get update -q
  # The library, and what a service needs; then what one builds with.
  quietly apt-get install -y -q --no-install-recommends /packages/{libsluice0.1,libsluice-client0,sluice-tools}_*.deb
  [ "$(stat -c '%a %U %G' /usr/bin/sluice-agent)" = '750 root sluice' ] || fail "sluice-agent has a wrong mode or owner"
  [ "$(getcap /usr/bin/sluice-agent)" = '/usr/bin/sluice-agent cap_sys_ptrace=ep' ] || fail "sluice-agent has wrong capabilities"
  [ "$(stat -c '%a %U' /run/sluice/owner)" = '660 sluice' ] || fail "/run/sluice/owner has a wrong mode or owner"
  grep -q '^socket_group = "sluice-clients" ' /etc/sluice/sluice.toml || fail "sluice.toml has a wrong socket_group"
  grep -q '^jobs = "/var/log/sluice/jobs" ' /etc/sluice/sluice.toml || fail "sluice.toml has a wrong jobs folder"
  sluice check /etc/sluice/sluice.toml || fail "sluice.toml is invalid"
  systemd-analyze verify --man=no /usr/lib/systemd/system/sluice.service || fail "sluice.service is invalid"
  quietly apt-get install -y -q --no-install-recommends /packages/*.deb g++ cmake make ninja-build python3
  # Nothing of the tree is used to build.
  cp -r /sluice/examples/embed_minimal /root/
  cd /root/embed_minimal
  echo "--- building examples/embed_minimal with pkg-config and with find_package"
  make -s
  make -s -B SLUICE=sluice-epoll embed_minimal && mv embed_minimal by_make-epoll && make -s && mv embed_minimal by_make
  quietly cmake -G Ninja -S . -B build
  quietly cmake --build build
  local program
  for program in by_make by_make-epoll build/embed_minimal build/embed_minimal-epoll; do
    ldd "$program" >/tmp/linked # not into a pipe: grep -q may end before it
    grep -q 'libsluice\(-epoll\)\?.so.0.1 => /' /tmp/linked || fail "$program is not linked with libsluice"
    ! grep 'not found' /tmp/linked || fail "$program lacks libraries"
  done
  python3 -c 'import sluice; print("python:", sluice.__file__)'
  echo "--- running the daemon"
  SLUICE_SIM=/usr/bin/sluice-sim /sluice/examples/with_simulated_gpu.sh /sluice/adapters/sim/in_place.sh \
    /sluice/tests/packages.sh --beside-a-gpu
  echo "--- upgrading"
  cd /
  # Roles by tags: what DAEMON.md gives the agent stays, and nothing where that was taken.
  local package=(/packages/sluice-tools_*.deb) agent=/usr/bin/sluice-agent
  upgrade() { quietly apt-get install -y -q --no-install-recommends --reinstall "${package[@]}"; }
  setcap cap_sys_ptrace,cap_dac_read_search+ep $agent
  upgrade
  [ "$(getcap $agent)" = "$agent cap_dac_read_search,cap_sys_ptrace=ep" ] || fail "an upgrade removes capabilities of sluice-agent"
  grep -qF 'keeps the capabilities that the administrator set (cap_dac_read_search,cap_sys_ptrace=ep)' /tmp/output || fail "an upgrade does not report the kept capabilities"
  setcap cap_sys_ptrace+ep $agent
  dpkg-statoverride --update --add root sluice 0750 $agent
  setcap cap_sys_ptrace+ep $agent # a chown takes them
  upgrade
  [ "$(getcap $agent)" = "$agent cap_sys_ptrace=ep" ] || fail "with a statoverride an upgrade removes capabilities of sluice-agent"
  [ "$(stat -c '%a %U %G' $agent)" = '750 root sluice' ] || fail "an upgrade changes mode or owner of sluice-agent"
  dpkg-statoverride --remove $agent
  setcap -r $agent
  upgrade
  [ -z "$(getcap $agent)" ] || fail "an upgrade restores removed capabilities of sluice-agent"
  echo "--- removing the packages"
  sluice pause --why "before a purge" >/dev/null || true # nobody owns the node, which it says
  [ -e /run/sluice/disabled ] || fail "sluice pause did not pause the node"
  quietly apt-get purge -y -q sluice-tools 'libsluice*' python3-sluice
  local each
  for each in /etc/sluice/sluice.toml /usr/bin/sluice /run/sluice /var/lib/sluice /var/log/sluice /var/lib/sluice-agent.capabilities; do
    [ ! -e $each ] || fail "the purge leaves $each"
  done
}

beside_a_gpu() {
  unset SLUICE_KFD_DEVICE SLUICE_KFD_SYSFS SLUICE_KFD_DEBUGFS
  local log=/tmp/log program
  sed -i 's/^mode = "observe"/mode = "enforce"/; s/^attach_after = .*/attach_after = "50ms"/
    s/^attach_at_latest = .*/attach_at_latest = "100ms"/
    s/^may_claim_online = { users = \["@self"\],/may_claim_online = { users = ["root"],/' /etc/sluice/sluice.toml
  systemd-tmpfiles --create sluice.conf
  # As the service: its user, without capabilities but in the bound.
  local as_service=(setpriv --reuid=sluice --regid=sluice --init-groups --inh-caps=-all
    --bounding-set=-all,+sys_ptrace,+dac_read_search,+checkpoint_restore,+sys_admin)
  "${as_service[@]}" sluice run --config /etc/sluice/sluice.toml 2>$log &
  local daemon=$!
  eventually grep -qs "this program owns the node" $log || { cat $log; fail "the daemon does not own the node"; }
  # Offline work of another user, by an operator's word; what it is made of is no part of the packages.
  AMD_QUEUE_TAG=OFFLINE_AI setpriv --reuid=nobody --regid=nogroup --clear-groups \
    env SLUICE_KFD_DEVICE=/dev/kfd SLUICE_KFD_SYSFS=/sys/class/kfd/kfd \
    /sluice/build/package/bin/offline_demo --load train >/dev/null &
  local offline=$!
  sluice role set --pid $offline offline || fail "sluice role set failed"
  traced() { [ "$(sed -n 's/^TracerPid:\t//p' "/proc/$offline/status")" != 0 ]; }
  eventually traced || { cat $log; fail "the offline process is not attached"; }
  # A client of the group that the packages make for that, as DAEMON.md types it.
  setpriv --reuid=games --regid=games --groups=sluice-clients python3 -c '
import sluice
with sluice.connect(name="first", required=True).acquire(timeout=10) as clear:
    assert clear' || { cat $log; fail "a client of group sluice-clients cannot suspend offline work"; }
  # Programs of root, which follow the daemon: what they have in flight counts there.
  for program in by_make by_make-epoll build/embed_minimal build/embed_minimal-epoll; do
    "/root/embed_minimal/$program" >/tmp/output 2>&1 || { cat /tmp/output $log; fail "$program failed"; }
    echo "$program: $(tail -n 1 /tmp/output)"
  done
  kill -TERM $daemon
  wait $daemon || { cat $log; fail "the daemon ended with code $?"; }
  grep 'statistics: ' $log | tail -n 1
  sluice jobs | grep 'offline_demo' || fail "sluice jobs does not list offline_demo"
  grep -Eq 'statistics: .* suspends=[1-9][0-9]* suspended_now=0 ' $log || { cat $log; fail "no queue was suspended"; }
  kill -KILL $offline
  wait $offline 2>/dev/null || true
}

case ${1-} in
  -h | --help) sed -n '2,6s/^# //p' tests/packages.sh; exit 0 ;;
  --inside) inside; exit ;;
  --beside-a-gpu) beside_a_gpu; exit ;;
esac

# The system's mounts are the script's own, and its processes end with it.
if [ "${1-}" = --in-chroot ]; then
  root=$2
  mount -t proc proc "$root/proc"
  mount --rbind /sys "$root/sys"
  mount -t tmpfs -o mode=755 dev "$root/dev"
  mknod -m 666 "$root/dev/null" c 1 3
  mknod -m 666 "$root/dev/zero" c 1 5
  mknod -m 666 "$root/dev/full" c 1 7
  mknod -m 666 "$root/dev/random" c 1 8
  mknod -m 666 "$root/dev/urandom" c 1 9
  mknod -m 666 "$root/dev/fuse" c 10 229
  mkdir "$root/dev/shm" && mount -t tmpfs shm "$root/dev/shm"
  mount -t tmpfs -o mode=755 run "$root/run"
  mkdir -p "$root/sluice" && mount --bind "$PWD" "$root/sluice" && mount -o remount,bind,ro "$root/sluice"
  # Nothing of the caller's: a compiler's launcher, say, is not in there.
  exec env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root ${http_proxy:+"http_proxy=$http_proxy"} \
    ${https_proxy:+"https_proxy=$https_proxy"} chroot "$root" /sluice/tests/packages.sh --inside
fi

install_missing "${sluice_build_packages[@]}" "${sluice_unit_test_packages[@]}" "${sluice_test_packages[@]}" "${sluice_package_packages[@]}" debootstrap
echo "--- building the packages"
mkdir -p build
cmake --preset package -DSLUICE_BUILD_EXAMPLES=ON >build/package.configure.log 2>&1 || { cat build/package.configure.log; exit 1; }
cmake --build --preset package -- --quiet
work=${1:-$(mktemp -d /tmp/sluice-packages-XXXXXX)}
trap '[ -n "'"${1-}"'" ] || as_root rm -rf --one-file-system "$work"' EXIT
tests/install/packages.sh "$PWD" "$PWD/build/package" "$work/looked_at"
echo "--- creating a clean Debian"
mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Codename: bookworm' | head -n 1)
as_root debootstrap --variant=minbase bookworm "$work/root" "${mirror:-http://deb.debian.org/debian}" >"$work/debootstrap.log" 2>&1 ||
  { tail "$work/debootstrap.log"; exit 1; }
# How apt reaches the mirror from here.
for file in /etc/apt/apt.conf.d/*proxy*; do [ ! -e "$file" ] || as_root cp "$file" "$work/root/etc/apt/apt.conf.d/"; done
as_root mkdir "$work/root/packages"
as_root cp "$work"/looked_at/packages/*.deb "$work/root/packages/"
as_root unshare --mount --pid --fork --kill-child tests/packages.sh --in-chroot "$work/root"
echo "passed: the packages install, build and run in a clean Debian"
