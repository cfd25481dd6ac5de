#!/usr/bin/env python3
"""usage: slurm.py --nodes N [--long] --group NAME --work DIR BIN_DIR [CASE...]   (as slurm.sh calls it)

Runs jobs on a Slurm cluster of namespaces, each node with a simulated GPU and a daemon of sluice. The nodes' processes
are in cgroups below NAME, and their files in DIR. Without CASE, runs all cases. Exit code 0: no case failed; 1: one did."""

import argparse
import json
import pathlib
import re
import sys
import time
import traceback

import cluster
import gangs
from cluster import Failure, require, run, wait_until

HERE = pathlib.Path(__file__).resolve().parent
TOP = HERE.parents[1]
ENDED = 30  # s: Slurm's epilog and accounting, on a busy machine.


class Bed:
    """The cluster, and jobs on it. Each case begins and ends with an empty queue."""

    def __init__(self, chosen, work):
        self.cluster = cluster.Cluster(chosen.bin, work, chosen.nodes, chosen.group)
        self.work, self.bin = work, self.cluster.bin
        self.environment = {**cluster.DEVICE, "SLUICE_CLIENT_LIBRARY": self.bin.parent / "lib/libsluice_client.so.0",
                            "PYTHONPATH": TOP / "adapters/client/python"}
        self.environment = {name: str(value) for name, value in self.environment.items()}
        (work / "jobs").mkdir()
        (work / "jobs").chmod(0o777)
        self.wishes = 0

    # Jobs.

    def submit(self, user, partition, line, *options):
        """Submits a batch job as that user. Returns its number."""
        return int(run("setpriv", "--reuid", user, "--regid", user, "--init-groups", "sbatch", "--parsable", "-p", partition,
                       "--gres=shard:1", "-o", self.work / "jobs/%j.out", *options, "--wrap", line,
                       environment=self.environment).stdout)

    def offline(self, *options, user="bob", partition="preempt"):
        return self.submit(user, partition, f"exec {self.bin}/offline_demo", *options)

    def online(self, *options, user="ann", partition="serving"):
        """A server that is busy while the file exists that is returned beside its job's number."""
        self.wishes += 1
        wish = self.work / f"busy.{self.wishes}"
        job = self.submit(user, partition, f"exec python3 -B {HERE}/online.py {wish}", *options)
        wait_until(lambda: self.said(job).startswith("connected"), cluster.PATIENCE, f"job {job}: client")
        return job, wish

    def said(self, job):
        path = self.work / f"jobs/{job}.out"
        return path.read_text(errors="replace") if path.exists() else ""

    def state(self, job):
        return run("scontrol", "-o", "show", "job", job, check=False).stdout.partition("JobState=")[2].partition(" ")[0]

    def wait_state(self, job, *states):
        wait_until(lambda: self.state(job) in states, cluster.PATIENCE, f"job {job}: state {' or '.join(states)}")

    def cancel(self, *jobs):
        run("scancel", *jobs)
        self.wait_gone(*jobs)

    def clear(self):
        """After a case that failed."""
        run("bash", "-c", "squeue -h -o %A | xargs -r scancel", check=False)
        wait_until(lambda: not run("squeue", "-h").stdout.strip(), cluster.PATIENCE, "an empty queue")

    def wait_gone(self, *jobs):
        """Until a job has ended everywhere, its epilogs too."""
        for job in jobs:
            wait_until(lambda job=job: self.state(job) in ("", "COMPLETED", "CANCELLED", "FAILED", "TIMEOUT")
                       and str(job) not in run("squeue", "-h", "-o", "%A").stdout.split(), cluster.PATIENCE, f"end of job {job}")

    # What sluice says on a node.

    def processes(self, node, job):
        """Of a job, by what sluice shows of processes that have the GPU open."""
        listed = json.loads(node.sluice("queues", "--json").stdout)["processes"]
        return [each for each in listed if f"/job_{job}/" in self.cgroups(node, each["pid"])]

    def cgroups(self, node, pid):
        return node.inside("cat", f"/proc/{pid}/cgroup", check=False).stdout

    def role(self, node, job):
        """The role of a job's processes, once they have queues."""
        return wait_until(lambda: self.groups(node, job), cluster.PATIENCE, f"{node.name}: queues of job {job}")[0]["role"]

    def wait_role(self, node, job, wanted):
        wait_until(lambda: self.role(node, job) == wanted, cluster.PATIENCE, f"{node.name}: role {wanted} of job {job}")

    def frozen(self, node, job):
        """Whether Slurm has frozen a job's processes."""
        path = re.search(r"^\d+:freezer:(/.*)$", self.cgroups(node, self.processes(node, job)[0]["pid"]), re.M)[1]
        return node.inside("cat", f"{cluster.CGROUPS}/freezer{path}/freezer.state").stdout.strip() == "FROZEN"

    def groups(self, node, job):
        """sluice's groups with a job's processes."""
        pids = {each["pid"] for each in self.processes(node, job)}
        return [each for each in node.status()["groups"] if pids & {of["pid"] for of in each["processes"]}]

    def group(self, node, job):
        return next(iter(self.groups(node, job)), None)

    def wait_group(self, node, job, state):
        return wait_until(lambda: (self.group(node, job) or {}).get("state") == state, cluster.PATIENCE,
                          f"{node.name}: job {job} {state}")

    def held(self, node):
        """An offline job that is held, and the online job that holds it, as online() returns it."""
        offline, online = self.offline("-w", node.name), self.online("-w", node.name)
        self.wait_role(node, offline, "offline")
        online[1].touch()
        self.wait_group(node, offline, "suspended")
        return offline, online

    def stored(self, node):
        """The cgroups that have a role in a node's role store."""
        return {each["cgroup"]: each["role"] for each in json.loads(node.sluice("role", "list", "--json").stdout)["cgroups"]}

    def holds(self, node, online, offline):
        """Whether online work of a job holds an offline job, and its end lets it go on."""
        _, wish = online
        wish.touch()
        self.wait_group(node, offline, "suspended")
        wish.unlink()
        self.wait_group(node, offline, "running")


# The cases. Each one's first line says what must hold.


def roles(bed):
    """the partition decides the role and who may be a client, and the epilog removes the role"""
    node = bed.cluster.nodes[0]
    offline = bed.offline("-w", node.name)
    other = bed.offline("-w", node.name, partition="other")
    bed.wait_role(node, offline, "offline")
    bed.wait_role(node, other, "unmatched")
    online, _ = bed.online("-w", node.name)
    have = bed.stored(node)
    require(any(name.endswith(f"/job_{offline}") and what == "offline" for name, what in have.items())
            and any(name.endswith(f"/job_{online}") and what == "online" for name, what in have.items())
            and not any(name.endswith(f"/job_{other}") for name in have), f"role store: {have}")
    refused = bed.submit("ann", "other", f"exec python3 -B {HERE}/online.py {bed.work}/never", "-w", node.name)
    bed.wait_gone(refused)
    require("may not be online" in bed.said(refused), f"a client in partition other: {bed.said(refused)}")
    bed.cancel(offline, other, online)
    wait_until(lambda: not bed.stored(node), ENDED, "an empty role store")


def preempt(bed):
    """online work of one job holds the offline job of another user, and lets it go on"""
    node = bed.cluster.nodes[0]
    offline, online = bed.offline("-w", node.name), bed.online("-w", node.name)
    bed.wait_role(node, offline, "offline")
    for _ in range(3):
        bed.holds(node, online, offline)
    bed.cancel(offline, online[0])


def ends_while_held(bed):
    """a job that is held can be cancelled, and leaves the node idle"""
    node = bed.cluster.nodes[0]
    offline, (online, wish) = bed.held(node)
    bed.cancel(offline)
    require(bed.group(node, offline) is None, "sluice still has a group of the job")
    bed.cancel(online)
    wait_until(bed.cluster.idle, ENDED, "idle nodes")


def several_nodes(bed):
    """a job of two nodes is left alone, and a job of one node is not"""
    first, second = bed.cluster.nodes[:2]
    job = bed.submit("bob", "preempt", f"srun {bed.bin}/offline_demo", "-N2", "--ntasks-per-node=1")
    for node in (first, second):
        bed.wait_role(node, job, "unmatched")
    offline, (online, wish) = bed.held(first)
    require(bed.group(first, job)["state"] == "running", "a job of two nodes was held")
    wish.unlink()
    bed.cancel(job, offline, online)


def heterogeneous(bed):
    """a heterogeneous job is left alone, also what runs on one of its nodes outside of a step"""
    first, second = bed.cluster.nodes[:2]
    parts = "-N1", "-w", first.name, ":", "-p", "preempt", "--gres=shard:1", "-N1", "-w", second.name
    job = bed.submit("bob", "preempt", f"srun --het-group=0,1 {bed.bin}/offline_demo", *parts)
    for number, node in enumerate((first, second)):
        bed.wait_role(node, job + number, "unmatched")
    bed.cancel(job)
    job = bed.submit("bob", "preempt", f"exec {bed.bin}/offline_demo", *parts)  # For it, Slurm counts one node.
    bed.wait_role(first, job, "unmatched")
    bed.cancel(job)


def account(bed):
    """the account decides the role, and so does the reservation"""
    node = bed.cluster.nodes[0]
    job = bed.offline("-w", node.name, "--account", "spare", partition="other")
    bed.wait_role(node, job, "offline")
    bed.cancel(job)
    run("scontrol", "create", "reservation", "reservationname=night", "starttime=now", "duration=60", "users=bob",
        f"nodes={node.name}")
    try:
        job = bed.offline("-w", node.name, "--reservation", "night", partition="other")
        bed.wait_role(node, job, "offline")
    finally:
        bed.clear()
        run("scontrol", "delete", "reservationname=night")


def comment(bed):
    """a user can make a job offline by --comment"""
    node = bed.cluster.nodes[0]
    offline = bed.offline("-w", node.name, "--comment", "sluice-offline", partition="other")
    other = bed.offline("-w", node.name, "--comment", "another", partition="other")
    bed.wait_role(node, offline, "offline")
    bed.wait_role(node, other, "unmatched")
    bed.cancel(offline, other)


def qos(bed):
    """a rule of the daemon reads the QOS from the job's environment"""
    node = bed.cluster.nodes[0]
    offline = bed.offline("-w", node.name, "--qos", "preemptible", partition="other")
    bed.wait_role(node, offline, "offline")
    bed.holds(node, online := bed.online("-w", node.name), offline)
    bed.cancel(offline, online[0])


def arrays(bed):
    """each task of a job array is a job of its own"""
    node = bed.cluster.nodes[0]
    bed.offline("-w", node.name, "--array=0-1")
    tasks = wait_until(lambda: len(found := run("squeue", "-h", "-t", "running", "-o", "%A").stdout.split()) == 2 and found,
                       cluster.PATIENCE, "both tasks")
    online = bed.online("-w", node.name)
    for task in tasks:
        bed.wait_role(node, task, "offline")
        bed.holds(node, online, task)
    bed.cancel(*tasks, online[0])


def steps(bed):
    """all steps of a job are held"""
    node = bed.cluster.nodes[0]
    job = bed.submit("bob", "preempt", f"srun -n1 --overlap {bed.bin}/offline_demo & srun -n1 --overlap {bed.bin}/offline_demo & wait",
                     "-w", node.name, "-n2")
    wait_until(lambda: len([each for each in bed.processes(node, job) if each["queues"]]) == 2, cluster.PATIENCE, "both steps")
    bed.wait_role(node, job, "offline")
    online, wish = bed.online("-w", node.name)
    wish.touch()
    wait_until(lambda: all(each["state"] == "suspended" for each in bed.groups(node, job)), 10, "both steps suspended")
    wish.unlink()
    wait_until(lambda: all(each["state"] == "running" for each in bed.groups(node, job)), 10, "both steps running")
    bed.cancel(job, online)


def drain(bed):
    """a job that is held goes on when its node drains"""
    node = bed.cluster.nodes[0]
    offline, (online, wish) = bed.held(node)
    run("scontrol", "update", f"nodename={node.name}", "state=drain", "reason=test")
    try:
        wish.unlink()
        bed.wait_group(node, offline, "running")
        bed.holds(node, (online, wish), offline)
        require(bed.state(offline) == "RUNNING", f"the job is {bed.state(offline)}")
        bed.cancel(offline, online)
        wait_until(lambda: run("sinfo", "-h", "-n", node.name, "-o", "%T").stdout.split()[:1] == ["drained"], ENDED,
                   "a drained node")
        wait_until(lambda: not bed.stored(node), ENDED, "an empty role store")
    finally:
        run("scontrol", "update", f"nodename={node.name}", "state=resume")
    wait_until(bed.cluster.idle, ENDED, "idle nodes")


def controller(bed):
    """a job that is held goes on while slurmctld restarts"""
    node = bed.cluster.nodes[0]
    offline, (online, wish) = bed.held(node)
    bed.cluster.controller.terminate()
    bed.cluster.controller.wait()
    wish.unlink()
    bed.wait_group(node, offline, "running")
    bed.holds(node, (online, wish), offline)
    bed.cluster.start_controller()
    bed.wait_state(offline, "RUNNING")
    bed.cancel(offline, online)
    wait_until(bed.cluster.idle, cluster.PATIENCE, "idle nodes")


def hanging_epilog(bed):
    """while an epilog hangs, other jobs of the node are held and go on"""
    node = bed.cluster.nodes[0]
    offline, online = bed.offline("-w", node.name), bed.online("-w", node.name)
    bed.wait_role(node, offline, "offline")
    hangs, goes_on = bed.work / "hangs", bed.work / "go_on"
    epilog = bed.work / "etc/sluice/epilog.sh"
    text = epilog.read_text()
    epilog.write_text(text.replace("set -u\n", f"set -u\ntouch {hangs}; until [ -e {goes_on} ]; do sleep 0.1; done\n", 1))
    try:
        other = bed.offline("-w", node.name)
        bed.wait_role(node, other, "offline")
        run("scancel", other)
        wait_until(hangs.exists, ENDED, "an epilog that hangs")
        bed.holds(node, online, offline)
        goes_on.touch()
        bed.wait_gone(other)
    finally:
        goes_on.touch()
        epilog.write_text(text)
    bed.cancel(offline, online[0])
    wait_until(lambda: not bed.stored(node), ENDED, "an empty role store")


def accounts(bed):
    """`sluice jobs` and sacct agree on how long jobs ran, and sluice knows how long they were suspended"""
    node = bed.cluster.nodes[0]
    offline, (online, wish) = bed.held(node)
    began = time.monotonic()
    time.sleep(2)  # What is measured.
    wish.unlink()
    bed.wait_group(node, offline, "running")
    held = time.monotonic() - began
    bed.cancel(offline, online)
    listed = wait_until(lambda: [each for each in json.loads(node.sluice("jobs", "--json", "/var/lib/sluice/jobs").stdout)["groups"]
                                 if each["group"] == f"slurm:{offline}"], ENDED, f"job {offline} in `sluice jobs`")[0]
    seconds = float(wait_until(lambda: run("sacct", "-n", "-X", "-P", "-j", offline, "-o", "ElapsedRaw").stdout.strip(), ENDED,
                               "sacct"))
    # The process starts after the job and ends before it; Slurm counts whole seconds.
    require(-1.5 <= seconds - listed["wall_s"] <= 3, f"sacct: {seconds:.0f} s; sluice jobs: {listed['wall_s']:.1f} s")
    require(abs(listed["suspended_s"] - held) < 1, f"suspended {listed['suspended_s']:.1f} s of {held:.1f} s")


def slurm_suspends(bed):
    """a job that Slurm suspends (PreemptMode=SUSPEND,GANG) is held and goes on all the same, whichever comes first"""
    node = bed.cluster.nodes[0]
    online = bed.online("-w", node.name)
    offline = bed.offline("-w", node.name, "-N1", "-n4", partition="low")
    bed.wait_role(node, offline, "offline")

    def wait_frozen(wanted):
        wait_until(lambda: bed.frozen(node, offline) == wanted, cluster.PATIENCE,
                   f"job {offline} {'' if wanted else 'not '}frozen")

    def preempting():
        job = bed.submit("ann", "high", "sleep 1000", "-w", node.name, "-N1", "-n7")
        bed.wait_state(offline, "SUSPENDED")
        wait_frozen(True)  # slurmctld says so before it is.
        return job

    def resumed():
        bed.wait_state(offline, "RUNNING")
        wait_frozen(False)

    # sluice holds first, and lets go last.
    online[1].touch()
    bed.wait_group(node, offline, "suspended")
    bed.cancel(preempting())
    resumed()
    require(bed.group(node, offline)["state"] == "suspended", "Slurm's resume ended the hold")
    online[1].unlink()
    bed.wait_group(node, offline, "running")
    # Slurm suspends first, and resumes last.
    job = preempting()
    bed.holds(node, online, offline)
    bed.cancel(job)
    resumed()
    bed.holds(node, online, offline)
    # It still does its work.
    run("scancel", "--signal=TERM", "--full", offline)
    bed.wait_gone(offline)
    require("each exactly once and in order" in bed.said(offline), f"the job says: {bed.said(offline)}")
    bed.cancel(online[0])


CASES = {each.__name__: each for each in (roles, account, comment, qos, preempt, arrays, steps, ends_while_held, several_nodes,
                                           heterogeneous, drain, controller, hanging_epilog, accounts, slurm_suspends, *gangs.QUICK)}
LONG = {each.__name__: each for each in gangs.LONG}


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--nodes", type=int, required=True)
    parser.add_argument("--group", required=True)
    parser.add_argument("--work", required=True, type=pathlib.Path)
    parser.add_argument("bin")
    parser.add_argument("--long", action="store_true")
    parser.add_argument("case", nargs="*", choices=[[], *CASES, *LONG])
    chosen = parser.parse_intermixed_args()
    work = chosen.work
    bed, failed = Bed(chosen, work), []
    try:
        began = time.monotonic()
        bed.cluster.start()
        print(f"=== a cluster of {chosen.nodes} nodes: {time.monotonic() - began:.1f} s", flush=True)
        for name in chosen.case or (*CASES, *(LONG if chosen.long else ())):
            began, why = time.monotonic(), ""
            try:
                {**CASES, **LONG}[name](bed)
            except Exception as error:  # One case; the others go on.
                print(run("squeue", "-o", "%A %P %T %r %C %b %N", check=False).stdout)
                why = str(error) if isinstance(error, Failure) else traceback.format_exc()
                failed.append(name)
                bed.clear()
            print(f"=== {name}: {'FAILED' if why else 'passed'} after {time.monotonic() - began:.1f} s"
                  + (f": {why}" if why else ""), flush=True)
            if why:
                bed.clear()
    except Exception as error:
        failed.append("start")
        print(f"=== FAILED: {error}")
    finally:
        if failed:
            for each in sorted(work.rglob("log/*")):
                if each.is_file():
                    print(f"==> {each}\n{each.read_text(errors='replace')[-3000:]}")
        bed.cluster.stop()
    return 1 if failed else 0


sys.exit(main())
