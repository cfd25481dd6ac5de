"""Requests beside offline work: the same arrivals alone, without a scheduler, and with each policy. nvidia.py uses this
for the parts `serving`. A request is late from when it was due, so time in the queue counts. Latencies are in us."""

import collections
import random
import statistics
import subprocess
import time

import report
import seeing

LOADS = (0.1, 0.3, 0.6)
# Each request of one short kernel costs two switches between the programs, which take longer than its kernel.
SHORT_LOADS = (0.01, 0.03, 0.1)
# Of the time of a row: light loads need longer for as many requests.
SHARE_OF_TIME = {0.01: 0.6, 0.03: 0.25, 0.1: 0.45, 0.3: 0.3, 0.6: 0.25}
ROUNDS, REQUESTS = 3, 1000
# s: longest (also of short requests) and shortest time of the loads of a row in one round, and what a new daemon and the
# questions for the clock in one row take.
LONGEST, LONGEST_SHORT, SHORTEST, DAEMON, CLOCK = 14, 7, 2.5, 1.5, 2.5
# s: how much longer a queue that grows may go on, so that its growth shows; what each load of a row takes besides; and
# what the part keeps for its end and for rounds that take longer than planned.
GROWING, BESIDES, SPARE = 1, 0.3, 20
WARM_UP, WARM_UP_UNMARKED = 1, 2
# `slo` counts misses before it holds for all requests; by `sluice lab`, that takes 130 of them or so.
WARM_UP_LEARNING = {0.1: 12, 0.3: 4, 0.6: 4}
# The GPU lowers its clock in the first seconds of full load.
OFFLINE_WARM_UP, OFFLINE_ALONE = 3, 4

QUANTUM = 'offline_quantum = "50us"'


def hold(slice_="100us", quantum=None):
    """A policy that holds offline work while requests are in flight."""
    lines = ['name = "fixed_timeslice"', f'slice = "{slice_}"', 'release = "client_done"']
    return "\n".join(lines + ([f'offline_quantum = "{quantum}"'] if quantum else []))


HOLD = hold()
POLLING = '''name = "pointer_polling"
fast = "50us"
slow = "2ms"
linger = "1ms"'''
SLO = '''name = "slo"
request.p99 = "{target}us"
suspend_cost = "700us"
resume_cost = "400us"'''
# Of the p99 alone, what `slo` aims at: what it cannot keep, it holds for from the begin of each request; and what it can
# keep without holds, where requests gain nothing by them.
AIM, AIM_WITHOUT_HOLDS = 0.95, 1.3

# policy: None: no daemon. limit: bound of p99, as a multiple of that alone; None: no bound.
Mode = collections.namedtuple("Mode", "name policy marks limit")
MODES = (
    Mode("alone", None, False, None),
    Mode("beside", None, False, None),
    Mode("quantum only", f"{HOLD}\n{QUANTUM}", False, None),
    Mode("fixed_timeslice", f"{HOLD}\n{QUANTUM}", True, 1.05),
    Mode("fixed_timeslice, no quantum", HOLD, True, None),
    Mode("slo", f"{SLO}\n{QUANTUM}", True, 1.05),
    Mode("pointer_polling", POLLING, False, 1.10),
)
# Of requests of one short kernel, for which a hold takes too long. Other quanta, without a bound, show what one costs.
SHORT_MODES = (*MODES[:4], *(Mode(f"quantum only, {length}", f'{HOLD}\noffline_quantum = "{length}"', False, None)
                             for length in ("25us", "100us", "200us")))
GAINS_FROM = 1.5  # p99 beside / alone from which marks must help.
OFFLINE_LEAST, OFFLINE_MARGIN = 0.97, 0.03
SHORT_LIMIT, SHORT_OFFLINE_LEAST = 3, 0.95


# The arrivals and what is made of a log.


def arrivals(load, length_us, seconds, seed=""):
    """Times in ns from the start, exponential: the same for the same arguments."""
    chance = random.Random(f"{load} {seed}")
    mean = length_us / load * 1e3
    times, at = [], 0.0
    while True:
        at += chance.expovariate(1 / mean)
        if at >= seconds * 1e9:
            return times or [0]
        times.append(int(at))


def latencies(lines, due, gpu_us):
    """Figures of the log of a row. due: how many requests it should have made. gpu_us: what each takes of the GPU."""
    made = [tuple(map(int, line.split())) for line in lines]
    if not made:
        return {"due": due, "n": 0, "use": None, "overloaded": True}
    took = [(end - at) / 1e3 for at, _, end in made]
    worked = sum(end - begin for _, begin, end in made)
    # The queue grows where requests take longer than the time from one arrival to the next.
    growing = len(made) > 1 and worked / len(made) >= (made[-1][0] - made[0][0]) / (len(made) - 1)
    return {"due": due, "n": len(made), "use": 1e3 * gpu_us * len(made) / (made[-1][2] - made[0][0]),
            "overloaded": growing or len(made) < due, "p50": seeing.quantile(took, 0.5),
            "p90": seeing.quantile(took, 0.9), "p99": seeing.quantile(took, 0.99), "max": max(took)}


def summary(rounds):
    """Of one row: each figure as [median, least, most] of its rounds; `overloaded` if most rounds were."""
    found = {"due": sum(each["due"] for each in rounds), "n": sum(each["n"] for each in rounds), "rounds": len(rounds),
             "overloaded": 2 * sum(each["overloaded"] for each in rounds) >= len(rounds)}
    for key in ("use", "p50", "p90", "p99", "max", "steps", "suspends", "lost"):
        values = [each[key] for each in rounds if each.get(key) is not None]
        found[key] = [statistics.median(values), min(values), max(values)] if values else None
    return found


def spread(of):
    """Of a figure of summary(): its range, as a share of its median."""
    return (of[2] - of[1]) / of[0] if of and of[0] else float("inf")


def floor(rows, load, offline):
    """The offline steps/s that a scheduler can leave: what it gets beside without one, or what online work leaves."""
    alone, beside = rows.get((load, "alone")), rows.get((load, "beside"))
    if not (alone and beside and alone["use"] and beside["steps"] and offline):
        return None
    return min(beside["steps"][0], (1 - alone["use"][0]) * offline[0])


def bound(name, unit, limit, value, noise, margin, least=False):
    """A bound is kept only if the figures alone differ by less than its margin."""
    kept = value is not None and (value >= limit if least else value <= limit) and noise < margin
    made = {"name": name, "unit": unit, "limit": limit, "value": None if value is None else round(value, 4),
            "kept": kept}
    if least:
        made["least"] = True
    if value is not None and noise >= margin:
        made["why"] = f"the figures alone differ by {100 * noise:.1f} %, and the margin is {100 * margin:g} %"
    return made


def bounds(rows, offline, short=False):
    """rows: summaries by (load, name of mode). offline: steps/s of the offline program alone, as in a summary."""
    found = []
    for load in sorted({load for load, _ in rows}):
        alone, beside = rows.get((load, "alone")), rows.get((load, "beside"))
        if not (alone and beside and alone["p99"]):
            continue
        possible = floor(rows, load, offline)
        gains = beside["overloaded"] or beside["p99"][0] >= GAINS_FROM * alone["p99"][0]
        for mode in SHORT_MODES if short else MODES:
            row = rows.get((load, mode.name))
            if row is None or not (mode.name == "quantum only" if short else mode.limit):
                continue
            limit = SHORT_LIMIT if short else mode.limit
            name = f"{100 * load:g} %, {mode.name}"
            if gains or short or not mode.marks:
                ratio = None if row["overloaded"] or not row["p99"] else row["p99"][0] / alone["p99"][0]
                found.append(bound(f"{name}: p99", "of alone", limit, ratio, spread(alone["p99"]), limit - 1))
            least = SHORT_OFFLINE_LEAST if short else OFFLINE_LEAST
            share = row["steps"][0] / possible if row["steps"] and possible else None
            found.append(bound(f"{name}: offline steps/s", "of what is possible", least, share, spread(offline),
                               1 - least, least=True))
    by_mode = collections.Counter()
    for (_, name), row in rows.items():
        by_mode[name] += row["due"]
    if by_mode:
        for name, least, value in (("requests of each row over all loads", REQUESTS, min(by_mode.values())),
                                   ("rounds", ROUNDS, min(row["rounds"] for row in rows.values()))):
            found.append(bound(name, "", least, value, 0, 1, least=True))
    return found


# The measurement.


class Measurement:
    """One kind of requests beside one kind of offline work. Both programs run from the begin to the end."""

    starts = 0  # s of a round in which other programs start.
    clock_seen_in = "alone", "fixed_timeslice"

    def __init__(self, on, server, offline, short=False, eager=False):
        self.on, self.server, self.offline, self.short = on, server, offline, short
        self.modes, self.aims_at = SHORT_MODES if short else MODES, AIM
        if eager:  # Requests gain nothing by holds, and a quantum would cost offline work for nothing.
            self.modes = [mode._replace(policy=SLO) if is_slo(mode) else mode for mode in MODES]
            self.aims_at = AIM_WITHOUT_HOLDS
        loads = SHORT_LOADS if short else LOADS
        self.loads = loads[0::2] if short and on.quick else loads[1:2] if on.quick else loads
        self.rounds = 1 if on.quick else ROUNDS
        self.rows = collections.defaultdict(list)
        self.alone = []  # Offline steps/s, by round.
        self.daemon, self.has, self.aims = None, None, {}
        self.broken = {}  # Why a mode has no figures.
        self.counted = collections.Counter()
        self.clocks = collections.defaultdict(list)  # MHz.

    def write_arrivals(self, name, load, seconds):
        times = arrivals(load, self.server.alone_us, seconds, name)
        path = self.on.scratch / f"{name}.{load}"
        path.write_text("".join(f"{each}\n" for each in times), encoding="utf-8")
        return path, len(times)

    def seconds(self):
        """Of the loads of a row in one round, so that all rounds fit."""
        daemons = sum(DAEMON + warm_up(mode, load) for mode in self.modes if mode.policy is not None
                      for load in (self.loads if is_slo(mode) else self.loads[:1]))
        left = self.on.deadline - time.monotonic() - SPARE
        each = left / self.rounds - daemons - CLOCK * len(self.clock_seen_in) - self.starts - OFFLINE_WARM_UP - OFFLINE_ALONE - 1
        # In most rows without a scheduler, the queue of the heaviest load grows.
        each = each / len(self.modes) - BESIDES * len(self.loads) - GROWING
        return max(SHORTEST, min(each, 4 if self.on.quick else LONGEST_SHORT if self.short else LONGEST))

    def run(self):
        total = self.seconds()
        shares = {load: SHARE_OF_TIME[load] for load in self.loads}
        self.spans = {load: total * share / sum(shares.values()) for load, share in shares.items()}
        self.files = {load: self.write_arrivals("arrivals", load, span) for load, span in self.spans.items()}
        self.warm = {(load, seconds): self.write_arrivals(f"warm-up.{seconds}", load, seconds)
                     for load in self.loads for seconds in {WARM_UP_UNMARKED, *(warm_up(mode, load) for mode in self.modes)}}
        self.on.say(f"a request takes {self.server.alone_us:.0f} us alone; requests in a round: "
                    + ", ".join(f"{self.files[load][1]} at {100 * load:g} %" for load in self.loads))
        longest = 0.0
        for number in range(self.rounds):
            began = time.monotonic()
            if number and began + longest > self.on.deadline - 5:
                self.on.note(f"{number} of {self.rounds} rounds in the time of this part")
                break
            self.round(number)
            longest = max(longest, time.monotonic() - began)

    def round(self, number):
        self.measure_offline()
        self.measure(number, self.modes)

    def measure_offline(self):
        self.offline.wait_moving()
        time.sleep(OFFLINE_WARM_UP)
        self.note_clock("offline work alone", self.see_clock("offline work alone", 0.1))
        before = self.offline.progress()
        time.sleep(OFFLINE_ALONE)
        self.alone.append(rate(before, self.offline.progress()))

    def measure(self, number, modes):
        others = list(modes[1:])
        random.Random(number).shuffle(others)  # Not the same one is always behind the same other one.
        for mode in (modes[0], *others):
            self.turn(number, mode)

    def turn(self, number, mode):
        began, said = time.monotonic(), []
        for load in self.loads:
            if self.prepare(mode, load):
                self.rows[load, mode.name].append(self.row(mode, load))
                said.append(f"{100 * load:g} %: {brief(self.rows[load, mode.name][-1])}")
        if mode.name in self.clock_seen_in and mode.name not in self.broken:
            self.see_clock_of_requests(mode, self.loads[-1])
        self.drop_daemon(mode)
        self.on.say(f"round {number + 1}, {mode.name}: {time.monotonic() - began:.1f} s; {', '.join(said)}")

    def prepare(self, mode, load):
        """Lets what the mode needs run: the offline program, and a daemon with its policy. Returns whether it runs."""
        if mode.name == "alone":
            self.offline.pause()
            return True
        self.offline.go_on()
        if mode.policy is None:
            self.offline.wait_moving()
            return True
        if mode.name in self.broken:
            return False
        policy = mode.policy.replace("{target}", str(self.aim(load)))
        wanted = policy, load if is_slo(mode) else None  # `slo` learns each load anew.
        if self.daemon and self.has == wanted:
            return True
        self.drop_daemon(mode)
        try:
            self.daemon, self.has = self.start_daemon(mode, policy), wanted
        except Exception as error:  # Of one policy: the others have their rows.
            self.offline.check_alive()
            self.on.problem(f"{mode.name}: {error}")
            self.broken[mode.name] = f"failed: {error}"
            self.daemon = self.has = None
            for each in list(self.on.daemons):
                self.on.drop(each)
            return False
        if mode.marks:
            self.server.mark(self.daemon.directory / "clients.sock")
        # The policy, and the words of programs that mark nothing, become known.
        seconds = warm_up(mode, load)
        self.server.play(self.warm[load, seconds][0], self.on.scratch / "made", seconds + 1)
        return True

    def start_daemon(self, mode, policy):
        """A daemon that has attached to the offline program."""
        daemon = self.on.daemon(policy=policy)
        daemon.wait_attached(self.offline)
        return daemon

    def see_clock(self, of, seconds):
        """Returns times (CLOCK_MONOTONIC, ns) and the GPU's clock at each, in MHz. It falls under heavy work, and every
        kernel then takes longer."""
        seen, until = [], time.monotonic() + seconds
        try:
            with subprocess.Popen(["nvidia-smi", "--query-gpu=clocks.sm", "--format=csv,noheader,nounits",
                                   f"--id={self.on.gpu}", "--loop-ms=20"], env=self.on.environment, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, text=True) as asked:
                try:
                    for line in asked.stdout:
                        seen.append((time.monotonic_ns(), float(line)))
                        if time.monotonic() >= until:
                            break
                finally:
                    asked.kill()
        except (OSError, ValueError) as error:  # Nothing else depends on it.
            self.on.note(f"clock of the GPU, {of}: {error}")
        return seen

    def see_clock_of_requests(self, mode, load):
        """While requests run. Not those of the rows, because the questions could delay them."""
        seen, log, seconds = [], self.on.scratch / "made", WARM_UP_UNMARKED
        of = f"requests, {mode.name}, {100 * load:g} %"
        self.server.play(self.warm[load, seconds][0], log, seconds + 1,
                         lambda: seen.extend(self.see_clock(of, seconds)))
        spans = [tuple(map(int, line.split()[1:])) for line in log.read_text(encoding="utf-8").splitlines()]
        self.note_clock(of, (each for each in seen if any(begin <= each[0] <= end for begin, end in spans)))

    def note_clock(self, of, seen):
        clocks = [clock for _, clock in seen]
        if clocks:
            self.clocks[of].append(statistics.median(clocks))

    def aim(self, load):
        """What `slo` gets as its target, in us: the same in all rounds."""
        if load not in self.aims:
            self.aims[load] = max(100, round(self.aims_at * self.rows[load, "alone"][0]["p99"]))
        return self.aims[load]

    def drop_daemon(self, mode):
        if self.daemon is None:
            return
        daemon, self.daemon, self.has = self.daemon, None, None
        statistics_ = (daemon.status() or {}).get("statistics", {})
        self.counted[mode.name, "suspends"] += statistics_.get("suspends", 0)
        self.counted[mode.name, "quanta"] += statistics_.get("quanta", 0)
        for failure, count in statistics_.get("failures", {}).items():
            self.counted[mode.name, failure] += count
        if mode.marks:
            self.server.mark("-")
        self.on.drop(daemon)
        self.offline.wait_moving()  # Whatever the daemon held.

    def row(self, mode, load):
        path, due = self.files[load]
        log = self.on.scratch / "made"
        suspends, lost = self.acted()
        before = self.offline.progress()
        self.server.play(path, log, self.spans[load] + GROWING)
        after = self.offline.progress()
        found = latencies(log.read_text(encoding="utf-8").splitlines(), due, self.server.gpu_us)
        found["steps"] = None if mode.name == "alone" else rate(before, after, time.monotonic_ns())
        if self.daemon:
            now = self.acted()
            found["suspends"], found["lost"] = now[0] - suspends, now[1] - lost
        return found

    def acted(self):
        """How often the daemon has suspended a process so far, and the GPU time in s for which it held offline work."""
        if self.daemon is None:
            return 0, 0.0
        status = self.daemon.status()
        if status is None:
            self.daemon.check_alive()
            raise ValueError("the daemon does not answer 'sluice status'")
        return (status["statistics"]["suspend_call"]["count"],
                sum(group["lost_ms"] for group in status["groups"] if group["role"] == "offline") / 1e3)

    def show(self, title):
        """What was measured, also where the part ended early."""
        rows = {}
        for load, name in ((load, mode.name) for load in self.loads for mode in self.modes):
            if self.rows.get((load, name)):
                rows[load, name] = summary(self.rows[load, name])
            elif name in self.broken:
                rows[load, name] = {**summary([]), "why": self.broken[name]}
        offline = [statistics.median(self.alone), min(self.alone), max(self.alone)] if self.alone else None
        on = self.on
        on.result["serving"] = {
            "title": title, "request_us": self.server.alone_us, "offline_alone": offline,
            "offline_rounds": self.alone, "aims_us": self.aims,
            "rows": [{"load": load, "mode": name, **row} for (load, name), row in rows.items()]}
        print("\n".join(seeing.table(report.serving_cells(on.result["serving"]))), flush=True)
        if offline:
            on.figure(f"{title}: offline alone", offline[:1], "steps/s")
        for of, seen in self.clocks.items():
            on.figure(f"{title}: clock of the GPU, {of}", [statistics.median(seen)], "MHz")
        for (load, name), row in rows.items():
            start = f"{title}: {100 * load:g} %, {name}"
            if row["overloaded"]:
                on.note(f"{start}: {row.get('why', 'overloaded')}")
            else:
                on.figure(f"{start}: {report.LATENCIES}", [row[key][0] for key in ("p50", "p90", "p99", "max")], "us")
                on.figure(f"{start}: range of p99, of its median", [100 * spread(row["p99"])], "%")
            if row["steps"] and offline and offline[0]:
                steps = row["steps"][0]
                on.figure(f"{start}: offline steps/s / of alone in %", [steps, 100 * steps / offline[0]], "")
            if row["suspends"]:
                on.figure(f"{start}: suspends / GPU time lost in s", [row["suspends"][0], row["lost"][0]], "")
        for mode in self.modes:
            if mode.name in self.broken and any(name == mode.name and row["rounds"] for (_, name), row in rows.items()):
                on.note(f"{title}: {mode.name}: {self.broken[mode.name]}; its figures are of the rounds before")
            counts = {what: count for (name, what), count in self.counted.items() if name == mode.name}
            for what, count in counts.items():
                if what not in ("suspends", "quanta") and count:
                    on.note(f"{mode.name}: {what}: {count}")
            if counts and mode.name.startswith("fixed_timeslice") and not counts["suspends"]:
                on.problem(f"{mode.name}: the daemon suspended nothing")
            if counts and "offline_quantum" in (mode.policy or "") and not counts["quanta"]:
                on.problem(f"{mode.name}: the daemon set no quantum")
        for each in self.bounds(rows, offline):
            on.bound({**each, "name": f"{title}: {each['name']}"})

    def bounds(self, rows, offline):
        return bounds(rows, offline, self.short)


def is_slo(mode):
    return "{target}" in (mode.policy or "")


def warm_up(mode, load):
    return WARM_UP_LEARNING[load] if is_slo(mode) else WARM_UP if mode.marks else WARM_UP_UNMARKED


def rate(before, after, until=None):
    """Steps/s between two results of progress(). until: a later time, until which no other step ended."""
    if after[1] <= before[1]:
        return 0.0
    steps, span = after[0] - before[0], after[1] - before[1]
    # A hold at the end counts, too: no whole step fits into the rest.
    return 1e9 * (min(steps / span, (steps + 1) / (until - before[1])) if until else steps / span)


def brief(row):
    return "overloaded" if row["overloaded"] else f"p99 {row['p99']:.0f} us"


def serve(on, title, start_server, start_offline, **kind):
    server = start_server()  # Measures its requests while nothing else runs.
    offline = start_offline()
    measured = Measurement(on, server, offline, **kind)
    try:
        measured.run()
    finally:
        measured.show(title)
