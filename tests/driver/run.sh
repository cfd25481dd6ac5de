#!/usr/bin/env bash
# usage: tests/driver/run.sh [OPTIONS] [COMMAND...]
# Run COMMAND on Debian's amdkfd in User Mode Linux, as root, and return its exit code. See tests/driver/README.md.
# COMMAND reads the files of this machine, but cannot change them. It has its own /tmp, /run and /dev. Without COMMAND,
# only build the kernel.
# Options:
#   --device LIST   GPUs of the machine, with commas between them: 942, 90a, 906, 1100 [942].
#   --memory SIZE   Memory of the machine [2G].
#   --lockdep       A kernel that checks its locks.
#   --kasan         A kernel that checks its memory accesses.
#   --qemu          A machine of QEMU with two processors and a preemptible kernel. Programs run slower.
#   --set NAME=VALUE  A parameter of the devices, such as unmap_us=500. See README.md.
#   --patch PATH    Apply this file, or all *.patch of this directory, to the kernel source. May be repeated.
#   --source DIR    Build the kernel source in DIR instead of Debian's. DIR stays as it is.
#   --source VERSION  Build this version of Debian's package, or `latest`. `apt-cache madison` lists them.
# Exit code 125: the kernel logged a warning or an error while COMMAND ran, or did not run at all. Exit code 77: not in
# CI, and the packages or the kernel source cannot be downloaded.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/../.."
. examples/common.sh
top=$PWD
here=$top/tests/driver
cache=$top/build/driver

# fail REASON [CODE]
fail() { echo "run.sh: $1" >&2; exit "${2-125}"; }
# skip REASON: in CI, that is an error.
skip() { [ "${CI-}" = true ] || fail "skipped: $1" 77; fail "$1"; }

devices=942
memory=2G
source=
patches=()
checks=
settings=()
while [ $# -gt 0 ]; do
  case $1 in
    --device) devices=${2-}; shift ;;
    --memory) memory=${2-}; shift ;;
    --set)
      [[ ${2-} == *=* ]] && grep -qF "module_param(${2%%=*}," "$here"/shim/*.c || {
        echo "run.sh: invalid --set '${2-}': expected NAME=VALUE. Names, beside those of amdgpu in shim/stubs.c:" >&2
        sed -n 's/^MODULE_PARM_DESC(\(.*\), "\(.*\)");/  \1: \2/p' "$here"/shim/*.c >&2
        exit 2
      }
      settings+=("sluice.$2")
      shift
      ;;
    --patch)
      each=$(realpath -qe "${2-}") || { echo "run.sh: invalid --patch '${2-}': no such file or directory" >&2; exit 2; }
      if [ -d "$each" ]; then patches+=("$each"/*.patch); else patches+=("$each"); fi
      shift
      ;;
    --lockdep | --kasan | --qemu) checks+=" ${1#--}" ;;
    --source)
      source=${2-}
      [[ $source != */* || -d $source ]] || { echo "run.sh: invalid --source '$source': expected a directory, a version, or latest" >&2; exit 2; }
      shift
      ;;
    -h | --help) sed -n '2,19s/^# \{0,1\}//p' "$here/run.sh"; exit 0 ;;
    -*) echo "run.sh: unknown option '$1'; see --help" >&2; exit 2 ;;
    *) break ;;
  esac
  shift
done
arch=um image=linux emulator=()
[[ $checks != *qemu* ]] || { arch=x86_64 image=vmlinux emulator=(qemu-system-x86); }
[[ $memory =~ ^[1-9][0-9]*[MG]$ ]] || { echo "run.sh: invalid --memory '$memory': expected a size such as 2G" >&2; exit 2; }
[[ $devices =~ ^(942|90a|906|1100)(,(942|90a|906|1100))*$ ]] || { echo "run.sh: invalid --device '$devices'" >&2; exit 2; }

# unpack PACKAGE VERSION DIRECTORY
unpack() {
  local work=$3.new
  rm -rf "$work" "$3"
  mkdir -p "$work"
  echo "run.sh: downloading $1 $2" >&2
  (cd "$work" && apt-get download -q -o APT::Sandbox::User=root "$1=$2") >&2 || return 1
  dpkg-deb --fsys-tarfile "$work"/*.deb | tar -xOf - --wildcards '*.tar.xz' | tar -xJ -C "$work" --strip-components=1
  rm "$work"/*.deb
  patch -s -d "$work" -p1 <"$here/kernel.patch"
  mv "$work" "$3"
}

# Sets `tree`: the kernel source, patched.
get_source() {
  local package version available newest
  if [ -d "$source" ]; then
    # A changed file makes another tree.
    tree=$cache/source-$(find "$source" -type f -printf '%p %s %T@\n' | sort | cksum | cut -d' ' -f1)
    [ ! -d "$tree" ] || return 0
    rm -rf "$tree.new"
    cp -a "$source" "$tree.new" && patch -s -d "$tree.new" -p1 <"$here/kernel.patch" && mv "$tree.new" "$tree"
    return
  fi
  read -r package version <"$here/source"
  [ -z "$source" ] || [ "$source" = latest ] || version=$source
  tree=$cache/source-$version
  [ "$source" = latest ] || [ ! -d "$tree" ] || return 0
  # Old lists of packages name versions that Debian no longer has. If the update fails, the download shows why.
  as_root apt-get update -q >&2 || true
  available=$(apt-cache madison "$package" | awk '{ print $3 }')
  newest=${available%%$'\n'*}
  if [ "$source" = latest ]; then
    version=${newest:-$version}
  elif [ -z "$source" ] && [ -n "$newest" ] && ! grep -qxF "$version" <<<"$available"; then
    echo "run.sh: WARNING: Debian does not have $package $version; building $newest" >&2
    version=$newest
  fi
  tree=$cache/source-$version
  [ ! -d "$tree" ] || return 0
  unpack "$package" "$version" "$tree" && return
  skip "cannot download $package $version"
}

# make_kernel ARGUMENT...: in `tree`, with results in `objects`.
make_kernel() {
  make -s -C "$tree" O="$objects" ARCH="$arch" "$@" >"$objects/log" 2>&1 </dev/null ||
    { cat "$objects/log" >&2; fail "cannot build the kernel: make $*"; }
}

# Sets `kernel`. Builds only what changed.
build_kernel() {
  local objects parts each sums
  install_missing bc bison flex g++ libelf-dev make patch python3 xz-utils "${emulator[@]}" ||
    skip "cannot install the packages for building a kernel"
  mkdir -p "$cache"
  exec {lock}>"$cache/source.lock"
  flock "$lock"
  # A changed patch asks for a source of its own.
  if ! cmp -s "$here/kernel.patch" "$cache/kernel.patch"; then
    rm -rf "$cache"/source-* "$cache"/linux-*
    cp "$here/kernel.patch" "$cache/kernel.patch"
  fi
  get_source
  if [ ${#patches[@]} -gt 0 ]; then
    each=$tree-$(cat "${patches[@]}" | cksum | cut -d' ' -f1)
    # Files that the patch changes become new ones; all others are shared.
    [ -d "$each" ] || { rm -rf "$each.new" && cp -al "$tree" "$each.new" && cat "${patches[@]}" | patch -s -d "$each.new" -p1 && mv "$each.new" "$each"; }
    tree=$each
  fi
  objects=$cache/linux-$(basename "$tree")${checks// /-}
  kernel=$objects/$image
  mkdir -p "$objects" "$tree/drivers/gpu/drm/amd/sluice"
  parts=(kernel.config)
  for each in $checks; do parts+=("$each.config"); done
  for each in "$here"/shim/*; do
    cmp -s "$each" "$tree/drivers/gpu/drm/amd/sluice/${each##*/}" ||
      cp --remove-destination "$each" "$tree/drivers/gpu/drm/amd/sluice/"
  done
  # Another kernel may be built meanwhile.
  exec {objects_lock}>"$objects/lock"
  flock -u "$lock"
  flock "$objects_lock"
  cd "$here"
  sums=$(cksum shim/* "${parts[@]}")
  if [ "$sums" != "$(cat "$objects/built" 2>/dev/null)" ]; then
    rm -f "$objects/built"
    cat "${parts[@]}" >"$objects/fragment"
    make_kernel allnoconfig KCONFIG_ALLCONFIG="$objects/fragment"
    make_kernel -j"$(nproc)" "$image"
    printf '%s\n' "$sums" >"$objects/built"
  fi
  cd "$top"
  flock -u "$objects_lock"
}

build_kernel
[ $# -gt 0 ] || exit 0

bed=$(mktemp -d "${TMPDIR:-/tmp}/sluice-driver.XXXXXX")
at_exit "rm -rf $bed"
count=$(awk -F, '{ print NF }' <<<"$devices")
printf '%s\n' "$PWD" >"$bed/directory"
printf '%q ' "$@" >"$bed/command"
code=0
# The machine cannot know that other processes of the host keep it from running, and would count that as its own time.
# Only root may raise the priority.
renice -n -15 $BASHPID >"$bed/renice" 2>&1 || true
# The log keeps every message: a complaint must still be there after thousands of refused calls.
common=(ro log_buf_len=32M init="$here/init.sh" bed="$bed" quiet loglevel=3 panic=-1 sluice.devices="$devices" "${settings[@]}")
# COMMAND writes to the descriptors 1 and 4, the kernel to 3. QEMU takes no standard stream: 5 is 1.
if [[ $checks == *qemu* ]]; then
  exec 3>"$bed/console" 4>&2 5>&1
  host() { echo "local,path=$1,mount_tag=$2,security_model=none,multidevs=remap"; }
  # The devices have what lies above 512 MiB.
  gpus=$((260 * count))
  qemu-system-x86_64 -accel tcg,thread=multi -cpu max -smp 2 -no-reboot -nodefaults -display none \
    -m $(($(numfmt --from=iec "$memory") / 1048576 + gpus))M \
    -virtfs "$(host / root),readonly=on" -virtfs "$(host "$bed" bed)" -virtfs "$(host "$PWD" tree),readonly=on" \
    -device virtio-serial -add-fd fd=5,set=1 -add-fd fd=4,set=2 -add-fd fd=3,set=3 \
    -chardev file,id=out,path=/dev/fdset/1,append=on -device virtserialport,chardev=out \
    -chardev file,id=err,path=/dev/fdset/2,append=on -device virtserialport,chardev=err \
    -chardev file,id=kernel,path=/dev/fdset/3,append=on -serial chardev:kernel -kernel "$kernel" \
    -append "console=ttyS0 root=root rootfstype=9p rootflags=trans=virtio,version=9p2000.L,cache=loose,msize=524288 \
      memmap=${gpus}M\$512M sluice.memory=0x20000000 ${common[*]}" </dev/null 2>&3 || code=$?
else
  truncate -s $((260 * count))M "$bed/gpus"
  # A statically linked kernel (--kasan) has its area for restartable sequences where it unmaps memory of its processes.
  GLIBC_TUNABLES=glibc.pthread.rseq=0 "$kernel" mem="$memory" iomem=gpus,"$bed/gpus" root=/dev/root rootfstype=hostfs \
    rootflags=/ uml_dir="$bed" con=null con0=null,fd:3 con1=null,fd:1 con2=null,fd:4 "${common[@]}" \
    </dev/null 4>&2 3>"$bed/console" 2>&3 || code=$?
fi
if [ ! -s "$bed/code" ]; then
  cat "$bed/console" >&2
  fail "the kernel stopped (exit code $code)"
fi
complaints='WARNING:|BUG:|Oops|INFO: |possible |cannot create device|invalid for parameter|\*ERROR\*'
# The driver's own defects, which need no sluice: adapters/kfd/kernel/README.md.
known='WARNING: .* at restore_process_queues_cpsch'
if grep -E "$complaints" "$bed/messages" | grep -Ev "$known" >"$bed/complaints"; then
  grep -E -A40 "$complaints" "$bed/messages" >&2
  fail "the kernel logged a warning or an error, see above"
fi
exit "$(cat "$bed/code")"
