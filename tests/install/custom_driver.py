#!/usr/bin/env python3
"""examples/custom_driver/README.md against an installed sluice: a driver that freezes cgroups.

usage: custom_driver.py EXAMPLE PREFIX WORK

Builds the example outside the tree and runs it on real processes: an offline one that is frozen and
one that nobody may touch. Prints the times from the begin of online work to "frozen 1". Then kills
the agent, the agent with its guardian, and all three with the daemon.
"""

import os
import pathlib
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time

SKIPPED = 77
ROUNDS = 100
MEDIAN_LIMIT_MS = 10.0
PATIENCE = 20.0


def mount_point():
    for line in pathlib.Path("/proc/self/mountinfo").read_text().splitlines():
        if " - cgroup2 " in line:
            return pathlib.Path(line.split()[4])
    return None


def eventually(condition, what):
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        if condition():
            return
        time.sleep(0.002)
    sys.exit(f"not within {PATIENCE:g} s: {what}")


class Page:
    """The commands of the example's page, with this test's places in the place of the page's."""

    def __init__(self, example, work, places):
        text = (example / "README.md").read_text()
        self.blocks = re.findall(r"^```sh\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
        self.work, self.places = work, places

    def line(self, beginning):
        found = [line for block in self.blocks for line in block.splitlines() if line.startswith(beginning)]
        assert len(found) == 1, (beginning, found)
        for theirs, ours in self.places.items():
            found[0] = found[0].replace(theirs, str(ours))
        return found[0]

    def start(self, beginning, **how):
        return subprocess.Popen("exec " + self.line(beginning), shell=True, cwd=self.work, text=True, **how)

    def run(self, beginning):
        return subprocess.run(self.line(beginning), shell=True, cwd=self.work, text=True, capture_output=True)

    def build(self, prefix):
        block = next(each for each in self.blocks if "cmake --build" in each)
        subprocess.run(["sh", "-eux", "-c", block], cwd=self.work, check=True,
                       env=os.environ | {"SLUICE_PREFIX": str(prefix)})


class Cgroup:
    """A cgroup with one process that computes."""

    def __init__(self, path, page=None):
        self.path = path
        path.mkdir(exist_ok=True)
        if page:
            self.process = page.start("sh -c")
        else:
            self.process = subprocess.Popen(["sh", "-c", "while :; do :; done"])
            (path / "cgroup.procs").write_text(str(self.process.pid))

    def frozen(self):
        return "frozen 1" in (self.path / "cgroup.events").read_text()

    def ticks(self):
        fields = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return int(fields[11]) + int(fields[12])

    def remove(self):
        self.process.kill()
        self.process.wait()
        (self.path / "cgroup.freeze").write_text("0")
        eventually(lambda: "populated 0" in (self.path / "cgroup.events").read_text(), "the cgroup is empty")
        self.path.rmdir()


class Node:
    def __init__(self, page, directory):
        self.directory = directory
        self.log = directory / "log"
        self.daemon = page.start("build/freezer run", stderr=self.log.open("a"))

    def agent(self):
        """0: there is none, or it has not written its line yet."""
        lines = (self.directory / "owner").read_text().splitlines()
        return int(lines[1].split()[0]) if len(lines) > 1 and lines[1][:1].isdigit() else 0

    def guardian(self):
        agent = self.agent()
        for each in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                fields = (each / "stat").read_text()
            except OSError:
                continue
            if "(sluice-guardian)" in fields and int(fields.rpartition(")")[2].split()[1]) == agent:
                return int(each.name)
        return None

    def kill_both(self, *besides):
        """Nobody can act while it is stopped, nor on the way from that to its death."""
        guardian, agent = self.guardian(), self.agent()
        for each in guardian, agent:
            os.kill(each, signal.SIGSTOP)
        if "daemon" in besides:
            self.daemon.kill()
            self.daemon.wait()
        for each in agent, guardian:
            os.kill(each, signal.SIGKILL)


def run(page, prefix, client, directory, parent):
    made = page.run("mkdir")
    assert made.returncode == 0, made
    node = Node(page, directory)
    offline, other = Cgroup(parent / "offline-1", page), Cgroup(parent / "other-1")
    holder = None
    try:
        socket, events = directory / "clients.sock", offline.path / "cgroup.events"
        eventually(lambda: socket.exists() and node.guardian(), "the daemon runs")

        def status():
            return page.run("build/freezer status").stdout

        eventually(lambda: f"{offline.path}: process {offline.process.pid} (sh): runs" in status(), "it is listed")
        eventually(lambda: "uses the suspend mechanism cgroup freezer" in node.log.read_text(), "a mechanism")
        before = other.ticks()
        measured = subprocess.run([client, socket, events, str(ROUNDS + 1)], capture_output=True, text=True)
        if measured.returncode != 0:
            sys.exit(measured.stderr + node.log.read_text())
        # The first waits until the process is attached to.
        times = sorted(float(line) for line in measured.stdout.split()[1:])
        median = statistics.median(times)
        print(f"begin of online work to 'frozen 1': {len(times)} times, median {median:.2f} ms, p99 "
              f"{times[int(len(times) * 0.99) - 1]:.2f} ms, longest {times[-1]:.2f} ms")
        assert len(times) == ROUNDS
        assert median <= MEDIAN_LIMIT_MS, f"more than {MEDIAN_LIMIT_MS} ms"
        eventually(lambda: other.ticks() > before, "the process that is not offline computes")
        assert not other.frozen()

        def hold():
            begun = subprocess.Popen([client, socket, events, "0"], stdout=subprocess.PIPE, text=True)
            assert begun.stdout.readline() == "online\n"
            eventually(offline.frozen, "the offline process is frozen")
            return begun

        holder = hold()
        assert f"{offline.path}: process {offline.process.pid} (sh): frozen" in status(), status()
        stock = subprocess.run([prefix / "bin/sluice", "why", str(offline.process.pid), "--directory", directory],
                               capture_output=True, text=True)
        assert stock.returncode == 0 and "held" in stock.stdout, stock

        agent = node.agent()
        os.kill(agent, signal.SIGKILL)
        eventually(lambda: not offline.frozen(), "thawed after the agent was killed")
        eventually(lambda: node.agent() not in (0, agent) and node.guardian() and offline.frozen(), "the next agent freezes")
        assert "ended without resuming" not in node.log.read_text(), "the guardian did not thaw it"
        print("agent killed: thawed by its guardian")

        node.kill_both()
        eventually(lambda: not offline.frozen(), "thawed after agent and guardian were killed")
        eventually(lambda: "ended without resuming 1 process; now resumed: 1" in node.log.read_text(), "a line")
        eventually(lambda: node.guardian() and offline.frozen(), "the next agent freezes")
        print("agent and guardian killed: thawed by the next agent")

        node.kill_both("daemon")
        holder.kill()
        time_limit = time.monotonic() + 0.3
        while time.monotonic() < time_limit:
            assert offline.frozen(), "nobody is left who could thaw it"
        said = page.run("build/freezer-agent --rescue")
        assert said.returncode == 0 and said.stdout.startswith("resumed: 1 of 1\n"), said
        eventually(lambda: not offline.frozen(), "thawed by the rescue")
        print("daemon, agent and guardian killed: thawed by a rescue")

        node = Node(page, directory)
        eventually(lambda: socket.exists() and node.guardian(), "the daemon runs again")
        holder = hold()
        node.daemon.terminate()
        assert node.daemon.wait(PATIENCE) == 0
        eventually(lambda: not offline.frozen(), "thawed after the daemon was told to end")
        print("daemon told to end: thawed")
    finally:
        if holder:
            holder.kill()
        node.daemon.kill()
        eventually(lambda: not node_lives(directory), "the agent has ended")
        offline.remove()
        other.remove()


def node_lives(directory):
    """Whether an agent or a guardian still has its record open."""
    record = directory / "owner.holds"
    if not record.exists():
        return False
    name = str(record.resolve())
    for each in pathlib.Path("/proc").glob("[0-9]*/fd/*"):
        try:
            if os.readlink(each) == name:
                return True
        except OSError:
            continue
    return False


def main():
    example, prefix, work = (pathlib.Path(each).resolve() for each in sys.argv[1:])
    mounted = mount_point()
    if os.geteuid() != 0 or mounted is None or not os.access(mounted, os.W_OK):
        print("skipped: needs root and a writable cgroup v2")
        sys.exit(SKIPPED)
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    lines = sum(len(each.read_text().splitlines())
                for each in example.iterdir() if re.search(r"\.([ch]pp|txt)$", each.name))
    assert lines <= 300, f"the example has {lines} lines"
    shutil.copytree(example, work / "example")
    root = f"sluice-test-{os.getpid()}"
    parent, directory = mounted / root, work / "run"
    page = Page(example, work / "example",
                {"/sys/fs/cgroup/jobs": parent, "/run/freezer": directory, " jobs": f" {root}"})
    page.build(prefix)
    client = work / "client"
    for command in (["-S", pathlib.Path(__file__).parent / "custom_driver", "-B", client], ["--build", client]):
        subprocess.run(["cmake", *command], check=True, env=os.environ | {"CMAKE_PREFIX_PATH": str(prefix)})
    parent.mkdir()
    try:
        run(page, prefix, client / "online_client", directory, parent)
    finally:
        parent.rmdir()


if __name__ == "__main__":
    main()
