"""HTTP requests to server.py at random times."""

import http.client
import json
import queue
import random
import statistics
import threading
import time

WORKERS = 16  # Requests at once.
TIMEOUT = 30  # Seconds for an answer.
TEXT = json.dumps({"text": "What is a sluice? " * 20})


def ask(connection):
    connection.request("POST", "/embed", TEXT)
    answer = connection.getresponse()
    content = json.loads(answer.read())
    if answer.status != 200 or len(content["embedding"]) != 8:
        raise ValueError(f"answer {answer.status}: {content}")


def connect(port):
    return http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT)


def length_of_request(port):
    """Seconds that one request takes, if it is the only one."""
    connection = connect(port)
    lengths = []
    for _ in range(60):
        start = time.monotonic()
        ask(connection)
        lengths.append(time.monotonic() - start)
    connection.close()
    return statistics.median(lengths[10:])


def arrivals_of(load, length, seconds, seed=1):
    """Random times in s, of requests that take the server `load` of the time if each takes `length` s."""
    arrivals, at, chance = [], 0.0, random.Random(seed)
    while (at := at + chance.expovariate(load / length)) < seconds:
        arrivals.append(at)
    return arrivals


def request_all(port, arrivals):
    """Makes a request at each of the times, in s from the start. Returns the start, (time, latency in ms) of each answer,
    and errors. A latency counts from the planned time."""
    due, answers, errors = queue.SimpleQueue(), [], []

    def work(connection):
        while (at := due.get()) is not None:
            try:
                ask(connection)
                answers.append((at, 1e3 * (time.monotonic() - start - at)))
            except (OSError, ValueError, LookupError, TypeError, http.client.HTTPException) as error:
                errors.append(repr(error))
                connection.close()
        connection.close()

    workers = []
    for _ in range(WORKERS):
        connection = connect(port)
        connection.connect()
        workers.append(threading.Thread(target=work, args=(connection,), daemon=True))
    start = time.monotonic()
    for each in workers:
        each.start()
    for at in arrivals:
        time.sleep(max(0, start + at - time.monotonic()))
        due.put(at)
    for _ in workers:
        due.put(None)
    for each in workers:
        each.join()
    return start, sorted(answers), errors


def quantile(values, share):
    """Of sorted values."""
    return values[min(len(values) - 1, int(share * len(values)))]
