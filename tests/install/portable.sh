#!/usr/bin/env bash
# usage: portable.sh BUILD WITHOUT_IO_URING WORK
# Makes the portable archive of what was built, looks at each ELF file in it, and types what adapters/embed/README.md
# says about it in a root that has no file but these and glibc's, in a folder whose name has a blank.
set -euo pipefail
build=$1 without_io_uring=$2 work=$3
top=$(realpath "$(dirname "${BASH_SOURCE[0]}")/../..")
page=$top/adapters/embed/README.md
. "$top/examples/common.sh"
fail() { echo "FAILED: $*"; exit 1; }

rm -rf --one-file-system "$work"
root=$work/root
mkdir -p "$root/opt/a folder"
cd "$work"
cpack -G TGZ --config "$build/CPackConfig.cmake" -B "$work/made" >cpack.log 2>&1 || { cat cpack.log; exit 1; }
cp made/*.tar.gz "$root/opt/a folder"
awk '/^## Portable archive/ {on=1} on && /^```$/ {inside=0} inside && n == 2
  on && /^```sh$/ {inside=1; n++}' "$page" >typed
cd "$root/opt/a folder"
eval "$(grep -E '^(tar|cd) ' "$work/typed")"
archive=$PWD
cd "$work"

# --- What is in it ---
glibc=" ld-linux-x86-64.so.2 libc.so.6 libm.so.6 libpthread.so.0 libdl.so.2 librt.so.1 libresolv.so.2 "
count=0
while IFS= read -r -d '' file; do
  readelf -h "$file" >/dev/null 2>&1 || continue
  count=$((count + 1))
  short=${file#"$archive/"}
  readelf -dVW "$file" >seen
  for needed in $(sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' seen); do
    # The agent may have file capabilities, with which the loader ignores $ORIGIN.
    [[ "$glibc" == *" $needed "* ]] || { [ "$short" != bin/sluice-agent ] && [ -e "$archive/lib/$needed" ]; } ||
      fail "$short needs $needed"
  done
  path=$(sed -nE 's/.*\((RPATH|RUNPATH)\).*\[(.*)\]/\2/p' seen)
  case $short in
    bin/sluice-agent | lib/*) [ -z "$path" ] || fail "$short looks for libraries in '$path'" ;;
    *) [ "$path" = "\$ORIGIN/../lib" ] || fail "$short looks for libraries in '$path'" ;;
  esac
  newest=$(grep -oE 'GLIBC_[0-9.]+' seen | sort -uV | tail -n 1)
  printf '%s\n' "$newest" GLIBC_2.36 | sort -CV || fail "$short needs $newest"
done < <(find "$archive" -type f -print0)
[ "$count" -ge 20 ] || fail "only $count ELF files"
grep -q 'glibc 2\.36' "$page" || fail "$page does not say which glibc is needed"
for path in LICENSE README.md sluice.toml; do
  [ -s "$archive/share/doc/sluice/$path" ] || fail "there is no $path"
done
for path in include/sluice/client.h lib/libsluice_client.so share/man/man1/sluice-run.1.gz; do
  [ -s "$archive/$path" ] || fail "there is no $path"
done
[ "$(cd "$archive" && echo *)" = "bin include lib share" ] || fail "it has other folders: $(ls "$archive")"
[ "$(find "$archive/lib" -mindepth 1 -type d)" = "" ] || fail "lib/ has folders"
PYTHONPATH=$archive/share/sluice/python python3 -B -c 'import sluice._library as found; print(found.load().path)' >loaded ||
  fail "the Python module does not load its library"
[ "$(cat loaded)" = "$archive/lib/libsluice_client.so.0" ] || fail "Python loads $(cat loaded)"

# --- In the root ---
libraries=$(dirname "$(ldd "$archive/bin/sluice-agent" | sed -n 's/.*libc\.so\.6 => \([^ ]*\).*/\1/p')")
mkdir -p "$root"/{proc,dev,tmp,lib64} "$root$libraries"
for name in $glibc; do cp -L "$libraries/$name" "$root$libraries/"; done
cp -L /lib64/ld-linux-x86-64.so.2 "$root/lib64/"
: >"$root/dev/null"
: >"$root/dev/zero"
: >"$root/dev/fuse"
chmod 755 "$root"
before=()
# in_root COMMAND...: its paths are those in the root.
in_root() (
  in_own_mounts sh -c 'root=$0
    mount --rbind /proc "$root/proc" || exit 77
    for each in null zero fuse; do [ ! -e /dev/$each ] || mount --bind /dev/$each "$root/dev/$each" || exit 77; done
    exec "$@"' "$root" env -i PATH="$PATH" "${before[@]}" chroot "${as_user[@]}" "$root" "$@"
)
as_user=()
[ "$(id -u)" = 0 ] || { echo "skipped: only root can run programs in another root"; exit 77; }
in_root "/lib64/ld-linux-x86-64.so.2" --version >said 2>&1 || { cat said; echo "skipped: mounts or chroot are not possible here"; exit 77; }
bin=${archive#"$root"}/bin
[ "$(in_root "$bin/sluice" --version)" = "$("$build/bin/sluice" --version)" ] || fail "sluice --version"
for program in sluice-agent sluice-sim; do
  in_root "$bin/$program" --help >said && "$build/bin/$program" --help | diff - said || fail "$program --help"
done
in_root "$bin/sluice" policy | grep '^fixed_timeslice: ' || fail "sluice policy"
# Profiles: of the device, and of the lab.
! in_root "$bin/sluice-sim" --root /tmp/none --profile none 2>said || fail "there is a profile none"
grep 'available: .*mi300x' said || { cat said; fail "sluice-sim finds no profiles"; }
in_root "$bin/sluice" lab --duration 5s --load 0.3 --policy fixed_timeslice >said 2>&1 || { cat said; fail "sluice lab"; }
# sluice-epoll, beside sluice. Without a GPU it ends.
before=(timeout 60 "$without_io_uring")
! in_root "$bin/sluice" run >said 2>&1 || fail "sluice run works without a GPU"
grep 'continuing as sluice-epoll' said && grep -q 'no driver is present' said || { cat said; fail "there is no sluice-epoll"; }
before=()
# With file capabilities, for another user: the loader then takes libraries from glibc's folders alone.
if setcap cap_sys_ptrace+ep "$archive/bin/sluice-agent"; then
  as_user=(--userspec=65534:65534)
  in_root "$bin/sluice-agent" --help >said 2>&1 || { cat said; fail "the agent does not run with capabilities"; }
  as_user=()
  setcap -r "$archive/bin/sluice-agent"
else
  echo "not tried: the agent with file capabilities"
fi

# What else the page says to type.
code=0
typed=$(grep -o '^bin/sluice doctor' typed) || fail "$page does not say 'bin/sluice doctor'"
in_root "${archive#"$root"}/${typed% *}" doctor >said 2>&1 || code=$?
[ "$code" = 1 ] && grep '^BLOCKED  drivers: ' said || { cat said; fail "sluice doctor ends with $code"; }
typed=$(grep -o '^bin/sluice-demo [^#]*' typed) || fail "$page does not say how to run the demo"
if [ -e /dev/fuse ] && [ -e "$archive/bin/sluice-demo" ]; then
  read -ra words <<<"$typed"
  in_root "${archive#"$root"}/${words[0]}" "${words[@]:1}" --window 300ms --drain-limit 1min >said 2>&1 ||
    { cat said; fail "the demo ends with another code than 0"; }
  grep 'backend kfd, agent: ' said || { cat said; fail "the demo runs without the agent"; }
else
  echo "not tried: the demo, which needs /dev/fuse and a build with examples"
fi
echo "the archive has $count ELF files and runs where only glibc is"
