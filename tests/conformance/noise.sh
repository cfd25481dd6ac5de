#!/usr/bin/env bash
# usage: tests/conformance/noise.sh FIRST_SEED ROUNDS
# Prints a script for kfd_calls: in each round, three processes make random calls at the same time, two of them with
# queues and one as a debugger. After the round, the driver must still serve a new process.
set -euo pipefail
[[ $# -eq 2 && "$1 $2" =~ ^[0-9]+\ [0-9]+$ ]] || { sed -n '2s/^# //p' "$0" >&2; exit 2; }

cat <<'END'
define party
a open
a acquire gpu=0
a acquire gpu=1
a runtime 1
a queue gpu=0
a queue gpu=1
b open
b acquire gpu=0
b acquire gpu=1
b queue gpu=0
c open
c acquire gpu=0
c acquire gpu=1
c seize @a
c enable @a
end
END
for ((seed = $1; seed < $1 + $2; seed++)); do
  cat <<END
case noise_$seed: party
a & noise 300 @a,@b,@c seed=${seed}1 -> started
b & noise 300 @a,@b,@c seed=${seed}2 -> started
c noise 300 @a,@b,@c seed=${seed}3 -> 300
a join -> 300
b join -> 300
kill a -> 0
kill b -> 0
d open -> 0
d acquire gpu=0 -> 0
d acquire gpu=1 -> 0
d queue gpu=0 -> 0 id=0
d queue gpu=1 -> 0 id=1
END
done
