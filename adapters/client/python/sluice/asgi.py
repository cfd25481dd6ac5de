"""ASGI middleware: online work from a request's arrival until its answer ends.

    app.add_middleware(sluice.asgi.Busy)        # Starlette, FastAPI
    app = sluice.asgi.Busy(app)                 # Any ASGI server
    vllm serve MODEL --middleware sluice.asgi.Busy
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

from ._client import Client, open_client
from ._settings import settings

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

#: What does not count where `paths` says nothing: what probes, monitoring and people look at.
IDLE_PATHS = (
    "/health",
    "/healthz",
    "/livez",
    "/readyz",
    "/ping",
    "/load",
    "/metrics",
    "/version",
    "/v1/models",
    "/docs",
    "/redoc",
    "/openapi.json",
)
IDLE_METHODS = ("HEAD", "OPTIONS")

#: Seconds after which a stream that goes on says so: the scheduler forgets what does not end within
#: its max_busy, 60 s unless configured.
RENEW_AFTER = 20.0


class Busy:
    """Holds client.busy() from a request's arrival, before its body is read, until the application
    hands over the last part of the answer's body, returns or raises, or is told that the peer has
    gone; a websocket until it is closed. What the application does after that does not count.

    Of HTTP it also marks the spans: "request", "ttft" until the body's first part, and "itl" for each
    further part, so that a server that sends every token at once has its targets watched.

    app     the application.
    client  the application's; None: one of its own, made when this process starts up or has its
            first request, whatever was forked before.
    name    of its own client, as in sluice.connect(), which also says what the environment sets.
    paths   what counts: these paths and those below them; else SLUICE_ASGI_PATHS ("/v1,/generate"),
            else all but IDLE_PATHS. HEAD and OPTIONS never count.
    """

    def __init__(
        self,
        app: App,
        client: Client | None = None,
        *,
        name: str | None = None,
        paths: Iterable[str] | None = None,
    ) -> None:
        self.app = app
        self._client = client
        self._settings = settings(name)  # Here, so that a mistake shows when the server starts.
        self._lock = threading.Lock()
        if paths is None:
            paths = [one for one in os.environ.get("SLUICE_ASGI_PATHS", "").split(",") if one.strip()]
        paths = [one.strip().rstrip("/") for one in paths]
        self._only = bool(paths)
        self._exactly = frozenset(paths or IDLE_PATHS)
        self._below = tuple(one + "/" for one in paths or IDLE_PATHS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        kind = scope["type"]
        if kind == "lifespan":
            self._own_client()
        if kind not in ("http", "websocket") or not self._counts(scope):
            await self.app(scope, receive, send)
            return
        answer = _Answer(self._own_client(), spans=kind == "http")

        async def heard() -> Message:
            message = await receive()
            if message["type"] in ("http.disconnect", "websocket.disconnect"):
                answer.end()
            return message

        async def say(message: Message) -> None:
            # Before it is sent: a peer that reads slowly must not keep the GPUs.
            answer.goes_on(message)
            await send(message)

        try:
            await self.app(scope, heard, say)
        finally:
            answer.end()

    def _own_client(self) -> Client:
        if self._client is None:
            with self._lock:
                if self._client is None:
                    self._client = open_client(self._settings)
        return self._client

    def _counts(self, scope: Scope) -> bool:
        if scope.get("method") in IDLE_METHODS:
            return False
        path = scope["path"]
        root = scope.get("root_path", "")
        if root and path.startswith(root + "/"):
            path = path[len(root) :]
        return (path in self._exactly or path.startswith(self._below)) == self._only


class _Answer:
    """One request: busy, and its spans."""

    __slots__ = ("_begun", "_client", "_open", "_request", "_token")

    def __init__(self, client: Client, spans: bool) -> None:
        self._client = client
        self._open = True
        self._request = client.new_request() if spans else 0  # 0: none are marked.
        self._token: str | None = "ttft" if spans else None  # The span that waits for a token.
        self._begun = time.monotonic()
        client.begin()
        if self._request:
            client.begin_span("request", self._request)
            client.begin_span("ttft", self._request)

    def goes_on(self, message: Message) -> None:
        kind = message["type"]
        if kind == "http.response.body":
            more = message.get("more_body", False)
            if message.get("body") and self._open:
                self._part(more)
            if not more:
                self.end()
        elif kind == "websocket.close":
            self.end()

    def _part(self, more: bool) -> None:
        if self._token == "ttft":
            self._client.end_span("ttft", self._request)
            self._token = None
        if more:
            self._client.begin_span("itl", self._request)
            self._token = "itl"
            self._renew()

    def _renew(self) -> None:
        now = time.monotonic()
        if now - self._begun >= RENEW_AFTER:
            self._begun = now
            self._client.begin()
            self._client.end()

    def end(self) -> None:
        if not self._open:
            return
        self._open = False
        self._client.end()
        if self._request:
            if self._token is not None:
                self._client.end_span(self._token, self._request)
            self._client.end_span("request", self._request)
