"""The part `torch_server` of nvidia.py: examples/torch_server answers real requests, with and without sluice."""

import pathlib
import re
import statistics
import subprocess
import sys
import time

import nvidia
import serving

EXAMPLE = pathlib.Path(__file__).resolve().parents[2] / "examples/torch_server"
sys.path.append(str(EXAMPLE))
import http_load  # noqa: E402

MODES = ("alone", "beside", "sluice")
LOAD = 0.3  # Share of the time in which the server alone would be busy.
QUICK_SECONDS, SECONDS = 8.0, 20.0


class Program:
    """A program of the example, and what it prints."""

    def __init__(self, on, name, *arguments, environment):
        self.name = name
        self.path = on.out / f"{on.part}-{name}.txt"
        with open(self.path, "wb") as file:
            self.process = subprocess.Popen([sys.executable, "-B", EXAMPLE / f"{name}.py", *arguments], stdout=file,
                                            stderr=file, env=environment, preexec_fn=nvidia.die_with_parent)
        self.pid = self.process.pid
        on.servers.append(self)

    def text(self):
        return self.path.read_text(encoding="utf-8", errors="replace")

    def check_alive(self):
        if self.process.poll() is not None:
            raise nvidia.Failure(f"{self.name}.py ended with code {self.process.returncode}: {nvidia.last_line(self.text())}")

    def wait_text(self, form):
        """Waits until a line has this form."""
        return nvidia.wait_until(lambda: self.check_alive() or re.search(form, self.text(), re.M), 4 * nvidia.PATIENCE,
                                 f"a line of the form '{form}' from {self.name}.py")

    def steps(self):
        """(step, seconds) of the lines of the training."""
        return [(int(step), float(at)) for step, at in re.findall(r"^step (\d+), ([\d.]+) s, loss", self.text(), re.M)]

    def pace(self, printed, mode):
        """Steps per second of the training, by the lines after the first `printed` ones."""
        self.check_alive()
        lines = self.steps()[printed:]
        if len(lines) < 2:
            raise nvidia.Failure(f"{mode}: the training printed {len(lines)} lines; expected at least 2")
        return (lines[-1][0] - lines[0][0]) / (lines[-1][1] - lines[0][1])

    def stop(self):
        self.process.kill()
        self.process.wait(nvidia.PATIENCE)


def measure(on, mode, seconds, length):
    """Starts the programs anew, makes requests, and ends the programs. length: of a request alone; None: measures it."""
    daemon = nvidia.Daemon(on, slice_="1ms", quantum="50us") if mode == "sluice" else None
    environment = daemon.environment if daemon else on.environment
    server = Program(on, "server", "--port", "0", environment=environment)
    train = Program(on, "train", environment=environment) if mode != "alone" else None
    port = int(server.wait_text(r"^serving on http://127\.0\.0\.1:(\d+)")[1])
    if train:
        train.wait_text(r"^step ")
    if daemon:
        daemon.wait_attached(train)
        nvidia.wait_until(lambda: any(each["name"] == "torch_server" for each in daemon.status()["clients"]),
                          nvidia.PATIENCE, "registration of server.py as a client")
    alone = None
    if mode == "beside":  # Without requests, the server has no work on the GPU.
        time.sleep(serving.OFFLINE_WARM_UP)
        before = len(train.steps())
        time.sleep(seconds)
        alone = train.pace(before, "training alone")
    length = length or http_load.length_of_request(port)
    arrivals = http_load.arrivals_of(LOAD, length, seconds)
    before = len(train.steps()) if train else 0
    _, answers, errors = http_load.request_all(port, arrivals)
    latencies = sorted(latency for _, latency in answers)
    if not latencies:
        raise nvidia.Failure(f"{mode}: no request was answered: {errors[:1]}")
    case = {"mode": mode, "requests": len(arrivals), "errors": errors[:10], "failed": len(errors),
            "p50_ms": http_load.quantile(latencies, 0.5), "p99_ms": http_load.quantile(latencies, 0.99),
            "max_ms": latencies[-1], "length_s": length}
    if train:
        case["steps_per_s"] = train.pace(before, mode)
    if alone:
        case["steps_per_s_alone"] = alone
    server.check_alive()
    if daemon:
        counters = daemon.status()["statistics"]
        case["suspends"], case["begins"] = counters["suspend_call"]["count"], counters["begins"]
    on.drop(server, *([train] if train else []), *([daemon] if daemon else []))
    return case


def torch_server(on):
    """the example torch_server answers HTTP requests beside its training, with and without sluice"""
    if not on.torch:
        on.note("without PyTorch: not tested")
        on.skipped = True
        return
    on.add_package()
    seconds, rounds = (QUICK_SECONDS, 1) if on.quick else (SECONDS, 3)
    cases = on.result["cases"] = []
    length, longest = None, 0.0
    for number in range(rounds):
        began = nvidia.now()
        if number > 0 and began + longest > on.deadline - 15:
            on.note(f"{number} of {rounds} rounds in the time of this part")
            break
        for mode in MODES:
            on.say(f"round {number + 1}: {mode}")
            cases.append(measure(on, mode, seconds, length))
            length = length or cases[0]["length_s"]
        longest = max(longest, nvidia.now() - began)
    on.figure("torch_server: a request alone", [1e3 * length], "ms")
    training_alone = statistics.median(each["steps_per_s_alone"] for each in cases if each["mode"] == "beside")
    on.figure("torch_server: training alone: steps of the training", [training_alone], "1/s")
    for mode in MODES:
        all_ = [each for each in cases if each["mode"] == mode]
        middle = lambda key: statistics.median(each[key] for each in all_)
        on.figure(f"torch_server: {mode}: p50 / p99 of a request", [middle("p50_ms"), middle("p99_ms")], "ms")
        on.figure(f"torch_server: {mode}: p99 of the rounds, least / most",
                  [choose(each["p99_ms"] for each in all_) for choose in (min, max)], "ms")
        if mode != "alone":
            steps = middle("steps_per_s")
            on.figure(f"torch_server: {mode}: steps of the training / share of alone", [steps, 100 * steps / training_alone],
                      "1/s, %")
    failed = sum(each["failed"] for each in cases)
    held = [each for each in cases if each["mode"] == "sluice"]
    on.figure("torch_server: sluice: requests / begins / suspends",
              [sum(each[key] for each in held) for key in ("requests", "begins", "suspends")], "")
    unseen = sum(each["requests"] > each["begins"] for each in held)
    on.require("requests that failed", failed)
    on.require("rounds in which the daemon missed begins of requests", unseen)
    on.require("suspends in a round", min(each["suspends"] for each in held), 1, least=True)
