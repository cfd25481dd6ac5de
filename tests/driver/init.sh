#!/bin/bash
# The first process of the machine: mounts what programs expect, runs the command of run.sh, and powers off.
# Console 1 and 2, or ports 1 and 2 of QEMU, are the command's standard output and standard error.
# bed: the folder of this run with `command` and `directory`. It gets `code` and `messages`, those of the kernel.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
for each in proc:/proc sysfs:/sys debugfs:/sys/kernel/debug devtmpfs:/dev tmpfs:/run tmpfs:/tmp; do
  mount -t "${each%%:*}" "${each%%:*}" "${each#*:}"
done
mkdir -p /dev/shm /dev/pts /run/lock "$bed"
mount -t tmpfs tmpfs /dev/shm
mount -t devpts devpts /dev/pts
console=/dev/tty
# host DIRECTORY TAG [OPTION]: mounts this directory of the host at its place.
host() { mount -t hostfs -o "${3-rw},$1" none "$1"; }
if grep -qw 9p /proc/filesystems; then
  for ((i = 0; i < 600; i++)); do
    ! console=$(compgen -G '/dev/vport*p2') || break
    sleep 0.05
  done
  console=${console%2}
  host() { mount -t 9p -o "${3-rw},trans=virtio,version=9p2000.L,cache=loose,msize=524288" "$2" "$1"; }
else
  for each in 1 2; do stty -F "/dev/tty$each" -opost; done
fi
host "$bed" bed
# A tree below /tmp or /run is hidden by now.
directory=$(cat "$bed/directory")
[ -d "$directory" ] || { mkdir -p "$directory" && host "$directory" tree ro; }
cd "$directory" && /bin/bash "$bed/command" >"${console}1" 2>"${console}2"
echo $? >"$bed/code"
dmesg >"$bed/messages"
# The second field of a record is its number.
first=$(dd if=/dev/kmsg bs=8192 count=1 2>/dev/null | cut -d, -f2 | head -n 1)
[ "$first" = 0 ] || echo "BUG: the kernel's log has lost its first ${first:-?} messages" >>"$bed/messages"
sync
# RB_POWER_OFF of reboot(2)
exec python3 -c 'import ctypes; ctypes.CDLL(None).reboot(0x4321fedc)'
