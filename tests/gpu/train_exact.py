#!/usr/bin/env python3
"""usage: train_exact.py STEPS PAGE LOSSES [BOARD]

Trains a transformer of 400 million parameters with PyTorch on one GPU, by deterministic algorithms: equal steps give
equal bits. Counts its steps in word 0 of PAGE (4096 bytes, words of 8), with the time of the last one (CLOCK_MONOTONIC,
ns) in word 19, and writes the loss of each step to LOSSES (a float32 each) until that file is full. After STEPS steps it
adds up the bits of all parameters, writes the sum and 1 to the words 24 and 25, and waits. With 0 it trains without end, by steps that change no parameter.

With BOARD it is a rank of a training over several GPUs, with one GPU for each rank (RANK, WORLD_SIZE, MASTER_ADDR,
MASTER_PORT). BOARD is a page that the ranks share: the first rank writes the step before which all pause to its word 0.
They pause while word 17 of the first rank's PAGE is not 0; word 18 of each rank's PAGE is 1 then. COLLECTIVE_TIMEOUT in
the environment is how long a collective may take, in seconds (default: 600, as PyTorch's)."""

import datetime
import mmap
import os
import signal
import struct
import sys
import time

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch  # noqa: E402


STEPS, PAUSE_WANTED, PAUSED, LAST_STEP, BITS, ENDED = 0, 17, 18, 19, 24, 25
PAUSE_AT = 0  # Of the board.


def mapped(path):
    with open(path, "r+b") as file:
        return mmap.mmap(file.fileno(), 0)


def write(to, word, value):
    to[8 * word:8 * word + 8] = struct.pack("<q", value)


def read(of, word):
    return struct.unpack_from("<q", of, 8 * word)[0]


def pause_with_all(step):
    """Pauses all ranks before the same step: none is more than one step ahead of another."""
    first = rank == 0
    if first and read(page, PAUSE_WANTED) and not read(board, PAUSE_AT):
        write(board, PAUSE_AT, step + 2)
    if read(board, PAUSE_AT) != step:
        return
    write(page, PAUSED, 1)
    while first and read(page, PAUSE_WANTED):
        time.sleep(0.001)
    if first:
        write(board, PAUSE_AT, 0)
    while read(board, PAUSE_AT) == step:
        time.sleep(0.001)
    write(page, PAUSED, 0)


steps, page, losses = int(sys.argv[1]), mapped(sys.argv[2]), mapped(sys.argv[3])
board = mapped(sys.argv[4]) if len(sys.argv) > 4 else None
rank = int(os.environ["RANK"]) if board else 0
torch.manual_seed(0)
torch.use_deterministic_algorithms(True)
# The fused kernels of attention do not all have a deterministic backward pass.
torch.backends.cuda.enable_flash_sdp(False)
torch.backends.cuda.enable_mem_efficient_sdp(False)
if hasattr(torch.backends.cuda, "enable_cudnn_sdp"):
    torch.backends.cuda.enable_cudnn_sdp(False)
width, heads, layers, batch, length = 2048, 16, 8, 16, 512
layer = torch.nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0.1, batch_first=True)
model = torch.nn.TransformerEncoder(layer, layers, enable_nested_tensor=False).cuda().bfloat16().train()
if board:
    torch.distributed.init_process_group(
        "nccl", timeout=datetime.timedelta(seconds=float(os.environ.get("COLLECTIVE_TIMEOUT", 600))))
    model = torch.nn.parallel.DistributedDataParallel(model)
    torch.manual_seed(rank)
# Without end, it learns nothing: a GPU gets faster as the values come near to 0.
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4 if steps else 1e-12)
given = torch.randn(batch, length, width, device="cuda", dtype=torch.bfloat16)
wanted = torch.randn(batch, length, width, device="cuda", dtype=torch.bfloat16)
step = 0
while steps == 0 or step < steps:
    if board:
        pause_with_all(step + 1)
    optimizer.zero_grad(set_to_none=True)
    loss = ((model(given) - wanted).float() ** 2).mean()
    loss.backward()
    optimizer.step()
    value = loss.item()  # Waits for the GPU.
    if 4 * step + 4 <= len(losses):
        losses[4 * step:4 * step + 4] = struct.pack("<f", value)
    step += 1
    write(page, STEPS, step)
    write(page, LAST_STEP, time.monotonic_ns())
write(page, BITS, sum(int(each.detach().view(torch.int16).long().sum().item()) for each in model.parameters()))
write(page, ENDED, 1)
while True:
    signal.pause()
