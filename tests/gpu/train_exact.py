#!/usr/bin/env python3
"""usage: train_exact.py STEPS PAGE LOSSES

Trains a transformer of 400 million parameters with PyTorch on one GPU, by deterministic algorithms: equal steps give
equal bits. Counts its steps in the first word of PAGE (4096 bytes), and writes the loss of each step to LOSSES (a
float32 each) until that file is full. After STEPS steps it adds up the bits of all parameters, writes the sum and 1 to
the words 17 and 18 of PAGE, and waits. With 0 it trains without end."""

import mmap
import os
import signal
import struct
import sys

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch  # noqa: E402


def mapped(path):
    with open(path, "r+b") as file:
        return mmap.mmap(file.fileno(), 0)


steps, page, losses = int(sys.argv[1]), mapped(sys.argv[2]), mapped(sys.argv[3])
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
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
given = torch.randn(batch, length, width, device="cuda", dtype=torch.bfloat16)
wanted = torch.randn(batch, length, width, device="cuda", dtype=torch.bfloat16)
step = 0
while steps == 0 or step < steps:
    optimizer.zero_grad(set_to_none=True)
    loss = ((model(given) - wanted).float() ** 2).mean()
    loss.backward()
    optimizer.step()
    value = loss.item()  # Waits for the GPU.
    if 4 * step + 4 <= len(losses):
        losses[4 * step:4 * step + 4] = struct.pack("<f", value)
    step += 1
    page[0:8] = struct.pack("<Q", step)
bits = sum(int(each.detach().view(torch.int16).long().sum().item()) for each in model.parameters())
page[8 * 17:8 * 19] = struct.pack("<qQ", bits, 1)
while True:
    signal.pause()
