#!/usr/bin/python3
"""usage: check.py trace FILE | metrics FILE
trace: reads a timeline as a viewer does, and says how many arrivals, suspends and resumes hang together.
metrics: has Prometheus' own Python client read a page in the form OpenMetrics; ends with 77 where that is not installed."""
import collections
import json
import sys


def need(what, why):
    if not what:
        sys.exit(f"{sys.argv[2]}: {why}")


def overlaps(slices):
    ends = 0
    for begin, end, _ in sorted(slices):
        if begin < ends:
            return True
        ends = end
    return False


def check_trace(path):
    with open(path, encoding="utf-8") as file:
        text = file.read().rstrip()
    # A daemon that was killed could not write the bracket.
    events = json.loads(text if text.endswith("]") else text.rstrip(",") + "]")
    rows, tracks = {}, {}
    slices = collections.defaultdict(list)
    arrows = collections.defaultdict(dict)
    suspends = []
    for each in events:
        kind, on = each["ph"], (each["pid"], each["tid"])
        if kind == "M":
            names = {"process_name": (rows, each["pid"]), "thread_name": (tracks, on)}
            if each["name"] in names:
                into, key = names[each["name"]]
                into[key] = each["args"]["name"]
        elif kind == "X":
            need(each["dur"] > 0 and each["ts"] >= 0, f"no stretch: {each}")
            slices[on].append((each["ts"], each["ts"] + each["dur"], each["name"]))
            what = each["args"]
            if "errno" in what and each["name"].startswith("suspend"):
                not_done = what["failed"] + what["invalid"] + what["gone"]
                if what["errno"] == 0 and not_done < int(each["name"].split()[1]):
                    suspends.append((on, each["ts"]))
        elif kind in "sf":
            need(kind not in arrows[each["id"]], f"the arrow {each['id']} has two ends of one kind")
            arrows[each["id"]][kind] = each
    for on, all_of in slices.items():
        need(on in tracks and on[0] in rows, f"a track without a name: {on}")
        need(not overlaps(all_of), f"stretches overlap on {rows[on[0]]}, {tracks[on]}")

    def slice_of(end):
        found = [s for s in slices[(end["pid"], end["tid"])] if s[0] <= end["ts"] < s[1]]
        need(len(found) == 1, f"an arrow on no stretch: {end}")
        return (end["pid"], end["tid"]) + found[0]

    room, resumed = {}, set()
    for one, pair in arrows.items():
        need(set(pair) == {"s", "f"}, f"the arrow {one} has one end")
        begin, end = slice_of(pair["s"]), slice_of(pair["f"])
        need(begin[2] <= end[2], f"the arrow {one} leads back in time")
        if pair["s"]["name"] == "makes room":
            room[end] = begin
        else:
            need(begin[4].startswith("suspend") and end[4].startswith("resume"), f"arrow {one}")
            resumed.add(begin)
    # Every suspend that begins while online work is in flight, or after an arrival, was made for it.
    online = collections.defaultdict(list)
    for on, name in tracks.items():
        if name in ("online work", "preemption"):
            online[rows[on[0]]] += slices[on]
    effects = {end[:3] for end in room}
    for on, when in suspends:
        of_gpu = online[tracks[on].removeprefix("driver calls, ")]
        if any(begin <= when < end for begin, end, _ in of_gpu):
            need((*on, when) in effects,
                 f"no arrow leads to the suspend of {rows[on[0]]} at {when}")
    # What is shown of queues is what the driver calls did.
    calls = collections.defaultdict(list)
    for on, name in tracks.items():
        if name.startswith("driver calls, GPU "):
            calls[(on[0], name.rsplit(" ", 1)[1])] += slices[on]
    for on, name in tracks.items():
        if not name.startswith("queues on GPU "):
            continue
        for begin, _, state in slices[on]:
            verb = {"suspended": "suspend", "running": "resume"}.get(state)
            if verb:
                of = calls[(on[0], name.rsplit(" ", 1)[1])]
                need(any(end == begin and call.startswith(verb) for _, end, call in of),
                     f"{rows[on[0]]} is {state} at {begin} without a driver call")
    whole = sum(1 for suspend in room if suspend in resumed)
    print(f"{len(events)} events, {whole} arrows from an arrival to a suspend to a resume")
    need(whole > 0, "no arrival that leads to a suspend and a resume")


def check_metrics(path):
    try:
        from prometheus_client.openmetrics.parser import text_string_to_metric_families
    except ImportError:
        print("not read: python3-prometheus-client is not installed")
        sys.exit(77)
    with open(path, encoding="utf-8") as file:
        families = list(text_string_to_metric_families(file.read()))
    need(len(families) > 20, "few metrics")
    for family in families:
        for sample in family.samples:
            need("pid" not in sample.labels, f"{sample.name} is labelled by pid")
    print(f"{len(families)} metrics, {sum(len(each.samples) for each in families)} samples")


{"trace": check_trace, "metrics": check_metrics}[sys.argv[1]](sys.argv[2])
