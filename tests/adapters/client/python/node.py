"""What the tests share: a scheduler in a process of its own, and waiting for what it counts."""

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import time
import unittest

import sluice

PATIENCE = 20.0  # Seconds.


class Node:
    """The scheduler of node_program.cpp; its path is in the environment's SLUICE_TEST_NODE."""

    def __init__(self, socket, *words):
        self._process = subprocess.Popen(
            [os.environ["SLUICE_TEST_NODE"], socket, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        if self._process.stdout.readline() != "ready\n":
            raise RuntimeError("the scheduler does not start")

    def stats(self):
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    @contextlib.contextmanager
    def paused(self):
        """It answers nobody meanwhile."""
        self._process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED)  # Until then it still might.
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def kill(self):
        self._process.kill()
        self._process.wait(PATIENCE)

    def stop(self):
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait(PATIENCE)


def connect(name="test", **named):
    return sluice.connect(name, required=True, timeout=PATIENCE, **named)


def eventually(holds, what=""):
    """Asks until it says something true; that is returned."""
    deadline = time.monotonic() + PATIENCE
    while not (said := holds()):
        if time.monotonic() >= deadline:
            raise AssertionError(f"not in {PATIENCE} s: {what or holds}")
        time.sleep(0.001)
    return said


class NodeTest(unittest.TestCase):
    """One scheduler for all tests of a class; the environment names its socket."""

    @classmethod
    def setUpClass(cls):
        cls._directory = tempfile.TemporaryDirectory(prefix="sluice-python-")
        cls.addClassCleanup(cls._directory.cleanup)
        cls.socket = os.path.join(cls._directory.name, "clients.sock")
        os.environ["SLUICE_CLIENT_SOCKET"] = cls.socket
        cls.node = Node(cls.socket)
        cls.addClassCleanup(lambda: cls.node.stop())

    def suspends(self):
        eventually(lambda: self.node.stats()["suspended"] == 1, "the offline queue is suspended")

    def resumes(self):
        eventually(lambda: self.node.stats()["suspended"] == 0, "the offline queue runs again")

    @contextlib.contextmanager
    def begun(self, times=1):
        """The block begins work so many times, no more and no less, and leaves none in flight."""
        before = self.node.stats()["begins"]
        yield
        eventually(lambda: self.node.stats()["begins"] >= before + times, f"{times} begins")
        self.resumes()
        self.assertEqual(self.node.stats()["begins"], before + times)
