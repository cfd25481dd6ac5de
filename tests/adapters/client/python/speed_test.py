"""What the calls cost, printed; and that none was lost at that speed."""

import ctypes
import itertools
import os
import timeit
import unittest

import sluice.asgi
from node import NodeTest, connect, eventually

TIMES = 20_000
REPEATS = 5


def best(work):
    """Nanoseconds."""

    def many():
        for _ in itertools.repeat(None, TIMES):
            work()

    return min(timeit.repeat(many, number=1, repeat=REPEATS)) / TIMES * 1e9


def request(client):
    """Runs a request with an answer of one part through the middleware; None: without it."""

    async def application(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"all"})

    async def send(message):
        pass

    app = application if client is None else sluice.asgi.Busy(application, client)
    scope = {"type": "http", "method": "POST", "path": "/v1/completions"}

    def run():
        try:
            app(scope, None, send).send(None)  # It waits for nothing, so no loop is needed.
        except StopIteration:
            pass

    return run


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
        with connect() as client:
            without, run = best(request(None)), request(client)
            measured = []
            for _ in range(20):  # As many at once as there is room for their marks.
                before = self.node.stats()["request"]
                measured.append(timeit.timeit(run, number=100) / 100 * 1e9 - without)

                def taken():
                    client.begin()  # So that the scheduler looks.
                    client.end()
                    return self.node.stats()["request"] == before + 100

                eventually(taken, "the marks of a hundred requests")
            self.assertEqual(client.status().lost_marks, 0)
            print(f"{'sluice.asgi.Busy, a request':48} {min(measured):6.0f} ns", flush=True)


if __name__ == "__main__":
    unittest.main()
