#!/usr/bin/env python3
"""usage: results.py BIN [--short REGEX] [--write] DOCUMENT...

Holds the tables of documents (adapters/lab/RESULTS.md) against what the commands above them print:
each ```sh block is run, and the table that follows it made anew from its figures, which must be within 2 % or 0.3 of
what stands there. A column says by its head what it shows; "X: p99" is of the profile or load X, and so are those after
it. --short: blocks that match get 10 s of arrivals for an hour, or 8 nodes and 2 seeds, and only the names of rows are
compared then, as always without the trace file that TRACE names. --write: puts the new tables into the documents. BIN: where sluice is.
"""
import argparse
import json
import os
import re
import subprocess
import sys
import tempfile

PRELUDE = 'set -euo pipefail; n=$(ls | grep -c "^[0-9]*.json$" || true)\n' \
          'sluice() { command sluice "$@" --json "$((++n)).json" >/dev/null 2>log || { cat log; exit 1; }; }\n'
LEFT_OUT = ("SIGSTOP", "static split")


def time_text(ms):
    return f"{ms / 1000:.1f} s" if ms >= 10000 else f"{ms / 1000:.2f} s" if ms >= 1000 else f"{ms:.0f} ms"


def rate(each):
    return f"{each:.2f}" if each >= 0.1 else f"{each:.3f}"


def percent(name):
    return lambda row, none: f"{row[name]['mean']:.1f}{plus_minus(row[name], '{:.1f}'.format)} %" if row.get(name) else ""


def time_of(name):
    return lambda row, none: time_text(row[name]["mean"]) + plus_minus(row[name], time_text)


def plus_minus(figure, text):
    """Half of the confidence interval, where there are several seeds."""
    return f" ± {text(figure['half_95'])}" if len(figure["values"]) > 1 else ""


METRICS = {
    "p50": time_of("p50_ms"), "max": time_of("max_ms"), "GPU time in calls": percent("switching_percent"),
    "p99": time_of("p99_ms"), "ttft p99": time_of("ttft_p99_ms"), "itl p99": time_of("itl_p99_ms"),
    "vs no scheduler": lambda row, none: f"{100 * row['p99_ms']['mean'] / none['p99_ms']['mean'] - 100:+.1f} %",
    "offline": percent("offline_percent"), "bound": percent("bound_percent"), "of bound": percent("of_bound_percent"),
    "suspends/s": lambda row, none: rate(row["suspends_per_s"]["mean"]) if "suspends_per_s" in row else "",
}
OF_ONLINE = ("p50", "p99", "max", "ttft p99", "itl p99")


class block:
    """A ```sh block, and the table that follows it before the next one."""

    def __init__(self, text):
        self.commands = text
        self.table = None  # (first line, line after the last)


def blocks_of(lines):
    found, inside = [], None
    for i, line in enumerate(lines + [""]):
        if inside is not None:
            if line == "```":
                found.append(block("\n".join(inside)))
                inside = None
            else:
                inside.append(line)
        elif line == "```sh":
            inside = []
        elif found and line.startswith("|") and (found[-1].table is None or found[-1].table[1] == i):
            found[-1].table = (found[-1].table[0] if found[-1].table else i, i + 1)
    return [each for each in found if "sluice lab" in each.commands]


def settings_of(commands, folder, short):
    """What the commands give: the JSON's settings, in order."""
    if short:
        commands = commands.replace("--duration 1h", "--duration 10s")
        commands = re.sub("--nodes [0-9]+", "--nodes 8", commands)
        commands = re.sub("--seeds [0-9]+", "--seeds 2", commands)
    for old in os.listdir(folder):
        if old.endswith(".json"):
            os.remove(f"{folder}/{old}")
    subprocess.run(["bash", "-c", PRELUDE + commands], cwd=folder, check=True)
    made = []
    for number in sorted(int(name[:-5]) for name in os.listdir(folder) if name.endswith(".json")):
        with open(f"{folder}/{number}.json") as text:
            made += json.load(text)["settings"]
    return made


def cells(line):
    return [each.strip() for each in line.strip().strip("|").split("|")]


def table_of(head, settings):
    """The table with this head: a list of lists of texts."""
    labels = {"load": lambda at: f"{100 * at['load']:.0f} %", "speedup": lambda at: at["arrivals"].split("=")[-1]}
    wheres, where = [], None
    for each in head:
        if ": " in each:
            where, each = each.split(": ", 1)
        wheres.append((where and where.strip("`"), each))
    profile = settings[0]["profile"]
    by_load = any(where and where.endswith("%") for where, _ in wheres)

    def is_at(at, where):
        if by_load:
            return labels["load"](at) == where
        return at["profile"] == (where or profile)

    label = next((each for each in head if each in labels), None)
    places = []
    for at in settings:
        place = labels[label](at) if label else ""
        if place not in places:
            places.append(place)
    rows = []
    for place in places:
        here = [at for at in settings if not label or labels[label](at) == place]
        shown = place
        for name in [row["name"] for row in here[0]["contenders"]]:
            if name.startswith(LEFT_OUT):
                continue
            row = []
            for where, what in wheres:
                if what == label:
                    row.append(shown)
                    shown = ""
                    continue
                if what == "row":
                    row.append(name if " " in name else f"`{name}`")
                    continue
                at = next(at for at in here if is_at(at, where))
                by_name = {one["name"]: one for one in at["contenders"]}
                empty = name.startswith("online alone") and what not in OF_ONLINE
                row.append("" if empty else METRICS[what](by_name[name], by_name.get("no scheduler")))
            rows.append(row)
    return rows


def differs(shown, made):
    """Whether more than figures does, or figures by more than they may."""
    number = r"[-+]?[0-9]+(?:\.[0-9]+)?"
    if re.sub(number, "#", shown) != re.sub(number, "#", made):
        return True
    return any(abs(float(a) - float(b)) > max(0.02 * abs(float(a)), 0.3 if "%" in shown else 0.02)
               for a, b in zip(re.findall(number, shown), re.findall(number, made)))


def check(file, folder, asked):
    with open(file) as text:
        lines = text.read().split("\n")
    tables = compared = 0
    os.environ["TRACE_FILE"] = os.environ.get("TRACE", f"{folder}/trace.csv")
    good = True
    fresh = []  # (first line, line after the last, instead of them)
    for each in blocks_of(lines):
        guessed = "$TRACE" in each.commands and "TRACE" not in os.environ
        if each.table is None:
            sys.exit(f"{file}: no table follows {each.commands}")
        first, after = each.table
        tables += 1
        small = guessed or asked.short and re.search(asked.short, each.commands)
        settings = settings_of(each.commands.replace("$TRACE", "$TRACE_FILE"), folder, small)
        made = table_of(cells(lines[first]), settings)
        if asked.write and not small:
            fresh.append((first + 2, after, ["| " + " | ".join(row) + " |" for row in made]))
            continue
        shown = [cells(line) for line in lines[first + 2:after]]
        names = cells(lines[first]).index("row")
        if [row[names] for row in shown] != [row[names] for row in made]:
            print(f"{file}:{first + 1}: the rows that come out are {[row[names] for row in made]}")
            good = False
        elif not small:
            for i, (old, new) in enumerate(zip(shown, made)):
                for a, b in zip(old, new):
                    compared += 1
                    if differs(a, b):
                        print(f"{file}:{first + 3 + i}: {a} is {b} now: {' | '.join(new)}")
                        good = False
    for first, after, made in reversed(fresh):
        lines[first:after] = made
    if asked.write:
        with open(file, "w") as text:
            text.write("\n".join(lines))
    print(f"{file}: {tables} tables, {compared} figures compared")
    return good and tables > 0


parser = argparse.ArgumentParser()
parser.add_argument("bin")
parser.add_argument("documents", nargs="+")
parser.add_argument("--short", metavar="REGEX")
parser.add_argument("--write", action="store_true")
asked = parser.parse_args()
os.environ["PATH"] = os.path.abspath(asked.bin) + ":" + os.environ["PATH"]
with tempfile.TemporaryDirectory() as folder:
    with open(f"{folder}/trace.csv", "w") as trace:
        trace.write("TIMESTAMP,ContextTokens,GeneratedTokens\n")
        trace.writelines(f"2023-11-16 18:17:{second}.5,1000,10\n" for second in range(10, 60))
    sys.exit(0 if all([check(file, folder, asked) for file in asked.documents]) else 1)
