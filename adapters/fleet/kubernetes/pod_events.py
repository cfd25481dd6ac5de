#!/usr/bin/env python3
"""Reports to users of pods how often their GPU work was held: reads the daemon's metrics, writes Events with kubectl.

Every few minutes, the program reads the metrics of the node's daemon. For each pod that was held since then, it
writes one Event, or replaces the one that it wrote before: "held 12 times, 3.1 s". `kubectl describe pod` shows it.
The API server deletes an Event an hour after it was last written. A pod counts as a whole: its containers and
processes are held together. If the metrics, kubectl or this program fail, roles and holds do not change.

The Events are of the API core/v1, because the message of an Event of events.k8s.io/v1 cannot be changed.
"""

import argparse
import dataclasses
import datetime
import http.client
import json
import os
import re
import subprocess
import sys
import time
import urllib.parse
import urllib.request

from pod_roles import FAILURES, LONGEST_CALL, MOST_CHARACTERS, UID, dig, say, text_of

REASON = "GPUWorkHeld"
SAMPLE = re.compile(rf'sluice_group_(holds|held_seconds)_total\{{group="pod:({UID.pattern})"\}} (\S+)')
ENFORCES = re.compile(r"sluice_enforces 1(\.0*)?")
UNREACHABLE = (*FAILURES, http.client.HTTPException)


@dataclasses.dataclass
class Held:
    """How often and how long a pod was held, since this program or the daemon started, whichever was first."""
    holds: int = 0
    seconds: float = 0.0
    first: str = ""  # when it was first seen to be held
    reported: int = 0  # `holds` of the last Event
    of_daemon: tuple[int, float] = (0, 0.0)

    def add(self, holds, seconds, now):
        """Adds what the daemon counted since the last call. A daemon that was restarted counts from 0 again, as it does
        for a pod that it has forgotten."""
        before = self.of_daemon if holds >= self.of_daemon[0] else (0, 0.0)
        self.holds += holds - before[0]
        self.seconds += max(seconds - before[1], 0.0)
        self.of_daemon = holds, seconds
        if self.holds and not self.first:
            self.first = now


def counts_of(page):
    """Returns holds and seconds of each pod on a page of metrics, by uid. A daemon that only observes held no pod."""
    lines = page.splitlines()
    if not any(ENFORCES.fullmatch(line) for line in lines):
        return {}
    values = {"holds": {}, "held_seconds": {}}
    for line in lines:
        if found := SAMPLE.fullmatch(line):
            values[found[1]][found[2]] = float(found[4])
    return {uid: (int(holds), values["held_seconds"].get(uid, 0.0)) for uid, holds in values["holds"].items()}


def event_of(pod, held, node, now):
    namespace, name, uid = (text_of(pod, "metadata", key) for key in ("namespace", "name", "uid"))
    times = "1 time" if held.holds == 1 else f"{held.holds} times"
    return {
        "apiVersion": "v1", "kind": "Event",
        "metadata": {"namespace": namespace, "name": f"sluice.{uid}"},
        "involvedObject": {"apiVersion": "v1", "kind": "Pod", "namespace": namespace, "name": name, "uid": uid},
        "type": "Normal", "reason": REASON,
        "message": f"held {times}, {held.seconds:.1f} s: online work used the GPU",
        "count": held.holds, "firstTimestamp": held.first, "lastTimestamp": now,
        "source": {"component": "sluice", "host": node},
        "reportingComponent": "sluice", "reportingInstance": node,
    }


class Reporter:
    def __init__(self, node, metrics, kubectl):
        self.node = node
        self.metrics = metrics
        self.kubectl = kubectl
        self.held = {}  # by uid
        # The daemon is in the same pod. No proxy lies between.
        self.opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def call(self, *words, document=""):
        """Calls kubectl with `--raw`, so that it sends this request and no other one."""
        done = subprocess.run([self.kubectl, *words, f"--request-timeout={LONGEST_CALL / 2:g}s"], capture_output=True,
                              input=document, text=True, check=False, timeout=LONGEST_CALL)
        if done.returncode != 0:
            raise OSError(done.stderr.strip() or f"kubectl failed with exit code {done.returncode}")
        return done.stdout

    def pods(self):
        # From the API server's cache, which may be a little old: these pods have run for a while.
        query = urllib.parse.urlencode({"fieldSelector": f"spec.nodeName={self.node}", "resourceVersion": "0"})
        items = dig(json.loads(self.call("get", "--raw", f"/api/v1/pods?{query}")), "items")
        if not isinstance(items, list):
            raise ValueError("unexpected output of kubectl: not a list of pods")
        return {text_of(pod, "metadata", "uid"): pod for pod in items}

    def sweep(self):
        """Writes an Event for each pod that was held since its last Event."""
        with self.opener.open(self.metrics, timeout=LONGEST_CALL) as answer:
            counts = counts_of(answer.read(MOST_CHARACTERS).decode())
        now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        for uid in {**self.held, **counts}:
            self.held.setdefault(uid, Held()).add(*counts.get(uid, (0, 0.0)), now)
        changed = {uid: held for uid, held in self.held.items() if held.holds != held.reported}
        if not changed:
            return
        pods = self.pods()
        self.held = {uid: held for uid, held in self.held.items() if uid in counts or uid in pods}
        for uid, held in changed.items():
            try:
                if uid in pods:  # else it was deleted meanwhile
                    event = event_of(pods[uid], held, self.node, now)
                    path = f"/api/v1/namespaces/{event['metadata']['namespace']}/events/{event['metadata']['name']}"
                    # Creates the Event if there is none of this name.
                    self.call("replace", "--raw", path, "--validate=false", "--filename=-",
                              document=json.dumps(event))
                held.reported = held.holds
            except FAILURES as error:
                say(f"no event for pod {uid}: {error}; next try with its next event")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--node", default=os.environ.get("NODE_NAME"),
                        help="Kubernetes name of this node (default: $NODE_NAME)")
    parser.add_argument("--metrics", default="http://127.0.0.1:9464/metrics", metavar="URL",
                        help="the daemon's metrics (default: %(default)s)")
    parser.add_argument("--every", type=float, default=300, metavar="SECONDS",
                        help="shortest time between two events of a pod (default: 300)")
    parser.add_argument("--kubectl", default="kubectl", metavar="PROGRAM")
    parser.add_argument("--once", action="store_true", help="report once, and exit")
    chosen = parser.parse_args()
    if not chosen.node:
        parser.error("name of the node is missing: use --node, or set NODE_NAME")
    reporter = Reporter(chosen.node, chosen.metrics, chosen.kubectl)
    while True:
        try:
            reporter.sweep()
        except UNREACHABLE as error:
            say(f"{error}; next try in {chosen.every:g} s")
            if chosen.once:
                return 1
        if chosen.once:
            return 0
        time.sleep(chosen.every)


if __name__ == "__main__":
    sys.exit(main())
