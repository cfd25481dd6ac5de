"""The parts `lossless` and `checksum` of nvidia.py: work under suspends every few ms computes what it computes without
them."""

import hashlib
import pathlib
import random
import struct
import sys
import threading
import time

import nvidia

HERE = pathlib.Path(__file__).resolve().parent
# A client is busy and idle in turn, each for a random time within these bounds, in seconds.
BUSY, IDLE = (0.001, 0.005), (0.001, 0.006)
KERNEL_US = 10000
QUICK_SECONDS, SECONDS = 20, 300
LEAST_PER_SECOND = 20


class Marks(threading.Thread):
    """Begins and ends online work of a client until stop() is called."""

    def __init__(self, client, seed, busy=None, idle=None):
        super().__init__(daemon=True)
        self.client = client
        self.random = random.Random(seed)
        self.busy, self.idle = busy or BUSY, idle or IDLE
        self.made = 0
        self.stopping = threading.Event()
        self.start()

    def run(self):
        while not self.stopping.is_set():
            self.client.begin()
            time.sleep(self.random.uniform(*self.busy))
            self.client.end()
            self.made += 1
            time.sleep(self.random.uniform(*self.idle))

    def stop(self):
        self.stopping.set()
        self.join()


def calls_that_suspend(on, daemon):
    """How often the daemon suspended a process. Notes failures."""
    counters = daemon.status()["statistics"]
    for failure, count in counters["failures"].items():
        if count:
            on.note(f"failures of the daemon: {failure}: {count}")
    return counters["suspend_call"]["count"]


def losses_of(load, steps):
    """The bits of the losses of a training."""
    losses = struct.unpack(f"<{steps}I", pathlib.Path(load.losses[0]).read_bytes()[:4 * steps])
    values = struct.unpack(f"<{steps}f", struct.pack(f"<{steps}I", *losses))
    if not all(value - value == 0 for value in values) or len(set(losses)) < steps // 2:
        raise nvidia.Failure(f"the losses are not those of a training: {values[0]:g} to {values[-1]:g}")
    return losses


def train(on, steps, seed=None):
    """Losses and the sum of all bits of the parameters of a training, its seconds, and its suspends; with a seed under
    suspends."""
    daemon = nvidia.Daemon(on) if seed is not None else None
    load = nvidia.Load(on, "training", [sys.executable, HERE / "train_exact.py", steps], role="offline",
                       more_files=("losses",))
    load.wait_moving()
    start = nvidia.now()
    marks, suspends = None, 0
    word = lambda number, form: struct.unpack_from(form, load.page, 8 * number)[0]
    try:
        if daemon:
            daemon.wait_attached(load)
            marks = Marks(daemon.connect(), seed)
        nvidia.wait_until(lambda: load.check_alive() or word(nvidia.ENDED, "<Q") == 1, max(1, on.deadline - nvidia.now() - 10),
                          f"end of {steps} steps of training ({load.total()} at the start)")
        took = nvidia.now() - start
    finally:
        if marks:
            marks.stop()
    if daemon:
        suspends = calls_that_suspend(on, daemon)
        on.drop(daemon)
    seen = [f"{each:08x}" for each in losses_of(load, steps)], word(nvidia.BITS, "<q"), took, suspends
    on.drop(load)
    return seen


def differences(expected, seen):
    """Number of losses that differ, and whether the parameters do."""
    return sum(a != b for a, b in zip(expected[0], seen[0])), expected[1] != seen[1]


def lossless(on):
    """a PyTorch training under 1,000 suspends computes the same bits as alone"""
    if not on.torch:
        on.note("without PyTorch: not tested")
        on.skipped = True
        return
    steps, least = (100, 500) if on.quick else (200, 1000)
    alone = train(on, steps)
    on.figure(f"lossless: {steps} steps of training alone", [alone[2]], "s")
    on.result["losses_alone"] = alone[0]
    on.result["losses_held"] = []
    if not on.quick:
        # Else equal bits would show nothing, and different ones neither.
        again = differences(alone, train(on, steps))
        if again != (0, False):
            raise nvidia.Failure(f"the training is not deterministic: {again[0]} losses of two runs alone differ")
    losses, parameters, suspends = 0, 0, []
    for seed in range(1 if on.quick else 2):
        held = train(on, steps, seed)
        on.figure(f"lossless: {steps} steps of training under suspends, suspends", [held[2], held[3]], "s, number")
        on.result["losses_held"].append(held[0])
        differ = differences(alone, held)
        losses, parameters = losses + differ[0], parameters + differ[1]
        suspends.append(held[3])
    digest = hashlib.sha256("".join(alone[0]).encode()).hexdigest()[:16]
    on.note(f"loss of step 1 and {steps}: {alone[0][0]} and {alone[0][-1]} (bits of a float32); SHA-256 of all {digest}")
    on.require("losses that differ from those of a run alone", losses)
    on.require("runs of which the parameters differ", parameters)
    on.require("suspends in a run", min(suspends), least, least=True)


def checked(load):
    """Kernels, blocks, and wrong words in registers and in shared memory."""
    return load.counts()[:4]


def checksum(on):
    """all shared memory and registers keep their values under suspends"""
    seconds = QUICK_SECONDS if on.quick else SECONDS
    least = LEAST_PER_SECOND * seconds
    command = [on.load, "checksum", "--kernel-us", KERNEL_US]
    # A check that finds nothing must be one that can find something.
    damaged = nvidia.Load(on, "damaged", [*command, "--damage", 1], role="offline")
    # Its page gets the wrong words of a kernel before the number of kernels.
    nvidia.wait_until(lambda: damaged.check_alive() or checked(damaged)[0] > 0, nvidia.PATIENCE, "a checked kernel")
    if 0 in checked(damaged)[2:]:
        raise nvidia.Failure(f"the check did not find words that the program changed itself: {checked(damaged)}")
    on.drop(damaged)
    daemon = nvidia.Daemon(on)
    load = nvidia.Load(on, "checksum", command, role="offline")
    load.wait_moving()
    start, before = nvidia.now(), checked(load)
    time.sleep(1)
    alone = (checked(load)[0] - before[0]) / (nvidia.now() - start)
    daemon.wait_attached(load)
    marks = Marks(daemon.connect(), 1)
    try:
        start, before = nvidia.now(), checked(load)
        until = min(start + seconds, on.deadline - 20)
        while nvidia.now() < until and not any(checked(load)[2:]):
            load.check_alive()
            time.sleep(0.5)
        took = nvidia.now() - start
    finally:
        marks.stop()
    load.wait_moving()
    suspends = calls_that_suspend(on, daemon)
    on.drop(daemon)
    load.wait_moving()  # The kernels that the last suspend interrupted are checked, too.
    after = checked(load)
    kernels, blocks = after[0] - before[0], after[1] - before[1]
    registers, shared = after[2:]
    if registers or shared:
        first = load.counts()[4]
        on.problem(f"the first wrong word: block {first >> 32 & 0x7fffffff}, index {first & 0xffffffff}")
    on.figure("checksum: kernels / blocks that were checked", [kernels, blocks], "")
    on.figure("checksum: kernels per second alone / under suspends", [alone, kernels / took], "")
    on.figure("checksum: suspends, each after", [suspends, 1e3 * took / max(1, suspends)], "number, ms")
    on.require("wrong words in registers", registers)
    on.require("wrong words in shared memory", shared)
    on.require("suspends", suspends, least, least=True)
