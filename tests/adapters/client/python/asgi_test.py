"""sluice.asgi.Busy: its calls one by one, and under uvicorn with a Starlette application."""

import asyncio
import contextlib
import http.client
import itertools
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

import sluice.asgi
from node import PATIENCE, NodeTest, eventually


class Recorder:
    """In a client's place: writes down what is called."""

    def __init__(self):
        self.calls = []

    def new_request(self):
        return 1

    def begin(self):
        self.calls.append("begin")

    def end(self):
        self.calls.append("end")

    def begin_span(self, kind, request):
        self.calls.append(f"{kind}+")

    def end_span(self, kind, request):
        self.calls.append(f"{kind}-")


BEGUN = ["begin", "request+", "ttft+"]
START = {"type": "http.response.start", "status": 200, "headers": []}


def part(text, more=True):
    return {"type": "http.response.body", "body": text, "more_body": more}


class Calls(unittest.TestCase):
    """What the middleware makes of an application's messages, without a server."""

    def run_app(self, app, heard=(), **scope):
        client = Recorder()
        scope = {"type": "http", "method": "POST", "path": "/v1/completions", **scope}
        to_come = list(heard)

        async def receive():
            client.calls.append("receive")
            return to_come.pop(0)

        async def send(message):
            client.calls.append(message.get("body", message["type"]))

        self.calls = client.calls
        asyncio.run(sluice.asgi.Busy(app, client)(scope, receive, send))
        return client.calls

    def test_hold_from_before_the_body_to_the_last_part(self):
        async def app(scope, receive, send):
            await receive()
            await send(START)
            for text in (b"1", b"2", b"3"):
                await send(part(text))
            await send(part(b"", more=False))
            self.calls.append("after")

        self.assertEqual(
            self.run_app(app, [{"type": "http.request"}]),
            [*BEGUN, "receive", "http.response.start"]
            + ["ttft-", "itl+", b"1", "itl+", b"2", "itl+", b"3"]
            + ["end", "itl-", "request-", b"", "after"],
        )

    def test_say_that_a_long_stream_goes_on(self):
        async def app(scope, receive, send):
            await send(START)
            await send(part(b"1"))
            await send(part(b"2", more=False))

        with unittest.mock.patch("sluice.asgi.RENEW_AFTER", 0.0):
            self.assertEqual(
                self.run_app(app),
                [*BEGUN, "http.response.start", "ttft-", "itl+", "begin", "end", b"1"]
                + ["end", "itl-", "request-", b"2"],
            )

    def test_know_an_answer_in_one_part(self):
        async def app(scope, receive, send):
            await send(START)
            await send({"type": "http.response.body", "body": b"all"})

        self.assertEqual(
            self.run_app(app),
            [*BEGUN, "http.response.start", "ttft-", "end", "request-", b"all"],
        )

    def test_end_with_an_application_that_returns_or_raises(self):
        async def returns(scope, receive, send):
            await send(START)

        async def raises(scope, receive, send):
            await send(START)
            await send(part(b"1"))
            raise KeyError

        over = ["end", "ttft-", "request-"]
        self.assertEqual(self.run_app(returns), [*BEGUN, "http.response.start", *over])
        with self.assertRaises(KeyError):
            self.run_app(raises)
        self.assertEqual(self.calls[-4:], [b"1", "end", "itl-", "request-"])

    def test_end_once_when_the_peer_goes(self):
        async def app(scope, receive, send):
            await send(START)
            await send(part(b"1"))
            await receive()
            await send(part(b"2"))
            await send(part(b"3", more=False))
            await receive()

        gone = {"type": "http.disconnect"}
        calls = self.run_app(app, [gone, gone])
        at = calls.index("receive")
        self.assertEqual(
            calls[at:], ["receive", "end", "itl-", "request-", b"2", b"3", "receive"]
        )

    def test_end_with_a_websocket(self):
        async def closes(scope, receive, send):
            await send({"type": "websocket.close"})

        async def hears(scope, receive, send):
            await receive()
            self.calls.append("after")

        self.assertEqual(self.run_app(closes, type="websocket"), ["begin", "end", "websocket.close"])
        self.assertEqual(
            self.run_app(hears, [{"type": "websocket.disconnect"}], type="websocket"),
            ["begin", "receive", "end", "after"],
        )

    def test_are_made_for_what_counts(self):
        async def app(scope, receive, send):
            pass

        def counts(path, method="POST", paths=None, root_path=""):
            client = Recorder()
            middleware = sluice.asgi.Busy(app, client, paths=paths)
            scope = {"type": "http", "method": method, "path": path, "root_path": root_path}
            asyncio.run(middleware(scope, None, None))
            return "begin" in client.calls

        self.assertTrue(counts("/"))
        self.assertTrue(counts("/v1/completions"))
        self.assertTrue(counts("/healthy"))
        self.assertFalse(counts("/health"))
        self.assertFalse(counts("/metrics/"))
        self.assertFalse(counts("/prefix/health", root_path="/prefix"))
        self.assertFalse(counts("/v1/completions", method="OPTIONS"))
        self.assertTrue(counts("/v1/chat/completions", paths=["/v1/chat", "/v2"]))
        self.assertTrue(counts("/v1/chat", paths=["/v1/chat/"]))
        self.assertFalse(counts("/v1/chats", paths=["/v1/chat"]))
        self.assertTrue(counts("/anything", paths=["/"]))
        os.environ["SLUICE_ASGI_PATHS"] = "/generate, /v1"
        self.addCleanup(os.environ.pop, "SLUICE_ASGI_PATHS")
        self.assertTrue(counts("/v1/completions"))
        self.assertFalse(counts("/other"))

    def test_refuse_settings_that_make_no_sense_when_the_server_starts(self):
        os.environ["SLUICE_CLIENT_GPUS"] = "first"
        self.addCleanup(os.environ.pop, "SLUICE_CLIENT_GPUS")
        with self.assertRaisesRegex(ValueError, "SLUICE_CLIENT_GPUS"):
            sluice.asgi.Busy(None)


class Connection(http.client.HTTPConnection):
    """Over the server's Unix socket."""

    def __init__(self, path):
        super().__init__("localhost", timeout=PATIENCE)
        self._path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(PATIENCE)
        self.sock.connect(self._path)


class ServerTest(NodeTest):
    workers = 1
    _numbers = itertools.count()

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.gates = pathlib.Path(tempfile.mkdtemp(dir=cls._directory.name))
        cls.listens_at = str(cls.gates / "server.sock")
        cls.server = subprocess.Popen(
            [sys.executable, "-m", "uvicorn", "asgi_app:app", "--uds", cls.listens_at]
            + ["--workers", str(cls.workers), "--log-level", "critical"],
            env={**os.environ, "SLUICE_TEST_GATES": str(cls.gates), "SLUICE_CLIENT_NAME": "server"},
        )
        cls.addClassCleanup(cls._stop)
        open(cls.gates / "open", "w").close()
        eventually(cls._listens, "the server listens")

    @classmethod
    def _stop(cls):
        cls.server.send_signal(signal.SIGTERM)
        try:
            cls.server.wait(PATIENCE)
        finally:
            cls.server.kill()
            cls.server.wait()

    @classmethod
    def _listens(cls):
        with contextlib.suppress(OSError), contextlib.closing(Connection(cls.listens_at)) as probe:
            probe.request("GET", "/health?gate=open")
            return probe.getresponse().status == 200

    def connect(self):
        connection = Connection(self.listens_at)
        self.addCleanup(connection.close)
        return connection

    def ask(self, method, path):
        connection = self.connect()
        connection.request(method, path)
        answer = connection.getresponse()
        self.addCleanup(answer.close)
        return answer

    def gate(self):
        """A new gate's name, opened at the end at the latest."""
        name = str(next(self._numbers))
        self.addCleanup(self.open_gate, name)
        return name

    def open_gate(self, name):
        open(self.gates / name, "w").close()


class Server(ServerTest):
    def test_is_busy_from_a_requests_arrival_to_the_end_of_its_stream(self):
        gate = self.gate()
        with self.begun():
            answer = self.ask("GET", f"/v1/stream?gate={gate}")
            self.assertEqual(answer.read(1), b"1")
            self.suspends()
            self.open_gate(gate)
            self.assertEqual(answer.read(), b"23")

    def test_is_busy_before_a_body_has_come(self):
        with self.begun():
            connection = self.connect()
            connection.putrequest("POST", "/v1/plain?gate=open")
            connection.putheader("Content-Length", "1")
            connection.endheaders()
            self.suspends()
            connection.send(b"x")
            self.assertEqual(connection.getresponse().status, 200)

    def test_is_busy_as_long_as_any_request_is(self):
        first, last = self.gate(), self.gate()
        with self.begun(2):
            answers = [self.ask("GET", f"/v1/stream?gate={gate}") for gate in (first, last)]
            self.suspends()
            self.open_gate(first)
            answers[0].read()
            self.assertEqual(self.node.stats()["suspended"], 1)
            self.open_gate(last)
            answers[1].read()

    def test_is_no_longer_busy_when_the_peer_goes(self):
        with self.begun():
            peer = self.connect()
            peer.request("GET", f"/v1/stream?gate={self.gate()}")
            with peer.getresponse() as answer:
                self.assertEqual(answer.read(1), b"1")
                self.suspends()
                peer.close()
            self.resumes()

    def test_is_no_longer_busy_after_an_exception(self):
        gate = self.gate()
        with self.begun(2):
            midway = self.ask("GET", f"/v1/raises_midway?gate={gate}")
            self.suspends()
            self.open_gate(gate)
            self.assertRaises(http.client.IncompleteRead, midway.read)
            self.assertEqual(self.ask("GET", f"/v1/raises?gate={gate}").status, 500)

    def test_is_not_busy_with_what_comes_after_the_answer(self):
        with self.begun():
            self.assertEqual(self.ask("GET", f"/v1/background?gate={self.gate()}").read(), b"answered")
            self.resumes()

    def test_is_not_busy_with_probes(self):
        with self.begun(0):
            for _ in range(10):
                self.assertEqual(self.ask("GET", "/health?gate=open").status, 200)

    def test_is_busy_as_long_as_a_websocket_is_open(self):
        with self.begun(), socket.socket(socket.AF_UNIX) as peer:
            peer.settimeout(PATIENCE)
            peer.connect(self.listens_at)
            peer.sendall(
                b"GET /v1/socket HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n"
                b"Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
                b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
            )
            self.assertIn(b"101", peer.recv(4096))
            peer.sendall(b"\x81\x82\0\0\0\0hi")  # A text of two bytes, masked with zeros.
            self.assertEqual(peer.recv(4), b"\x81\x02hi")
            self.suspends()
            peer.sendall(b"\x88\x80\0\0\0\0")  # This uvicorn does not report one that only hangs up.
            self.resumes()

    def test_marks_the_spans_of_its_requests(self):
        before = self.node.stats()
        for path in ("/v1/stream?gate=open", "/v1/background?gate=open"):
            self.ask("GET", path).read()

        def measured():
            self.ask("GET", "/v1/raises?gate=open").read()  # So that the scheduler looks.
            after = self.node.stats()
            # A stream of three parts, and the gap before its end; the error's page is one part.
            return (
                after["itl"] == before["itl"] + 3
                and after["ttft"] >= before["ttft"] + 3
                and after["request"] >= before["request"] + 3
            )

        eventually(measured, "the spans of three requests")
        self.assertEqual(self.node.stats()["stray_ends"], 0)


class Workers(ServerTest):
    workers = 2

    def test_are_clients_of_their_own(self):
        blocking, held = self.gate(), self.gate()
        eventually(lambda: self.node.stats()["registered"] == 2, "two clients")
        with self.begun(2):
            # While one worker's loop is blocked, the other one takes what comes.
            connection = self.connect()
            connection.request("GET", f"/v1/blocks?gate={blocking}")
            self.suspends()
            other = self.connect()
            other.request("POST", f"/v1/plain?gate={held}")
            eventually(lambda: self.node.stats()["begins"] >= 2)
            self.open_gate(blocking)
            first = int(connection.getresponse().read())
            self.assertEqual(self.node.stats()["suspended"], 1)
            self.open_gate(held)
            second = int(other.getresponse().read())
        self.assertNotEqual(first, second)
        self.assertNotIn(self.server.pid, (first, second))
        held = self.connect()
        held.request("POST", f"/v1/plain?gate={self.gate()}")
        self.suspends()
        os.kill(first, signal.SIGKILL)
        os.kill(second, signal.SIGKILL)
        self.resumes()


if __name__ == "__main__":
    unittest.main(verbosity=2)
