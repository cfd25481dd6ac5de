#!/usr/bin/env python3
"""usage: simulated_test.py BIN LIBRARY LOAD WORK_DIR [PART...]

Runs parts of nvidia.py on a simulated device with two GPUs, which with_simulated_gpu.sh has to start. Bounds of times
that are missed are only shown: they also depend on how busy this machine is."""

import argparse
import json
import pathlib
import sys

import nvidia
from nvidia import faults, gang

TIMES = ("ms", "of alone")
PARTS = ("faults-long", "several", "gang", "gang-held", "gang-serving")


class Programs(gang.Programs):
    """Those of the part gang."""

    steps = quick_steps = 250
    holds = quick_holds = 40
    quick_span = 2

    def __init__(self, on):
        super().__init__(on)
        self.train = [on.load, "train"]
        self.serve = self.serve_on_all = [on.load, "serve"]
        self.after_board = []

    def offline(self, gpu):
        made = super().offline(gpu)
        made.per_step = 1  # It counts kernels.
        return made


faults.QUICK_CYCLES, faults.WARM_UP, faults.QUICK_HOLD = 40, 20, 2
binaries, library, load, work = map(pathlib.Path, sys.argv[1:5])
work.mkdir(parents=True, exist_ok=True)
on = nvidia.Context(argparse.Namespace(quick=True, driver="nvidia", bin=binaries, library=library, load=load, out=work,
                                       gpu=None, trace=None, rivals=None))
on.gpus, on.torch, on.programs = ["simulated"] * gang.RANKS, True, Programs(on)
on.rates = {"offline": 1, "online": 1}
failed = []
for part in sys.argv[5:] or PARTS:
    result = nvidia.run_part(on, part, 240)
    failed += [f"{part}: {each}" for each in result["problems"]]
    failed += [each["name"] for each in result["bounds"] if not each["kept"] and each["unit"] not in TIMES]
    if part == "gang" and not json.loads((work / "gang-trace.json").read_text(encoding="utf-8")):
        failed.append("the timeline is empty")
sys.exit("failed: " + "; ".join(failed) if failed else 0)
