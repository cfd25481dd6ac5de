#!/usr/bin/env python3
"""usage: train.py

Trains a transformer with PyTorch without end, and prints its progress each second. sluice may suspend it."""

import sys
import time

try:
    import torch
except ImportError as error:
    sys.exit(f"train.py: cannot import PyTorch: {error}; install it as https://pytorch.org explains")
try:
    import sluice
except ImportError as error:
    sys.exit(f"train.py: cannot import sluice: {error}; add adapters/client/python to PYTHONPATH")

if not torch.cuda.is_available():
    sys.exit("train.py: PyTorch finds no GPU; check that nvidia-smi lists one")

# What sluice needs, unless its configuration already makes this process offline. Keep the client: its end ends the role.
client = sluice.connect("train", role="offline")

WIDTH, HEADS, LAYERS, BATCH, LENGTH = 1024, 16, 12, 16, 512
layer = torch.nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, batch_first=True)
model = torch.nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False).cuda().bfloat16().train()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
begin = printed = time.monotonic()
step = 0
while True:
    # In place of the next batch of a data set: new random values, which cannot be learnt. Learning would bring the values in
    # the model near to 0. The clock of a GPU rises then, so steps would get faster, and their rates could not be compared.
    given, wanted = (torch.randn(BATCH, LENGTH, WIDTH, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    optimizer.zero_grad(set_to_none=True)
    loss = torch.nn.functional.mse_loss(model(given).float(), wanted.float())
    loss.backward()
    optimizer.step()
    value = loss.item()  # Waits for the GPU.
    step += 1
    now = time.monotonic()
    if now - printed >= 1:
        printed = now
        print(f"step {step}, {now - begin:.3f} s, loss {value:.4f}", flush=True)
