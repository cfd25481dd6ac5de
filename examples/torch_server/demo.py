#!/usr/bin/env python3
"""usage: examples/demo.sh --gpu [--bundle DIR] [--seconds N] [--report FILE] [--trace-out FILE]

Run server.py and train.py on the NVIDIA GPU of this machine: alone, together, and together under sluice. Send HTTP
requests at random times, and print a table of the results. Needs root, PyTorch and an unused GPU.
  --bundle DIR      Use an unpacked portable archive. Default: the release build, or SLUICE_BIN
  --seconds N       Duration of each run, 1 to 600 (default: 10)
  --report FILE     Write an HTML page that compares the runs
  --trace-out FILE  Write a timeline of the run under sluice

Exit code 0: completed; 1: a run failed; 2: the demo cannot run here."""

import argparse
import collections
import contextlib
import ctypes
import importlib.metadata
import importlib.util
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

import demo_page
import http_load

HERE = pathlib.Path(__file__).resolve().parent
TREE = HERE.parents[1]
LOAD = 0.3  # Share of the time in which the server alone would be busy.
START_LIMIT, LIMIT = 180, 60  # Seconds: for the start of a program with PyTorch, and for anything else.
LIBC = ctypes.CDLL(None)


class Failure(Exception):
    """Ends the demo; its text is the reason."""


def unable(reason):
    print(f"demo.sh: {reason}", file=sys.stderr)
    sys.exit(2)


def wait_until(what, condition, limit=LIMIT):
    until = time.monotonic() + limit
    while not (value := condition()):
        if time.monotonic() > until:
            raise Failure(f"{what}: not within {limit} s")
        time.sleep(0.01)
    return value


class Program:
    """A process that ends at the latest with this one. Its lines are kept, each with the time at which it came."""

    def __init__(self, name, command, environment):
        self.name, self.lines = name, []
        parent = os.getpid()

        def prepare():
            LIBC.prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
            if os.getppid() != parent:
                os._exit(1)

        # In a session of its own: Ctrl-C only reaches this process, which ends the others in order.
        self.process = subprocess.Popen([*map(str, command)], env=environment, stdin=subprocess.DEVNULL,
                                        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                                        start_new_session=True, preexec_fn=prepare)
        self.pid = self.process.pid
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self):
        for line in self.process.stdout:
            self.lines.append((time.monotonic(), line.rstrip("\n")))

    def check_alive(self):
        if self.process.poll() is not None:
            self.reader.join(1)
            last = next((line for _, line in reversed(self.lines) if line.strip()), "no output")
            raise Failure(f"{self.name} ended with code {self.process.returncode}: {last}")

    def wait_line(self, form):
        """Waits until a line has this form."""
        def found():
            self.check_alive()
            return next(filter(None, (re.search(form, line) for _, line in list(self.lines))), None)
        return wait_until(f"a line of the form '{form}' from {self.name}", found, START_LIMIT)

    def stop(self):
        self.process.terminate()
        try:
            self.process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.reader.join(1)


class Daemon(Program):
    """`sluice run` with the configuration of this example, and with its files in another directory."""

    def __init__(self, sluice, folder, environment):
        self.sluice, self.environment = sluice, environment
        self.record, self.trace = folder / "recording", folder / "trace.json"
        configuration = folder / "sluice.toml"
        keys = {"directory": folder, "record": self.record, "trace": self.trace}
        text = (HERE / "sluice.toml").read_text(encoding="utf-8").replace(
            "[daemon]\n", '[daemon]\ndriver = "nvidia"\n' + "".join(f'{key} = "{path}"\n' for key, path in keys.items()), 1)
        configuration.write_text(text, encoding="utf-8")
        super().__init__("sluice run", [sluice, "run", "--config", configuration], environment)

    def status(self):
        self.check_alive()
        done = subprocess.run([self.sluice, "status", "--json"], env=self.environment, capture_output=True, text=True,
                              timeout=LIMIT, check=False)
        return json.loads(done.stdout) if done.returncode == 0 else None

    def ready(self, train):
        """Whether both programs are clients, and an offline process can be suspended."""
        status = self.status() or {"clients": [], "groups": []}
        registered = rf"process {train.pid} \(.*registered as offline"
        return (any(re.search(registered, line) for _, line in list(self.lines))
                and any(each["name"] == "torch_server" for each in status["clients"])
                and any(process["attach"] == "attached" for group in status["groups"] for process in group["processes"]))

    def stop(self):
        """Ends the daemon, which resumes everything. If it was killed, resumes what it left suspended."""
        super().stop()
        done = subprocess.run([self.sluice, "rescue"], env=self.environment, capture_output=True, text=True,
                              timeout=LIMIT, check=False)
        if done.returncode != 0:
            raise Failure(f"sluice rescue failed: {done.stderr.strip()}; run it again")


def steps_of(train):
    """(time, step) of the lines of the training, by its own clock."""
    found = [(at, re.match(r"step (\d+), ([\d.]+) s, loss", line)) for at, line in list(train.lines)]
    found = [(at, int(match[1]), float(match[2])) for at, match in found if match]
    begin = min((at - since for at, _, since in found), default=0)
    return [(begin + since, step) for _, step, since in found]


def pace(train, start, end):
    """Steps per second of the lines in that time, and of each of them: (s from start, steps/s)."""
    lines = [each for each in steps_of(train) if start <= each[0] <= end]
    rates = [(after[0] - start, (after[1] - before[1]) / (after[0] - before[0])) for before, after in zip(lines, lines[1:])]
    whole = (lines[-1][1] - lines[0][1]) / (lines[-1][0] - lines[0][0]) if rates else None
    return whole, rates


def read_recording(path, start):
    """Which process was off the GPU when, and because of which clients: (pid, from, to, names), in s from start. Of each
    client, when it had requests in flight: (name, from, to). Delays from an arrival until offline work was off, in ms."""
    holds, busy, delays, names, pids = [], [], [], {}, {}
    in_flight, since, causes, off = {}, {}, {}, {}
    zero, last = 0, None  # last: the client that worked last.
    with open(path, encoding="utf-8") as file:
        for line in file:
            try:
                entry = json.loads(line)
            except ValueError:
                continue  # The end of a recording that was cut short.
            kind = entry["is"]
            at = lambda ns: (zero + ns) / 1e9 - start
            if kind == "recording":
                zero = entry["clock_ns"]
            elif kind == "client":
                names[entry["id"]] = entry["name"]
            elif kind == "attach":
                pids[entry["process"]] = entry["pid"]
            elif kind == "work":
                client, many = last, _ = entry["client"], entry.get("begun", 0) - entry.get("ended", 0)
                if many > 0 and client not in since:
                    since[client] = at(entry.get("first", entry["t"]))
                elif many <= 0 and client in since:
                    busy.append((names.get(client, "?"), since.pop(client), at(entry["t"])))
                in_flight[client] = many
            elif kind == "batch" and entry["kind"] == "suspend":
                # A request can be shorter than the time until its hold.
                working = [client for client, many in in_flight.items() if many > 0] or [last]
                causes[entry["id"]] = sorted({names.get(client, "the policy") for client in working})
            elif kind == "done" and "errno" not in entry:
                which = entry["process"], entry["gpu"]
                if entry["kind"] == "suspend":
                    off.setdefault(which, (at(entry["finished"]), causes.pop(entry["id"], ["the policy"])))
                elif which in off:
                    begun, by = off.pop(which)
                    holds.append((pids.get(which[0], 0), begun, at(entry["started"]), by))
            elif kind == "detached":
                for which in [each for each in off if each[0] == entry["process"]]:
                    begun, by = off.pop(which)
                    holds.append((pids.get(which[0], 0), begun, at(entry["t"]), by))
            elif kind == "off":
                delays.append(entry["after"] / 1e6)
    return holds, busy, sorted(delays)


def summary_of_holds(holds, commands, seconds):
    """Rows of a table: what was held, by what, how often and for how long."""
    grouped = collections.defaultdict(list)
    for pid, begin, end, by in holds:
        begin, end = max(begin, 0), min(end, seconds)
        if end > begin:
            grouped[pid, " and ".join(by)].append(1e3 * (end - begin))
    rows = []
    for (pid, by), lengths in sorted(grouped.items()):
        lengths.sort()
        rows.append({"held": f"{commands.get(pid, 'process')} ({pid})", "by": by, "count": len(lengths),
                     "seconds": sum(lengths) / 1e3, "share": sum(lengths) / 1e3 / seconds,
                     "p50_ms": http_load.quantile(lengths, 0.5), "max_ms": lengths[-1]})
    return rows


def driver_version():
    version = pathlib.Path(os.environ.get("SLUICE_NVIDIA_PROC", "/proc/driver/nvidia"), "version")
    try:
        found = re.search(r"\b\d{3}\.\d[\d.]*", version.read_text(encoding="utf-8"))
    except OSError:
        unable(f"no NVIDIA driver is loaded ({version} does not exist); run this on a machine with an NVIDIA GPU")
    return found[0] if found else "unknown"


def check_file(path):
    """Before anything runs: whether the file can be written."""
    if path:
        existed = os.path.lexists(path)
        try:
            with open(path, "ab"):
                pass
        except OSError as error:
            unable(f"cannot write {path}: {error.strerror}")
        if not existed:
            os.unlink(path)


class Demo:
    def __init__(self, chosen):
        self.seconds = chosen.seconds
        self.started = []
        folder = pathlib.Path(os.path.abspath(chosen.bundle)) / "bin" if chosen.bundle else pathlib.Path(
            os.path.abspath(os.environ.get("SLUICE_BIN", TREE / "build/release/bin")))
        self.sluice = folder / "sluice"
        library = folder.parent / "lib/libsluice_client.so.0"
        for file in (self.sluice, folder / "sluice-agent", library):
            if not file.is_file():
                unable(f"{file} does not exist; build sluice, or use --bundle DIR")
        done = subprocess.run([self.sluice, "status", "--json"], capture_output=True, text=True, timeout=LIMIT, check=False)
        if done.returncode == 0:  # Of a daemon in the usual place.
            unable(f"sluice already schedules this node (process {json.loads(done.stdout)['node']['pid']}); stop it first")
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="sluice-demo."))
        packages = [str(TREE / "adapters/client/python"), *filter(None, [os.environ.get("PYTHONPATH")])]
        self.environment = {**os.environ, "PYTHONPATH": os.pathsep.join(packages), "PYTHONUNBUFFERED": "1",
                            "PYTHONDONTWRITEBYTECODE": "1", "SLUICE_CLIENT_LIBRARY": str(library),
                            "SLUICE_CLIENT_SOCKET": str(self.folder / "clients.sock"),
                            "SLUICE_DIRECTORY": str(self.folder), "SLUICE_ROLES": "store = ''",
                            "SLUICE_BREAKERS": str(self.folder / "breakers")}

    def start(self, kind, *arguments):
        self.started.append(kind(*arguments))
        return self.started[-1]

    def python(self, name, *arguments):
        return self.start(Program, name, [sys.executable, "-B", HERE / name, *arguments], self.environment)

    def gpus(self):
        """Names of the GPUs that sluice sees."""
        done = subprocess.run([self.sluice, "queues", "--driver", "nvidia", "--json"], env=self.environment,
                              capture_output=True, text=True, timeout=LIMIT, check=False)
        if done.returncode != 0:
            unable(f"sluice queues failed: {(done.stderr.strip().splitlines() or ['no output'])[-1]}")
        return sorted({each["name"] for each in json.loads(done.stdout)["gpus"]})

    def run(self, name, train, arrivals):
        """Makes the requests, and returns the figures of a run."""
        print(f"{name} ...", flush=True)
        made = {"name": name, "requests": 0, "errors": [], "answers": []}
        if arrivals:
            made["start"], made["answers"], made["errors"] = http_load.request_all(self.port, arrivals)
            made["requests"] = len(arrivals)
            if not made["answers"]:
                raise Failure(f"{name}: no request was answered: {made['errors'][0]}")
        else:
            made["start"] = time.monotonic()
        time.sleep(max(0, made["start"] + self.seconds - time.monotonic()))
        made["end"] = time.monotonic()
        latencies = sorted(latency for _, latency in made["answers"])
        if latencies:
            made["p50_ms"], made["p99_ms"] = (http_load.quantile(latencies, share) for share in (0.5, 0.99))
            made["max_ms"] = latencies[-1]
        if train:
            made["steps_per_s"], made["steps"] = pace(train, made["start"], made["end"])
        for each in self.started:
            each.check_alive()
        return made

    def measure(self):
        names = self.gpus()
        server = self.python("server.py", "--port", "0")
        self.port = int(server.wait_line(r"^serving on http://127\.0\.0\.1:(\d+)")[1])
        length = http_load.length_of_request(self.port)
        arrivals = http_load.arrivals_of(LOAD, length, self.seconds) or [0.0]
        runs = [self.run("server alone", None, arrivals)]
        train = self.python("train.py")
        train.wait_line(r"^step ")
        runs.append(self.run("training alone", train, []))
        runs.append(self.run("together, no scheduler", train, arrivals))
        daemon = self.start(Daemon, self.sluice, self.folder, self.environment)
        wait_until("attach of sluice to train.py and registration of server.py", lambda: daemon.ready(train))
        before = daemon.status()["statistics"]
        runs.append(self.run("together, under sluice", train, arrivals))
        status = wait_until("status of the daemon", daemon.status)
        self.end()
        start = runs[-1]["start"]
        holds, busy, delays = read_recording(daemon.record, start)
        commands = {process["pid"]: process["command"] for group in status["groups"] for process in group["processes"]}
        commands[train.pid] = "train.py"
        counters = status["statistics"]
        try:
            pytorch = importlib.metadata.version("torch")
        except importlib.metadata.PackageNotFoundError:
            pytorch = "unknown"
        return {"gpu": " and ".join(names), "simulated": status["node"]["simulated"], "driver": driver_version(),
                "pytorch": pytorch, "sluice": status["node"]["program_version"], "policy": status["node"]["policy_text"],
                "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()), "seconds": self.seconds,
                "request_ms": 1e3 * length, "load": LOAD, "runs": runs,
                "held": summary_of_holds(holds, commands, self.seconds),
                "holds": [(commands.get(pid, f"process {pid}"), begin, end) for pid, begin, end, _ in holds], "busy": busy,
                "delays": delays, "begins": counters["begins"] - before["begins"],
                "suspends": counters["suspend_call"]["count"] - before["suspend_call"]["count"],
                "forced_resumes": counters["limits"]["forced_resumes"],
                "failures": {key: number for key, number in counters["failures"].items() if number}}

    def end(self):
        """Ends all processes, the daemon first: it resumes the others."""
        problem = None
        while self.started:
            try:
                self.started.pop().stop()
            except (Failure, OSError, subprocess.SubprocessError) as error:
                problem = problem or error
        if problem:
            raise Failure(str(problem))


def table(results):
    cell = lambda value: "-" if value is None else f"{value:.1f}"
    rows = [("", "requests", "failed", "p50, ms", "p99, ms", "max, ms", "steps/s")]
    for run in results["runs"]:
        rows.append((run["name"], str(run["requests"]), str(len(run["errors"])),
                     *(cell(run.get(key)) for key in ("p50_ms", "p99_ms", "max_ms", "steps_per_s"))))
    lines = [f"{row[0]:<24}" + "".join(f"{each:>10}" for each in row[1:]) for row in rows]
    for each in results["held"]:
        lines.append(f"{each['by']} held {each['held']} {each['count']} times, for {each['seconds']:.2f} s "
                     f"({100 * each['share']:.0f} %)")
    return "\n".join(lines)


def problems_of(results):
    """What must not happen in a run."""
    failed = sum(len(run["errors"]) for run in results["runs"])
    if failed:
        yield f"{failed} requests failed: {next(run['errors'][0] for run in results['runs'] if run['errors'])}"
    if results["begins"] < results["runs"][-1]["requests"]:
        yield f"sluice saw only {results['begins']} of {results['runs'][-1]['requests']} requests"
    if not results["suspends"]:
        yield "sluice suspended nothing"
    if results["failures"]:
        yield "sluice counted failures: " + ", ".join(f"{key} {number}" for key, number in results["failures"].items())


def stop(number, _):
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)  # A second signal would leave processes behind.
    sys.exit(128 + number)


def main():
    parser = argparse.ArgumentParser(prog="demo.sh --gpu", add_help=False)
    parser.error = unable
    parser.add_argument("-h", "--help", action="store_true")
    parser.add_argument("--bundle")
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--report")
    parser.add_argument("--trace-out")
    chosen = parser.parse_args()
    if chosen.help:
        print(__doc__)
        return 0
    if not 1 <= chosen.seconds <= 600:
        unable(f"--seconds {chosen.seconds:g}: out of range; expected 1 to 600")
    driver_version()
    if os.geteuid() != 0:
        unable("run this as root: sluice suspends processes")
    if not importlib.util.find_spec("torch"):
        unable(f"PyTorch is not installed for {sys.executable}; install it as https://pytorch.org explains")
    check_file(chosen.report)
    check_file(chosen.trace_out)
    demo = Demo(chosen)
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, stop)
    try:
        results = demo.measure()
        print(table(results), flush=True)
        if chosen.trace_out:
            shutil.move(demo.folder / "trace.json", chosen.trace_out)
            print(f"timeline: {chosen.trace_out}; open it in https://ui.perfetto.dev")
        if chosen.report:
            pathlib.Path(chosen.report).write_text(demo_page.page(results, sys.argv[1:]), encoding="utf-8")
            print(f"report: {chosen.report}")
        problems = list(problems_of(results))
    except (Failure, OSError, ValueError, LookupError, subprocess.SubprocessError) as error:
        problems = [str(error) if isinstance(error, Failure) else f"{type(error).__name__}: {error}"]
    finally:
        for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(each, signal.SIG_IGN)
        try:
            demo.end()
        finally:
            shutil.rmtree(demo.folder, ignore_errors=True)
    for each in problems:
        print(f"demo.sh: {each}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
