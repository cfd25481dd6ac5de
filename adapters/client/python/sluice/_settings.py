"""What a client is made with: the caller's words, and the environment's where the caller has none."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from ._library import MOST_GPUS, ROLES, SPANS

MOST_NAME = 63  # Bytes.


class Settings(NamedTuple):
    name: bytes
    role: int
    gpus: tuple[int, ...]
    targets: tuple[int, int, int]  # Nanoseconds, by kind of span; 0: none.
    socket: bytes | None


def settings(
    name: str | None = None,
    role: str = "online",
    gpus: Iterable[int] | None = None,
    targets: Mapping[str, float] | None = None,
    socket: str | os.PathLike[str] | None = None,
) -> Settings:
    """Raises ValueError with a sentence for what makes no sense."""
    return Settings(
        name=_name(name or os.environ.get("SLUICE_CLIENT_NAME")),
        role=_number(ROLES, role, "role"),
        gpus=_gpus(gpus if gpus is not None else _gpus_of_environment()),
        targets=_targets(targets if targets is not None else _targets_of_environment()),
        socket=os.fsencode(socket) if socket is not None else None,
    )


def span_number(kind: str) -> int:
    return _number(SPANS, kind, "span")


def _number(known: dict[str, int], word: str, what: str) -> int:
    try:
        return known[word]
    except (KeyError, TypeError):
        raise ValueError(f"{what} is {word!r}; it must be one of {', '.join(known)}") from None


def _name(name: str | None) -> bytes:
    if name:
        found = os.fsencode(name)
        if len(found) > MOST_NAME or b"\0" in found:
            raise ValueError(f"the client's name is {name!r}; at most {MOST_NAME} bytes are allowed")
        return found
    program = os.path.basename(sys.argv[0] if sys.argv else "")
    return os.fsencode(program.removesuffix(".py") or "python")[:MOST_NAME]


def _gpus(gpus: Iterable[int]) -> tuple[int, ...]:
    found = tuple(gpus)
    if len(found) > MOST_GPUS or not all(isinstance(one, int) and 0 < one < 1 << 32 for one in found):
        raise ValueError(f"gpus are {found!r}; they must be at most {MOST_GPUS} of the driver's gpu_id")
    return found


def _targets(targets: Mapping[str, float]) -> tuple[int, int, int]:
    found = [0, 0, 0]
    for kind, seconds in targets.items():
        if not (isinstance(seconds, (int, float)) and math.isfinite(seconds) and 0 < seconds < 1e6):
            raise ValueError(f"the target of {kind!r} is {seconds!r}; it must be in seconds, above 0")
        found[span_number(kind)] = round(seconds * 1e9)
    return found[0], found[1], found[2]


def _gpus_of_environment() -> list[int]:
    text = os.environ.get("SLUICE_CLIENT_GPUS", "")
    try:
        return [int(one) for one in text.split(",") if one.strip()]
    except ValueError:
        raise ValueError(f"SLUICE_CLIENT_GPUS is {text!r}; it must be like 4231,51110") from None


def _targets_of_environment() -> dict[str, float]:
    text = os.environ.get("SLUICE_CLIENT_TARGETS", "")
    try:
        pairs = [one.split("=") for one in text.split(",") if one.strip()]
        return {kind.strip(): float(seconds) for kind, seconds in pairs}
    except ValueError:
        raise ValueError(f"SLUICE_CLIENT_TARGETS is {text!r}; it must be like ttft=0.4,itl=0.05") from None
