"""Notifies the sluice scheduler when this Python program has online work.

    import sluice

    client = sluice.connect(name="chat", targets={"ttft": 0.4})

    with client.busy():           # The scheduler suspends offline work while this runs.
        answer = model(question)

Programs also work without sluice. If the library, the scheduler or the grant of the role is missing,
calls succeed without effect, and one warning is logged.
"""

from ._client import Client, Status, Unavailable, connect

__all__ = ["Client", "Status", "Unavailable", "connect"]
__version__ = "0.1.0"
