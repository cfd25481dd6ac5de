"""What the calls cost, printed; and that none was lost at that speed."""

import ctypes
import itertools
import os
import timeit
import unittest

import sluice
from node import NodeTest, connect

TIMES = 20_000
REPEATS = 5


def best(work):
    """Nanoseconds."""

    def many():
        for _ in itertools.repeat(None, TIMES):
            work()

    return min(timeit.repeat(many, number=1, repeat=REPEATS)) / TIMES * 1e9


def works(client):
    handle, library = client._handle, client._library
    releasing = ctypes.CDLL(library.path)
    releasing.sluice_client_begin.argtypes = [ctypes.c_void_p]
    releasing.sluice_client_end.argtypes = [ctypes.c_void_p]
    kept = client.busy()

    def each_time():
        with client.busy():
            pass

    def once():
        with kept:
            pass

    def holding():
        library.begin(handle)
        library.end(handle)

    def giving_up():
        releasing.sluice_client_begin(handle)
        releasing.sluice_client_end(handle)

    return {
        "with client.busy(): pass": each_time,
        "with busy: pass": once,
        "begin and end, holding the interpreter's lock": holding,
        "begin and end, giving it up": giving_up,
    }


class Speed(NodeTest):
    def test_is_printed(self):
        print(f"{'(nothing)':48} {best(lambda: None):6.0f} ns", flush=True)
        with sluice.connect(socket=os.devnull) as client:
            for what, work in works(client).items():
                print(f"{what:48} {best(work):6.0f} ns, no scheduler", flush=True)
        with connect() as client, self.begun(4 * TIMES * REPEATS):
            for what, work in works(client).items():
                print(f"{what:48} {best(work):6.0f} ns", flush=True)
            mark = best(lambda: client.begin_span("itl", 1))
            print(f"{'client.begin_span()':48} {mark:6.0f} ns", flush=True)


if __name__ == "__main__":
    unittest.main()
