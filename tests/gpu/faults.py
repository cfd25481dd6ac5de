"""The parts `faults` and `faults-long` of nvidia.py: held programs run again when processes of sluice, or the held program,
fail, and after many and long holds."""

import contextlib
import itertools
import os
import pathlib
import re
import signal
import time

import lossless
import nvidia

# In s, what is documented: adapters/agent/README.md and tests/faults/README.md.
LEASE, AGAIN, NEXT_AGENT = 0.5, 0.2, 2
RESCUE = 1  # From the kill of all that is left until `sluice rescue` has resumed everything.
MEMORY_FREE = 1
NEW_CHANNELS = 0.5  # A held program is looked at every 300 ms.
# From when a survivor would have acted.
NO_SURVIVOR = LEASE + 1
PARTIES, FAILURES = ("agent", "guardian", "daemon"), ("", "killed", "stopped")
COMBINATIONS = [each for each in itertools.product(FAILURES, repeat=3) if any(each)]
QUICK = [each for each in COMBINATIONS if len([state for state in each if state]) == 1] + [
    ("killed", "killed", ""), ("killed", "killed", "killed"), ("stopped", "stopped", ""), ("stopped", "stopped", "stopped")]
ABOUT_GPU = ("GPU at PCI", "GPU Board Serial Number")  # Lines before the first Xid.
XID = re.compile(r"NVRM: Xid \([^)]*\): (\d+), pid=['\"]?([^,'\" ]*)")
MEMORY_MIB = 2048  # Of the program that fails; it is free when half of it is.
SETTLE = 1  # How long after a crash its lines in the kernel's log may come.
ALONE, WHILE_HELD, UNDER_SUSPENDS = "without sluice", "while held", "under 100 suspends per second"
LONGEST_CASE = 10

QUICK_CYCLES, CYCLES = 500, 2000
WARM_UP = 2500  # Requests until the daemon's journal, of 16,384 entries, is full.
QUICK_HOLD, HOLD = 40, 300
CYCLE = (0.004, 0.006)
GROWTH_KIB = 1024


def expected(agent, guardian, daemon):
    """The bound in seconds until held work runs again, and whether a third party has to act first. Each argument is
    one of FAILURES."""
    if not guardian:  # It resumes what a dead agent held, and kills one that is silent.
        return (LEASE + AGAIN if (agent or daemon) == "stopped" else AGAIN), False
    if not agent:  # It resumes everything when it loses its guardian or the daemon.
        return (AGAIN if "killed" in (guardian, daemon) else LEASE + AGAIN), False
    if not daemon and guardian == "killed":  # Its next agent resumes. It kills an agent that is silent.
        return (NEXT_AGENT + (LEASE if agent == "stopped" else 0)), False
    return (RESCUE if daemon else NEXT_AGENT), True


def title(combination):
    return ", ".join(f"{party} {state}" for party, state in zip(PARTIES, combination) if state)


def alive(pids):
    return [pid for pid in pids if pid and nvidia.ppid_and_name(pid)]


def fail(failing):
    """Stops and kills processes at the same moment, as far as they can notice. failing: pairs of pid and state."""
    for pid, _ in failing:
        os.kill(pid, signal.SIGSTOP)
    for pid, state in failing:
        if state == "killed":
            os.kill(pid, signal.SIGKILL)


class Unit:
    """A daemon that holds programs, with its agent and guardian."""

    def __init__(self, on, *loads):
        self.on, self.loads = on, loads
        self.daemon = nvidia.Daemon(on)
        self.daemon.wait_attached(*loads)
        self.client = self.daemon.connect()
        self.client.begin()
        self.busy = True
        self.held = [nvidia.wait_held(load) for load in loads]
        self.agent = self.daemon.agent()
        if self.agent is None:
            raise nvidia.Failure("the owner lock names no running agent")
        self.guardian = self.daemon.guardian(self.agent)
        if self.guardian is None:
            raise nvidia.Failure(f"agent {self.agent} has no child 'sluice-guardian'")
        self.pids = (self.agent, self.guardian, self.daemon.process.pid)

    def resumed(self, name, since, limit):
        """Waits until all loads have run since the hold, and records how long that took."""
        took = max(load.moved_after(since, held, nvidia.PATIENCE, f"{name}: progress of {load.name}")
                   for load, held in zip(self.loads, self.held))
        within(self.on, f"{name}, until progress", took, limit)

    def release(self):
        """Ends the request."""
        if self.busy:
            self.client.end()
        self.busy = False

    def end(self):
        """Ends the request and the daemon. An agent or guardian that is stopped is killed first: the daemon waits for it."""
        self.release()
        for pid in self.pids[:2]:
            with contextlib.suppress(OSError):
                if pathlib.Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()[0] == "T":
                    os.kill(pid, signal.SIGKILL)
        self.on.drop(self.daemon)
        for load in self.loads:
            if load.process.poll() is None:
                load.wait_moving(load.streams, nvidia.PATIENCE)


def within(on, name, took, limit):
    """Records a documented time. The part fails if it is longer by more than the waits for a processor can be."""
    on.figure(f"{on.part}: {name}", [1e3 * took], "ms")
    on.require(name, 1e3 * took, 1e3 * limit, unit="ms", fatal=took > limit + nvidia.SLACK)


def of_sluice(on, combination, loads):
    """Processes of sluice fail while they hold programs."""
    name = title(combination)
    limit, by_third_party = expected(*combination)
    on.say(f"{name}: expected within {limit:g} s" + (" after a third party acts" if by_third_party else ""))
    unit = Unit(on, *loads)
    since = nvidia.now()
    fail([(pid, state) for pid, state in zip(unit.pids, combination) if state])
    if by_third_party:
        while nvidia.now() < since + NO_SURVIVOR and [load.counts() for load in loads] == unit.held:
            time.sleep(0.001)
        if [load.counts() for load in loads] != unit.held:
            on.note(f"{name}: the programs ran again after {nvidia.now() - since:.2f} s without a third party")
        since = nvidia.now()
        if combination[2]:
            name += ", then all killed and sluice rescue"
            fail([(pid, "killed") for pid in alive(unit.pids)])
            done = unit.daemon.rescue()
            if done.returncode != 0:
                raise nvidia.Failure(f"sluice rescue ended with code {done.returncode}: {nvidia.last_line(done.stderr)}")
        else:
            name += ", then the guardian killed"
            fail([(pid, "killed") for pid in alive([unit.guardian])])
    unit.resumed(name, since, limit)
    unit.end()


# Faults of a held program. Each one has its loads: the program, and a neighbour that is held with it.


def wait_freed(used, before, name):
    nvidia.wait_until(lambda: used() - before < MEMORY_MIB << 19, nvidia.PATIENCE, f"{name}: release of the memory")


def gone(on, load, used, before, since, name):
    """Waits for the end of a program and its memory, and records how long that took."""
    wait_freed(used, before, name)
    within(on, f"{name}, until its memory is free", nvidia.now() - since, MEMORY_FREE)
    nvidia.wait_until(lambda: load.process.poll() is not None, nvidia.PATIENCE, f"{name}: end of the program")


def killed(on, load, neighbour, used, before):
    unit = Unit(on, load, neighbour)
    since = nvidia.now()
    load.process.kill()
    gone(on, load, used, before, since, "held program killed")
    unit.end()


def exits(on, load, neighbour, used, before):
    """The runtime may wait for the GPU at an exit, so the time counts from the end of the hold if that came first."""
    unit = Unit(on, load, neighbour)
    since = nvidia.now()
    load.order(nvidia.EXIT_WANTED)
    with contextlib.suppress(nvidia.Failure):
        nvidia.wait_until(lambda: load.process.poll() is not None, MEMORY_FREE, "end of the held program")
    name = "held program exits"
    if load.process.poll() is None:
        name += ", after the request"
        on.note(f"a held program that exits still waits after {MEMORY_FREE} s")
        since = nvidia.now()
        unit.release()
    gone(on, load, used, before, since, name)
    unit.end()


def executes(on, load, neighbour, used, before):
    unit = Unit(on, load, neighbour)
    generation = load.generation()
    os.kill(load.pid, signal.SIGUSR1)
    nvidia.wait_until(lambda: load.generation() > generation, nvidia.PATIENCE, "start of the executed program")
    unit.release()
    unit.resumed("held program executes another, after the request", nvidia.now(), nvidia.PATIENCE)
    unit.end()


def makes_contexts(on, load, neighbour, used, before):
    """The kernels of a context that a held program makes are held, too."""
    unit = Unit(on, load, neighbour)
    for number in (1, 2):
        counts, ran = load.counts(), None
        name = f"context {number} made while held, until its kernels are held"
        load.order(nvidia.CONTEXTS_WANTED, number)
        until = nvidia.now() + 5
        while nvidia.now() < until:
            load.check_alive()
            if ran is None and load.counts() != counts:
                ran = nvidia.now()
            if load.word(nvidia.CONTEXTS) == number and load.still_since(2 * NEW_CHANNELS):
                break
            time.sleep(0.0005)
        if load.word(nvidia.CONTEXTS) < number and ran is None:
            on.note(f"context {number} of the held program is not complete during the hold, so its kernels are not tested")
            on.require(name, None, 1e3 * NEW_CHANNELS, unit="ms", fatal=False)
            continue
        within(on, name, max(0, load.changed_at - ran) if ran else 0, NEW_CHANNELS)
    unit.held = [each.counts() for each in unit.loads]
    unit.release()
    unit.resumed("contexts made while held, after the request", nvidia.now(), AGAIN)
    load.wait_moving(load.streams + load.word(nvidia.CONTEXTS), nvidia.PATIENCE)
    unit.end()


def xids(lines):
    """Number and process of each error in lines of the kernel's log."""
    return [found.groups() for found in map(XID.search, lines) if found]


def crash(on, load, log):
    """Waits until a program that crashes has ended. Returns the lines that this added to the kernel's log."""
    nvidia.wait_until(lambda: load.process.poll() is not None, nvidia.PATIENCE, "end of the program that crashes")
    if load.process.returncode != 1:
        raise nvidia.Failure(f"the program that crashes ended with code {load.process.returncode}; expected 1")
    seen, since = [], nvidia.now()
    while nvidia.now() < since + SETTLE:
        time.sleep(0.1)
        added = on.driver_lines(log)
        if len(added) > len(seen):
            seen, since = added, nvidia.now()
    return seen


def crashes(on, load, neighbour, used, before, how, reference):
    """A program writes to an illegal address. The kernel's log has the same errors as without sluice, and they name no
    other process. reference: gets what a crash without sluice logs."""
    log = nvidia.kernel_log()
    unit = None if how == ALONE else Unit(on, load, neighbour)
    marks = None
    try:
        if how == UNDER_SUSPENDS:
            unit.release()
            marks = lossless.Marks(unit.client, 1, CYCLE, CYCLE)
            nvidia.wait_until(lambda: marks.made >= 20, nvidia.PATIENCE, "20 requests of a client")
        load.order(nvidia.CRASH_WANTED)
        nvidia.wait_until(lambda: load.process.poll() is not None or load.word(nvidia.CRASH_WANTED) == 0, nvidia.PATIENCE,
                          "launch of what crashes")
        if how == WHILE_HELD:
            unit.release()
        lines = crash(on, load, log)
    finally:
        if marks:
            marks.stop()
    errors = xids(lines)
    on.figure(f"faults: crash {how}, lines 'NVRM: Xid'", [len(errors)], "")
    if how == ALONE:
        reference.update(count=len(errors), named=all(pid == str(load.pid) for _, pid in errors))
        if not errors or not reference["named"]:
            on.note("the lines 'NVRM: Xid' of a crash without sluice do not name its process: only their number counts")
    elif reference:
        others = [pid for _, pid in errors if reference["named"] and pid != str(load.pid)]
        on.require(f"crash {how}: lines 'NVRM: Xid' more than without sluice", len(errors) - reference["count"])
        on.require(f"crash {how}: lines 'NVRM: Xid' that name other processes", len(others))
        if unit.daemon.agent() != unit.agent:
            on.problem(f"crash {how}: the agent was replaced")
    on.excused.update(line for line in lines if XID.search(line) or any(each in line for each in ABOUT_GPU))
    if unit:
        unit.end()
    wait_freed(used, before, f"crash {how}")


def faults(on):
    """what is held runs again when processes of sluice, or the held program, fail"""
    used = nvidia.used_memory(on.gpu)
    neighbour = on.offline("neighbour", streams=1)
    before = used()
    load = on.offline(memory=MEMORY_MIB)
    if used() - before < MEMORY_MIB << 20:
        raise nvidia.Failure("the memory of the offline program does not show in NVML")
    reference = {}
    # With little time, those of the program come first, because no others are like them.
    cases = [(act.__name__.replace("_", " "), lambda load, act=act: act(on, load, neighbour, used, before))
             for act in (executes, makes_contexts, killed, exits)]
    cases += [(f"crashes {how}", lambda load, how=how: crashes(on, load, neighbour, used, before, how, reference))
              for how in (ALONE, WHILE_HELD, UNDER_SUSPENDS)]
    cases += [(title(each), lambda load, each=each: of_sluice(on, each, (load, neighbour)))
              for each in (QUICK if on.quick else COMBINATIONS)]
    for name, act in cases:
        if on.deadline - nvidia.now() < LONGEST_CASE:
            on.require(f"{name}: not tested, no time was left", None, fatal=False)
            continue
        try:
            act(load)
        except nvidia.Failure as error:
            on.problem(f"{name}: {error}")
            for daemon in list(on.daemons):
                with contextlib.suppress(nvidia.Failure):
                    on.drop(daemon)
            on.drop(load)
        else:
            if load.process.poll() is None and not load.word(nvidia.CONTEXTS):
                continue
            on.drop(load)
        neighbour.wait_moving(neighbour.streams, nvidia.PATIENCE)
        load = on.offline(memory=MEMORY_MIB)
    load.wait_moving(load.streams, nvidia.PATIENCE)
    neighbour.wait_moving(neighbour.streams, nvidia.PATIENCE)


def descriptors_of(pid, own):
    """Number of descriptors of a process, without those that stand for others than the processes `own` which run: a daemon
    has a pidfd of each process that uses a GPU, and may have a file of its folder in /proc open."""
    count = 0
    for entry in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            name = os.readlink(f"/proc/{pid}/fd/{entry}")
            text = pathlib.Path(f"/proc/{pid}/fdinfo/{entry}").read_text(encoding="utf-8")
            of = re.match(r"/proc/(\d+)/", name) or re.search(r"^Pid:\s*(-?\d+)", text, re.M)  # An ended process: -1
            count += of is None or int(of[1]) in own or not os.path.exists(f"/proc/{of[1]}")
    return count


def used_by(on, name, host, agent):
    """Of a process that has an agent, the agent, and its guardian: KiB of anonymous memory, and number of descriptors. Each
    has more descriptors for a moment, so the least of several counts."""
    if agent is None:
        raise nvidia.Failure(f"the owner lock of {name} names no running agent")
    found = {}
    guardian = nvidia.guardian_of(agent)
    own = {os.getpid(), host, agent, guardian, *(each.pid for each in on.loads)}
    for party, pid in ((name, host), (f"agent of {name}", agent), (f"guardian of {name}", guardian)):
        text = pathlib.Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
        counts = []
        for _ in range(10):
            counts.append(descriptors_of(pid, own))
            time.sleep(0.02)
        found[party] = pid, int(re.search(r"^RssAnon:\s*(\d+)", text, re.M)[1]), min(counts)
    return found


def compare_use(on, before, after):
    """Requires that the same processes use no more than before."""
    for party, (pid, kib, descriptors) in before.items():
        now_pid, now_kib, now_descriptors = after[party]
        on.figure(f"faults-long: anonymous memory of {party}, before / after", [kib, now_kib], "KiB")
        on.require(f"{party}: replaced", int(now_pid != pid))
        on.require(f"{party}: growth", now_kib - kib, GROWTH_KIB, unit="KiB")
        on.require(f"{party}: descriptors more than before", now_descriptors - descriptors)


def faults_long(on):
    """after many holds and a long one, everything runs, and no process of sluice has grown"""
    cycles, seconds = (QUICK_CYCLES, QUICK_HOLD) if on.quick else (CYCLES, HOLD)
    load, neighbour = loads = [on.offline(), on.offline("neighbour", streams=1)]
    daemon = nvidia.Daemon(on)
    daemon.wait_attached(*loads)
    look = lambda: (used_by(on, "the daemon", daemon.process.pid, daemon.agent()), lossless.calls_that_suspend(on, daemon))
    marks = lossless.Marks(daemon.connect(), 1, CYCLE, CYCLE)
    try:
        seen = []
        for count in (WARM_UP, WARM_UP + cycles + cycles // 20):
            nvidia.wait_until(lambda: daemon.check_alive() or marks.made >= count, nvidia.PATIENCE + cycles / 10,
                              f"{count} requests of a client")
            seen.append(look())
    finally:
        marks.stop()
    (before, suspends), (after, all_suspends) = seen
    on.require("suspends of all programs", all_suspends - suspends, cycles * len(loads), least=True)
    compare_use(on, before, after)
    on.drop(daemon)
    for each in loads:
        each.wait_moving(each.streams, nvidia.PATIENCE)

    # By the command, because max_suspend of a daemon is at most 141 s.
    def look():
        agents = filter(None, (nvidia.agent_of(lock) for lock in on.scratch.glob("owner.[1-8]")))
        seen.append(used_by(on, "sluice suspend", on.others[-1].pid, next(agents, None)))

    seen = []
    counts = neighbour.counts()
    moved = nvidia.hold_once(on, load, seconds, look)[2]
    within(on, f"hold of {seconds} s, from sluice resume until progress", moved, AGAIN)
    compare_use(on, *seen)
    if neighbour.counts() == counts:
        on.problem("the program that was not held made no progress")
    for each in loads:
        each.wait_moving(each.streams, nvidia.PATIENCE)
    requests = nvidia.request_series(on, 2, 20000)
    on.require("requests of another program at the end", requests["n"], 1, least=True)
