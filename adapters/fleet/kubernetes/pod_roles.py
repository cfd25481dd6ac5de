#!/usr/bin/env python3
"""Sets the roles of a node's pods: reads pods with kubectl, writes roles with `sluice role`.

A pod gets the role in its annotation sluice.dev/role (online, offline, or unmatched: never suspended) if its
namespace may claim this role. Otherwise it gets the role of its PriorityClass. The program sets the role
of the pod's cgroup before the pod's processes need it. It removes the role when the pod has ended. It
keeps no state of its own. If kubectl fails or this program ends, the roles stay.

The program uses only Python's standard library. It was not tested on a cluster; adapters/fleet/README.md
lists what was tested.
"""

import argparse
import codecs
import json
import os
import re
import selectors
import subprocess
import sys
import time

ANNOTATION = "sluice.dev/role"
ROLES = ("online", "offline", "unmatched")
# A static pod's cgroup is named after a hash, which its API object has only as an annotation.
MIRROR = "kubernetes.io/config.mirror"
SLICE_OF_QOS = {"Guaranteed": [], "Burstable": ["burstable"], "BestEffort": ["besteffort"]}
PROGRAM = os.path.basename(sys.argv[0]).removesuffix(".py")
UID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
# What this program writes: nobody else should write patterns of this form.
OURS = re.compile(
    r"/(?:[^/*?\[]+/)*(?:"
    r"(?:[^/*?\[]+-)?kubepods(?:-burstable|-besteffort)?-pod[0-9a-f]{8}(?:_[0-9a-f]{4}){3}_[0-9a-f]{12}\.slice"
    r"|kubepods/(?:burstable/|besteffort/)?pod[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})")
MOST_CHARACTERS = 8 << 20  # of one JSON object; a Kubernetes object has 1.5 MiB at most
LONGEST_WAIT = 30  # seconds between two tries
LONGEST_CALL = 60  # seconds that a command may take, before it is a failure: a server that takes calls and answers none
# Of kubectl and `sluice role`, and of what they write.
FAILURES = (OSError, ValueError, KeyError, TypeError, subprocess.SubprocessError)


def say(text):
    """Prints one line to standard error. Replaces unprintable characters, which pod names may contain."""
    printable = "".join(c if c.isprintable() else "?" for c in text)
    print(f"{PROGRAM}: {printable}", file=sys.stderr, flush=True)


def dig(of, *keys):
    """Returns the value at this path of keys, or None if a level is missing or is not an object."""
    for key in keys:
        if not isinstance(of, dict):
            return None
        of = of.get(key)
    return of


def text_of(of, *keys):
    found = dig(of, *keys)
    return found if isinstance(found, str) else ""


def cgroups_of(uid, qos, root=()):
    """Returns the cgroups of a pod, as kubelet's two cgroup drivers name them: first systemd, then cgroupfs.

    A node has only one of these cgroups. The other path matches no cgroup. The path is the same in cgroup v2
    and in each hierarchy of v1.
    """
    parts = [*root, "kubepods", *SLICE_OF_QOS[qos], f"pod{uid}"]
    slices = []
    name = ""
    for part in parts:  # systemd reads a dash in a slice's name as a level, so kubelet writes _ for it
        name += ("-" if name else "") + part.replace("-", "_")
        slices.append(f"/{name}.slice")
    return ["".join(slices), "/" + "/".join(parts)]


class Rules:
    def __init__(self, may_claim_online=(), may_claim_offline=(), classes=None, root=()):
        self.grants = {
            "online": frozenset(may_claim_online),
            "offline": frozenset(may_claim_offline),
            # Who is left alone is not offline: that takes what it takes to be online.
            "unmatched": frozenset(may_claim_online),
        }
        self.classes = dict(classes or {})
        self.root = tuple(root)

    def role_of(self, pod):
        """Returns the pod's role (or None), and the reason why a claim was refused (or '')."""
        namespace = text_of(pod, "metadata", "namespace")
        claim = dig(pod, "metadata", "annotations", ANNOTATION)
        otherwise = self.classes.get(text_of(pod, "spec", "priorityClassName"))
        if claim is None:
            return otherwise, ""
        if claim not in ROLES:
            return otherwise, f"invalid annotation {ANNOTATION}: expected one of {', '.join(ROLES)}"
        granted = self.grants[claim]
        if namespace in granted or "*" in granted:
            return claim, ""
        return otherwise, f"namespace {namespace} may not claim the role {claim}: no --may-claim option permits it"


class Node:
    """The pods of one node, as the last documents describe them, and the roles of these pods."""

    def __init__(self, name, rules):
        self.name = name
        self.rules = rules
        self.wanted = {}  # patterns with their roles, by uid
        self.complaints = {}

    def relist(self, document):
        """Replaces all pods with those of a list. Returns False without a change if the document is not a list."""
        items = dig(document, "items")
        if not isinstance(items, list):
            return False
        self.wanted = {}
        here = set()
        for pod in items:
            self.see(pod)
            here.add(text_of(pod, "metadata", "uid"))
        self.complaints = {uid: said for uid, said in self.complaints.items() if uid in here}
        return True

    def event(self, document):
        """Applies one event of a watch. Returns False if the document is not an event."""
        pod = dig(document, "object")
        kind = dig(document, "type")
        if not isinstance(pod, dict) or kind not in ("ADDED", "MODIFIED", "DELETED"):
            return False
        if kind == "DELETED":
            self.forget(text_of(pod, "metadata", "uid"))
        else:
            self.see(pod)
        return True

    def forget(self, uid):
        self.wanted.pop(uid, None)
        self.complaints.pop(uid, None)

    def see(self, pod):
        uid = text_of(pod, "metadata", "uid")
        # Into a pattern goes only what cannot be one.
        if not UID.fullmatch(uid) or text_of(pod, "spec", "nodeName") != self.name:
            return
        self.wanted.pop(uid, None)
        if text_of(pod, "status", "phase") in ("Succeeded", "Failed"):
            return
        role, complaint = self.rules.role_of(pod)
        qos = text_of(pod, "status", "qosClass")
        if role and dig(pod, "metadata", "annotations", MIRROR) is not None:
            role, complaint = None, "no role is set for static pods"
        if role and qos not in SLICE_OF_QOS:
            role, complaint = None, f"unknown QoS class {qos or '(not set yet)'}"
        if role == "offline" and qos == "Guaranteed":
            complaint += "; " if complaint else ""
            complaint += ("the pod has QoS class Guaranteed: if [roles] allows this class to claim online, as in "
                          "sluice.yaml, sluice does not suspend the pod; use another QoS class")
        if complaint and self.complaints.get(uid) != complaint:
            self.complaints[uid] = complaint
            say(f"pod {text_of(pod, 'metadata', 'namespace')}/{text_of(pod, 'metadata', 'name')}: "
                f"{complaint}")
        if role:
            self.wanted[uid] = dict.fromkeys(cgroups_of(uid, qos, self.rules.root), role)

    def patterns(self):
        return {pattern: role for each in self.wanted.values() for pattern, role in each.items()}


class Store:
    """The role store, accessed through the command `sluice role`."""

    def __init__(self, program, path):
        self.command = [program, "role"]
        self.path = ["--store", path] if path else []

    def _run(self, *words):
        done = subprocess.run([*self.command, *words, *self.path], capture_output=True, text=True,
                              stdin=subprocess.DEVNULL, check=False, timeout=LONGEST_CALL)
        if done.returncode != 0:
            raise OSError(done.stderr.strip() or f"sluice role failed with exit code {done.returncode}")
        return done.stdout

    def ours(self):
        said = json.loads(self._run("list", "--json"))
        return {each["cgroup"]: each["role"] for each in said["cgroups"]
                if OURS.fullmatch(each["cgroup"])}

    def become(self, wanted):
        """Makes the store's entries for pods equal to `wanted`. Returns the number of changed entries."""
        there = self.ours()
        changes = [("set", "--cgroup", pattern, role) for pattern, role in sorted(wanted.items())
                   if there.get(pattern) != role]
        changes += [("clear", "--cgroup", pattern) for pattern in sorted(there)
                    if pattern not in wanted]
        for words in changes:
            self._run(*words)
            say(" ".join(words))
        return len(changes)


class Documents:
    """Splits kubectl's output, a sequence of JSON objects, into objects."""

    def __init__(self):
        self.text = ""
        self.characters = codecs.getincrementaldecoder("utf-8")()
        self.decoder = json.JSONDecoder()

    def take(self, chunk):
        """Returns the complete objects. Raises ValueError if the text is not an object, or is too long."""
        self.text = (self.text + self.characters.decode(chunk)).lstrip()
        found = []
        while self.text:
            if self.text[0] != "{":
                raise ValueError("unexpected output of kubectl: not a JSON object")
            try:
                document, end = self.decoder.raw_decode(self.text)
            except RecursionError as error:
                raise ValueError("unexpected output of kubectl: JSON is nested too deeply") from error
            except json.JSONDecodeError:
                break  # not complete, or wrong: then it grows until it is too much
            found.append(document)
            self.text = self.text[end:].lstrip()
        if len(self.text) > MOST_CHARACTERS:
            raise ValueError(f"unexpected output of kubectl: no complete JSON object in {MOST_CHARACTERS} characters")
        return found


class Watcher:
    def __init__(self, node, store, kubectl, relist):
        self.node = node
        self.store = store
        self.get = [kubectl, "get", "pods", "--all-namespaces", "--output=json",
                    f"--field-selector=spec.nodeName={node.name}"]
        self.relist_after = relist

    def list_once(self):
        # kubectl's own limit, which says more, and ours, should kubectl itself hang.
        done = subprocess.run([*self.get, f"--request-timeout={LONGEST_CALL / 2:g}s"], capture_output=True,
                              stdin=subprocess.DEVNULL, check=False, timeout=LONGEST_CALL)
        if done.returncode != 0:
            raise OSError(done.stderr.decode(errors="replace").strip() or "kubectl failed")
        try:
            document = json.loads(done.stdout)
        except RecursionError as error:
            raise ValueError("unexpected output of kubectl: JSON is nested too deeply") from error
        except ValueError as error:
            raise ValueError(f"unexpected output of kubectl: not JSON: {error}") from error
        if not self.node.relist(document):
            raise ValueError("unexpected output of kubectl: not a list of pods")
        if not document["items"]:
            say(f"kubectl lists no pod of node {self.node.name}; check that --node is the Kubernetes name of the node")
        self.store.become(self.node.patterns())

    def watch(self):
        """Applies events until the next list is due, or until kubectl ends."""
        until = time.monotonic() + self.relist_after
        documents = Documents()
        ended = 0
        with subprocess.Popen([*self.get, "--watch", "--output-watch-events"], stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE) as kubectl, selectors.DefaultSelector() as ready:
            try:
                ready.register(kubectl.stdout, selectors.EVENT_READ)
                while (left := until - time.monotonic()) > 0:
                    if not ready.select(left):
                        continue
                    chunk = os.read(kubectl.stdout.fileno(), 1 << 16)
                    if not chunk:
                        ended = kubectl.wait(LONGEST_WAIT)
                        break
                    seen = [self.node.event(each) for each in documents.take(chunk)]
                    if not all(seen):
                        raise ValueError("unexpected output of kubectl: not an event of a pod")
                    if seen:
                        self.store.become(self.node.patterns())
            finally:
                kubectl.kill()
        if ended != 0:
            raise OSError(f"kubectl failed with exit code {ended}")

    def run(self):
        wait = 1
        while True:
            try:
                self.list_once()
                self.watch()
                wait = 1
                time.sleep(wait)  # kubectl may have ended at once
            except FAILURES as error:
                say(f"{error}; all roles of pods stay, next try in {wait} s")
                time.sleep(wait)
                wait = min(2 * wait, LONGEST_WAIT)


def class_role(text):
    name, _, role = text.partition("=")
    if not name or role not in ROLES:
        raise argparse.ArgumentTypeError(f"invalid class '{text}': expected NAME=ROLE; roles: {', '.join(ROLES)}")
    return name, role


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--node", default=os.environ.get("NODE_NAME"),
                        help="Kubernetes name of this node (default: $NODE_NAME)")
    parser.add_argument("--may-claim-online", action="append", default=[], metavar="NAMESPACE",
                        help="let pods of this namespace claim online or unmatched; '*': all namespaces")
    parser.add_argument("--may-claim-offline", action="append", default=[], metavar="NAMESPACE",
                        help="let pods of this namespace claim offline; '*': all namespaces")
    parser.add_argument("--class", action="append", default=[], type=class_role, dest="classes",
                        metavar="NAME=ROLE", help="set this role for pods of a PriorityClass")
    parser.add_argument("--cgroup-root", default="/", metavar="PATH", help="value of kubelet's --cgroup-root (default: /)")
    parser.add_argument("--kubectl", default="kubectl", metavar="PROGRAM")
    parser.add_argument("--sluice", default="sluice", metavar="PROGRAM")
    parser.add_argument("--store", default="", metavar="FILE", help="role store (default: the store of `sluice role`)")
    parser.add_argument("--relist", type=float, default=300, metavar="SECONDS",
                        help="seconds between two lists of all pods (default: 300)")
    parser.add_argument("--once", action="store_true", help="list the pods once, set their roles, and exit")
    chosen = parser.parse_args()
    if not chosen.node:
        parser.error("name of the node is missing: use --node, or set NODE_NAME")
    rules = Rules(chosen.may_claim_online, chosen.may_claim_offline, chosen.classes,
                  [part for part in chosen.cgroup_root.split("/") if part])
    watcher = Watcher(Node(chosen.node, rules), Store(chosen.sluice, chosen.store), chosen.kubectl,
                      chosen.relist)
    if not chosen.once:
        watcher.run()
    try:
        watcher.list_once()
    except FAILURES as error:
        say(str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
