"""What a recording of a daemon and the log of an online program show together: whether the daemon saw each request of
the program, how long after its begin and its end, and whether it took running work for finished. Times are nanoseconds
of CLOCK_MONOTONIC. nvidia.py uses this for the part `seeing`."""

import bisect
import collections
import itertools
import json
import statistics

US, MS = 1000, 1000000
WORKS = ("waiting", "running")
# Kinds of requests during which the GPU always has work, from the last launch to the end.
GAPLESS = {"kernel", "kernels", "two_streams", "thread", "graph"}
# Kinds that work on the host first, so that their delay begins too early.
SLOW_TO_SUBMIT = {"pageable_in", "pageable_out", "eager"}
# A request counts as seen until this time after its end, or a report's pause later where reports are rare. How long it
# takes to be seen is another bound.
SEEN_LATE, REPORT_PAUSE = 2 * MS, 1 * MS
# In us, from a begin or an end until the daemon has taken it in. Its policy decides in the same turn.
LATE = {"begin_seen": 200, "end_seen": 300}
# Before the end of a request by which its work may have ended: the host notices the end late.
END_LATE = 100 * US
LAUNCHED_LATE = 50 * US
# Only requests with such a pause behind them measure how long their end takes to be seen.
PAUSE_BEHIND = 1 * MS
MOST_EXAMPLES = 8

# at: when the agent looked; taken: when the daemon took it in.
Seen = collections.namedtuple("Seen", "at taken work count")
Batch = collections.namedtuple("Batch", "taken kind")
# submitted: when the first call that submits had returned.
Request = collections.namedtuple("Request", "kind begin submitted launched end")
Recording = collections.namedtuple("Recording", "seen batches clients lost")


def of_all(states):
    """The state of a process on all of its GPUs."""
    return next((each for each in ("running", "waiting", "consumed", "finished") if each in states), "unknown")


def read_recording(lines, pid):
    """What a recording has about a process, and the batches of all others. A last line that is cut short is left
    out."""
    base, lost, states = 0, 0, {}
    seen, batches, clients = [], [], []
    for line in lines:
        if not line.endswith("\n"):
            break
        if '"is":"seen"' in line:
            if '"what":"pointers_seen"' not in line or f'"pid":{pid},' not in line:
                continue
            entry = json.loads(line)
            states[entry.get("gpu", 0)] = entry.get("work", "unknown")
            seen.append(Seen(base + entry.get("at", entry["t"]), base + entry["t"], of_all(states.values()),
                             entry.get("count", 0)))
        elif '"is":"batch"' in line:
            entry = json.loads(line)
            if "error" not in entry:
                batches.append(Batch(base + entry["t"], entry["kind"]))
        elif '"is":"recording"' in line:
            base = json.loads(line)["clock_ns"]
        elif '"is":"client"' in line:
            clients.append(json.loads(line).get("name", ""))
        elif '"is":"gap"' in line:
            lost += json.loads(line)["count"]
    return Recording(seen, batches, clients, lost)


def read_log(lines):
    """The requests of an online program, in their order."""
    return [Request(kind, int(begin), int(submitted), int(launched), int(end))
            for kind, begin, submitted, launched, end in (line.split() for line in lines)]


def quantile(values, share):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else None


def analyse(recording, requests, since, until, linger):
    """Compares the requests that began from `since` to `until` with what was seen. Returns a dictionary by kind of
    request; the lists of delays are in us.

    missed: nothing was seen of the request. late: its submissions were only seen together with those of a later request,
    because no look came in time. wrong: `finished` was seen although its work ran (`gapless` requests were
    checked for that); pauses: the same, of kinds whose work can pause. blind: it began while ends were not seen.
    begin_seen, suspend: from its first submission, if nothing was under way; end_seen, resume: from its end, if a pause
    followed. examples: some requests that were missed or had a wrong end."""
    seen, batches = recording.seen, recording.batches
    looked = [each.at for each in seen]
    handed = [each.taken for each in batches]
    found = collections.defaultdict(lambda: {"n": 0, "missed": 0, "late": 0, "blind": 0, "gapless": 0, "wrong": 0, "pauses": 0,
                                             "begin_seen": [], "suspend": [], "end_seen": [], "resume": [], "examples": []})

    def show(what, request):
        of = found[request.kind]
        if len(of["examples"]) < MOST_EXAMPLES:
            of["examples"].append(example(what, request, seen, looked))

    usual = usual_counts(seen, looked, requests)
    for number, request in enumerate(requests):
        if not since <= request.begin < until:
            continue
        of = found[request.kind]
        of["n"] += 1
        previous = requests[number - 1] if number else None
        following = requests[number + 1].begin if number + 1 < len(requests) else None
        first = bisect.bisect_right(looked, request.begin)
        before = seen[first - 1].work if first else "unknown"
        of["blind"] += before == "consumed"

        # The begin.
        told = next((each for each in iterate(seen, first) if each.count or each.work in WORKS), None)
        last = request.end + SEEN_LATE + (REPORT_PAUSE if before == "consumed" else 0)
        if before not in WORKS and (told is None or told.at > last):
            # A report that came during a turn of the daemon has the time of that turn's begin, and may be younger.
            if first > 0 and seen[first - 1].count != 0 and seen[first - 1].at == seen[first - 1].taken:
                continue
            reports = list(iterate(seen, bisect.bisect_left(looked, told.at), told.at + US * LATE["begin_seen"])) if told else []
            what = "late" if came_together(requests[number:], reports, usual) else "missed"
            of[what] += 1
            show(what, request)
            if what == "late":
                of["begin_seen"].append((told.taken - request.submitted) / US)
            continue
        ended = previous is None or (first > 0 and seen[first - 1].at >= previous.end - END_LATE)
        if before == "finished" and ended:
            of["begin_seen"].append(max(0, told.taken - request.submitted) / US)
            next_batch = bisect.bisect_right(handed, request.begin)
            last = min(following or request.end + PAUSE_BEHIND, request.end + PAUSE_BEHIND)
            if (next_batch == 0 or batches[next_batch - 1].kind == "resume") and next_batch < len(batches) and \
                    batches[next_batch].kind == "suspend" and handed[next_batch] < last:
                of["suspend"].append(max(0, handed[next_batch] - request.submitted) / US)

        # Ends that were none.
        inside = any(each.work == "finished" and each.at < request.end - END_LATE
                     for each in iterate(seen, bisect.bisect_right(looked, request.launched + LAUNCHED_LATE),
                                         request.end))
        if request.kind in GAPLESS:
            of["gapless"] += 1
            of["wrong"] += inside
            if inside:
                show("wrong end", request)
        else:
            of["pauses"] += inside

        # The end.
        if following is None or following < request.end + PAUSE_BEHIND:
            continue
        after = bisect.bisect_left(looked, max(request.end - END_LATE, request.launched))
        state = seen[after - 1] if after else None
        shown = min(request.launched, told.at) if told is not None else request.launched
        if state is not None and state.work == "finished" and state.at >= shown:
            of["end_seen"].append(0.0)  # Before the program noticed it.
        else:
            finished = next((each for each in iterate(seen, after, following) if each.work == "finished"), None)
            of["end_seen"].append(max(0, (finished.taken if finished else following) - request.end) / US)
        next_batch = bisect.bisect_right(handed, request.end)
        if following >= request.end + linger + PAUSE_BEHIND and next_batch > 0 and \
                batches[next_batch - 1].kind == "suspend":
            resumed = next((each for each in batches[next_batch:next_batch + 64]
                            if each.kind == "resume" and each.taken < following), None)
            of["resume"].append(max(0, (resumed.taken if resumed else following) - request.end - linger) / US)
    return dict(found)


def came_together(requests, reports, usual):
    """Whether the submissions of the first request were seen together with those of later ones: by the first report after it,
    or, where that look was interrupted, by those soon after it."""
    count = 0
    for report in reports:
        count += report.count
        covered = list(itertools.takewhile(lambda each: each.begin < report.at, requests))
        if len(covered) > 1 and count >= sum(usual[each.kind] for each in covered):
            return True
    return False


def usual_counts(seen, looked, requests):
    """By kind: how many submissions most requests have. Infinite where they differ."""
    counts = collections.defaultdict(list)
    for request, following in zip(requests, requests[1:]):
        counts[request.kind].append(sum(each.count for each in iterate(seen, bisect.bisect_right(looked, request.begin),
                                                                       following.begin)))
    usual = {kind: statistics.mode(values) for kind, values in counts.items()}
    return collections.defaultdict(lambda: float("inf"), {
        kind: value for kind, value in usual.items() if value > 0 and 2 * counts[kind].count(value) > len(counts[kind])})


def example(what, request, seen, looked):
    """A request and what was seen around it: times in us from its begin."""
    since = lambda at: round((at - request.begin) / US, 1)
    first = max(0, bisect.bisect_right(looked, request.begin) - 2)
    last = min(bisect.bisect_right(looked, request.end) + 3, first + 20)
    return {"what": what, "kind": request.kind, "launched": since(request.launched), "end": since(request.end),
            "seen": [[since(each.at), since(each.taken), each.work, each.count] for each in seen[first:last]]}


def iterate(seen, first, until=None):
    for index in range(first, len(seen)):
        if until is not None and seen[index].at >= until:
            return
        yield seen[index]


def merged(by_kind, left_out=()):
    """One dictionary of several kinds."""
    total = collections.Counter()
    lists = collections.defaultdict(list)
    for kind, of in by_kind.items():
        for key, value in of.items():
            if not isinstance(value, list):
                total[key] += value
            elif kind not in left_out or key not in ("begin_seen", "suspend"):
                lists[key] += value
    names = ("n", "missed", "late", "blind", "gapless", "wrong", "pauses")
    return {**{name: total[name] for name in names},
            **{name: lists[name] for name in ("begin_seen", "suspend", "end_seen", "resume", "examples")}}


def figures(of):
    """The counts, the examples, and median and p99 of each delay in us with their number; None: not measured."""
    return {key: {"n": len(value), "p50": quantile(value, 0.5), "p99": quantile(value, 0.99),
                  "late": sum(each > LATE.get(key, float("inf")) for each in value)}
            if isinstance(value, list) and key != "examples" else value for key, value in of.items()}


def bounds(cases, resting):
    """Whether the bounds are kept. A p99 is kept where at most 1 % of the delays of all cases are longer.

    cases: results of figures(). resting: % of a core that agents took beside programs at rest."""
    def late(name):
        count = sum(each[name]["n"] for each in cases)
        return 100 * sum(each[name]["late"] for each in cases) / count if count else None

    gapless = sum(each["gapless"] for each in cases)
    values = [
        ("requests missed", "", 0, sum(each["missed"] for each in cases) if cases else None),
        ("wrong ends", "%", 0.1, 100 * sum(each["wrong"] for each in cases) / gapless if gapless else None),
        (f"decided later than {LATE['begin_seen']} us after a begin", "%", 1, late("begin_seen")),
        (f"decided later than {LATE['end_seen']} us after an end", "%", 1, late("end_seen")),
        ("agent beside a program at rest", "% of a core", 5, max(resting, default=None)),
    ]
    return [{"name": name, "unit": unit, "limit": limit, "value": value if value is None else round(value, 3),
             "kept": value is not None and value <= limit} for name, unit, limit, value in values]


def cell(value):
    """A count or a delay for a table."""
    if not isinstance(value, dict):
        return str(value)
    return "-" if value["n"] == 0 else f"{value['p50']:.0f}/{value['p99']:.0f}"


def table(rows):
    """Lines of text. rows: lists of texts of equal length."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    return ["  ".join([row[0].ljust(widths[0]), *(text.rjust(width) for text, width in zip(row[1:], widths[1:]))])
            for row in rows]
