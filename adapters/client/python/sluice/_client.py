"""Connects a Python program to the scheduler as a client."""

from __future__ import annotations

import asyncio
import ctypes
import errno
import functools
import inspect
import itertools
import logging
import os
import queue
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar, overload

from . import _library
from ._settings import Settings, settings, span_number

log = logging.getLogger("sluice")
Function = TypeVar("Function", bound=Callable[..., Any])

NS_PER_S = 1_000_000_000
SAY_AFTER = 5.0  # Seconds: a scheduler that is started together with its clients is there by then.


class Unavailable(RuntimeError):
    """connect(required=True) raises it if the library, the scheduler or the grant of the role is missing."""


class Status(NamedTuple):
    """State of a client. The fields correspond to sluice_client_status."""

    connected: bool  #: The scheduler has registered the client.
    role: str | None  #: "online" or "offline", as granted.
    mode: str  #: "active": a policy decides; "passive", "observing": everything runs; "stopping"; "none".
    error: int  #: errno value while not connected. EACCES: the role was refused.
    scheduler_pid: int
    in_flight: int  #: Requests that this process has begun and not ended.
    connections: int  #: Number of times that the client has been registered.
    suspended: int  #: Number of queues on the node that are suspended now.
    turns: int  #: Turns of the scheduler; increases while it runs.
    lost_marks: int  #: Marks of spans that were dropped because the buffer was full.
    why: str  #: Reason while not connected: one sentence.


def connect(
    name: str | None = None,
    *,
    role: str = "online",
    gpus: Iterable[int] | None = None,
    targets: Mapping[str, float] | None = None,
    socket: str | os.PathLike[str] | None = None,
    required: bool = False,
    timeout: float = 5.0,
) -> Client:
    """Returns a new client. Waits for the scheduler only if `required` is set.

    name      Name of the client in logs and policies.
              Default: the environment variable SLUICE_CLIENT_NAME, else the name of the program.
    role      "online", or "offline" for best-effort work.
    gpus      The driver's gpu_id numbers of the GPUs that the work uses.
              Default: the environment variable SLUICE_CLIENT_GPUS (for example "4231,51110"), else every GPU
              of the node.
    targets   Longest acceptable durations of "request", "ttft" and "itl" spans, in seconds. Policies
              use them. Default: the environment variable SLUICE_CLIENT_TARGETS (for example
              "ttft=0.4,itl=0.05").
    socket    Path of the scheduler's socket.
              Default: the environment variable SLUICE_CLIENT_SOCKET, else /run/sluice/clients.sock.
    required  True: connect() waits until the scheduler has registered the client. It raises Unavailable
              if the role is refused, or after `timeout` seconds.
              False: connect() never raises Unavailable, and logs one warning instead.

    Raises ValueError if an argument or an environment variable is invalid.
    """
    return open_client(settings(name, role, gpus, targets, socket), required, timeout)


def open_client(given: Settings, required: bool = False, timeout: float = 5.0) -> Client:
    try:
        client = Client(_load(), given)
    except OSError as error:
        if required:
            raise Unavailable(str(error)) from error
        _say_once(str(error))
        return Client(_Absent(str(error)), given)
    if required:
        client._wait_connected(timeout)
    else:
        later = threading.Timer(SAY_AFTER, _say_unless_connected, (weakref.ref(client),))
        later.daemon = True
        later.start()
    return client


class Client:
    """A client of the scheduler. connect() creates it.

    Any thread may call any method at any time. After close(), the methods do nothing. In a forked
    child, the first call registers a new client, which has no work in flight.
    """

    def __init__(self, library: _library.Library | _Absent, given: Settings) -> None:
        self._library = library
        # A cell that close() empties; the functions refuse NULL.
        self._handle = ctypes.c_void_p()
        self._begin = library.begin
        self._end = library.end
        self._requests = itertools.count(1 << 32)
        _open(library, given, self._handle)
        self._closer = weakref.finalize(self, _close, library, self._handle)
        self._busy = _Busy(self)

    def begin(self) -> None:
        """Begins online work. Use this method where `with client.busy():` is not possible."""
        if self._begin(self._handle):
            self._trouble()

    def end(self) -> None:
        """Ends online work. Does nothing if no online work is in flight."""
        self._end(self._handle)

    @overload
    def busy(self) -> _Busy: ...
    @overload
    def busy(self, function: Function) -> Function: ...
    def busy(self, function: Function | None = None) -> _Busy | Function:
        """Marks a block as online work:

            with client.busy(): ...
            async with client.busy(): ...

        or a function, a coroutine, or a (synchronous or asynchronous) generator:

            @client.busy
            async def answer(question): ...
        """
        return self._busy if function is None else self._busy(function)

    def acquire(self, timeout: float = 1.0) -> _Acquire:
        """Like busy(), but first waits until no offline work is on the GPUs, for at most `timeout` seconds
        (0 to 60). The value is True if the GPUs are clear:

            async with client.acquire(timeout=0.05) as clear: ...

        The value is False at once if there is no scheduler, or if the scheduler has not registered the
        client, has refused it, or only observes. If the node is paused, acquire() does not wait: the value
        is True only if no offline work is on the GPUs. `with` blocks the thread; `async with` does not.
        """
        return _Acquire(self, timeout)

    def span(self, kind: str, request: int | str | None = None) -> _Span:
        """Marks a block as a span: `with client.span(...)`. Policies with targets use spans.

        A "request" lasts from arrival to the last byte, a "ttft" from arrival to the first token, and an
        "itl" from one token to the next.

        kind     "request", "ttft" or "itl".
        request  Number or name of the request, unique among the client's open spans of this kind.
                 Default: a new number.
        """
        return _Span(self, span_number(kind), self.new_request() if request is None else request)

    def new_request(self) -> int:
        """Returns a new request number for spans. The numbers of a client never repeat."""
        return next(self._requests)

    def begin_span(self, kind: str, request: int | str, since: int | None = None) -> None:
        """Begins a span. If this span is already open, ends it and begins it again, so one call per token
        marks every token.

        since  Time when the span began, as time.monotonic_ns() returns it. Default: now.
        """
        number = span_number(kind)
        if since is None:
            self._library.begin_span(self._handle, number, _request_number(request))
        else:
            self._library.begin_span_since(self._handle, number, _request_number(request), since)

    def end_span(self, kind: str, request: int | str) -> None:
        """Ends a span."""
        self._library.end_span(self._handle, span_number(kind), _request_number(request))

    def status(self) -> Status:
        """Returns the state of the client. Sends no message to the scheduler."""
        seen = _library.Status(size=ctypes.sizeof(_library.Status))
        failed = self._library.get_status(self._handle, seen)
        return Status(
            connected=bool(seen.connected),
            role={number: word for word, number in _library.ROLES.items()}.get(seen.role),
            mode=_library.MODES.get(seen.mode, str(seen.mode)),
            error=-failed or -seen.error,
            scheduler_pid=seen.scheduler_pid,
            in_flight=seen.in_flight,
            connections=seen.connections,
            suspended=seen.suspended,
            turns=seen.turns,
            lost_marks=seen.lost_marks,
            why=self._why() if failed else seen.why.decode(errors="replace"),
        )

    def close(self) -> None:
        """Closes the client. Its work in flight counts as ended. The end of the program also closes it."""
        self._closer()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        seen = self.status()
        return f"<sluice.Client {'connected as ' + str(seen.role) if seen.connected else seen.why}>"

    def _why(self) -> str:
        return self._library.last_error().decode(errors="replace") if self._closer.alive else "closed"

    def _trouble(self) -> None:
        """Logs why begin() failed. Logs no line after close()."""
        if self._closer.alive:
            _say_once(self._why())

    def _wait_connected(self, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        while not (seen := self.status()).connected:
            if seen.error == errno.EACCES or time.monotonic() >= deadline:
                self.close()
                raise Unavailable(seen.why)
            time.sleep(0.001)

    # Waits -----------------------------------------------------------------------------------------

    def _start_wait(self, deadline: float, done: Callable[[bool], None]) -> _Wait | None:
        """Returns None if the client has too many open waits."""
        token = next(_tokens)
        _waits[token] = done
        left = max(0, round((deadline - time.monotonic()) * NS_PER_S))
        number = self._library.wait(self._handle, left, _answered, token)
        if number > 0:
            return _Wait(self, token, number)
        del _waits[token]
        if number == -errno.EAGAIN:
            return None
        done(False)
        return _Wait(self, token, 0)

    async def _clear(self, timeout: float) -> bool:
        loop = asyncio.get_running_loop()
        deadline = time.monotonic() + timeout
        while True:
            answer: asyncio.Future[bool] = loop.create_future()
            one = self._start_wait(deadline, functools.partial(_answer_loop, loop, answer))
            if one is not None:
                try:
                    return await answer
                finally:
                    one.stop()
            if time.monotonic() >= deadline:
                return False
            await asyncio.sleep(RETRY)

    def _clear_blocking(self, timeout: float) -> bool:
        deadline = time.monotonic() + timeout
        while True:
            answers: queue.SimpleQueue[bool] = queue.SimpleQueue()
            one = self._start_wait(deadline, answers.put)
            if one is not None:
                try:
                    return answers.get()
                finally:
                    one.stop()
            if time.monotonic() >= deadline:
                return False
            time.sleep(RETRY)


class _Busy:
    """Context manager and decorator. It has no state, so all threads and tasks of a client share one."""

    __slots__ = ("_client", "_begin", "_end", "_handle")

    def __init__(self, client: Client) -> None:
        self._client = client
        self._begin = client._begin
        self._end = client._end
        self._handle = client._handle

    def __enter__(self) -> None:
        if self._begin(self._handle):
            self._client._trouble()

    def __exit__(self, *_: object) -> None:
        self._end(self._handle)

    async def __aenter__(self) -> None:
        self.__enter__()

    async def __aexit__(self, *_: object) -> None:
        self._end(self._handle)

    def __call__(self, function: Function) -> Function:
        """Returns the function, wrapped so that online work is in flight while it runs."""
        made: Callable[..., Any]
        if inspect.isasyncgenfunction(function):

            @functools.wraps(function)
            async def made(*args: Any, **named: Any) -> Any:
                items = function(*args, **named)
                with self:
                    try:
                        async for item in items:
                            yield item
                    finally:
                        await items.aclose()

        elif inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def made(*args: Any, **named: Any) -> Any:
                with self:
                    return await function(*args, **named)

        elif inspect.isgeneratorfunction(function):

            @functools.wraps(function)
            def made(*args: Any, **named: Any) -> Any:
                with self:
                    return (yield from function(*args, **named))

        else:

            @functools.wraps(function)
            def made(*args: Any, **named: Any) -> Any:
                with self:
                    return function(*args, **named)

        return made  # type: ignore[return-value]


class _Acquire:
    __slots__ = ("_client", "_timeout")

    def __init__(self, client: Client, timeout: float) -> None:
        if not 0 <= timeout <= LONGEST_WAIT:
            raise ValueError(f"invalid timeout {timeout!r}: expected 0 to {LONGEST_WAIT} seconds")
        self._client = client
        self._timeout = timeout

    def __enter__(self) -> bool:
        self._client.begin()
        try:
            return self._client._clear_blocking(self._timeout)
        except BaseException:
            self._client.end()
            raise

    def __exit__(self, *_: object) -> None:
        self._client.end()

    async def __aenter__(self) -> bool:
        self._client.begin()
        try:
            return await self._client._clear(self._timeout)
        except BaseException:
            self._client.end()
            raise

    async def __aexit__(self, *_: object) -> None:
        self._client.end()


class _Span:
    __slots__ = ("_client", "_kind", "_request")

    def __init__(self, client: Client, kind: int, request: int | str) -> None:
        self._client = client
        self._kind = kind
        self._request = _request_number(request)

    def __enter__(self) -> None:
        self._client._library.begin_span(self._client._handle, self._kind, self._request)

    def __exit__(self, *_: object) -> None:
        self._client._library.end_span(self._client._handle, self._kind, self._request)


# What the library's thread calls -------------------------------------------------------------------

LONGEST_WAIT = 60  # Seconds; the library's.
RETRY = 0.001  # Seconds: the library takes 64 waits of a client at a time.

_tokens = itertools.count(1)
_waits: dict[int, Callable[[bool], None]] = {}


@_library.Clear  # type: ignore[misc]
def _answered(token: int, clear: int) -> None:
    done = _waits.pop(token, None)
    if done is not None:
        done(bool(clear))


class _Wait(NamedTuple):
    client: Client
    token: int
    number: int

    def stop(self) -> None:
        """Cancels the wait. Does nothing if the scheduler has already answered."""
        if _waits.pop(self.token, None) is not None:
            self.client._library.stop_waiting(self.client._handle, self.number)


def _answer_loop(loop: asyncio.AbstractEventLoop, answer: asyncio.Future[bool], clear: bool) -> None:
    try:
        loop.call_soon_threadsafe(_answer, answer, clear)
    except RuntimeError:
        pass  # The loop is closed: nobody waits any more.


def _answer(answer: asyncio.Future[bool], clear: bool) -> None:
    if not answer.done():
        answer.set_result(clear)


# Opening, closing, and doing without ----------------------------------------------------------------


class _Absent:
    """Replaces a library that could not be loaded."""

    def __init__(self, why: str) -> None:
        self._why = why.encode(errors="replace")

    def last_error(self) -> bytes:
        return self._why

    def get_status(self, *_: object) -> int:
        return -errno.ELIBACC

    def wait(self, *_: object) -> int:
        return -errno.ELIBACC

    def open(self, *_: object) -> int:
        return 0

    begin = end = begin_span = begin_span_since = end_span = stop_waiting = close = open


@functools.lru_cache(maxsize=None)
def _load_from(_: str | None) -> _library.Library:
    return _library.load()


def _load() -> _library.Library:
    return _load_from(os.environ.get("SLUICE_CLIENT_LIBRARY"))


def _open(library: _library.Library | _Absent, given: Settings, handle: ctypes.c_void_p) -> None:
    options = _library.Options(
        size=ctypes.sizeof(_library.Options),
        role=given.role,
        socket=given.socket,
        name=given.name,
        gpus=(ctypes.c_uint32 * len(given.gpus))(*given.gpus),
        gpu_count=len(given.gpus),
        targets=given.targets,
    )
    failed = library.open(options, handle)
    if failed:
        raise OSError(-failed, library.last_error().decode(errors="replace"))


def _close(library: _library.Library | _Absent, handle: ctypes.c_void_p) -> None:
    value, handle.value = handle.value, None
    if value and library.close(value) == -errno.EDEADLK:
        # The garbage collector came by on the library's own thread.
        threading.Thread(target=library.close, args=(value,)).start()


def _request_number(request: int | str) -> int:
    return (request if isinstance(request, int) else hash(request)) & 0xFFFF_FFFF_FFFF_FFFF


def _say_unless_connected(client: weakref.ref[Client]) -> None:
    there = client()
    if there is not None and there._closer.alive and not (seen := there.status()).connected:
        _say_once(seen.why)


@functools.lru_cache(maxsize=16)
def _say_once(why: str) -> None:
    log.warning("this process is not connected to the sluice scheduler: %s", why)
