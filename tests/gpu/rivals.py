"""The part `rivals` of nvidia.py: the requests and the training of `serving`, under sluice and under what else lets
programs share a GPU. What crashes or is not there has a row without figures."""

import collections
import contextlib
import json
import mmap
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile

import nvidia
import serving

HERE = pathlib.Path(__file__).resolve().parent
SERVE = [sys.executable, HERE / "serve.py", "graph", "--repeat", 16]
TRAIN = [sys.executable, HERE / "trainer.py", "transformer"]
LOADS, QUICK_LOADS = (0.3, 0.6), (0.3,)
# s: what the programs of a rival take to start, at most what they get, and what must be left for the rest of the part.
START, LONGEST_START, QUICK_LONGEST_START, REST = 13, 60, 25, 10
LONGEST_END = 10  # s: of a service, before it gets the next stronger request to end.

OWN = tuple(mode for mode in serving.MODES if mode.name in ("alone", "beside", "fixed_timeslice", "pointer_polling"))
# The environment of the offline program, by row.
MPS = {
    "MPS": {},
    "MPS, client priority": {"CUDA_MPS_CLIENT_PRIORITY": 1},  # 0 is the other one, and the default.
    "MPS, 50 % of threads": {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": 50},
    "MPS, 20 % of threads": {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": 20},
}
MPS_CONTROL = "nvidia-cuda-mps-control"
STREAMS = "stream priorities"
XSCHED, PORT = "XSched", 50000  # Of its server, in a network namespace.
# The values of XSched's example of two programs (examples/Linux/1_transparent_sched).
XSCHED_BOTH = {"XSCHED_SCHEDULER": "GLB", "XSCHED_AUTO_XQUEUE": "ON", "XSCHED_AUTO_XQUEUE_LEVEL": 1}
XSCHED_ONLINE = {"XSCHED_AUTO_XQUEUE_PRIORITY": 1, "XSCHED_AUTO_XQUEUE_THRESHOLD": 16,
                 "XSCHED_AUTO_XQUEUE_BATCH_SIZE": 8}
XSCHED_OFFLINE = {"XSCHED_AUTO_XQUEUE_PRIORITY": 0, "XSCHED_AUTO_XQUEUE_THRESHOLD": 4,
                  "XSCHED_AUTO_XQUEUE_BATCH_SIZE": 2}
FIND_LIBCUDA = """import ctypes
ctypes.CDLL("libcuda.so.1")
print(next(line.split()[-1] for line in open("/proc/self/maps") if "/libcuda.so" in line))"""
# Runs in the network namespace of XSched's server until its input ends. Prints how often the queues of each process were
# looked at, had work, and were suspended.
LOOK_AT_XQUEUES = """import collections, fcntl, json, select, socket, struct, sys, urllib.request
with socket.socket() as any_socket:
    fcntl.ioctl(any_socket, 0x8914, struct.pack("16sh14x", b"lo", 1))  # SIOCSIFFLAGS: IFF_UP
seen = collections.defaultdict(lambda: [0, 0, 0])
while not select.select([0], [], [], 0.05)[0]:
    for each in json.load(urllib.request.urlopen(f"http://127.0.0.1:{sys.argv[1]}/xqueues", timeout=5))["xqueues"]:
        for place, counts in enumerate((True, each["ready"], each["suspended"])):
            seen[each["pid"]][place] += counts
print(json.dumps(seen))"""

# start: of a Rivals; starts programs, and returns the server and the offline program of each row.
Group = collections.namedtuple("Group", "start names")


class Missing(Exception):
    """Of what is not installed."""


class Service:
    """A program that the programs of a rival need. It starts before them and ends after them."""

    def __init__(self, on, name, command, ready, **environment):
        self.name = name
        self.log = on.log(name)
        self.process = subprocess.Popen(list(map(str, command)), stdin=subprocess.DEVNULL, stdout=self.log,
                                        stderr=self.log, env={**on.environment, **environment},
                                        preexec_fn=nvidia.die_with_parent)
        on.daemons.append(self)
        nvidia.wait_until(lambda: self.check_alive() or ready(self), nvidia.PATIENCE, f"start of {name}")

    def check_alive(self):
        nvidia.Load.check_alive(self)

    def printed(self, text):
        return text in pathlib.Path(self.log.name).read_text(encoding="utf-8", errors="replace")

    def ended(self):
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(LONGEST_END)
        return self.process.returncode is not None

    def stop(self):
        for end in (self.process.terminate, self.process.kill):
            end()
            if self.ended():
                return
        raise nvidia.Failure(f"{self.name} (process {self.process.pid}) did not end within {LONGEST_END} s of SIGKILL")


class Mps(Service):
    """The control daemon of MPS, and the servers that it starts."""

    def __init__(self, on):
        self.control = shutil.which(MPS_CONTROL, path=on.environment.get("PATH"))
        if self.control is None:
            raise Missing(f"{MPS_CONTROL} is not installed")
        # The logs are beside those of other programs, so the results have them.
        self.environment = {"CUDA_MPS_PIPE_DIRECTORY": tempfile.mkdtemp(prefix="mps.", dir=on.scratch),
                            "CUDA_MPS_LOG_DIRECTORY": str(on.scratch)}
        self.whole = {**on.environment, **self.environment}
        super().__init__(on, "mps", [self.control, "-f"], lambda _: self.ask("get_server_list") is not None,
                         **self.environment)

    def ask(self, order):
        """Returns what the daemon answers, or None."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            done = subprocess.run([self.control], input=order + "\n", env=self.whole, capture_output=True, text=True,
                                  check=False, timeout=LONGEST_END)
            return done.stdout if done.returncode == 0 else None
        return None

    def servers(self):
        return [int(word) for word in (self.ask("get_server_list") or "").split() if word.isdecimal()]

    def serves(self, pid):
        return any(str(pid) in (self.ask(f"get_client_list {server}") or "").split() for server in self.servers())

    def stop(self):
        servers = {pid: nvidia.ppid_and_name(pid) for pid in self.servers()}
        self.ask("quit")
        if not self.ended():
            super().stop()
        for pid, (_, name) in {pid: seen for pid, seen in servers.items() if seen}.items():
            here = lambda pid=pid, name=name: (nvidia.ppid_and_name(pid) or (0, ""))[1] == name
            if here():  # A client did not end as it should.
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            nvidia.wait_until(lambda here=here: not here(), LONGEST_END, f"end of the server of MPS (process {pid})")


def inside(path, server):
    """The training in the process of a server: a Load that starts and stops nothing."""
    made = nvidia.Load.__new__(nvidia.Load)
    made.name, made.process, made.log, made.per_step = server.name, server.process, server.log, 1
    with open(path, "r+b") as file:
        made.page = mmap.mmap(file.fileno(), 0)
    return made


def with_environment(command, more, prefix):
    return [*prefix, "env", *(f"{name}={value}" for name, value in more.items()), *command]


class Rivals(serving.Measurement):
    """The programs of sluice's rows run from the begin to the end; those of a rival run for its turn in each round."""

    clock_seen_in = ()  # The time goes to requests.

    def __init__(self, on, server, offline):
        super().__init__(on, server, offline)
        self.groups = [Group(None, [mode.name for mode in OWN]), Group(self.start_mps, list(MPS)),
                       Group(self.start_streams, [STREAMS]), Group(self.start_xsched, [XSCHED])]
        self.modes = (*OWN, *(serving.Mode(name, None, False, None)
                              for group in self.groups if group.start for name in group.names))
        self.loads = QUICK_LOADS if on.quick else LOADS
        self.starts = START * (len(self.groups) - 1)
        self.limit = None

    def round(self, number):
        self.offline.go_on()
        self.measure_offline()
        self.offline.pause()
        groups = list(self.groups)
        random.Random(number).shuffle(groups)
        for group in groups:
            modes = [mode for mode in self.modes if mode.name in group.names and mode.name not in self.broken]
            if group.start:
                self.measure_rival(number, group, modes)
            else:
                self.measure(number, modes)
                self.offline.pause()

    def measure_rival(self, number, group, modes):
        on = self.on
        left = on.deadline - nvidia.now() - len(modes) * (sum(self.spans.values()) + len(self.spans)) - REST
        if not modes or left < START:
            if modes:
                on.note(f"no time was left for {', '.join(mode.name for mode in modes)} in round {number + 1}")
            return
        self.limit = min(left, QUICK_LONGEST_START if on.quick else LONGEST_START)
        own, before = (self.server, self.offline), nvidia.kernel_log()
        running = [*on.servers, *on.loads, *on.daemons]
        failed = modes  # By a failure from here on.
        try:
            self.server, offline = group.start()
            for each in offline.values():
                each.wait_moving(limit=self.limit)
                each.pause()
            random.Random(number).shuffle(modes)
            for mode in modes:
                failed = [mode]
                self.offline = offline[mode.name]
                with self.looking(mode):
                    self.turn(number, mode)
                self.offline.pause()
        except Missing as error:
            self.give_up(failed, f"not there: {error}")
        except (nvidia.Failure, OSError, ValueError, LookupError) as error:
            self.give_up(failed, f"crashed: {error if isinstance(error, nvidia.Failure) else repr(error)}")
        finally:
            self.server, self.offline = own
            on.drop(*(each for each in [*on.servers, *on.loads, *on.daemons] if each not in running))
            lines = on.driver_lines(before)
            on.excused.update(lines)
            if lines:
                on.note(f"the kernel's log at {group.names[0]}: {len(lines)} new lines of the driver, the first one: "
                        f"{lines[0]}")

    def give_up(self, modes, why):
        """Notes why rows have no figures. No further round tries them."""
        for mode in modes:
            self.broken[mode.name] = why
            self.on.say(f"{mode.name}: {why}")

    def start_programs(self, name, online, offline, prefix=()):
        """Starts a server, and an offline program for each row, all at once. online, offline: their environments."""
        loads = {row: nvidia.Load(self.on, f"trainer-{name}-{number}", with_environment(TRAIN, each, prefix))
                 for number, (row, each) in enumerate(offline.items())}
        return nvidia.Server(self.on, f"serve-{name}", with_environment(SERVE, online, prefix), self.limit), loads

    def wait_clients(self, name, started, seen):
        """Waits until all programs use a rival: some run without it if they do not reach it."""
        server, loads = started
        programs = [server, *loads.values()]

        def connected():
            for each in programs:
                nvidia.Load.check_alive(each)
            return all(seen(each.pid) for each in programs)

        nvidia.wait_until(connected, self.limit, f"connection of all programs to {name}")
        return started

    def start_mps(self):
        mps = Mps(self.on)
        offline = {row: {**mps.environment, **each} for row, each in MPS.items()}
        return self.wait_clients("MPS", self.start_programs("mps", mps.environment, offline), mps.serves)

    def start_streams(self):
        page = self.on.file("streams.page", 4096)
        server = nvidia.Server(self.on, "serve-streams", [*SERVE, "--train", page], self.limit)
        return server, {STREAMS: inside(page, server)}

    def start_xsched(self):
        folder = pathlib.Path(self.on.rivals or "/nonexistent") / "xsched"
        if not (folder / "bin/xserver").exists():
            raise Missing("--rivals has no XSched")
        self.on.result["xsched"] = (folder / "REVISION").read_text(encoding="utf-8").strip()
        libcuda = subprocess.run([sys.executable, "-c", FIND_LIBCUDA], env=self.on.environment, capture_output=True,
                                 text=True, check=False).stdout.strip()
        # Its message queues end with their namespace.
        xserver = Service(self.on, "xserver", ["unshare", "--ipc", "--net", folder / "bin/xserver", "HPF", PORT],
                          lambda made: made.printed("events receiver started"))
        self.xserver = xserver.process.pid
        same = ["nsenter", f"--ipc=/proc/{xserver.process.pid}/ns/ipc"]
        paths = filter(None, [str(folder / "lib"), self.on.environment.get("LD_LIBRARY_PATH")])
        both = {**XSCHED_BOTH, "XSCHED_CUDA_LIB": libcuda, "LD_LIBRARY_PATH": os.pathsep.join(paths)}
        started = self.start_programs("xsched", {**both, **XSCHED_ONLINE}, {XSCHED: {**both, **XSCHED_OFFLINE}}, same)
        return self.wait_clients("XSched", started, lambda pid: xserver.printed(f"client process {pid} connected"))

    @contextlib.contextmanager
    def looking(self, mode):
        """Notes what XSched does meanwhile: it leaves alone what runs on CUDA's default stream."""
        if mode.name != XSCHED:
            yield
            return
        with subprocess.Popen(["nsenter", f"--net=/proc/{self.xserver}/ns/net", sys.executable, "-c", LOOK_AT_XQUEUES,
                               str(PORT)], env=self.on.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True) as looks:
            try:
                yield
            finally:
                try:
                    output, errors = looks.communicate(timeout=nvidia.PATIENCE)
                except subprocess.TimeoutExpired:
                    looks.kill()
                    output, errors = looks.communicate()
        if looks.returncode != 0:
            self.on.note(f"the queues of XSched: {nvidia.last_line(errors)}")
            return
        for name, pid in (("requests", self.server.pid), ("training", self.offline.pid)):
            counts = json.loads(output).get(str(pid), [0, 0, 0])
            self.on.note("XSched, queues of the {}: seen {} times, with work {} times, suspended {} times".format(
                name, *counts))

    def bounds(self, rows, offline):
        """Only of sluice's rows. Notes which rival has a lower p99 with no fewer offline steps."""
        own = [mode.name for mode in OWN]
        for (load, name), row in rows.items():
            for mine in own[2:]:
                other = rows.get((load, mine))
                if (name not in own and other and row["p99"] and other["p99"] and not row["overloaded"]
                        and row["p99"][0] < other["p99"][0] and row["steps"][0] >= other["steps"][0]):
                    self.on.note(f"{100 * load:g} %: {name} is better than {mine}, in p99 and offline steps/s")
        return serving.bounds({key: row for key, row in rows.items() if key[1] in own}, offline)


def rivals(on):
    """requests of a PyTorch CUDA graph beside training, with sluice, MPS, stream priorities and XSched"""
    if not on.torch:
        on.note("without PyTorch: not tested")
        on.skipped = True
        return
    server = nvidia.Server(on, "serve-graph", [*SERVE, "--mark", on.library])
    measured = Rivals(on, server, on.trainer("transformer"))
    try:
        measured.run()
    finally:
        measured.show("rivals")
        if "xsched" in on.result:
            on.note(f"XSched: {on.result['xsched']}")
