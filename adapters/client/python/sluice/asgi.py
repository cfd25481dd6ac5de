"""ASGI middleware that announces online work from the arrival of a request to the end of its response.

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

#: Paths that do not count unless `paths` is given: those of probes, monitoring and documentation.
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
    """Middleware that calls client.busy() for each request.

    The online work of an HTTP request begins when the request arrives, before its body is read. It
    ends when the application sends the last part of the response body, returns, raises, or receives
    a disconnect message. The online work of a websocket ends when the websocket is closed. Work that
    the application does later does not count.

    For HTTP the middleware also marks spans: "request", "ttft" until the first part of the body, and
    "itl" for each further part. These spans are exact if each part of the body is one token.

    app     The application.
    client  The client to use. Default: each process creates its own client when it starts up or when
            it receives its first request. A forked process creates its own client, too.
    name    Name of the client that the middleware creates. Default and environment: see
            sluice.connect().
    paths   Requests of these paths, and of the paths below them, are online work. Default: the
            environment variable SLUICE_ASGI_PATHS (for example "/v1,/generate"), else all paths except
            IDLE_PATHS. HEAD and OPTIONS requests are never online work.
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
    """The busy period and spans of one request."""

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
