#!/usr/bin/env python3
"""usage: parts_test.py WORK_DIR

Runs parts of nvidia.py with programs and a daemon that only pretend, and checks what the parts make of them."""

import argparse
import contextlib
import io
import pathlib
import sys
import tempfile

import nvidia

failures = []


def check(good, what):
    if not good:
        failures.append(what)


class PretendedClient:
    def begin(self):
        pass

    end = close = begin


class PretendedDaemon:
    """Reports as many suspends as the test wants."""

    suspends = 0
    begins = 1

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

    def status(self):
        return {"clients": [{"name": "torch_server"}],
                "statistics": {"failures": {"attach_failures": 0}, "suspend_call": {"count": self.suspends},
                               "begins": self.begins}}

    def stop(self):
        pass


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
put(page, 17, 5 if wrong == "parameters" else 4)
put(page, 18, 1)
time.sleep(1000)
'''
CHECKSUM = "#!" + sys.executable + "\n" + PAGE + '''
import os
options = dict(zip(sys.argv[2::2], sys.argv[3::2]))
page = mapped(options["--page"])
number = 0
while True:
    number += 1
    put(page, 1, 132 * number)
    damaged = "--damage" in options and os.environ["WRONG"] != "blind"
    put(page, 2, number if damaged else 0)
    put(page, 3, int(damaged or os.environ["WRONG"] == "shared"))
    put(page, 0, number)
    time.sleep(0.001)
'''


def part(name, quick=True, trace=None, **environment):
    """Runs a part; returns its results."""
    with tempfile.TemporaryDirectory(dir=work) as folder, contextlib.redirect_stdout(io.StringIO()):
        folder = pathlib.Path(folder)
        load = folder / "gpu_load"
        load.write_text(CHECKSUM)
        load.chmod(0o755)
        on = nvidia.Context(argparse.Namespace(quick=quick, driver="nvidia", bin=folder, library="none", load=load, out=folder,
                                               trace=trace))
        on.torch = True
        on.environment.update({"WRONG": "", **environment, "RUNS": str(folder / "runs")})
        (folder / "train_exact.py").write_text(TRAIN)
        sluice = folder / "sluice"
        sluice.write_text(LAB)
        sluice.chmod(0o755)
        (folder / "llm_server.py").write_text(SERVER)
        nvidia.lossless.HERE = nvidia.llm.HERE = folder
        return nvidia.run_part(on, name, 60)


def kept(result):
    return [each["kept"] for each in result.get("bounds", [])]


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
        for mode in llm.MODES:
            check(f"llm in the lab: 30 %, {mode}: token to token, p50 / p99" in seen["figures"], f"lab: {seen}")
            check(f"llm: 30 %, {mode}: first token, p50 / p99" in seen["figures"], f"{mode}: {seen['figures'].keys()}")


def check_torch_server():
    nvidia.torch_server.QUICK_SECONDS = 3
    PretendedDaemon.begins, PretendedDaemon.suspends = 10 ** 6, 9
    stub = str(nvidia.HERE.parent / "examples/pretended")
    seen = part("torch-server", PYTHONPATH=stub)
    check(seen["outcome"] == "passed" and kept(seen) == [True] * 3, f"torch_server: {seen}")
    check([each["mode"] for each in seen["cases"]] == ["alone", "beside", "sluice"], f"cases: {seen}")
    check(len({each["requests"] for each in seen["cases"]}) == 1, f"arrivals: {seen}")
    PretendedDaemon.begins = PretendedDaemon.suspends = 0
    seen = part("torch-server", PYTHONPATH=stub)
    check(kept(seen) == [True, False, False], f"a daemon that does nothing: {seen}")


work = sys.argv[1] if len(sys.argv) > 1 else None
nvidia.Daemon = PretendedDaemon
nvidia.kernel_log = lambda: []
nvidia.lossless.BUSY = nvidia.lossless.IDLE = (0.0001, 0.0002)
check_lossless()
check_checksum()
check_llm()
check_torch_server()
print("\n".join(failures) or "passed")
sys.exit(1 if failures else 0)
