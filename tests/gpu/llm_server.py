#!/usr/bin/env python3
"""usage: llm_server.py

Serves a language model with PyTorch on one GPU: a decoder of 1.1 billion parameters with random weights, half
precision, a static key-value cache, continuous batching, and a CUDA graph for each length of prompts and size of
batches. Prints how long each takes. Each line of the standard input is one series of requests, a JSON object:
  arrivals   file with a list of requests: arrival in s from the begin, tokens of the prompt, tokens of the output
  log        file to write: number, arrival and tokens of each request (CLOCK_MONOTONIC, ns)
  limit_s    when to end the series at the latest
  socket     the scheduler to which the series announces its requests; null: none
The program prints when the series begins, and at its end for how long the GPU worked."""

import ctypes
import gc
import json
import math
import statistics
import sys
import time

import torch

import llm_loop
import sluice

WIDTH, HEADS, LAYERS, INNER, WORDS = 2048, 16, 20, 5632, 32000
HEAD = WIDTH // HEADS
SLOTS, LENGTH = llm_loop.SLOTS, llm_loop.MOST_PROMPT + llm_loop.MOST_OUTPUT


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm_1, self.norm_2 = torch.nn.LayerNorm(WIDTH), torch.nn.LayerNorm(WIDTH)
        self.inputs = torch.nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.outputs = torch.nn.Linear(WIDTH, WIDTH, bias=False)
        self.up = torch.nn.Linear(WIDTH, 2 * INNER, bias=False)
        self.down = torch.nn.Linear(INNER, WIDTH, bias=False)

    def forward(self, x, turn, attend):
        """x: requests, tokens, WIDTH."""
        count, tokens, _ = x.shape
        split = self.inputs(self.norm_1(x)).view(count, tokens, 3, HEADS, HEAD).permute(2, 0, 3, 1, 4)
        seen = attend(turn(split[0]), turn(split[1]), split[2])
        x = x + self.outputs(seen.transpose(1, 2).reshape(count, tokens, WIDTH))
        gate, value = self.up(self.norm_2(x)).chunk(2, -1)
        return x + self.down(torch.nn.functional.silu(gate) * value)


class Engine:
    """The model on the GPU. A slot is a place in the batch with a cache of its own."""

    def __init__(self):
        torch.manual_seed(0)
        torch.set_grad_enabled(False)
        torch.set_default_dtype(torch.half)
        if hasattr(torch.backends.cuda, "enable_cudnn_sdp"):
            torch.backends.cuda.enable_cudnn_sdp(False)  # It plans anew for each shape.
        with torch.device("cuda"):
            self.embedding = torch.nn.Embedding(WORDS, WIDTH)
            self.blocks = torch.nn.ModuleList(Block() for _ in range(LAYERS))
            self.norm = torch.nn.LayerNorm(WIDTH)
            self.keys, self.values = (torch.zeros(LAYERS, SLOTS, HEADS, LENGTH, HEAD) for _ in range(2))
            self.places = torch.arange(LENGTH)
            self.rows = torch.arange(SLOTS)
            # Of each slot: the last token, and where the next one will be.
            self.tokens = torch.zeros(SLOTS, dtype=torch.long)
            self.next = torch.zeros(SLOTS, dtype=torch.long)
            # Of the prompt that the next prefill reads.
            self.slot = torch.zeros(1, dtype=torch.long)
            self.last = torch.zeros(1, dtype=torch.long)
            self.prompt = torch.randint(0, WORDS, (1, llm_loop.MOST_PROMPT))
            angles = torch.outer(self.places.float(),
                                 torch.exp(torch.arange(0, HEAD, 2).float() * (-math.log(10000) / HEAD)))
        self.cosines = torch.cat((angles.cos(), angles.cos()), -1).half()
        self.sines = torch.cat((angles.sin(), angles.sin()), -1).half()
        self.prefills = {size: self.captured(lambda size=size: self.read_prompt(size)) for size in llm_loop.PROMPTS}
        self.decodes = {size: self.captured(lambda size=size: self.next_tokens(size)) for size in llm_loop.BATCHES}

    @staticmethod
    def captured(function):
        """A CUDA graph of a function."""
        beside = torch.cuda.Stream()
        beside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(beside):
            for _ in range(2):
                function()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            function()
        return graph

    def turned(self, x, places):
        """Rotary position embedding. places: index of cosines, to the shape (..., tokens, HEAD)."""
        low, high = x.chunk(2, -1)
        return x * self.cosines[places] + torch.cat((-high, low), -1) * self.sines[places]

    def read_prompt(self, size):
        def attention(layer):
            def attend(query, key, value):
                self.keys[layer][:, :, :size].index_copy_(0, self.slot, key)
                self.values[layer][:, :, :size].index_copy_(0, self.slot, value)
                return torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
            return attend

        x = self.embedding(self.prompt[:, :size])
        for layer, block in enumerate(self.blocks):
            x = block(x, lambda part: self.turned(part, self.places[:size]), attention(layer))
        self.tokens.index_copy_(0, self.slot, self.likeliest(x[0].index_select(0, self.last)))
        self.next.index_copy_(0, self.slot, self.last + 1)

    def next_tokens(self, size):
        places = self.next[:size]
        seen = (self.places <= places[:, None])[:, None, None]

        def attention(layer):
            def attend(query, key, value):
                self.keys[layer][self.rows[:size], :, places] = key[:, :, 0]
                self.values[layer][self.rows[:size], :, places] = value[:, :, 0]
                return torch.nn.functional.scaled_dot_product_attention(query, self.keys[layer][:size],
                                                                        self.values[layer][:size], attn_mask=seen)
            return attend

        x = self.embedding(self.tokens[:size, None])
        for layer, block in enumerate(self.blocks):
            x = block(x, lambda part: self.turned(part, places[:, None, None]), attention(layer))
        self.tokens[:size].copy_(self.likeliest(x[:, 0]))
        self.next[:size].add_(1).clamp_(max=LENGTH - 1)  # Slots without a request count, too.

    def likeliest(self, x):
        return torch.nn.functional.linear(self.norm(x), self.embedding.weight).argmax(-1)

    def prefill(self, slot, tokens):
        self.slot.fill_(slot)
        self.last.fill_(tokens - 1)
        self.prefills[llm_loop.at_least(llm_loop.PROMPTS, tokens)].replay()
        return self.tokens.tolist()[slot]  # Waits for the GPU.

    def decode(self, slots):
        self.decodes[llm_loop.at_least(llm_loop.BATCHES, slots)].replay()
        return self.tokens[:slots].tolist()


class Clock:
    @staticmethod
    def now():
        return time.monotonic_ns()

    @staticmethod
    def wait(until):
        time.sleep(max(0, until - time.monotonic_ns()) / 1e9)


def median_us(function):
    lengths = []
    for number in range(15):
        begin = time.monotonic_ns()
        function()
        if number >= 4:
            lengths.append((time.monotonic_ns() - begin) / 1e3)
    return statistics.median(lengths)


def report(**what):
    print(json.dumps(what), flush=True)


def perform(engine, order):
    with open(order["arrivals"], encoding="utf-8") as file:
        arrivals = json.load(file)
    client = sluice.connect("llm", socket=order["socket"], required=True, timeout=30) if order["socket"] else None
    begun = time.monotonic_ns() + 100000000
    report(begun=begun)
    made, busy = llm_loop.serve(engine, Clock, [(begun + round(1e9 * at), *lengths) for at, *lengths in arrivals],
                                llm_loop.Marks(client) if client else llm_loop.NoMarks(),
                                begun + round(1e9 * order["limit_s"]))
    if client:
        client.close()
    with open(order["log"], "w", encoding="utf-8") as file:
        json.dump([[each.number, each.arrival, each.output, each.tokens] for each in made], file)
    report(busy_s=busy / 1e9)


def main():
    ctypes.CDLL(None).prctl(29, 1, 0, 0, 0)  # PR_SET_TIMERSLACK
    engine = Engine()
    costs = {"prefill_us": {size: median_us(lambda size=size: engine.prefill(0, size)) for size in llm_loop.PROMPTS},
             "decode_us": {size: median_us(lambda size=size: engine.decode(size)) for size in llm_loop.BATCHES}}
    report(alone_us=costs["decode_us"][1], **costs)
    gc.collect()
    gc.disable()
    for line in sys.stdin:
        perform(engine, json.loads(line))


if __name__ == "__main__":
    main()
