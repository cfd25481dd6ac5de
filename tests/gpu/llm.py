"""The part `llm` of nvidia.py: a language model serves requests of a trace beside training."""

import collections
import csv
import datetime
import json
import pathlib
import random
import statistics
import sys
import time

import llm_loop
import nvidia
import serving

HERE = pathlib.Path(__file__).resolve().parent
MODES = ("alone", "beside", "fixed_timeslice", "slo", "pointer_polling")
MARKED = ("fixed_timeslice", "slo")
WARM_UP = 2.0  # Seconds of each series that do not count.
SECONDS = 7.0  # Of each series that count.
DRAIN = 2.0  # Seconds after the last arrival. A server that needs longer has more to do than it can.
STRETCH = 300  # Requests of the trace. Longer ones have pauses, and bursts beyond what the server can do.
# Of the targets of `slo`: a multiple of the p99 alone.
TARGET = 1.5


def read_trace(path):
    """Requests of a file in the Azure LLM trace format: seconds since the first one, tokens of prompt and output."""
    rows = []
    with open(path, encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            whole, _, part = row["TIMESTAMP"].partition(".")
            at = datetime.datetime.strptime(whole[:19], "%Y-%m-%d %H:%M:%S").timestamp() + float("0." + (part or "0"))
            rows.append((at, int(row["ContextTokens"]), int(row["GeneratedTokens"])))
    if len(rows) < 2:
        raise ValueError(f"{path} has {len(rows)} requests")
    return [(at - rows[0][0], prompt, output) for at, prompt, output in rows]


def write_trace(path, plan):
    """The requests as they are served, in the format of read_trace()."""
    start = datetime.datetime(2000, 1, 1)
    with open(path, "w", encoding="utf-8") as file:
        file.write("TIMESTAMP,ContextTokens,GeneratedTokens\n")
        for number, (at, prompt, output) in enumerate(plan):
            request = llm_loop.Request(number, 0, prompt, output)
            file.write(f"{start + datetime.timedelta(seconds=at):%Y-%m-%d %H:%M:%S.%f},"
                       f"{request.prompt},{request.output}\n")


def densest(rows):
    """The successive requests of the trace that arrive in the shortest time, STRETCH of them, from 0 to 1."""
    count = min(STRETCH, len(rows))
    first = min(range(len(rows) - count + 1), key=lambda index: rows[index + count - 1][0] - rows[index][0])
    chosen = rows[first:first + count]
    # The last one does not arrive together with the first one of the next pass.
    whole = (chosen[-1][0] - chosen[0][0]) * count / (count - 1) or 1.0
    return [((at - chosen[0][0]) / whole, prompt, output) for at, prompt, output in chosen]


def repeated(stretch, length, seconds):
    """The stretch again and again, each time in `length` seconds, until the seconds are over."""
    made = []
    while True:
        turn = len(made) // len(stretch)
        for at, prompt, output in stretch:
            if (at + turn) * length >= seconds:
                return made
            made.append(((at + turn) * length, prompt, output))


def share_of_time(arrivals, costs, seconds):
    """Share of the seconds in which the engine works, in virtual time."""
    virtual = llm_loop.Virtual(costs)
    end = round(1e9 * seconds)
    _, busy = llm_loop.serve(virtual, virtual, [(round(1e9 * at), *lengths) for at, *lengths in arrivals],
                             llm_loop.NoMarks(), end)
    return min(busy, end) / end


def scaled(rows, load, seconds, costs):
    """Requests of the trace, as fast as lets the engine work for the share `load` of the seconds."""
    stretch = densest(rows)
    fast, slow = seconds / 100, seconds * 1000
    for _ in range(30):
        middle = (fast * slow) ** 0.5
        if share_of_time(repeated(stretch, middle, seconds), costs, seconds) > load:
            fast = middle
        else:
            slow = middle
    return repeated(stretch, slow, seconds)


def quantile(values, share):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else None


def latencies(log, since):
    """Of the requests that arrived since then: ms to the first token, ms between tokens, and how many did not end.
    log: number, arrival, length of the output and tokens of each request, in ns."""
    first, between, unfinished = [], [], 0
    for _, arrival, output, tokens in log:
        if arrival < since:
            continue
        unfinished += len(tokens) < output
        if tokens:
            first.append((tokens[0] - arrival) / 1e6)
            between += [(b - a) / 1e6 for a, b in zip(tokens, tokens[1:])]
    return first, between, unfinished


class Case:
    """What a server, a training, and perhaps a daemon do together in one series of requests."""

    def __init__(self, on, server, training, plans):
        self.on, self.server, self.training, self.plans = on, server, training, plans
        self.targets = {}  # By load: policy of `slo`.

    def policies(self, load):
        """By mode, as in a configuration."""
        return {"fixed_timeslice": serving.hold("1ms"),
                "slo": 'name = "slo"\nsuspend_cost = "1ms"\nresume_cost = "1ms"\n' + self.targets[load],
                "pointer_polling": nvidia.POLLING}

    def measure(self, mode, load):
        on, training = self.on, self.training
        if mode == "alone":
            training.pause()
        daemon = None
        try:
            if mode not in ("alone", "beside"):
                daemon = nvidia.Daemon(on, policy=self.policies(load)[mode])
                daemon.wait_attached(training)
            order = {"arrivals": str(self.plans[load]), "log": str(on.scratch / "llm.log"),
                     "limit_s": WARM_UP + SECONDS + DRAIN,
                     "socket": str(daemon.directory / "clients.sock") if mode in MARKED else None}
            self.server.process.stdin.write((json.dumps(order) + "\n").encode())
            since = self.server.answer()["begun"] + round(1e9 * WARM_UP)
            time.sleep(max(0, since - time.monotonic_ns()) / 1e9)
            before = training.progress()
            time.sleep(SECONDS)
            rate = serving.rate(before, training.progress(), time.monotonic_ns())
            busy = self.server.answer(DRAIN + nvidia.PATIENCE)["busy_s"]
            statistic = daemon.status()["statistics"] if daemon else None
        finally:
            if mode == "alone":
                training.go_on()
        if daemon:
            on.drop(daemon)
            for failure, count in statistic["failures"].items():
                if count:
                    on.note(f"{mode}, {100 * load:.0f} %: failures of the daemon: {failure}: {count}")
        training.wait_moving()
        with open(order["log"], encoding="utf-8") as file:
            first, between, unfinished = latencies(json.load(file), since)
        return {"mode": mode, "load": load, "first_ms": first, "between_ms": between, "unfinished": unfinished,
                "busy_s": busy, "steps_per_s": rate,
                "suspends": statistic["suspend_call"]["count"] if statistic else 0,
                "begins": statistic["begins"] if statistic else 0}

    def aim(self, load, alone):
        """Sets the targets of `slo` by a series alone."""
        first, between = (quantile(alone[key], 0.99) for key in ("first_ms", "between_ms"))
        if first is None or between is None:
            raise nvidia.Failure(f"{100 * load:.0f} %: the server alone made no tokens")
        self.targets[load] = f'ttft.p99 = "{1e3 * TARGET * first:.0f}us"\nitl.p99 = "{1e3 * TARGET * between:.0f}us"'
        self.on.note(f"{100 * load:.0f} %: targets of slo: {self.targets[load]}".replace("\n", ", "))


def prepare(on, server, loads):
    """Writes the arrivals of each load: for the server, and in the format of the trace, for sluice lab."""
    rows, plans = read_trace(on.trace), {}
    for load in loads:
        whole = WARM_UP + SECONDS
        plan = scaled(rows, load, whole, server.described)
        if len(plan) < 20:
            raise ValueError(f"{on.trace} has only {len(plan)} requests for a load of {100 * load:.0f} %")
        plans[load] = on.scratch / f"arrivals-{load}"
        plans[load].write_text(json.dumps(plan), encoding="utf-8")
        write_trace(on.out / f"llm-{100 * load:.0f}.csv", plan)
        on.figure(f"llm: {100 * load:.0f} %: requests per second / tokens of prompts / of outputs, means",
                  [len(plan) / whole, statistics.mean(min(each[1], llm_loop.MOST_PROMPT) for each in plan),
                   statistics.mean(min(each[2], llm_loop.MOST_OUTPUT) for each in plan)], "")
    return plans


def measure(on, case, cases, loads, rounds):
    """Adds the series of each round to the cases."""
    longest = 0.0
    for number in range(rounds):
        began = nvidia.now()
        if number > 0 and began + longest > on.deadline - 15:
            on.note(f"{number} of {rounds} rounds in the time of this part")
            break
        for load in loads:
            order = list(MODES[1:])
            random.Random(number).shuffle(order)
            for mode in ["alone", *order]:
                on.say(f"round {number + 1}: {100 * load:.0f} %, {mode}")
                cases.append(case.measure(mode, load))
                if mode == "alone" and number == 0:
                    case.aim(load, cases[-1])
        longest = max(longest, nvidia.now() - began)


def llm(on):
    """a language model of 1 billion parameters serves requests of a trace beside training"""
    if not on.torch or not on.trace:
        on.note("without PyTorch: not tested" if not on.torch else "without --trace FILE: not tested")
        on.skipped = True
        return
    loads, rounds = ((0.3,), 1) if on.quick else ((0.3, 0.6), 3)
    on.add_package()
    server = nvidia.Server(on, "llm", [sys.executable, "-B", HERE / "llm_server.py"])
    for what in ("prefill_us", "decode_us"):
        costs = server.described[what]
        on.figure(f"llm: {what.split('_')[0]} of {' / '.join(costs)} {'tokens' if what[0] == 'p' else 'requests'}",
                  list(costs.values()), "us")
    plans = prepare(on, server, loads)
    training = on.trainer("transformer")
    time.sleep(serving.OFFLINE_WARM_UP)
    before = training.progress()
    time.sleep(serving.OFFLINE_ALONE)
    alone = serving.rate(before, training.progress())
    on.figure("llm: offline steps per second, alone", [alone], "")
    case = Case(on, server, training, plans)
    cases = on.result["cases"] = []
    try:
        measure(on, case, cases, loads, rounds)
    finally:  # Also where the part ended early.
        show(on, cases, alone)
        for each in cases:  # Thousands of values.
            del each["first_ms"], each["between_ms"]
    profile = on.out / "profile.toml"
    measured = profile.exists()
    on.result["lab_profile"] = profile.read_text(encoding="utf-8") if measured else "h100"
    on.note("in the lab: the profile " + ("that the part accept has measured" if measured else "h100, which is built in"))
    for load in loads:
        in_lab(on, load, server, case.policies(load), profile if measured else "h100")


def run_lab(on, policies, *options):
    """The rows of `sluice lab` with one setting and the limits of the daemons, by mode; none if it fails. policies: by
    mode, as in a configuration."""
    file, configuration = on.scratch / "lab.json", on.scratch / "lab.toml"
    configuration.write_text(f"[scheduler]\n{nvidia.LIMITS}\n", encoding="utf-8")
    names, chosen = {"online alone": "alone", "no scheduler": "beside"}, []
    for mode, policy in policies.items():
        (_, name), *keys = (line.split(" = ") for line in policy.replace('"', "").splitlines())
        chosen += ["--policy", f"{name}:{','.join(f'{key}={value}' for key, value in keys)}"]
        names[chosen[-1]] = mode
    done = on.run("lab", "--config", configuration, *chosen, *options, "--json", file)
    if done.returncode != 0:
        on.note(f"sluice lab ended with code {done.returncode}: {nvidia.last_line(done.stderr)}")
        return {}
    rows = json.loads(file.read_text(encoding="utf-8"))["settings"][0]["contenders"]
    return {names[row["name"]]: row for row in rows if row["name"] in names}


def in_lab(on, load, server, policies, profile):
    """Figures of the same arrivals in `sluice lab`, with the costs that were measured here."""
    prefill, decode = (server.described[key] for key in ("prefill_us", "decode_us"))
    least, most = llm_loop.BATCHES[0], llm_loop.BATCHES[-1]
    token = max(0.001, (decode[str(most)] - decode[str(least)]) / (most - least))
    step = max(0, decode[str(least)] - least * token)
    # The kernels of trainer.py are about this long.
    rows = run_lab(on, policies, "--arrivals", "trace", "--trace", on.out / f"llm-{100 * load:.0f}.csv",
                   "--profile", profile, "--service",
                   f"continuous:prefill_rate={1e6 * llm_loop.MOST_PROMPT / prefill[str(llm_loop.MOST_PROMPT)]:.0f},"
                   f"decode_token={1e3 * token:.0f}ns,decode_step={1e3 * step:.0f}ns,largest_batch={llm_loop.SLOTS}",
                   "--offline", "train:kernel_low=50us,kernel_high=1ms,queues=1")
    for mode, row in rows.items():
        name = f"llm in the lab: {100 * load:.0f} %, {mode}"
        for what, key in (("first token", "ttft"), ("token to token", "itl")):
            on.figure(f"{name}: {what}, p50 / p99", [row[f"{key}_{part}_ms"]["mean"] for part in ("p50", "p99")], "ms")
        if mode != "alone":
            on.figure(f"{name}: offline work, share of alone", [row["offline_percent"]["mean"]], "%")


def show(on, cases, alone):
    by_row = collections.defaultdict(list)
    for each in cases:
        by_row[each["load"], each["mode"]].append(each)
    for (load, mode), rounds in by_row.items():
        name = f"llm: {100 * load:.0f} %, {mode}"
        number = sum(len(each["first_ms"]) for each in rounds)
        on.figure(f"{name}: requests / suspends", [number, sum(each["suspends"] for each in rounds)], "")
        if mode in MARKED and not all(each["begins"] for each in rounds):
            on.problem(f"{name}: the daemon saw no begin of a request")
        if mode != "alone":
            rate = statistics.median(each["steps_per_s"] for each in rounds)
            on.figure(f"{name}: offline steps per second / share of alone", [rate, 100 * rate / alone], "1/s, %")
        unfinished = sum(each["unfinished"] for each in rounds)
        if unfinished:
            on.note(f"{name}: overloaded: {unfinished} requests did not end within {DRAIN:g} s after the last arrival")
            continue
        for what, key in (("first token", "first_ms"), ("token to token", "between_ms")):
            values = {share: [quantile(each[key], share) for each in rounds] for share in (0.5, 0.99)}
            if any(value is None for value in values[0.5]):
                on.problem(f"{name}: {what} was not measured")
                continue
            on.figure(f"{name}: {what}, p50 / p99", [statistics.median(values[0.5]), statistics.median(values[0.99])], "ms")
            on.figure(f"{name}: {what}, p99 of the rounds, least / most", [min(values[0.99]), max(values[0.99])], "ms")
    left = [each["unfinished"] for each in cases if each["mode"] == "fixed_timeslice"]
    on.require("requests that did not end with fixed_timeslice", sum(left) if left else None)
