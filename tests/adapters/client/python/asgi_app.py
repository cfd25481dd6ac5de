"""The server of asgi_test.py. A request waits at its gate until a file of that name is there."""

import asyncio
import importlib
import os
import time

from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Route, WebSocketRoute


async def at_gate(request):
    path = os.path.join(os.environ["SLUICE_TEST_GATES"], request.query_params["gate"])
    while not os.path.exists(path):
        await asyncio.sleep(0.002)


async def plain(request):
    await request.body()
    await at_gate(request)
    return PlainTextResponse(str(os.getpid()))


async def stream(request):
    async def parts():
        yield "1"
        await at_gate(request)
        yield "2"
        yield "3"

    return StreamingResponse(parts())


async def raises(request):
    await at_gate(request)
    raise RuntimeError("as the test wants it")


async def raises_midway(request):
    async def parts():
        yield "1"
        await at_gate(request)
        raise RuntimeError("as the test wants it")

    return StreamingResponse(parts())


async def background(request):
    return PlainTextResponse("answered", background=BackgroundTask(at_gate, request))


async def blocks(request):
    """Keeps this worker from taking anything else."""
    path = os.path.join(os.environ["SLUICE_TEST_GATES"], request.query_params["gate"])
    while not os.path.exists(path):
        time.sleep(0.002)
    return PlainTextResponse(str(os.getpid()))


async def echo(socket):
    await socket.accept()
    await socket.send_text(await socket.receive_text())
    await socket.receive_text()


app = Starlette(
    routes=[
        Route("/v1/plain", plain, methods=["POST"]),
        Route("/v1/stream", stream),
        Route("/v1/raises", raises),
        Route("/v1/raises_midway", raises_midway),
        Route("/v1/background", background),
        Route("/v1/blocks", blocks),
        Route("/health", plain),
        WebSocketRoute("/v1/socket", echo),
    ]
)

# As `--middleware sluice.asgi.Busy` of a server does it: by name, and with no arguments.
module, name = "sluice.asgi.Busy".rsplit(".", 1)
app.add_middleware(getattr(importlib.import_module(module), name))
