"""The package sluice against a scheduler in another process."""

import asyncio
import gc
import logging
import multiprocessing
import os
import queue
import subprocess
import sys
import threading
import time
import unittest

import sluice
from node import Node, NodeTest, connect, eventually
from sluice import _client


class Busy(NodeTest):
    def setUp(self):
        self.client = connect()
        self.addCleanup(self.client.close)

    def test_suspends_offline_work_while_its_block_runs(self):
        with self.begun():
            with self.client.busy():
                self.suspends()
                self.assertEqual(self.client.status().in_flight, 1)
                eventually(lambda: self.client.status().suspended == 1)
            self.resumes()

    def test_ends_with_an_exception(self):
        with self.begun(), self.assertRaises(KeyError):
            with self.client.busy():
                self.suspends()
                raise KeyError

    def test_holds_in_an_async_with(self):
        async def work():
            async with self.client.busy():
                await asyncio.to_thread(self.suspends)

        with self.begun():
            asyncio.run(work())

    def test_decorates_functions_and_coroutines(self):
        @self.client.busy
        def plain(a, b=2):
            self.suspends()
            return a + b

        @self.client.busy()
        async def coroutine(a):
            await asyncio.to_thread(self.suspends)
            return a

        with self.begun():
            self.assertEqual(plain(1), 3)
        with self.begun():
            self.assertEqual(asyncio.run(coroutine(4)), 4)
        self.assertEqual((plain.__name__, coroutine.__name__), ("plain", "coroutine"))

    def test_decorates_generators_until_their_end(self):
        @self.client.busy
        def numbers():
            got = yield 1
            yield got

        with self.begun():
            items = numbers()
            self.assertEqual(self.client.status().in_flight, 0)
            self.assertEqual(next(items), 1)
            self.suspends()
            self.assertEqual(items.send("sent"), "sent")
            self.assertRaises(StopIteration, next, items)
        with self.begun():
            items = numbers()
            next(items)
            self.suspends()
            items.close()

    def test_decorates_asynchronous_generators_until_their_end(self):
        closed = []

        @self.client.busy
        async def numbers():
            try:
                yield 1
                yield 2
            finally:
                closed.append(self.client.status().in_flight)

        async def work():
            self.assertEqual([item async for item in numbers()], [1, 2])
            items = numbers()
            await items.__anext__()
            await asyncio.to_thread(self.suspends)
            await items.aclose()

        with self.begun(2):
            asyncio.run(work())
        self.assertEqual(closed, [1, 1])

    def test_loses_nothing_among_threads(self):
        threads, times = 4, 20_000

        def work():
            for _ in range(times):
                with self.client.busy():
                    pass

        with self.begun(threads * times):
            all = [threading.Thread(target=work) for _ in range(threads)]
            for one in all:
                one.start()
            for one in all:
                one.join()
        self.assertEqual(self.client.status().in_flight, 0)

    def test_does_nothing_after_close(self):
        with self.begun():
            with self.client.busy():
                self.suspends()
                self.client.close()
                self.resumes()
        with self.client.busy(), self.client.acquire(0.1) as clear, self.client.span("ttft"):
            self.assertIs(clear, False)
        self.assertEqual((self.client.status().connected, self.client.status().why), (False, "closed"))

    def test_can_be_closed_while_threads_use_it(self):
        stop = threading.Event()

        def work(client):
            while not stop.is_set():
                with client.busy(), client.span("itl"):
                    client.status()

        for _ in range(50):
            client = connect()
            all = [threading.Thread(target=work, args=(client,)) for _ in range(3)]
            for one in all:
                one.start()
            client.close()
            stop.set()
            for one in all:
                one.join()
            stop.clear()
        self.resumes()

    def test_is_withdrawn_when_nobody_has_it_any_more(self):
        client = connect()
        client.begin()
        self.suspends()
        del client
        gc.collect()
        self.resumes()


class Acquire(NodeTest):
    def setUp(self):
        self.client = connect()
        self.addCleanup(self.client.close)

    def test_waits_until_the_gpus_are_clear(self):
        async def work():
            async with self.client.acquire(timeout=20) as clear:
                self.assertIs(clear, True)
                self.assertEqual(self.node.stats()["suspended"], 1)

        with self.begun(2):
            asyncio.run(work())
            self.resumes()
            with self.client.acquire(timeout=20) as clear:
                self.assertIs(clear, True)
                self.assertEqual(self.node.stats()["suspended"], 1)

    def test_admits_more_at_once_than_the_library_takes(self):
        async def one():
            async with self.client.acquire(timeout=20) as clear:
                await asyncio.sleep(0)
                return clear

        async def many():
            return await asyncio.gather(*(one() for _ in range(200)))

        with self.begun(200):
            self.assertEqual(asyncio.run(many()), [True] * 200)

    def test_is_cancelled_and_leaves_nothing(self):
        async def work():
            with self.node.paused():
                entered = asyncio.ensure_future(self.client.acquire(timeout=60).__aenter__())
                while not (_client._waits or entered.done()):
                    await asyncio.sleep(0.001)
                entered.cancel()
                with self.assertRaises(asyncio.CancelledError):
                    await entered

        with self.begun():
            asyncio.run(work())
        self.assertEqual(_client._waits, {})
        self.assertEqual(self.client.status().in_flight, 0)

    def test_is_answered_after_its_timeout(self):
        with self.node.paused(), self.client.acquire(timeout=0.01) as clear:
            self.assertIs(clear, False)
        self.assertRaises(ValueError, self.client.acquire, -1)
        self.assertRaises(ValueError, self.client.acquire, 61)

    def test_is_answered_when_the_loop_is_gone(self):
        loop = asyncio.new_event_loop()
        answer = loop.create_future()
        loop.close()
        _client._answer_loop(loop, answer, True)
        self.assertFalse(answer.done())


class Spans(NodeTest):
    def test_are_measured(self):
        before = self.node.stats()
        with connect(targets={"ttft": 0.4, "itl": 0.05}) as client:
            with client.busy(), client.span("request"), client.span("ttft", "a name"):
                pass
            client.begin_span("request", 7, since=time.monotonic_ns() - 1_000_000)
            for _ in range(4):
                client.begin_span("itl", 7)
            client.end_span("itl", 7)
            client.end_span("request", 7)
            self.assertRaises(ValueError, client.span, "tokens")

            def measured():
                with client.busy():  # So that the scheduler looks.
                    after = self.node.stats()
                return all(
                    after[kind] == before[kind] + times
                    for kind, times in (("request", 2), ("ttft", 1), ("itl", 4), ("stray_ends", 0))
                )

            eventually(measured, "two requests, a first token and four tokens")


class Processes(NodeTest):
    def test_a_forked_child_counts_for_itself(self):
        with connect() as client, client.busy():
            self.suspends()
            registered = self.node.stats()["registered"]
            before = self.node.stats()["begins"]
            child = os.fork()
            if child == 0:
                failed = 1
                try:
                    with client.busy():
                        eventually(lambda: client.status().connected)
                        failed = int(client.status().in_flight != 1)
                finally:
                    os._exit(failed)
            self.assertEqual(os.waitpid(child, 0)[1], 0)
            self.assertEqual(client.status().in_flight, 1)
            self.assertEqual(self.node.stats()["suspended"], 1)
            self.assertEqual(self.node.stats()["registered"], registered + 1)
            eventually(lambda: self.node.stats()["begins"] == before + 1)
        self.resumes()

    def test_multiprocessing_forks_and_spawns(self):
        with connect() as client:
            client.busy()
            for method, target, arguments in (
                ("fork", in_forked_worker, (client,)),
                ("spawn", in_spawned_worker, ()),
            ):
                with self.subTest(method), self.begun():
                    context = multiprocessing.get_context(method)
                    here, there = context.Pipe()
                    worker = context.Process(target=target, args=(there, *arguments))
                    worker.start()
                    self.assertTrue(here.poll(20))
                    self.assertEqual(here.recv(), 1)
                    self.suspends()
                    here.send("end")
                    worker.join(20)
                    self.assertEqual(worker.exitcode, 0)

    def test_a_worker_that_is_killed_counts_no_longer(self):
        context = multiprocessing.get_context("spawn")
        here, there = context.Pipe()
        worker = context.Process(target=in_spawned_worker, args=(there,))
        worker.start()
        self.assertTrue(here.poll(20))
        self.suspends()
        worker.kill()
        worker.join(20)
        self.resumes()

    def test_a_program_ends_that_never_closes(self):
        self.check_ends("import sluice; client = sluice.connect(required=True); client.begin()")

    def test_a_forked_child_ends_that_never_called_anything(self):
        self.check_ends(
            "import os, sluice\n"
            "client = sluice.connect(required=True)\n"
            "client.begin()\n"
            "child = os.fork()\n"
            "if child: assert os.waitpid(child, 0)[1] == 0\n"
        )

    def check_ends(self, program):
        with self.begun():
            done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=20)
        self.assertEqual((done.returncode, done.stderr), (0, b""))


def in_forked_worker(pipe, client):
    with client.busy():
        pipe.send(client.status().in_flight)
        pipe.recv()


def in_spawned_worker(pipe):
    with connect() as client:
        in_forked_worker(pipe, client)


class Without(unittest.TestCase):
    """Nothing fails because sluice is not there."""

    def setUp(self):
        _client._say_once.cache_clear()
        before = dict(os.environ)
        self.addCleanup(lambda: (os.environ.clear(), os.environ.update(before)))
        os.environ["SLUICE_CLIENT_SOCKET"] = "/nonexistent/clients.sock"

    def check_works(self, client):
        async def work():
            async with client.busy(), client.acquire(timeout=60) as clear:
                return clear

        started = time.monotonic()
        with client, client.busy(), client.acquire(timeout=60) as clear, client.span("request"):
            self.assertIs(clear, False)
            self.assertIs(asyncio.run(work()), False)
            self.assertFalse(client.status().connected)
        self.assertLess(time.monotonic() - started, 30)

    def test_a_library(self):
        os.environ["SLUICE_CLIENT_LIBRARY"] = "/nonexistent/library.so"
        with self.assertLogs("sluice", logging.WARNING) as said:
            client = sluice.connect()
            sluice.connect()
        self.assertEqual(len(said.output), 1)
        self.assertIn("/nonexistent/library.so", said.output[0])
        self.assertIn("SLUICE_CLIENT_LIBRARY", client.status().why)
        self.check_works(client)
        with self.assertRaisesRegex(sluice.Unavailable, "SLUICE_CLIENT_LIBRARY"):
            sluice.connect(required=True)

    def test_a_library_that_is_another(self):
        os.environ["SLUICE_CLIENT_LIBRARY"] = "libc.so.6"
        with self.assertLogs("sluice", logging.WARNING):
            self.check_works(sluice.connect())

    def test_a_scheduler(self):
        before, _client.SAY_AFTER = _client.SAY_AFTER, 0.05
        self.addCleanup(setattr, _client, "SAY_AFTER", before)
        with self.assertLogs("sluice", logging.WARNING) as said:
            client = sluice.connect()
            eventually(lambda: said.output, "a line in the log")
        self.assertIn("no scheduler at /nonexistent/clients.sock", said.output[0])
        self.check_works(client)
        with self.assertRaisesRegex(sluice.Unavailable, "no scheduler at"):
            sluice.connect(required=True, timeout=0.2)

    def test_settings_that_make_no_sense_are_refused(self):
        for named, part in (
            ({"name": "x" * 64}, "63 bytes"),
            ({"role": "master"}, "online, offline"),
            ({"gpus": [1 << 32]}, "gpu_id"),
            ({"gpus": range(1, 66)}, "64"),
            ({"targets": {"tokens": 1}}, "request, ttft, itl"),
            ({"targets": {"ttft": -1}}, "in seconds"),
        ):
            with self.subTest(named), self.assertRaisesRegex(ValueError, part):
                sluice.connect(**named)
        for name, value in (("SLUICE_CLIENT_GPUS", "all"), ("SLUICE_CLIENT_TARGETS", "ttft:1")):
            os.environ[name] = value
            with self.subTest(name), self.assertRaisesRegex(ValueError, name):
                sluice.connect()
            del os.environ[name]


class Gone(NodeTest):
    def test_answers_who_waits(self):
        socket = self.socket + ".gone"
        node = Node(socket)
        self.addCleanup(node.stop)
        answers = queue.SimpleQueue()

        def wait():
            with client.acquire(timeout=60) as clear:
                answers.put(clear)

        with connect(socket=socket) as client, node.paused():
            waiter = threading.Thread(target=wait)
            waiter.start()
            eventually(lambda: _client._waits, "it waits")
            node.kill()
            self.assertIs(answers.get(timeout=30), False)
            waiter.join()


class Observing(NodeTest):
    def test_is_never_clear(self):
        socket = self.socket + ".observing"
        node = Node(socket, "observe")
        self.addCleanup(node.stop)
        started = time.monotonic()
        with connect(socket=socket) as client, client.acquire(timeout=60) as clear:
            self.assertIs(clear, False)
            eventually(lambda: node.stats()["suspended"] == 1, "it would have suspended")
            self.assertEqual((client.status().mode, client.status().suspended), ("observing", 0))
        self.assertLess(time.monotonic() - started, 30)


class Refused(NodeTest):
    def test_says_so(self):
        socket = self.socket + ".refusing"
        node = Node(socket, "refuse")
        self.addCleanup(node.stop)
        with self.assertRaises(sluice.Unavailable) as said:
            sluice.connect(socket=socket, required=True)
        self.assertTrue(str(said.exception))


if __name__ == "__main__":
    unittest.main(verbosity=2)
