"""The part `cost` of nvidia.py: how long the driver's calls take under a daemon and by themselves, what a bystander notices
of them, the processor time of the agent, and the time from a client's begin to the call."""

import collections
import json
import os
import pathlib
import statistics
import sys

import lossless
import nvidia
import seeing

HERE = pathlib.Path(__file__).resolve().parent
QUICK_CYCLES, CYCLES = 200, 1000
# Of a client in s: a request, and the pause behind it, in which programs that are not held make progress.
BUSY, IDLE = (0.004, 0.006), (0.008, 0.012)
PAUSE_US = 10000  # Of a thread at rest.
FLOOR_PAUSES_MS = (5, 10)  # The means of these.
RATES = (10, 100)  # Suspends per second.
# The bounds, in us where not named otherwise.
TO_CALL, TO_DECISION, CALL_OF_FLOOR = 220, 200, 1.1
BYSTANDER_P50, BYSTANDER_P99_MORE, BYSTANDER_SPEED = 1.15, 205, 0.85  # Of alone, us, of alone.
AGENT_IDLE, PROCESSOR_OF_FLOOR = 1, 2  # % of a core, of the floor.

# Of one begin: until the batches were handed over, until the first call, and from there until the last call returned.
Begin = collections.namedtuple("Begin", "decision to_call calls")
Calls = collections.namedtuple("Calls", "begins suspend resume lost failed")


def read_calls(lines, processes):
    """What a recording has about the driver's calls, in us. A begin counts only if all processes were suspended for it."""
    begins, took = [], {"suspend": [], "resume": []}
    lost = failed = 0
    first, handed, done = None, {}, []

    def finish():
        if first is not None and len(done) == len(handed) == processes:
            started = min(at for at, _ in done)
            begins.append(Begin((min(handed.values()) - first) / seeing.US, (started - first) / seeing.US,
                                (max(at for _, at in done) - started) / seeing.US))

    for line in lines:
        if not line.endswith("\n"):
            break
        if not any(f'"is":"{each}"' in line for each in ("work", "batch", "done", "gap")):
            continue
        entry = json.loads(line)
        if entry["is"] == "gap":
            lost += entry["count"]
        elif entry["is"] == "work" and "first" in entry:
            finish()
            first, handed, done = entry["first"], {}, []
        elif entry["is"] == "batch" and entry["kind"] == "suspend" and "error" not in entry:
            handed[entry["id"]] = entry["t"]
        elif entry["is"] == "done":
            if entry.get("errno") or "outcomes" in entry:
                failed += 1
                continue
            took[entry["kind"]].append((entry["finished"] - entry["started"]) / seeing.US)
            if entry["id"] in handed:
                done.append((entry["started"], entry["finished"]))
    finish()
    return Calls(begins, took["suspend"], took["resume"], lost, failed)


def quantiles(values):
    if not values:
        raise nvidia.Failure("the recording has no calls of the driver")
    return [seeing.quantile(values, share) for share in (0.5, 0.99)]


def run_marks(daemon, client, cycles, busy, idle):
    """Lets a client begin and end work so many times."""
    marks = lossless.Marks(client, 1, busy, idle)
    try:
        nvidia.wait_until(lambda: daemon.check_alive() or marks.made >= cycles,
                          nvidia.PATIENCE + 4 * cycles * (busy[1] + idle[1]), f"{cycles} requests of a client")
    finally:
        marks.stop()


def measure_floor(on, loads, cycles):
    return on.printed(sys.executable, HERE / "floor.py", cycles, *FLOOR_PAUSES_MS, *(load.pid for load in loads),
                      limit=nvidia.PATIENCE + cycles * sum(FLOOR_PAUSES_MS) / 100)


def mean_of(one, other):
    """Of figures of floor.py, before a daemon and after it."""
    return {key: statistics.mean(pair) if key == "processor" else [statistics.mean(each) for each in zip(*pair)]
            for key, pair in ((key, (one[key], other[key])) for key in ("suspend", "resume", "processor"))}


def measure_calls(on, state, count, cycles, awake=False):
    """The calls for some programs that are busy or idle, under a daemon and by themselves. awake: processors do not sleep
    deeply."""
    if state == "busy":
        loads = [on.offline(f"busy-{number}", wait=False) for number in range(count)]
        for load in loads:
            load.wait_moving(load.streams)
    else:
        loads = [on.resting() for _ in range(count)]
    title = state + ", cpu_latency 0us" * awake
    name = f"cost: {count} {title}"
    before = measure_floor(on, loads, cycles // 4)
    recording = on.scratch / "recording"
    daemon = nvidia.Daemon(on, record=recording, cpu_latency="0us" if awake else "")
    daemon.wait_attached(*loads)
    run_marks(daemon, daemon.connect(), cycles, BUSY, IDLE)
    if state == "busy":
        for load in loads:
            load.wait_moving(load.streams)
    on.drop(daemon)
    floor = mean_of(before, measure_floor(on, loads, cycles // 4))
    with open(recording, encoding="utf-8") as file:
        calls = read_calls(file, count)
    os.unlink(recording)
    if calls.lost or calls.failed:
        on.problem(f"{name}: the recording lost {calls.lost} lines, and {calls.failed} calls failed")
    seen = {key: quantiles([getattr(each, key) for each in calls.begins]) for key in Begin._fields}
    for kind, values in (("suspend", calls.suspend), ("resume", calls.resume)):
        on.figure(f"{name}: {kind} by the daemon, a program, p50 / p99", quantiles(values), "us")
        on.figure(f"{name}: {kind} by a bare call for all, p50 / p99", floor[kind], "us")
    on.figure(f"{name}: begin to decision, p50 / p99", seen["decision"], "us")
    on.figure(f"{name}: begin to the driver's call, p50 / p99", seen["to_call"], "us")
    on.figure(f"{name}: from there until all are off the GPU, p50 / p99", seen["calls"], "us")
    on.figure(f"{name}: requests for which all were suspended / requests", [len(calls.begins), cycles], "")
    on.require(f"{count} {title}: requests for which all were suspended", len(calls.begins), 0.9 * cycles, least=True)
    if count == 1:
        on.require(f"{title}: p50 of a suspend", quantiles(calls.suspend)[0] / floor["suspend"][0], CALL_OF_FLOOR,
                   unit="of a bare call", fatal=False)
        on.require(f"{title}: p50 from begin to the driver's call", seen["to_call"][0], TO_CALL, unit="us", fatal=False)
        on.require(f"{title}: p99 from begin to decision", seen["decision"][1], TO_DECISION, unit="us", fatal=False)
    if count == 1 and title == "busy":
        measure_processor_time(on, loads[0], floor["processor"])
    on.drop(*loads)


def measure_processor_time(on, load, floor):
    """The agent's share of a core while it holds a program, and while it suspends and resumes it."""
    seconds = 4 if on.quick else 15
    daemon = nvidia.Daemon(on)
    daemon.wait_attached(load)
    client = daemon.connect()
    client.begin()
    nvidia.wait_held(load)
    idle = nvidia.load_of_agent(daemon, seconds)[0]
    client.end()
    on.figure("cost: agent that holds a program", [idle], "% of a core")
    on.require("agent that holds a program", idle, AGENT_IDLE, unit="% of a core", fatal=False)
    for rate in RATES:
        half = 0.5 / rate
        marks = lossless.Marks(client, 1, (half, half), (half, half))
        try:
            before, begun = marks.made, nvidia.now()
            share = nvidia.load_of_agent(daemon, seconds)[0]
            cycles = (marks.made - before) / (nvidia.now() - begun)
        finally:
            marks.stop()
        each = 1e4 * share / max(cycles, 1e-9)
        on.figure(f"cost: agent at {rate} suspends per second", [share], "% of a core")
        on.figure(f"cost: agent for a suspend with its resume, {rate} per second / bare calls", [each, floor], "us")
    on.require(f"processor time of a suspend with its resume, {rate} per second", each / floor, PROCESSOR_OF_FLOOR,
               unit="of bare calls", fatal=False)
    on.drop(daemon)


def measure_bystander(on):
    """Requests of a program that is neither held nor marked, with and without suspends of another program."""
    seconds = 3 if on.quick else 10
    resting = on.resting()
    daemon = nvidia.Daemon(on)
    daemon.wait_attached(resting)
    client = daemon.connect()
    seen = {False: [], True: []}
    for held in (False, True, True, False):
        marks = lossless.Marks(client, 1, (0.01, 0.01), (0.01, 0.01)) if held else None
        try:
            seen[held].append(nvidia.request_series(on, seconds, 0))
        finally:
            if marks:
                marks.stop()
    middle = {held: {key: statistics.median(each[key] for each in seen[held]) for key in ("p50_us", "p99_us", "n")}
              for held in seen}
    for held, words in ((False, "without suspends"), (True, "beside 50 suspends per second")):
        on.figure(f"cost: bystander {words}, p50 / p99", [middle[held]["p50_us"], middle[held]["p99_us"]], "us")
        on.figure(f"cost: bystander {words}, requests per second", [middle[held]["n"] / seconds], "")
    on.require("bystander: p50", middle[True]["p50_us"] / middle[False]["p50_us"], BYSTANDER_P50,
               unit="of that without suspends", fatal=False)
    on.require("bystander: p99, more than without suspends", middle[True]["p99_us"] - middle[False]["p99_us"],
               BYSTANDER_P99_MORE, unit="us", fatal=False)
    on.require("bystander: requests per second", middle[True]["n"] / middle[False]["n"], BYSTANDER_SPEED, least=True,
               unit="of those without suspends", fatal=False)
    on.drop(daemon, resting)


def cost(on):
    """duration of the driver's calls, delay before them, processor time of the agent, and what a bystander notices"""
    wakes = on.printed(on.load, "wakes", "--seconds", 2, "--pause-us", PAUSE_US)
    on.figure("cost: a thread is woken late, p50 / p99", [wakes["p50"], wakes["p99"]], "us")
    on.figure("cost: a thread at rest is woken by another one, p50 / p99", wakes["hand_over"], "us")
    if wakes["awake"]:
        on.figure("cost: the same with /dev/cpu_dma_latency at 0, p50 / p99", wakes["awake"], "us")
    measure_bystander(on)
    cycles = QUICK_CYCLES if on.quick else CYCLES
    for state in ("busy", "idle"):
        for count in (1, 4):
            measure_calls(on, state, count, cycles)
    measure_calls(on, "busy", 1, cycles, awake=True)
