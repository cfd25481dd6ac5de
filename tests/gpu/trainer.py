#!/usr/bin/env python3
"""usage: trainer.py transformer|wide --page PAGE

Trains a model with PyTorch on one GPU without end: a transformer of 12 layers, or with `wide` two layers so wide that
most kernels take 10 ms and more. Of PAGE (4096 bytes, words of 8), it counts its steps in word 0, with the time of the
last one (CLOCK_MONOTONIC, ns) in word 19. While word 17 is not 0 it runs nothing, and word 18 is 1."""

import argparse
import mmap
import struct
import time

parser = argparse.ArgumentParser(usage=__doc__)
parser.add_argument("kind", choices=("transformer", "wide"))
parser.add_argument("--page", required=True)
chosen = parser.parse_args()

import torch  # noqa: E402

# So small that the parameters stay as they are: a GPU gets faster as the values come near to 0.
UNCHANGED = 1e-12
STEPS, PAUSE_WANTED, PAUSED, LAST_STEP = 0, 17, 18, 19

with open(chosen.page, "r+b") as file:
    page = mmap.mmap(file.fileno(), 0)


def write(word, value):
    page[8 * word:8 * word + 8] = struct.pack("<Q", value)


def read(word):
    return struct.unpack("<Q", page[8 * word:8 * word + 8])[0]


torch.cuda.set_stream(torch.cuda.Stream())  # XSched does not schedule the default stream.
torch.manual_seed(0)
if chosen.kind == "transformer":
    layer = torch.nn.TransformerEncoderLayer(1024, 16, 4096, dropout=0, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 12, enable_nested_tensor=False).cuda().bfloat16().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=UNCHANGED)
    shape = (48, 512, 1024)  # With fewer, a step takes as long as the host needs to launch it, which varies.
else:
    width = 16384
    with torch.device("cuda"):  # On the host, the initial values would take long.
        model = torch.nn.Sequential(torch.nn.Linear(width, width, dtype=torch.bfloat16), torch.nn.ReLU(),
                                    torch.nn.Linear(width, width, dtype=torch.bfloat16))
    optimizer = torch.optim.SGD(model.parameters(), lr=UNCHANGED)
    shape = (width, width)
given = torch.randn(*shape, device="cuda", dtype=torch.bfloat16)
wanted = torch.randn(*shape, device="cuda", dtype=torch.bfloat16)

ends = []  # Of the steps that are not counted yet.


def count(most):
    """Counts steps that have ended, and waits until at most so many are left."""
    while len(ends) > most:
        ends.pop(0).synchronize()
        write(STEPS, read(STEPS) + 1)
        write(LAST_STEP, time.monotonic_ns())


while True:
    if read(PAUSE_WANTED):
        count(0)
        torch.cuda.synchronize()
        write(PAUSED, 1)
        while read(PAUSE_WANTED):
            time.sleep(0.001)
        write(PAUSED, 0)
    optimizer.zero_grad(set_to_none=True)
    loss = torch.nn.functional.mse_loss(model(given), wanted)
    loss.backward()
    optimizer.step()
    end = torch.cuda.Event()
    end.record()
    ends.append(end)
    count(1)  # The GPU has the next step to do while one is counted.
