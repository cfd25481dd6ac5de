#!/usr/bin/env bash
# usage: adapters/kfd/kernel/dkms.sh [--build] KERNEL DIRECTORY
# Make a DKMS package of amdgpu with the batch commands (adapters/kfd/kernel/README.md) in the new DIRECTORY.
# KERNEL is the name of a kernel of Debian 12 with amdgpu from Linux 6.12, such as 6.12.117+deb12-amd64.
#   --build  Also build the module, in DIRECTORY, with Debian's headers of KERNEL, which need not be installed. Install
#            and load nothing.
# Needs apt, git, and for --build the packages bc, gcc-12, kmod, make, pahole. No hardware has run this module.
set -euo pipefail

build=
[ "${1-}" != --build ] || { build=yes; shift; }
case ${1-} in
  -h | --help) sed -n '2,7s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
esac
if [ $# -ne 2 ] || [[ $1 != 6.12.*-* ]] || [ -e "$2" ]; then
  sed -n '2s/^# //p' "${BASH_SOURCE[0]}" >&2
  echo "dkms.sh: KERNEL must begin with 6.12., and DIRECTORY must not exist" >&2
  exit 2
fi
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
kernel=$1
mkdir -p "$2"
package=$(cd "$2" && pwd)

work=$(mktemp -d "${TMPDIR:-/tmp}/sluice-dkms.XXXXXX")
trap 'rm -rf "$work"' EXIT
# unpack NAME DIRECTORY: Debian's package NAME.
unpack() {
  (cd "$work" && apt-get download -q -o APT::Sandbox::User=root "$1") >&2
  dpkg-deb -x "$work"/"${1%=*}"_*.deb "$2"
}
headers=linux-headers-$kernel
version=$(apt-cache madison "$headers" | awk 'NR == 1 { print $3 }')
[ -n "$version" ] || { echo "dkms.sh: Debian has no package $headers" >&2; exit 1; }

unpack "linux-source-6.12=$version" "$work/source"
tar -xJf "$work"/source/usr/src/linux-source-6.12.tar.xz -C "$package" --strip-components=1 \
  linux-source-6.12/drivers/gpu/drm/amd linux-source-6.12/include/uapi/linux/kfd_ioctl.h
cd "$package"
# In a work tree of git, `git apply` would look for the files at its root.
cat "$here"/batch/*.patch | GIT_CEILING_DIRECTORIES=$(dirname "$package") git apply -p1 --include='drivers/*' --include='include/*'
# Debian's kernel does not export ptrace_may_access().
sed -i 's/ptrace_may_access(task, PTRACE_MODE_ATTACH_REALCREDS)/capable(CAP_SYS_PTRACE)/' drivers/gpu/drm/amd/amdkfd/kfd_batch.c
grep -q 'capable(CAP_SYS_PTRACE)' drivers/gpu/drm/amd/amdkfd/kfd_batch.c
mkdir -p include/trace  # the trace points' headers are found relative to such a folder
# make_command FOLDER HEADERS: what builds amdgpu in FOLDER. Its own kfd_ioctl.h comes before that of the headers.
make_command() {
  echo "make -C $2 M=$1/drivers/gpu/drm/amd/amdgpu NOSTDINC_FLAGS='-nostdinc -I$1/include -I$1/include/uapi -I$1/include/trace' modules"
}
cat >dkms.conf <<END
PACKAGE_NAME="amdgpu-sluice"
PACKAGE_VERSION="${version%%-*}"
BUILD_EXCLUSIVE_KERNEL="^$(sed 's/[.+]/\\&/g' <<<"$kernel")\$"
BUILT_MODULE_NAME[0]="amdgpu"
BUILT_MODULE_LOCATION[0]="drivers/gpu/drm/amd/amdgpu"
DEST_MODULE_LOCATION[0]="/updates/dkms"
MAKE[0]="$(make_command "\$dkms_tree/\$PACKAGE_NAME/\$PACKAGE_VERSION/build" "\$kernel_source_dir")"
CLEAN="true"
AUTOINSTALL="no"
END
echo "dkms.sh: $package: copy it to /usr/src/amdgpu-sluice-${version%%-*}, then: dkms install amdgpu-sluice/${version%%-*} -k $kernel" >&2
[ -n "$build" ] || exit 0

for each in "$headers" "linux-headers-${kernel%-*}-common" "linux-kbuild-${kernel%-*}"; do
  unpack "$each=$version" "$work/headers"
done
sed -i "s,/usr/src,$work/headers/usr/src," "$work/headers/usr/src/$headers/Makefile"
eval "$(make_command "$package" "$work/headers/usr/src/$headers") -j$(nproc) -s"
modinfo -F vermagic drivers/gpu/drm/amd/amdgpu/amdgpu.ko
