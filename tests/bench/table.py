#!/usr/bin/env python3
"""Run the benchmarks and print a table: each figure, its floor or reference from the same run, and its target.
Figures are medians over rounds (of the p50, unless the row names another percentile). Ratios and differences are
medians over rounds as well, so they need not divide out. Exit code: 1 if a program fails or reports no figure, else 0,
also if a target is missed.
"""
import argparse
import dataclasses
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import time

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
GOOGLE = ("--benchmark_format=json", "--benchmark_enable_random_interleaving=true")
# Name: the arguments of a whole run, and of a quick one.
PROGRAMS = {
    "chain": ((), ("--quick",)),
    "client_calls": ((), ("--quick",)),
    "pointer_poll": ((), ("--quick",)),
    "preemption": ((), ("--quick",)),
    "signal_delay": ((), ("--quick",)),
    "node_cost": ((), ("--quick",)),
    "preemption_cpu": ((), ("--quick",)),
    "decision_path": ((*GOOGLE, "--benchmark_repetitions=9", "--benchmark_min_time=0.1"),
                      (*GOOGLE, "--benchmark_repetitions=2", "--benchmark_min_time=0.001")),
    "ingest": ((), ("--quick",)),
    "lateness": ((), ("--quick",)),
    "lateness_epoll": ((), ("--quick",)),
    "allocations": ((), ("--quick",)),
    "mqds_read": ((), ("--quick",)),
    "rescan": ((), ("--quick",)),
    "hop": ((), ("--quick",)),
    "hop_epoll": ((), ("--quick",)),
}
BEGIN_MARK, END_MARK = "<!-- measured: begin -->", "<!-- measured: end -->"


@dataclasses.dataclass
class Row:
    what: str
    figure: str  # series, or series:p99
    floor: str = ""
    ratio: float = 0  # at most so many times the floor
    extra: float = 0  # at most so much above the floor
    most: float | None = None
    least: float = 0
    long: bool = False  # a quick run has none



def processes(number):
    return "1 process" if number == 1 else f"{number} processes"


USER = [
    Row("embedded: `begin()` to suspend call, p50", "chain.embedded/8", "chain.embedded_floor",
        extra=2000),
    Row("embedded: `begin()` to suspend call, p99", "chain.embedded/8:p99",
        "chain.embedded_floor:p99", ratio=2),
    Row("client: `begin()` to suspend call, p50", "chain.client/8", "chain.client_floor",
        extra=2000),
    Row("client: `begin()` to suspend call, p99", "chain.client/8:p99", "chain.client_floor:p99",
        ratio=2),
    *(Row(f"embedded: `begin()` to suspend call, {n} queues; reference: 8 queues",
          f"chain.embedded/{n}", "chain.embedded/8", ratio=1.2, long=n > 64)
      for n in (64, 256, 1024, 4096)),
    *(Row(f"arrival to suspended: {processes(targets)}, {way}; "
          "floor: driver",
          f"arrival_{key}_{targets}x1", f"driver_{key}_{targets}x1", ratio=1.01 if targets == 1 else 0,
          long=targets == 16)
      for key, way in (("trap", "debug trap"), ("batch", "batch commands")) for targets in (1, 4, 16)),
    *(Row(f"arrival to suspended, two GPUs: {processes(targets)} on each, {way}; "
          "reference: one GPU",
          f"arrival_{key}_{targets}x2", f"arrival_{key}_{targets}x1", ratio=1.1, long=targets == 16)
      for key, way in (("trap", "debug trap"), ("batch", "batch commands")) for targets in (1, 4, 16)),
    Row("signal to the main thread of an attached process; floor: bare tracer", "signal_agent", "signal_bare_tracer",
        ratio=1.5),
    Row("the same during a 5 ms driver call of its lane; reference: rest of the call", "signal_in_call",
        "rest_of_call"),
    Row("signal to an untraced process", "signal_untraced"),
    Row("`begin()` or `end()` of a client, scheduler awake (mean of 1000 pairs)", "client.call_awake",
        "client.call_floor", most=500),
    Row("`begin()` or `end()` of a client, no scheduler", "client.call_alone", "client.call_floor", most=500),
    Row("`begin()` of a client, scheduler asleep", "client.begin_asleep", "client.write_floor"),
    Row("`end()` of a client, scheduler asleep", "client.end_asleep", "client.write_floor"),
]
KEEPS = [
    *(Row(f"runlist cycles: {processes(targets)}, {way}; "
          "floor: fewest possible",
          f"cycles_{key}_{targets}x1", f"least_cycles_{key}_{targets}x1", ratio=1, long=targets == 16)
      for key, way in (("trap", "debug trap"), ("batch", "batch commands")) for targets in (1, 4, 16)),
    *(Row(f"online work stalled: 4 processes, {way}; floor: bare lanes",
          f"disturbed_{key}_4x1", f"least_disturbed_{key}_4x1", ratio=1.01)
      for key, way in (("trap", "debug trap"), ("batch", "batch commands"))),
    Row("read the pointers of 64 idle queues; floor: one `process_vm_readv`", "look_at_rest",
        "floor_of_look_at_rest", ratio=1.5),
    Row("read the pointers of 64 queues with a running kernel each", "look_running", "floor_of_look_running",
        ratio=1.5),
    Row("decision: inbox to batch, 8 queues", "inbox_to_batch/8", "floor_of_inbox_to_batch", most=2000),
    Row("decision: inbox to batch, 4096 queues", "inbox_to_batch/4096", "floor_of_inbox_to_batch", most=2000),
    Row("decision: `begin()` to batch, 8 queues", "begin_to_batch/8", "floor_of_inbox_to_batch", most=2000),
    Row("decision: `begin()` to batch, 4096 queues; reference: 8 queues", "begin_to_batch/4096", "begin_to_batch/8",
        ratio=1.2),
    Row("`begin()` to batch with the journal; reference: without it", "begin_to_batch_with_journal/8",
        "begin_to_batch/8", ratio=1.5),
    Row("serial decisions, 8 queues", "serial_decisions/8:per_second", least=300_000),
    Row("serial decisions, 4096 queues", "serial_decisions/4096:per_second", least=300_000),
    Row("observations from 4 threads to the core; reference: bare queues", "ingest", "ingest.bare_queues",
        least=5_000_000),
    Row("the same per second of processor time of the core's thread", "ingest.per_cpu_second",
        "ingest.bare_queues.per_cpu_second"),
    *(Row(f"late end of a {words} slice, {backend}{tail}; floor: timerfd", f"lateness.{backend}.{slice}{which}",
          f"lateness.{backend}.{slice}.timerfd{which}", extra=extra)
      for backend in ("io_uring", "epoll")
      for slice, words in (("2500us", "2.5 ms"), ("20000us", "20 ms"))
      for which, tail, extra in (("", "", 20_000), (":p99", ", p99", 150_000))),
    Row("read and parse `mqds` of 64 processes with 16 queues; floor: read only", "mqds",
        "mqds.read_alone", ratio=2),
    Row("scan sysfs of 64 processes with 64 queues; reference: io_uring", "rescan", "rescan.io_uring", ratio=1),
    Row("the same in the kernel's sysfs; reference: io_uring", "rescan.sysfs_files",
        "rescan.sysfs_files.io_uring", ratio=1),
    Row("heap allocations in 1000 round trips", "allocations", most=0),
    Row("heap allocations of one `asio::post` (test of the counter)", "allocations.foreign_post",
        least=1),
    Row("wake a thread through the reactor, io_uring; floor: blocking `read()`", "hop.io_uring",
        "hop.io_uring.read", ratio=1.5),
    Row("wake a thread through the reactor, epoll; floor: blocking `read()`", "hop.epoll", "hop.epoll.read", ratio=1.5),
    Row("idle, 64 processes × 64 queues: daemon, share of a core", "node.idle.daemon", "node.idle.daemon_floor",
        most=0.1),
    Row("idle, 64 processes × 64 queues: agent, share of a core", "node.idle.agent", "node.idle.agent_floor", most=0.1),
    Row("idle: wake-ups of the daemon", "node.idle.daemon_wakes"),
    Row("idle: wake-ups of the agent", "node.idle.agent_wakes"),
    Row("idle with pointer polling of 64 queues: daemon, share of a core", "node.polling.daemon",
        "node.polling.floor", most=1),
    Row("memory at 4096 queues: daemon, anonymous", "node.memory.daemon", most=6e6),
    Row("memory at 4096 queues: daemon, file-backed", "node.memory.daemon.files"),
    Row("memory at 4096 queues: agent, anonymous", "node.memory.agent", most=6e6),
    Row("memory at 4096 queues: agent, thread stacks", "node.memory.agent.stacks"),
    Row("memory at 4096 queues: agent, file-backed", "node.memory.agent.files"),
    Row("daemon killed, 64 processes: all queues known, clients reconnected", "node.restart", most=1e9),
    Row("daemon killed: clients reconnected", "node.restart.clients", most=1e9),
    Row("daemon killed: all processes attached again (`attach_after` 50 ms)", "node.restart.attached"),
    Row("processor time of a preemption, client and scheduler", "preemption_cpu", "preemption_cpu.floor", most=15_000),
]
GROUPS = {"User-visible costs": USER, "Internal costs": KEEPS}


def take_line(line, found):
    """A line of series.hpp."""
    one = json.loads(line)
    found[one.pop("name")] = one


def take_google(text, found):
    """What Google Benchmark printed: its repetitions are rounds."""
    for each in json.loads(text)["benchmarks"]:
        if each["run_type"] != "iteration":
            continue
        if each.get("error_occurred"):
            raise ValueError(f"{each['name']}: {each['error_message']}")
        name = re.sub(r"/manual_time|/real_time|/repeats:\d+", "", each["run_name"])
        one = found.setdefault(name, {"unit": "ns", "samples": 0, "p50": [], "p99": [], "per_second": []})
        one["samples"] += each["iterations"]
        one["p50"].append(each.get("p50", each["real_time"]))
        one["p99"].append(each.get("p99", each["real_time"]))
        if "per_second" in each:
            one["per_second"].append(each["per_second"])


def measure(folder, quick, names):
    found, failed = {}, []
    for number, name in enumerate(names, 1):
        print(f"running {name} ({number} of {len(names)})", file=sys.stderr, flush=True)
        try:
            ran = subprocess.run([f"{folder}/{name}", *PROGRAMS[name][quick]], stdout=subprocess.PIPE, text=True)
            if ran.returncode != 0:
                raise ValueError(f"exit code {ran.returncode}")
            if ran.stdout.startswith("{\n"):
                take_google(ran.stdout, found)
            else:
                for line in ran.stdout.splitlines():
                    take_line(line, found)
        except (OSError, ValueError, KeyError) as problem:
            failed.append(f"{name}: {problem}")
    return found, failed


def values_of(name, found):
    """The rounds' values, and their unit."""
    series, _, which = name.partition(":")
    one = found[series]
    return one[which or "p50"], "per_second" if which == "per_second" else one["unit"]


def text(value, unit):
    if unit == "ns":
        for size, word in ((1e9, "s"), (1e6, "ms"), (1e3, "µs")):
            if abs(value) >= size:
                return f"{value / size:.3g} {word}" if abs(value) < 1000 * size else f"{value / size:.0f} {word}"
        return f"{value:.3g} ns"
    if unit == "bytes":
        return f"{value / 1e6:.2f} MB" if value >= 1e6 else f"{value / 1e3:.1f} kB"
    if unit == "percent":
        return f"{value:.3g} %"
    if unit == "per_second":
        if value >= 1e6:
            return f"{value / 1e6:.2f} M/s"
        return f"{value / 1e3:.0f} k/s" if value >= 1e3 else f"{value:.3g} /s"
    return f"{value:.3g}" if value != int(value) else f"{value:.0f}"


def judge(row, found):
    """What the table says of a row: figure, floor, ratio, target, and whether it was met."""
    figures, unit = values_of(row.figure, found)
    figure = statistics.median(figures)
    said = {"what": row.what, "series": row.figure, "figure": figure, "unit": unit}
    floors = values_of(row.floor, found)[0] if row.floor else []
    if floors:
        said["floor"] = statistics.median(floors)
        said["ratio"] = statistics.median(a / b for a, b in zip(figures, floors))
        said["extra"] = statistics.median(a - b for a, b in zip(figures, floors))
    wants = []
    if row.ratio:
        wants.append((f"≤ {row.ratio:g} ×", said["ratio"] <= row.ratio))
    if row.extra:
        wants.append((f"≤ {text(row.extra, unit)} more", said["extra"] <= row.extra))
    if row.most is not None:
        wants.append((f"≤ {text(row.most, unit)}", figure <= row.most))
    if row.least:
        wants.append((f"≥ {text(row.least, unit)}", figure >= row.least))
    said["target"] = ", ".join(each for each, _ in wants)
    said["met"] = all(met for _, met in wants) if wants else None
    said["out_of_reach"] = row.most is not None and bool(floors) and said["floor"] > row.most
    return said


def beside(said, row):
    """How a figure stands to what is beside it, in the terms of its target."""
    if "ratio" not in said:
        return ""
    if not row.extra:
        return f"{said['ratio']:.2f}"
    return f"{'+' if said['extra'] >= 0 else '−'}{text(abs(said['extra']), said['unit'])}"


def table_of(found, quick):
    lines, rows = [], []
    for title, group in GROUPS.items():
        said = []
        for row in group:
            names = [each.partition(":")[0] for each in (row.figure, row.floor) if each]
            if all(each in found for each in names):
                said.append((row, judge(row, found)))
        if not said:
            continue
        rows += [each for _, each in said]
        lines += ["", f"| {title} | figure | floor or reference | ratio or difference | target | |",
                  "|---|---:|---:|---:|---|---|"]
        for row, each in said:
            floor = text(each["floor"], each["unit"]) if "floor" in each else ""
            met = {True: "met", False: "**missed**", None: ""}[each["met"]]
            if each["met"] is False and each["out_of_reach"]:
                met = "**missed**; the floor alone exceeds it"
            lines.append(f"| {each['what']} | {text(each['figure'], each['unit'])} | {floor} | {beside(each, row)} | "
                         f"{each['target']} | {'' if quick else met} |")
    return lines[1:], rows


def machine():
    with open("/proc/cpuinfo") as info:
        model = next((line.split(":")[1].strip() for line in info if line.startswith("model name")), "unknown")
    return {"cpu": model, "cores": os.cpu_count(), "kernel": platform.release(), "load": os.getloadavg()[0]}


def write(document, lines):
    with open(document) as file:
        old = file.read()
    before, rest = old.split(BEGIN_MARK)
    after = rest.split(END_MARK)[1]
    with open(document, "w") as file:
        file.write(before + BEGIN_MARK + "\n" + "\n".join(lines) + "\n" + END_MARK + after)


def main():
    parser = argparse.ArgumentParser(prog="tests/bench.sh", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter,
                                     epilog="Installs missing packages and builds first. Needs root for the simulated "
                                     "device. A whole run takes\nten minutes: use an idle machine.")
    parser.add_argument("--quick", action="store_true",
                        help="run for 20 seconds to check that everything works; the figures are not meaningful, and "
                        "some rows use fewer processes and queues")
    parser.add_argument("--only", default="", metavar="REGEX", help="run only programs whose names match: " +
                        ", ".join(PROGRAMS))
    parser.add_argument("--json", metavar="FILE", help="file for all measurements (default: build/bench.json; "
                        "build/bench-quick.json, build/bench-part.json for partial runs)")
    parser.add_argument("--write", metavar="DOCUMENT",
                        help="insert the table of a whole run between the marks of a document")
    parser.add_argument("--bin", default=os.path.join(TOP, "build/release/bin"), help=argparse.SUPPRESS)
    parser.add_argument("--check", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    try:
        names = [name for name in PROGRAMS if re.search(chosen.only, name)]
    except re.error as problem:
        parser.error(f"--only '{chosen.only}': {problem}")
    if not names:
        parser.error(f"--only '{chosen.only}' matches no program; available: {', '.join(PROGRAMS)}")
    if chosen.write and (chosen.quick or chosen.only):
        parser.error("--write needs a whole run; remove --quick and --only")
    if chosen.check:
        return 0
    where = machine()
    found, failed = measure(chosen.bin, chosen.quick, names)
    lines, rows = table_of(found, chosen.quick)
    said = [f"Measured on {time.strftime('%Y-%m-%d')}: {where['cores']} cores of {where['cpu']}, "
            f"Linux {where['kernel']}, load {where['load']:.1f} at the start.", "The driver and its GPUs are simulated.", ""] + lines
    if chosen.quick:
        said.insert(0, "Quick run: the figures are not meaningful, and some rows use fewer processes and queues than "
                    "stated.")
    print("\n".join(said))
    part = ("-quick" if chosen.quick else "") + ("-part" if chosen.only else "")
    with open(chosen.json or os.path.join(TOP, "build", f"bench{part}.json"), "w") as file:
        json.dump({"machine": where, "quick": chosen.quick, "rows": rows, "series": found}, file, indent=1)
    if chosen.write:
        write(chosen.write, said)
    if not chosen.only:
        known = {each.partition(":")[0] for group in GROUPS.values() for row in group
                 for each in (row.figure, row.floor) if each and not (chosen.quick and row.long)}
        failed += [f"no figure for {each}" for each in sorted(known - set(found))]
    for each in failed:
        print(f"bench: {each}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
