#!/usr/bin/env python3
"""usage: manifests_test.py BIN_DIR LIB_DIR: what can be seen of the container's files without a cluster: that they
fit together, and what they may and may not say."""

import ctypes
import json
import pathlib
import re
import shutil
import subprocess
import sys
import unittest

import yaml

LIB_DIR = pathlib.Path(sys.argv.pop())
BIN_DIR = pathlib.Path(sys.argv.pop())
FLEET = pathlib.Path(__file__).resolve().parents[3] / "adapters/fleet"
CONTAINERFILE = (FLEET / "Containerfile").read_text(encoding="utf-8")
ENTRY = (FLEET / "entry.sh").read_text(encoding="utf-8")
with open(FLEET / "kubernetes/base/sluice.yaml", encoding="utf-8") as file:
    OBJECTS = list(yaml.safe_load_all(file))


def only(kind):
    found = [each for each in OBJECTS if each["kind"] == kind]
    assert len(found) == 1, kind
    return found[0]


POD = only("DaemonSet")["spec"]["template"]["spec"]
CONTAINERS = {each["name"]: each for each in POD["containers"]}
DAEMON, PODS, EVENTS = CONTAINERS["daemon"], CONTAINERS["pods"], CONTAINERS["events"]


class Manifest(unittest.TestCase):
    def test_names_what_there_is(self):
        daemon_set = only("DaemonSet")
        self.assertEqual(daemon_set["spec"]["selector"]["matchLabels"],
                         daemon_set["spec"]["template"]["metadata"]["labels"])
        self.assertEqual(POD["serviceAccountName"], only("ServiceAccount")["metadata"]["name"])
        self.assertEqual(only("ClusterRoleBinding")["roleRef"]["name"], only("ClusterRole")["metadata"]["name"])
        volumes = {each["name"] for each in POD["volumes"]}
        for each in POD["containers"]:
            self.assertLessEqual({mount["name"] for mount in each["volumeMounts"]}, volumes)
        configuration = next(each for each in POD["volumes"] if each["name"] == "configuration")
        self.assertEqual(configuration["configMap"]["name"], only("ConfigMap")["metadata"]["name"])
        classes = {each["metadata"]["name"] for each in OBJECTS if each["kind"] == "PriorityClass"}
        self.assertEqual(classes, {each.split("=")[1] for each in PODS["args"] if each.startswith("--class=")})
        for target in ("daemon", "pods"):
            self.assertIn(f" AS {target}\n", CONTAINERFILE)

    def test_lets_the_daemon_see_the_node_and_act_by_its_agents_file_alone(self):
        self.assertTrue(POD["hostPID"])
        self.assertNotIn("hostNetwork", POD)
        context = DAEMON["securityContext"]
        self.assertNotIn("privileged", context)
        self.assertTrue(context["allowPrivilegeEscalation"])
        self.assertTrue(context["readOnlyRootFilesystem"])
        self.assertEqual(context["capabilities"]["drop"], ["ALL"])
        # The agent could not be started with a capability by its file that its container has not.
        agents = re.search(r"^ARG AGENT_CAPABILITIES=(.*)\+ep$", CONTAINERFILE, re.M)[1].upper().split(",")
        for each in agents:
            self.assertIn(each.removeprefix("CAP_"), context["capabilities"]["add"])
        self.assertEqual(context["appArmorProfile"], {"type": "Unconfined"})
        # What every node has; seccomp.json would have to be put onto each.
        self.assertEqual(context["seccompProfile"], {"type": "RuntimeDefault"})
        # The agent trusts a directory that is the image's only.
        mount = next(each for each in DAEMON["volumeMounts"] if each["name"] == "configuration")
        self.assertEqual((mount["mountPath"], mount["subPath"]), ("/etc/sluice/sluice.toml", "sluice.toml"))
        roles = next(each for each in DAEMON["volumeMounts"] if each["name"] == "roles")
        self.assertTrue(roles["readOnly"])

    def test_gives_what_reads_annotations_no_right_but_to_write_the_store(self):
        context = PODS["securityContext"]
        self.assertEqual(context["capabilities"], {"drop": ["ALL"]})
        self.assertFalse(context["allowPrivilegeEscalation"])
        self.assertEqual(context["seccompProfile"], {"type": "RuntimeDefault"})
        self.assertEqual({each["name"] for each in PODS["volumeMounts"]}, {"roles", "token"})
        # The daemon does not reach the API server.
        self.assertIs(POD["automountServiceAccountToken"], False)
        self.assertNotIn("token", {each["name"] for each in DAEMON["volumeMounts"]})
        token = next(each for each in PODS["volumeMounts"] if each["name"] == "token")
        self.assertEqual(token["mountPath"], "/var/run/secrets/kubernetes.io/serviceaccount")
        volume = next(each for each in POD["volumes"] if each["name"] == "token")
        files = [each["path"] if "path" in each else each["items"][0]["path"]
                 for source in volume["projected"]["sources"] for each in source.values()]
        self.assertEqual(files, ["token", "ca.crt", "namespace"])
        # fleet_kubernetes_api checks that the programs need each of these.
        self.assertEqual([(rule["apiGroups"], rule["resources"], set(rule["verbs"]))
                          for rule in only("ClusterRole")["rules"]],
                         [([""], ["pods"], {"list", "watch"}), ([""], ["events"], {"create", "update"})])
        # Nobody's annotation counts unless somebody says so.
        self.assertFalse([each for each in PODS["args"] if "may-claim" in each])

    def test_gives_what_writes_events_no_right_on_the_node(self):
        context = EVENTS["securityContext"]
        self.assertEqual(context["capabilities"], {"drop": ["ALL"]})
        self.assertFalse(context["allowPrivilegeEscalation"])
        self.assertTrue(context["runAsNonRoot"])
        self.assertTrue(context["readOnlyRootFilesystem"])
        self.assertNotIn(context["runAsUser"], (0, 65534))
        self.assertEqual(context["seccompProfile"], {"type": "RuntimeDefault"})
        self.assertEqual([(each["name"], each["readOnly"]) for each in EVENTS["volumeMounts"]], [("token", True)])
        # It reads the metrics where the daemon serves them: in this pod alone.
        program = (FLEET / "kubernetes/pod_events.py").read_text(encoding="utf-8")
        address = re.search(r'default="http://(127\.0\.0\.1:\d+)/metrics"', program)[1]
        self.assertIn(f'\nmetrics = "{address}" ', only("ConfigMap")["data"]["sluice.toml"])
        self.assertIn("kubernetes/pod_events.py", CONTAINERFILE)
        self.assertIn(f" {pathlib.PurePath(EVENTS['command'][0]).parent}/\n", CONTAINERFILE)

    def test_decides_by_what_a_container_sees(self):
        # pointer_polling reads debugfs and others' memory, for which entry.sh leaves the daemon nothing.
        self.assertIn('\nname = "fixed_timeslice" ', only("ConfigMap")["data"]["sluice.toml"])

    def test_names_images_of_one_version_and_evicts_nobody(self):
        tags = {each["image"].partition(":")[2] for each in CONTAINERS.values()}
        self.assertEqual(len(tags), 1)
        self.assertNotIn(tags.pop(), ("", "latest"))
        online = next(each for each in OBJECTS
                      if each["kind"] == "PriorityClass" and each["metadata"]["name"] == "sluice-online")
        self.assertEqual(online["preemptionPolicy"], "Never")

    def test_starts_what_names_pods_with_options_that_it_has(self):
        unused = "--metrics=http://127.0.0.1:1/metrics"
        for container, name, more, said in ((PODS, "pod_roles", [], "kubectl failed"),
                                            (EVENTS, "pod_events", [unused], "Connection refused")):
            program = [sys.executable, "-B", FLEET / f"kubernetes/{name}.py", *container.get("args", []), "--once", *more]
            self.assertEqual({each["name"] for each in container["env"]}, {"NODE_NAME"})
            done = subprocess.run([*program, "--kubectl=/bin/false"], env={"NODE_NAME": "gpu-1"}, check=False,
                                  capture_output=True, text=True)
            self.assertEqual(done.returncode, 1)
            self.assertTrue(done.stderr.startswith(f"{name}: "), done.stderr)
            self.assertIn(said, done.stderr)

    def test_agrees_with_the_image_about_users(self):
        user, clients = re.search(r"^user=(\d+) clients=(\d+) ", ENTRY, re.M).groups()
        self.assertIn(f"groupadd -g {user} sluice && groupadd -g {clients} sluice-clients", CONTAINERFILE)
        self.assertIn(f"useradd -u {user} -g sluice", CONTAINERFILE)
        self.assertIn(f"socket_group = {clients} ", only("ConfigMap")["data"]["sluice.toml"])

    def test_lets_no_pod_look_or_steer(self):
        # A client's pod sees the directory, and root of it is root to whoever asks the kernel.
        self.assertIn("\ncontrol = false ", only("ConfigMap")["data"]["sluice.toml"])


class Containerfile(unittest.TestCase):
    def test_installs_the_libraries_of_the_programs(self):
        stage = CONTAINERFILE.split(" AS daemon\n")[1].split("\nFROM ")[0]
        installed = set(re.search(r"apt-get install (.*?) && ", stage.replace("\\\n", " "))[1].split())
        libraries = set()
        programs = [BIN_DIR / name for name in ("sluice", "sluice-epoll", "sluice-agent")]
        for each in [*programs, LIB_DIR / "libsluice_client.so"]:
            said = subprocess.run(["ldd", each], check=True, capture_output=True, text=True).stdout
            self.assertNotIn("not found", said)
            libraries |= set(re.findall(r"=> (/\S+)", said))
        packages = {}
        for each in sorted(libraries):
            path = pathlib.Path(each).resolve()
            for name in (str(path), str(path).removeprefix("/usr"), "/usr" + str(path)):
                found = subprocess.run(["dpkg-query", "-S", name], check=False, capture_output=True, text=True).stdout
                if found:
                    packages[found.split(":")[0]] = each
                    break
        if "libc6" not in packages:
            self.skipTest("no Debian, or its libraries have other places")
        # In every Debian image.
        essential = {"libc6", "libgcc-s1", "libstdc++6", "libgcrypt20", "liblz4-1", "libzstd1", "liblzma5",
                     "libcap2", "libgpg-error0"}
        self.assertEqual(set(packages) - essential - installed, set())


class Profiles(unittest.TestCase):
    def test_for_seccomp_allows_by_name_and_forbids_the_rest(self):
        with open(FLEET / "kubernetes/seccomp.json", encoding="utf-8") as opened:
            profile = json.load(opened)
        self.assertEqual(profile["defaultAction"], "SCMP_ACT_ERRNO")
        rules = {name: rule for rule in profile["syscalls"] for name in rule["names"]}
        for each in ("ptrace", "pidfd_getfd", "process_vm_readv", "seccomp"):
            self.assertEqual(rules[each]["action"], "SCMP_ACT_ALLOW")
        for each in ("process_vm_writev", "mount", "unshare", "bpf", "kexec_load", "init_module", "keyctl",
                     "perf_event_open", "userfaultfd", "open_by_handle_at"):
            self.assertNotIn(each, rules)
        for each in ("setns", "clone"):  # no namespaces, but for the cgroup's
            self.assertEqual(len(rules[each]["args"]), 1)
        # What the agent's own filter lets through, its container must, too.
        source = (FLEET.parent / "agent/src/confinement.cpp").read_text(encoding="utf-8")
        self.assertEqual(set(re.findall(r"SCMP_SYS\((\w+)\)", source)) - set(rules), set())

    def test_for_seccomp_allows_what_the_programs_import(self):
        with open(FLEET / "kubernetes/seccomp.json", encoding="utf-8") as opened:
            allowed = {name for rule in json.load(opened)["syscalls"] for name in rule["names"]}
        library = ctypes.CDLL("libseccomp.so.2")
        imported = set()
        for program in ("sluice", "sluice-epoll", "sluice-agent"):
            said = subprocess.run(["nm", "-D", "--undefined-only", BIN_DIR / program], check=True, capture_output=True,
                                  text=True).stdout
            imported |= {re.sub("^_+", "", line.split()[-1].split("@")[0]) for line in said.splitlines()}
        calls = {name for name in imported if library.seccomp_syscall_resolve_name(name.encode()) >= 0}
        self.assertGreater(len(calls), 50)
        self.assertEqual(calls - allowed, set())

    def test_for_apparmor_can_be_parsed(self):
        parser = shutil.which("apparmor_parser", path="/usr/sbin:/sbin:/usr/bin")
        if parser is None:
            self.skipTest("no apparmor_parser here")
        said = subprocess.run([parser, "-Q", "-K", FLEET / "kubernetes/apparmor"], check=False, capture_output=True,
                              text=True)
        self.assertEqual((said.returncode, said.stdout), (0, ""), said.stderr)


if __name__ == "__main__":
    unittest.main()
