#!/usr/bin/env python3
"""usage: nvidia.py report [--html PATH] FILE...
       nvidia.py parts [PART...]
       nvidia.py run --bin DIR --library FILE --load FILE [OPTION...] [PART...]   (as nvidia.sh calls it)

parts lists the parts, or checks names of parts.
report prints a Markdown table of the results in FILE..., one column for each GPU model, driver and revision of sluice.
Where several files of one column have the same figure, the newest one without --quick counts. --html writes a page with
the same figures. Exit code 0: for each GPU model, every part is present and all bounds are kept; 1: not so, with a list of
the parts that are missing and the bounds that are missed; 2: a file cannot be read."""

import argparse
import collections
import contextlib
import csv
import ctypes
import datetime
import json
import math
import mmap
import os
import pathlib
import re
import select
import shutil
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
import traceback

sys.modules.setdefault("nvidia", sys.modules[__name__])  # Modules with parts import this one.

import cost  # noqa: E402
import faults  # noqa: E402
import film  # noqa: E402
import gang  # noqa: E402
import llm  # noqa: E402
import lossless  # noqa: E402
import report as reporting  # noqa: E402
import rivals  # noqa: E402
import seeing as analysis  # noqa: E402
import serving as beside  # noqa: E402
import torch_server  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
TRAINER = HERE / "trainer.py"
# How long parts of a test may take that have no documented bound. Long, so that a busy machine fails no test.
PATIENCE = 30
MOST_OF_LOG = 1 << 18  # Bytes of each program's log that are kept.
# Added to each documented bound: the bounds do not include waits for a processor.
SLACK = 1.0
# Of each daemon: none interferes. The lab has the same.
LIMITS = 'max_suspend = "60s"\nmax_busy = "60s"\noffline_floor = 0.0'
# Words of a load's page, after its counters.
GENERATION, PAUSE_WANTED, PAUSED, LAST_STEP, CONTEXTS_WANTED, CONTEXTS, CRASH_WANTED, EXIT_WANTED = range(16, 24)
BITS, ENDED = 24, 25
PCI = re.compile(r"\b([0-9a-f]{4,8}):([0-9a-f]{2}):([0-9a-f]{2})\b", re.I)
KERNEL_US = 20000


class Failure(Exception):
    """Ends a part; its text is the reason."""


def reason(error):
    return str(error) if isinstance(error, Failure) else f"{type(error).__name__}: {error}"


def now():
    return time.monotonic()


def wait_until(condition, limit, what):
    """Waits for a condition; returns its value."""
    until = now() + limit
    while True:
        value = condition()
        if value:
            return value
        if now() > until:
            raise Failure(f"{what}: not within {limit:g} s")
        time.sleep(0.0005)


LIBC = ctypes.CDLL(None)


def die_with_parent():
    LIBC.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def ppid_and_name(pid):
    """Parent and name of a process, or None if it does not run."""
    try:
        text = pathlib.Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    name, rest = text.split("(", 1)[1].rsplit(")", 1)
    state, parent = rest.split()[:2]
    return None if state in "ZX" else (int(parent), name)


def agent_of(lock):
    """pid of the agent that holds an owner lock, or None."""
    try:
        pid = int(pathlib.Path(lock).read_text(encoding="utf-8").splitlines()[1].split()[0])
    except (OSError, IndexError, ValueError):
        return None
    seen = ppid_and_name(pid)
    return pid if seen and seen[1] == "sluice-agent" else None


def guardian_of(agent):
    """pid of an agent's child that guards it, or None."""
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdecimal() and ppid_and_name(entry.name) == (agent, "sluice-guardian"):
            return int(entry.name)
    return None


def kernel_log():
    """The kernel's log, as lines."""
    done = subprocess.run(["dmesg"], capture_output=True, text=True, errors="replace", check=False)
    if done.returncode != 0:
        raise Failure("cannot read the kernel's log with dmesg: " + done.stderr.strip())
    return done.stdout.splitlines()


def new_lines(before, after):
    """Lines of `after` that follow the last line of `before`."""
    if before and before[-1] in after:
        return after[len(after) - after[::-1].index(before[-1]):]
    return after if not before else [line for line in after if line not in set(before)]


def of_driver(lines, gpu=None):
    """Lines of NVIDIA's driver. gpu: without those about another GPU than this one, by its PCI address. A line without an
    address is about the same GPU as the one before it."""
    found = [line for line in lines if any(word in line for word in ("NVRM", "nvidia", "Xid"))]
    if gpu is None:
        return found
    kept, about = [], gpu
    for line in found:
        if address := PCI.search(line):
            about = pci_address(address)
        if about == gpu:
            kept.append(line)
    return kept


def pci_address(found):
    """As in most lines of the kernel's log: 0000:04:00. nvidia-smi: 00000000:04:00.0."""
    domain, bus, device = found.groups()
    return f"{int(domain, 16):04x}:{bus}:{device}".lower()


class Memory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


def used_memory(gpu):
    """Returns a function that reads the used bytes of a GPU, by NVML. gpu: its index."""
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError as error:
        raise Failure(f"cannot load libnvidia-ml.so.1: {error}; install the driver's utilities") from error
    if library.nvmlInit_v2() != 0:
        raise Failure("nvmlInit_v2 failed")
    device = ctypes.c_void_p()
    if library.nvmlDeviceGetHandleByIndex_v2(gpu, ctypes.byref(device)) != 0:
        raise Failure(f"nvmlDeviceGetHandleByIndex_v2 failed for GPU {gpu}")

    def read():
        memory = Memory()
        if library.nvmlDeviceGetMemoryInfo(device, ctypes.byref(memory)) != 0:
            raise Failure("nvmlDeviceGetMemoryInfo failed")
        return memory.used

    return read


class ClientOptions(ctypes.Structure):
    _fields_ = [("size", ctypes.c_uint32), ("role", ctypes.c_uint32), ("socket", ctypes.c_char_p),
                ("name", ctypes.c_char_p), ("gpus", ctypes.POINTER(ctypes.c_uint32)), ("gpu_count", ctypes.c_size_t),
                ("targets", ctypes.c_int64 * 3)]


class ClientStatus(ctypes.Structure):
    _fields_ = [("size", ctypes.c_uint32), ("connected", ctypes.c_uint32), ("role", ctypes.c_uint32),
                ("mode", ctypes.c_uint32), ("error", ctypes.c_int32), ("scheduler_pid", ctypes.c_int32),
                ("in_flight", ctypes.c_uint64), ("connections", ctypes.c_uint64), ("suspended", ctypes.c_uint64),
                ("turns", ctypes.c_uint64), ("lost_marks", ctypes.c_uint64), ("why", ctypes.c_char * 240)]


class Client:
    """An online client of a daemon: offline work is held while it is busy."""

    def __init__(self, library, socket, gpus=()):
        self.library = ctypes.CDLL(library)
        self.handle = ctypes.c_void_p()
        listed = (ctypes.c_uint32 * len(gpus))(*gpus)
        how = ClientOptions(ctypes.sizeof(ClientOptions), 1, str(socket).encode(), b"nvidia.py",
                            listed if gpus else None, len(gpus))
        if self.library.sluice_client_open(ctypes.byref(how), ctypes.byref(self.handle)) < 0:
            raise Failure("cannot open a client of the daemon")
        seen = ClientStatus(ctypes.sizeof(ClientStatus))
        try:
            wait_until(lambda: self.library.sluice_client_get_status(self.handle, ctypes.byref(seen)) == 0
                       and seen.connected, PATIENCE, "connection of the client")
        except Failure as error:
            self.close()
            raise Failure(f"{error}: {seen.why.decode(errors='replace')}") from error

    def begin(self):
        self.library.sluice_client_begin(self.handle)

    def end(self):
        self.library.sluice_client_end(self.handle)

    def close(self):
        self.library.sluice_client_close(self.handle)


class Load:
    """A program that counts its progress in a page of /dev/shm, and a thread that watches the page."""

    def __init__(self, context, name, command, role=None, size=4096, more_files=(), after=(), environment=None):
        self.name = name
        self.path = context.file(f"{name}.page", size)
        self.losses = [context.file(f"{name}.{each}", 1 << 20) for each in more_files]
        with open(self.path, "r+b") as file:
            self.page = mmap.mmap(file.fileno(), 0)
        environment = {**context.environment, **(environment or {})}
        if role:
            environment["SLUICE_TEST_ROLE"] = context.role(role)
        self.log = context.log(name)
        self.process = subprocess.Popen(
            [*map(str, command), *([] if more_files else ["--page"]), self.path, *self.losses, *map(str, after)],
            env=environment, stdout=self.log, stderr=self.log, preexec_fn=die_with_parent)
        self.pid = self.process.pid
        context.loads.append(self)
        self.per_step = 1  # Counts of a step.
        self.streams = 1  # That make progress of their own.
        self.last = self.counts()
        self.changed_at = now()
        self.stopping = False
        self.watcher = threading.Thread(target=self.watch, daemon=True)
        self.watcher.start()

    def watch(self):
        while not self.stopping:
            seen = self.counts()
            if seen != self.last:
                self.last = seen
                self.changed_at = now()
            time.sleep(0.0002)

    def counts(self):
        return struct.unpack("<16Q", self.page[:128])

    def total(self):
        return sum(self.counts())

    def word(self, which):
        return struct.unpack("<Q", self.page[8 * which:8 * which + 8])[0]

    def generation(self):
        return self.word(GENERATION)

    def order(self, which, value=1):
        self.page[8 * which:8 * which + 8] = struct.pack("<Q", value)

    def pause(self):
        """Lets the program end what it does and then wait, by its own."""
        self.order(PAUSE_WANTED)
        wait_until(lambda: self.check_alive() or self.word(PAUSED), PATIENCE, f"pause of {self.name}")

    def go_on(self):
        self.order(PAUSE_WANTED, 0)
        wait_until(lambda: self.check_alive() or not self.word(PAUSED), PATIENCE, f"end of the pause of {self.name}")

    def progress(self):
        """Its steps, and when the last one ended (ns of CLOCK_MONOTONIC)."""
        def look():
            at = self.word(LAST_STEP)
            return self.total() / self.per_step, at or time.monotonic_ns()

        if not self.word(LAST_STEP):
            return look()
        before = look()
        while True:  # The program writes both, one after the other.
            time.sleep(0.001)
            seen = look()
            if seen == before:
                return seen
            before = seen

    def check_alive(self):
        if self.process.poll() is not None:
            self.log.flush()
            text = pathlib.Path(self.log.name).read_text(errors="replace").strip().splitlines()
            raise Failure(f"{self.name} ended with code {self.process.returncode}: {text[-1] if text else 'no output'}")

    def wait_moving(self, streams=1, limit=4 * PATIENCE):
        """Waits until all streams have made progress from now on."""
        before = self.counts()
        moved = lambda: sum(a != b for a, b in zip(before, self.counts())) >= streams
        wait_until(lambda: self.check_alive() or moved(), limit, f"progress of {streams} stream(s) of {self.name}")

    def still_since(self, quiet=0.15):
        """When the last progress was, if there was none for `quiet` seconds; else None."""
        at = self.changed_at
        return at if now() - at > quiet else None

    def moved_after(self, since, counts, limit, what):
        """Waits for the first progress; returns the seconds from `since`."""
        wait_until(lambda: self.check_alive() or self.counts() != counts, limit, what)
        return now() - since

    def stop(self):
        self.stopping = True
        self.watcher.join()
        self.process.kill()
        try:
            self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired as error:
            raise Failure(f"{self.name} (process {self.pid}) did not end within {PATIENCE} s of SIGKILL") from error


class Daemon:
    """`sluice run` in mode enforce, with its files in a new directory."""

    def __init__(self, context, slice_="100us", quantum=None, policy=None, scheduler="", roles="", record="", trace="",
                 cpu_latency=""):
        self.context = context
        policy = policy or beside.hold(slice_, quantum)
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix="run.", dir=context.scratch))
        self.client = None
        self.stopped = False
        configuration = self.directory / "node.toml"
        configuration.write_text(f"""[daemon]
mode = "enforce"
driver = "{context.driver}"
directory = "{self.directory}"
jobs = ""
record = "{record}"
trace = "{trace}"
cpu_latency = "{cpu_latency}"
[scheduler]
attach_after = "50ms"
attach_at_latest = "200ms"
{LIMITS}
{scheduler}
[policy]
{policy}
[roles]
store = ""
{roles}
environment = [{{ when = "SLUICE_TEST_ROLE={context.role("offline")}", role = "offline" }},
               {{ when = "SLUICE_TEST_ROLE={context.role("online")}", role = "online" }}]
""", encoding="utf-8")
        self.environment = {**context.environment, "SLUICE_DIRECTORY": str(self.directory),
                            "SLUICE_CLIENT_SOCKET": str(self.directory / "clients.sock")}
        self.log = context.log("daemon")
        self.process = subprocess.Popen([context.sluice, "run", "--config", configuration], env=self.environment,
                                        stdout=self.log, stderr=self.log, preexec_fn=die_with_parent)
        context.daemons.append(self)
        wait_until(lambda: self.check_alive() or self.status(), PATIENCE, "answer of the daemon's control socket")

    def check_alive(self):
        if self.process.poll() is not None:
            self.log.flush()
            text = pathlib.Path(self.log.name).read_text(errors="replace").strip().splitlines()
            raise Failure(f"the daemon ended with code {self.process.returncode}: {text[-1] if text else 'no output'}")

    def status(self):
        done = self.context.run("status", "--json", environment=self.environment)
        return json.loads(done.stdout) if done.returncode == 0 else None

    def attached(self, pid):
        status = self.status() or {"groups": []}
        return any(process["pid"] == pid and process["attach"] == "attached"
                   for group in status["groups"] for process in group["processes"])

    def wait_attached(self, *loads):
        for load in loads:
            wait_until(lambda load=load: self.check_alive() or load.check_alive() or self.attached(load.pid), PATIENCE,
                       f"attach of the daemon to {load.name} (process {load.pid})")

    def connect(self, gpus=()):
        self.client = Client(self.context.library, self.directory / "clients.sock", gpus)
        return self.client

    def agent(self):
        return agent_of(self.directory / "owner")

    def guardian(self, agent):
        return guardian_of(agent)

    def rescue(self):
        return self.context.run("rescue", environment=self.environment)

    def stop(self):
        """Ends the daemon and its agents, and resumes what they may have left."""
        if self.stopped:
            return
        agent = self.agent()
        guardian = self.guardian(agent) if agent else None
        if self.client:
            self.client.close()
            self.client = None
        self.process.send_signal(signal.SIGCONT)
        self.process.terminate()
        problem = None
        try:
            code = self.process.wait(PATIENCE)
            if code not in (0, -signal.SIGKILL):
                problem = f"the daemon ended with code {code}"
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            problem = f"the daemon did not end within {PATIENCE} s of SIGTERM"
        for pid in {each for each in (agent, guardian, self.agent()) if each}:
            try:
                wait_until(lambda pid=pid: ppid_and_name(pid) is None, PATIENCE, f"end of the agent's process {pid}")
            except Failure as error:
                problem = problem or str(error)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        rescued = self.rescue()
        if rescued.returncode != 0:
            problem = problem or f"sluice rescue: {rescued.stderr.strip()}"
        shutil.rmtree(self.directory, ignore_errors=True)
        self.stopped = True
        if problem:
            raise Failure(problem)


class Server:
    """An online program that marks no requests, and makes them as lines of its standard input order."""

    def __init__(self, context, name, command, limit=4 * PATIENCE, environment=None):
        self.name = name
        self.log = context.log(name)
        self.process = subprocess.Popen(list(map(str, command)), bufsize=0, stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, stderr=self.log, preexec_fn=die_with_parent,
                                        env={**context.environment, **(environment or {}),
                                             "SLUICE_TEST_ROLE": context.role("online")})
        self.pid = self.process.pid
        context.servers.append(self)
        self.described = self.answer(limit)
        self.alone_us = self.described["alone_us"]
        self.gpu_us = self.described.get("gpu_us", self.alone_us)

    def answer(self, limit=PATIENCE):
        if not select.select([self.process.stdout], [], [], limit)[0]:
            raise Failure(f"{self.name} did not answer within {limit:g} s")
        line = self.process.stdout.readline()
        if not line:
            self.log.flush()
            text = pathlib.Path(self.log.name).read_text(errors="replace")
            raise Failure(f"{self.name} ended with code {self.process.wait(PATIENCE)}: {last_line(text)}")
        return json.loads(line)

    def start(self, load, log):
        """Starts requests at random times. load: the share of time that they take when alone."""
        self.process.stdin.write(f"{self.alone_us / load:.3f} {log}\n".encode())

    def play(self, arrivals, log, limit, meanwhile=lambda: None):
        """Makes requests at the times in a file, until the last one or for `limit` seconds. Returns how many."""
        self.process.stdin.write(f"play {arrivals} {1e6 * limit:.0f} {log}\n".encode())
        meanwhile()
        return self.answer(limit + PATIENCE)["requests"]

    def mark(self, socket):
        """Announces the requests to that scheduler; "-": to none."""
        self.process.stdin.write(f"mark {socket}\n".encode())
        self.answer()

    def rest(self):
        """Ends the requests; their log is complete then."""
        self.process.stdin.write(b"rest\n")
        return self.answer()["requests"]

    def stop(self):
        self.process.kill()
        try:
            self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired as error:
            raise Failure(f"{self.name} (process {self.pid}) did not end within {PATIENCE} s of SIGKILL") from error


class Context:
    """What the parts share, and what must be gone at the end of each part."""

    def __init__(self, chosen):
        self.quick = chosen.quick
        self.driver = chosen.driver
        self.sluice = str(pathlib.Path(chosen.bin) / "sluice")
        self.library = chosen.library
        self.load = chosen.load
        self.trace = chosen.trace
        self.rivals = chosen.rivals
        self.out = pathlib.Path(chosen.out) / ("" if chosen.gpu is None else f"gpu{chosen.gpu}")
        self.scratch = pathlib.Path(tempfile.mkdtemp(prefix="sluice-gpu."))
        self.gpu = chosen.gpu or 0  # The index of the first GPU.
        self.pci = None  # The PCI address of the only GPU, if one is chosen.
        self.environment = {**os.environ, "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
                            "SLUICE_DIRECTORY": str(self.scratch), "SLUICE_ROLES": "store = ''",
                            "SLUICE_BREAKERS": str(self.scratch / "breakers")}
        self.torch = False
        self.programs = None  # Of the part gang, if they are not those for NVIDIA GPUs.
        self.rates = {}
        self.gpus = []
        self.part = ""
        self.number = 0
        self.result = None
        self.skipped = False  # The part, because something that it needs is not here.
        self.excused = set()  # Lines of the kernel's log that do not fail the part.
        self.loads, self.servers, self.daemons, self.others, self.files = [], [], [], [], []

    def role(self, name):
        """What marks programs of this run. Another run, on another GPU, leaves them alone."""
        return f"{name}-{os.getpid()}"

    def driver_lines(self, before):
        """Lines that NVIDIA's driver has added to the kernel's log, but for those about GPUs that are not tested."""
        return of_driver(new_lines(before, kernel_log()), self.pci)

    def file(self, name, size):
        path = f"/dev/shm/sluice-gpu.{os.getpid()}.{self.number}.{name}"
        self.number += 1
        with open(path, "xb") as file:
            file.truncate(size)
        self.files.append(path)
        return path

    def log(self, name):
        return open(self.scratch / f"{self.part}-{name}.log", "ab")

    def keep_logs(self):
        """Moves the logs of programs that have ended to one file of the results."""
        with open(self.out / "programs.log", "ab") as kept:
            for path in sorted(self.scratch.glob("*.log")):
                text = path.read_bytes()[-MOST_OF_LOG:]
                path.unlink()
                if text:
                    kept.write(b"==> %s\n" % path.stem.encode() + text)

    def run(self, *command, environment=None, limit=PATIENCE):
        """Runs a sluice command."""
        try:
            return subprocess.run([self.sluice, *map(str, command)], env=environment or self.environment, text=True,
                                  capture_output=True, check=False, timeout=limit, errors="replace")
        except subprocess.TimeoutExpired as error:
            raise Failure(f"'sluice {command[0]}' did not end within {limit} s") from error

    def printed(self, *command, environment=None, limit=PATIENCE):
        """Runs another program. Returns the JSON that it prints."""
        process = subprocess.Popen(list(map(str, command)), env=environment or self.environment, text=True,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=die_with_parent)
        self.others.append(process)
        name = " ".join(pathlib.Path(str(each)).name for each in command[:2])
        try:
            output, errors = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired as error:
            raise Failure(f"'{name}' did not end within {limit:g} s") from error
        if process.returncode != 0:
            raise Failure(f"'{name}' ended with code {process.returncode}: {last_line(errors)}")
        return json.loads(output)

    def add_package(self):
        """Lets programs import the Python package of this tree, with the library under test."""
        package = str(HERE.parent.parent / "adapters/client/python")
        before = self.environment.get("PYTHONPATH", "")
        if package not in before.split(os.pathsep):
            self.environment["PYTHONPATH"] = package + (os.pathsep + before if before else "")
        self.environment["SLUICE_CLIENT_LIBRARY"] = str(pathlib.Path(self.library).resolve())

    def takes_driver(self, command):
        return "--driver" in self.run(command, "--help").stdout

    def offline(self, name="offline", streams=4, devices="0", memory=0, export=0, wait=True):
        made = Load(self, name, [self.load, "offline", "--kernel-us", KERNEL_US, "--rate", self.rates["offline"],
                                 "--streams", streams, "--devices", devices, "--memory", memory, "--export", export],
                    role="offline")
        made.streams = streams * len(devices.split(","))
        if wait:
            made.wait_moving(made.streams)
        return made

    def training(self):
        made = Load(self, "training", [sys.executable, HERE / "train.py"], role="offline", more_files=("losses",))
        made.wait_moving()
        return made

    def trainer(self, kind):
        made = Load(self, f"trainer-{kind}", [sys.executable, TRAINER, kind], role="offline")
        made.wait_moving()
        return made

    def daemon(self, **how):
        return Daemon(self, **how)

    def resting(self):
        """An offline program that has a context and submits nothing."""
        made = Load(self, "resting", [self.load, "rest"], role="offline")
        wait_until(lambda: made.check_alive() or made.generation() > 0, 4 * PATIENCE, "start of the resting program")
        return made

    def suspend(self, pid):
        made = subprocess.Popen([self.sluice, "suspend", "--driver", self.driver, "--json", str(pid)],
                                env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                preexec_fn=die_with_parent)
        self.others.append(made)
        return made

    def clean(self):
        """Ends what the part has started. Every step is tried; returns what went wrong."""
        problems = []
        for process in self.others:
            if process.poll() is None:
                process.terminate()
                try:
                    process.wait(PATIENCE)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
                    problems.append(f"process {process.pid} did not end within {PATIENCE} s of SIGTERM")
        for each in [*self.daemons, *self.servers, *self.loads]:
            try:
                each.stop()
            except Exception as error:
                problems.append(reason(error))
        for path in self.files:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
        self.loads, self.servers, self.daemons, self.others, self.files = [], [], [], [], []
        return problems

    def drop(self, *what):
        """Ends loads and daemons in the middle of a part."""
        for each in what:
            each.stop()
            next(kind for kind in (self.daemons, self.servers, self.loads) if each in kind).remove(each)

    # What a part reports.
    def say(self, text):
        print(f"{self.part}: {text}", flush=True)

    def problem(self, text):
        if text not in self.result["problems"]:
            self.result["problems"].append(text)
        self.say("FAILED: " + text)

    def note(self, text):
        self.result["notes"].append(text)
        self.say(text)

    def bound(self, entry, fatal=False):
        """Records a bound: name, unit, limit, value (None: not measured), kept; least: the limit is the least value.
        One that is missed fails the part if it is fatal, else the part notes it."""
        self.result["bounds"].append(entry)
        text = reporting.bound_text(entry)
        if entry["kept"]:
            self.say(f"kept: {text}")
        elif fatal:
            self.problem(text)
        else:
            self.note(f"MISSED: {text}")

    def require(self, name, value, limit=0, least=False, unit="", fatal=True):
        """Records a bound of the part. value: None if it was not measured."""
        kept = value is not None and (value >= limit if least else value <= limit)
        self.bound({"name": f"{self.part}: {name}", "unit": unit, "limit": limit,
                    "value": None if value is None else round(value, 3), "kept": kept,
                    **({"least": True} if least else {})}, fatal)

    def figure(self, name, values, unit):
        values = [round(each, 3 if abs(each) < 100 else 1) for each in values]
        self.result["figures"][name] = {"values": values, "unit": unit}
        print(f"  {name}: {reporting.cell(self.result['figures'][name])}", flush=True)


def spread(seconds):
    """Median and largest value, in ms."""
    return [1e3 * statistics.median(seconds), 1e3 * max(seconds)]


def last_line(text):
    lines = text.strip().splitlines()
    return lines[-1] if lines else "no output"


# The parts.


def doctor(on):
    """sluice doctor finds nothing that blocks preemption"""
    done = on.run("doctor", "--driver", on.driver, "--json")
    try:
        checks = json.loads(done.stdout)["checks"]
    except (ValueError, KeyError) as error:
        raise Failure(f"sluice doctor printed no JSON: {last_line(done.stderr)}") from error
    for each in checks:
        text = f"{each['name']}: {each['found']}" + (f"; {each['advice']}" if each.get("advice") else "")
        if each["verdict"] == "blocked":
            on.problem(text)
        elif each["verdict"] != "ok":
            on.note(f"{each['verdict']}: {text}")
    if done.returncode != 0 and not on.result["problems"]:
        on.problem(f"sluice doctor ended with code {done.returncode}")
    on.figure("doctor: checks, passed / all", [sum(each["verdict"] == "ok" for each in checks), len(checks)], "")


def queues(on):
    """sluice queues lists a CUDA program and PyTorch, and logs nothing in the kernel"""
    looked = [on.offline(streams=1)]
    if on.torch:
        looked.append(on.training())
    before = kernel_log()
    took = []
    for _ in range(5):
        start = now()
        done = on.run("queues", "--driver", on.driver, "--json")
        took.append(now() - start)
        if done.returncode != 0:
            raise Failure(f"sluice queues: {last_line(done.stderr)}")
    text = on.run("queues", "--driver", on.driver)
    for line in text.stdout.splitlines():
        on.say("| " + line)
    seen = json.loads(done.stdout)
    names = {gpu["gpu_id"]: gpu["name"] for gpu in seen["gpus"]}
    for warning in seen["warnings"]:
        on.note("warning: " + warning)
    if not set(on.gpus) & set(names.values()):
        on.problem(f"names of GPUs: {sorted(names.values())}; nvidia-smi says {on.gpus}")
    for load in looked:
        load.check_alive()
        entry = next((each for each in seen["processes"] if each["pid"] == load.pid), None)
        if entry is None:
            on.problem(f"process {load.pid} ({load.name}) is not listed")
            continue
        expected = pathlib.Path(f"/proc/{load.pid}/comm").read_text().strip()
        if expected not in entry["command"]:
            on.problem(f"process {load.pid}: command '{entry['command']}', but its name is '{expected}'")
        if not entry["queues"]:
            on.problem(f"process {load.pid} ({load.name}) is listed without queues")
        if any(queue["gpu_id"] not in names for queue in entry["queues"]):
            on.problem(f"process {load.pid} ({load.name}) has a queue on an unlisted GPU")
        kinds = collections.Counter(queue["type"] for queue in entry["queues"])
        on.note(f"{load.name}: " + ", ".join(f"{count} {kind}" for kind, count in kinds.items()))
        on.figure(f"queues: entries of {load.name}", [len(entry["queues"])], "")
    for line in on.driver_lines(before):
        on.problem(f"new line in the kernel's log: {line}")
    on.figure("queues: duration of the command, median / longest", spread(took), "ms")


def wait_suspended(command):
    """Waits until `sluice suspend` writes that it has suspended all queues."""
    if not select.select([command.stdout], [], [], PATIENCE)[0]:
        raise Failure(f"sluice suspend printed nothing within {PATIENCE} s")
    line = command.stdout.readline()
    try:
        event = json.loads(line)
    except ValueError as error:
        command.wait(PATIENCE)
        raise Failure(f"sluice suspend: {last_line(command.stderr.read().decode(errors='replace'))}") from error
    if event["event"] != "suspend" or not event["queues"] or not all(each["suspended"] for each in event["queues"]):
        raise Failure(f"sluice suspend did not suspend all queues: {line.decode(errors='replace').strip()}")


def hold_once(on, load, quiet, look=lambda: None):
    """Suspends and resumes by the commands, with look() at the begin and the end of the hold. Returns the durations:
    message, stop after it, progress, resume command."""
    start = now()
    command = on.suspend(load.pid)
    wait_suspended(command)
    said = now()
    stopped = wait_until(load.still_since, 1 + SLACK, f"stop of {load.name} after the message 'suspended'")
    if stopped - said > 1:
        raise Failure(f"{load.name} still ran {stopped - said:.1f} s after the message 'suspended'")
    held = load.counts()
    look()
    until = now() + quiet
    while now() < until:
        load.check_alive()
        if load.counts() != held:
            raise Failure(f"{load.name} made progress while it was suspended, {now() - said:.2f} s after the message")
        time.sleep(0.001)
    look()
    asked = now()
    resume = subprocess.Popen([on.sluice, "resume", str(load.pid)], env=on.environment, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, preexec_fn=die_with_parent)
    on.others.append(resume)
    moved = load.moved_after(asked, held, PATIENCE, f"progress of {load.name} after sluice resume")
    output = resume.communicate(timeout=PATIENCE)[0].decode(errors="replace")
    resumed = now() - asked
    if resume.returncode != 0:
        raise Failure(f"sluice resume: {last_line(output)}")
    errors = command.communicate(timeout=PATIENCE)[1].decode(errors="replace")
    if command.returncode != 0:
        raise Failure(f"sluice suspend ended with code {command.returncode}: {last_line(errors)}")
    load.wait_moving(load.streams, PATIENCE)
    return said - start, max(0.0, stopped - said), moved, resumed


def hold(on):
    """sluice suspend stops a program and PyTorch, sluice resume continues them"""
    if not on.takes_driver("suspend"):
        raise Failure("'sluice suspend' of this build has no option --driver")
    runs = [("offline", on.offline(), 20)]
    if on.torch:
        # Without a hold first, to compare the losses.
        reference = on.training()
        expected = first_losses(reference)
        on.drop(reference)
    for name, load, count in runs:
        hold_series(on, name, load, count)
        on.drop(load)
    if on.torch:
        load = on.training()
        hold_series(on, "training", load, 5)
        seen = first_losses(load)
        if not all(map(math.isfinite, seen)):
            on.problem("a loss of the training is not a finite number")
        differ = [step for step, (a, b) in enumerate(zip(seen, expected)) if abs(a - b) > 1e-4 * abs(b)]
        if differ:
            on.problem(f"the losses differ from a run without holds from step {differ[0]} on: "
                       f"{seen[differ[0]]:g} instead of {expected[differ[0]]:g}")
        else:
            on.note(f"the first {len(seen)} losses are those of a run without holds"
                    f"{'' if seen == expected else ', up to 0.01 %'}")


def first_losses(load, steps=1000):
    wait_until(lambda: load.check_alive() or load.total() >= steps, 2 * PATIENCE, f"{steps} steps of training")
    return list(struct.unpack(f"<{steps}f", pathlib.Path(load.losses[0]).read_bytes()[:4 * steps]))


def hold_series(on, name, load, count):
    times = []
    for number in range(count):
        times.append(hold_once(on, load, 2 if number < 2 or not on.quick else 0.3))
    said, stopped, moved, resumed = zip(*times)
    on.figure(f"hold {name}: command to 'suspended', median / longest", spread(said), "ms")
    on.figure(f"hold {name}: 'suspended' to the last progress, median / longest", spread(stopped), "ms")
    on.figure(f"hold {name}: resume command to progress, median / longest", spread(moved), "ms")
    on.figure(f"hold {name}: resume command to its end, median / longest", spread(resumed), "ms")


def request_series(on, seconds, pause):
    """Requests of one kernel of 65 us, with pauses of so many us between them."""
    return on.printed(on.load, "online", "--kernels", 1, "--kernel-us", 65, "--rate", on.rates["online"], "--pause-us", pause,
                      "--seconds", seconds, limit=seconds + 2 * PATIENCE)


def wait_held(load):
    wait_until(lambda: load.check_alive() or load.still_since(0.3), PATIENCE, f"hold of {load.name} by the daemon")
    return load.counts()


def several(on):
    """several offline programs, and several GPUs, are held and resumed together"""
    series(on, "1 program", [on.offline()])
    series(on, "4 programs", [on.offline(f"offline-{i}", wait=False) for i in range(4)])
    if len(on.gpus) < 2:
        on.note("one GPU: nothing about several GPUs")
        return
    series(on, "one program on each of 2 GPUs", [on.offline(f"offline-gpu{i}", devices=str(i)) for i in range(2)],
           one_gpu=True)
    series(on, "one program on both GPUs", [on.offline("offline-both", streams=2, devices="0,1")])


def series(on, name, loads, one_gpu=False):
    for load in loads:
        load.wait_moving(load.streams)
    daemon = Daemon(on)
    daemon.wait_attached(*loads)
    client = daemon.connect()
    off, again = [], []
    for number in range(10 if on.quick else 40):
        start = now()
        client.begin()
        for load in loads:
            wait_until(lambda load=load: load.check_alive() or load.still_since(0.1), PATIENCE,
                       f"{name}: hold of {load.name}")
        off.append(max(max(load.changed_at - start for load in loads), 0))
        held = [load.counts() for load in loads]
        time.sleep(0.3)
        if [load.counts() for load in loads] != held:
            raise Failure(f"{name}: progress during hold {number + 1}")
        start = now()
        client.end()
        for load, counts in zip(loads, held):
            load.moved_after(start, counts, PATIENCE, f"{name}: progress of {load.name} after the request")
        again.append(now() - start)
        for load in loads:
            load.wait_moving(load.streams, PATIENCE)
    on.figure(f"several: {name}, request to the last progress, median / longest", spread(off), "ms")
    on.figure(f"several: {name}, end to progress of all, median / longest", spread(again), "ms")
    if one_gpu:
        seen = json.loads(on.run("queues", "--driver", on.driver, "--json").stdout)
        first = next(queue["gpu_id"] for each in seen["processes"] if each["pid"] == loads[0].pid
                     for queue in each["queues"])
        client.close()
        client = daemon.connect([first])
        client.begin()
        wait_held(loads[0])
        loads[1].wait_moving(loads[1].streams, PATIENCE)
        on.note("a request on one GPU held only the program on that GPU")
        client.end()
    on.drop(daemon)
    for load in loads:
        load.wait_moving(load.streams, PATIENCE)
    on.drop(*loads)


LINGER_MS = 1
LONGEST_LINGER_NS = 10_000_000  # core/runtime/src/seen_requests.cpp
POLLING = f'''name = "pointer_polling"
fast = "50us"
slow = "2ms"
linger = "{LINGER_MS}ms"'''
COLUMNS = {"n": "requests", "missed": "missed", "late": "late", "blind": "ends unseen", "wrong": "wrong ends",
           "pauses": "ends in pauses", "begin_seen": "begin to seen", "suspend": "to suspend", "end_seen": "end to seen",
           "resume": "to resume"}


def processor_time(pid):
    """Seconds of processor time of a process, and of its thread that looks at online work. Threads that have ended do
    not count."""
    whole = thread = 0.0
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            # Not by the ticks of `stat`: who wakes with a tick would always, or never, be met by it.
            took = int((task / "schedstat").read_text(encoding="utf-8").split()[0]) / 1e9
            whole += took
            if (task / "comm").read_text(encoding="utf-8").strip() == "sluice-follow":
                thread += took
    return whole, thread


def load_of_agent(daemon, seconds):
    """% of a core that the agent and its thread take from now on."""
    agent = daemon.agent()
    if agent is None:
        raise Failure("the owner lock names no running agent")
    start, before = now(), processor_time(agent)
    time.sleep(seconds)
    after, took = processor_time(agent), now() - start
    return [100 * (b - a) / took for a, b in zip(before, after)]


def wait_end_seen(path, pid, limit):
    """Waits until a recording contains that all work of a process has finished. Returns whether that came."""
    until = now() + limit
    rest = b""
    with open(path, "rb") as file:
        while now() < until:
            *lines, rest = (rest + file.read()).split(b"\n")
            if any(b'"pointers_seen"' in line and b'"pid":%d,' % pid in line and b'"work":"finished"' in line
                   for line in lines):
                return True
            time.sleep(0.02)
    return False


def see_requests(on, name, server, loads, seconds, offline, resting):
    """Lets a daemon look at requests of each load. Returns figures of each load, and the agent's load at rest."""
    recording = on.scratch / "recording"
    daemon = Daemon(on, policy=POLLING, record=recording)
    daemon.wait_attached(*offline)
    series = []
    for load in loads:
        log = on.scratch / f"requests.{load}"
        server.start(load, log)
        if not series:
            if not wait_end_seen(recording, server.pid, 10):
                on.note(f"{name}: the end of work was not seen within 10 s")
            time.sleep(1)  # More of its words become known.
        since = time.monotonic_ns()
        wakes = subprocess.Popen([on.load, "wakes", "--seconds", str(seconds)], stdout=subprocess.PIPE, text=True,
                                 env=on.environment, preexec_fn=die_with_parent)
        on.others.append(wakes)
        took = load_of_agent(daemon, seconds)
        until = time.monotonic_ns()
        late = json.loads(wakes.communicate(timeout=PATIENCE)[0])["over_100_us"]
        server.rest()
        series.append((load, log, since, until, took, late))
        time.sleep(0.1)
    at_rest = None
    if resting:
        time.sleep(1.5)  # The policy expects more work for 1 s.
        at_rest = load_of_agent(daemon, 10)
    on.drop(daemon)
    with open(recording, encoding="utf-8") as file:
        seen = analysis.read_recording(file, server.pid)
    os.unlink(recording)
    if seen.lost:
        on.problem(f"{name}: the recording lost {seen.lost} lines")
    cases = []
    for load, log, since, until, took, late in series:
        requests = analysis.read_log(log.read_text(encoding="utf-8").splitlines())
        os.unlink(log)
        by_kind = analysis.analyse(seen, requests, since, until, LINGER_MS * analysis.MS)
        case = analysis.figures(analysis.merged(by_kind, analysis.SLOW_TO_SUBMIT))
        case.update({"name": f"{name}, {100 * load:.0f} %", "agent": took[0], "agent_thread": took[1], "wakes": late,
                     "submissions_seen": sum(each.count for each in seen.seen if since <= each.at < until)})
        if len(by_kind) > 1:
            case["kinds"] = {kind: analysis.figures({**of, "examples": []}) for kind, of in sorted(by_kind.items())}
        cases.append(case)
        if case["n"] == 0:
            on.problem(f"{case['name']}: the program made no requests")
    return cases, at_rest


def see_client(on, name, server, load, seconds, offline):
    """With see_unmarked, the requests of a program are those of a client."""
    log = on.scratch / "requests"
    daemon = Daemon(on, scheduler="see_unmarked = true")
    daemon.wait_attached(*offline)
    server.start(load, log)
    client = f"process {server.pid} (seen)"

    def registered():
        status = daemon.status() or {"clients": []}
        return any(each["name"] == client for each in status["clients"])

    try:
        wait_until(lambda: daemon.check_alive() or registered(), PATIENCE, f"client '{client}' in sluice status")
        time.sleep(1)
        begins = daemon.status()["statistics"]["begins"]
        since = time.monotonic_ns()
        time.sleep(seconds)
        until = time.monotonic_ns()
        begins = daemon.status()["statistics"]["begins"] - begins
    except Failure as error:
        on.problem(f"{name}: {error}")
        return
    finally:
        server.rest()
        on.drop(daemon)
    requests = analysis.read_log(log.read_text(encoding="utf-8").splitlines())
    os.unlink(log)
    made = sum(since <= each.begin < until for each in requests)
    # Without a pause, a request counts as one with the request before it. Requests come at random and wait for each
    # other: at a load of 30 %, that is true of 30 % of them.
    apart = sum(since <= each.begin < until and each.begin - before.end > LONGEST_LINGER_NS
                for before, each in zip(requests, requests[1:]))
    on.figure(f"seeing: {name}: begins of the client / requests", [begins, made], "")
    if not 0.8 * apart <= begins <= 1.2 * made + 1:
        on.note(f"MISSED: {name}: {begins} begins of the client, but {made} requests, {apart} after a pause")


def seeing(on):
    """what online programs without marks submit and finish is seen in time"""
    serve = [on.load, "serve", "--rate", on.rates["online"], "--kernels"]
    # Name, command, loads with --quick, and seconds of each load then.
    kinds = [("1 kernel of 65 us", [*serve, 1, "--kernel-us", 65], (0.1, 0.6), 1.5),
             ("mix", [on.load, "mix", "--rate", on.rates["online"]], (0.1, 0.6), 2.5),
             ("20 kernels of 0.5 ms", [*serve, 20, "--kernel-us", 500], (0.3,), 3)]
    if on.torch:
        kinds += [(f"PyTorch {how}", [sys.executable, HERE / "serve.py", how], (0.3,), 2.5)
                  for how in ("graph", "eager")]
    else:
        on.note("without PyTorch: its two kinds were not tested")
    cases, at_rest = [], {}
    on.result["cases"] = cases
    resting = on.resting()
    try:
        for kind in kinds:
            try:
                see_kind(on, *kind, resting, cases, at_rest)
            except (Failure, OSError, LookupError, ValueError) as error:
                on.problem(f"{kind[0]}: {error if isinstance(error, Failure) else repr(error)}")
                for each in [*on.daemons, *on.servers, *(load for load in on.loads if load is not resting)]:
                    with contextlib.suppress(Failure):
                        on.drop(each)
    finally:
        show_seen(on, cases, at_rest)


def see_kind(on, name, command, loads, seconds, resting, cases, at_rest):
    if not on.quick:
        loads, seconds = (0.1, 0.3, 0.6), 6
    if on.deadline - now() < 30:
        on.note(f"no time was left for {name}")
        return
    server = Server(on, name.replace(" ", "-"), command)
    on.say(f"{name}: a request takes {server.alone_us:.0f} us alone")
    for mode in ("alone", "beside"):
        rests = mode == "alone" and (not on.quick or name == "mix")
        if on.deadline - now() < 15 + len(loads) * (seconds + 1) + 12 * rests:
            on.note(f"no time was left for {name}, {mode}")
            continue
        offline = [resting] if mode == "alone" else [resting, on.offline(streams=1)]
        made, took = see_requests(on, f"{name}, {mode}", server, loads, seconds, offline, rests)
        cases += made
        for case in made:
            print(f"  {case['name']}: " + ", ".join(f"{text} {analysis.cell(case[key])}"
                                                   for key, text in COLUMNS.items()), flush=True)
        if took:
            at_rest[name] = took
            on.figure(f"seeing: agent beside {name} at rest / its thread", took, "% of a core")
        on.drop(*offline[1:])
    if name == "20 kernels of 0.5 ms" and on.deadline - now() > 20:
        see_client(on, f"fixed_timeslice with see_unmarked, {name}, 30 %", server, 0.3, 2 if on.quick else 6, [resting])
    on.drop(server)


def show_seen(on, cases, at_rest):
    """Shows the cases and whether they keep the bounds."""
    rows = [["delays: p50/p99 in us", *COLUMNS.values(), "agent %", "late wakes %"]]
    for case in cases:
        for title, of in [(case["name"], case), *((f"  {kind}", of) for kind, of in case.get("kinds", {}).items())]:
            rows.append([title, *(analysis.cell(of[key]) for key in COLUMNS),
                         *(f"{of[key]:.2f}" if key in of else "" for key in ("agent", "wakes"))])
    print("\n".join(analysis.table(rows)), flush=True)
    for case in cases:
        name = f"seeing: {case['name']}"
        on.figure(f"{name}: requests / missed / wrong ends", [case["n"], case["missed"], case["wrong"]], "")
        for what, keys in (("begin to seen / suspend", ("begin_seen", "suspend")),
                           ("end to seen / resume", ("end_seen", "resume"))):
            measured = [case[key]["p99"] for key in keys if case[key]["n"]]
            if len(measured) == 2:
                on.figure(f"{name}: {what}, p99", measured, "us")
    if cases:
        wakes = [case["wakes"] for case in cases]
        on.figure("seeing: another thread is woken more than 100 us late, median / most", [statistics.median(wakes),
                                                                                          max(wakes)], "%")
    for bound in analysis.bounds(cases, [each[0] for each in at_rest.values()]):
        fatal = bound["name"] in ("requests missed", "wrong ends")
        on.bound({**bound, "name": f"seeing: {bound['name']}"}, fatal)


def serving(on):
    """requests of a PyTorch CUDA graph beside training"""
    serve_pytorch(on, "serving", "graph", 16, "transformer")


def serving_eager(on):
    """requests of eager PyTorch beside training"""
    serve_pytorch(on, "serving-eager", "eager", 4, "transformer")


def serving_long(on):
    """requests of a PyTorch CUDA graph beside training with long kernels"""
    serve_pytorch(on, "serving-long", "graph", 16, "wide")


def serve_pytorch(on, title, kind, repeat, training):
    if not on.torch:
        on.note("without PyTorch: not tested")
        on.skipped = True
        return
    command = [sys.executable, HERE / "serve.py", kind, "--repeat", repeat, "--mark", on.library]
    beside.serve(on, title, lambda: Server(on, f"serve-{kind}", command), lambda: on.trainer(training),
                 eager=kind == "eager")


def serving_short(on):
    """requests of one kernel of 65 us beside kernels of 20 ms"""
    def server():
        made = Server(on, "serve-short", [on.load, "serve", "--rate", on.rates["online"], "--kernels", 1,
                                          "--kernel-us", 65, "--mark", on.library])
        made.gpu_us = 65
        return made

    def offline():
        made = on.offline(streams=1)
        made.per_step = KERNEL_US * on.rates["offline"]
        return made

    beside.serve(on, "serving-short", server, offline, short=True)


def accept(on):
    """sluice accept, if it knows the driver"""
    if not on.takes_driver("accept"):
        on.note("'sluice accept' of this build has no option --driver")
        on.skipped = True
        return
    report = on.out / "accept.md"
    done = on.run("accept", "--driver", on.driver, *(["--beside-others"] if on.pci else []), "--repeat", 20 if on.quick else 100, "--report", report,
                  "--profile", on.out / "profile.toml", limit=on.deadline - now() - 5)
    if done.returncode != 0:
        raise Failure(f"sluice accept ended with code {done.returncode}: {last_line(done.stdout or done.stderr)}; see {report}")


PARTS = {each.__name__.replace("_", "-"): each for each in (
    doctor, queues, hold, cost.cost, faults.faults, faults.faults_long, several, seeing,
    serving, serving_eager, serving_long, serving_short,
    lossless.lossless, lossless.checksum, accept, llm.llm,  # llm uses the profile that accept writes.
    torch_server.torch_server, film.film, rivals.rivals, gang.gang, gang.gang_held, gang.gang_serving)}


NEED_PYTORCH = {"queues", "hold", "seeing", "serving", "serving-eager", "serving-long", "lossless", "llm",
                "torch-server", "film", "rivals", "gang", "gang-held", "gang-serving"}


class OutOfTime(BaseException):
    pass


def run_part(on, name, limit):
    on.part = name
    on.result = {"outcome": "failed", "seconds": 0, "problems": [], "notes": [], "figures": {}, "bounds": []}
    on.deadline = now() + limit
    on.excused = set()
    on.skipped = False
    print(f"=== {name}: {PARTS[name].__doc__}", flush=True)
    start, ended = now(), None
    before = kernel_log()

    def expired(*_):
        raise OutOfTime

    signal.signal(signal.SIGALRM, expired)
    signal.alarm(int(limit))
    try:
        PARTS[name](on)
    except OutOfTime:
        on.problem(f"the part did not end within {limit} s")
    except (SystemExit, KeyboardInterrupt) as error:
        on.problem("the script was ended during this part")
        ended = error
    except Exception as error:  # A defect of one part must not cost the others their time on the GPU.
        on.problem(reason(error))
        if not isinstance(error, Failure):
            traceback.print_exc()
    finally:
        signal.alarm(0)
        for problem in on.clean():
            on.problem(f"at the end of the part: {problem}")
        on.keep_logs()
    added = on.driver_lines(before)
    for line in added:
        if ("Xid" in line or "NVRM" in line) and line not in on.excused:
            on.problem(f"the kernel's log: {line}")
    on.result["kernel_log"] = added[:100]
    if added:
        on.note(f"the kernel's log: {len(added)} new lines of the driver, the first one: {added[0]}")
    on.result["outcome"] = "failed" if on.result["problems"] else "skipped" if on.skipped else "passed"
    on.result["seconds"] = round(now() - start, 1)
    print(f"=== {name}: {on.result['outcome']} after {on.result['seconds']:g} s", flush=True)
    if ended:
        raise ended
    return on.result


def visible_gpus(gpu):
    """Names, PCI addresses (pci_address()) and UUIDs of the GPUs, or of the one with this index; the driver's version."""
    done = subprocess.run(["nvidia-smi", "--query-gpu=name,pci.bus_id,uuid,driver_version", "--format=csv,noheader",
                           *([] if gpu is None else [f"--id={gpu}"])], capture_output=True, text=True, check=False)
    rows = [[cell.strip() for cell in row] for row in csv.reader(done.stdout.splitlines()) if len(row) == 4]
    if done.returncode != 0 or not rows:
        print(f"nvidia.py: nvidia-smi lists no GPU: {last_line(done.stdout + done.stderr)}", file=sys.stderr)
        sys.exit(2)
    names, addresses, uuids, drivers = zip(*rows)
    return list(names), [pci_address(PCI.search(each)) for each in addresses], list(uuids), drivers[0]


def check_parts(chosen):
    unknown = [each for each in chosen.parts if each not in PARTS]
    if unknown:
        print(f"unknown part '{unknown[0]}'; parts: {', '.join(PARTS)}", file=sys.stderr)
        return 2
    if not chosen.parts:
        print("\n".join(PARTS))
    return 0


def run(chosen):
    if check_parts(argparse.Namespace(parts=chosen.parts or list(PARTS))):
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    on = Context(chosen)
    on.out.mkdir(parents=True, exist_ok=True)
    on.gpus, addresses, uuids, driver = visible_gpus(chosen.gpu)
    if chosen.gpu is not None:
        on.pci = addresses[0]
        on.environment["CUDA_VISIBLE_DEVICES"] = uuids[0]  # MPS renumbers GPUs, so its clients need the UUID.
    left_on = gang.multicast_left_on() if len(on.gpus) > 1 else []
    if left_on:
        print(f"nvidia.py: NVLink multicast may be on, which can put the GPUs of a host out of service; set {' '.join(left_on)}",
              file=sys.stderr)
        return 2
    date = datetime.datetime.now(datetime.timezone.utc)
    document = {"version": 1, "gpu": " and ".join(sorted(set(on.gpus))), "gpus": len(on.gpus), "driver": driver,
                "kernel": os.uname().release, "date": date.isoformat(timespec="seconds"), "sluice": chosen.revision, "quick": chosen.quick,
                "parts": {}}
    file = on.out / f"nvidia-{date:%Y%m%dT%H%M%SZ}{'' if chosen.gpu is None else f'-gpu{chosen.gpu}'}.json"
    try:
        done = subprocess.run([on.load, "calibrate"], env=on.environment, capture_output=True, text=True, check=False,
                              timeout=2 * PATIENCE)
        if done.returncode != 0:
            print(f"nvidia.py: {last_line(done.stderr)}", file=sys.stderr)
            return 2
        document["iterations_per_us"] = on.rates = json.loads(done.stdout)
        names = chosen.parts or list(PARTS)
        if not NEED_PYTORCH.isdisjoint(names):
            document["pytorch"] = on.torch = subprocess.run(
                [sys.executable, "-c", "import torch; assert torch.cuda.is_available()"], env=on.environment,
                capture_output=True, check=False).returncode == 0
            if not on.torch:
                print("PyTorch cannot be imported, or sees no GPU: what needs it is left out")
        for name in names:
            on.result = None
            try:
                run_part(on, name, 120 if chosen.quick else 480)
            finally:  # What a part has found by then stays, if the script is ended.
                if on.result:
                    document["parts"][name] = on.result
                    file.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    finally:
        on.clean()
        on.keep_logs()
        shutil.rmtree(on.scratch, ignore_errors=True)
        with contextlib.suppress(OSError):
            os.unlink(on.load)
            os.rmdir(pathlib.Path(on.load).parent)
    failed = [name for name, part in document["parts"].items() if part["outcome"] == "failed"]
    print(f"results: {file}")
    print("failed: " + ", ".join(failed) if failed else "no part failed")
    return 1 if failed else 0


def main():
    parser = argparse.ArgumentParser(usage=__doc__.removeprefix("usage: ").replace("%", "%%"))
    commands = parser.add_subparsers(dest="command", required=True, prog="nvidia.py")
    running = commands.add_parser("run")
    running.add_argument("--bin", required=True, help="folder of sluice")
    running.add_argument("--library", required=True, help="libsluice_client.so.0")
    running.add_argument("--load", required=True,
                         help="the program gpu_load; removed at the end, with its folder if that is empty then")
    running.add_argument("--out", default="nvidia-results", help="folder of the results")
    running.add_argument("--revision", default="unknown", help="revision of sluice")
    running.add_argument("--gpu", type=int, help="index of the only GPU to test")
    running.add_argument("--driver", default="nvidia", help="driver of sluice")
    running.add_argument("--trace", help="requests in the Azure LLM trace format, for the part llm")
    running.add_argument("--rivals", help="folder of XSched, for the part rivals")
    running.add_argument("--quick", action="store_true")
    running.add_argument("parts", nargs="*")
    listing = commands.add_parser("parts")
    listing.add_argument("parts", nargs="*")
    merging = commands.add_parser("report")
    merging.add_argument("--html", metavar="PATH", help="also write a page with the figures")
    merging.add_argument("files", nargs="+")
    chosen = parser.parse_args()
    if chosen.command == "parts":
        return check_parts(chosen)
    return run(chosen) if chosen.command == "run" else reporting.report(chosen.files, chosen.html, list(PARTS))


if __name__ == "__main__":
    sys.exit(main())
