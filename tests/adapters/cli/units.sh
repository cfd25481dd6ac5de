#!/usr/bin/env bash
# usage: units.sh SOURCE_DIR BIN_DIR
# systemd's own programs look at the unit and its companions.
set -euo pipefail
source=$1 bin=$2
for program in systemd-analyze systemd-tmpfiles systemd-sysusers; do
  command -v "$program" >/dev/null || { echo "no $program here"; exit 77; }
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# As an installation writes it, which tests/install looks at.
sed -e "s|@bindir@|$bin|" -e "s|@docdir@|$work|" "$source/adapters/cli/systemd/sluice.service.in" \
  >"$work/sluice.service"
grep -q "^ExecStart=$bin/sluice run --config /etc/sluice/sluice.toml$" "$work/sluice.service"
# A wrong configuration fails the reload before anybody is told; a node without the driver is no failure.
[ "$(sed -n 's/^ExecReload=//p' "$work/sluice.service" | head -n 1)" = "$bin/sluice check /etc/sluice/sluice.toml" ]
grep -q '^ConditionPathExists=|/dev/kfd$' "$work/sluice.service"
grep -q '^ConditionPathExists=|/dev/nvidiactl$' "$work/sluice.service"
# The same directory as the daemon's, whatever it is.
grep -q "^ExecStopPost=$bin/sluice rescue --no-pause --config /etc/sluice/sluice.toml$" "$work/sluice.service"
grep -q '^WantedBy=.* dev-kfd.device$' "$work/sluice.service"
grep -q '^SUBSYSTEM=="kfd", .*TAG+="systemd"$' "$source/adapters/cli/systemd/sluice.udev"
said=$(systemd-analyze verify --man=no "$work/sluice.service" 2>&1) || { echo "$said"; exit 1; }
[ -z "$said" ] || { echo "$said"; exit 1; }
mkdir "$work/sluice.service.d"
cp "$source/adapters/cli/systemd/transparent.conf" "$work/sluice.service.d/"
said=$(systemd-analyze verify --man=no "$work/sluice.service" 2>&1) || { echo "$said"; exit 1; }
[ -z "$said" ] || { echo "$said"; exit 1; }
sed -e "s|@bindir@|$bin|" -e "s|@docdir@|$work|" "$source/adapters/fleet/systemd/sluice-gangs.service.in" \
  >"$work/sluice-gangs.service"
said=$(systemd-analyze verify --man=no "$work/sluice-gangs.service" 2>&1) || { echo "$said"; exit 1; }
[ -z "$said" ] || { echo "$said"; exit 1; }
# What would make the kernel ignore the agent's capabilities.
if grep -Eq '^(NoNewPrivileges=yes|SystemCall|Restrict(AddressFamilies|Namespaces|Realtime|SUIDSGID)|PrivateDevices|ProtectKernel|ProtectClock|ProtectHostname|MemoryDenyWriteExecute|LockPersonality|DynamicUser)' \
  "$work/sluice.service"; then exit 1; fi
# What the page gives the agent by its file, which cannot be started with more than the unit's bound.
bound=$(sed -n 's/^CapabilityBoundingSet=//p' "$work/sluice.service")
given=$(grep -o 'setcap cap[a-z_,]*' "$source/adapters/cli/DAEMON.md" | sed 's/^setcap //' | tr 'a-z,' 'A-Z\n' | sort -u)
[ -n "$given" ]
for each in $given; do
  case " $bound " in *" $each "*) ;; *) echo "the unit's bound has no $each"; exit 1 ;; esac
done

root=$work/root
mkdir -p "$root/etc"
# The first two commands of the page, for another root.
systemd-sysusers() { command systemd-sysusers --root="$root" "$source/adapters/cli/systemd/sluice.sysusers"; }
systemd-tmpfiles() { command systemd-tmpfiles --root="$root" "$@" "$source/adapters/cli/systemd/sluice.tmpfiles"; }
commands=$(grep -A 2 '^systemd-sysusers$' "$source/adapters/cli/DAEMON.md" | sed -n 1,2p)
eval "$commands"
grep -q '^sluice:' "$root/etc/passwd"
grep -q '^render:.*sluice' "$root/etc/group"
# Who may be a client is not therefore one who may run the agent; the daemon may give its socket away.
grep -q '^sluice-clients:.*:sluice$' "$root/etc/group"
grep -q '^sluice:[^:]*:[^:]*:$' "$root/etc/group"
[ "$(stat -c %a "$root/run/sluice")" = 755 ] && [ "$(stat -c %a "$root/run/sluice/owner")" = 660 ]
[ "$(stat -c %u "$root/run/sluice")" = "$(sed -n 's/^sluice:[^:]*:\([0-9]*\):.*/\1/p' "$root/etc/passwd")" ]
[ "$(stat -c %u "$root/var/lib/sluice")" = 0 ]
# Where the service's configuration has jobs' accounts: `sluice check` finds it before the first start.
[ "$(stat -c '%a %u' "$root/var/log/sluice")" = "755 $(stat -c %u "$root/run/sluice")" ]
