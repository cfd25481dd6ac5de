#!/usr/bin/env python3
"""usage: api.py [--real] SLUICE: pod_roles.py and pod_events.py with real kubectls, the one of Debian and a current one,
and the real `sluice role`, against the API.

--real: the API is etcd and kube-apiserver of Debian's source (tools.sh --server). Else it is a stand-in in this
process, which answers the same cases in the same way."""

import contextlib
import http.server
import json
import os
import pathlib
import re
import secrets
import selectors
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import urllib.error
import urllib.parse
import urllib.request

REAL = sys.argv[1] == "--real" and bool(sys.argv.pop(1))

import objects  # which takes SLUICE from the command line

HERE = pathlib.Path(__file__).resolve().parent
PROGRAMS = HERE.parents[3] / "adapters/fleet/kubernetes"
PATIENCE = 60  # s. Long, so that a busy machine fails no test.
ACCOUNT = "system:serviceaccount:sluice:sluice"
NODE = "gpu-1"


def eventually(condition, what, patience=PATIENCE):
    until = time.monotonic() + patience
    while not (value := condition()):
        if time.monotonic() > until:
            raise AssertionError(f"not within {patience} s: {what}")
        time.sleep(0.05)
    return value


def manifest():
    """The objects of an overlay, as a server of 2021 knows them, too."""
    made = objects.OBJECTS["amd"]
    for each in objects.pod_of(made)["containers"]:
        each["securityContext"].pop("appArmorProfile", None)
    return made


def a_pod(namespace, name, node=NODE, **more):
    return {"apiVersion": "v1", "kind": "Pod",
            "metadata": {"namespace": namespace, "name": name, "annotations": more.pop("annotations", {})},
            "spec": {"nodeName": node, "containers": [{"name": "one", "image": "x"}, {"name": "two", "image": "x"}],
                     "tolerations": [{"operator": "Exists"}], "terminationGracePeriodSeconds": 0, **more}}


class StandIn:
    """The part of the API that the programs use, over HTTPS, as its documentation and kube-apiserver describe it. It
    grants what the manifest's ClusterRole grants."""

    def __init__(self, directory):
        self.token = secrets.token_hex()
        self.version = 1
        self.pods, self.written, self.rules = {}, {}, []
        self.changed = threading.Condition()
        self.log = []  # (version, type, pod)
        stand_in = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                stand_in.get(self)

            def do_PUT(self):
                stand_in.put(self)

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        # kubectl sends no token without TLS.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        certificate, key = directory / "certificate", directory / "key"
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=stand-in",
                        "-keyout", key, "-out", certificate], check=True, capture_output=True)
        context.load_cert_chain(certificate, key)
        self.server.socket = context.wrap_socket(self.server.socket, server_side=True, do_handshake_on_connect=False)
        self.url = f"https://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        unittest.addModuleCleanup(self.stop)

    def stop(self):
        self.server.shutdown()
        self.server.server_close()

    def apply(self, made):
        self.rules = objects.only(made, "ClusterRole")["rules"]

    # What the programs call.

    def answer(self, call, code, document):
        body = json.dumps(document).encode()
        call.send_response(code)
        call.send_header("Content-Type", "application/json")
        call.send_header("Content-Length", str(len(body)))
        call.end_headers()
        call.wfile.write(body)

    def refuse(self, call, code, reason, message):
        self.answer(call, code, {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                                 "message": message, "reason": reason, "code": code})

    def granted(self, verb, resource):
        return any("" in rule["apiGroups"] and resource in rule["resources"] and verb in rule["verbs"]
                   for rule in self.rules)

    def permits(self, call, verb, resource):
        if call.headers["Authorization"] != f"Bearer {self.token}":
            self.refuse(call, 401, "Unauthorized", "Unauthorized")
        elif not self.granted(verb, resource):
            self.refuse(call, 403, "Forbidden", f'{resource} is forbidden: User "{ACCOUNT}" cannot {verb} resource '
                                                f'"{resource}" in API group ""')
        else:
            return True
        return False

    def get(self, call):
        where = urllib.parse.urlsplit(call.path)
        query = dict(urllib.parse.parse_qsl(where.query))
        if where.path in ("/api", "/apis", "/api/v1"):
            self.answer(call, 200, {
                "/api": {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []},
                "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": []},
                "/api/v1": {"kind": "APIResourceList", "groupVersion": "v1", "resources": [
                    {"name": "pods", "singularName": "", "namespaced": True, "kind": "Pod",
                     "verbs": ["get", "list", "watch"]}]}}[where.path])
        elif where.path == "/api/v1/pods":
            node = query.get("fieldSelector", "").removeprefix("spec.nodeName=")
            if query.get("watch") in ("1", "true"):
                if self.permits(call, "watch", "pods"):
                    self.watch(call, node, int(query.get("resourceVersion") or 0))
            elif self.permits(call, "list", "pods"):
                with self.changed:
                    items = [pod for pod in self.pods.values() if pod["spec"]["nodeName"] == node]
                    self.answer(call, 200, {"kind": "PodList", "apiVersion": "v1", "items": items,
                                            "metadata": {"resourceVersion": str(self.version)}})
        else:
            self.refuse(call, 404, "NotFound", "the server could not find the requested resource")

    def watch(self, call, node, since):
        call.send_response(200)
        call.send_header("Content-Type", "application/json")
        call.send_header("Transfer-Encoding", "chunked")
        call.end_headers()
        with contextlib.suppress(OSError):  # the client may end at any time
            while True:
                with self.changed:
                    self.changed.wait_for(lambda: self.version > since)
                    news = [(kind, pod) for version, kind, pod in self.log
                            if version > since and pod["spec"]["nodeName"] == node]
                    since = self.version
                for kind, pod in news:
                    line = json.dumps({"type": kind, "object": pod}).encode() + b"\n"
                    call.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
                    call.wfile.flush()

    def put(self, call):
        chunks = []
        while size := int(call.rfile.readline(), 16):  # kubectl does not send the length
            chunks.append(call.rfile.read(size))
            call.rfile.readline()
        call.rfile.readline()
        body = json.loads(b"".join(chunks))
        found = re.fullmatch("/api/v1/namespaces/([^/]+)/events/([^/]+)", call.path.split("?")[0])
        if found is None:
            self.refuse(call, 404, "NotFound", "the server could not find the requested resource")
        elif self.permits(call, "update", "events"):
            new = found.groups() not in self.written
            if (body["metadata"]["namespace"], body["metadata"]["name"]) != found.groups():
                self.refuse(call, 400, "BadRequest", "the name of the object does not match the name on the URL")
            elif body["involvedObject"]["namespace"] != found[1]:
                self.refuse(call, 422, "Invalid", "involvedObject.namespace: does not match event.namespace")
            elif new and not self.granted("create", "events"):
                # The real server does not name the missing right here, either.
                self.refuse(call, 403, "Forbidden", f'events "{found[2]}" is forbidden: ')
            else:
                with self.changed:
                    self.version += 1
                    body["metadata"]["resourceVersion"] = str(self.version)
                    self.written[found.groups()] = body
                self.answer(call, 201 if new else 200, body)

    # What others do.

    def put_pod(self, kind, pod):
        with self.changed:
            self.version += 1
            pod = json.loads(json.dumps(pod))
            pod["metadata"]["resourceVersion"] = str(self.version)
            key = pod["metadata"]["namespace"], pod["metadata"]["name"]
            if kind == "DELETED":
                del self.pods[key]
            else:
                self.pods[key] = pod
            self.log.append((self.version, kind, pod))
            self.changed.notify_all()

    def create(self, pod):
        uid = "-".join(secrets.token_hex(size) for size in (4, 2, 2, 2, 6))
        pod["metadata"]["uid"] = uid
        pod["status"] = {"phase": "Pending", "qosClass": "BestEffort"}
        self.put_pod("ADDED", pod)
        return uid

    def annotate(self, namespace, name, annotations):
        pod = self.pods[namespace, name]
        pod["metadata"]["annotations"] = annotations
        self.put_pod("MODIFIED", pod)

    def finish(self, namespace, name):
        pod = self.pods[namespace, name]
        pod["status"]["phase"] = "Succeeded"
        self.put_pod("MODIFIED", pod)

    def delete(self, namespace, name):
        self.put_pod("DELETED", self.pods[namespace, name])

    def events(self):
        with self.changed:
            return list(self.written.values())

    def grant(self, rules):
        self.rules = rules


class Api:
    """The real API server, with etcd."""

    def __init__(self, directory):
        self.directory = directory
        self.programs = []
        self.admin = secrets.token_hex()
        made = subprocess.run([HERE / "tools.sh", "--server"], stdout=subprocess.PIPE, text=True, check=False)
        if made.returncode != 0:
            sys.exit(made.returncode)
        ports = []
        with contextlib.ExitStack() as stack:
            for _ in range(3):
                each = stack.enter_context(socket.socket())
                each.bind(("127.0.0.1", 0))
                ports.append(each.getsockname()[1])
        store = f"http://127.0.0.1:{ports[0]}"
        peer = f"http://127.0.0.1:{ports[1]}"
        self.url = f"https://127.0.0.1:{ports[2]}"
        self.start("etcd", objects.TOOLS / "etcd", f"--data-dir={directory}/etcd", f"--listen-client-urls={store}",
                   f"--advertise-client-urls={store}", f"--listen-peer-urls={peer}",
                   f"--initial-advertise-peer-urls={peer}", f"--initial-cluster=default={peer}")
        (directory / "tokens").write_text(f"{self.admin},admin,admin,system:masters\n")
        key = directory / "key"
        subprocess.run(["openssl", "genrsa", "-out", key, "2048"], check=True, capture_output=True)
        # No controller makes the accounts of namespaces, and no kubelet makes the nodes ready: no plugin may ask for them.
        self.start("kube-apiserver", objects.TOOLS / "kube-apiserver", f"--etcd-servers={store}",
                   "--bind-address=127.0.0.1", f"--secure-port={ports[2]}", f"--cert-dir={directory}/certificates",
                   "--authorization-mode=RBAC", f"--token-auth-file={directory}/tokens", "--insecure-port=0",
                   "--service-account-issuer=https://sluice.test", f"--service-account-key-file={key}",
                   f"--service-account-signing-key-file={key}", "--service-cluster-ip-range=10.0.0.0/24",
                   "--disable-admission-plugins=ServiceAccount,TaintNodesByCondition",
                   "--endpoint-reconciler-type=none")
        eventually(self.ready, f"kube-apiserver is ready; its log is {objects.TOOLS}/kube-apiserver-run.log",
                   patience=10 * PATIENCE)
        self.token = None

    def start(self, name, *command):
        with open(objects.TOOLS / f"{name}-run.log", "w", encoding="utf-8") as log:
            started = subprocess.Popen(list(map(str, command)), stdout=log, stderr=log)
        unittest.addModuleCleanup(started.wait)
        unittest.addModuleCleanup(started.kill)
        self.programs.append(started)

    def call(self, method, path, document=None, kind="application/json"):
        request = urllib.request.Request(self.url + path, method=method,
                                         data=None if document is None else json.dumps(document).encode(),
                                         headers={"Authorization": f"Bearer {self.admin}", "Content-Type": kind})
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE, context=context) as answer:
                return json.loads(answer.read() or "null") if path != "/readyz" else answer.read()
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{method} {path}: {error.read().decode()}") from error

    def ready(self):
        for each in self.programs:
            if each.poll() is not None:
                raise AssertionError(f"'{each.args[0]}' ended; its log is {each.args[0]}-run.log")
        with contextlib.suppress(AssertionError, OSError):
            return self.call("GET", "/readyz") == b"ok"
        return False

    def apply(self, made):
        """Applies the manifest, as kubectl checks it against the schemas of this server."""
        environment = {**os.environ, "KUBECONFIG": str(kubeconfig(self.directory, self.url, self.admin))}
        subprocess.run([objects.TOOLS / "kubectl", "apply", "--filename=-"], env=environment, check=True, text=True,
                       stdout=subprocess.DEVNULL,
                       input=json.dumps({"apiVersion": "v1", "kind": "List", "items": made}))
        for each in ("batch", "serving"):
            self.call("POST", "/api/v1/namespaces",
                      {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": each}})
        answer = self.call("POST", "/api/v1/namespaces/sluice/serviceaccounts/sluice/token", {
            "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}})
        self.token = answer["status"]["token"]

    def create(self, pod):
        return self.call("POST", f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods", pod)["metadata"]["uid"]

    def annotate(self, namespace, name, annotations):
        self.call("PATCH", f"/api/v1/namespaces/{namespace}/pods/{name}", {"metadata": {"annotations": annotations}},
                  "application/merge-patch+json")

    def finish(self, namespace, name):
        self.call("PATCH", f"/api/v1/namespaces/{namespace}/pods/{name}/status", {"status": {"phase": "Succeeded"}},
                  "application/merge-patch+json")

    def delete(self, namespace, name):
        self.call("DELETE", f"/api/v1/namespaces/{namespace}/pods/{name}")

    def events(self):
        return self.call("GET", "/api/v1/events")["items"]

    def grant(self, rules):
        """Returns when the server goes by them."""
        self.call("PATCH", "/apis/rbac.authorization.k8s.io/v1/clusterroles/sluice-pods", {"rules": rules},
                  "application/merge-patch+json")
        asked = {(resource, verb): any(resource in rule["resources"] and verb in rule["verbs"] for rule in rules)
                 for resource, verb in rights_of(objects.only(manifest(), "ClusterRole")["rules"])}
        for (resource, verb), wanted in asked.items():
            review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": {
                "user": ACCOUNT, "resourceAttributes": {"namespace": "batch", "resource": resource, "verb": verb}}}
            eventually(lambda review=review, wanted=wanted: wanted == self.call(
                "POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", review)["status"]["allowed"],
                       f"{verb} {resource}: {wanted}")


def rights_of(rules):
    return {(resource, verb) for rule in rules for resource in rule["resources"] for verb in rule["verbs"]}


def kubeconfig(directory, url, token):
    path = directory / f"config-{secrets.token_hex(4)}"
    path.write_text(json.dumps({
        "apiVersion": "v1", "kind": "Config", "current-context": "it",
        "clusters": [{"name": "it", "cluster": {"server": url, "insecure-skip-tls-verify": True}}],
        "users": [{"name": "it", "user": {"token": token}}],
        "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}]}))
    return path


class Metrics:
    """A page as the daemon serves it (fleet_container takes one from the daemon itself)."""

    def __init__(self):
        self.scrapes = 0
        self.page = b""
        self.set({})
        metrics = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                metrics.scrapes += 1
                self.send_response(200)
                self.end_headers()
                self.wfile.write(metrics.page)

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}/metrics"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def set(self, held, enforces=1):
        """held: holds and seconds by uid."""
        lines = ["# TYPE sluice_enforces gauge", f"sluice_enforces {enforces}",
                 'sluice_group_holds_total{group="slurm:7"} 3', 'sluice_group_holds_total{group="python3"} 4']
        for uid, (holds, seconds) in held.items():
            lines += [f'sluice_group_holds_total{{group="pod:{uid}"}} {holds}',
                      f'sluice_group_suspensions_total{{group="pod:{uid}"}} {2 * holds}',
                      f'sluice_group_held_seconds_total{{group="pod:{uid}"}} {seconds}',
                      f'sluice_group_suspended_seconds_total{{group="pod:{uid}"}} {2 * seconds}']
        self.page = "\n".join([*lines, ""]).encode()

    def scraped_again(self):
        """Returns once what was read before this call was reported: when a later sweep has begun."""
        count = self.scrapes + 2
        eventually(lambda: self.scrapes >= count, "the metrics are read")

    def stop(self):
        self.server.shutdown()
        self.server.server_close()


def setUpModule():
    scratch = tempfile.TemporaryDirectory(prefix="sluice-api-")
    unittest.addModuleCleanup(scratch.cleanup)
    Programs.directory = pathlib.Path(scratch.name)
    Programs.api = (Api if REAL else StandIn)(Programs.directory)
    Programs.api.apply(manifest())
    Programs.environment = {**os.environ, "HOME": scratch.name,
                            "KUBECONFIG": str(kubeconfig(Programs.directory, Programs.api.url, Programs.api.token))}


class Programs:
    """The cases, for each kubectl."""

    rules = objects.only(objects.OBJECTS["amd"], "ClusterRole")["rules"]

    def setUp(self):
        self.metrics = Metrics()
        self.addCleanup(self.metrics.stop)
        self.store = self.directory / secrets.token_hex(4)
        self.pods = set()  # of this case

    def create(self, namespace, **more):
        name = f"pod-{secrets.token_hex(4)}"
        uid = self.api.create(a_pod(namespace, name, **more))
        self.pods.add(uid)
        return name, uid

    def start(self, program):
        options = {"pod_roles": [f"--sluice={objects.SLUICE}", f"--store={self.store}", "--class=sluice-offline=offline",
                                 "--may-claim-online=serving"],
                   "pod_events": [f"--metrics={self.metrics.url}", "--every=0.5"]}[program]
        started = subprocess.Popen([sys.executable, "-B", PROGRAMS / f"{program}.py", f"--node={NODE}",
                                    f"--kubectl={objects.TOOLS / self.kubectl}", *options], env=self.environment,
                                   stderr=subprocess.PIPE, start_new_session=True)
        self.addCleanup(self.end, started)
        return started

    @staticmethod
    def end(program):
        if not program.stderr.closed:
            os.killpg(program.pid, signal.SIGKILL)
            program.wait()
            program.stderr.close()

    def said(self, program, words):
        """Waits until the program prints these words."""
        text = ""
        until = time.monotonic() + PATIENCE
        with selectors.DefaultSelector() as ready:
            ready.register(program.stderr, selectors.EVENT_READ)
            while words not in text:
                self.assertTrue(ready.select(max(until - time.monotonic(), 0)), f"not printed: {words}: {text}")
                chunk = os.read(program.stderr.fileno(), 1 << 16)
                self.assertTrue(chunk, f"it ended, and did not print {words}: {text}")
                text += chunk.decode()

    def roles(self):
        """The roles in the store, by the uid of the pod."""
        listed = json.loads(subprocess.run([objects.SLUICE, "role", "list", "--json", "--store", self.store], check=True,
                                           capture_output=True, text=True).stdout)
        return {each["cgroup"].removesuffix(".slice").rpartition("pod")[2].replace("_", "-"): each["role"]
                for each in listed["cgroups"]}

    def events_of(self, *uids):
        return [each for each in self.api.events() if each["involvedObject"]["uid"] in uids]

    def event_of(self, uid, message):
        def there():
            found = self.events_of(uid)
            return found if found and found[0]["message"] == message else None
        found, = eventually(there, f"an event of {uid}: {message}; there: {self.events_of(uid)}")
        return found

    def test_roles_follow_the_pods(self):
        before, one = self.create("batch", priorityClassName="sluice-offline")
        program = self.start("pod_roles")

        def become(expected):
            eventually(lambda: {uid: role for uid, role in self.roles().items() if uid in self.pods} == expected,
                       f"roles {expected}")

        become({one: "offline"})
        after, two = self.create("serving", annotations={"sluice.dev/role": "online"})
        become({one: "offline", two: "online"})
        self.create("batch", priorityClassName="sluice-offline", node="gpu-2")
        self.api.annotate("serving", after, {"sluice.dev/role": "unmatched"})
        become({one: "offline", two: "unmatched"})
        self.api.delete("serving", after)
        become({one: "offline"})
        self.api.finish("batch", before)
        become({})
        self.assertIsNone(program.poll())

    def test_events_report_how_often_each_pod_was_held(self):
        (name, one), (_, two), (gone_name, gone) = (self.create("batch") for _ in range(3))
        _, elsewhere = self.create("batch", node="gpu-2")
        self.api.delete("batch", gone_name)
        # A daemon that only observes counts what it would do.
        self.metrics.set({one: (99, 99.0)}, enforces=0)
        self.start("pod_events")
        self.metrics.scraped_again()
        self.metrics.set({one: (12, 3.14159), two: (0, 0), elsewhere: (5, 1.0), gone: (5, 1.0)})
        first = self.event_of(one, "held 12 times, 3.1 s: online work used the GPU")
        self.assertEqual(first["count"], 12)
        self.assertEqual(first["involvedObject"], {"apiVersion": "v1", "kind": "Pod", "namespace": "batch",
                                                   "name": name, "uid": one})
        self.assertEqual((first["type"], first["source"]), ("Normal", {"component": "sluice", "host": NODE}))
        # Nothing new: nothing is written.
        self.metrics.scraped_again()
        self.assertEqual(self.events_of(one, two, elsewhere, gone), [first])
        # The pod has ended since; the other one was held once.
        self.api.finish("batch", name)
        self.metrics.set({one: (15, 4.0), two: (1, 0.25)})
        then = self.event_of(one, "held 15 times, 4.0 s: online work used the GPU")
        self.assertEqual((then["metadata"]["name"], then["firstTimestamp"], then["count"]),
                         (first["metadata"]["name"], first["firstTimestamp"], 15))
        self.assertGreaterEqual(then["lastTimestamp"], first["lastTimestamp"])
        self.event_of(two, "held 1 time, 0.2 s: online work used the GPU")
        # The daemon was restarted, and does not know the pod yet.
        self.metrics.set({})
        self.metrics.scraped_again()
        self.metrics.set({two: (2, 1.0)})
        self.event_of(two, "held 3 times, 1.2 s: online work used the GPU")
        self.assertEqual(self.events_of(elsewhere, gone), [])

    # The tests above show that the ClusterRole suffices. Without any one of its rights, a program fails.
    def test_need_each_right_of_the_manifest(self):
        self.addCleanup(self.api.grant, self.rules)
        needs = {("pods", "list"): "pod_events", ("pods", "watch"): "pod_roles",
                 ("events", "create"): "pod_events", ("events", "update"): "pod_events"}
        self.assertEqual(set(needs), rights_of(self.rules))
        _, uid = self.create("batch")
        self.metrics.set({uid: (1, 1.0)})
        # The server does not name the verb when a PUT would create the object, and kubectl 1.20 not that of a watch.
        nameless = {"create": f'events "sluice.{uid}" is forbidden:;', "watch": "(Forbidden)"}
        for (resource, verb), program in needs.items():
            with self.subTest(f"{verb} {resource}"):
                self.api.grant([{**rule, "verbs": [each for each in rule["verbs"]
                                                   if (rule["resources"], each) != ([resource], verb)]}
                                for rule in self.rules])
                started = self.start(program)
                self.said(started, nameless.get(verb, f'cannot {verb} resource "{resource}"'))
                self.end(started)
        self.assertEqual(self.events_of(uid), [])


class WithDebiansKubectl(Programs, unittest.TestCase):
    kubectl = "kubectl"


class WithACurrentKubectl(Programs, unittest.TestCase):
    kubectl = "kubectl-current"


if __name__ == "__main__":
    unittest.main()
