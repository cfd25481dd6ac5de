#!/usr/bin/python3
"""usage: scrape.py BIN [--groups N] [--targets N] [--interval S] [--for S] [--quick]

Measures what metrics cost: first a scrape of one daemon, then what that many nodes cost a Prometheus. Prints a line for
each figure. BIN: where the programs are. Run as root, with a simulated GPU: examples/with_simulated_gpu.sh --gpus 8.

The daemon runs beside N offline processes (64), each a job of its own, and one that is online. A server of this
program then continues two pages of that daemon, which were read an interval apart: every figure of a target goes on as
it did between the two, or alternates if it fell. Prometheus reads N targets (1000) every S seconds (15), for S
seconds (300), each with its own path. Bytes on disk are those of a snapshot, made of few targets that were read every
second: it has as many samples for each series as a block of two hours would have in its chunks (120).
--quick: few groups and targets for a few seconds; figures then say little.
"""
import argparse
import asyncio
import glob
import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from statistics import median

SAMPLE = re.compile(r"^([a-zA-Z_:][^ {]*(?:\{.*\})?) (\S+)$")
DAY = 86400


def expect(holds, what):
    if not holds:
        sys.exit(f"scrape.py: {what}")


def eventually(what, holds, limit=120):
    end = time.monotonic() + limit
    while True:
        found = holds()
        if found:
            return found
        expect(time.monotonic() < end, f"{what} did not happen within {limit} s")
        time.sleep(0.2)


def say(what, figure, unit):
    print(f"{what}: {figure:.4g} {unit}", flush=True)


def processor_ns(task):
    with open(f"{task}/schedstat", encoding="ascii") as text:
        return int(text.read().split()[0])


def processor_s(pid):
    return sum(processor_ns(each) for each in glob.glob(f"/proc/{pid}/task/*")) / 1e9


def resident(pid):
    with open(f"/proc/{pid}/status", encoding="ascii") as text:
        return int(re.search(r"VmRSS:\s+(\d+) kB", text.read())[1]) * 1024


class on_socket(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("localhost")
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(self.path)


def page_of(path):
    try:
        connection = on_socket(path)
        connection.request("GET", "/metrics")
        return connection.getresponse().read().decode()
    except OSError:
        return ""


def samples_of(page):
    return [line for line in page.splitlines() if SAMPLE.match(line)]


class node:
    """The daemon with its offline jobs and its online process."""

    def __init__(self, programs, groups, folder):
        self.socket, self.running = f"{folder}/metrics.sock", []
        config = f"{folder}/node.toml"
        with open(config, "w", encoding="utf-8") as text:
            text.write(f'[daemon]\nmode = "enforce"\ndirectory = "{folder}"\njobs = "{folder}/jobs"\n'
                       f'metrics = "unix:{self.socket}"\n[roles]\nstore = ""\n'
                       '[scheduler]\nattach_after = "100ms"\n')
        for number in range(groups):
            self.start([f"{programs}/offline_demo"], AMD_QUEUE_TAG="OFFLINE_AI", SLURM_JOB_ID=str(1000 + number))
        self.daemon = self.start([f"{programs}/sluice", "run", "--config", config],
                                 SLUICE_CLIENT_SOCKET=f"{folder}/clients.sock", SLUICE_BREAKERS=f"{folder}/breakers")
        eventually("a page with every group", lambda: self.groups() >= groups)
        self.start([f"{programs}/online_demo", "--no-scheduler"], AMD_QUEUE_TAG="ONLINE_AI")

    def start(self, command, **environment):
        self.running.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
                                             stderr=subprocess.DEVNULL, env={**os.environ, **environment}))
        return self.running[-1]

    def groups(self):
        return len(set(re.findall(r'group="(slurm:\d+)"', page_of(self.socket))))

    def threads(self):
        return {each: processor_ns(each) for each in glob.glob(f"/proc/{self.daemon.pid}/task/*")}

    def end(self):
        for each in reversed(self.running):
            each.terminate()
        for each in self.running:
            each.wait()


def measure_scrapes(of, times):
    """By turns with and without a scrape, for as long: what the thread does anyway is taken away. Between scrapes
    figures change, so that each page is made anew. The thread is the one that many scrapes keep busy."""
    before = of.threads()
    for _ in range(200):
        page_of(of.socket)
    after = of.threads()
    thread = max(before, key=lambda each: after.get(each, 0) - before[each])
    used, took = {False: [], True: []}, []
    for turn in range(2 * times):
        scrapes = turn % 2 == 1
        began, ns = time.monotonic(), processor_ns(thread)
        if scrapes:
            expect(page_of(of.socket), "the daemon served no page")
            took.append(time.monotonic() - began)
        time.sleep(1.1)
        used[scrapes].append(processor_ns(thread) - ns)
    say("scrape: processor time of the daemon's thread", (median(used[True]) - median(used[False])) / 1e6, "ms")
    say("scrape: of that thread in a second without one", median(used[False]) / 1.1e6, "ms")
    say("scrape: until the page has been read, median", 1000 * median(took), "ms")
    page = page_of(of.socket)
    say("scrape: page", len(page) / 1000, "kB")
    say("scrape: series", len(samples_of(page)), "series")


class continued:
    """Pages that go on as one did between two readings."""

    def __init__(self, first, second):
        later = dict(SAMPLE.match(line).groups() for line in samples_of(second))
        self.parts = []  # Text, or a series with its value and its step.
        for line in first.splitlines():
            found = SAMPLE.match(line)
            if not found or found[1] not in later:
                self.parts.append((line, None, None))
                continue
            a, b = float(found[2]), float(later[found[1]])
            whole = a.is_integer() and b.is_integer()
            self.parts.append((found[1], int(a) if whole else a, int(b - a) if whole else b - a))

    def page(self, number):
        lines = []
        for text, value, step in self.parts:
            if value is None:
                lines.append(text)
            elif step == 0:
                lines.append(f"{text} {value}")
            else:
                lines.append(f"{text} {value + step * (number if step > 0 else number % 2)}")
        return ("\n".join(lines) + "\n").encode()


class fleet:
    """A process that serves /NUMBER/metrics for every number: each has its own count of readings."""

    def __init__(self, pages):
        with socket.create_server(("127.0.0.1", 0), backlog=1024) as listening:
            self.port = listening.getsockname()[1]
            self.pid = os.fork()
            if self.pid == 0:
                asyncio.run(self.serve(pages, listening))

    async def serve(self, pages, listening):
        seen, made = {}, {}

        async def answer(reader, writer):
            try:
                while True:
                    path = (await reader.readuntil(b"\r\n\r\n")).split(b" ", 2)[1]
                    number = seen[path] = seen.get(path, -1) + 1
                    if number not in made:
                        made[number] = pages.page(number)
                        made.pop(number - 3, None)
                    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\n"
                                 b"Content-Length: %d\r\n\r\n" % len(made[number]) + made[number])
                    await writer.drain()
            except (asyncio.IncompleteReadError, ConnectionError):
                writer.close()

        await (await asyncio.start_server(answer, sock=listening)).serve_forever()

    def end(self):
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


class prometheus:
    """Debian's, in a folder of its own, reading so many targets."""

    def __init__(self, folder, port, targets, interval):
        os.makedirs(folder)
        self.folder = folder
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.own = free.getsockname()[1]
        with open(f"{folder}/targets.json", "w", encoding="utf-8") as text:
            json.dump([{"targets": [f"127.0.0.1:{port}"],
                        "labels": {"__metrics_path__": f"/{i}/metrics", "instance": f"node{i:04}:9464"}}
                       for i in range(targets)], text)
        with open(f"{folder}/prometheus.yml", "w", encoding="utf-8") as text:
            text.write(f"global: {{scrape_interval: {interval}s, scrape_timeout: {interval}s}}\n"
                       "scrape_configs:\n- job_name: sluice\n  file_sd_configs: [{files: [targets.json]}]\n")
        with open(f"{folder}/log", "wb") as log:
            self.process = subprocess.Popen(
                ["prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
                 f"--web.listen-address=127.0.0.1:{self.own}", "--web.enable-admin-api"],
                stdout=log, stderr=subprocess.STDOUT, cwd=folder)
        self.pid, self.targets = self.process.pid, targets

    def wait(self):
        eventually("a scrape of every target", lambda: self.value("sum(up)") == self.targets, limit=600)

    def get(self, path, data=None):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.own}/api/v1/{path}", data=data) as answer:
            return json.load(answer)["data"]

    def value(self, query):
        try:
            found = self.get("query?query=" + urllib.request.quote(query))["result"]
        except OSError:
            return 0
        return float(found[0]["value"][1]) if found else 0

    def head(self):
        return self.get("status/tsdb")["headStats"]["numSeries"]

    def snapshot(self):
        name = self.get("admin/tsdb/snapshot", data=b"")["name"]
        return f"{self.folder}/data/snapshots/{name}"

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait()


def bytes_below(folder):
    return sum(os.path.getsize(os.path.join(at, each)) for at, _, files in os.walk(folder) for each in files)


def measure_many(server, folder, asked):
    """All targets. Returns how many series they have."""
    one = prometheus(f"{folder}/many", server.port, asked.targets, asked.interval)
    try:
        one.wait()
        began, used, wal = time.monotonic(), processor_s(one.pid), bytes_below(f"{one.folder}/data/wal")
        time.sleep(asked.seconds)
        seconds = time.monotonic() - began
        series = one.head()
        say("prometheus: targets read", one.value("sum(up)"), "targets")
        say("prometheus: series", series, "series")
        say("prometheus: longest scrape", 1000 * one.value("max(scrape_duration_seconds)"), "ms")
        say("prometheus: memory", resident(one.pid) / 1e9, "GB")
        say("prometheus: processor time", (processor_s(one.pid) - used) / seconds, "s per s")
        say("prometheus: write-ahead log", (bytes_below(f"{one.folder}/data/wal") - wal) / seconds / 1e6, "MB/s")
        return series
    finally:
        one.end()
        shutil.rmtree(one.folder)


def measure_disk(server, folder, asked, series):
    few = prometheus(f"{folder}/few", server.port, max(1, asked.targets // 50), 1)
    try:
        few.wait()
        time.sleep(asked.samples)
        block = few.snapshot()
        with open(glob.glob(f"{block}/*/meta.json")[0], encoding="ascii") as text:
            each = bytes_below(block) / json.load(text)["stats"]["numSamples"]
        say("prometheus: disk, per sample", each, "bytes")
        say("prometheus: disk, per day", each * series * DAY / asked.interval / 1e9, "GB")
    finally:
        few.end()


def measure_prometheus(pages, folder, asked):
    server = fleet(pages)
    try:
        measure_disk(server, folder, asked, measure_many(server, folder, asked))
    finally:
        server.end()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", metavar="BIN")
    parser.add_argument("--groups", type=int)
    parser.add_argument("--targets", type=int)
    parser.add_argument("--interval", type=int)
    parser.add_argument("--for", type=int, dest="seconds")
    parser.add_argument("--quick", action="store_true")
    asked = parser.parse_args()
    small = asked.quick
    asked.groups = asked.groups or (4 if small else 64)
    asked.targets = asked.targets or (20 if small else 1000)
    asked.interval = asked.interval or (1 if small else 15)
    asked.seconds = asked.seconds or (3 if small else 300)
    asked.samples = 3 if small else 120
    expect("SLUICE_SIM_ROOT" in os.environ, "no simulated GPU; run it by examples/with_simulated_gpu.sh --gpus 8")
    with tempfile.TemporaryDirectory() as folder:
        running = node(asked.programs, asked.groups, folder)
        try:
            measure_scrapes(running, 3 if small else 20)
            first = page_of(running.socket)
            time.sleep(asked.interval)
            second = page_of(running.socket)
        finally:
            running.end()
        if shutil.which("prometheus") is None:
            print("prometheus is not installed; the rest is left out")
            sys.exit(77)
        measure_prometheus(continued(first, second), folder, asked)


main()
