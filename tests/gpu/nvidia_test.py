#!/usr/bin/env python3
"""usage: nvidia_test.py [WORK_DIR]

Checks what of the tests on NVIDIA GPUs can be checked without a GPU: the scripts compile, they refuse wrong options and
machines without a driver, `report` merges results, seeing.py compares a recording with a log, and serving.py and
rivals.py measure fake programs. Where nvcc is installed, the loads are compiled, too. README.md beside this file has the
commands."""

import argparse
import contextlib
import http.server
import io
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time

import nvidia
from nvidia import faults, gang
import report as merging
import rivals
import seeing
import serving

HERE = pathlib.Path(__file__).resolve().parent
TOP = HERE.parent.parent
failures = []


def check(good, what):
    if not good:
        failures.append(what)


def run(*command):
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)


def results(gpu, date, part, figures, outcome="passed", bounds=()):
    return {"version": 1, "gpu": gpu, "gpus": 1, "driver": "580.1", "kernel": "6.18", "date": date, "sluice": "abc",
            "quick": True, "parts": {part: {"outcome": outcome, "seconds": 1, "problems": [], "notes": [],
                                            "figures": figures, "bounds": bounds}}}


def report(folder, *documents, options=()):
    files = []
    for number, document in enumerate(documents):
        files.append(folder / f"{number}.json")
        files[-1].write_text(document if isinstance(document, str) else json.dumps(document))
    done = run(sys.executable, "-B", HERE / "nvidia.py", "report", *options, *files)
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in done.stdout.splitlines()
            if line.startswith("|")]
    return done, {row[0]: row[1:] for row in rows}


BASE = 5000000000  # Of the recordings' clock, ns.


def recorded(*entries):
    """A recording: entries are (t in us, fields)."""
    first = {"t": 0, "is": "recording", "version": 2, "clock_ns": BASE}
    lines = [first, *({"t": t * seeing.US, **fields} for t, fields in entries)]
    return [json.dumps(line, separators=(",", ":")) + "\n" for line in lines]


def looked(t, work=None, count=0, pid=7, gpu=1, taken_later=10):
    fields = {"is": "seen", "source": 31, "what": "pointers_seen", "pid": pid, "start": 9, "gpu": gpu}
    fields.update({"work": work} if work else {}, **({"count": count} if count else {}))
    return t + taken_later, {**fields, "at": t * seeing.US}


def handed(t, kind, **more):
    return t, {"is": "batch", "id": t, "process": 1, "gpu": 1, "kind": kind, "queues": [0], **more}


def compared(entries, log, since=0, linger_us=1000):
    """Figures of a recording and of lines (kind, begin, launched, end in us)."""
    lines = [f"{kind} " + " ".join(str(BASE + t * seeing.US) for t in (each[0], *each)) for kind, *each in log]
    return seeing.analyse(seeing.read_recording(recorded(*entries), 7), seeing.read_log(lines), BASE + since * seeing.US,
                          BASE + 10 ** 12, linger_us * seeing.US)


def check_seeing():
    # Two requests as they should be seen, with a hold for each.
    good = [looked(100, "finished"), looked(1050, "waiting", 1), handed(1090, "suspend"), looked(1150, "running"),
            looked(3080, "finished"), handed(4100, "resume"), looked(10120, "running", 2), handed(10140, "suspend"),
            looked(12300, "finished"), handed(13350, "resume")]
    log = [("kernels", 1000, 1010, 3000), ("kernels", 10000, 10010, 12000), ("kernels", 90000, 90010, 90020)]
    found = compared([*good, looked(90100, "finished", 1)], log)["kernels"]
    check(found.pop("examples") == [], f"no examples: {found}")
    expected = {"n": 3, "missed": 0, "late": 0, "blind": 0, "gapless": 3, "wrong": 0, "pauses": 0,
                "begin_seen": [60, 130, 110], "suspend": [90, 140], "end_seen": [90, 310], "resume": [100, 350]}
    check(found == expected, f"seen requests: {found}")
    shown = seeing.figures(seeing.merged({"kernels": found}))
    check(shown["begin_seen"] == {"n": 3, "p50": 110, "p99": 130, "late": 0} and shown["n"] == 3, f"figures: {shown}")
    check(seeing.cell(shown["begin_seen"]) == "110/130" and seeing.cell(0) == "0", "cells")
    # A suspend long after the last request is not for it.
    found = compared([*good, looked(90100, "finished", 1), handed(200000, "suspend")], log)["kernels"]
    check(found["suspend"] == [90, 140], f"a later suspend: {found}")
    # Requests before `since` do not count, and those of other programs do not show.
    found = compared([*good, looked(90100, "finished", 1)], log, since=80000)["kernels"]
    check(found["n"] == 1 and found["missed"] == 0, f"since: {found}")
    found = compared([*good, looked(90100, "finished", 1, pid=77)], log)["kernels"]
    check(found["missed"] == 1, f"another program: {found}")
    # Missed: nothing comes, or too late. Not missed: it was under way before.
    found = compared(good, log)["kernels"]
    check(found["missed"] == 1, f"a missed request: {found}")
    check(found["examples"] == [{"what": "missed", "kind": "kernels", "launched": 10, "end": 20, "seen":
                                 [[-79880, -79870, "running", 2], [-77700, -77690, "finished", 0]]}], f"example: {found}")
    check(compared([*good, looked(92021, "finished", 1)], log)["kernels"]["missed"] == 1, "a late sight")
    check(compared([*good, looked(92019, "finished", 1)], log)["kernels"]["missed"] == 0, "a sight in time")
    later = looked(89990, "finished", 1, taken_later=0)
    check(compared([*good, later], log)["kernels"]["missed"] == 0, "a report that came during a turn")
    check(compared([*good, looked(89990, "finished", 1)], log)["kernels"]["missed"] == 1, "a look before the request")
    back_to_back = [("kernels", 1000, 1010, 3000), ("kernels", 3010, 3020, 3090)]
    found = compared([looked(1050, "waiting", 1), looked(3300, "finished")], back_to_back)["kernels"]
    check(found["missed"] == 0 and len(found["begin_seen"]) == 0, f"back to back: {found}")
    # No look came in time: the next report has the submissions of two requests, or of fewer.
    regular = range(50000, 250000, 20000)
    log = [("kernels", begin, begin + 10, begin + 900) for begin in regular]
    many = [entry for begin in regular if begin != 110000
            for entry in (looked(begin + 50, "running", 3 + 3 * (begin == 130000)), looked(begin + 990, "finished"))]
    found = compared(many, log)["kernels"]
    check([found["n"], found["missed"], found["late"]] == [10, 0, 1], f"seen with the next request: {found}")
    check(found["begin_seen"].count(60) == 7 and max(found["begin_seen"]) > 20000, f"its delay counts: {found}")
    few = [looked(130050, "running", 5) if entry == looked(130050, "running", 6) else entry for entry in many]
    found = compared(few, log)["kernels"]
    check([found["missed"], found["late"]] == [1, 0], f"submissions are missing: {found}")
    for apart, missed in ((150, 0), (250, 1)):
        split = [*few, looked(130050 + apart, "running", 1)]
        found = compared(sorted(split, key=lambda entry: entry[0]), log)["kernels"]
        check([found["missed"], found["late"]] == [missed, 1 - missed], f"seen by a look {apart} us later: {found}")
    # With requests of another kind, its submissions count.
    mixed = [("other" if begin == 130000 else "kernels", begin, begin + 10, begin + 900) for begin in regular]
    found = compared(many, [*mixed, ("other", 260000, 260010, 260900), ("other", 280000, 280010, 280900)])["kernels"]
    check([found["missed"], found["late"]] == [1, 0], f"of another kind: {found}")
    # While ends are not seen, reports are rarer.
    found = compared([looked(10, "consumed", 3), looked(3500, "consumed", 1)], [("kernels", 900, 910, 1000)])["kernels"]
    check(found["missed"] == 0 and found["blind"] == 1 and found["begin_seen"] == [], f"blind: {found}")
    # A wrong end, of a kind without pauses and of one with them.
    wrong = [looked(100, "finished"), looked(1050, "running", 1), looked(2000, "finished"), looked(2100, "running"),
             looked(3100, "finished")]
    for kind, key in (("kernels", "wrong"), ("eager", "pauses")):
        found = compared(wrong, [(kind, 1000, 1010, 3000)])[kind]
        check([found["wrong"], found["pauses"]] == [int(key == "wrong"), int(key == "pauses")], f"{key}: {found}")
    # Neither right after the last launch nor right before the end.
    near = [looked(100, "finished"), looked(1040, "finished", 1), looked(1100, "running"), looked(2910, "finished")]
    found = compared(near, [("kernels", 1000, 1010, 3000), ("kernels", 9000, 9010, 9020)])["kernels"]
    check(found["wrong"] == 0 and found["end_seen"] == [0], f"near: {found}")
    # An end that is not seen counts up to the next request; one with a request right after it does not count.
    late = [looked(100, "finished"), looked(1050, "running", 1)]
    log = [("kernels", 1000, 1010, 3000), ("kernels", 9000, 9010, 9100), ("kernels", 9200, 9210, 9300)]
    found = compared(late, log)["kernels"]
    check(found["end_seen"] == [6000], f"an end that is not seen: {found}")
    # Several GPUs: work on one of them is work. Refused batches, other lines and a cut end do not count.
    lines = recorded(looked(1, "running", 1, gpu=1), looked(2, "finished", gpu=2), looked(3, "finished", gpu=1),
                     handed(5, "suspend", error=5), (6, {"is": "turn"}), (7, {"is": "gap", "count": 3}),
                     (8, {"is": "client", "id": 1, "name": "process 7 (seen)"}))
    read = seeing.read_recording([*lines, lines[1][:-9]], 7)
    check([each.work for each in read.seen] == ["running", "running", "finished"], f"several GPUs: {read}")
    check(read.batches == [] and read.lost == 3 and read.clients == ["process 7 (seen)"], f"other lines: {read}")
    check(read.seen[0] == seeing.Seen(BASE + seeing.US, BASE + 11 * seeing.US, "running", 1), f"times: {read}")
    # Delays of kinds that work on the host first do not count.
    parts = {kind: {"n": 1, "missed": 0, "late": 0, "blind": 0, "gapless": 0, "wrong": 0, "pauses": 0, "begin_seen": [delay],
                    "suspend": [delay], "end_seen": [5], "resume": [], "examples": []} for kind, delay in (("a", 1), ("b", 900))}
    total = seeing.merged(parts, {"b"})
    check(total["n"] == 2 and total["begin_seen"] == [1] and total["suspend"] == [1] and total["end_seen"] == [5, 5],
          f"merged: {total}")
    # Bounds.
    def case(missed=0, wrong=0, begins=0, ends=0, n=1000):
        delay = lambda late: {"n": n, "p50": 50, "p99": 100, "late": late}
        return {"missed": missed, "wrong": wrong, "gapless": 1000, "begin_seen": delay(begins), "end_seen": delay(ends)}
    def kept(*given):
        return [each["kept"] for each in seeing.bounds(*given)]
    check(kept([case(wrong=1), case()], [5]) == [True] * 5, "bounds that are kept")
    check(kept([case(), case(1, 3, 21, 21)], [1, 5.1]) == [False] * 5, "bounds that are missed")
    check(kept([], []) == [False] * 5, "bounds that were not measured")
    check(kept([case(begins=20, ends=19), case()], [0]) == [True] * 5, "1 % of delays that are longer")
    late = seeing.figures({"n": 2, "begin_seen": [200, 201], "end_seen": [300, 301], "suspend": [900], "examples": []})
    check([late[name]["late"] for name in ("begin_seen", "end_seen", "suspend")] == [1, 1, 0], f"late delays: {late}")
    rows = seeing.table([["a", "bb"], ["ccc", "d"]])
    check(rows == ["a    bb", "ccc   d"], f"table: {rows}")


def check_gang():
    def holds(*changes, until=20):
        """changes: process, whether it is suspended, and when in ms."""
        lines = [f'{{"is":"attach","process":{each},"pid":{10 * each},"t":1}}\n' for each in (1, 2, 3)]
        lines += [json.dumps({"is": "done", "process": process, "kind": "suspend" if held else "resume",
                              "started": at * 1000000 - 500000, "finished": at * 1000000, "t": at * 1000000}, separators=(",", ":")) + "\n"
                  for process, held, at in changes]
        return gang.read_holds([*lines, f'{{"is":"end","t":{until}000000}}\n', '{"cut'], [10, 20])

    seen = holds((1, 1, 2), (3, 1, 3), (2, 1, 4), (2, 0, 7), (1, 0, 8), (2, 1, 10), (2, 0, 15))
    check(seen[:4] == (1, [2000], [1000], [5000]), f"holds: {seen}")
    check(seen.worst == [5000, "suspend of rank 1 from -500 to 0 us; resume of rank 1 from 4500 to 5000 us"], f"worst: {seen}")
    seen = holds((1, 1, 2), (2, 1, 2), (2, 0, 5))
    check(seen[:4] == (1, [0], [], [15000]), f"one that stays held: {seen}")

    def entries(*those):
        return [json.dumps(each) + "\n" for each in ({"is": "recording", "clock_ns": 10 ** 9}, *those)] + ['{"cut']

    orders = [{"is": "batch", "kind": "suspend", "id": each, "t": 10 ** 6 * (2 + each // 10)} for each in (1, 2, 101, 102, 201, 202)]
    reports = [{"is": "done", "id": each, "started": 1, "t": 1} for each in (1, 2, 101)]
    after = [10 ** 9 + 10 ** 6 * (2 + each) + 1000 for each in (0, 10, 20, 30)]
    found = gang.killed_in_midst(entries(*orders, *reports), after)
    check(found == {"half": 1, "nothing": 1}, f"agents that were killed in the midst of a hold: {found}")


def check_descriptors():
    """Those that stand for another process do not count while it runs."""
    with subprocess.Popen(["sleep", "60"]) as other:
        count = lambda own: faults.descriptors_of(os.getpid(), own)
        before = count({os.getpid()})
        with open(f"/proc/{other.pid}/environ", "rb"):
            pidfd = os.pidfd_open(other.pid)
            check(count({os.getpid()}) == before and count({os.getpid(), other.pid}) == before + 2, "descriptors of another")
            other.kill()
            other.wait()
            check(count({os.getpid()}) == before + 2, "descriptors of another that ended")
            os.close(pidfd)


def check_serving():
    times = serving.arrivals(0.3, 9000, 100)
    check(times == serving.arrivals(0.3, 9000, 100) and times == sorted(times), "arrivals are the same again")
    check(3000 < len(times) < 3700 and times != serving.arrivals(0.3, 9000, 100, "other"), f"arrivals: {len(times)}")

    def log(gap, length, n=200, wait=0):
        return [f"{i * gap} {i * gap + wait} {i * gap + wait + length}" for i in range(n)]

    found = serving.latencies(log(10 ** 7, 10 ** 6, wait=10 ** 5), 200, 500)
    check(not found["overloaded"] and found["n"] == 200 and found["p50"] == found["max"] == 1100, f"latencies: {found}")
    check(abs(found["use"] - 0.05) < 0.001, f"use of the GPU: {found}")
    check(serving.latencies(log(10 ** 6, 2 * 10 ** 6), 200, 500)["overloaded"], "a queue that grows")
    check(serving.latencies(log(10 ** 7, 10 ** 6), 201, 500)["overloaded"], "requests that were not made")
    check(serving.latencies([], 3, 500)["overloaded"], "no requests")
    one = serving.latencies(log(10 ** 7, 10 ** 6, 1), 1, 500)
    check(one["n"] == 1 and not one["overloaded"], f"one request: {one}")

    def row(p99, steps=None, use=0.3, n=400, overloaded=False):
        return serving.summary([{"due": n, "n": n, "use": use, "overloaded": overloaded, "p50": 1, "p90": 2,
                                 "p99": each, "max": 9, "steps": steps, "suspends": 1, "lost": 0.5} for each in p99])

    check(row([3, 1, 2])["p99"] == [2, 1, 3] and serving.spread([2, 1, 3]) == 1, "a summary")
    offline = [10, 9.9, 10.1]

    def kept(rows, short=False):
        return {each["name"]: each["kept"] for each in serving.bounds(rows, offline, short)}

    base = {(0.3, "alone"): row([100, 101, 102]), (0.3, "beside"): row([200] * 3, 8)}
    rows = {**base, (0.3, "fixed_timeslice"): row([105, 300, 104], 6.8), (0.3, "slo"): row([107] * 3, 6.7),
            (0.3, "pointer_polling"): row([111] * 3, 7)}
    check(kept(rows) == {"30 %, fixed_timeslice: p99": True, "30 %, fixed_timeslice: offline steps/s": True,
                         "30 %, slo: p99": False, "30 %, slo: offline steps/s": False,
                         "30 %, pointer_polling: p99": True, "30 %, pointer_polling: offline steps/s": True,
                         "requests of each row over all loads": True, "rounds": True}, f"bounds: {kept(rows)}")
    # (1 - 0.3) * 10 = 7 is possible; where online work takes most of the GPU beside, that is the limit.
    check(serving.floor(rows, 0.3, offline) == 7, "the floor by use")
    check(serving.floor({**rows, (0.3, "beside"): row([200] * 3, 5)}, 0.3, offline) == 5, "the floor beside")
    check(serving.floor({}, 0.3, offline) is None, "no floor")
    # Figures alone that differ by more than the margin keep nothing.
    noisy = kept({**rows, (0.3, "alone"): row([100, 101, 120])})
    check(not noisy["30 %, fixed_timeslice: p99"] and not noisy["30 %, pointer_polling: p99"], f"noise: {noisy}")
    check(noisy["30 %, fixed_timeslice: offline steps/s"], f"noise: {noisy}")
    # Marks must help only where there is something to gain; a queue that grows is a case of it.
    check("30 %, fixed_timeslice: p99" not in kept({**rows, (0.3, "beside"): row([140] * 3, 8)}), "nothing to gain")
    grows = kept({**rows, (0.3, "beside"): row([140] * 3, 8, overloaded=True),
                  (0.3, "slo"): row([101] * 3, 8, overloaded=True)})
    check(grows["30 %, fixed_timeslice: p99"] and not grows["30 %, slo: p99"], f"overloaded: {grows}")
    few = kept({key: row([100], 8, n=999) for key in rows})
    check(not few["requests of each row over all loads"] and not few["rounds"], f"few requests: {few}")
    short = {(load, name): row([100] * 3, 9) for load in (0.1, 0.3) for name in ("alone", "beside", "fixed_timeslice")}
    short.update({(load, "quantum only"): row([290] * 3, 8.6) for load in (0.1, 0.3)})
    # Possible are (1 - 0.3) * 10 = 7.
    expected = {"10 %, quantum only: p99": True, "10 %, quantum only: offline steps/s": True,
                "30 %, quantum only: p99": True, "30 %, quantum only: offline steps/s": True,
                "requests of each row over all loads": True, "rounds": True}
    check(kept(short, True) == expected, f"short: {kept(short, True)}")
    short[0.1, "quantum only"] = row([310] * 3, 6.6)
    check(list(kept(short, True).values())[:2] == [False, False], f"short: {kept(short, True)}")
    shown = [{"load": load, "mode": name, **each}
             for (load, name), each in {**rows, (0.6, "beside"): row([1], 3, overloaded=True)}.items()]
    text = str(merging.serving_cells({"offline_alone": offline, "rows": shown}))
    check("overloaded" in text and "104 to 300" in text and "68.0 %" in text, f"table: {text}")
    check(serving.bounds({}, None) == [], "bounds of nothing")


def check_plan(folder):
    """On an H200, the rounds and requests that the bounds want fit into the time of each part, also where queues grow."""
    kept = argparse.Namespace(monotonic=lambda: clock[0])

    def part(kind, us, *more):
        on = argparse.Namespace(quick=False, deadline=480, scratch=folder, say=lambda text: None, note=lambda text: None)
        measured = kind(on, argparse.Namespace(alone_us=us), None, *more)
        fixed = measured.starts + serving.CLOCK * len(measured.clock_seen_in) + serving.OFFLINE_WARM_UP + serving.OFFLINE_ALONE + 1 + sum(
            serving.DAEMON + serving.warm_up(mode, load) for mode in measured.modes if mode.policy
            for load in (measured.loads if serving.is_slo(mode) else measured.loads[:1]))
        growing = sum(not (mode.name == "alone" or mode.marks or mode.limit) for mode in measured.modes)

        def round(number):
            clock[0] += fixed + growing * serving.GROWING + len(measured.modes) * sum(
                span + serving.BESIDES for span in measured.spans.values())
            measured.done = number + 1

        measured.round = round
        clock[0] = 25  # s, in which the programs start.
        measured.run()
        return measured.done, measured.done * sum(count for _, count in measured.files.values())

    clock, serving.time = [0], kept
    try:
        for name, *how in (("serving", serving.Measurement, 9340, False), ("serving-long", serving.Measurement, 9394, False),
                           ("serving-eager", serving.Measurement, 11144 * 5 / 6, False, True),
                           ("serving-short", serving.Measurement, 76.4, True), ("rivals", rivals.Rivals, 9330)):
            rounds, requests = part(*how)
            check(rounds == serving.ROUNDS and requests >= serving.REQUESTS and clock[0] < 475,
                  f"plan of {name}: {rounds} rounds, {requests} requests, {clock[0]:.0f} s")
    finally:
        serving.time = time


class FakeDaemon:
    """Counts, but holds nothing."""

    def __init__(self, on, policy, scheduler=""):
        if "broken" in policy:
            raise nvidia.Failure("no such policy")
        self.on, self.count, self.directory = on, 0, on.scratch
        on.policies.append(policy)
        on.daemons.append(self)

    def wait_attached(self, *loads):
        pass

    def check_alive(self):
        pass

    def status(self):
        self.count += 1
        return {"statistics": {"suspends": self.count, "quanta": self.count, "suspend_call": {"count": self.count},
                               "failures": {"refused": 1}},
                "groups": [{"role": "offline", "lost_ms": 250 * self.count}, {"role": "online", "lost_ms": 7}]}

    def stop(self):
        pass


FAKE_TORCH = """import sys, time, types
from unittest.mock import MagicMock
made = MagicMock()
made.cuda.synchronize = lambda: time.sleep(0.002)
made.cuda.Stream = lambda **how: types.SimpleNamespace(synchronize=made.cuda.synchronize)
made.cuda.Event = lambda: types.SimpleNamespace(record=lambda: None, synchronize=lambda: time.sleep(0.001))
sys.modules["torch"] = made
"""


def check_measurement(folder):
    """serve.py and trainer.py with a PyTorch that only waits, measured by serving.py."""
    (folder / "torch.py").write_text(FAKE_TORCH)
    (folder / "nvidia-smi").write_text("#!/bin/sh\nwhile echo 1500; do sleep 0.01; done\n")
    (folder / "nvidia-smi").chmod(0o755)
    serving.SHORTEST = serving.LONGEST = 0.4
    serving.WARM_UP, serving.WARM_UP_UNMARKED, serving.WARM_UP_LEARNING = 0.1, 0.11, dict.fromkeys(serving.LOADS, 0.12)
    serving.OFFLINE_ALONE = serving.OFFLINE_WARM_UP = 0.1
    serving.ROUNDS = 2
    with contextlib.redirect_stdout(io.StringIO()):
        on = nvidia.Context(argparse.Namespace(quick=False, gpu=None, trace=None, rivals=None, driver="none", bin="/",
                                               library="/no/library", load="/", out=folder / "out"))
        on.out.mkdir()
        on.environment["PYTHONPATH"] = str(folder)
        on.environment["PATH"] = f"{folder}:{on.environment['PATH']}"
        on.part, on.deadline, on.policies = "serving", time.monotonic() + 100, []
        on.daemon = lambda **how: FakeDaemon(on, **how)
        marked = []
        nvidia.Server.mark = lambda server, socket: marked.append(str(socket))
        modes = serving.MODES
        serving.MODES = (*modes[:4], modes[5], serving.Mode("other", "broken", False, None))
        on.torch = True
        try:
            played = []
            play = nvidia.Server.play
            nvidia.Server.play = lambda server, path, *rest: played.append(pathlib.Path(path).name) or play(server, path, *rest)
            for name, kind, training in (("serving", "graph", "transformer"), ("serving-long", "eager", "wide")):
                on.result = {"problems": [], "notes": [], "figures": {}, "bounds": []}
                nvidia.serve_pytorch(on, name, kind, 2, training)
                problems = on.clean()
                check(problems == [], f"{name}: end: {problems}")
                on.keep_logs()
                check(on.result["problems"] == ["other: no such policy"], f"{name}: problems: {on.result['problems']}")
                rows = {(each["load"], each["mode"]): each for each in on.result["serving"]["rows"]}
                broken = [rows.pop((load, "other")) for load in serving.LOADS]
                check(all(each["why"] == "failed: no such policy" for each in broken), f"{name}: {broken}")
                check(len(rows) == 15 and all(each["rounds"] == 2 for each in rows.values()), f"{name}: {list(rows)}")
                check(len({each["due"] for (load, _), each in rows.items() if load == 0.3}) == 1, f"{name}: arrivals")
                check(rows[0.3, "alone"]["steps"] is None and rows[0.3, "beside"]["steps"][0] > 100, f"{name}: steps")
                check(rows[0.3, "alone"]["n"] > 5, f"{name}: requests: {rows[0.3, 'alone']}")
                check(rows[0.3, "slo"]["suspends"] == [1, 1, 1] and rows[0.3, "slo"]["lost"][0] == 0.25,
                      f"{name}: {rows[0.3, 'slo']}")
                aims = {line for each in on.policies for line in each.splitlines() if line.startswith("request.p99")}
                check(len(aims) >= 3 and all("{" not in each for each in aims), f"{name}: aims {aims}")
                check(len(on.result["bounds"]) >= 2, f"{name}: bounds")
                check(on.result["figures"][f"{name}: clock of the GPU, requests, alone, 60 %"]["values"] == [1500],
                      f"{name}: {on.result['figures'].keys()}")
                json.dumps(on.result)
            # `slo` has a daemon for each load, and longer to learn; the other one with marks has one daemon.
            rounds = 2 * serving.ROUNDS
            check([played.count(f"warm-up.0.12.{load}") for load in serving.LOADS] == [rounds] * 3
                  and sum(each.startswith("warm-up.0.1.") for each in played) == rounds, f"warm-ups: {played}")
            measured, on.result = on.result, {"problems": [], "notes": [], "figures": {}, "bounds": []}
            command = [sys.executable, HERE / "serve.py", "graph", "--repeat", 2, "--mark", on.library]
            serving.LONGEST_SHORT = 1
            serving.serve(on, "serving-short", lambda: nvidia.Server(on, "short", command), lambda: on.trainer("wide"),
                          short=True)
            rows = {(each["load"], each["mode"]) for each in on.result["serving"]["rows"]}
            check(on.result["problems"] == [] and len(rows) == 21 and (0.01, "quantum only, 25us") in rows,
                  f"serving-short: {on.result['problems']}, {rows}")
            names = {each["name"].removeprefix("serving-short: ") for each in on.result["bounds"]}
            check({name for name in names if "p99" in name} == {f"{load} %, quantum only: p99" for load in (1, 3, 10)},
                  f"bounds of serving-short: {names}")
            # What was measured before a row failed stays.
            late = serving.Measurement(on, argparse.Namespace(alone_us=9), None, False)
            late.rows[0.3, "beside"].append({"due": 9, "n": 9, "use": 0.1, "overloaded": False, "steps": 2, "p50": 1, "p90": 2,
                                             "p99": 3, "max": 4})
            late.broken = {"beside": "crashed: no memory"}
            late.show("late")
            check(on.result["figures"]["late: 30 %, beside: p50 / p90 / p99 / max"]["values"] == [1, 2, 3, 4]
                  and "late: beside: crashed: no memory; its figures are of the rounds before" in on.result["notes"]
                  and "late: 10 %, beside: crashed: no memory" in on.result["notes"], f"a late crash: {on.result['notes']}")
        finally:
            nvidia.Server.play = play
            serving.MODES = modes
            on.clean()
            shutil.rmtree(on.scratch)
    check(marked and marked[-1] == "-" and len(set(marked)) == 2, f"marks: {set(marked)}")
    return measured


# MPS as far as the part uses it. Its server outlives the control daemon if nothing asks that to quit.
MPS_CONTROL = "#!" + sys.executable + '''
import os, pathlib, subprocess, sys, time
pipes = pathlib.Path(os.environ["CUDA_MPS_PIPE_DIRECTORY"])
if sys.argv[1:] == ["-f"]:
    server = subprocess.Popen(["sleep", "1000"])
    (pipes / "server").write_text(str(server.pid))
    while not (pipes / "quit").exists():
        time.sleep(0.01)
    server.kill()
    server.wait()
    sys.exit(0)
order = sys.stdin.read().strip()
if order == "quit":
    (pipes / "quit").touch()
elif order.startswith("get_client_list"):
    for each in pathlib.Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"={pipes}\\0".encode() in each.read_bytes():
                print(each.parent.name)
        except OSError:
            pass
elif (pipes / "server").exists():
    print((pipes / "server").read_text())
else:
    sys.exit(1)
'''
XSERVER = '''#!/bin/sh
echo "events receiver started" >&2
exec sleep 1000
'''
# Runs a command without new namespaces; under XSched, a training crashes.
NAMESPACE = '''#!/bin/sh
while [ "${1#--}" != "$1" ]; do shift; done
case $* in *trainer.py*) echo "no such symbol" >&2; exit 1 ;; esac
exec "$@"
'''


def check_look_at_xsched(folder):
    """What XSched's server says of its queues, with a server that pretends."""
    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps({"xqueues": [{"pid": 7, "ready": True, "suspended": asked.append(self.path) is None},
                                                     {"pid": 7, "ready": False, "suspended": False}]}).encode())

        def log_message(self, *_):
            pass

    asked, notes = [], []
    with http.server.HTTPServer(("127.0.0.1", 0), Answer) as answering:
        threading.Thread(target=answering.serve_forever, daemon=True).start()
        rivals.PORT, kept = answering.server_port, rivals.PORT
        measured = argparse.Namespace(
            on=argparse.Namespace(note=notes.append, environment={**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}),
            xserver=os.getpid(), server=argparse.Namespace(pid=8), offline=argparse.Namespace(pid=7))
        with rivals.Rivals.looking(measured, serving.Mode(rivals.XSCHED, None, False, None)):
            nvidia.wait_until(lambda: len(asked) > 2, nvidia.PATIENCE, "looks")
        with rivals.Rivals.looking(None, rivals.OWN[0]):
            pass
        answering.shutdown()
    rivals.PORT, looks = kept, len(asked)
    check(set(asked) == {"/xqueues"} and notes == [
        "XSched, queues of the requests: seen 0 times, with work 0 times, suspended 0 times",
        f"XSched, queues of the training: seen {2 * looks} times, with work {looks} times, suspended {looks} times"],
        f"queues of XSched: {notes}")


def check_rivals(folder):
    """The part with programs that pretend: the rows of each rival, what crashes, and what is left."""
    programs = folder / "programs"
    for name, text in (("nvidia-cuda-mps-control", MPS_CONTROL), ("unshare", NAMESPACE), ("nsenter", NAMESPACE),
                       ("xsched/bin/xserver", XSERVER)):
        (programs / name).parent.mkdir(parents=True, exist_ok=True)
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    check_look_at_xsched(programs)
    (programs / "xsched/REVISION").write_text("XSched of some day\n")
    nvidia.kernel_log = lambda: []
    rivals.LOADS, rivals.START = (0.3,), 2
    nvidia.Server.mark = lambda server, socket: None
    for given, control, serving.ROUNDS in ((programs, True, 2), (None, False, 1)):
        with contextlib.redirect_stdout(io.StringIO()):
            on = nvidia.Context(argparse.Namespace(quick=False, gpu=None, trace=None, rivals=given, driver="none", bin="/",
                                                   library="/no/library", load="/", out=folder / "out"))
            on.environment["PYTHONPATH"] = str(folder)
            on.policies, on.torch = [], True
            on.daemon = lambda **how: FakeDaemon(on, **how)
            on.environment["PATH"] = f"{folder}:{on.environment['PATH']}"
            if control:
                on.environment["PATH"] = f"{programs}:{on.environment['PATH']}"
            else:
                (programs / "nvidia-cuda-mps-control").unlink()
            made = nvidia.run_part(on, "rivals", 100)
            shutil.rmtree(on.scratch)
        json.dumps(made)
        rows = {each["mode"]: each for each in made["serving"]["rows"]}
        check(made["outcome"] == "passed" and list(rows) == [each.name for each in (
            *rivals.OWN, *(serving.Mode(name, None, False, None) for name in (*rivals.MPS, rivals.STREAMS, rivals.XSCHED)))],
            f"rivals: {made}")
        lacking = {name: each["why"] for name, each in rows.items() if "why" in each}
        if control:
            check(list(lacking) == [rivals.XSCHED] and lacking[rivals.XSCHED].startswith("crashed: trainer-xsched-0 ended")
                  and lacking[rivals.XSCHED].endswith("no such symbol"), f"what crashes: {lacking}")
            check(made["xsched"] == "XSched of some day", f"revision: {made}")
            check(all(each["rounds"] == 2 for name, each in rows.items() if name not in lacking), f"rounds: {rows}")
            check(len({each["due"] for name, each in rows.items() if name not in lacking}) == 1, f"arrivals: {rows}")
            check(all(rows[name]["steps"][0] > 50 for name in (*rivals.MPS, rivals.STREAMS)), f"steps: {rows}")
        else:
            check(lacking == {**{name: "not there: nvidia-cuda-mps-control is not installed" for name in rivals.MPS},
                              rivals.XSCHED: "not there: --rivals has no XSched"}, f"what is not there: {lacking}")
        check({each["name"] for each in made["bounds"]} >= {"rivals: 30 %, pointer_polling: p99", "rivals: rounds"}
              and not any("MPS" in each["name"] for each in made["bounds"]), f"bounds: {made['bounds']}")
        left = []
        for each in pathlib.Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):  # Of other users, or ended.
                left += [each] if str(folder).encode() in each.read_bytes() else []
        check(left == [], f"programs that are left: {left}")


check_seeing()
check_serving()
check_gang()
check_descriptors()
for script in HERE.glob("*.py"):
    compile(script.read_text(encoding="utf-8"), script, "exec")
for script in HERE.glob("*.sh"):
    check(run("bash", "-n", script).returncode == 0, f"bash -n {script.name}")

shown = run(HERE / "nvidia.sh", "--help")
check(shown.returncode == 0 and shown.stdout.startswith("usage: ") and not shown.stderr, f"--help: {shown}")
check(shown.stdout.split("PART: ")[1].split() == list(nvidia.PARTS), f"parts: {shown}")
check(len(shown.stdout.splitlines()) <= 24 and max(map(len, shown.stdout.splitlines())) <= 80, "size of --help")
check(nvidia.NEED_PYTORCH < set(nvidia.PARTS), "parts that need PyTorch")
for wrong in (["--no-option"], ["no-part"], ["--gpu"], ["--gpu", "first"], ["--bundle"], ["--bundle", "/nonexistent"], ["--trace"],
              ["--trace", "/nonexistent"], ["--rivals"], ["--rivals", "/nonexistent"]):
    refused = run(HERE / "nvidia.sh", *wrong)
    check(refused.returncode == 2 and refused.stderr.startswith("nvidia.sh: ") and refused.stderr.count("\n") == 1,
          f"{wrong}: {refused}")
if pathlib.Path("/proc/driver/nvidia/version").exists():
    print("an NVIDIA driver is loaded: not tested how nvidia.sh ends without one")
else:
    refused = run(HERE / "nvidia.sh")
    check(refused.returncode == 2 and "no NVIDIA driver is loaded" in refused.stderr and refused.stderr.count("\n") == 1,
          f"without a driver: {refused}")

with tempfile.TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else None) as name:
    folder = pathlib.Path(name)
    # Nothing starts on several GPUs while NVLink multicast may be on.
    smi = folder / "nvidia-smi"
    smi.write_text("#!/bin/sh\necho 'NVIDIA H200, 00000000:04:00.0, GPU-4, 580.1'\necho 'NVIDIA H200, 00000000:0A:00.0, GPU-a, 580.1'\n")
    smi.chmod(0o755)
    path = {"PATH": f"{folder}:{os.environ['PATH']}"}
    for off, missing in (({}, ["NCCL_NVLS_ENABLE=0", "TORCH_SYMM_MEM_DISABLE_MULTICAST=1", "NVSHMEM_DISABLE_NVLS=1"]),
                         ({"NCCL_NVLS_ENABLE": "1", "NVSHMEM_DISABLE_NVLS": "1", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1"},
                          ["NCCL_NVLS_ENABLE=0"])):
        refused = subprocess.run(
            [sys.executable, "-B", HERE / "nvidia.py", "run", "--bin", folder, "--library", smi, "--load", "false", "--out",
             folder / "out", "gang"], env={**os.environ, **path, **off}, capture_output=True, text=True, check=False)
        check(refused.returncode == 2 and refused.stderr.endswith(f"set {' '.join(missing)}\n"), f"multicast: {refused}")
    shutil.rmtree(folder / "out")
    # One GPU of several.
    smi.write_text("#!/bin/sh\n[ \"$3\" = --id=1 ] && echo 'NVIDIA H200, 00000000:0A:00.0, GPU-a, 580.1'\n")
    before, os.environ["PATH"] = os.environ["PATH"], path["PATH"]
    chosen_gpu = nvidia.visible_gpus(1)
    os.environ["PATH"] = before
    check(chosen_gpu == (["NVIDIA H200"], ["0000:0a:00"], ["GPU-a"], "580.1"), f"--gpu 1: {chosen_gpu}")
    # A part that is running when the script is ended.
    (folder / "dmesg").write_text("#!/bin/sh\n")
    (folder / "load").write_text("#!/bin/sh\necho '{\"offline\": 1, \"online\": 1}'\n")
    (folder / "sluice").write_text("#!/bin/sh\ntouch \"$0.runs\"\nexec sleep 100\n")
    for program in ("dmesg", "load", "sluice"):
        (folder / program).chmod(0o755)
    with subprocess.Popen([sys.executable, "-B", HERE / "nvidia.py", "run", "--bin", folder, "--library", smi, "--load",
                           folder / "load", "--out", folder / "ended", "--gpu", "1", "doctor", "queues"],
                          env={**os.environ, **path}, stdout=subprocess.PIPE, text=True) as running:
        nvidia.wait_until(lambda: running.poll() is not None or (folder / "sluice.runs").exists(), 60, "start of a part")
        running.terminate()
        printed = running.communicate(timeout=60)[0]
    kept = [json.loads(each.read_text()) for each in (folder / "ended/gpu1").glob("nvidia-*-gpu1.json")]
    check(running.returncode == 143 and len(kept) == 1 and list(kept[0]["parts"]) == ["doctor"] and
          kept[0]["parts"]["doctor"]["outcome"] == "failed", f"ended by SIGTERM: {printed} {kept}")
    lines = [f"[1] NVRM: {text}" for text in (
        "the state is unknown", "Xid (PCI:0000:0A:00): 31, pid=7", "GPU at PCI:0000:04:00: GPU-0d", "GPU Board Serial Number: 1",
        "GPU 0000:0a:00.0: RmInitAdapter failed!")]
    mine = [*lines[:2], lines[4]]
    check(nvidia.of_driver([*lines, "[2] usb"], "0000:0a:00") == mine, "lines about another GPU")
    check(nvidia.of_driver([*lines, "[2] usb"]) == lines, "lines about all GPUs")
    one = {"hold: p50": {"values": [0.6, 1.5], "unit": "ms"}}
    two = {"hold: p50": {"values": [7], "unit": "ms"}}
    three = {"hold: p90": {"values": [8], "unit": "ms"}}
    done, rows = report(folder, results("H100", "2026-01-02T00:00:00+00:00", "hold", two, "failed"),
                        results("H200", "2026-01-01T00:00:00+00:00", "hold", one))
    check(done.returncode == 1 and len(rows[""]) == 2, f"two models of GPUs: {done}")
    check([each.split(",")[0] for each in rows[""]] == ["H100", "H200"], f"columns: {done}")
    check(rows.get("hold: p50") == ["7 ms", "0.6 / 1.5 ms"], f"figures: {done}")
    check(rows.get("part hold") == ["failed (quick)", "passed (quick)"], f"outcomes: {done}")
    # The newest file counts, whatever the order of the arguments; other parts stay.
    done, rows = report(folder, results("H200", "2026-01-03T00:00:00+00:00", "hold", two),
                        results("H200", "2026-01-01T00:00:00+00:00", "hold", one),
                        results("H200", "2026-01-02T00:00:00+00:00", "queues", {"n": {"values": [3], "unit": ""}}))
    check(done.returncode == 1 and len(rows[""]) == 1, f"one model of GPU: {done}")
    check(rows.get("hold: p50") == ["7 ms"] and rows.get("n") == ["3"], f"newest figures: {done}")
    check(rows.get("date") == ["2026-01-03"], f"date: {done}")
    # A full one counts, but not one of another revision.
    full = {**results("H200", "2026-01-01T00:00:00+00:00", "hold", one), "quick": False}
    done, rows = report(folder, results("H200", "2026-01-03T00:00:00+00:00", "hold", two), full)
    check(rows.get("part hold") == ["passed"] and rows.get("hold: p50") == ["0.6 / 1.5 ms"], f"a full run: {done}")
    later = {**results("H200", "2026-01-03T00:00:00+00:00", "hold", two, "failed"), "sluice": "def"}
    done, rows = report(folder, full, later)
    check("H200: part hold: failed (quick)" in done.stdout, f"a failure of a later revision: {done}")
    done, rows = report(folder, full, {**later, "sluice": "abc"})
    check("H200: part hold: failed (quick)" in done.stdout, f"a later failure of the same revision: {done}")
    missed = {"name": "p50", "unit": "us", "limit": 5, "value": 7, "kept": False}
    latest = {**results("H200", "2026-01-04T00:00:00+00:00", "hold", two, bounds=[missed]), "sluice": "def"}
    done, rows = report(folder, full, latest)
    check(rows.get("part hold") == ["passed", "passed (quick)"] and "MISSED" not in done.stdout,
          f"bounds of a quick run of a later revision: {done}")
    full_missed = results("H200", "2026-01-01T00:00:00+00:00", "hold", one, bounds=[missed])
    done, rows = report(folder, {**full_missed, "quick": False}, later, latest)
    check("MISSED: p50" in done.stdout and "failed (quick)" not in done.stdout, f"a failure that was mended: {done}")
    done, rows = report(folder, {**full, "parts": {"hold": {**full["parts"]["hold"], "figures": {**one, **three}}}},
                        {**full, "date": "2026-01-02T00:00:00+00:00"})
    check(rows.get("hold: p50") and "hold: p90" not in rows, f"a figure that the newer result lacks: {done}")
    # Rows without latencies are in the table, too.
    served = results("H200", "2026-01-01T00:00:00+00:00", "serving", {"serving: 10 %, slo: p50 / p90 / p99 / max": {
        "values": [1, 2, 3, 4], "unit": "us"}})
    rows = [{"load": 0.1, "mode": "slo", "overloaded": False}, {"load": 0.1, "mode": "beside", "overloaded": True},
            {"load": 0.6, "mode": "MPS", "overloaded": True, "why": "not there: no MPS"}]
    served["parts"]["serving"]["serving"] = {"title": "serving", "rows": rows}
    spoken = results("H200", "2026-01-02T00:00:00+00:00", "llm", {})
    spoken["parts"]["llm"]["cases"] = [{"load": 0.6, "mode": mode, "unfinished": count}
                                       for mode, count in (("beside", 0), ("beside", 3), ("alone", 0))]
    done, rows = report(folder, served, spoken)
    check([rows.get(f"serving: {row}: p50 / p90 / p99 / max") for row in ("10 %, slo", "10 %, beside", "60 %, MPS")]
          == [["1 / 2 / 3 / 4 us"], ["overloaded"], ["not there: no MPS"]], f"overloaded: {done}")
    check(rows.get("llm: 60 %, beside: first token, p50 / p99") == ["overloaded"]
          and "llm: 60 %, alone: first token, p50 / p99" not in rows, f"overloaded llm: {done}")
    skipped = results("H200", "2026-01-04T00:00:00+00:00", "hold", {}, "skipped")
    done, rows = report(folder, full, skipped)
    check(rows.get("part hold") == ["passed"], f"a part that was skipped: {done}")
    command = re.search(r"^```sh\n(.*?)^```$", (TOP / "adapters/nvidia/RESULTS.md").read_text(encoding="utf-8"),
                        re.M | re.S)[1]
    done = run("bash", "-c", f"cd '{TOP}'\n{command}")
    check(done.returncode in (0, 1) and re.search(r"^\| part faults \|.* passed \|", done.stdout, re.M),
          f"recorded results: {done}")
    done, rows = report(folder, "{}")
    check(done.returncode == 2 and "is not a file of results" in done.stderr, f"a wrong file: {done}")

    # Every part, and every bound.
    check_plan(folder)
    measured = check_measurement(folder)
    check(serving.rate((0, 0), (10, 10**9), 4 * 10**9) == 2.75, "a hold at the end of a row counts as time")
    check(serving.rate((0, 0), (10, 10**9), 1.05e9) == 10, "steps until the last one")
    check_rivals(folder)
    day = "2026-01-01T00:00:00+00:00"
    good = {"name": "p99 <1", "unit": "us", "limit": 5, "value": 4, "kept": True}
    whole = [results("H100", day, part, one, bounds=[good]) for part in nvidia.PARTS]
    for document in whole:
        document["parts"].get("serving", {}).update({"serving": measured["serving"], "bounds": [good]})
    done, _ = report(folder, *whole, options=["--html", folder / "page.html"])
    check(done.returncode == 0 and done.stdout.endswith("all bounds are kept\n"), f"everything is there: {done}")
    page = (folder / "page.html").read_text()
    check("p99 &lt;1" in page and page.count('class="kept"') > len(nvidia.PARTS) and 'class="bar"' in page
          and "H100, driver 580.1, sluice abc" in page, "the page")
    check("src=" not in page and "href=" not in page, "the page has everything in it")
    done, _ = report(folder, *whole[1:])
    check(done.returncode == 1 and done.stdout.endswith("- H100: part doctor is missing\n"), f"a missing part: {done}")
    bad = {"name": "steps", "unit": "%", "limit": 97, "value": 90, "kept": False, "least": True}
    for other, text in ((results("H100", "2026-01-02", "hold", one, bounds=[bad, good]),
                         "- H100: MISSED: steps: 90 %; the bound is at least 97 %"),
                        (results("H100", "2026-01-02", "hold", one, "failed"), "- H100: part hold: failed (quick)")):
        done, _ = report(folder, *whole, other, options=["--html", folder / "page.html"])
        check(done.returncode == 1 and done.stdout.splitlines()[-1] == text, f"{text}: {done.stdout[-300:]}")
        check(text[2:] in (folder / "page.html").read_text(), f"{text}: not in the page")
    # A newer result of that part, of another revision too, replaces it.
    newer = results("H100", "2026-01-03", "hold", one, bounds=[good])
    newer["sluice"] = "def"
    check(report(folder, *whole, other, newer)[0].returncode == 0, "a newer result")
    check(run(HERE / "nvidia.sh", "report", folder / "0.json").stdout.startswith("| | H100"), "nvidia.sh report")

    nvcc = shutil.which("nvcc")
    if nvcc:
        done = run(nvcc, "-std=c++17", "-arch=sm_90", "-Werror=all-warnings", "-I", HERE / "../../adapters/client/include",
                   HERE / "gpu_load.cu", "-o", folder / "gpu_load", "-ldl", "-lpthread")
        check(done.returncode == 0, f"nvcc: {done.stdout}{done.stderr}")
        check(done.returncode != 0 or "usage: gpu_load" in run(folder / "gpu_load", "--help").stdout, "gpu_load --help")
    else:
        print("nvcc is not installed: gpu_load.cu was not compiled")

print("\n".join(failures) or "passed")
sys.exit(1 if failures else 0)
