#!/usr/bin/env python3
"""usage: gang_serve.py BOARD LIBRARY

Makes requests with PyTorch on several GPUs. Each rank (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT) has one GPU and a
part of each layer, and all ranks add up their results after each layer, in a CUDA graph. Rank 0 prints the length of a
request, and gets orders as lines of the standard input:

'play ARRIVALS T FILE' makes requests at the times in ARRIVALS (ns from the start, one a line), but none later than T
microseconds, and then writes FILE: when each was due, its begin and its end (CLOCK_MONOTONIC, ns).
'mark SOCKET' lets the ranks announce the following requests to that scheduler in turn, as if they came to each of them;
'mark -' to none.

BOARD is a page (4096 bytes, words of 8) that the ranks share. Rank 0 writes how many requests have begun to word 1, the
socket to the bytes from word 256 on, and then how often it changed to word 2; the others repeat that in word 3."""

import ctypes
import gc
import json
import mmap
import os
import pathlib
import statistics
import struct
import sys
import time

os.environ["SLUICE_CLIENT_LIBRARY"] = sys.argv[2]
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "adapters/client/python"))

import sluice  # noqa: E402
import torch  # noqa: E402

REQUESTS, NAMED, KNOWN, SOCKET = 1, 2, 3, 256
WIDTH, TOKENS, LAYERS, REPEAT = 4096, 1024, 16, 2

with open(sys.argv[1], "r+b") as file:
    board = mmap.mmap(file.fileno(), 0)
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def read(word):
    return struct.unpack_from("<Q", board, 8 * word)[0]


def write(word, value):
    board[8 * word:8 * word + 8] = struct.pack("<Q", value)


torch.distributed.init_process_group("nccl")
torch.set_grad_enabled(False)
torch.manual_seed(rank)
inner = 4 * WIDTH // size
layers = [(torch.randn(WIDTH, inner, device="cuda", dtype=torch.half) / WIDTH ** 0.5,
           torch.randn(inner, WIDTH, device="cuda", dtype=torch.half) / WIDTH ** 0.5) for _ in range(LAYERS)]
given = torch.ones(TOKENS, WIDTH, device="cuda", dtype=torch.half)


def model():
    value = given
    for up, down in layers:
        value = torch.relu(value @ up) @ down
        torch.distributed.all_reduce(value)
        value = torch.nn.functional.layer_norm(value, (WIDTH,))
    return value


for _ in range(3):
    model()
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # NCCL's own thread makes calls, too.
    result = model()
client = None
ctypes.CDLL(None).prctl(29, 1, 0, 0, 0)  # PR_SET_TIMERSLACK


def connect(socket):
    global client
    if client:
        client.close()
    client = None if socket == "-" else sluice.connect(name="gang_serve.py", socket=socket, required=True)


def request(number):
    """Request `number`, which all ranks have begun or begin now."""
    mine = client and number % size == rank
    begin = time.monotonic_ns()
    if mine:
        client.begin()
    for _ in range(REPEAT):
        graph.replay()
    torch.cuda.synchronize()
    if mine:
        client.end()
    return begin, time.monotonic_ns()


def lead():
    """Begins a request on all ranks."""
    write(REQUESTS, read(REQUESTS) + 1)
    return request(read(REQUESTS))


def follow():
    made = named = 0
    while True:
        if read(NAMED) != named:
            named = read(NAMED)
            connect(board[8 * SOCKET:].split(b"\0", 1)[0].decode())
            write(KNOWN, named)
        if read(REQUESTS) == made:
            time.sleep(0.00002)
            continue
        made += 1
        request(made)


def mark(socket):
    connect(socket)
    name = socket.encode() + b"\0"
    board[8 * SOCKET:8 * SOCKET + len(name)] = name
    write(NAMED, read(NAMED) + 1)
    while read(KNOWN) != read(NAMED):
        time.sleep(0.001)


def play(path, limit_us, log):
    """A request counts as arrived when it is due, so one that waits for others is late. Returns how many were made."""
    with open(path, encoding="utf-8") as offsets:
        start = time.monotonic_ns() + 5000000
        due = [start + int(line) for line in offsets]
    made = []
    for at in due:
        time.sleep(max(0, at - time.monotonic_ns()) / 1e9)
        if time.monotonic_ns() > start + int(1e3 * float(limit_us)):
            break
        made.append((at, *lead()))
    with open(log, "w", encoding="utf-8") as file:
        file.writelines(f"{at} {begin} {end}\n" for at, begin, end in made)
    return len(made)


if rank:
    gc.disable()
    follow()
for _ in range(20):
    lead()
print(json.dumps({"alone_us": statistics.median(end - begin for begin, end in (lead() for _ in range(21))) / 1e3}),
      flush=True)
gc.disable()
for line in sys.stdin:
    order, *words = line.split()
    if order == "play":
        print(json.dumps({"requests": play(*words)}), flush=True)
    else:
        mark(*words)
        print("{}", flush=True)
