#!/usr/bin/env bash
# usage: replay.sh BIN THROWING, beside a simulated GPU (with_simulated_gpu.sh)
# Records a live run and replays it: the same policy decides the same within some milliseconds, another one
# differs as it should. BIN: where the programs are.
# THROWING: a plugin whose policy throws.
set -euo pipefail
PATH=$1:$PATH
throwing=$2
work=$(mktemp -d)
offline=
trap 'kill $offline 2>/dev/null || true; wait || true; rm -rf --one-file-system "$work"' EXIT
cd "$work"

AMD_QUEUE_TAG=OFFLINE_AI offline_demo --load long &
offline=$!
SLUICE_ROLES="store = '$work/roles'" online_demo --window 4 --attach-after 0s --wait-for-offline 1 \
  --slice 40ms --owner-lock "$work/owner" --record live.rec | tee live.txt
tail -n 1 live.rec | grep -q '"is":"end"'

replay() {
  sluice replay live.rec --policy fixed_timeslice:slice=700ms --policy fixed_timeslice:slice=1us \
    --csv-decisions "$1.csv" "${@:2}"
}
replay 1 --json >1.json
replay 2 --json >2.json
cmp 1.json 2.json
cmp 1.csv 2.csv
replay 3 | tee table.txt
grep -q "Replays are open-loop" table.txt

# What is wrong is one line.
refused() {
  wanted=$1
  code=0
  sluice replay "${@:3}" >said 2>&1 || code=$?
  [ $code = "$2" ] && [ "$(wc -l <said)" = 1 ] && grep -qF -- "$wanted" said ||
    { echo "refused: ${*:3} gave $code and:"; cat said; exit 1; }
}
refused "unknown policy 'none'; available: " 2 live.rec --policy none
refused "cannot open missing.rec: No such file" 1 missing.rec
sed '9s/"t"/"u"/' live.rec >damaged.rec
refused "damaged.rec:9: the recording is damaged: field 't' is missing" 1 damaged.rec
refused "invalid duration '5'" 2 live.rec --suspend-cost 5
refused "cannot write no-such-folder/1.csv: No such file" 1 live.rec --csv-decisions no-such-folder/1.csv
grep -v '"is":"mark"' live.rec >unmarked.rec
refused "--policy slo:ttft.p99=1s needs clients that mark the span ttft: unmarked.rec has no such marks; " 2 unmarked.rec --policy slo:ttft.p99=1s

# Symptom: a policy that was removed had figures like any other, and the exit code was 0.
code=0
sluice replay live.rec --policy "$throwing" --csv-decisions removed.csv --json >removed.json 2>said || code=$?
[ $code = 1 ]
grep -q "^sluice: $throwing: the policy was removed during the replay: thrown in decide()" said
if grep "$throwing" removed.csv; then exit 1; fi
python3 - "$throwing" <<'END'
import json, sys
row = json.load(open("removed.json"))["rows"][-1]
assert row == {"policy": sys.argv[1], "what": "replayed", "removed": "thrown in decide()"}, row
END
if sluice replay live.rec --policy "$throwing" >table.txt 2>said; then exit 1; fi
grep -qE "^$throwing +- +- " table.txt

# Cut short in the middle of a line, or with a gap: played up to there.
head -c 20000 live.rec >short.rec
sluice replay short.rec >said
grep -q "^short.rec:[0-9]*: the recording ends early" said
sed '100s/"is":.*/"is":"gap","count":12}/' live.rec >gap.rec
sluice replay gap.rec --json >said
python3 -c 'import json; all = json.load(open("said")); assert not all["complete"] and all["missing_lines"] == 12'

python3 - <<'END'
import csv, json, re
all = json.load(open("1.json"))
print(json.dumps(all, indent=1))
assert all["complete"] and all["device"] == "simulated"
recorded, same, longer, shorter = all["rows"]
live = re.search(r"(\d+) queue suspends, (\d+) resumes in (\d+) driver calls", open("live.txt").read())
assert [recorded["suspends"], recorded["resumes"], recorded["driver_calls"]] == [int(n) for n in live.groups()]
assert recorded["preemptions"] >= 2, "too little happened"
assert recorded["off_gpu_p50_ms"] > 5, "a suspend takes 5 ms by the profile"

# The same policy: the same calls, each at its time.
for key in ["preemptions", "suspends", "resumes", "driver_calls", "forced_resumes", "arrivals_off"]:
    assert recorded[key] == same[key], key
assert abs(recorded["off_gpu_p99_ms"] - same["off_gpu_p99_ms"]) < 5
calls = {}
for row in csv.DictReader(open("1.csv")):
    calls.setdefault(row["policy"], []).append(row)
worst = 0
for was, now in zip(calls["as recorded"], calls["recorded policy, replayed"], strict=True):
    assert [was[k] for k in ("pid", "gpu", "kind", "queues")] == [now[k] for k in ("pid", "gpu", "kind", "queues")]
    worst = max(worst, abs(float(was["at_ms"]) - float(now["at_ms"])))
print(f"{len(calls['as recorded'])} calls, the farthest off by {worst:.3f} ms")
assert worst < 10

# One that waits longer before it lets go holds longer, until max_suspend (1 s) makes it let go; one that does
# not wait preempts more often.
assert longer["forced_resumes"] >= 1 and recorded["forced_resumes"] == 0
assert longer["held_share"] > recorded["held_share"]
assert longer["longest_hold_ms"] < 1100
assert shorter["held_share"] <= recorded["held_share"]
assert shorter["preemptions"] >= recorded["preemptions"]
END
