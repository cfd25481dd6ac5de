#!/bin/bash
# More processes than VMIDs and more queues than hardware queues: the firmware maps them in turns, and each queue runs.
# sluice suspends one of the processes, and the others go on.
. "${BASH_SOURCE[0]%/*}/common.sh"

# At the moment: how many queues are mapped, how many processes they belong to, and how many queues wait.
set_of_queues() {
  awk '/^pasid/ { queues++; processes[$2] } /^waiting/ { waiting++ } END { print queues + 0, length(processes), waiting + 0 }' \
    /sys/kernel/debug/sluice0/firmware
}
# Each process but EXCEPT completes more kernels.
all_go_on() {
  local each before
  declare -A before
  for each in "${!pid[@]}"; do ask "$each" completed && before[$each]=$answer; done
  for each in "${!pid[@]}"; do
    [ "$each" = "${1-}" ] || eventually completes_more "$each" "${before[$each]}"
  done
}

hqds=$(awk '$1 == "num_cp_queues" { print $2 }' /sys/class/kfd/kfd/topology/nodes/1/properties)
# gmc_v9_0_sw_init(): more on GPUs without graphics
vmids=8
! grep -qE '^gfx_target_version (90402|90010)$' /sys/class/kfd/kfd/topology/nodes/1/properties || vmids=13
processes=$((vmids + 1))
queues=$((hqds / processes + 1))
for ((i = 0; i < processes; i++)); do
  start_target $i $queues 10000
done

echo "$((queues * processes)) queues of $processes processes on $hqds hardware queues and $vmids VMIDs"
for ((i = 0; i < 10; i++)); do
  read -r mapped owners waiting <<<"$(set_of_queues)"
  [ "$mapped" -le "$hqds" ] && [ "$owners" -le "$vmids" ] || fail "$mapped queues of $owners processes are mapped"
  [ "$waiting" -eq $((queues * processes - mapped)) ] || fail "$mapped queues are mapped and $waiting wait"
done
all_go_on

echo "one of the processes is suspended"
hold "${pid[4]}"
pasid=$(printf %x "$(cat "/sys/class/kfd/kfd/proc/${pid[4]}/pasid")")
listed() { grep -q "pasid $pasid " /sys/kernel/debug/sluice0/firmware; }
not_listed() { ! listed; }
eventually not_listed
ask 4 completed
before=$answer
all_go_on 4
ask 4 completed
[ "$answer" -eq "$before" ] || fail "kernels of the suspended process ran"
sluice resume "${pid[4]}" >resume.log || fail "resume"
wait $holder || fail "suspend ended with code $?"
eventually listed
all_go_on

echo "each kernel ran once, in order, and whole"
for ((i = 0; i < processes; i++)); do end_target $i; done
eventually maps 0
