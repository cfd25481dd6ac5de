#!/usr/bin/env python3
"""usage: parts_test.py WORK_DIR

Runs parts of nvidia.py with programs and a daemon that only pretend, and checks what the parts make of them."""

import argparse
import collections
import contextlib
import io
import json
import os
import pathlib
import struct
import subprocess
import sys
import tempfile
import threading
import time

import floor as cost_floor
import nvidia

failures = []


def check(good, what):
    if not good:
        failures.append(what)


HELD = 30  # Word of the page of a pretended program.


class PretendedClient:
    def begin(self):
        pass

    end = close = begin


class PretendedDaemon:
    """Reports as many suspends as the test wants, and records as many."""

    suspends = 0
    begins = 1
    process = argparse.Namespace(pid=os.getpid())

    def __init__(self, context, **options):
        self.options = options
        self.directory = context.scratch
        self.environment = context.environment
        context.daemons.append(self)

    def wait_attached(self, *loads):
        for load in loads:
            load.check_alive()

    def connect(self):
        return PretendedClient()

    def check_alive(self):
        pass

    def agent(self):
        return os.getpid()

    def guardian(self, agent):
        return agent

    def status(self):
        return {"clients": [{"name": "torch_server"}],
                "statistics": {"failures": {"attach_failures": 0}, "suspend_call": {"count": self.suspends},
                               "begins": self.begins}}

    def stop(self):
        if self.options.get("record"):
            with open(self.options["record"], "w", encoding="utf-8") as file:
                file.writelines(json.dumps(line, separators=(",", ":")) + "\n" for line in recorded(self.suspends))


def recorded(count):
    """A recording in which one process is suspended for each begin: 90 us after it, for 600 us, and resumed in 300 us."""
    for number in range(count):
        at = 10 ** 7 * number + 1
        yield {"t": at + 50000, "is": "work", "client": 1, "begun": number + 1, "first": at}
        for kind, number_, since in (("suspend", 2 * number, at), ("resume", 2 * number + 1, at + 5000000)):
            yield {"t": since + 60000, "is": "batch", "id": number_, "process": 1, "gpu": 1, "kind": kind, "queues": [0]}
            yield {"t": since + 800000, "is": "done", "id": number_, "process": 1, "gpu": 1, "kind": kind, "queues": [0],
                   "started": since + 90000, "finished": since + (690000 if kind == "suspend" else 390000)}


class HoldingDaemon(PretendedDaemon):
    """Lets the programs pause, with three processes that pretend to be its own. What of these is left ends the pause. With
    `guarding` unset, the guardian does not."""

    guarding = True

    def __init__(self, context, **options):
        super().__init__(context, **options)
        self.on = context
        self.process, self.acting, self.guarded = (
            subprocess.Popen(["sleep", "1000"], preexec_fn=nvidia.die_with_parent) for _ in range(3))
        self.ended = threading.Event()
        self.holding = False
        self.watcher = threading.Thread(target=self.watch, daemon=True)
        self.watcher.start()

    def agent(self):
        return self.acting.pid

    def guardian(self, agent):
        return self.guarded.pid

    def states(self):
        def state(process):
            if process.poll() is not None:
                return "killed"
            stat = pathlib.Path(f"/proc/{process.pid}/stat").read_text(encoding="utf-8")
            return "stopped" if stat.rsplit(")", 1)[1].split()[0] == "T" else ""
        return [state(each) for each in (self.acting, self.guarded, self.process)]

    def watch(self):
        while not self.ended.wait(0.005):
            agent, guardian, daemon = self.states()
            survives = agent and not guardian and self.guarding or guardian and not agent or daemon and not (agent and guardian)
            if survives or agent and guardian == "killed" and not daemon:
                self.ended.wait(0.02)
                self.move(False)

    def move(self, hold):
        self.holding = hold
        for load in self.on.loads:
            load.order(HELD, int(hold))

    def connect(self):
        return argparse.Namespace(begin=lambda: self.move(True), end=lambda: self.move(False), close=lambda: None)

    def rescue(self):
        self.move(False)
        return argparse.Namespace(returncode=0)

    def stop(self):
        self.ended.set()
        self.watcher.join()
        for each in (self.process, self.acting, self.guarded):
            each.kill()
            each.wait()
        self.move(False)


PAGE = '''
import mmap, struct, sys, time
def mapped(path):
    with open(path, "r+b") as file:
        return mmap.mmap(file.fileno(), 0)
def put(page, word, value):
    page[8 * word:8 * word + 8] = struct.pack("<q", value)
'''
# Computes other losses, or other parameters, from the third run on, as the environment wants.
TRAIN = PAGE + '''
import os
steps, page, losses = int(sys.argv[1]), mapped(sys.argv[2]), mapped(sys.argv[3])
with open(os.environ["RUNS"], "a+") as file:
    file.write("x")
    file.seek(0)
    wrong = os.environ["WRONG"] if len(file.read()) >= int(os.environ.get("FROM", 1)) else ""
import itertools
for step in range(steps) if steps else itertools.count():
    loss = 1 / (step + 1) + (0.001 if wrong == "losses" and step == 40 else 0)
    if step < 1000:
        losses[4 * step:4 * step + 4] = struct.pack("<f", loss)
    put(page, 0, step + 1)
    time.sleep(0.001)
put(page, 24, 5 if wrong == "parameters" else 4)
put(page, 25, 1)
time.sleep(1000)
'''
TRAINER = PAGE + '''
page = mapped(sys.argv[sys.argv.index("--page") + 1])
step = 0
while True:
    while page[8 * 17]:
        put(page, 18, 1)
        time.sleep(0.001)
    put(page, 18, 0)
    step += 1
    put(page, 0, step)
    put(page, 19, time.monotonic_ns())
    time.sleep(0.01)
'''
LOAD = "#!" + sys.executable + "\n" + PAGE + '''
import os, json, signal
what, options = sys.argv[1], dict(zip(sys.argv[2::2], sys.argv[3::2]))
if what in ("wakes", "online"):
    print(json.dumps({"n": 100, "p50": 5, "p99": 9, "p50_us": 70, "p99_us": 90, "max_us": 99, "offline_per_us": 0,
                      "hand_over": [20, 40], "awake": None}))
    sys.exit()
page = mapped(options["--page"])
word = lambda number: struct.unpack_from("<q", page, 8 * number)[0]
put(page, 16, word(16) + 1)
signal.signal(signal.SIGUSR1, lambda *_: os.execv(sys.argv[0], sys.argv))
signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR1])
number, crashes = word(0), 0
while what in ("offline", "rest"):
    held = word(30)
    number += what == "offline" and not held
    put(page, 21, word(20))
    for stream in range(int(options.get("--streams", 0)) + word(21)):
        put(page, stream, number)
    crashes = crashes or word(22)
    put(page, 22, 0)
    if crashes and not held:
        sys.exit(1)
    if word(23):
        sys.exit()
    time.sleep(0.001)
while True:
    number += 1
    put(page, 1, 132 * number)
    damaged = "--damage" in options and os.environ["WRONG"] != "blind"
    put(page, 2, number if damaged else 0)
    put(page, 3, int(damaged or os.environ["WRONG"] == "shared"))
    put(page, 0, number)
    time.sleep(0.001)
'''


def part(name, quick=True, trace=None, limit=60, **environment):
    """Runs a part; returns its results."""
    with tempfile.TemporaryDirectory(dir=work) as folder, contextlib.redirect_stdout(io.StringIO()):
        folder = pathlib.Path(folder)
        load = folder / "gpu_load"
        load.write_text(LOAD)
        load.chmod(0o755)
        on = nvidia.Context(argparse.Namespace(quick=quick, driver="nvidia", bin=folder, library="none", load=load, out=folder,
                                               gpu=None, trace=trace, rivals=None))
        on.torch = True
        on.rates = {"offline": 1, "online": 1}
        on.environment.update({"WRONG": "", **environment, "RUNS": str(folder / "runs")})
        (folder / "train_exact.py").write_text(TRAIN)
        nvidia.TRAINER = folder / "trainer.py"
        nvidia.TRAINER.write_text(TRAINER)
        sluice = folder / "sluice"
        sluice.write_text(LAB)
        sluice.chmod(0o755)
        (folder / "llm_server.py").write_text(SERVER)
        (folder / "floor.py").write_text(FLOOR)
        nvidia.lossless.HERE = nvidia.llm.HERE = nvidia.cost.HERE = folder
        return nvidia.run_part(on, name, limit)


FLOOR = '''
import json, os
print(json.dumps({"channels": 8, "suspend": [590, 700], "resume": [300, 350], "processor": 1e9}))
'''


def kept(result):
    return [each["kept"] for each in result.get("bounds", [])]


def counted(result):
    """Whether the bounds of what is counted are kept. Those of times also depend on how busy this machine is."""
    return [each["kept"] for each in result.get("bounds", []) if each["unit"] in ("", "KiB")]


def check_lossless():
    PretendedDaemon.suspends = 600
    seen = part("lossless", WRONG="", FROM="1")
    check(seen["outcome"] == "passed" and kept(seen) == [True] * 3, f"equal losses: {seen}")
    check(seen["losses_alone"][:2] == ["3f800000", "3f000000"] and len(seen["losses_held"][0]) == 100, f"losses: {seen}")
    for what, expected in (("losses", [False, True, True]), ("parameters", [True, False, True])):
        seen = part("lossless", WRONG=what, FROM="2")
        check(seen["outcome"] == "failed" and kept(seen) == expected, f"other {what}: {seen}")
    seen = part("lossless", quick=False, WRONG="losses", FROM="2")
    check("is not deterministic" in seen["problems"][0] and not seen["bounds"], f"other losses alone: {seen}")
    seen = part("lossless", quick=False, WRONG="", FROM="1")
    check(kept(seen) == [True, True, False] and seen["bounds"][2]["value"] == 600, f"too few suspends: {seen}")


def check_checksum():
    nvidia.lossless.QUICK_SECONDS, nvidia.lossless.LEAST_PER_SECOND = 1, 600
    seen = part("checksum", WRONG="")
    check(seen["outcome"] == "passed" and kept(seen) == [True] * 3, f"no wrong words: {seen}")
    kernels, blocks = seen["figures"]["checksum: kernels / blocks that were checked"]["values"]
    check(kernels > 0 and blocks == 132 * kernels, f"blocks: {seen}")
    seen = part("checksum", WRONG="shared")
    check(seen["outcome"] == "failed" and kept(seen) == [True, False, True], f"wrong words: {seen}")
    seen = part("checksum", WRONG="blind")
    check("did not find" in seen["problems"][0] and not seen["bounds"], f"a check that finds nothing: {seen}")


# Serves by the loop of llm_server.py, in time that passes by sleeping.
SERVER = f"import sys\nsys.path.insert(0, {str(nvidia.HERE)!r})\n" + '''
import json, time
import llm_loop
costs = {"prefill_us": {str(size): 4000 for size in llm_loop.PROMPTS}, "decode_us": {str(size): 500 for size in llm_loop.BATCHES}}
def report(**what):
    print(json.dumps(what), flush=True)
class Engine(llm_loop.Virtual):
    now = staticmethod(time.monotonic_ns)
    def wait(self, until):
        time.sleep(max(0, until - time.monotonic_ns()) / 1e9)
    def prefill(self, slot, tokens):
        time.sleep(0.004)
    decode = lambda self, slots: time.sleep(0.0005)
report(alone_us=200, **costs)
for line in sys.stdin:
    order = json.loads(line)
    begun = time.monotonic_ns() + 10 ** 8
    report(begun=begun)
    engine = Engine(costs)
    with open(order["arrivals"]) as file:
        arrivals = [(begun + int(1e9 * at), *lengths) for at, *lengths in json.load(file)]
    made, busy = llm_loop.serve(engine, engine, arrivals, llm_loop.NoMarks(), begun + int(1e9 * order["limit_s"]))
    with open(order["log"], "w") as file:
        json.dump([[each.number, each.arrival, each.output, each.tokens] for each in made], file)
    report(busy_s=busy / 1e9)
'''


# sluice lab, of which the figures of one row are wanted.
LAB = "#!" + sys.executable + '''
import json, pathlib, sys
if sys.argv[1] in ("suspend", "resume"):
    import mmap, os, time
    words = pathlib.Path(f"/proc/{sys.argv[-1]}/cmdline").read_bytes().split(b"\\0")
    with open(words[words.index(b"--page") + 1], "r+b") as file:
        page = mmap.mmap(file.fileno(), 0)
    page[240] = sys.argv[1] == "suspend"  # Word 30.
    if sys.argv[1] == "suspend":
        pathlib.Path(os.environ["SLUICE_DIRECTORY"], "owner.1").touch()
        print(json.dumps({"event": "suspend", "queues": [{"suspended": True}]}), flush=True)
        while page[240]:
            time.sleep(0.001)
    sys.exit()
assert sys.argv[1] == "lab" and pathlib.Path(sys.argv[sys.argv.index("--trace") + 1]).exists()
row = {key: {"mean": number} for number, key in enumerate(("ttft_p50_ms", "ttft_p99_ms", "itl_p50_ms", "itl_p99_ms", "offline_percent"))}
policies = [value for option, value in zip(sys.argv, sys.argv[1:]) if option == "--policy"]
rows = [{"name": name, **row} for name in ("online alone", "no scheduler", "SIGSTOP", *policies)]
pathlib.Path(sys.argv[sys.argv.index("--json") + 1]).write_text(json.dumps({"settings": [{"contenders": rows}]}))
'''


class Recorder:
    """A client that records its calls."""

    def __init__(self):
        self.calls = []

    def begin(self):
        self.calls.append("begin")

    def end(self):
        self.calls.append("end")

    def begin_span(self, kind, request, since=None):
        self.calls.append(f"begin {kind} {request}" + (f" since {since}" if since is not None else ""))

    def end_span(self, kind, request):
        self.calls.append(f"end {kind} {request}")


def check_llm():
    llm, loop = nvidia.llm, nvidia.llm.llm_loop
    costs = {"prefill_us": {str(size): size for size in loop.PROMPTS},
             "decode_us": {str(size): 1000 + size for size in loop.BATCHES}}
    # Two requests that overlap: the second one's prefill comes between two tokens of the first.
    virtual, client = loop.Virtual(costs), Recorder()
    made, busy = loop.serve(virtual, virtual, [(5000, 100, 3), (6000, 200, 1), (10 ** 9, 5000, 500)], loop.Marks(client), 10 ** 10)
    check([each - 5000 for each in made[0].tokens] == [128000, 1129000, 2386000], f"tokens: {made[0].tokens}")
    check([each - 5000 for each in made[1].tokens] == [1129000 + 256000], f"tokens of the second: {made[1].tokens}")
    check((made[2].prompt, made[2].output, len(made[2].tokens)) == (1024, 64, 64), "the longest request")
    check(busy == 128000 + 256000 + 2 * 1001000 + 1024000 + 63 * 1001000, f"busy: {busy}")
    check(client.calls[:11] == ["begin", "begin ttft 0 since 5000", "end ttft 0", "begin itl 0", "begin itl 0", "begin",
                                "begin ttft 1 since 6000", "end ttft 1", "end", "end itl 0", "end"], f"marks: {client.calls[:11]}")
    check(client.calls.count("begin") == client.calls.count("end") == 3, "begins and ends")
    # At most as many at once as there are slots, and no longer than the limit.
    virtual = loop.Virtual(costs)
    made, _ = loop.serve(virtual, virtual, [(0, 1, 64)] * 40, loop.NoMarks(), 10 ** 9)
    check(len(made) == 40 and all(each.done() for each in made), "more requests than slots")
    check(made[32].tokens[0] > made[0].tokens[-1], "a request without a slot waits")
    virtual = loop.Virtual(costs)
    made, _ = loop.serve(virtual, virtual, [(0, 1, 64)] * 40, loop.NoMarks(), 10 ** 7)
    check(sum(each.done() for each in made) == 0, "the limit")
    first, between, unfinished = llm.latencies([[0, 0, 2, [10, 20]], [1, 5, 2, [10 ** 6 + 5, 3 * 10 ** 6 + 5]], [2, 6, 2, []]], 5)
    check((first, between, unfinished) == ([1], [2], 1), f"latencies: {first} {between} {unfinished}")

    with tempfile.TemporaryDirectory(dir=work) as folder:
        trace = pathlib.Path(folder) / "trace.csv"
        rows = ["TIMESTAMP,ContextTokens,GeneratedTokens"]
        for number in range(400):  # The first hundred are slower.
            at = 5 * number if number < 100 else 400 + number
            rows.append(f"2023-11-16 18:{at // 60:02d}:{at % 60:02d}.2500000,{100 + number},{1 + number % 9}")
        trace.write_text("\n".join(rows) + "\n")
        read = llm.read_trace(trace)
        check(read[:2] == [(0, 100, 1), (5, 101, 2)] and len(read) == 400, f"trace: {read[:2]}")
        for load in (0.3, 0.6):
            plan = llm.scaled(read, load, 9, costs)
            check(abs(llm.share_of_time(plan, costs, 9) - load) < 0.02, f"a load of {load}: {llm.share_of_time(plan, costs, 9)}")
            check(plan[0][1] == 200 and 0 <= plan[0][0] and plan[-1][0] < 9, f"the densest part: {plan[0]}")
        copy = pathlib.Path(folder) / "copy.csv"
        llm.write_trace(copy, plan)
        check([(round(at, 3), prompt) for at, prompt, _ in llm.read_trace(copy)[1:3]] ==
              [(round(at - plan[0][0], 3), prompt) for at, prompt, _ in plan[1:3]], "a trace that was written")
        check(part("llm")["outcome"] == "skipped", "without a trace")
        # The part itself, with short series.
        llm.WARM_UP, llm.SECONDS, llm.DRAIN = 0.2, 1.0, 20
        seen = part("llm", trace=trace)
        check(seen["outcome"] == "passed" and [each["mode"] for each in seen["cases"]][0] == "alone", f"llm: {seen}")
        check({each["mode"] for each in seen["cases"]} == set(llm.MODES), f"modes: {seen['figures'].keys()}")
        check(seen["lab_profile"] == "h100" and any("h100" in each for each in seen["notes"]), f"profile: {seen['notes']}")
        for mode in llm.MODES:
            check(f"llm in the lab: 30 %, {mode}: token to token, p50 / p99" in seen["figures"], f"lab: {seen}")
            check(f"llm: 30 %, {mode}: first token, p50 / p99" in seen["figures"], f"{mode}: {seen['figures'].keys()}")
        # A defect in the middle of the part: what was measured before it stays.
        measure, series = llm.Case.measure, []
        llm.Case.measure = lambda case, *which: measure(case, *which) if series.append(which) or len(series) < 2 else 1 / 0
        with contextlib.redirect_stderr(io.StringIO()):
            seen = part("llm", trace=trace)
        llm.Case.measure = measure
        check(seen["outcome"] == "failed" and "ZeroDivisionError: division by zero" in seen["problems"], f"a defect: {seen}")
        check("llm: 30 %, alone: first token, p50 / p99" in seen["figures"] and "first_ms" not in seen["cases"][0]
              and counted(seen) == [False], f"what was measured before a defect: {seen}")


def check_torch_server():
    nvidia.torch_server.QUICK_SECONDS = 3
    PretendedDaemon.begins, PretendedDaemon.suspends = 10 ** 6, 9
    stub = str(nvidia.HERE.parent / "examples/pretended")
    seen = part("torch-server", PYTHONPATH=stub)
    check(seen["outcome"] == "passed" and kept(seen) == [True] * 3, f"torch_server: {seen}")
    check([each["mode"] for each in seen["cases"]] == ["alone", "beside", "sluice"], f"cases: {seen}")
    check(len({each["requests"] for each in seen["cases"]}) == 1, f"arrivals: {seen}")
    alone = seen["figures"]["torch_server: training alone: steps of the training"]["values"][0]
    steps, share = seen["figures"]["torch_server: sluice: steps of the training / share of alone"]["values"]
    check(alone > 5 and abs(share - 100 * steps / alone) < 1, f"shares of alone: {seen['figures']}")
    PretendedDaemon.begins = PretendedDaemon.suspends = 0
    seen = part("torch-server", PYTHONPATH=stub)
    check(kept(seen) == [True, False, False], f"a daemon that does nothing: {seen}")


# Writes a page and a timeline, or fails as the environment wants.
DEMO = """#!/usr/bin/env bash
[ -z "$WRONG" ] || { echo "demo.sh: $WRONG" >&2; exit 1; }
echo "$SLUICE_BIN $1 $2 $3"
echo page >"$5"
echo '[{"ph": "M"}]' >"$7"
"""


def check_film():
    with tempfile.TemporaryDirectory(dir=work) as folder:
        nvidia.film.DEMO = pathlib.Path(folder) / "demo.sh"
        nvidia.film.DEMO.write_text(DEMO)
        nvidia.film.DEMO.chmod(0o755)
        seen = part("film")
        check(seen["outcome"] == "passed", f"film: {seen}")
        seen = part("film", WRONG="sluice suspended nothing")
        check(seen["problems"] == ["examples/demo.sh ended with code 1: demo.sh: sluice suspended nothing"], f"film: {seen}")


def check_cost():
    cost = nvidia.cost
    cost.QUICK_CYCLES, cost.BUSY, cost.IDLE = 50, (0.0001, 0.0002), (0.0001, 0.0002)
    PretendedDaemon.suspends = 50
    lines = [json.dumps(line, separators=(",", ":")) + "\n" for line in recorded(3)]
    calls = cost.read_calls([*lines, '{"t":9,"is":"gap","count":4}\n', lines[-1][:-3]], 1)
    check([tuple(round(each) for each in begin) for begin in calls.begins] == [(60, 90, 600)] * 3, f"begins: {calls}")
    check((calls.suspend, calls.resume, calls.lost, calls.failed) == ([600] * 3, [300] * 3, 4, 0), f"calls: {calls}")
    check(cost.read_calls(lines, 2).begins == [], "a begin that suspended one process of two")
    check(len(cost.read_calls(lines[:-2], 1).begins) == 3 and len(cost.read_calls(lines[:-3], 1).begins) == 2, "a cut end")
    failed = lines[2].replace('"queues"', '"errno":5,"queues"')
    check(cost.read_calls([*lines[:2], failed], 1)[0::4] == ([], 1), "a call that failed")
    nvidia.wait_held = lambda load: load.counts()
    nvidia.load_of_agent = lambda daemon, seconds: [time.sleep(0.1) or 0.5, 0]
    # The programs of this test do not come as 4.
    cost.measure_calls, measure = lambda on, state, count, *rest, **how: count == 1 and measure(on, state, count, *rest, **how), cost.measure_calls
    seen = part("cost")
    check(seen["outcome"] == "passed" and all(counted(seen)) and len(seen["bounds"]) == 17, f"cost: {seen}")
    check(seen["figures"]["cost: 1 busy: from there until all are off the GPU, p50 / p99"]["values"] == [600, 600],
          f"cost: {seen['figures']}")
    PretendedDaemon.suspends = 10
    seen = part("cost")
    check(seen["outcome"] == "failed" and counted(seen).count(False) == 3, f"too few suspends: {seen}")

    memory = struct.pack("<7I", 1, 0xc1d00123, 0x5c000007, 9, 0x5c000008, 0xc1d00123, 0xc1d00044) + b"\0\0\0"
    counts = collections.Counter()
    cost_floor.count_handles(memory, counts)
    cost_floor.count_handles(b"\0" + memory, counts)
    check(counts == {0xc1d00123: 2}, f"handles: {counts}")
    call = bytes(cost_floor.disabling([(0xc1d00123, 0x5c000010), (0xc1d00124, 0x5c000011)], True))
    check(len(call) >= 536 and struct.unpack_from("<BxxxIBBxxxxxxQII", call) == (1, 2, 0, 0, 0, 0xc1d00123, 0xc1d00124)
          and struct.unpack_from("<II", call, 280) == (0x5c000010, 0x5c000011), f"a call: {call}")


def check_faults():
    faults = nvidia.faults
    table = {faults.title(each): faults.expected(*each) for each in faults.COMBINATIONS}
    check(len(table) == 26 and sum(third for _, third in table.values()) == 10, f"combinations: {table}")
    for name, expected in (("agent killed", (0.2, False)), ("agent stopped, daemon killed", (0.7, False)),
                           ("guardian stopped, daemon killed", (0.2, False)), ("guardian stopped", (0.7, False)),
                           ("agent killed, guardian killed", (2, False)), ("agent killed, guardian stopped", (2, True)),
                           ("agent stopped, guardian killed, daemon stopped", (1, True))):
        check(table[name] == expected, f"{name}: {table[name]}")
    xid = "[1.5] NVRM: Xid (PCI:0000:04:00): 31, pid={}, name=gpu_load, channel 0x8, intr 0. MMU Fault"
    check(faults.xids([xid.format(7), xid.format("'<unknown>'"), "NVRM: other"]) == [("31", "7"), ("31", "<unknown>")], "Xid")
    nvidia.Daemon, nvidia.wait_held = HoldingDaemon, held
    nvidia.SLACK = faults.MEMORY_FREE = 60
    faults.SETTLE, faults.NO_SURVIVOR, faults.QUICK = 0.2, 0.1, [faults.QUICK[2], *faults.QUICK[-2:]]
    log = []
    nvidia.kernel_log = lambda: list(log)
    crash = faults.crash

    def pretended_used(_):
        # Of programs that run: half of their memory counts less than what is freed.
        return lambda: sum(2048 << 20 for each in contexts[-1].loads if each.name == "offline" and each.process.poll() is None)

    contexts = []
    nvidia.used_memory = pretended_used
    of_part = faults.Unit.__init__

    def logged(on, load, before):
        found = crash(on, load, before)
        line = xid.format(load.pid)
        log.append(line)
        extra = [xid.format(1)] if on.environment["WRONG"] == "other" and len(log) > 1 else []
        log.extend(extra)
        return [*found, line, *extra]

    faults.crash = logged
    make = nvidia.Context.__init__

    def remembered(context, *rest):
        make(context, *rest)
        contexts.append(context)

    nvidia.Context.__init__ = remembered
    seen = part("faults", limit=600)
    check(seen["outcome"] == "passed" and all(counted(seen)), f"faults: {seen}")
    names = " ".join(each["name"] for each in seen["bounds"])
    check(all(text in names for text in ("all killed and sluice rescue", "guardian killed", "made while held", "crash while held",
                                         "held program exits", "held program killed")), f"bounds: {names}")
    log.clear()
    faults.QUICK = []
    seen = part("faults", limit=600, WRONG="other")
    check(seen["outcome"] == "failed" and counted(seen).count(False) == 4, f"Xid of others: {seen}")
    log.clear()
    HoldingDaemon.guarding, faults.QUICK, nvidia.PATIENCE = False, [("killed", "", "")], 2
    seen = part("faults", limit=600)
    check(seen["outcome"] == "failed" and "agent killed" in seen["problems"][0], f"a guardian that does nothing: {seen}")
    nvidia.PATIENCE, HoldingDaemon.guarding = 30, True

    faults.QUICK_CYCLES, faults.QUICK_HOLD, faults.WARM_UP, faults.CYCLE = 20, 0.5, 5, (0.001, 0.001)
    nvidia.agent_of = lambda lock: os.getpid()
    nvidia.guardian_of = lambda agent: agent
    HoldingDaemon.suspends = 0
    status = HoldingDaemon.status

    def suspending(daemon):
        HoldingDaemon.suspends += 40
        return status(daemon)

    HoldingDaemon.status = suspending
    seen = part("faults-long", limit=600)
    check(seen["outcome"] == "passed" and all(counted(seen)), f"faults-long: {seen}")
    HoldingDaemon.status = status
    seen = part("faults-long", limit=600)
    check(seen["outcome"] == "failed" and counted(seen).count(False) == 1, f"faults-long without suspends: {seen}")


def held(load):
    nvidia.wait_until(lambda: load.still_since(0.03), 30, f"hold of {load.name}")
    return load.counts()


work = sys.argv[1] if len(sys.argv) > 1 else None
nvidia.Daemon = PretendedDaemon
nvidia.kernel_log = lambda: []
nvidia.lossless.BUSY = nvidia.lossless.IDLE = (0.0001, 0.0002)
check_lossless()
check_checksum()
check_llm()
check_torch_server()
check_film()
check_cost()
check_faults()
print("\n".join(failures) or "passed")
sys.exit(1 if failures else 0)
