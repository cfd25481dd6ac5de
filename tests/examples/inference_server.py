#!/usr/bin/env python3
# usage: inference_server.py SERVER OFFLINE_DEMO   (beside a simulated GPU)
# What the inference server promises beyond figures: offline work makes room when a request's head is there; who
# hangs up, dawdles or sends nonsense holds up nobody; at SIGTERM what runs is finished and everything resumed.

import json
import os
import select
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import unittest

SERVER, OFFLINE = sys.argv[1:3]
ROOT = os.environ["SLUICE_SIM_ROOT"]
PATIENCE = 20  # Seconds; nothing here takes long, but the machine may be busy.

# No limit resumes offline work here, so what does is the end of online work.
UNLIMITED = """[scheduler]
attach_after = "0s"
max_suspend = "60s"
offline_floor = 0.0
"""


def wait_until(what, condition):
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {PATIENCE} s: {what}")
        time.sleep(0.005)


class Server:
    """A running server, which ends with the test."""

    def __init__(self, test, *options, scheduler=True):
        config = tempfile.NamedTemporaryFile("w", suffix=".toml")
        test.addCleanup(config.close)
        config.write(UNLIMITED)
        config.flush()
        with_scheduler = ["--config", config.name, "--policy", "fixed_timeslice:slice=1ms",
                          "--directory", ROOT + "/run"]
        self.test = test
        self.process = subprocess.Popen(
            [SERVER, "--port", "0", *(with_scheduler if scheduler else ["--no-scheduler"]), *options],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        test.addCleanup(self.end)
        self.port = int(self.process.stdout.readline().rpartition(":")[2])

    def end(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()

    def stop(self):
        """SIGTERM; the exit code, and what it said."""
        self.process.terminate()
        out, err = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, out, err

    def connect(self):
        peer = socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE)
        self.test.addCleanup(peer.close)
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return peer

    def metric(self, name):
        with self.connect() as peer:
            peer.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            lines = Answer(peer).body.decode().splitlines()
        return int(next(line.split()[1] for line in lines if line.split()[0] == name))


class Answer:
    """Reads one answer to its end. With a `file`, others may follow."""

    def __init__(self, peer, file=None):
        self.file = file or peer.makefile("rb")
        try:
            self.read()
        finally:
            if file is None:
                self.file.close()

    def read(self):
        self.status = int(self.file.readline().split()[1])
        self.fields = {}
        while (line := self.file.readline().strip()):
            key, _, value = line.decode().partition(":")
            self.fields[key.lower()] = value.strip()
        self.whole = True
        if self.fields.get("transfer-encoding") == "chunked":
            self.body = b""
            while (chunk := self.chunk()):
                self.body += chunk
        else:
            self.body = self.file.read(int(self.fields.get("content-length", 0)))

    def chunk(self):
        size = self.file.readline()
        if not size.endswith(b"\r\n"):  # Cut off.
            self.whole = False
            return b""
        data = self.file.read(int(size, 16))
        self.file.readline()
        return data

    def tokens(self):
        return [json.loads(line)["token"] for line in self.body.splitlines()]


def post(body, length=None, more=""):
    return (f"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: {length or len(body)}\r\n{more}\r\n"
            f"{body}").encode()


HEAD = post("", 14)
BODY = b'{"tokens": 3} '


class Offline:
    def __init__(self):
        self.process = subprocess.Popen([OFFLINE], env=dict(os.environ, AMD_QUEUE_TAG="OFFLINE_AI"),
                                        stdout=subprocess.DEVNULL)
        wait_until("offline work runs", lambda: self.count("kernels_completed") > 0)

    def count(self, what):
        with open(ROOT + "/sim/stats.json") as file:
            rows = json.load(file)["processes"]
        return next((row[what] for row in rows if row["pid"] == self.process.pid), 0)

    def is_suspended(self):
        return self.count("suspended_queues") == 1

    def runs(self):
        return self.count("suspended_queues") == 0

    def attached_to(self, server):
        wait_until("offline work is attached", lambda: server.metric("sluice_attaches_total") == 1)

    def end(self):
        """It checks that every kernel ran exactly once."""
        self.process.terminate()
        return self.process.wait(PATIENCE)


class BesideOfflineWork(unittest.TestCase):
    """Without tests of its own."""

    def setUp(self):
        self.offline = Offline()

    def tearDown(self):
        self.assertEqual(self.offline.end(), 0)

    def server(self, *options):
        made = Server(self, *options)
        self.offline.attached_to(made)
        return made


class OneServer(BesideOfflineWork):
    def test_room_is_made_when_the_head_is_there(self):
        server = self.server("--body-time", "60s")
        with server.connect() as peer:
            peer.sendall(HEAD)
            wait_until("offline work is suspended, without a body", self.offline.is_suspended)
            self.assertEqual(select.select([peer], [], [], 0)[0], [], "an answer without a body")
            peer.sendall(BODY)
            answer = Answer(peer)
            self.assertEqual((answer.status, answer.tokens()), (200, [1, 2, 3]))
            wait_until("offline work is resumed after the answer", self.offline.runs)

            # The same connection again, hung up before the body.
            peer.sendall(HEAD)
            wait_until("offline work is suspended again", self.offline.is_suspended)
        wait_until("offline work is resumed, for nobody is there", self.offline.runs)
        self.assertEqual(server.metric("inference_broken_total"), 1)
        self.assertEqual(server.metric("sluice_forced_resumes_total"), 0)

        # Neither health checks nor nonsense are online work.
        with server.connect() as peer:
            peer.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            self.assertEqual(Answer(peer).body, b"ok\n")
        self.assertEqual(server.metric("sluice_begins_total"), 2)
        self.assertEqual(server.stop()[0], 0)

    def test_who_withholds_the_body_is_given_up(self):
        server = self.server("--body-time", "300ms")
        with server.connect() as peer:
            peer.sendall(HEAD)
            wait_until("offline work is suspended", self.offline.is_suspended)
            self.assertEqual(peer.recv(100), b"")
            wait_until("offline work is resumed", self.offline.runs)
        self.assertEqual(server.stop()[0], 0)

    def test_a_body_that_comes_late_finds_the_gpu_free(self):
        """Prints what the early hint is worth, and does not judge it: a suspend takes 5 ms, the first token 2 ms of
        GPU time."""
        server = self.server()
        waits = {0: [], 0.03: []}  # By the time from head to body.
        with server.connect() as peer, peer.makefile("rb") as file:
            for delay in [0, 0.03] * 10:
                wait_until("offline work runs", self.offline.runs)
                time.sleep(0.02)  # Until its waves are back.
                peer.sendall(HEAD)
                time.sleep(delay)
                began = time.monotonic()
                peer.sendall(BODY)
                select.select([peer], [], [], PATIENCE)
                waits[delay].append(time.monotonic() - began)
                self.assertEqual(Answer(peer, file).status, 200)
        at_once, late = (1000 * statistics.median(each) for each in waits.values())
        print(f"\nfirst token after the body, median: {at_once:.1f} ms where it comes with the head, "
              f"{late:.1f} ms where it comes 30 ms later")
        self.assertEqual(server.stop()[0], 0)

    def test_who_hangs_up_in_the_middle_of_an_answer_is_noticed(self):
        server = self.server("--kernel-length", "10ms")  # 4000 tokens would take 160 s.
        with server.connect() as peer:
            peer.sendall(post('{"tokens": 4000}'))
            self.assertIn(b" 200 ", peer.recv(100))
            wait_until("offline work is suspended", self.offline.is_suspended)
        wait_until("offline work is resumed", self.offline.runs)
        self.assertEqual(server.metric("inference_broken_total"), 1)
        self.assertEqual(server.stop()[0], 0)

    def test_at_sigterm_what_runs_is_finished_and_everything_resumed(self):
        server = self.server("--kernel-length", "5ms")  # 20 ms a token
        peers = [server.connect() for _ in range(3)]
        idle = server.connect()
        for peer in peers:
            peer.sendall(post('{"tokens": 20}'))
        for peer in peers:
            select.select([peer], [], [], PATIENCE)  # The first token is there.
        wait_until("offline work is suspended", self.offline.is_suspended)
        server.process.terminate()
        self.assertEqual(idle.recv(100), b"")
        with self.assertRaises(OSError):
            server.connect()
        for peer in peers:
            answer = Answer(peer)
            self.assertEqual((answer.whole, answer.tokens()), (True, list(range(1, 21))))
        code, out, _ = server.stop()
        self.assertEqual(code, 0)
        self.assertRegex(
            out, r"^answered 3 of 3 requests, 60 tokens\n([1-9]\d*) queue suspends, \1 resumes, 0 of them forced; ")
        self.assertTrue(self.offline.runs())

    def test_what_takes_too_long_after_sigterm_is_cut_off(self):
        server = self.server("--kernel-length", "10ms", "--drain-limit", "200ms")
        with server.connect() as peer:
            peer.sendall(post('{"tokens": 4000}'))
            select.select([peer], [], [], PATIENCE)
            code, out, _ = server.stop()
            self.assertEqual(code, 0)
            self.assertRegex(out, r"^answered 0 of 1 requests, ")
            self.assertFalse(Answer(peer).whole)
        self.assertTrue(self.offline.runs())


class Replicas(BesideOfflineWork):
    def test_the_second_follows_causes_suspends_and_takes_over(self):
        first, second = self.server(), Server(self)
        self.assertEqual((first.metric("sluice_owns_node"), second.metric("sluice_owns_node")), (1, 0))
        with second.connect() as peer, peer.makefile("rb") as file:
            def ask_while(what):
                peer.sendall(HEAD)
                wait_until("offline work is suspended for a follower's request", self.offline.is_suspended)
                what()
                peer.sendall(BODY)
                self.assertEqual(Answer(peer, file).tokens(), [1, 2, 3])
                wait_until("offline work is resumed", self.offline.runs)

            def lose_the_owner():
                first.process.kill()
                killed = time.monotonic()
                wait_until("the second owns the node", lambda: second.metric("sluice_owns_node") == 1)
                owned = time.monotonic()
                wait_until("it holds offline work for the request it has had all along",
                           lambda: second.metric("sluice_suspended_queues") == 1)
                print(f"\nthe owner was killed: taken over after {1000 * (owned - killed):.0f} ms, "
                      f"offline work held again after {1000 * (time.monotonic() - killed):.0f} ms")

            ask_while(lambda: None)
            self.assertGreater(first.metric("sluice_suspends_total"), 0)
            ask_while(lose_the_owner)
            ask_while(lambda: None)
        code, out, _ = second.stop()
        self.assertEqual(code, 0)
        self.assertRegex(out, r"answered 3 of 3 requests, 9 tokens\n([1-9]\d*) queue suspends, \1 resumes, ")

    def test_a_follower_ends_in_good_order(self):
        first, second = self.server(), Server(self)
        code, out, _ = second.stop()
        self.assertEqual(code, 0)
        self.assertIn("another program owned this node during the whole run; see its log\n", out)
        self.assertEqual(first.metric("sluice_owns_node"), 1)


class Peers(unittest.TestCase):
    def test_what_cannot_be_served_is_refused(self):
        server = Server(self, "--body-limit", "1000", scheduler=False)

        def status(request):
            with server.connect() as peer:
                peer.sendall(request)
                return Answer(peer).status

        self.assertEqual(status(post("x" * 1001)), 413)
        self.assertEqual(status(post("", 1 << 60)), 413)
        self.assertEqual(status(b"POST /generate HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
                                b"800\r\n" + b"x" * 2048 + b"\r\n0\r\n\r\n"), 413)
        self.assertEqual(status(b"nonsense\r\n\r\n"), 400)
        self.assertEqual(status(b"GET / HTTP/1.1\r\nX: " + b"x" * 10000 + b"\r\n\r\n"), 431)
        self.assertEqual(status(b"GET / HTTP/1.1\r\n\r\n"), 404)
        self.assertEqual(status(b"GET /generate HTTP/1.1\r\n\r\n"), 405)
        self.assertEqual(status(b"DELETE /metrics HTTP/1.1\r\n\r\n"), 405)
        self.assertEqual(status(b"POST /generate HTTP/1.0\r\n\r\n"), 505)
        self.assertEqual(status(b"GET /healthz HTTP/1.0\r\n\r\n"), 200)
        with server.connect() as peer, peer.makefile("rb") as file:  # All on one connection.
            for body in ['{"tokens": 0}', '{"tokens": 4097}', '{"tokens": "x"}', '[]', '{"tokens": 1']:
                peer.sendall(post(body))
                self.assertEqual(Answer(peer, file).status, 400, body)
            peer.sendall(post('{"tokens": 2}') + post("{}"))
            self.assertEqual(Answer(peer, file).tokens(), [1, 2])
            self.assertEqual(Answer(peer, file).tokens(), list(range(1, 17)))
            peer.sendall(post("", 14, "Expect: 100-continue\r\n"))
            self.assertEqual(Answer(peer, file).status, 100)
            peer.sendall(BODY)
            self.assertEqual(Answer(peer, file).tokens(), [1, 2, 3])
        self.assertEqual(server.metric("inference_refused_total"), 14)
        self.assertEqual(server.metric("inference_answered_total"), 3)

    def test_the_silent_make_room_for_who_asks(self):
        server = Server(self, "--connections", "3", "--head-time", "60s", scheduler=False)
        silent = [server.connect() for _ in range(10)]
        for peer in silent[::2]:
            peer.sendall(b"POST /gen")
        for _ in range(3):
            with server.connect() as peer:
                peer.sendall(post('{"tokens": 3}'))
                self.assertEqual(Answer(peer).tokens(), [1, 2, 3])
        self.assertGreaterEqual(server.metric("inference_evicted_total"), 8)

    def test_a_head_that_does_not_come_ends_the_connection(self):
        server = Server(self, "--head-time", "200ms", scheduler=False)
        with server.connect() as silent, server.connect() as half:
            half.sendall(b"POST /generate HTTP/1.1\r\nHost:")
            self.assertEqual((silent.recv(100), half.recv(100)), (b"", b""))

    def test_who_does_not_read_is_given_up_and_delays_nobody(self):
        server = Server(self, "--write-time", "300ms", scheduler=False)
        with socket.socket() as deaf:
            deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            deaf.connect(("127.0.0.1", server.port))
            deaf.settimeout(1)
            try:  # More answers than any buffer between us holds.
                while True:
                    deaf.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n" * 1000)
            except OSError:
                pass
            with server.connect() as peer:
                peer.sendall(post('{"tokens": 3}'))
                self.assertEqual(Answer(peer).tokens(), [1, 2, 3])
            wait_until("it is given up", lambda: server.metric("inference_connections") == 1)


class WhenTheGpuIsReset(unittest.TestCase):
    def test_the_server_says_so_and_ends(self):
        server = Server(self, "--kernel-length", "10ms")
        with server.connect() as peer:
            peer.sendall(post('{"tokens": 4000}'))
            select.select([peer], [], [], PATIENCE)
            with open(ROOT + "/sim/stats.json") as file:
                gpu = json.load(file)["gpus"][0]["gpu_id"]
            with open(ROOT + "/sim/control", "w") as control:
                control.write(f"reset {gpu}\n")
            self.assertFalse(Answer(peer).whole)
        _, err = server.process.communicate(timeout=PATIENCE)
        self.assertEqual(server.process.returncode, 1)
        self.assertIn("inference_server: a GPU of this process was reset", err)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[3:], verbosity=2)
