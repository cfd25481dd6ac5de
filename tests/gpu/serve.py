#!/usr/bin/env python3
"""usage: serve.py graph|eager [--repeat N] [--mark LIBRARY] [--train PAGE]

Makes requests with PyTorch on one GPU: a small transformer N times in a row (default: 1), as a CUDA graph or kernel by
kernel. Prints the length of a request, and with --mark how much of it the GPU works. With --train, another thread then
does the work of 'trainer.py transformer --page PAGE', and requests run on a stream of high priority. Lines of the
standard input are orders:

'T FILE' starts requests at random times, T microseconds apart on average. A line 'rest' ends them and writes FILE: the
kind of each request, its begin, when the first call had submitted, when all was launched, and its end (CLOCK_MONOTONIC,
ns).
'play ARRIVALS T FILE' makes requests at the times in ARRIVALS (ns from the start, one a line), but none later than T
microseconds, and then writes FILE: when each was due, its begin and its end.
'mark SOCKET' announces the following requests to that scheduler, 'mark -' to none.
The end of the input ends the program."""

import argparse
import ctypes
import gc
import json
import os
import pathlib
import random
import runpy
import select
import statistics
import sys
import threading
import time

parser = argparse.ArgumentParser(usage=__doc__)
parser.add_argument("kind", choices=("graph", "eager"))
parser.add_argument("--repeat", type=int, default=1)
parser.add_argument("--mark", metavar="LIBRARY")
parser.add_argument("--train", metavar="PAGE")
chosen = parser.parse_args()
kind = chosen.kind

import torch  # noqa: E402

LONGEST_BACKLOG_NS = 100000000
PAUSE = 0.01  # s, before an eager request of which the length counts: the launching CPU can be slower after a pause.

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
# XSched does not schedule the default stream. With --train, the device also has the work of the training.
stream = torch.cuda.Stream(priority=-1 if chosen.train else 0)
torch.cuda.set_stream(stream)
if kind == "graph" or chosen.mark:
    with torch.cuda.graph(graph, stream=stream):  # Its kernels get the priority of the stream.
        result = model(given)


def request(as_graph=kind == "graph"):
    begin = time.monotonic_ns()
    for _ in range(chosen.repeat):
        if as_graph:
            graph.replay()
        else:
            model(given)
    launched = time.monotonic_ns()
    stream.synchronize()
    return begin, launched, time.monotonic_ns()


class Marks:
    """Announces requests to a scheduler, while it is connected to one."""

    def __init__(self, library):
        self.client = None
        if library:
            os.environ["SLUICE_CLIENT_LIBRARY"] = library
            sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "adapters/client/python"))

    def connect(self, socket):
        import sluice

        if self.client:
            self.client.close()
        self.client = None if socket == "-" else sluice.connect(name="serve.py", socket=socket, required=True)

    def begin(self, number, since):
        if self.client:
            self.client.begin()
            self.client.begin_span("request", number, since)

    def end(self, number):
        if self.client:
            self.client.end_span("request", number)
            self.client.end()


marks = Marks(chosen.mark)


def play(path, limit_us, log):
    """A request counts as arrived when it is due, so one that waits for others is late. Returns how many were made."""
    with open(path, encoding="utf-8") as file:
        offsets = [int(line) for line in file]
    start = time.monotonic_ns() + 5000000
    due = [start + each for each in offsets]
    until = start + int(1e3 * float(limit_us))
    announced, made = 0, []

    def announce():
        nonlocal announced
        at = time.monotonic_ns()
        while announced < len(due) and due[announced] <= at:
            marks.begin(announced, due[announced])
            announced += 1

    for number, at in enumerate(due):
        left = at - time.monotonic_ns()
        if left > 0:
            time.sleep(left / 1e9)
        if time.monotonic_ns() > until:
            break
        announce()
        made.append(request())
        announce()  # What has arrived since, so that the next one does not begin after a pause.
        marks.end(number)
    for number in range(len(made), announced):
        marks.end(number)
    with open(log, "w", encoding="utf-8") as file:
        file.writelines(f"{at} {begin} {end}\n" for at, (begin, _, end) in zip(due, made))
    return len(made)


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


def length_us(as_graph=kind == "graph"):
    made = []
    for _ in range(41):
        if not as_graph:
            time.sleep(PAUSE)
        made.append(request(as_graph))
    return statistics.median(end - begin for begin, _, end in made[20:]) / 1e3


found = {"alone_us": length_us()}
if chosen.mark:
    found["gpu_us"] = length_us(True)  # As a graph it has no pauses.
if chosen.train:
    trainer = pathlib.Path(__file__).with_name("trainer.py")
    sys.argv = [str(trainer), "transformer", "--page", chosen.train]
    sys.setswitchinterval(1e-4)  # Requests do not wait for Python code of the training for long.
    threading.Thread(target=runpy.run_path, args=(str(trainer),), daemon=True).start()
print(json.dumps(found), flush=True)
gc.disable()
random.seed(1)
while True:
    order, *words = next_line(None).split(" ")
    if order == "play":
        print(json.dumps({"requests": play(*words)}), flush=True)
        continue
    if order == "mark":
        marks.connect(*words)
        print("{}", flush=True)
        continue
    mean, path = order, " ".join(words)
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
