#!/usr/bin/env python3
"""usage: nvidia_test.py [WORK_DIR]

Checks what of the tests on NVIDIA GPUs can be checked without a GPU: the scripts compile, they refuse wrong options and
machines without a driver, `report` merges results, and seeing.py compares a recording with a log. Where nvcc is installed, the loads are compiled, too. README.md
beside this file has the commands."""

import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

import seeing

HERE = pathlib.Path(__file__).resolve().parent
failures = []


def check(good, what):
    if not good:
        failures.append(what)


def run(*command):
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)


def results(gpu, date, part, figures, outcome="passed"):
    return {"version": 1, "gpu": gpu, "gpus": 1, "driver": "580.1", "kernel": "6.18", "date": date, "sluice": "abc",
            "quick": True, "parts": {part: {"outcome": outcome, "seconds": 1, "problems": [], "notes": [],
                                            "figures": figures}}}


def report(folder, *documents):
    files = []
    for number, document in enumerate(documents):
        files.append(folder / f"{number}.json")
        files[-1].write_text(document if isinstance(document, str) else json.dumps(document))
    done = run(sys.executable, "-B", HERE / "nvidia.py", "report", *files)
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in done.stdout.splitlines()]
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
    expected = {"n": 3, "missed": 0, "blind": 0, "gapless": 3, "wrong": 0, "pauses": 0,
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
    back_to_back = [("kernels", 1000, 1010, 3000), ("kernels", 3010, 3020, 3090)]
    found = compared([looked(1050, "waiting", 1), looked(3300, "finished")], back_to_back)["kernels"]
    check(found["missed"] == 0 and len(found["begin_seen"]) == 0, f"back to back: {found}")
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
    parts = {kind: {"n": 1, "missed": 0, "blind": 0, "gapless": 0, "wrong": 0, "pauses": 0, "begin_seen": [delay],
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


check_seeing()
for script in HERE.glob("*.py"):
    compile(script.read_text(encoding="utf-8"), script, "exec")
check(run("bash", "-n", HERE / "nvidia.sh").returncode == 0, "bash -n nvidia.sh")

shown = run(HERE / "nvidia.sh", "--help")
check(shown.returncode == 0 and shown.stdout.startswith("usage: ") and not shown.stderr, f"--help: {shown}")
parts = shown.stdout.split("PART: ")[1].split(".")[0].split(", ")
listed = run(sys.executable, "-B", HERE / "nvidia.py", "run", "--bin", "/", "--library", "/", "--load", "/", "no-part")
check(listed.returncode == 2 and listed.stderr.strip().endswith("parts: " + ", ".join(parts)), f"parts: {listed}")
for wrong in (["--no-option"], ["no-part"], ["--bundle"], ["--bundle", "/nonexistent"]):
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
    one = {"hold: p50": {"values": [0.6, 1.5], "unit": "ms"}}
    two = {"hold: p50": {"values": [7], "unit": "ms"}}
    done, rows = report(folder, results("H100", "2026-01-02T00:00:00+00:00", "hold", two, "failed"),
                        results("H200", "2026-01-01T00:00:00+00:00", "hold", one))
    check(done.returncode == 0 and len(rows[""]) == 2, f"two models of GPUs: {done}")
    check([each.split(",")[0] for each in rows[""]] == ["H100", "H200"], f"columns: {done}")
    check(rows.get("hold: p50") == ["7 ms", "0.6 / 1.5 ms"], f"figures: {done}")
    check(rows.get("part hold") == ["failed (quick)", "passed (quick)"], f"outcomes: {done}")
    # The newest file counts, whatever the order of the arguments; other parts stay.
    done, rows = report(folder, results("H200", "2026-01-03T00:00:00+00:00", "hold", two),
                        results("H200", "2026-01-01T00:00:00+00:00", "hold", one),
                        results("H200", "2026-01-02T00:00:00+00:00", "table", {"n": {"values": [3], "unit": ""}}))
    check(done.returncode == 0 and len(rows[""]) == 1, f"one model of GPU: {done}")
    check(rows.get("hold: p50") == ["7 ms"] and rows.get("n") == ["3"], f"newest figures: {done}")
    check(rows.get("date") == ["2026-01-03"], f"date: {done}")
    done, rows = report(folder, "{}")
    check(done.returncode == 2 and "is not a file of results" in done.stderr, f"a wrong file: {done}")

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
