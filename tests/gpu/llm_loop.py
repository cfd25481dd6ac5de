"""The loop of a server of a language model: continuous batching of requests that arrive at given times. llm_server.py
runs it on a GPU. Nothing here needs one, so llm.py also runs it in virtual time, to know the load of arrivals."""

import bisect
import collections
import heapq

# What a request may have at most, in tokens. Prompts are padded to one of these lengths, and batches to one of these
# sizes: each is a CUDA graph.
PROMPTS = (128, 256, 512, 1024)
BATCHES = (1, 2, 4, 8, 16, 32)
MOST_PROMPT, MOST_OUTPUT, SLOTS = PROMPTS[-1], 64, BATCHES[-1]


def at_least(sizes, wanted):
    """The smallest of the sizes that is enough."""
    return sizes[bisect.bisect_left(sizes, wanted)]


class Request:
    """arrival: ns. tokens: when each token was made, ns."""

    def __init__(self, number, arrival, prompt, output):
        self.number, self.arrival = number, arrival
        self.prompt, self.output = min(max(prompt, 1), MOST_PROMPT), min(max(output, 1), MOST_OUTPUT)
        self.tokens = []

    def done(self):
        return len(self.tokens) == self.output


class NoMarks:
    """What a program without marks announces."""

    def arrived(self, request):
        pass

    token = arrived


class Marks:
    """Announces requests, first tokens and tokens to a scheduler."""

    def __init__(self, client):
        self.client = client

    def arrived(self, request):
        self.client.begin()
        self.client.begin_span("ttft", request.number, since=request.arrival)

    def token(self, request):
        if len(request.tokens) == 1:
            self.client.end_span("ttft", request.number)
        if not request.done():
            self.client.begin_span("itl", request.number)  # Ends the one before.
            return
        if request.output > 1:
            self.client.end_span("itl", request.number)
        self.client.end()


def release(active, free):
    """Frees the slots of requests that are done."""
    for slot in [slot for slot, request in active.items() if request.done()]:
        del active[slot]
        heapq.heappush(free, slot)


def serve(engine, clock, arrivals, marks, limit):
    """Serves requests: lists of arrival in ns, tokens of the prompt, and tokens of the output, by arrival. Returns all
    requests that arrived until the end or `limit`, and for how many ns the engine worked.

    engine: prefill(slot, tokens) makes the first token, decode(slots) one more for each of the slots 0 to slots - 1.
    clock: now() and wait(time), ns."""
    made, waiting, active, free = [], collections.deque(), {}, list(range(SLOTS))
    busy, following = 0, 0
    while following < len(arrivals) or waiting or active:
        now = clock.now()
        if now >= limit:
            break
        while following < len(arrivals) and arrivals[following][0] <= now:
            made.append(Request(following, *arrivals[following]))
            waiting.append(made[-1])
            marks.arrived(made[-1])
            following += 1
        if not waiting and not active:
            clock.wait(min(arrivals[following][0], limit))
            continue
        if waiting and free:
            request, slot = waiting.popleft(), heapq.heappop(free)
            engine.prefill(slot, request.prompt)
            request.tokens.append(clock.now())
            active[slot] = request
            marks.token(request)
            release(active, free)
        if active:
            # One prefill at most between two tokens of the others.
            engine.decode(max(active) + 1)
            end = clock.now()
            for request in active.values():
                request.tokens.append(end)
                marks.token(request)
            release(active, free)
        busy += clock.now() - now
    return made, busy


class Virtual:
    """Engine and clock in virtual time. costs: us of each length of prompts and size of batches, as texts."""

    def __init__(self, costs):
        self.prefills = {int(size): int(1e3 * us) for size, us in costs["prefill_us"].items()}
        self.decodes = {int(size): int(1e3 * us) for size, us in costs["decode_us"].items()}
        self.time = 0

    def now(self):
        return self.time

    def wait(self, time):
        self.time = max(self.time, time)

    def prefill(self, _slot, tokens):
        self.time += self.prefills[at_least(PROMPTS, tokens)]

    def decode(self, slots):
        self.time += self.decodes[at_least(BATCHES, slots)]
