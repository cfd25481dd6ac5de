#!/usr/bin/env python3
"""usage: serve.py graph|eager

Makes requests with PyTorch on one GPU without marks: a small transformer, as a CUDA graph or kernel by kernel. Prints
the length of a request. A line 'T FILE' of the standard input starts requests at random times, T microseconds apart on
average. A line 'rest' ends them and writes FILE: the kind of each request, its begin, when the first call had
submitted, when all was launched, and its end (CLOCK_MONOTONIC, ns). The end of the input ends the program."""

import ctypes
import gc
import json
import os
import random
import select
import statistics
import sys
import time

kind = sys.argv[1] if len(sys.argv) == 2 else ""
if kind not in ("graph", "eager"):
    sys.exit(__doc__)

import torch  # noqa: E402

LONGEST_BACKLOG_NS = 100000000

torch.manual_seed(0)
layer = torch.nn.TransformerEncoderLayer(1024, 16, 4096, dropout=0, batch_first=True)
model = torch.nn.TransformerEncoder(layer, 8, enable_nested_tensor=False).cuda().half().eval()
given = torch.randn(8, 128, 1024, device="cuda", dtype=torch.half)
graph = torch.cuda.CUDAGraph()
torch.set_grad_enabled(False)
beside = torch.cuda.Stream()
with torch.cuda.stream(beside):
    for _ in range(5):
        model(given)
torch.cuda.synchronize()
if kind == "graph":
    with torch.cuda.graph(graph):
        result = model(given)


def request():
    begin = time.monotonic_ns()
    if kind == "graph":
        graph.replay()
    else:
        model(given)
    launched = time.monotonic_ns()
    torch.cuda.synchronize()
    return begin, launched, time.monotonic_ns()


lines = b""


def next_line(until):
    """The next line of the standard input, or None if none comes until then."""
    global lines
    while b"\n" not in lines:
        limit = None if until is None else max(0, until - time.monotonic_ns()) / 1e9
        if not select.select([0], [], [], limit)[0]:
            return None
        read = os.read(0, 512)
        if not read:
            sys.exit(0)
        lines += read
    line, lines = lines.split(b"\n", 1)
    return line.decode()


ctypes.CDLL(None).prctl(29, 1, 0, 0, 0)  # PR_SET_TIMERSLACK
for _ in range(20):
    request()
lengths = [end - begin for begin, _, end in (request() for _ in range(21))]
print(json.dumps({"alone_us": statistics.median(lengths) / 1e3}), flush=True)
gc.disable()
random.seed(1)
while True:
    mean, path = next_line(None).split(" ", 1)
    made = []
    due = time.monotonic_ns()
    while True:
        due = max(due + int(random.expovariate(1 / (1e3 * float(mean)))), time.monotonic_ns() - LONGEST_BACKLOG_NS)
        if next_line(due) is not None:
            break
        made.append(request())
    with open(path, "w", encoding="utf-8") as file:
        # When eager submits first is not known.
        file.writelines(f"{kind} {begin} {launched if kind == 'graph' else begin} {launched} {end}\n"
                        for begin, launched, end in made)
    print(json.dumps({"requests": len(made)}), flush=True)
