#!/usr/bin/env python3
"""Compares the simulated device with the real driver by random sequences of calls.

usage: differential.py [--device 942|1100] [--qemu] [--seed N] [--sequences N] [--build DIR]

Both run the same script of tests/conformance/kfd_calls: the real driver in User Mode Linux or QEMU
(tests/driver/run.sh), the simulated device with a profile of the same shape. The script prints how
often each call succeeded and failed, and with the device's default seed and 5,000 sequences asserts
that each debug and queue call did both at least 100 times. If a result differs, it prints the shortest sequence
that it finds with a difference, and exits with 1.
"""
import argparse
import collections
import pathlib
import random
import subprocess
import sys

TOP = pathlib.Path(__file__).resolve().parents[2]
SUCCESS_SHARE = 0.5  # Of all calls.
# By device. With this seed and at least as many sequences, each of these calls succeeds and fails so often.
FIXED_SEEDS = {"942": 1, "1100": 2}
ENOUGH_SEQUENCES = 5000
ENOUGH_CALLS = 100
OPERATIONS = ["enable", "disable", "send", "exceptions", "override", "launch", "suspend", "resume", "watch", "unwatch",
              "flags", "query", "info", "snapshot", "devices"]
QUEUE_CALLS = ["queue", "update", "destroy", "cu_mask", "wave_state", "gws"]


class Target:
    """A process that makes calls, as far as the generator has to know it."""

    def __init__(self, name):
        self.name = name
        self.opened = self.alive = False
        self.acquired = set()
        self.runtime = False
        self.queues = {}  # By id: the GPU.
        self.buffers = []
        self.events = set()
        self.debugger = None
        self.masked = False  # Whether a queue has a CU mask or GWS.
        self.certain = False  # Whether the debugger can suspend queues.

    def free_id(self):
        return next(i for i in range(1024) if i not in self.queues)


class Generator:
    """Makes sequences that a program could make: most calls succeed, and all kinds of errors occur."""

    def __init__(self, seed):
        self.random = random.Random(seed)

    def chance(self, percent):
        return self.random.random() * 100 < percent

    def pick(self, *choices):
        return self.random.choice(choices)

    def sequence(self, name):
        self.lines = [f"case {name}"]
        self.targets = {each: Target(each) for each in "abd"}
        self.traced = set()
        self.debugger_open = False
        self.start(self.targets["a"])
        calls = [
            (10, self.create), (6, self.destroy), (4, self.update), (3, self.memory), (3, self.event),
            (3, self.settings), (3, self.attach), (14, self.suspend), (12, self.resume), (8, self.snapshot),
            (3, self.query), (2, self.devices), (2, self.info), (2, self.exceptions), (2, self.override),
            (2, self.launch), (3, self.watch), (2, self.flags), (2, self.send), (2, self.unknown), (1, self.detach),
            (2, self.cu_mask), (2, self.wave_state), (2, self.gws), (2, self.evict), (1, self.second), (1, self.runtime),
            (1, self.thread), (1, self.end), (2, self.listed),
        ]
        weights = [weight for weight, _ in calls]
        while len(self.lines) < 26:
            if not self.living():
                unused = [each for each in self.targets.values() if not each.opened]
                if not unused:
                    break
                self.start(unused[0])
            self.random.choices([call for _, call in calls], weights)[0]()
        return self.lines

    def add(self, line):
        self.lines.append(line)

    def living(self):
        return [each for each in self.targets.values() if each.alive]

    def some(self):
        living = self.living()
        return self.random.choice(living) if living else None

    def start(self, target):
        name = target.name
        target.alive = target.opened = True
        self.add(f"{name} open")
        for gpu in (0, 1):
            self.add(f"{name} acquire gpu={gpu}")
            target.acquired.add(gpu)
        if self.chance(85):
            self.add(f"{name} runtime {self.pick(1, 1, 1, 3)}")
            target.runtime = True
        for _ in range(self.random.randint(0, 3)):
            self.create_good(target)
        if self.chance(85):
            self.attach_to(target)

    def second(self):
        target = self.targets["b"]
        if not target.opened:
            self.start(target)

    def attach_to(self, target):
        if not self.debugger_open:
            self.add("c open")
            self.debugger_open = True
        if target.name not in self.traced and self.chance(97):
            self.add(f"c seize @{target.name}")
            self.traced.add(target.name)
        mask = "" if self.chance(80) else f" mask={self.random.getrandbits(50):#x}"
        self.add(f"c enable @{target.name}{mask}")
        if target.name in self.traced:
            if not target.debugger:
                # gfx11 refuses to debug beside CU masks.
                target.certain = target.runtime and not target.masked
            target.debugger = "c"
        if self.chance(80):
            self.add(f"c snapshot @{target.name}")

    def attach(self):
        target = self.some()
        if target is None:
            return
        if target.debugger and self.chance(60):
            self.add(f"c disable @{target.name}")
            self.ended(target)
        else:
            self.attach_to(target)

    def detach(self):
        target = self.some()
        if target and target.name in self.traced:
            self.add(f"c detach @{target.name}")
            self.traced.discard(target.name)
            target.certain = target.certain and bool(target.debugger)

    def create_good(self, target):
        gpu = self.random.randint(0, 1)
        kind = self.random.choices(["aql", "pm4", "sdma"], [8, 2, 1])[0]
        self.add(f"{target.name} queue gpu={gpu} type={kind}" + self.pick("", "", f" priority={self.random.randint(0, 15)}"))
        target.queues[target.free_id()] = gpu

    def create(self):
        target = self.some()
        if target is None:
            return
        if self.chance(75):
            queue = target.free_id()
            self.create_good(target)
            if target.debugger and self.chance(40):  # It is new, until a snapshot clears that.
                self.add(f"c info @{target.name} code=31 source={queue}")
            return
        self.add(f"{target.name} queue " + self.pick(
            "percentage=101", "priority=16", "ring_size=3000", "gpu=7", "type=9", "ring=bad", "read=0", "write=bad",
            "eop=bad", "eop_size=100", "save=bad", "save_more=-4096", "stack_more=4096", "ring_size=8192",
            "ring=0xffff800000000000", "type=engine engine=99"))

    def queue_of(self, target):
        """An id, mostly of a queue that exists."""
        if target.queues and self.chance(85):
            return self.random.choice(sorted(target.queues))
        return self.pick(0, 1, 2, 5, 1023, 1024, 0xffffffff)

    def destroy(self):
        target = self.some()
        if target is None:
            return
        queue = self.queue_of(target)
        name = target.name
        if target.debugger and target.certain and queue in target.queues and self.chance(40):
            # It is certain that the call waits; what it and the debugger get does not depend on who is first.
            self.add(f"c snapshot @{name}")
            self.add(f"c suspend @{name} {queue}")
            self.add(f"{name} & destroy {queue}")
            if self.chance(20):
                self.add(f"{name} pending")
            self.add(f"c resume @{name} {queue}" if self.chance(50) else f"c disable @{name}")
            if "disable" in self.lines[-1]:
                self.ended(target)
            self.add(f"{name} join")
        else:
            if target.debugger:  # Nothing may wait here.
                self.add(f"c resume @{name} all")
                if not target.certain:
                    self.add(f"c disable @{name}")
                    self.ended(target)
            self.add(f"{name} destroy {queue}")
        target.queues.pop(queue, None)

    @staticmethod
    def ended(target):
        target.debugger = None
        target.certain = False

    def update(self):
        target = self.some()
        if target is None:
            return
        self.add(f"{target.name} update {self.queue_of(target)} " + self.pick(
            "", "", "priority=3", "percentage=0", "percentage=50", "percentage=200", "priority=16", "ring=0",
            "ring=bad", "ring_size=1000", "ring_size=0", "gpu=1"))

    def memory(self):
        target = self.some()
        if target is None:
            return
        name = target.name
        if not target.buffers or self.chance(40):
            buffer = f"m{len(target.buffers)}"
            # No pages of the process: when it ends, the driver evicts and restores its queues at a time of its own.
            self.add(f"{name} alloc {buffer} kind={self.pick('gtt', 'vram')} size={self.pick(4096, 8192, 65536)}")
            target.buffers.append(buffer)
            return
        buffer = self.random.choice(target.buffers)
        gpus = self.pick("0", "1", "0,1", "7")
        what = self.pick("map", "map", "unmap", "free")
        self.add(f"{name} {what} {buffer}" + ("" if what == "free" else f" gpu={gpus}"))

    def event(self):
        target = self.some()
        if target is None:
            return
        name = target.name
        if not target.events or self.chance(40):
            self.add(f"{name} event type={self.pick(0, 0, 0, 3, 5, 8)} auto_reset={self.pick(0, 1)}")
            target.events.add(len(target.events) + 1)
            return
        event = self.random.choice(sorted(target.events) + [77, 0x40000000])
        self.add(f"{name} " + self.pick(f"set_event {event}", f"reset_event {event}", f"wait_events {event}",
                                        f"wait_events {event},1 all=1", f"destroy_event {event}"))

    def settings(self):
        target = self.some()
        if target is None:
            return
        self.add(f"{target.name} " + self.pick(
            "version", "apertures", "old_apertures", "clock", "policy", "policy default=2", "scratch", "scratch gpu=7",
            "trap_handler", "tiles", "available", "xnack -1", "raw 0x55", "raw 0x0d", "acquire gpu=0",
            "acquire fd=another", "acquire fd=null"))

    def cu_mask(self):
        target = self.some()
        if target:
            target.masked = True
            self.add(f"{target.name} cu_mask {self.queue_of(target)} " +
                     self.pick("", "word=3", "word=1", "bits=0", "bits=33", "mask=bad", "bits=64"))

    def wave_state(self):
        target = self.some()
        if target:
            self.add(f"{target.name} wave_state {self.queue_of(target)}")

    def gws(self):
        target = self.some()
        if target:
            target.masked = True
            self.add(f"{target.name} gws {self.queue_of(target)} n={self.pick(0, 64)}")

    def evict(self):
        target = self.some()
        if target:
            self.add(f"{target.name} criu {self.pick(0, 2, 2, 9)}")

    def ids(self, target):
        return ",".join(str(self.queue_of(target)) for _ in range(self.random.randint(1, 4)))

    def debugged(self):
        """A target that the debugger may act on; seldom another one."""
        held = [each for each in self.living() if each.debugger]
        if held and self.chance(93):
            return self.random.choice(held)
        return self.some() if self.debugger_open else None

    def suspend(self):
        target = self.debugged()
        if target is None:
            return
        ids = self.ids(target)
        more = self.pick("", "", "", "", " mask=0x40000000", " grace=10", " array=bad")
        self.add(f"c suspend @{target.name} {ids}{more}")
        if self.chance(15):  # Only a queue that is not mapped tells.
            self.add(f"{target.name} wave_state {ids.split(',')[0]}")

    def resume(self):
        target = self.debugged()
        if target is None:
            return
        if self.chance(30):
            self.add(f"c resume @{target.name} all")
            return
        self.add(f"c resume @{target.name} {self.ids(target)}" + ("" if self.chance(90) else " array=bad"))

    def trap(self, text):
        target = self.debugged()
        if target:
            self.add(f"c {text.format(name='@' + target.name)}")

    def snapshot(self):
        self.trap("snapshot {name}" + self.pick("", "", "", " n=0", " n=1", " clear=0", " entry_size=0", " entry_size=8", " array=bad"))

    def query(self):
        self.trap("query {name}" + self.pick("", "", " clear=0"))

    def devices(self):
        self.trap("devices {name}" + self.pick("", "", " n=1", " n=0", " array=0", " array=bad", " entry_size=16"))

    def info(self):
        self.trap("info {name} code=" + self.pick("48", "48 size=0", "31 source=0", "31 source=1 clear=1", "31 source=9",
                                                  "32 gpu=0", "36 gpu=0", "36 gpu=7", "50", "0"))

    def exceptions(self):
        self.trap("exceptions {name} mask=" + self.pick("0", "0xc0000000", "0xffffffffffffffff"))

    def override(self):
        self.trap("override {name} " + self.pick("", "mode=1", "mode=2", "enable=1 request=1", "enable=0x80 request=0x80",
                                                 "enable=0x200 request=0x200", "enable=0x40000000 request=0x40000000"))

    def launch(self):
        self.trap("launch {name} mode=" + self.pick("0", "1", "2", "3", "9"))

    def watch(self):
        gpu = self.pick("", " gpu=1", " gpu=7", " mode=2")
        if self.chance(60):
            self.trap("watch {name}" + gpu)
        if self.chance(60):
            self.trap("unwatch {name} id=" + self.pick("0", "0", "1", "3") + (gpu if "gpu" in gpu else ""))

    def flags(self):
        self.trap("flags {name} flags=" + self.pick("0", "1", "2", "0"))

    def send(self):
        self.trap("send {name} mask=" + self.pick("0", "0", "0x100000000 gpu=7"))

    def unknown(self):
        self.trap("op {name} " + self.pick("15", "99"))

    def runtime(self):
        target = self.some()
        # With a session the call waits for the debugger: the recorded cases do that.
        if target and not target.debugger:
            self.add(f"{target.name} runtime {self.pick(0, 1, 3)}")
            target.runtime = False  # At least not for sure.

    def thread(self):
        target = self.debugged()
        if target:
            self.add(f"c thread {self.pick('snapshot', 'query', 'devices')} @{target.name}")

    def listed(self):
        target = self.some()
        if target:
            self.add(f"{self.pick('c', target.name) if self.debugger_open else target.name} listed @{target.name}")

    def end(self):
        target = self.some()
        if target is None:
            return
        name = target.name
        if self.chance(40):
            self.add(f"{name} exec")
            self.add(f"{name} gone @{name}")  # The driver removes the old process a moment later.
            self.targets[name] = Target(name)
            self.targets[name].opened = self.targets[name].alive = True
            self.traced.discard(name)
            self.add(f"{name} open")
            self.add(f"{name} queue")
            if self.debugger_open:
                self.add(f"c suspend @{name} 0")
            return
        self.add(f"kill {name}")
        if name in self.traced:
            self.add(f"c reap @{name}")
            self.traced.discard(name)
        if self.debugger_open:
            self.add(f"c gone @{name}")
            self.add(f"c suspend @{name} 0")
            self.add(f"c disable @{name}")
        target.alive = False


def run(command, script):
    done = subprocess.run(command + [str(script)], cwd=TOP, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"differential.py: {' '.join(command)} ended with code {done.returncode}")
    # The simulated device announces itself first.
    return [line for line in done.stdout.splitlines() if line.startswith("case ") or " -> " in line]


def cases(lines):
    out = []
    for line in lines:
        if line.startswith("case "):
            out.append([])
        out[-1].append(line)
    return out


class Both:
    def __init__(self, device, qemu, build, folder):
        program = f"{build}/bin/kfd_calls"
        machine = ["--qemu"] if qemu else []
        self.real = ["tests/driver/run.sh", *machine, "--device", f"{device},{device}", "--set", "cus=1", program]
        self.simulated = ["env", f"SLUICE_SIM={build}/bin/sluice-sim", "examples/with_simulated_gpu.sh", "--profile",
                          f"tests/conformance/gfx{device}.toml", program]
        self.script = folder / "sequences.calls"

    def results(self, sequences):
        self.script.write_text("".join("\n".join(each) + "\n" for each in sequences))
        real, simulated = cases(run(self.real, self.script)), cases(run(self.simulated, self.script))
        if len(real) != len(sequences) or len(simulated) != len(sequences):
            sys.exit("differential.py: not every sequence was run")
        return list(zip(real, simulated))

    def shrink(self, sequence):
        """The sequence without lines that its difference does not need."""
        while True:
            # Without an address space on every GPU, a suspend would crash the driver (adapters/kfd/kernel).
            shorter = [sequence[:i] + sequence[i + 1:] for i in range(1, len(sequence)) if " acquire gpu=" not in sequence[i]]
            for candidate, (real, simulated) in zip(shorter, self.results(shorter)):
                if real != simulated:
                    sequence = candidate
                    break
            else:
                return sequence


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=FIXED_SEEDS, default="942")
    parser.add_argument("--qemu", action="store_true")
    parser.add_argument("--seed", type=int, help="default: one of the device")
    parser.add_argument("--sequences", type=int, default=500)
    parser.add_argument("--build", default="build/release")
    asked = parser.parse_args()
    fixed = asked.seed in (None, FIXED_SEEDS[asked.device])
    asked.seed = FIXED_SEEDS[asked.device] if fixed else asked.seed

    generator = Generator(asked.seed)
    sequences = []
    while len(sequences) < asked.sequences:
        made = generator.sequence(f"seed{asked.seed}-{len(sequences)}")
        if len(made) > 20:  # With its name.
            sequences.append(made)
    folder = TOP / asked.build / f"differential_{asked.device}"
    folder.mkdir(parents=True, exist_ok=True)
    both = Both(asked.device, asked.qemu, asked.build, folder)

    counts = collections.defaultdict(lambda: [0, 0])  # Successes and failures, by call.
    in_thread = {}  # By process: the call that its other thread makes.
    different = []
    for sequence, (real, simulated) in zip(sequences, both.results(sequences)):
        if real != simulated:
            different.append((sequence, real, simulated))
        for line in real[1:]:
            call, result = line.split(" -> ")
            if result in ("no answer", "never returned", "no end"):
                sys.exit(f"differential.py: {sequence[0]}: {line}")
            words = call.removeprefix("kill ").split()
            name = next(word for word in words[1:] + ["kill"] if word not in ("&", "thread"))
            if name == "op":
                name = f"op {words[3]}"
            # A call in another thread has its result at `join`.
            if words[1:2] == ["&"]:
                in_thread[words[0]] = name
            elif name == "join":
                counts[in_thread[words[0]]][result[0].isupper()] += 1
            elif name not in ("pending", "interrupt"):
                counts[name][result[0].isupper()] += 1
    total, good = sum(map(sum, counts.values())), sum(each[0] for each in counts.values())
    for name, (succeeded, failed) in sorted(counts.items()):
        print(f"{name:14} {succeeded:7} succeeded {failed:7} failed")
    print(f"{len(sequences)} sequences, {total} calls, {100 * good / total:.0f} % succeeded; "
          f"seed {asked.seed}, gfx{asked.device}, real driver on faked hardware; {len(different)} sequences differ")
    if fixed and good < SUCCESS_SHARE * total:
        sys.exit("differential.py: too few calls succeeded")
    if fixed and asked.sequences >= ENOUGH_SEQUENCES:
        rare = [name for name in OPERATIONS + QUEUE_CALLS if min(counts[name]) < ENOUGH_CALLS]
        if rare:
            sys.exit(f"differential.py: too few successes or failures of {', '.join(rare)}")
    for sequence, real, simulated in different[:20]:
        one, other = next((one, other) for one, other in zip(real, simulated) if one != other)
        print(f"{sequence[0]}: {one}; simulated: {other.rsplit(' -> ', 1)[-1]}")
    if different:
        sequence, real, simulated = different[0]
        shortest = both.shrink(sequence)
        [(real, simulated)] = both.results([shortest])
        print("\nThe first difference, in its shortest form:")
        for one, other in zip(real, simulated):
            print(f"  {one}" if one == other else f"  {one}\n    simulated: {other.rsplit(' -> ', 1)[-1]}")
        sys.exit(1)


if __name__ == "__main__":
    main()
