#!/usr/bin/env python3
"""usage: ssh.py [--quick] --work DIR BIN_DIR   (as ssh.sh calls it)

`sluice fleet status` and adapters/fleet/rollout.py on nodes with a simulated GPU and a real sshd each. Exit code 0: no
case failed; 1: one did."""

import argparse
import json
import pathlib
import signal
import subprocess
import sys
import time
import traceback

from cluster import PATIENCE, Failure, require, run, wait_until
from machines import TOP, Fleet, Worker

ROLLOUT = TOP / "adapters/fleet/rollout.py"
TIMEOUT = 3  # s, of `sluice fleet status` where a host hangs.
SHORT = ("--soak", "500ms")  # For steps in which nothing has to happen.
TARGET = 'name = "slo"\nrequest.p99 = "{}"\n'


class Bed:
    """The nodes, each with an offline program and a client that serves requests."""

    def __init__(self, chosen):
        self.work = chosen.work
        self.fleet = Fleet(chosen.bin, chosen.work)
        self.count = 2 if chosen.quick else 4

    def start(self):
        self.fleet.start(["mi300x"] * self.count)
        (self.work / "nodes").write_text("# All of them.\n" + "\n".join(self.names) + "\n")
        for node in self.nodes:
            node.configure(mode="observe")
            node.start_daemon()
            node.offline()
        for node in self.nodes:
            node.wait_offline("running")
            Worker(node).start("serve(1000000, 0.01, 0.01)")

    @property
    def nodes(self):
        return self.fleet.nodes

    @property
    def names(self):
        return [node.name for node in self.nodes]

    def table(self, *arguments, code=0, limit="30s"):
        """`sluice fleet status`: its lines by node, and its standard error."""
        done = self.fleet.sluice("fleet", "status", "--ssh", self.fleet.ssh_command, "--timeout", limit, *arguments,
                                 check=False)
        require(done.returncode == code, f"fleet status exited with {done.returncode}: {done.stderr}{done.stdout}")
        heads, *lines = [line.split() for line in done.stdout.splitlines()]
        return {line[0]: dict(zip(heads, line)) for line in lines}, done.stderr

    def json(self, *arguments, code=0, limit="30s"):
        done = self.fleet.sluice("fleet", "status", "--json", "--ssh", self.fleet.ssh_command, "--timeout", limit,
                                 *arguments, check=False)
        require(done.returncode == code, f"fleet status exited with {done.returncode}: {done.stderr}")
        return {each["node"]: each for each in json.loads(done.stdout)["nodes"]}

    def command(self, step, *options):
        """A step of a rollout, with as little to wait for as possible, and limits that a busy machine keeps."""
        return [ROLLOUT, step, "--nodes", self.work / "nodes", "--state", self.work / "rollout.json", "--soak", "4s",
                "--every", "0.5s", "--off-p99", "10000ms", "--worse", "100000", "--ssh", self.fleet.ssh_command,
                "--sluice", self.fleet.bin / "sluice", "--set-mode",
                "sed -i 's/^mode = .*/mode = \"MODE\"/' /etc/sluice/sluice.toml && "
                "sluice check /etc/sluice/sluice.toml && restart-sluice", "--accept",
                "kill $(cat /run/sluice.pid); while [ -e /proc/$(cat /run/sluice.pid) ]; do sleep 0.05; done; sluice accept "
                "--beside-others --steps attach,suspend-1-idle --repeat 1 --report /run/accept.md; code=$?; "
                "restart-sluice; exit $code", *options]

    def roll(self, step, *options, code=0):
        done = run(*self.command(step, *options), check=False, limit=300)
        require(done.returncode == code, f"rollout.py {step} exited with {done.returncode}: {done.stdout}{done.stderr}")
        return done.stdout + done.stderr

    def modes(self):
        return {name: (each["status"]["node"]["mode"], each["status"]["node"]["paused"] is not None)
                for name, each in self.json("--nodes", self.work / "nodes").items()}

    def observe_again(self):
        for node in self.nodes:
            node.inside("rm", "-f", "/run/sluice/disabled")
        self.roll("observe", *SHORT)


# The cases. Each one's first line says what must hold.


def shows_all(bed):
    """the table has a line for each node, from arguments and from a file"""
    first = bed.nodes[0]
    first.reload(mode="observe", policy=TARGET.format("5s"))
    wait_until(lambda: bed.json(first.name)[first.name]["status"]["spans"][0]["kept"] is not None, PATIENCE, "enough spans")
    lines, _ = bed.table("--nodes", bed.work / "nodes")
    require(list(lines) == bed.names, f"lines: {lines}")
    line = lines[first.name]
    require(line["STATE"] == "observe" and line["GPUS"] == "1" and line["DRIVER"] == "kfd" and line["POLICY"] == "slo"
            and line["TARGET"] == "kept" and line["BREAKERS"] == "-" and line["HELD"].endswith("/1"), f"line: {line}")
    require(list(bed.table(*reversed(bed.names))[0]) == bed.names[::-1], "the order of the arguments")
    full = bed.json(first.name)[first.name]
    require(full["problem"] is None and full["status"]["node"]["mode"] == "observe", "the JSON form")
    first.reload(mode="observe")


def shows_faults(bed):
    """a pause, an open breaker and a missed target are in the table"""
    first, second = bed.nodes[:2]
    first.inside("rm", "-f", "/run/sluice/disabled")
    wait_until(lambda: bed.table(*bed.names)[0][first.name]["STATE"] != "paused", PATIENCE, "no pause")
    first.inside("touch", "/run/sluice/disabled")
    gpu = second.status()["gpus"][0]["gpu_id"]
    second.device(f"reset {gpu}")
    wait_until(lambda: second.status()["gpus"][0]["breaker_open"], PATIENCE, "an open breaker")
    first.reload(mode="observe", policy=TARGET.format("1ms"))
    lines, _ = bed.table(*bed.names)
    require(lines[second.name]["BREAKERS"] == str(gpu), f"breaker: {lines}")
    require(lines[first.name]["STATE"] == "paused", f"pause: {lines}")
    require(lines[first.name]["TARGET"] == "missed:request", f"target: {lines}")


def no_answer(bed):
    """nodes that do not answer are named with the reason, in time, and the others are shown"""
    first, second = bed.nodes[:2]
    # What a name that does not exist, a daemon that does not run, and a host that is down look like.
    first.inside("kill", first.daemon_pid())
    wait_until(lambda: first.sluice("status", check=False).returncode != 0, PATIENCE, "the end of the daemon")
    lines, said = bed.table("nonesuch", *bed.names, code=1)
    require(f"{first.name}: no answer: sluice: " in said, f"a daemon that does not run: {said}")
    require("nonesuch: no answer: ssh: Could not resolve hostname" in said, f"an unknown name: {said}")
    require(lines[second.name]["STATE"] == "observe", f"the others: {lines}")
    first.start_daemon()
    sshd = first.inside("pidof", "-s", "sshd").stdout.strip()
    first.inside("kill", "-STOP", sshd)
    began = time.monotonic()
    answers = bed.json(*bed.names, code=1, limit=f"{TIMEOUT}s")
    took = time.monotonic() - began
    first.inside("kill", "-CONT", sshd)
    require(answers[first.name]["status"] is None and "no answer within" in answers[first.name]["problem"]
            or "timed out" in answers[first.name]["problem"], f"a host that hangs: {answers[first.name]['problem']}")
    require(answers[second.name]["status"] is not None, "the others beside a host that hangs")
    require(took < TIMEOUT + 5, f"a host that hangs took {took:.1f} s")


def refuses(bed):
    """a wrong option or state ends a step with what to do, and a file that is no state stays as it is"""
    state = bed.work / "bad.json"
    for options, text in ((("--ssh", "/nonexistent -v"), "argument --ssh: cannot run '/nonexistent -v': no such program"),
                          (("--sluice", "/nonexistent"), "argument --sluice: cannot run '/nonexistent': no such program"),
                          (("--worse", "-5"), "argument --worse: invalid percentage '-5'"),
                          (("--every", "0s"), "argument --every: invalid duration '0s'")):
        said = bed.roll("observe", *options, code=2)
        require(text in said, f"{options}: {said}")
    for content in ("[]", "{", '{"done": []}'):
        state.write_text(content)
        said = bed.roll("observe", "--state", state, code=1)
        require(f"FAILED:\n{state}: cannot read the state: not written by rollout.py; choose" in said, f"{content}: {said}")
        require(state.read_text() == content, f"{content} was overwritten")
    said = bed.roll("observe", "--state", "/nonexistent/state", code=1)
    require("FAILED:\n/nonexistent/state: cannot write the state: No such file or directory; choose" in said
            and "watching" not in said, f"a state that cannot be written: {said}")
    said = bed.roll("observe", "--sluice", "/bin/echo", "--set-mode", "true", code=1)
    require("'/bin/echo fleet status' (--sluice) failed: it printed no status" in said, f"another program: {said}")


def few_nodes(bed):
    """steps without a new node watch the one that enforces; another list stops them; Ctrl-C rolls back"""
    first, second = bed.names[:2]
    nodes, state = bed.work / "few", bed.work / "few.json"
    few = "--nodes", nodes, "--state", state
    nodes.write_text(first)
    bed.roll("observe", *few, *SHORT)
    bed.roll("accept", *few, "--accept", "true")
    bed.roll("1", *few, "--soak", "2s")
    bed.roll("10", *few, *SHORT)
    bed.roll("100", *few, *SHORT)
    before = state.read_text()

    nodes.write_text(second)
    said = bed.roll("100", *few, code=1)
    require(f"{nodes}: the names or their order changed" in said and "rolled back" not in said, f"another list: {said}")
    said = bed.roll("observe", *few, "--set-mode", "false", code=1)
    require(f"{first}: enforces, but {nodes} no longer names it" in said, f"a node that enforces and left the list: {said}")
    require(bed.modes()[first] == ("enforce", False), f"without a roll-back: {bed.modes()}")

    nodes.write_text(first)
    state.write_text(before)
    with subprocess.Popen(list(map(str, bed.command("100", *few, "--soak", "1min"))), stderr=subprocess.PIPE,
                          text=True) as step:
        said = step.stderr.readline()
        step.send_signal(signal.SIGINT)
        said += step.stderr.read()
    require(step.returncode == 1 and said.startswith("watching 1 node ") and "rolled back 1 of 1 nodes" in said
            and said.endswith("step 100: FAILED:\ninterrupted (SIGINT)\n"), f"Ctrl-C: code {step.returncode}: {said}")
    require(bed.modes() == {name: ("enforce", True) if name == first else ("observe", False) for name in bed.names},
            f"after Ctrl-C: {bed.modes()}")
    said = bed.roll("1", *few, code=1)
    require(f"the step 'observe' has not passed since the step '100' was rolled back; run it first (state: {state})" in said,
            f"after a roll-back: {said}")
    bed.nodes[0].inside("rm", "/run/sluice/disabled")


def rolls_out(bed):
    """all steps pass while all is well, each on its share of the nodes"""
    said = bed.roll("100", code=1)
    require("the step 'observe' has not passed; run it first" in said, f"a step without the one before: {said}")
    bed.roll("observe")
    bed.roll("accept")
    enforcing = 0
    for step in ("1", "10", "100"):
        bed.roll(step)
        modes = list(bed.modes().values())
        count = [mode for mode, _ in modes].count("enforce")
        require(count > enforcing or count == len(modes), f"step {step}: {modes}")
        require(modes == [("enforce", False)] * count + [("observe", False)] * (len(modes) - count), f"step {step}: {modes}")
        enforcing = count
    require(enforcing == len(bed.nodes), "the last step is not all nodes")


def stops_and_rolls_back(bed):
    """a stuck driver on a node of the 10 % step stops the rollout, and rolls back every node that enforces"""
    bed.observe_again()
    bed.roll("accept")
    bed.roll("1")
    bed.roll("1", *SHORT)
    modes = list(bed.modes().values())
    require(modes == [("enforce", False)] + [("observe", False)] * (bed.count - 1), f"a repeated step: {modes}")
    second = bed.nodes[1]
    second.device("delay DBG_TRAP:SUSPEND_QUEUES 5s times=1000")
    said = bed.roll("10", "--soak", "1min", code=1)
    require(f"{second.name}: breaker of GPU" in said and "rolled back 2 of 2 nodes" in said, f"the reason: {said}")
    modes = list(bed.modes().values())
    require(modes == [("enforce", True)] * 2 + [("observe", False)] * (len(modes) - 2), f"after the roll-back: {modes}")
    second.device("no-faults")
    second.sluice("breaker", "rearm", "--all")
    for node in bed.nodes[:2]:
        node.wait_offline("running")
    require("the step 'observe' has not passed" in bed.roll("10", code=1), "the rollout goes on after its roll-back")


def rolls_back_by_touch(bed):
    """touch alone lets all queues of a node run, and its removal lets it enforce again"""
    bed.observe_again()
    bed.roll("accept")
    bed.roll("1")
    first = bed.nodes[0]
    bed.fleet.ssh(first.name, "touch", "/run/sluice/disabled")
    wait_until(lambda: first.status()["node"]["paused"] is not None, PATIENCE, "a pause")
    first.wait_offline("running")
    before = first.status()["statistics"]["suspends"]
    time.sleep(1)  # 50 requests, none of which may suspend.
    require(first.status()["statistics"]["suspends"] == before, "queues were suspended after touch")
    said = bed.roll("10", code=1)
    require(f"{first.name}: paused by an operator" in said, f"a step beside a pause: {said}")


def killed_agent(bed):
    """an agent that restarts stops the first step"""
    bed.observe_again()
    bed.roll("accept")
    first = bed.nodes[0]
    first.inside("sh", "-c", "(until agent=$(sed -n '2s/ .*//p' /run/sluice/owner) && grep -q '\"enforce\"' /etc/sluice/sluice.toml "
                 "&& sleep 2 && kill -KILL $agent; do sleep 0.1; done) </dev/null >/dev/null 2>&1 &")
    said = bed.roll("1", code=1)
    require(f"{first.name}: 1 restarts of the agent" in said and "rolled back 1 of 1 nodes" in said, f"the reason: {said}")


def slow_suspends(bed):
    """suspends that take too long stop a step"""
    bed.observe_again()
    bed.roll("accept")
    first = bed.nodes[0]
    first.device("delay DBG_TRAP:SUSPEND_QUEUES 30ms times=1000000")
    said = bed.roll("1", "--off-p99", "20ms", "--soak", "20s", code=1)
    first.device("no-faults")
    require(f"{first.name}: offline work leaves the GPU after" in said, f"the reason: {said}")


# The last one ends the offline programs of a node.
QUICK = (shows_all, no_answer, refuses, few_nodes, stops_and_rolls_back, shows_faults)
CASES = (shows_all, no_answer, refuses, few_nodes, rolls_out, stops_and_rolls_back, rolls_back_by_touch, killed_agent,
         slow_suspends, shows_faults)


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--work", required=True, type=pathlib.Path)
    parser.add_argument("bin")
    chosen = parser.parse_args()
    bed, failed = Bed(chosen), []
    try:
        began = time.monotonic()
        bed.start()
        print(f"=== {bed.count} nodes: {time.monotonic() - began:.1f} s", flush=True)
        for case in QUICK if chosen.quick else CASES:
            began, why = time.monotonic(), ""
            try:
                case(bed)
            except Exception as error:  # One case; the others go on.
                why = f": {error if isinstance(error, Failure) else traceback.format_exc()}"
                failed.append(case.__name__)
            print(f"=== {case.__name__}: {'FAILED' if why else 'passed'} after {time.monotonic() - began:.1f} s{why}",
                  flush=True)
    except Exception as error:
        failed.append("start")
        print(f"=== FAILED: {error if isinstance(error, Failure) else traceback.format_exc()}")
    finally:
        if failed:
            for each in sorted(chosen.work.rglob("log/*")):
                if each.is_file():
                    print(f"==> {each}\n{each.read_text(errors='replace')[-3000:]}")
        bed.fleet.stop()
    return 1 if failed else 0


sys.exit(main())
