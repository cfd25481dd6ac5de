"""usage: online.py FILE

An online job: announces work while FILE exists, and prints when it begins and ends."""

import pathlib
import sys
import time

import sluice

wanted, client, busy = pathlib.Path(sys.argv[1]), sluice.connect(name="online.py", required=True), False
print("connected", flush=True)
while True:
    if wanted.exists() != busy:
        busy = not busy
        client.begin() if busy else client.end()
        print("busy" if busy else "idle", flush=True)
    time.sleep(0.005)
