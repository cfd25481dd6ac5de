#!/usr/bin/env bash
# usage: hardening.sh C_COMPILER BUILD_DIR PROGRAM_OR_LIBRARY...
# Whether what was built is as hard to misuse as the compiler and the linker can make it, by what readelf shows
# of it. Before that, every one of these checks is shown a program that lacks just that.
set -euo pipefail
compiler=$1 build=$2
shift 2
work=$(mktemp -d)
trap 'rm -rf --one-file-system "$work"' EXIT

# flaws FILE: what it lacks, one word each.
flaws() {
  local file=$1 head segments dynamic symbols
  head=$(readelf -hW "$file")
  segments=$(readelf -lW "$file")
  dynamic=$(readelf -dW "$file")
  symbols=$(readelf --dyn-syms -W "$file")
  grep -q 'Type: *DYN' <<<"$head" || echo position_independent
  # A program says so, a library has nothing to say.
  ! grep -q ' INTERP ' <<<"$segments" || grep -q 'FLAGS_1.*PIE' <<<"$dynamic" || echo pie
  grep -q ' GNU_RELRO ' <<<"$segments" || echo relro
  grep -Eq '\(FLAGS\).*BIND_NOW|\(FLAGS_1\).*NOW' <<<"$dynamic" || echo now
  grep -Eq ' GNU_STACK .* RW ' <<<"$segments" || echo noexecstack
  ! grep -Eq '^ +LOAD .* RWE ' <<<"$segments" || echo writable_code
  grep -q ' __stack_chk_fail' <<<"$symbols" || echo stack_protector
  # Of glibc's checked functions, other than that.
  grep -Eq ' __[a-z0-9_]+_chk(@|$)' <<<"$symbols" || echo fortify
}

# Each function of glibc that has a checked twin shows only where it is used with a size that counts.
cat >"$work/sample.c" <<'END'
#include <stdio.h>
#include <string.h>
int main(int count, char** words) {
  char text[16];
  memset(text, 0, sizeof text);
  if (count > 1) strcpy(text, words[1]);
  return printf("%s\n", text) < 0;
}
END
all=(-O2 -fPIE -pie -fstack-protector-strong -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=3
  -Wl,-z,relro,-z,now,-z,noexecstack)
# expect WHAT FLAG...: of the sample built so.
expect() {
  local wanted=$1 found
  shift
  "$compiler" "${all[@]}" "$@" -o "$work/sample" "$work/sample.c" -w
  found=$(flaws "$work/sample" | paste -sd ' ')
  [ "$found" = "$wanted" ] || { echo "FAILED: built with $*: found '$found', not '$wanted'"; exit 1; }
}
expect ''
expect 'position_independent pie' -fno-PIE -no-pie
expect 'relro' -Wl,-z,norelro
expect 'now' -Wl,-z,lazy
expect 'noexecstack' -Wl,-z,execstack
expect 'stack_protector' -fno-stack-protector
expect 'fortify' -U_FORTIFY_SOURCE

failed=
for file; do
  lacks=$(flaws "$file" | paste -sd ' ')
  [ -z "$lacks" ] || { echo "FAILED: $file lacks: $lacks"; failed=yes; }
done

# That the stack's guard page is never jumped over leaves no mark in a file: how was it compiled?
commands=$build/compile_commands.json
if [ -e "$commands" ]; then
  # Sources of this tree's products, one line each; not those that only show that each header compiles alone.
  product='"command".* -o (core|policies|adapters)/'
  grep -E "$product" "$commands" | grep -v '_verify_interface_header_sets' >"$work/commands" || true
  compiled=$(wc -l <"$work/commands")
  bare=$(grep -vc -- ' -fstack-clash-protection ' "$work/commands") || true
  # A unity build has one for several of them.
  [ "$compiled" -ge 50 ] || { echo "FAILED: only $compiled files in $commands"; failed=yes; }
  [ "$bare" = 0 ] || { echo "FAILED: $bare files without -fstack-clash-protection"; failed=yes; }
fi
[ -z "$failed" ] || exit 1
echo "$# files are hardened"
