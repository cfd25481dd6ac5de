"""usage: relay.py SECONDS PORT HOST HOST_PORT

Passes on what comes to PORT of this machine to HOST, and back, each byte that many seconds later."""

import asyncio
import sys

DELAY = float(sys.argv[1])


async def pass_on(source, sink):
    loop, waiting = asyncio.get_running_loop(), asyncio.Queue()

    async def read():
        while data := await source.read(65536):
            waiting.put_nowait((loop.time() + DELAY, data))
        waiting.put_nowait(None)

    reading = asyncio.create_task(read())
    while item := await waiting.get():
        await asyncio.sleep(item[0] - loop.time())
        sink.write(item[1])
        await sink.drain()
    sink.close()
    await reading


async def serve(reader, writer):
    there, back = await asyncio.open_connection(sys.argv[3], int(sys.argv[4]))
    await asyncio.gather(pass_on(reader, back), pass_on(there, writer), return_exceptions=True)


async def main():
    async with await asyncio.start_server(serve, "127.0.0.1", int(sys.argv[2])) as server:
        await server.serve_forever()

asyncio.run(main())
