"""Tells the sluice scheduler, from a Python program, when it has online work.

    import sluice

    client = sluice.connect(name="chat", targets={"ttft": 0.4})

    with client.busy():           # Offline work makes room as long as anything is busy.
        answer = model(question)

Nothing here fails because sluice is not there: without the library, without a scheduler or without
a grant of the role everything works and nothing counts, and the log says so once.
"""

from ._client import Client, Status, Unavailable, connect

__all__ = ["Client", "Status", "Unavailable", "connect"]
__version__ = "0.1.0"
