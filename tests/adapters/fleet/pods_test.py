#!/usr/bin/env python3
"""usage: pods_test.py SLUICE: what pod_roles.py makes of what kubectl writes. The samples were written from the
forms of Kubernetes' objects and of kubectl's output, not recorded on a cluster."""

import importlib.util
import json
import os
import pathlib
import random
import re
import signal
import stat
import subprocess
import sys
import tempfile
import time
import unittest

HERE = pathlib.Path(__file__).resolve().parent
PROGRAM = HERE.parents[2] / "adapters/fleet/kubernetes/pod_roles.py"
SAMPLES = HERE / "samples"
SLUICE = sys.argv.pop(1)
PATIENCE = 20

spec = importlib.util.spec_from_file_location("pod_roles", PROGRAM)
pod_roles = importlib.util.module_from_spec(spec)
spec.loader.exec_module(pod_roles)
pod_roles.say = lambda text: None

RULES = {"may_claim_online": ["serving"], "may_claim_offline": ["batch", "serving"],
         "classes": {"sluice-online": "online", "sluice-offline": "offline"}}
OPTIONS = ["--node=gpu-1", "--may-claim-online=serving", "--may-claim-offline=batch",
           "--may-claim-offline=serving", "--class=sluice-online=online", "--class=sluice-offline=offline"]


def uid(number):
    return f"{number:08x}-0000-4000-8000-{number:012x}"


def text(name):
    return (SAMPLES / name).read_text(encoding="utf-8")


def chosen_seed():
    """Returns SLUICE_TEST_SEED, or a drawn number where that is unset or empty, and prints it."""
    seed = os.environ.get("SLUICE_TEST_SEED") or str(random.randrange(2**32))
    if re.fullmatch("[0-9]+", seed) is None:
        raise ValueError(f"invalid SLUICE_TEST_SEED {seed!r}: expected a decimal number")
    print(f"SLUICE_TEST_SEED={seed}", flush=True)
    return int(seed)


def node(**other):
    return pod_roles.Node("gpu-1", pod_roles.Rules(**{**RULES, **other}))


class Cgroups(unittest.TestCase):
    def test_are_named_as_kubelets_drivers_name_them(self):
        pod = "0a1b2c3d-1111-2222-3333-444455556666"
        escaped = pod.replace("-", "_")
        self.assertEqual(pod_roles.cgroups_of(pod, "Guaranteed"),
                         [f"/kubepods.slice/kubepods-pod{escaped}.slice", f"/kubepods/pod{pod}"])
        self.assertEqual(pod_roles.cgroups_of(pod, "Burstable"),
                         [f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{escaped}.slice",
                          f"/kubepods/burstable/pod{pod}"])
        self.assertEqual(pod_roles.cgroups_of(pod, "BestEffort", ["kube-let"]),
                         ["/kube_let.slice/kube_let-kubepods.slice/kube_let-kubepods-besteffort.slice/"
                          f"kube_let-kubepods-besteffort-pod{escaped}.slice",
                          f"/kube-let/kubepods/besteffort/pod{pod}"])

    def test_are_known_again_and_others_are_left_alone(self):
        for qos in pod_roles.SLICE_OF_QOS:
            for root in [], ["kubelet"], ["a-b", "c"]:
                for each in pod_roles.cgroups_of(uid(7), qos, root):
                    self.assertTrue(pod_roles.OURS.fullmatch(each), each)
        for each in ("/kubepods.slice", "/kubepods.slice/kubepods-besteffort.slice", "/kubepods/burstable",
                     "/batch/*", "/kubepods/*", f"/kubepods/pod{uid(7)}/x", f"/kubepods/*/pod{uid(7)}",
                     f"/kubepods/pod{uid(7)}.slice", f"/batch/pod{uid(7)}"):
            self.assertFalse(pod_roles.OURS.fullmatch(each), each)


class Roles(unittest.TestCase):
    def test_come_from_granted_annotations_then_from_classes(self):
        seen = node()
        self.assertTrue(seen.relist(json.loads(text("pods.json"))))
        roles = {pod: set(patterns.values()) for pod, patterns in seen.wanted.items()}
        self.assertEqual(roles, {
            uid(1): {"online"},    # claimed, and granted
            uid(2): {"offline"},   # claimed, and granted
            uid(3): {"offline"},   # by its class
            uid(4): {"offline"},   # claims online in vain: its class holds
            uid(10): {"offline"},  # not started yet
        })
        self.assertEqual(set(seen.complaints), {uid(4), uid(5), uid(7), uid(8)})

    def test_of_namespaces_that_are_not_granted_are_nobodys(self):
        seen = node(may_claim_online=[], may_claim_offline=[], classes={})
        seen.relist(json.loads(text("pods.json")))
        self.assertEqual(seen.wanted, {})
        seen = node(may_claim_online=["*"], may_claim_offline=["*"], classes={})
        seen.relist(json.loads(text("pods.json")))
        self.assertEqual(set(seen.wanted), {uid(1), uid(2), uid(4), uid(5)})

    def test_to_be_left_alone_takes_what_online_takes(self):
        pod = json.loads(text("pods.json"))["items"][2]  # offline by its class, of namespace batch
        pod["metadata"]["annotations"] = {"sluice.dev/role": "unmatched"}
        self.assertEqual(node().rules.role_of(pod)[0], "offline")
        self.assertEqual(node(may_claim_online=["batch"]).rules.role_of(pod)[0], "unmatched")


    def test_that_the_agent_will_not_follow_are_complained_of(self):
        pod = json.loads(text("pods.json"))["items"][2]  # offline by its class
        pod["status"]["qosClass"] = "Guaranteed"
        seen = node()
        seen.see(pod)
        self.assertEqual(set(seen.wanted[uid(3)].values()), {"offline"})
        self.assertIn("the pod has QoS class Guaranteed", seen.complaints[uid(3)])


class Streams(unittest.TestCase):
    def test_are_cut_anywhere(self):
        whole = text("watch.json").encode()
        expected = pod_roles.Documents().take(whole)
        self.assertEqual(len(expected), 8)
        for size in (1, 7, 4096):
            documents = pod_roles.Documents()
            found = []
            for at in range(0, len(whole), size):
                found += documents.take(whole[at:at + size])
            self.assertEqual(found, expected)

    def test_of_something_else_are_refused(self):
        for wrong in (b"[]", b"Error from server", b'{"type": 1}\nnull', b"\xff\xfe", b'{"a":' * 100000):
            with self.assertRaises(ValueError, msg=wrong[:20]):
                documents = pod_roles.Documents()
                for _ in range(20):
                    documents.take(wrong)
        endless = pod_roles.Documents()
        with self.assertRaises(ValueError):
            for _ in range(pod_roles.MOST_CHARACTERS // 1_000_000 + 2):
                endless.take(b'{"a": "' if not endless.text else b"a" * 1_000_000)

    def test_of_any_kind_raise_nothing_else_and_grant_nothing(self):
        chance = random.Random(chosen_seed())
        events = pod_roles.Documents().take(text("watch.json").encode())
        others = [None, True, 0, -1, 1e300, "", "online", "offline", "sluice-offline", "serving", "*", "/kubepods/*",
                  f"{uid(3)}\n", f"../{uid(3)}", uid(3).upper(), [], {}, ["online"], {"sluice.dev/role": "online"}]

        def damaged(value):
            if chance.random() < 0.03:
                return chance.choice(others)
            if isinstance(value, dict):
                return {chance.choice(list(value)) if chance.random() < 0.02 else key: damaged(each)
                        for key, each in value.items()}
            if isinstance(value, list):
                return [damaged(each) for each in value]
            return value

        for _ in range(10_000 if os.environ.get("SLUICE_TEST_LONG") else 500):
            seen = node()
            pods = [damaged(each) for each in events]
            listed = []
            if chance.random() < 0.3:
                listed = damaged([pod_roles.dig(each, "object") for each in pods])
                seen.relist({"items": listed})
                listed = listed if isinstance(listed, list) else []
            for each in pods:
                seen.event(each)
            for pattern, role in seen.patterns().items():
                self.assertTrue(pod_roles.OURS.fullmatch(pattern), pattern)
                self.assertIn(role, pod_roles.ROLES)
            granted = {pod_roles.text_of(each, "metadata", "uid")
                       for each in [*listed, *(pod_roles.dig(each, "object") for each in pods)]
                       if pod_roles.text_of(each, "metadata", "namespace") == "serving"
                       or pod_roles.text_of(each, "spec", "priorityClassName") == "sluice-online"}
            for pod, patterns in seen.wanted.items():
                if not {"online", "unmatched"}.isdisjoint(patterns.values()):
                    self.assertIn(pod, granted)
            # And bytes: a document, or a ValueError.
            data = bytearray(text("watch.json").encode()[:4000])
            for _ in range(chance.randrange(4)):
                data[chance.randrange(len(data))] = chance.randrange(256)
            try:
                for each in pod_roles.Documents().take(bytes(data)):
                    seen.event(each)
            except ValueError:
                pass


class Programs(unittest.TestCase):
    """The whole program with the real `sluice role`, and a kubectl that plays the samples."""

    def setUp(self):
        self.scratch = tempfile.TemporaryDirectory()
        self.addCleanup(self.scratch.cleanup)
        self.directory = pathlib.Path(self.scratch.name)
        self.store = self.directory / "roles"
        self.answer("pods.json", "watch.json")

    def answer(self, pods, watch, code=0):
        """What kubectl answers from now on: the list, then that watch, which then stays silent."""
        copy = self.directory / "kubectl.new"
        copy.write_text(f"""#!/bin/sh
echo "$*" >>{self.directory}/asked
case "$*" in
  *--watch*) cat {SAMPLES / watch}; exec sleep 100 ;;
  *) cat {SAMPLES / pods}; exit {code} ;;
esac
""")
        copy.chmod(copy.stat().st_mode | stat.S_IXUSR)
        copy.rename(self.directory / "kubectl")

    def role(self, *words):
        return subprocess.run([SLUICE, "role", *words, "--store", self.store], check=True,
                              capture_output=True, text=True).stdout

    def said(self):
        """What the store says, by the number of the pod."""
        entries = json.loads(self.role("list", "--json"))["cgroups"]
        return {int(each["cgroup"].split("pod")[-1][:8], 16) if "kubepods" in each["cgroup"] else each["cgroup"]:
                each["role"] for each in entries}

    def command(self, *more):
        return [sys.executable, PROGRAM, *OPTIONS, f"--kubectl={self.directory}/kubectl", f"--sluice={SLUICE}",
                f"--store={self.store}", *more]

    def eventually(self, wanted):
        until = time.monotonic() + PATIENCE
        while (said := self.said()) != wanted:
            self.assertLess(time.monotonic(), until, f"{said} and not {wanted}")
            time.sleep(0.05)

    def start(self, *more):
        program = subprocess.Popen(self.command(*more), stderr=subprocess.PIPE, text=True, start_new_session=True)
        self.addCleanup(program.stderr.close)
        self.addCleanup(program.wait)
        # And what it has just started, which would write to the scratch directory.
        self.addCleanup(os.killpg, program.pid, signal.SIGKILL)
        return program

    FIRST = {1: "online", 2: "offline", 3: "offline", 4: "offline", 10: "offline"}
    THEN = {1: "unmatched", 3: "offline", 4: "offline", 11: "offline"}

    def test_a_restart_mends_what_it_left(self):
        self.role("set", "--cgroup", "/batch", "offline")  # an operator's
        for each in pod_roles.cgroups_of(uid(99), "BestEffort"):  # of a pod that ended meanwhile
            self.role("set", "--cgroup", each, "offline")
        for each in pod_roles.cgroups_of(uid(1), "Guaranteed"):
            self.role("set", "--cgroup", each, "offline")
        subprocess.run(self.command("--once"), check=True, stderr=subprocess.DEVNULL)
        self.assertEqual(self.said(), {"/batch": "offline", **self.FIRST})
        asked = (self.directory / "asked").read_text()
        self.assertIn("--field-selector=spec.nodeName=gpu-1", asked)
        # Nothing to change: nothing is written.
        before = self.store.stat().st_mtime_ns
        subprocess.run(self.command("--once"), check=True, stderr=subprocess.DEVNULL)
        self.assertEqual(self.store.stat().st_mtime_ns, before)

    def test_follows_a_watch_and_takes_back_what_ended(self):
        self.start()
        self.eventually(self.THEN)

    def test_lists_again_and_so_finds_what_the_watch_missed(self):
        self.start("--relist=0.2")
        self.eventually(self.THEN)
        self.eventually(self.FIRST)

    def test_gives_up_commands_that_hang_and_tries_again(self):
        silent = self.directory / "silent"
        silent.write_text("#!/bin/sh\nexec sleep 100\n")
        silent.chmod(0o755)
        self.addCleanup(setattr, pod_roles, "LONGEST_CALL", pod_roles.LONGEST_CALL)
        pod_roles.LONGEST_CALL = 0.2
        began = time.monotonic()
        for kubectl, sluice in ((silent, SLUICE), (self.directory / "kubectl", silent)):
            watcher = pod_roles.Watcher(node(), pod_roles.Store(str(sluice), str(self.store)), str(kubectl), 1)
            with self.assertRaises(pod_roles.FAILURES):
                watcher.list_once()
        self.assertLess(time.monotonic() - began, PATIENCE)
        # Without kubectl's own limit a server that is silent would be noticed by ours alone.
        self.assertRegex((self.directory / "asked").read_text(), "--request-timeout=")

    def test_says_what_of_kubectls_answer_is_wrong(self):
        for answer, code, words in (('{"items": []}', 0, "lists no pod of node gpu-1; check that --node"),
                                    ('{"items": [', 1, "unexpected output of kubectl: not JSON: ")):
            (self.directory / "answer").write_text(answer)
            self.answer(self.directory / "answer", "watch.json")
            done = subprocess.run(self.command("--once"), check=False, capture_output=True, text=True)
            self.assertEqual(done.returncode, code)
            self.assertIn(words, done.stderr)

    def test_keeps_what_was_said_where_kubectl_fails(self):
        subprocess.run(self.command("--once"), check=True, stderr=subprocess.DEVNULL)
        for pods, code in (("pods.json", 1), ("watch.json", 0)):
            self.answer(pods, "watch.json", code)
            done = subprocess.run(self.command("--once"), check=False, capture_output=True, text=True)
            self.assertEqual(done.returncode, 1)
            self.assertEqual(self.said(), self.FIRST)
        self.answer("pods.json", "pods.json")  # a watch that writes a list
        program = self.start()
        line = ""
        while "stay, next try in 1 s" not in line:
            line = program.stderr.readline()
            self.assertTrue(line)
        self.assertIn("not an event of a pod", line)
        self.assertEqual(self.said(), self.FIRST)


if __name__ == "__main__":
    unittest.main()
