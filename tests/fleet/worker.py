"""A client of the node's daemon: does what lines of Python on standard input say, and prints `done` after each."""

import ctypes
import pathlib
import sys
import time

import sluice

client = sluice.connect(name="worker", required=True, timeout=30)


def serve(count, length, pause=0.0, work=True):
    """Serves requests. Each takes `length` seconds, with online work if `work`."""
    for number in range(count):
        with client.span("request", number):
            if work:
                with client.busy():
                    time.sleep(length)
            else:
                time.sleep(length)
        time.sleep(pause)


def corrupt_page():
    """Writes nonsense into the page that it shares with the daemon, as a stray pointer would."""
    for line in pathlib.Path("/proc/self/maps").read_text(encoding="utf-8").splitlines():
        if "/memfd:sluice-client" in line and " rw-s " in line:
            ctypes.memset(int(line.partition("-")[0], 16), 0x5a, 64)
    with client.busy():
        pass


print("connected", flush=True)
for line in sys.stdin:
    exec(line)
    print("done", flush=True)
