#!/usr/bin/env bash
# usage: readme.sh BIN
# What adapters/lab/README.md says to type, and that threads do not change a byte. BIN: where the programs are.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
readme=$here/../../../adapters/lab/README.md
PATH=$1:$PATH
work=$(mktemp -d)
trap 'rm -rf --one-file-system "$work"' EXIT
cd "$work"
awk '/^```$/ {inside=0} inside {print} /^```sh$/ {inside=1}' "$readme" >commands
[ "$(grep -c '^sluice lab' commands)" = 7 ]
bash -euo pipefail commands >out 2>err
[ "$(grep -c 'suspend at once  *[0-9]' out)" = 10 ]
[ "$(grep -c 'upper bound, offline % at p99' out)" = 10 ]
grep -q '| bursty | load 0.3 | offline long' out
grep -q 'ttft miss%' out
# Every request and call has its row, and the JSON is one.
[ "$(grep -c ',online alone,' requests.csv)" -gt 50 ]
[ "$(grep -c ',suspend,' calls.csv)" -gt 10 ]
python3 -c 'import json; all = json.load(open("all.json")); assert all["settings"][0]["contenders"][5]["p99_ms"]["mean"] > 0; assert "--service fifo" in all["command"]'
# The page: whole, by itself, and the same each time.
python3 "$here/check_page.py" out.html >page
grep -qxF "$(grep -- '--report out' commands)" page
for name in fixed_timeslice deadline 'suspend at once' 'no scheduler' SIGSTOP 'online alone'; do grep -qxF "$name" page; done
grep -qx "upper bound of offline work for policies that suspend (measured time: the longest of all rows)" page
[ "$(grep -c '^Latency of requests$' page)" = 2 ]
mv out.html before.html
bash -euo pipefail <(grep -- "--report out" commands) >/dev/null 2>&1
cmp before.html out.html
python3 "$here/check_page.py" sweep.html >page
grep -q '^break-even: ' page
[ "$(grep -c '<path class="turn"' sweep.html)" = 8 ]
# A name that a shell or a browser would act on stands in the command quoted, and is text on the page.
rude="<script>alert('1') & <b>.toml"
cp "$here/../../../adapters/sim/profiles/mi300x.toml" "$rude"
sluice lab --profile "$rude" --load 0.3 --duration 5s --report rude.html >/dev/null 2>&1
python3 "$here/check_page.py" rude.html >page
grep -qxF "$rude" page
grep '^sluice lab --profile' page >again
before=$(cksum <rude.html)
bash -euo pipefail again >/dev/null 2>&1
[ "$(cksum <rude.html)" = "$before" ]

# What the README shows of a sweep is what it prints, but for what it leaves out.
awk '/^```$/ {inside=0} inside {print} /^```text$/ {inside=1}' "$readme" | grep -vFx ... >shown
[ "$(wc -l <shown)" -gt 10 ]
while IFS= read -r line; do
  grep -qFx -- "$line" out || { echo "the README shows, and the sweep does not print: $line"; exit 1; }
done <shown
[ "$(wc -l <sweep.csv)" = $((1 + 5 * 3 * 4)) ]
python3 - <<'END'
import json
all = json.load(open("sweep.json"))
grid, = all["sweep"]
assert grid["cost_factors"] == [0.1, 1, 10] and grid["kernel_ms"] == [0.2, 1, 5, 20]
line = grid["break_even"]
assert [at["pays"] for at in line] == ["from"] * 3
assert line[0]["kernel_ms"] < line[1]["kernel_ms"] < line[2]["kernel_ms"]
at_once = next(one for one in grid["contenders"] if one["name"] == "suspend at once")
for f, at in enumerate(line):
    for k, kernel in enumerate(grid["kernel_ms"]):
        assert (at_once["p99_ratio"][f][k] < 0.99) == (kernel > at["kernel_ms"])
        setting = all["settings"][grid["settings"][f][k]]
        own = next(one for one in setting["contenders"] if one["name"] == "suspend at once")
        assert own["p99_ms"]["mean"] == at_once["p99_ms"][f][k]
END
# A fleet: each row once, nothing suspended where offline work has nodes of its own, and no more with threads.
grep -q '| poisson:rate=250 | load 0.3 | offline none long' out
for row in 'online alone + least_loaded' 'exclusive nodes 65 % + least_loaded' 'no scheduler + least_offline:delay=15s' \
  'fixed_timeslice + suspended_first:room=2,delay=100ms'; do [ "$(grep -cF "  $row  " out)" = 1 ]; done
for threads in 1 3; do
  sluice lab --nodes 12 --gpus 2 --offline none --offline train:gang=true --arrivals poisson:rate=40 --load 0.4 --duration 5s --seeds 2 --threads $threads >$threads.txt 2>/dev/null
done
cmp 1.txt 3.txt
[ "$(grep -c '^  suspend at once + ' 1.txt)" = 4 ]
for threads in 1 3; do
  sluice lab --sweep --sweep-cost 3,0.5 --sweep-kernel 20ms,1ms --duration 20s --threads $threads --csv-sweep $threads.csv >$threads.txt 2>/dev/null
done
cmp 1.txt 3.txt
cmp 1.csv 3.csv
grep -q 'x0.5: .*; x3: ' 1.txt

# A trace file by the flag.
{ echo TIMESTAMP,ContextTokens,GeneratedTokens
  for second in $(seq 10 59); do echo "2023-11-16 18:17:$second.5,1000,10"; done; } >trace.csv
for threads in 1 2 5; do
  sluice lab --policy fixed_timeslice --arrivals trace --trace trace.csv --seeds 3 --threads $threads --json $threads.json >$threads.txt 2>/dev/null
  cmp 1.txt $threads.txt
  cmp <(sed 's/--threads [0-9]* --json [0-9]*.json//' 1.json) <(sed 's/--threads [0-9]* --json [0-9]*.json//' $threads.json)
done
grep -q '50 requests in 49.0 s' 1.txt

# Copies of it: as many requests as they have in that time.
sluice lab --nodes 4 --offline long --router round_robin --arrivals trace:copies=20 --trace trace.csv --duration 10s --load 0.3 >said 2>/dev/null
requests=$(grep -o '[0-9]* requests in 10.0 s' said | grep -o '^[0-9]*')
[ "$requests" -ge 180 ] && [ "$requests" -le 220 ]

# What is wrong is one line, and exit code 2.
refused() {
  wanted=$1
  shift
  code=0
  sluice lab "$@" >said 2>&1 || code=$?
  [ $code = 2 ] && [ "$(wc -l <said)" = 1 ] && grep -qF -- "$wanted" said ||
    { echo "refused: $* gave $code and:"; cat said; exit 1; }
}
refused "unknown policy 'none'; available: " --policy none
refused "--policy slo:request.p99=1s,itl.p99=1s needs clients that mark the span request or itl: with --no-clients no client marks its work; " --policy slo:request.p99=1s,itl.p99=1s --no-clients
refused "--policy shadow:of=slo,ttft.p99=1s needs clients that mark the span ttft: servers of --service fifo mark only the span request; " --policy shadow:of=slo,ttft.p99=1s --service fifo
refused "slice is \"3 years\"" --policy "fixed_timeslice:slice=3 years"
refused "--router requires --nodes" --router least_loaded
refused "'fastest'; available: round_robin, least_loaded, least_offline, suspended_first" --nodes 4 --router fastest
refused "--router least_loaded:load_delay=10us: load_delay must be 0s or at least 1ms" --nodes 4 --router least_loaded:load_delay=10us
refused "--offline none: a single node needs offline work; add --nodes N" --offline none
refused "--offline none: none of the 4 nodes has offline work; put another --offline among the first 4" --nodes 4 --offline none
refused "none of the 2 nodes has offline work" --nodes 2 --offline none --offline none --offline long
refused "--nodes excludes --sweep" --nodes 4 --sweep
{ cat trace.csv && echo "2023-11-16 18:18:00.5,1000,10"; } >longer.csv
refused "the limit is 5000000" --arrivals trace:copies=100000 --trace longer.csv
refused "add --trace FILE" --arrivals trace
refused "cannot open missing.csv" --arrivals trace --trace missing.csv
refused "rate is 0; it must be" --arrivals poisson:rate=0
refused "kernel_low must be at most kernel_high" --offline long:kernel_low=2s,kernel_high=1s
refused "a gang needs steps" --offline long:gang=true
refused "must be given together" --service continuous:prefill_rate=1000
refused "--duration: invalid duration '5'" --duration 5
refused "--duration: invalid duration '25h': expected at most 24h" --duration 25h
refused "the limit is 5000000" --duration 24h --arrivals poisson:rate=1000
refused "--seed" --seed -1
refused "--load" --load 1.5
refused "no-such-profile" --profile no-such-profile
refused '--target speed=1s: speed is not a parameter of --target; its parameters are request, ttft, itl' --target speed=1s
refused "--target: invalid parameter 'ttft' in 'ttft': expected KEY=VALUE" --target ttft
refused "--service fifo generates no tokens" --service fifo --target request=1s,ttft=200ms
refused "--duration: invalid duration '0s': expected more than 0s" --duration 0s
refused "--load: the load already follows from prefill_rate and decode_token of --service continuous:prefill_rate=1000,decode_token=1ms" --load 0.3 --service continuous:prefill_rate=1000,decode_token=1ms
refused "--trace trace.csv: the file is not used" --trace trace.csv
refused 'slice is 20; it must be a duration with a unit, such as "20ms": 1us to 1h' --policy fixed_timeslice:slice=20
printf '[polcy]\nname = "slo"\n' >wrong.toml
refused "wrong.toml:1: unknown table 'polcy'" --config wrong.toml
printf '[policy]\nslice = "5ms"\n' >wrong.toml
refused "wrong.toml:1: [policy] has neither name nor plugin" --config wrong.toml
refused "invalid number 'nan': expected 0.001 to 0.99" --load nan
refused "--sweep-cost: invalid number '300': expected 0.01 to 100" --sweep --sweep-cost 1,300
refused "--sweep-kernel: invalid duration '11s': expected 1us to 10s" --sweep --sweep-kernel 1ms,11s
refused "--sweep-kernel: invalid duration '5'" --sweep --sweep-kernel 5
refused "--sweep-cost requires --sweep" --sweep-cost 3
refused "kernel_low and kernel_high conflict with --sweep" --sweep --offline long:kernel_low=5ms
sed 's/^resume_cost = .*/resume_cost = "2s"/' "$(dirname "$readme")"/../sim/profiles/mi300x.toml >slow.toml
refused "--sweep-cost 10: resume_cost of profile ./slow.toml would be 20.0 s; the limit is 9 s" --sweep --profile ./slow.toml

refused ".: cannot read the configuration: not a regular file" --config .
refused "--json and --report name the same file, ./same; use a separate file for each" --json same --report ./same
refused "--csv-requests -: standard output already carries the results" --csv-requests -

# Symptom: what an earlier run had written was gone once a later one had begun.
echo earlier >kept.json
code=0
timeout 1 sluice lab --duration 24h --arrivals poisson:rate=40 --gpus 8 --seeds 50 --json kept.json --report new.html >said 2>&1 || code=$?
[ $code = 124 ]
[ "$(cat kept.json)" = earlier ]
[ "$(find . -name 'kept.json*' -o -name 'new.html*')" = ./kept.json ]

# Symptom: what had no limit but --duration looked like any other figure.
sluice lab --arrivals interactive --load 0.3 --duration 60s >said 2>err
grep -q '^sluice: note: mi300x | interactive | load 0.3 | offline long: without a scheduler, requests arrived faster' err
sluice lab --arrivals interactive --load 0.05 --offline train --duration 60s >said 2>err
if grep 'requests arrived faster' err; then exit 1; fi

# What cannot be written is said before hours are simulated, and what cannot be judged takes nobody else's figures.
code=0
timeout 20 sluice lab --duration 24h --arrivals poisson:rate=40 --gpus 8 --seeds 50 --json no-such-folder/all.json >said 2>&1 || code=$?
[ $code = 1 ] && [ "$(cat said)" = "sluice: cannot write no-such-folder/all.json: No such file or directory" ]
printf '[scheduler]\npolicy_time_limit = "1ms"\n[policy]\nname = "fixed_timeslice"\nslice = "7ms"\n' >node.toml
sluice lab --config node.toml --policy fixed_timeslice:slice=7ms --load 0.3 --duration 20s >said 2>err
grep -q '^sluice: note: node.toml: policy_time_limit has no effect in the lab' err
figures() { grep -F "  $1  " said | grep -o '  [0-9].*'; }
[ -n "$(figures '[policy] of node.toml')" ] && [ "$(figures '[policy] of node.toml')" = "$(figures fixed_timeslice:slice=7ms)" ]
# A slice that max_suspend (1 s) never lets pass is said.
grep -q 'ends the hold first' err && exit 1
sluice lab --policy fixed_timeslice:slice=5s --load 0.3 --duration 20s >said 2>err
grep -qF 'sluice: note: --policy fixed_timeslice:slice=5s: the slice of 5s is longer than max_suspend (1s), which ends the hold first' err
# Offline work that gets nothing done: whose fault it is.
code=0
sluice lab --wake-up 100h --load 0.3 --duration 20s >said 2>&1 || code=$?
[ $code = 1 ] && grep -q 'its host pauses for up to 100h after a kernel (--wake-up ' said
# Arrivals without a request: no figure of latencies, and JSON is JSON.
sluice lab --load 0.3 --arrivals poisson:rate=0.001 --duration 1s --json none.json --report none.html >said 2>err
grep -q 'no request arrived, so no latencies are reported' said
python3 "$here/check_page.py" none.html >page
python3 -c 'import json; json.load(open("none.json"), parse_constant=lambda name: exit(name))'
# A policy that says something every ten seconds says it three times, and the rest is counted.
sluice lab --policy shadow:of=fixed_timeslice --load 0.3 --duration 10min >said 2>err
[ "$(grep -c 'would have held offline groups' err)" = 3 ]
grep -qE '^sluice: in the lab: [1-9][0-9]* similar lines suppressed$' err
# A key that fits nothing here is said.
sluice lab --policy fixed_timeslice:weight_of.chat=2,slice_of.7=5ms --policy fair_share:weight.8=3 --load 0.3 --duration 60s >said 2>err
grep -q 'weight_of.chat has had no effect: ' err
grep -q 'slice_of.7 has had no effect: ' err
grep -q 'weight.8: no effect in 100 choices' err
# Costs that are given make a load, and that stands there.
sluice lab --service continuous:prefill_rate=10000,decode_token=1ms --arrivals poisson:rate=5 --duration 60s >said 2>err
grep -qE ' \| load 0\.[0-9]+ \| ' said
[ "$(grep -c ' | load 0.3 | ' said)" = 0 ]
