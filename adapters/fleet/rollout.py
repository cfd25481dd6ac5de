#!/usr/bin/env python3
"""Takes one step of a rollout of sluice over ssh, and judges it by figures of the nodes (adapters/fleet/ROLLOUT.md).
Each step needs the one before it.

The step `observe` lets all nodes observe, and keeps their latencies as the time before. The step `accept` runs
`sluice accept` on the first node. In the steps 1, 10 and 100, this percentage of the nodes enforces, and at least one
node more than after the step before, until all do. If a figure fails then, or a signal ends the step, all nodes that
enforce are paused: touch /run/sluice/disabled. A step that passed can be repeated: it watches the same nodes again.

Exit code 0: the step passed; 1: it failed; 2: invalid command line."""

import argparse
import concurrent.futures
import json
import math
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time

DISABLED = "/run/sluice/disabled"
STEPS = ("observe", "accept", "1", "10", "100")
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# What the steps keep. `done` has for each step that passed how many nodes enforced then. `enforcing` may count more: it
# is kept before the nodes are set. `rolled_back` names the step after whose failure the state began anew.
STATE = {"nodes": list, "before": dict, "done": dict, "enforcing": int, "rolled_back": str}
# Counters of `sluice status --json` (statistics.failures) that must stay 0 since the daemon's start.
FAILURES = {"failed_outcomes": "queues that a command failed to suspend or resume", "gpus_lost": "breakers opened",
            "backend_restarts": "restarts of the agent", "policy_ejections": "policies removed",
            "mechanism_fallbacks": "fallbacks of the suspend mechanism", "failed_reservations": "failed reservations",
            "failed_quanta": "failed quanta"}
ENOUGH = 100  # Spans and suspends below which a p99 says nothing.


class Stop(Exception):
    """Ends the step; its text is the reason."""


def seconds(text):
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s|min|h)", text)
    if not found or not float(found[1]):
        raise argparse.ArgumentTypeError(f"invalid duration '{text}': expected a number above 0 with ms, s, min or h")
    return float(found[1]) * {"ms": 0.001, "s": 1, "min": 60, "h": 3600}[found[2]]


def percent(text):
    if not re.fullmatch(r"\d+(\.\d+)?", text):
        raise argparse.ArgumentTypeError(f"invalid percentage '{text}': expected a number, 0 or more")
    return float(text)


def program(text):
    """A program, by name or path, perhaps with options."""
    if not shutil.which(text) and not shutil.which(text.partition(" ")[0]):
        raise argparse.ArgumentTypeError(f"cannot run '{text}': no such program; install it, or name its path")
    return text


def names_in(path):
    """The names in a file, as `sluice fleet status --nodes` reads it."""
    try:
        text = pathlib.Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise Stop(f"{path}: cannot read the list of nodes: {getattr(error, 'strerror', None) or error}") from error
    return list(dict.fromkeys(name for line in text.splitlines() for name in line.partition("#")[0].split()))


class Rollout:
    def __init__(self, chosen):
        self.chosen, self.nodes = chosen, names_in(chosen.nodes)
        if not self.nodes:
            raise Stop(f"{chosen.nodes} names no node")
        self.file = pathlib.Path(chosen.state).absolute()
        try:
            self.state = json.loads(self.file.read_text(encoding="utf-8"))
            if not isinstance(self.state, dict) or {key: type(kept) for key, kept in self.state.items()} != STATE:
                raise ValueError
        except FileNotFoundError:
            self.begin_anew()
        except (OSError, ValueError) as error:
            raise Stop(f"{self.file}: cannot read the state: {getattr(error, 'strerror', None) or 'not written by rollout.py'}; "
                       "choose another file (--state), or remove this one and begin again with 'observe'") from error

    def begin_anew(self, **known):
        self.state = {key: kind() for key, kind in STATE.items()} | known

    def save(self):
        try:
            self.file.write_text(json.dumps(self.state, indent=1) + "\n", encoding="utf-8")
        except OSError as error:
            raise Stop(f"{self.file}: cannot write the state: {error.strerror}; choose another file (--state)") from error

    # How nodes are reached.

    def ssh(self, name, command, limit):
        """Runs a shell command on a node. Returns why it failed, or nothing."""
        try:
            done = subprocess.run([*self.chosen.ssh.split(), "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "--", name,
                                   command], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=limit, check=False)
        except subprocess.TimeoutExpired:
            return f"'{command}' took longer than {limit:g} s"
        except OSError as error:
            return f"cannot run '{self.chosen.ssh}': {error.strerror}"
        said = (done.stderr.strip() or done.stdout.strip()).splitlines()
        return f"'{command}' exited with code {done.returncode}: {said[-1] if said else ''}" if done.returncode else ""

    def on(self, names, command, limit=120):
        """The same on many. Returns the problems by node."""
        with concurrent.futures.ThreadPoolExecutor(64) as threads:
            problems = dict(zip(names, threads.map(lambda name: self.ssh(name, command, limit), names)))
        return {name: why for name, why in problems.items() if why}

    def status(self, names):
        """Returns the answers of `sluice fleet status`, by node."""
        try:
            done = subprocess.run([self.chosen.sluice, "fleet", "status", "--json", "--ssh", self.chosen.ssh, *names],
                                  stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
            return {each["node"]: each for each in json.loads(done.stdout)["nodes"]}
        except OSError as error:
            raise Stop(f"cannot run '{self.chosen.sluice}' (--sluice): {error.strerror}") from error
        except (ValueError, LookupError, TypeError) as error:
            raise Stop(f"'{self.chosen.sluice} fleet status' (--sluice) failed: "
                       f"{done.stderr.strip() or 'it printed no status'}") from error

    # What decides.

    def problem(self, name, answer, mode):
        """Why a node fails. Empty: it does not."""
        status = answer["status"]
        if status is None:
            return f"no answer: {answer['problem']}"
        node, statistics = status["node"], status["statistics"]
        if node["mode"] != mode:
            return f"mode is {node['mode']} instead of {mode}"
        if node["driver_gone"]:
            return "the driver is gone"
        if node["paused"] is not None:
            return f"paused by an operator ({node['paused']['why'] or DISABLED})"
        if node["policy_is_fallback"]:
            return f"the fallback policy decides instead of {node['policy_text']}"
        for gpu in status["gpus"]:
            if gpu["breaker_open"]:
                return f"breaker of GPU {gpu['gpu_id']} is open: {gpu['breaker_cause']}"
        if mode == "observe":
            return ""
        for key, what in FAILURES.items():
            if statistics["failures"][key]:
                return f"{statistics['failures'][key]} {what} ({key})"
        off = statistics["arrival_to_off"]
        if off["count"] >= ENOUGH and off["p99_ms"] > self.chosen.off_p99 * 1000:
            return (f"offline work leaves the GPU after {off['p99_ms']:.1f} ms (arrival_to_off, p99), "
                    f"more than {self.chosen.off_p99 * 1000:g} ms (--off-p99)")
        before = self.state["before"].get(name, {})
        for spans in status["spans"]:
            limits = {"its target": spans["target_ms"],
                      f"before, plus {self.chosen.worse:g} % (--worse)":
                      before[spans["span"]] * (1 + self.chosen.worse / 100) if spans["span"] in before else None}
            limits = {what: limit for what, limit in limits.items() if limit is not None}
            if spans["count"] >= ENOUGH and limits and spans["p99_ms"] > max(limits.values()):
                return f"p99 of {spans['span']} is {spans['p99_ms']:.1f} ms, more than " + " and ".join(
                    f"{limit:.1f} ms ({what})" for what, limit in limits.items())
        return ""

    def judge(self, names, mode):
        answers = self.status(names)
        failed = {name: why for name in names if (why := self.problem(name, answers[name], mode))}
        if failed:
            raise Stop("\n".join(f"{name}: {why}" for name, why in failed.items()))
        return {name: answers[name]["status"] for name in names}

    def soak(self, names, mode):
        """Judges again and again until the time is over. Returns the last status of each node."""
        print(f"watching {len(names)} node{'s'[:len(names) > 1]} in mode {mode} until "
              f"{time.strftime('%F %T', time.localtime(time.time() + self.chosen.soak))}; the first failure ends the step",
              file=sys.stderr, flush=True)
        end = time.monotonic() + self.chosen.soak
        while True:
            last = self.judge(names, mode)
            left = end - time.monotonic()
            if left <= 0:
                return last
            time.sleep(min(left, self.chosen.every))

    def set_mode(self, names, mode):
        if not names:
            return
        problems = self.on(names, self.chosen.set_mode.replace("MODE", mode))
        if problems:
            raise Stop("\n".join(f"{name}: cannot set the mode: {why}" for name, why in problems.items()))
        # The daemon answers a moment after its start.
        end = time.monotonic() + 30
        while any(each["status"] is None for each in self.status(names).values()) and time.monotonic() < end:
            time.sleep(0.5)

    # The steps.

    def observe(self):
        self.set_mode(self.nodes, "observe")
        seen = self.soak(self.nodes, "observe")
        self.state["before"] = {name: {each["span"]: each["p99_ms"] for each in status["spans"] if each["count"] >= ENOUGH}
                                for name, status in seen.items()}
        for name, latencies in self.state["before"].items():
            print(f"{name}: before: " + (", ".join(f"{span} p99 {p99:.1f} ms" for span, p99 in latencies.items())
                                         or "no kind of span occurred 100 times; latencies will not be compared"))

    def accept(self):
        if problem := self.ssh(self.nodes[0], self.chosen.accept, 7200):
            raise Stop(f"{self.nodes[0]}: {problem}")

    def enforce(self):
        done = self.state["done"]
        before = count = max(done.values())
        if self.chosen.step not in done:
            count = min(len(self.nodes), max(before + 1, math.ceil(len(self.nodes) * int(self.chosen.step) / 100)))
        # Kept first: whatever happens next, a roll-back includes them.
        count = self.state["enforcing"] = max(count, self.state["enforcing"])
        self.save()
        names, new = self.nodes[:count], self.nodes[before:count]
        try:
            self.set_mode(new, "enforce")
            seen = self.soak(names, "enforce")
            suspends = {name: status["statistics"]["suspends"] for name, status in seen.items()}
            if new and not any(suspends[name] for name in new):
                raise Stop("no queue was suspended on the new nodes, so the figures show nothing; use a longer --soak, or check "
                           "the roles (sluice queues)")
        except BaseException:
            self.roll_back(names)
            raise
        for name, status in seen.items():
            off = status["statistics"]["arrival_to_off"]
            print(f"{name}: {suspends[name]} queues suspended, off the GPU after p99 {off['p99_ms']:.1f} ms" + "".join(
                f", {each['span']} p99 {each['p99_ms']:.1f} ms" for each in status["spans"]))

    def roll_back(self, names):
        for each in SIGNALS:  # A second Ctrl-C does not end it.
            signal.signal(each, signal.SIG_IGN)
        problems = self.on(names, f"touch {DISABLED}")
        self.begin_anew(rolled_back=self.chosen.step)
        try:
            self.save()
        except Stop as error:  # The reason of the roll-back is still to be printed.
            print(error, file=sys.stderr)
        print(f"rolled back {len(names) - len(problems)} of {len(names)} nodes with 'touch {DISABLED}'. Before you remove this "
              f"file or reboot a node, set mode = \"observe\" there", file=sys.stderr)
        for name, why in problems.items():
            print(f"{name}: NOT rolled back: {why}", file=sys.stderr)

    def step(self):
        step, known = self.chosen.step, self.state["nodes"]
        missing = [each for each in STEPS[:STEPS.index(step)] if each not in self.state["done"]]
        if missing:
            since = f" since the step '{self.state['rolled_back']}' was rolled back" if self.state["rolled_back"] else ""
            raise Stop(f"the step '{missing[0]}' has not passed{since}; run it first (state: {self.file})")
        if step == "observe":
            for name in sorted(set(known[:self.state["enforcing"]]).difference(self.nodes)):
                print(f"{name}: enforces, but {self.chosen.nodes} no longer names it; set mode = \"observe\" there",
                      file=sys.stderr)
            self.begin_anew(nodes=self.nodes)
        elif known != self.nodes:
            raise Stop(f"{self.chosen.nodes}: the names or their order changed since the step 'observe'; restore the list (see "
                       f"{self.file}), or begin again with 'observe'")
        self.save()
        {"observe": self.observe, "accept": self.accept}.get(step, self.enforce)()
        self.state["done"][step] = self.state["enforcing"]
        self.save()
        print(f"step {step}: passed")


def interrupt(number, _):
    raise Stop(f"interrupted ({signal.Signals(number).name})")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=STEPS)
    parser.add_argument("--nodes", required=True, metavar="FILE", help="names for ssh; the first ones enforce first")
    parser.add_argument("--state", default="rollout.json", metavar="FILE", help="what the steps keep (%(default)s)")
    parser.add_argument("--soak", type=seconds, default="1h", metavar="TIME", help="how long a step is watched (%(default)s)")
    parser.add_argument("--every", type=seconds, default="10s", metavar="TIME", help="time between two looks (%(default)s)")
    parser.add_argument("--off-p99", type=seconds, default="100ms", metavar="TIME",
                        help="longest p99 from an online arrival until offline work is off the GPU (%(default)s)")
    parser.add_argument("--worse", type=percent, default="10", metavar="PERCENT",
                        help="by how much a p99 above its target may rise (%(default)s)")
    parser.add_argument("--ssh", type=program, default="ssh -l root", metavar="COMMAND",
                        help="ssh program and its options (%(default)s)")
    parser.add_argument("--sluice", type=program, default="sluice", metavar="PROGRAM",
                        help="the command sluice here (%(default)s)")
    parser.add_argument("--set-mode", metavar="COMMAND", help="sets the mode MODE on a node and restarts the daemon (%(default)s)",
                        default="sed -i 's/^mode = .*/mode = \"MODE\"/' /etc/sluice/sluice.toml && "
                                "sluice check /etc/sluice/sluice.toml && systemctl restart sluice")
    parser.add_argument("--accept", metavar="COMMAND", help="tests the GPU of the first node (%(default)s)",
                        default="systemctl stop sluice; sluice accept; code=$?; systemctl start sluice; exit $code")
    chosen = parser.parse_args()
    for each in SIGNALS:  # Ctrl-C and a lost terminal, too, end a step with a roll-back.
        signal.signal(each, interrupt)
    try:
        Rollout(chosen).step()
    except (Stop, OSError) as error:
        print(f"step {chosen.step}: FAILED:\n{error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
