#!/usr/bin/env python3
"""usage: nvidia_test.py [WORK_DIR]

Checks what of the tests on NVIDIA GPUs can be checked without a GPU: the scripts compile, they refuse wrong options and
machines without a driver, and `report` merges results. Where nvcc is installed, the loads are compiled, too. README.md
beside this file has the commands."""

import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

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
                   HERE / "gpu_load.cu", "-o", folder / "gpu_load", "-ldl")
        check(done.returncode == 0, f"nvcc: {done.stdout}{done.stderr}")
        check(done.returncode != 0 or "usage: gpu_load" in run(folder / "gpu_load", "--help").stdout, "gpu_load --help")
    else:
        print("nvcc is not installed: gpu_load.cu was not compiled")

print("\n".join(failures) or "passed")
sys.exit(1 if failures else 0)
