#!/usr/bin/env python3
"""usage: gangs_test.py SLUICE_GANGS

Two sluice-gangs with a real etcd between them. This test is the daemon of each. Exit code 77: etcd is not installed."""

import base64
import http.server
import json
import os
import pathlib
import shutil
import signal
import socket
import ssl
import struct
import subprocess
import sys
import tempfile
import threading
import time
import unittest

PROGRAM = sys.argv[1]
LEASE = 3  # s
FRESH = LEASE * 3 / 5
PATIENCE = 60  # s
PACKET = struct.Struct("<IIQQqIBB2x")  # gang_packet (gang_packets.hpp)
STATE, ALIVE, ASK, HEARD = range(4)
GONE, REFUSED, RUN, HOLD = range(4)
KEY = 2002 << 32 | 7  # job 7 of user 2002
PREFIX = "/sluice/test/gangs/2002/7/"


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def wait_until(condition, what):
    until = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > until:
            raise AssertionError(f"{what() if callable(what) else what}: not within {PATIENCE} s")
        time.sleep(0.01)


def make_certificates(folder):
    def openssl(*arguments):
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    openssl("req", "-x509", *key, "-days", "2", "-subj", "/CN=authority", "-keyout", "ca.key", "-out", "ca.pem")
    openssl("req", "-x509", *key, "-days", "2", "-subj", "/CN=stranger", "-keyout", "stranger.key", "-out", "stranger.pem")
    (folder / "extensions").write_text("subjectAltName=IP:127.0.0.1\nextendedKeyUsage=serverAuth,clientAuth\n")
    for name in ("server", "client"):
        openssl("req", *key, "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.csr")
        openssl("x509", "-req", "-days", "2", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial",
                "-extfile", "extensions", "-out", f"{name}.pem")


class Etcd:
    """A member of a cluster, which start() starts."""

    def __init__(self, folder, name):
        self.folder, self.name, self.process = folder, name, None
        self.url, self.peer_url = (f"https://127.0.0.1:{free_port()}" for _ in range(2))

    def start(self, *cluster, asks=True):
        """:param asks: for the certificates of clients."""
        tls = [word for side in ("", "peer-") for word in (
            f"--{side}cert-file", "server.pem", f"--{side}key-file", "server.key",
            *((f"--{side}client-cert-auth", f"--{side}trusted-ca-file", "ca.pem") if asks or side else ()))]
        with (self.folder / f"{self.name}.log").open("a") as log:
            self.process = subprocess.Popen(
                ["etcd", "--name", self.name, "--data-dir", f"{self.name}.data", "--listen-client-urls", self.url,
                 "--advertise-client-urls", self.url, "--listen-peer-urls", self.peer_url, "--initial-advertise-peer-urls",
                 self.peer_url, "--initial-cluster", ",".join(f"{each.name}={each.peer_url}" for each in cluster or (self,)),
                 "--auto-compaction-mode", "periodic", "--auto-compaction-retention", "2s", *tls],
                cwd=self.folder, stdout=log, stderr=log)

    def wait(self):
        wait_until(lambda: "leader" in (self.ask("maintenance/status") or ()), f"{self.name}: a leader")

    def ask(self, what, **body):
        done = subprocess.run(["curl", "-sS", "--fail", "--max-time", "5", "--cacert", "ca.pem", "--cert", "client.pem", "--key",
                               "client.key", "-d", json.dumps(body), f"{self.url}/v3/{what}"], cwd=self.folder,
                              capture_output=True, text=True, check=False)
        return json.loads(done.stdout) if done.returncode == 0 else None

    def keys(self):
        answers = []
        wait_until(lambda: answers.append(self.ask("kv/range", key=encoded(PREFIX), range_end=encoded(PREFIX[:-1] + "0")))
                   or answers[-1] is not None, "the keys")
        return {base64.b64decode(each["key"]).decode().removeprefix(PREFIX): each for each in answers[-1].get("kvs", ())}

    def kill(self):
        self.process.kill()
        self.process.wait()


class NoLeader(http.server.BaseHTTPRequestHandler):
    """A member that is cut off from the others: as etcd 3.4 answers, only sooner."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        body = b'{"error":"etcdserver: request timed out","message":"etcdserver: request timed out","code":14}'
        self.send_response(503)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def encoded(text):
    return base64.b64encode(text.encode()).decode()


class Node:
    """A daemon, played by this test, and its sluice-gangs."""

    def __init__(self, folder, name, urls, place=None):
        self.tls, self.name, self.urls, self.folder = folder, name, urls, folder / (place or name)
        self.folder.mkdir()
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.bind(str(self.folder / "gangs.sock"))
        self.listener.listen()
        self.heard = (0, False)  # Until when the gang may be held, and whether another node wants it.
        self.longest = 0  # For so long it was permitted at once.
        self.answers = True
        self.socket = None
        self.start()

    def start(self):
        self.log = (self.folder / "log").open("a")
        self.process = subprocess.Popen(
            [PROGRAM, *(word for url in self.urls for word in ("--etcd", url)), "--cluster", "test", "--node", self.name, "--ca",
             self.tls / "ca.pem", "--cert", self.tls / "client.pem", "--key", self.tls / "client.key", "--lease", f"{LEASE}s",
             "--directory", self.folder], stderr=self.log)
        self.accept()

    def accept(self):
        self.listener.settimeout(PATIENCE)
        self.socket = self.listener.accept()[0]
        threading.Thread(target=self.receive, args=(self.socket,), daemon=True).start()

    def receive(self, own):
        while True:
            try:
                data = own.recv(100)
            except OSError:
                return
            if not data:
                return
            _, kind, key, number, until, _, _, hold = PACKET.unpack(data)
            if kind == ASK and self.answers:
                self.send(ALIVE, number=number)
            elif kind == HEARD and key == KEY:
                self.heard = (until / 1e9, bool(hold))
                self.longest = max(self.longest, self.heard[0] - time.monotonic())

    def send(self, kind, key=0, number=0, nodes=0, wish=0):
        try:
            self.socket.send(PACKET.pack(1, kind, key, number, 0, nodes, wish, 0))
        except OSError:
            pass

    def wants(self, wish, nodes=2):
        self.send(STATE, key=KEY, nodes=nodes, wish=wish)

    def may_hold(self):
        return self.heard[0] > time.monotonic()

    def hears_hold(self):
        return self.may_hold() and self.heard[1]

    def said(self):
        return (self.folder / "log").read_text()


class TestCase(unittest.TestCase):
    def start(self, members):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="sluice-gangs-"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        make_certificates(self.folder)
        self.cluster = [Etcd(self.folder, f"etcd{number}") for number in range(members)]
        for each in self.cluster:
            each.start(*self.cluster)
            self.addCleanup(each.kill)
        for each in self.cluster:
            each.wait()

    def connect(self, *urls):
        """:param urls: of each node: its endpoints."""
        self.a, self.b = (Node(self.folder, name, of_node) for name, of_node in zip("ab", urls))
        for each in (self.a, self.b):
            self.addCleanup(self.end, each)
            each.wants(RUN)
        self.wait_whole()

    def end(self, node):
        node.process.send_signal(signal.SIGCONT)
        node.process.terminate()
        code = node.process.wait(PATIENCE)
        node.listener.close()
        node.socket.close()
        node.log.close()
        self.assertIn(code, (0, -signal.SIGKILL), node.said())
        self.assertLessEqual(node.longest, FRESH)

    def wait_whole(self):
        for each in (self.a, self.b):
            wait_until(each.may_hold, lambda each=each: f"{each.name}: the gang may be held; {self.a.said()} {self.b.said()}")

    def wait_apart(self, *nodes):
        for each in nodes or (self.a, self.b):
            wait_until(lambda each=each: not each.may_hold(), f"{each.name}: the gang may not be held")


class OneMember(TestCase):
    def setUp(self):
        self.start(1)
        self.etcd = self.cluster[0]
        urls = (f"https://127.0.0.1:{free_port()}", self.etcd.url)  # No program listens on the first one.
        self.connect(urls, urls)

    def test_holds_for_another_node(self):
        for one, other in ((self.a, self.b), (self.b, self.a)):
            one.wants(HOLD)
            wait_until(other.hears_hold, "a hold")
            self.assertFalse(one.heard[1])
            one.wants(RUN)
            wait_until(lambda: other.may_hold() and not other.heard[1], "the end of a hold")

    def test_a_refusal_ends_it_at_once(self):
        self.a.wants(REFUSED)
        wait_until(lambda: self.b.heard[0] == 0, "a refusal")
        self.assertIn("a cannot hold it", self.b.said())
        self.a.wants(RUN)
        self.wait_whole()

    def test_etcd_dies_and_comes_back(self):
        self.etcd.kill()
        died = time.monotonic()
        self.wait_apart()
        for each in (self.a, self.b):
            self.assertLess(each.heard[0], died + FRESH)
            self.assertIn("until that works, gangs on several nodes run", each.said())
        self.etcd.start()
        self.wait_whole()
        self.a.wants(HOLD)
        wait_until(self.b.hears_hold, "a hold")

    def test_etcd_hangs(self):
        self.etcd.process.send_signal(signal.SIGSTOP)
        hung = time.monotonic()
        self.a.wants(HOLD)
        self.wait_apart()
        for each in (self.a, self.b):
            self.assertLess(each.heard[0], hung + FRESH)
        self.a.wants(RUN)
        self.etcd.process.send_signal(signal.SIGCONT)
        self.wait_whole()

    def test_gangs_come_and_go(self):
        for _ in range(3):
            self.a.wants(GONE)
            wait_until(lambda: self.b.heard[0] == 0, "the end of the gang")
            self.a.wants(RUN)
            self.wait_whole()
        for each in (self.a, self.b):
            each.wants(GONE)
        wait_until(lambda: not self.etcd.keys(), "no keys")

    def test_nodes_count_the_same_nodes(self):
        self.a.wants(RUN, 3)
        wait_until(lambda: self.b.heard[0] == 0, "a doubt")
        self.a.wants(RUN)
        self.wait_whole()

    def test_a_daemon_that_hangs_is_no_peer(self):
        self.a.answers = False
        hung = time.monotonic()
        self.wait_apart()
        self.assertLess(self.a.heard[0], hung + FRESH)
        self.assertLess(self.b.heard[0], hung + FRESH + LEASE / 5 + 1)
        self.a.answers = True
        self.wait_whole()

    def test_a_daemon_that_goes_is_no_peer(self):
        self.a.socket.close()
        wait_until(lambda: self.b.heard[0] == 0, "no peer")
        self.a.accept()
        self.a.wants(RUN)
        self.wait_whole()

    def test_a_lost_lease_is_replaced(self):
        for _ in range(2):
            lease = self.etcd.keys()["a"]["lease"]
            self.etcd.ask("lease/revoke", ID=lease)
            wait_until(lambda: self.etcd.keys().get("a", {}).get("lease", lease) != lease, "another lease")
            self.wait_whole()

    def test_ends_with_no_keys(self):
        self.a.process.terminate()
        self.assertEqual(self.a.process.wait(PATIENCE), 0)
        wait_until(lambda: self.b.heard[0] == 0, "no peer")
        self.assertEqual(list(self.etcd.keys()), ["b"])

    def test_tells_of_etcd_before_a_job_needs_it(self):
        node = Node(self.folder, "c", self.a.urls)
        self.addCleanup(self.end, node)
        wait_until(lambda: f"etcd at {self.etcd.url} answers again" in node.said(), "the endpoint that works")
        self.assertIn(f"etcd at {node.urls[0]}: cannot read keys: Connection refused", node.said())

    def restart_a(self):
        self.a.process.kill()
        self.a.process.wait()
        self.a.socket.close()
        self.a.log.close()
        self.wait_apart(self.b)
        self.a.start()
        self.a.wants(RUN)
        self.wait_whole()

    def test_a_killed_one_can_come_back(self):
        self.restart_a()

    def test_a_member_without_a_leader_is_not_kept(self):
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), NoLeader)
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        tls.load_cert_chain(self.folder / "server.pem", self.folder / "server.key")
        tls.load_verify_locations(self.folder / "ca.pem")
        tls.verify_mode = ssl.CERT_REQUIRED
        server.socket = tls.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        self.a.urls = (f"https://127.0.0.1:{server.server_port}", self.etcd.url)
        self.restart_a()
        self.assertIn("etcdserver: request timed out", self.a.said())

    def test_two_nodes_of_one_name(self):
        twin = Node(self.folder, "b", [self.etcd.url], "twin")
        self.addCleanup(self.end, twin)
        twin.wants(RUN)
        for each in (self.b, twin):
            wait_until(lambda each=each: "another program writes as node b" in each.said(), lambda each=each: each.said())

    def test_explains_what_tls_refuses(self):
        tls = self.folder
        port = self.etcd.url.rpartition(":")[2]
        for changed, words in (
                ({"ca": tls / "stranger.pem"}, "its certificate is not accepted: "),
                ({"etcd": f"https://localhost:{port}"}, "it does not name localhost in subjectAltName"),
                ({"cert": tls / "stranger.pem", "key": tls / "stranger.key"}, "refused the certificate of --cert")):
            with (tls / "said").open("w") as log:
                process = subprocess.Popen([PROGRAM, *self.options(**changed)], stderr=log)
            try:
                wait_until(lambda words=words: words in (tls / "said").read_text(), lambda: (tls / "said").read_text())
            finally:
                process.kill()
                process.wait()

    def test_an_etcd_that_asks_for_no_certificate_is_passed_over(self):
        without = Etcd(self.folder, "without")
        without.start(asks=False)
        self.addCleanup(without.kill)
        without.wait()
        self.a.urls = (without.url, self.etcd.url)
        self.restart_a()
        self.assertIn(f"{without.url}: cannot read keys: it asks for no certificate", self.a.said())

    def options(self, **changed):
        tls = self.folder
        return [word for name, value in {"etcd": self.etcd.url, "cluster": "test", "ca": tls / "ca.pem", "cert": tls / "client.pem",
                                         "key": tls / "client.key", "directory": tls, **changed}.items() for word in (f"--{name}", value)]

    def test_refuses_what_cannot_be_right(self):
        tls = self.folder
        (tls / "open.key").write_bytes((tls / "client.key").read_bytes())
        (tls / "open.key").chmod(0o644)

        def run(**changed):
            done = subprocess.run([PROGRAM, *self.options(**changed)], capture_output=True, text=True, timeout=PATIENCE, check=False)
            return done.returncode, done.stderr

        for code, word, changed in ((2, "invalid endpoint", {"etcd": "http://127.0.0.1:2379"}), (2, "invalid name", {"cluster": "a/b"}),
                                    (2, "invalid duration", {"lease": "1s"}), (1, "open.key: every user can read it", {"key": tls / "open.key"}),
                                    (1, "nonesuch", {"ca": tls / "nonesuch"}), (1, "cannot use --cert", {"cert": tls / "ca.key"}),
                                    (1, "it is not the key of --cert", {"key": tls / "server.key"})):
            got, said = run(**changed)
            self.assertEqual(got, code, said)
            self.assertIn(word, said)


class ThreeMembers(TestCase):
    """The first endpoint of node a is the leader; that of node b is not."""

    def setUp(self):
        self.start(3)
        found = [each.ask("maintenance/status") for each in self.cluster]
        self.leader, self.follower, self.last = (self.cluster[at] for at in sorted(
            range(3), key=lambda at: found[at]["header"]["member_id"] != found[at]["leader"]))
        urls = [each.url for each in (self.leader, self.follower, self.last)]
        self.connect(urls, urls[1:] + urls[:1])
        for each in (self.a, self.b):
            each.wants(HOLD)
        self.wait_held_after(0)

    def wait_held_after(self, then):
        """Both nodes may hold, by beats that are later than that."""
        wait_until(lambda: all(each.hears_hold() and each.heard[0] > then + FRESH for each in (self.a, self.b)),
                   lambda: f"a hold; {self.a.said()} {self.b.said()}")
        if then:
            print(f"{self._testMethodName}: held again after {time.monotonic() - then:.1f} s (lease {LEASE} s)", flush=True)

    def test_the_leader_is_killed(self):
        self.leader.kill()
        self.wait_held_after(time.monotonic())

    def test_another_member_is_killed(self):
        self.follower.kill()
        self.wait_held_after(time.monotonic())

    def test_two_members_are_killed(self):
        for each in (self.leader, self.follower):
            each.kill()
        died = time.monotonic()
        self.wait_apart()
        for each in (self.a, self.b):
            self.assertLess(each.heard[0], died + FRESH)
        self.follower.start(*self.cluster)
        self.wait_held_after(time.monotonic())

    def test_a_member_hangs(self):
        for member in (self.follower, self.leader):
            member.process.send_signal(signal.SIGSTOP)
            self.wait_held_after(time.monotonic())
            member.process.send_signal(signal.SIGCONT)
            self.wait_held_after(time.monotonic())


if __name__ == "__main__":
    if any(shutil.which(each) is None for each in ("etcd", "curl", "openssl")):
        print("gangs_test.py: etcd, curl and openssl are needed")
        sys.exit(77)
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
