#!/usr/bin/env python3
"""usage: train.py PAGE LOSSES

Trains a small model with PyTorch on one GPU without end. Counts its steps in the first word of PAGE (4096 bytes), and
writes the loss of each step to LOSSES (a float32 each) until that file is full. Equal steps give equal losses."""

import mmap
import os
import struct
import sys

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch  # noqa: E402


def mapped(path):
    with open(path, "r+b") as file:
        return mmap.mmap(file.fileno(), 0)


page, losses = mapped(sys.argv[1]), mapped(sys.argv[2])
torch.manual_seed(0)
torch.use_deterministic_algorithms(True)
width, batch = 4096, 4096
model = torch.nn.Sequential(*[layer for _ in range(4)
                              for layer in (torch.nn.Linear(width, width), torch.nn.ReLU())]).cuda().bfloat16()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
given = torch.randn(batch, width, device="cuda", dtype=torch.bfloat16)
wanted = torch.randn(batch, width, device="cuda", dtype=torch.bfloat16)
step = 0
while True:
    optimizer.zero_grad(set_to_none=True)
    loss = ((model(given) - wanted).float() ** 2).mean()
    loss.backward()
    optimizer.step()
    value = loss.item()  # Waits for the GPU.
    if 4 * step + 4 <= len(losses):
        losses[4 * step:4 * step + 4] = struct.pack("<f", value)
    step += 1
    page[0:8] = struct.pack("<Q", step)
