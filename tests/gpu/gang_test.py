#!/usr/bin/env python3
"""usage: gang_test.py BIN LIBRARY LOAD WORK_DIR

Runs the part `gang` of nvidia.py on a simulated device with two GPUs: with_simulated_gpu.sh has to start it."""

import argparse
import json
import pathlib
import sys

import nvidia
from nvidia import gang

# Bounds of times that also depend on how busy this machine is.
TIMES = ("ms", "of alone")


class Simulated(gang.Programs):
    """Programs for the simulated device."""

    steps = quick_steps = 250
    holds = quick_holds = 40
    quick_span = 2

    def __init__(self, on):
        super().__init__(on)
        self.train = [on.load, "train"]
        self.serve = self.serve_on_all = [on.load, "serve"]
        self.after_board = []

    def offline(self, gpu):
        return nvidia.Load(self.on, f"offline-gpu{gpu}", [self.on.load, "offline"], role="offline",
                           environment={"CUDA_VISIBLE_DEVICES": str(gpu)})


binaries, library, load, work = map(pathlib.Path, sys.argv[1:])
work.mkdir(parents=True, exist_ok=True)
on = nvidia.Context(argparse.Namespace(quick=True, driver="nvidia", bin=binaries, library=library, load=load, out=work,
                                       trace=None, rivals=None))
on.gpus, on.torch, on.programs = ["simulated"] * gang.RANKS, True, Simulated(on)
result = nvidia.run_part(on, "gang", 240)
missed = [each["name"] for each in result["bounds"] if not each["kept"] and each["unit"] not in TIMES]
timeline = json.loads((work / "gang-trace.json").read_text(encoding="utf-8"))
if result["outcome"] != "passed" or missed or not timeline:
    sys.exit(f"outcome: {result['outcome']}; bounds that were missed: {missed}")
