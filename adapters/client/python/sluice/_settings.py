"""Settings of a client. The environment contains the defaults of the caller's arguments."""

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
    """Returns the checked settings. Raises ValueError if a setting is invalid."""
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
        raise ValueError(f"invalid {what} {word!r}: expected one of {', '.join(known)}") from None


def _name(name: str | None) -> bytes:
    if name:
        found = os.fsencode(name)
        if len(found) > MOST_NAME or b"\0" in found:
            raise ValueError(f"invalid client name {name!r}: expected at most {MOST_NAME} bytes without NUL")
        return found
    program = os.path.basename(sys.argv[0] if sys.argv else "")
    return os.fsencode(program.removesuffix(".py") or "python")[:MOST_NAME]


def _gpus(gpus: Iterable[int]) -> tuple[int, ...]:
    found = tuple(gpus)
    if len(found) > MOST_GPUS or not all(isinstance(one, int) and 0 < one < 1 << 32 for one in found):
        raise ValueError(f"invalid gpus {found!r}: expected at most {MOST_GPUS} gpu_id numbers of the driver")
    return found


def _targets(targets: Mapping[str, float]) -> tuple[int, int, int]:
    found = [0, 0, 0]
    for kind, seconds in targets.items():
        if not (isinstance(seconds, (int, float)) and math.isfinite(seconds) and 0 < seconds < 1e6):
            raise ValueError(f"invalid target {seconds!r} of {kind!r}: expected a time above 0, in seconds")
        found[span_number(kind)] = round(seconds * 1e9)
    return found[0], found[1], found[2]


def _gpus_of_environment() -> list[int]:
    text = os.environ.get("SLUICE_CLIENT_GPUS", "")
    try:
        return [int(one) for one in text.split(",") if one.strip()]
    except ValueError:
        raise ValueError(
            f"invalid SLUICE_CLIENT_GPUS {text!r}: expected gpu_id numbers, for example 4231,51110"
        ) from None


def _targets_of_environment() -> dict[str, float]:
    text = os.environ.get("SLUICE_CLIENT_TARGETS", "")
    try:
        pairs = [one.split("=") for one in text.split(",") if one.strip()]
        return {kind.strip(): float(seconds) for kind, seconds in pairs}
    except ValueError:
        raise ValueError(
            f"invalid SLUICE_CLIENT_TARGETS {text!r}: expected KIND=SECONDS, for example ttft=0.4,itl=0.05"
        ) from None
