#!/usr/bin/env bash
# usage: packages.sh SOURCE BUILD WORK
# Makes Debian packages of what was built, and looks at them without installing any: lintian, what each shows and
# needs, the manual, the shells' completions, and examples/embed_minimal built against them. tests/packages.sh
# installs them in a clean system.
set -euo pipefail
source=$1 build=$2 work=$3
fail() { echo "FAILED: $*"; exit 1; }

rm -rf --one-file-system "$work"
mkdir -p "$work"
cd "$work"
cpack -G DEB --config "$build/CPackConfig.cmake" -B "$work/packages" >cpack.log 2>&1 || { cat cpack.log; exit 1; }
version=$(dpkg-deb -f packages/libsluice-dev_*.deb Version)
for package in libsluice0.1 libsluice-client0 libsluice-kfd0 libsluice-dev sluice-tools python3-sluice; do
  file=$(echo packages/"${package}_${version}"_*.deb)
  [ -f "$file" ] || fail "no package $package"
  dpkg-deb -x "$file" root
done
# Libraries are where Debian has them only in a build for /usr (the preset `package`).
severity=error
[ -d root/usr/lib/pkgconfig ] || severity=error,warning
# That packages of libraries call ldconfig beside its trigger is cpack's doing, and harms nobody.
# So is that a device wants the service: it is the driver's.
lintian --fail-on $severity --suppress-tags maintscript-calls-ldconfig,systemd-service-file-refers-to-unusual-wantedby-target --tag-display-limit 0 --allow-root packages/*.deb || fail "lintian objects"

# What programs need of what: by the libraries' own names.
dpkg-deb -f packages/libsluice0.1_*.deb Breaks | grep -q "sluice-tools (<< $version), sluice-tools (>> $version)" ||
  fail "a host may meet an agent of another build"
dpkg-deb -f packages/libsluice0.1_*.deb Depends | grep -q 'libc6' || fail "libsluice0.1 has no dependencies"
dpkg-deb -f packages/sluice-tools_*.deb Depends | grep -q 'libseccomp2' || fail "sluice-tools has no dependencies"
[ "$(dpkg-deb -f packages/sluice-tools_*.deb Depends | grep -c 'libboost')" = 0 ] || fail "tools want Boost"
dpkg-deb -I packages/libsluice0.1_*.deb shlibs | grep -qx 'libsluice 0.1 libsluice0.1.*' || fail "no shlibs"

# Public functions, and nothing of what they are made of. That they are all is abi.py's to say.
lib=$(dirname "$(find root -name libsluice.so)")
for library in libsluice libsluice-epoll; do
  grep -q "SONAME.*\[$library.so.0.1\]" <<<"$(readelf -d "$lib/$library.so")" || fail "$library has another name"
  nm -DC --defined-only "$lib/$library.so" >shown
  grep -q ' T sluice::node::create(' shown || fail "$library shows no node"
  ! grep -vE ' (A SLUICE|[TVuBRDW] ((typeinfo( name)?|vtable|guard variable) for )?sluice::)' shown ||
    fail "$library shows more than its own"
done

# The service's configuration: a command as it is installed finds what the daemon writes.
# It works for whom the socket is for, and needs no capability of the daemon's.
grep -q '^may_claim_online = { users = \["@self"\], groups = \["sluice-clients"\], ' root/etc/sluice/sluice.toml ||
  fail "the configuration refuses the group that its socket is for"
for key in 'socket_group = "sluice-clients"' 'jobs = "/var/log/sluice/jobs"' 'name = "fixed_timeslice"'; do
  grep -q "^$key " root/etc/sluice/sluice.toml || fail "the configuration does not say $key"
done

# The manual: a page for each command there is, none with a warning.
export MANROFFSEQ='' MAN_KEEP_FORMATTING='' LC_ALL=C.UTF-8
sluice=root/usr/bin/sluice
"$sluice" --help | sed -n '/^Subcommands:/,/^$/s/^  \([a-z-]*\) .*/sluice-\1.1/p' >pages
[ "$(wc -l <pages)" -ge 17 ] || fail "only $(wc -l <pages) subcommands"
printf '%s\n' sluice.1 sluice-epoll.1 sluice-agent.8 sluice-gangs.8 sluice-sim.8 sluice-sim-victim.8 sluice-nvidia-victim.8 sluice.toml.5 >>pages
while read -r page; do
  file=root/usr/share/man/man${page##*.}/$page.gz
  [ -f "$file" ] || fail "there is no $page"
  # In its folder, as one page is another.
  (cd root/usr/share/man && MANWIDTH=80 man --warnings -E UTF-8 -l "../../../../$file") >page 2>warnings
  [ ! -s warnings ] || { cat warnings; fail "$page has warnings"; }
  [ "$(wc -l <page)" -ge 8 ] || fail "$page is empty"
  # What examples say is what commands take.
  awk '/^EXAMPLES/ {on=1; next} /^[A-Z]/ {on=0} on' page | grep -oE '^ +sluice [a-z]+.*' >examples || true
  case $page in
    sluice-doctor.1 | sluice-resume.1 | sluice-unpause.1 | sluice-epoll.1 | *.[58]) ;;
    *) [ -s examples ] || fail "$page has no examples" ;;
  esac
  while read -r _ command words; do
    "$sluice" "$command" --help >help || fail "$page: there is no $command"
    word=${words%% *}
    ! grep -q "^  $word  " help || "$sluice" "$command" "$word" --help >>help
    for option in $(grep -oE -- '(^| )--[a-z-]+' <<<"$words"); do
      grep -qE -- "^ +(-., *)?$option( |$)" help || fail "$page: $command has no $option"
    done
  done <examples
done <pages
man -E UTF-8 -l root/usr/share/man/man1/sluice-run.1.gz >page
grep -q 'SIGHUP reloads the configuration' page || fail "sluice-run(1) does not say what --help does"
grep -qE '^ +--mode observe\|enforce$' page || fail "sluice-run(1) has no --mode"

# Completions, as the shells have them.
completions() {
  bash -c 'set -u; complete() { :; }; compopt() { :; }; . "$0"
    COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)); _sluice; echo "${COMPREPLY[*]-}"' \
    root/usr/share/bash-completion/completions/sluice "$@"
}
expect() {
  local wanted=$1 found
  shift
  found=$(completions "$@")
  [ "$found" = "$wanted" ] || fail "after '$*' bash completes '$found', not '$wanted'"
}
expect 'role' sluice ro
expect 'set' sluice role s
expect 'online offline' sluice role set o
expect '--position --pid' sluice role set --p
expect 'observe enforce' sluice run --mode ''
expect '--mode' sluice run --m
expect '' sluice run --config ''
for command in $(sed -n 's/^sluice-\([a-z-]*\)\.1$/\1/p' pages); do
  [ "$command" = epoll ] || expect "$command" sluice "$command"
done
if command -v zsh >/dev/null; then zsh -n root/usr/share/zsh/*/_sluice || fail "zsh"; fi
if command -v fish >/dev/null; then
  fish -c 'source root/usr/share/fish/vendor_completions.d/sluice.fish; complete -C "sluice role s"' |
    grep -q '^set' || fail "fish completes nothing"
fi

# A program against what is in them, in both ways, where they are not installed.
export LD_LIBRARY_PATH=$work/$lib PKG_CONFIG_PATH=$work/$lib/pkgconfig PATH=$work/root/usr/bin:$PATH
cp -r "$source/examples/embed_minimal" by_make
make -s -C by_make
cp -r "$source/examples/embed_minimal" by_cmake
cmake -S by_cmake -B by_cmake/build -G Ninja -D CMAKE_PREFIX_PATH="$work/root/usr" >cmake.log 2>&1 || { cat cmake.log; exit 1; }
cmake --build by_cmake/build >cmake.log 2>&1 || { cat cmake.log; exit 1; }
# The agent is found by where the library lies.
for program in by_make/embed_minimal by_cmake/build/embed_minimal by_cmake/build/embed_minimal-epoll; do
  ! SLUICE_KFD_DEVICE=/nonexistent/kfd PATH=/usr/bin:/bin "$program" >said 2>&1 || fail "$program works without a GPU"
  grep -Eq 'cannot open /nonexistent/kfd|Operation not permitted' said || { cat said; fail "$program says something else"; }
done
echo "the packages are as they should be"
