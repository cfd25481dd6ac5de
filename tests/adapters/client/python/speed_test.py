"""What the calls cost, printed; and that none was lost at that speed."""

import ctypes
import itertools
import timeit
import unittest

from node import NodeTest, connect

TIMES = 20_000
REPEATS = 5


def measure(what, work):
    def many():
        for _ in itertools.repeat(None, TIMES):
            work()

    best = min(timeit.repeat(many, number=1, repeat=REPEATS)) / TIMES
    print(f"{what:52} {best * 1e9:6.0f} ns", flush=True)


class Speed(NodeTest):
    def test_is_printed(self):
        with connect() as client, self.begun(4 * TIMES * REPEATS):
            handle, library = client._handle, client._library
            releasing = ctypes.CDLL(library.path)
            releasing.sluice_client_begin.argtypes = [ctypes.c_void_p]
            releasing.sluice_client_end.argtypes = [ctypes.c_void_p]
            kept = client.busy()

            def nothing():
                pass

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

            measure("nothing", nothing)
            measure("with client.busy(): pass", each_time)
            measure("with busy: pass", once)
            measure("begin and end, holding the interpreter's lock", holding)
            measure("begin and end, giving it up", giving_up)
            measure("client.begin_span()", lambda: client.begin_span("itl", 1))


if __name__ == "__main__":
    unittest.main()
