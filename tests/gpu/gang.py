"""The parts `gang`, `gang-held` and `gang-serving` of nvidia.py: a training over two GPUs is held as one, or for long by
hand, and a server over two GPUs frees both. Times of a recording are nanoseconds."""

import collections
import contextlib
import json
import os
import pathlib
import random
import re
import signal
import socket
import subprocess
import sys
import time

import faults
import llm
import lossless
import nvidia
import seeing
import serving

HERE = pathlib.Path(__file__).resolve().parent
# NVLink multicast can put the GPUs of a shared host out of service.
MULTICAST_OFF = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NVSHMEM_DISABLE_NVLS": "1"}
RANKS = 2
LOAD = 0.3
# The bounds: of the p99 alone; ms between the first and the last rank off its GPU; ms of one rank held alone.
P99, APART_P99, LONGEST_APART = 1.05, 1, 2
GANGS_ON, GANGS_OFF = 'gangs = ["ranks"]', "gangs = []"
# s after which an agent is killed behind a begin: until the ranks are off their GPUs.
KILLED_AFTER = (0, 0.0015)
KILLS = 4  # Of one daemon.
HELD, HELD_GANGS_OFF = "fixed_timeslice", "fixed_timeslice, gangs off"
POLICY = f"{serving.HOLD}\n{serving.QUANTUM}"
MODES = (serving.Mode("alone", None, False, None), serving.Mode("beside", None, False, None),
         serving.Mode(HELD, POLICY, True, P99), serving.Mode(HELD_GANGS_OFF, POLICY, True, None))
SPAN, BOTH_SPAN = 10, 8  # s, of a row of the server on one GPU, and of the server on both.
LAB_TOKENS = 1000  # Of a request in the lab.
LAB_OFFLINE = "train:gang=true,all_reduce=1ms"
ALONE_HELD = 10  # s, of one rank.
# s: how long a collective may take, and how long ranks are held at most in spite of that.
COLLECTIVE_TIMEOUT, HELD_BEYOND = 10, 45

# number: how often all processes were off the GPU. The others: for how many us only some were, each time: before all
# were (off), before all ran again (again), and with neither. worst: the longest of these times, and the driver's calls
# that ended in it or at its ends.
Holds = collections.namedtuple("Holds", "number off again neither worst")


def multicast_left_on():
    """What the environment lacks."""
    return [f"{name}={value}" for name, value in MULTICAST_OFF.items() if os.environ.get(name) != value]


def read_holds(lines, pids):
    """When some, but not all, of these processes were held, by a recording."""
    numbers, changes, calls, last = {}, [], [], "{}"
    for line in lines:
        if not line.endswith("\n"):
            break
        last = line
        if '"is":"attach"' in line:
            entry = json.loads(line)
            numbers[entry["process"]] = entry["pid"]
        elif '"is":"done"' in line:
            entry = json.loads(line)
            if numbers.get(entry["process"]) in pids and not entry.get("errno"):
                changes.append((entry["finished"], numbers[entry["process"]], entry["kind"] == "suspend"))
                calls.append((entry["started"], entry["finished"], entry["kind"], pids.index(numbers[entry["process"]])))
        elif '"is":"detached"' in line:
            entry = json.loads(line)
            if numbers.get(entry["process"]) in pids:
                changes.append((entry["t"], numbers[entry["process"]], False))
    found = Holds([0], [], [], [], [])
    held, since, from_all = set(), None, False

    def add(to, until):
        to.append((until - since) / seeing.US if since is not None else 0.0)
        if not found.worst or to[-1] > found.worst[0]:
            ended = [each for each in calls if since is not None and since <= each[1] <= until]
            found.worst[:] = to[-1], "; ".join(
                f"{kind} of rank {rank} from {(a - since) / seeing.US:.0f} to {(b - since) / seeing.US:.0f} us"
                for a, b, kind, rank in sorted(ended))

    for at, pid, is_held in sorted(changes):
        before = len(held)
        (held.add if is_held else held.discard)(pid)
        if len(held) == before:
            continue
        if len(held) in (0, len(pids)):
            found.number[0] += len(held) > 0
            kind = found.again if from_all and not held else found.off if held and not from_all else found.neither
            add(kind, at)
            since = None
        elif since is None:
            since, from_all = at, before > 0
    if since is not None:  # Until the end of the recording.
        add(found.neither, json.loads(last).get("t", since))
    return found._replace(number=found.number[0])


def merged(holds):
    return Holds(sum(each.number for each in holds),
                 *(sum((getattr(each, key) for each in holds), []) for key in ("off", "again", "neither")),
                 max((each.worst for each in holds), default=[]))


def show_holds(on, name, holds, least):
    """Records how far apart the processes were held and resumed, and the bounds of that."""
    on.require(f"{name}: holds", holds.number, least, least=True)
    bounds = (f"{name}: p99 from the first off its GPU to the last", f"{name}: longest time with only one held")
    if not holds.off or not holds.again:
        for bound, limit in zip(bounds, (APART_P99, LONGEST_APART)):
            on.require(bound, None, limit, unit="ms", fatal=False)
        return
    on.figure(f"{on.part}: {name}, from the first off its GPU to the last, p50 / p99 / max",
              [seeing.quantile(holds.off, 0.5), seeing.quantile(holds.off, 0.99), max(holds.off)], "us")
    on.figure(f"{on.part}: {name}, from the first again on its GPU to the last, p50 / p99 / max",
              [seeing.quantile(holds.again, 0.5), seeing.quantile(holds.again, 0.99), max(holds.again)], "us")
    on.require(bounds[0], seeing.quantile(holds.off, 0.99) / 1e3, APART_P99, unit="ms", fatal=False)
    on.require(bounds[1], max(holds.off + holds.again + holds.neither) / 1e3, LONGEST_APART, unit="ms", fatal=False)
    if holds.worst[1]:
        on.note(f"{name}: the driver's calls of the longest time with only one held: {holds.worst[1]}")
    on.figure(f"{on.part}: {name}, holds that ended before all were off", [len(holds.neither)], "")


class Programs:
    """The programs of this part on NVIDIA GPUs."""

    steps, quick_steps, holds, quick_holds = 100, 30, 500, 100
    quick_span = 3  # s, of a row.
    train = [sys.executable, HERE / "train_exact.py"]

    def __init__(self, on):
        self.on = on
        self.serve = [sys.executable, HERE / "serve.py", "graph", "--repeat", 16, "--mark", on.library]
        self.serve_on_all = [sys.executable, HERE / "gang_serve.py"]
        self.after_board = [on.library]

    def offline(self, gpu):
        made = self.on.offline(f"offline-gpu{gpu}", streams=1, devices=str(gpu))
        made.per_step = nvidia.KERNEL_US * self.on.rates["offline"]
        return made

    def environments(self):
        """Of the ranks of a new gang."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        return [{**MULTICAST_OFF, "RANK": str(rank), "WORLD_SIZE": str(RANKS), "MASTER_ADDR": "127.0.0.1",
                 "MASTER_PORT": str(port), "CUDA_VISIBLE_DEVICES": str(rank)} for rank in range(RANKS)]


class Gang:
    """What serving.Measurement and a daemon need of several Loads that count as one program."""

    def __init__(self, name, loads):
        self.name, self.loads = name, loads
        self.pids = [load.pid for load in loads]

    def check_alive(self):
        for load in self.loads:
            load.check_alive()

    def wait_moving(self):
        for load in self.loads:
            load.wait_moving()

    def progress(self):
        seen = [load.progress() for load in self.loads]
        return sum(steps for steps, _ in seen) / len(seen), max(at for _, at in seen)

    def order_pause(self, wanted):
        for load in self.loads:
            load.order(nvidia.PAUSE_WANTED, wanted)

    def pause(self):
        self.order_pause(1)
        for load in self.loads:
            nvidia.wait_until(lambda load=load: self.check_alive() or load.word(nvidia.PAUSED), nvidia.PATIENCE,
                              f"pause of {load.name}")

    def go_on(self):
        self.order_pause(0)
        for load in self.loads:
            nvidia.wait_until(lambda load=load: self.check_alive() or not load.word(nvidia.PAUSED), nvidia.PATIENCE,
                              f"end of the pause of {load.name}")

    def held(self):
        """Waits until all are held; returns their counts."""
        return [nvidia.wait_held(load) for load in self.loads]

    def steps_after(self, since, before, what):
        """Waits until each has made two more steps than before: the kernels of one may have run already. Returns the
        seconds since then."""
        for load, counts in zip(self.loads, before):
            nvidia.wait_until(lambda load=load, counts=counts: self.check_alive() or load.total() >= sum(counts) + 2,
                              nvidia.PATIENCE, f"{what}: two steps of {load.name}")
        return nvidia.now() - since


def start_training(on, programs, steps=0, more=None):
    """With more of the environment."""
    board = on.file("board", 4096)
    return Gang("training", [
        nvidia.Load(on, f"rank-{rank}", [*programs.train, steps], role="offline", more_files=("losses",),
                    after=[board], environment={**environment, **(more or {})})
        for rank, environment in enumerate(programs.environments())])


def gpus_of(on):
    """The driver's numbers of the GPUs, in the order of CUDA's (CUDA_DEVICE_ORDER=PCI_BUS_ID)."""
    seen = json.loads(on.run("queues", "--driver", on.driver, "--json").stdout)
    return [each["gpu_id"] for each in sorted(seen["gpus"], key=lambda each: each["pci"])]


# What a training computes.


def train(on, programs, held):
    """Losses and parameters of each rank of a training, its seconds, and its holds."""
    steps = programs.quick_steps if on.quick else programs.steps
    least = programs.quick_holds if on.quick else programs.holds
    training = start_training(on, programs, steps)
    training.wait_moving()
    start, marks, holds = nvidia.now(), None, None
    recording = on.scratch / "recording"
    daemon = nvidia.Daemon(on, roles=GANGS_ON, record=recording) if held else None
    try:
        if daemon:
            daemon.wait_attached(*training.loads)
            marks = lossless.Marks(daemon.connect(), 1)
        for load in training.loads:
            nvidia.wait_until(lambda load=load: training.check_alive() or load.word(nvidia.ENDED),
                              max(1, on.deadline - nvidia.now() - 10), f"end of {steps} steps of training")
    finally:
        if marks:
            marks.stop()
    took = nvidia.now() - start
    if daemon:
        on.drop(daemon)
        with open(recording, encoding="utf-8") as file:
            holds = read_holds(file, training.pids)
        show_holds(on, f"{steps} steps of training", holds, least)
    bits = [(lossless.losses_of(load, steps), load.word(nvidia.BITS)) for load in training.loads]
    on.drop(*training.loads)
    on.figure(f"gang: {steps} steps of training {'under holds' if held else 'alone'}", [took], "s")
    return bits


def compare_training(on, programs):
    alone, held = train(on, programs, False), train(on, programs, True)
    differ = differences(alone, held)
    if differ != (0, 0) and differences(alone, train(on, programs, False)) != (0, 0):
        raise nvidia.Failure("the training is not deterministic: two runs alone differ")
    on.require("losses that differ from those of a run alone", differ[0])
    on.require("ranks of which the parameters differ", differ[1])


def differences(one, other):
    """Number of losses that differ, and of ranks of which the parameters do."""
    pairs = list(zip(one, other))
    return sum(a != b for (x, _), (y, _) in pairs for a, b in zip(x, y)), sum(x != y for (_, x), (_, y) in pairs)


# Requests beside it.


class Requests(serving.Measurement):
    """Requests of a server on the first GPU beside a training on both; or of a server on both beside a program on each."""

    def __init__(self, on, server, offline, modes, span, trace=""):
        super().__init__(on, server, offline, short=False)
        self.modes, self.loads, self.span, self.trace = modes, (LOAD,), span, trace
        self.recording = on.scratch / "recording"
        self.holds = []

    def measure_holds(self, name):
        try:
            self.run()
        finally:
            self.show(self.on.part)
        show_holds(self.on, name, merged(self.holds), 1)
        self.in_lab()

    def in_lab(self):
        """Figures of requests of this length at these arrivals in `sluice lab`, with its profile h100. It has no server over
        several GPUs."""
        if len(self.modes) < len(MODES):
            return
        on, trace = self.on, self.on.scratch / "lab.csv"
        arrivals = [int(line) / 1e9 for line in self.files[LOAD][0].read_text(encoding="utf-8").splitlines()]
        llm.write_trace(trace, [(at, LAB_TOKENS, 1) for at in arrivals])
        rows = llm.run_lab(on, {HELD: POLICY}, "--profile", "h100", "--gpus", RANKS, "--servers", 1, "--arrivals", "trace",
                           "--trace", trace, "--offline", LAB_OFFLINE, "--service",
                           f"fifo:prefill_rate={1e6 * LAB_TOKENS / self.server.alone_us:.0f},decode_token=1ns")
        for mode, row in rows.items():
            on.figure(f"{on.part} in the lab: {mode}: p50 / p99",
                      [row[f"{part}_ms"]["mean"] for part in ("p50", "p99")], "ms")
            if mode != "alone":
                on.figure(f"{on.part} in the lab: {mode}: offline work, share of alone", [row["offline_percent"]["mean"]], "%")

    def seconds(self):
        return self.span

    def start_daemon(self, mode, policy):
        held = mode.name == HELD
        trace, self.trace = (self.trace, "") if held else ("", self.trace)
        daemon = nvidia.Daemon(self.on, policy=policy, roles=GANGS_OFF if mode.name == HELD_GANGS_OFF else GANGS_ON,
                               record=self.recording if held else "", trace=trace)
        daemon.wait_attached(*self.offline.loads)
        return daemon

    def drop_daemon(self, mode):
        recorded = self.daemon is not None and mode.name == HELD
        super().drop_daemon(mode)
        if recorded:
            with open(self.recording, encoding="utf-8") as file:
                self.holds.append(read_holds(file, self.offline.pids))

    def bounds(self, rows, offline):
        alone, beside, held = (rows.get((LOAD, name)) for name in ("alone", "beside", HELD))
        if not (alone and beside and held and alone["p99"]) or len(self.modes) < len(MODES):
            return []
        ratio = None if held["overloaded"] or not held["p99"] else held["p99"][0] / alone["p99"][0]
        return [serving.bound(f"{100 * LOAD:g} %, {HELD}: p99", "of alone", P99, ratio, serving.spread(alone["p99"]),
                              P99 - 1)]


def serve_beside(on, programs, training):
    training.pause()
    server = nvidia.Server(on, "serve-gpu0", programs.serve,
                           environment={"CUDA_VISIBLE_DEVICES": "0", "SLUICE_CLIENT_GPUS": str(gpus_of(on)[0])})
    training.go_on()
    Requests(on, server, training, MODES, programs.quick_span if on.quick else SPAN,
             on.out / "gang-trace.json").measure_holds("requests on one GPU")
    on.drop(server)


def serve_on_all(on, programs):
    """The work of one rank of an online gang counts on all GPUs of the gang."""
    board = on.file("board", 4096)
    environments = programs.environments()
    command = [*programs.serve_on_all, board, *programs.after_board]
    offline = Gang("offline", [programs.offline(gpu) for gpu in range(RANKS)])
    gpus = gpus_of(on)
    offline.pause()
    follower = subprocess.Popen(list(map(str, command)), stdin=subprocess.DEVNULL, stdout=(log := on.log("rank-1")),
                                stderr=log, preexec_fn=nvidia.die_with_parent,
                                env={**on.environment, **environments[1], "SLUICE_TEST_ROLE": on.role("online"),
                                     "SLUICE_CLIENT_GPUS": str(gpus[1])})
    on.others.append(follower)
    server = nvidia.Server(on, "rank-0", command, environment={**environments[0], "SLUICE_CLIENT_GPUS": str(gpus[0])})
    offline.go_on()
    Requests(on, server, offline, MODES[:3],
             programs.quick_span if on.quick else BOTH_SPAN).measure_holds("requests on both GPUs")
    on.drop(server, *offline.loads)
    follower.kill()
    follower.wait()


def write_to_held(on):
    """A program on one GPU writes into memory of a held one on another GPU: kernels and copies."""
    owner = on.offline("owner", streams=1, devices="1", export=1)
    peer = nvidia.Load(on, "peer", [on.load, "peer", "--owner", owner.path, "--device", 0])
    peer.wait_moving(3)
    seen = []

    def look():
        seen.append((nvidia.now(), peer.counts()[:3]))

    look()
    time.sleep(1)
    look()
    nvidia.hold_once(on, owner, 1, look)
    for name, first in (("before", 0), ("during", 2)):
        (start, before), (end, after) = seen[first:first + 2]
        rates = [(b - a) / (end - start) for a, b in zip(before[:2], after[:2])]
        on.figure(f"{on.part}: kernels / copies of 8 MiB into memory of another GPU's program, {name} its hold", rates, "per s")
    peer.wait_moving(3)
    peer.stopping = True  # What it writes last is written as a whole.
    lost = max(abs(word - kernels) for kernels, _, word in (peer.counts()[:3] for _ in range(100)))
    on.require("kernels that wrote into memory of a held program and were lost", max(0, lost - 1))
    on.drop(peer, owner)


# Faults.


def states(daemon, pids):
    """States of the groups of these processes, as `sluice status` shows them."""
    return [group["state"] for group in (daemon.status() or {"groups": []})["groups"]
            if not set(pids).isdisjoint(process["pid"] for process in group["processes"])]


def wait_running(daemon, loads, since):
    """Waits until none of these programs is held, or all have ended; returns the seconds since then."""
    pids = {load.pid for load in loads}
    nvidia.wait_until(lambda: set(states(daemon, pids)) == {"running"}
                      or all(load.process.poll() is not None for load in loads), nvidia.PATIENCE, "end of the hold")
    return nvidia.now() - since


def agents_killed(on, training, step):
    """Agents are killed while they suspend the ranks."""
    took, killed, midst = [], [], collections.Counter()
    for series in range(1 if on.quick else 3):
        # A daemon waits longer and longer before it starts the next agent.
        recording = on.scratch / "recording"
        daemon = nvidia.Daemon(on, roles=GANGS_ON, record=recording)
        client, agent, of_daemon = daemon.connect(), None, []
        for number in range(KILLS):
            nvidia.wait_until(lambda: daemon.check_alive() or daemon.agent() not in (None, agent), nvidia.PATIENCE,
                              "start of the next agent")
            agent = daemon.agent()
            daemon.wait_attached(*training.loads)
            training.wait_moving()
            before = [load.counts() for load in training.loads]
            until = nvidia.now() + random.Random(KILLS * series + number).uniform(*KILLED_AFTER)
            client.begin()
            while nvidia.now() < until:
                pass
            of_daemon.append(time.monotonic_ns())
            os.kill(agent, signal.SIGKILL)
            client.end()
            took.append(training.steps_after(of_daemon[-1] / 1e9, before, "agent killed"))
        on.drop(daemon)
        with open(recording, encoding="utf-8") as file:
            midst += killed_in_midst(file, of_daemon)
        killed += of_daemon
    on.figure("gang: agent killed, until two steps of all ranks, median / longest", nvidia.spread(took), "ms")
    on.figure("gang: agents killed / of these between the order to suspend and the last report / after one report",
              [len(killed), midst.total(), midst["half"]], "")
    on.require("agent killed, until all ranks run", 1e3 * max(0, max(took) - 2 * step), 1e3 * faults.AGAIN, unit="ms",
               fatal=max(took) > faults.AGAIN + 2 * step + nvidia.SLACK)


def killed_in_midst(lines, killed):
    """Counts these times by what was reported of the batches that were handed over at most KILLED_AFTER before: nothing,
    or some (half). Of none of them everything was."""
    base, handed, done = 0, {}, set()
    for line in lines:
        if not line.endswith("\n"):
            break
        entry = json.loads(line)
        if entry["is"] == "recording":
            base = entry["clock_ns"]
        elif entry["is"] == "batch" and entry["kind"] == "suspend" and "error" not in entry:
            handed[entry["id"]] = base + entry["t"]
        elif entry["is"] == "done" and "started" in entry and not entry.get("errno"):
            done.add(entry["id"])
    midst = collections.Counter()
    for at in killed:
        reported = [id_ in done for id_, begin in handed.items() if 0 <= at - begin < 1e9 * KILLED_AFTER[1]]
        if not all(reported):
            midst["half" if any(reported) else "nothing"] += 1
    return midst


def rank_stopped(on, training, step):
    """A rank is stopped while the gang is held, and continued after the next hold."""
    daemon = nvidia.Daemon(on, roles=GANGS_ON)
    daemon.wait_attached(*training.loads)
    client = daemon.connect()
    client.begin()
    before = training.held()
    stopped = training.loads[1].pid
    os.kill(stopped, signal.SIGSTOP)
    try:
        since = nvidia.now()
        client.end()
        faults.within(on, "rank stopped while held, until nothing is held", wait_running(daemon, training.loads, since),
                      faults.AGAIN)
        client.begin()
        since = nvidia.now()
        nvidia.wait_until(lambda: set(states(daemon, training.pids)) == {"suspended"}, nvidia.PATIENCE,
                          "hold of a gang with a stopped rank")
        on.figure("gang: rank stopped, from a begin to the hold of all ranks", [1e3 * (nvidia.now() - since)], "ms")
        client.end()
        wait_running(daemon, training.loads, nvidia.now())
    finally:
        since = nvidia.now()
        os.kill(stopped, signal.SIGCONT)
    took = training.steps_after(since, before, "rank continued")
    # The first of the two steps had begun: it took between nothing and a whole step.
    faults.within(on, "rank continued, until all ranks run", max(0, took - step), faults.AGAIN)
    on.drop(daemon)


def rank_killed(on, training):
    """A rank is killed while the gang is held."""
    daemon = nvidia.Daemon(on, roles=GANGS_ON)
    daemon.wait_attached(*training.loads)
    daemon.connect().begin()
    training.held()
    killed, rest = training.loads[1], training.loads[0]
    since = nvidia.now()
    killed.process.kill()
    took = wait_running(daemon, [rest], since)
    faults.within(on, "rank killed while held, until the others are not held", took, faults.AGAIN)
    on.note(f"the other rank then {'runs on' if rest.process.poll() is None else 'ended by itself'}")
    on.drop(daemon, *training.loads)


# Holds by hand.


def hold_one_rank(on, programs):
    """The other rank waits for the held one, and both go on afterwards."""
    training = start_training(on, programs)
    training.wait_moving()
    held, seen = training.loads[1], []

    def look():
        seen.append((nvidia.now(), [load.counts() for load in training.loads]))
        if on.programs is None:
            done = subprocess.run(["nvidia-smi", "--query-gpu=utilization.gpu,power.draw", "--format=csv,noheader"],
                                  capture_output=True, text=True, check=False)
            on.note(f"{'begin' if len(seen) == 1 else 'end'} of a hold of the second rank: the GPUs show "
                    f"{'; '.join(done.stdout.splitlines())}")

    nvidia.hold_once(on, held, 2 if on.quick else ALONE_HELD, look)
    (_, begin), (ends, end) = seen
    on.require("steps of the rank that waits for a held one", sum(end[0]) - sum(begin[0]), 1)
    took = training.steps_after(ends, end, "hold of one rank")
    on.figure(f"{on.part}: hold of one rank, at most, from sluice resume to two steps of all ranks", [1e3 * took], "ms")
    on.drop(*training.loads)


def hold_beyond_timeout(on, programs, ranks):
    """PyTorch gives up a collective although it would end after the hold. Notes which rank ends when."""
    training = start_training(on, programs, more={"COLLECTIVE_TIMEOUT": str(COLLECTIVE_TIMEOUT)})
    training.wait_moving()
    ends = {}

    def all_ended():
        for rank, load in enumerate(training.loads):
            if rank not in ends and load.process.poll() is not None:
                ends[rank] = nvidia.now(), load.process.returncode
        return len(ends) == RANKS

    def wait_ended(limit):
        with contextlib.suppress(nvidia.Failure):
            nvidia.wait_until(all_ended, limit, "end of all ranks")

    commands = [on.suspend(training.loads[rank].pid) for rank in ranks]
    for command in commands:
        nvidia.wait_suspended(command)
    begun = nvidia.now()
    nvidia.wait_until(lambda: all(load.still_since() for load in training.loads), nvidia.PATIENCE, "stop of all ranks")
    before = [load.counts() for load in training.loads]
    wait_ended(HELD_BEYOND)
    on.require("steps of ranks during a hold", sum(sum(load.counts()) for load in training.loads) - sum(map(sum, before)))
    resumed = nvidia.now()
    for command in commands:
        command.terminate()
    for command in commands:
        nvidia.wait_until(lambda command=command: command.poll() is not None, nvidia.PATIENCE, "end of sluice suspend")
    wait_ended(nvidia.PATIENCE)
    for rank, load in enumerate(training.loads):
        at, code = ends.get(rank, (None, None))
        when = "runs on" if at is None else f"ended with code {code} {at - begun:.1f} s after the begin of the hold"
        text = pathlib.Path(load.log.name).read_text(encoding="utf-8", errors="replace")
        given_up = re.search(r"Watchdog caught collective operation timeout.* ran for (\d+) milliseconds", text)
        on.note(f"{'all ranks' if len(ranks) == RANKS else 'only the second rank'} held for {resumed - begun:.1f} s, "
                f"collectives may take {COLLECTIVE_TIMEOUT} s: rank {rank} {when}"
                + (f"; its watchdog gave up after {given_up[1]} ms" if given_up else ""))
    on.drop(*training.loads)


def can_run(on):
    if len(on.gpus) >= RANKS and on.torch:
        return True
    on.note(f"{len(on.gpus)} GPU: not tested" if len(on.gpus) < RANKS else "without PyTorch: not tested")
    on.skipped = True
    return False


def attempt(on, step, *arguments):
    """A step that fails does not end the part."""
    kept = [*on.loads, *on.servers, *on.daemons]
    try:
        step(on, *arguments)
    except nvidia.Failure as error:
        on.problem(f"{step.__name__.replace('_', ' ')}: {error}")
        for each in [each for each in (*on.daemons, *on.servers, *on.loads) if each not in kept]:
            with contextlib.suppress(nvidia.Failure):
                on.drop(each)


def gang(on):
    """a training over two GPUs is held and resumed as one"""
    if not can_run(on):
        return
    programs = on.programs or Programs(on)
    attempt(on, compare_training, programs)
    training = start_training(on, programs)
    training.wait_moving()
    attempt(on, serve_beside, programs, training)
    training.go_on()  # If that failed during a pause.
    training.wait_moving()
    before = training.progress()
    time.sleep(2)
    step = 1 / serving.rate(before, training.progress())
    for fault, *more in ((agents_killed, step), (rank_stopped, step), (rank_killed,)):
        attempt(on, fault, training, *more)


def gang_held(on):
    """one rank of a training is held for long, and all are held for longer than a collective may take"""
    if not can_run(on):
        return
    programs = on.programs or Programs(on)
    attempt(on, hold_one_rank, programs)
    if on.quick:  # PyTorch takes a minute to end a rank.
        on.note("quick: no hold is longer than a collective may take")
    elif on.programs is None:  # The simulated device has no collectives that time out.
        for ranks in ((1,), (0, 1)):
            attempt(on, hold_beyond_timeout, programs, ranks)


def gang_serving(on):
    """a server over two GPUs frees both, and writes into memory of a held program on another GPU go on"""
    if not can_run(on):
        return
    attempt(on, serve_on_all, on.programs or Programs(on))
    if on.programs is None:  # The simulated device has no memory that two GPUs share.
        attempt(on, write_to_held)
