#!/usr/bin/env python3
"""usage: objects.py SLUICE: the Kubernetes objects of both overlays, as kubectl makes them, against the schemas that
the API publishes, and against each other."""

import copy
import json
import pathlib
import subprocess
import sys
import tempfile
import tomllib
import unittest

import yaml

HERE = pathlib.Path(__file__).resolve().parent
FLEET = HERE.parents[3] / "adapters/fleet"
SLUICE = sys.argv.pop(1)
OVERLAYS = "amd", "nvidia"


def tools():
    made = subprocess.run([HERE / "tools.sh"], stdout=subprocess.PIPE, text=True, check=False)
    if made.returncode != 0:
        sys.exit(made.returncode)
    return pathlib.Path(made.stdout.strip())


TOOLS = tools()


def kustomize(overlay):
    made = subprocess.run([TOOLS / "kubectl-current", "kustomize", FLEET / "kubernetes" / overlay], check=True,
                          capture_output=True, text=True)
    assert not made.stderr, made.stderr
    return list(yaml.safe_load_all(made.stdout))


OBJECTS = {overlay: kustomize(overlay) for overlay in (*OVERLAYS, "example")}


def problems_of(objects):
    done = subprocess.run(["node", TOOLS / "schemas.mjs"], input=json.dumps(objects), capture_output=True, text=True,
                          check=False)
    assert done.returncode in (0, 1) and not done.stderr, done.stderr
    assert bool(done.stdout) == (done.returncode == 1)
    return done.stdout.splitlines()


def only(objects, kind):
    found, = (each for each in objects if each["kind"] == kind)
    return found


def pod_of(objects):
    return only(objects, "DaemonSet")["spec"]["template"]["spec"]


def daemon_of(objects):
    found, = (each for each in pod_of(objects)["containers"] if each["name"] == "daemon")
    return found


def configuration_of(objects):
    return only(objects, "ConfigMap")["data"]["sluice.toml"]


def an_event():
    sys.path.insert(0, str(FLEET / "kubernetes"))
    import pod_events
    pod = {"metadata": {"namespace": "batch", "name": "train", "uid": "0a1b2c3d-1111-2222-3333-444455556666"}}
    held = pod_events.Held(holds=12, seconds=3.14, first="2026-01-31T13:37:00Z")
    return pod_events.event_of(pod, held, "gpu-1", "2026-01-31T13:42:00Z")


class Schemas(unittest.TestCase):
    def test_permit_what_the_overlays_make_and_the_events_that_are_written(self):
        self.assertEqual(problems_of([*sum(OBJECTS.values(), []), an_event()]), [])

    # Else the test above may not check anything.
    def test_refuse_each_of_these_mistakes(self):
        def daemon(pod):
            return pod["spec"]["template"]["spec"]["containers"][0]

        def rename(of, old, new):
            of[new] = of.pop(old)

        mistakes = {
            "unknown": ("DaemonSet", lambda o: rename(o["spec"]["template"]["spec"], "hostPID", "hostPid")),
            "unknown-inside": ("DaemonSet", lambda o: rename(daemon(o)["securityContext"], "runAsUser", "runAs")),
            "missing": ("ClusterRoleBinding", lambda o: o.pop("roleRef")),
            "type": ("DaemonSet", lambda o: daemon(o)["securityContext"].update(runAsUser="0")),
            "choice": ("DaemonSet", lambda o: daemon(o)["securityContext"]["seccompProfile"].update(type="Runtime")),
            "quantity": ("DaemonSet", lambda o: daemon(o)["resources"]["limits"].update(memory="256 megabytes")),
        }
        damaged = []
        for name, (kind, change) in mistakes.items():
            damaged.append(copy.deepcopy(only(OBJECTS["amd"], kind)))
            change(damaged[-1])
            damaged[-1]["metadata"]["name"] = name
        self.assertEqual({each.split(":")[0].split()[1] for each in problems_of(damaged)}, set(mistakes))


class Overlays(unittest.TestCase):
    def test_differ_in_what_depends_on_the_driver_alone(self):
        rest = []
        for overlay in OVERLAYS:
            objects = copy.deepcopy(OBJECTS[overlay])
            configuration = tomllib.loads(only(objects, "ConfigMap")["data"].pop("sluice.toml"))
            configuration["policy"].pop("slice", None)
            pod, daemon = pod_of(objects), daemon_of(objects)
            pod.pop("nodeSelector")
            pod.pop("runtimeClassName", None)
            for key in ("image", "env"):
                daemon.pop(key, None)
            daemon["resources"]["limits"].pop("squat.ai/kfd", None)
            added = daemon["securityContext"]["capabilities"]["add"]
            daemon["securityContext"]["capabilities"]["add"] = [each for each in added if each != "DAC_READ_SEARCH"]
            rest.append((objects, configuration))
        self.assertEqual(*rest)

    def test_give_the_daemon_its_devices(self):
        self.assertEqual(daemon_of(OBJECTS["amd"])["resources"]["limits"]["squat.ai/kfd"], 1)
        self.assertNotIn("runtimeClassName", pod_of(OBJECTS["amd"]))
        self.assertNotIn("squat.ai/kfd", daemon_of(OBJECTS["nvidia"])["resources"]["limits"])
        self.assertEqual(pod_of(OBJECTS["nvidia"])["runtimeClassName"], "nvidia")
        self.assertEqual({each["name"]: each["value"] for each in daemon_of(OBJECTS["nvidia"])["env"]},
                         {"NVIDIA_VISIBLE_DEVICES": "all", "NVIDIA_DRIVER_CAPABILITIES": "utility"})

    # adapters/nvidia/README.md, requirements. entry.sh drops what is not in its list.
    def test_give_the_agent_the_capabilities_that_its_driver_needs(self):
        added = daemon_of(OBJECTS["nvidia"])["securityContext"]["capabilities"]["add"]
        self.assertLessEqual({"SYS_PTRACE", "DAC_READ_SEARCH"}, set(added))
        self.assertIn("keep=-all,+sys_ptrace,+dac_read_search\n", (FLEET / "entry.sh").read_text(encoding="utf-8"))
        self.assertNotIn("DAC_READ_SEARCH", daemon_of(OBJECTS["amd"])["securityContext"]["capabilities"]["add"])
        # The two agents have other capabilities by their files, so they are of other images.
        self.assertNotEqual(daemon_of(OBJECTS["amd"])["image"], daemon_of(OBJECTS["nvidia"])["image"])

    def test_of_the_example_enforce_and_differ_in_nothing_else_that_matters(self):
        example, amd = copy.deepcopy(OBJECTS["example"]), copy.deepcopy(OBJECTS["amd"])
        self.assertTrue(all(each["image"].startswith("registry.example.com/") for each in pod_of(example)["containers"]))
        self.assertEqual([each["key"] for each in pod_of(example).pop("tolerations")], ["amd.com/gpu"])
        pods = pod_of(example)["containers"][1]
        self.assertEqual((pods["name"], pods["args"].pop()), ("pods", "--may-claim-offline=batch"))
        mine, base = (tomllib.loads(only(each, "ConfigMap")["data"].pop("sluice.toml")) for each in (example, amd))
        self.assertEqual((mine["daemon"].pop("mode"), base["daemon"].pop("mode")), ("enforce", "observe"))
        self.assertEqual(mine.pop("scheduler"), {"max_suspend": "1s", "offline_floor": 0.05})
        self.assertEqual(mine, base)
        for objects in (example, amd):
            for each in pod_of(objects)["containers"]:
                del each["image"]
        self.assertEqual(example, amd)

    def test_configure_the_daemon_as_it_accepts(self):
        for objects in OBJECTS.values():
            with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
                file.write(configuration_of(objects))
                file.flush()
                done = subprocess.run([SLUICE, "check", file.name], capture_output=True, text=True, check=False)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)


if __name__ == "__main__":
    unittest.main()
