"""Loads libsluice_client.so with ctypes and declares its functions (sluice/client.h)."""

from __future__ import annotations

import ctypes
import os
import pathlib
import sysconfig
from ctypes import c_char, c_char_p, c_int, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from typing import Any

NAME = "libsluice_client.so.0"
ABI = 0  # SLUICE_CLIENT_VERSION_MAJOR
ROLES = {"online": 1, "offline": 2}
SPANS = {"request": 0, "ttft": 1, "itl": 2}
MODES = {0: "none", 1: "active", 2: "passive", 3: "stopping", 4: "observing"}
MOST_GPUS = 64


class Options(ctypes.Structure):
    _fields_ = [
        ("size", c_uint32),
        ("role", c_uint32),
        ("socket", c_char_p),
        ("name", c_char_p),
        ("gpus", ctypes.POINTER(c_uint32)),
        ("gpu_count", c_size_t),
        ("targets", c_int64 * 3),
    ]


class Status(ctypes.Structure):
    _fields_ = [
        ("size", c_uint32),
        ("connected", c_uint32),
        ("role", c_uint32),
        ("mode", c_uint32),
        ("error", c_int32),
        ("scheduler_pid", c_int32),
        ("in_flight", c_uint64),
        ("connections", c_uint64),
        ("suspended", c_uint64),
        ("turns", c_uint64),
        ("lost_marks", c_uint64),
        ("why", c_char * 240),
    ]


Clear = ctypes.CFUNCTYPE(None, c_void_p, c_int32)


class Library:
    """The library's functions. All except open and close keep the interpreter's lock.

    This is faster than releasing the interpreter's lock. It is also safe: the functions wait only for the
    library's own lock. The library holds its lock briefly, and never while its thread calls Python.
    close() empties the client's handle first, so no other function can use the released client.
    """

    def __init__(self, path: str) -> None:
        quick = ctypes.PyDLL(path)
        other = ctypes.CDLL(path)

        def function(source: ctypes.CDLL, name: str, result: Any, *arguments: Any) -> Any:
            made = getattr(source, "sluice_client_" + name)
            made.restype = result
            made.argtypes = arguments
            return made

        version = function(other, "version", c_uint32)() >> 16
        if version != ABI:
            raise OSError(f"{path} has ABI {version}, but this package needs ABI {ABI}")
        self.path = path
        self.begin = function(quick, "begin", c_int, c_void_p)
        self.end = function(quick, "end", c_int, c_void_p)
        self.begin_span = function(quick, "begin_span", c_int, c_void_p, c_uint32, c_uint64)
        self.begin_span_since = function(
            quick, "begin_span_since", c_int, c_void_p, c_uint32, c_uint64, c_int64
        )
        self.end_span = function(quick, "end_span", c_int, c_void_p, c_uint32, c_uint64)
        self.last_error = function(quick, "last_error", c_char_p)
        self.open = function(other, "open", c_int, ctypes.POINTER(Options), ctypes.POINTER(c_void_p))
        self.close = function(other, "close", c_int, c_void_p)
        self.wait = function(quick, "wait", c_int64, c_void_p, c_int64, Clear, c_void_p)
        self.stop_waiting = function(quick, "stop_waiting", c_int, c_void_p, c_int64)
        self.get_status = function(quick, "get_status", c_int, c_void_p, ctypes.POINTER(Status))


def candidates() -> list[str]:
    """Returns the possible paths of the library, in order of preference."""
    named = os.environ.get("SLUICE_CLIENT_LIBRARY")
    if named:
        return [named]
    # As CMake installs it: PREFIX/share/sluice/python/sluice/_library.py.
    beside = []
    here = pathlib.Path(__file__).resolve()
    if here.parts[-5:-2] == ("share", "sluice", "python"):
        multiarch = sysconfig.get_config_var("MULTIARCH") or ""
        beside = [here.parents[4] / "lib" / multiarch, here.parents[4] / "lib", here.parents[4] / "lib64"]
    return [str(one / NAME) for one in beside if (one / NAME).exists()] + [NAME]


def load() -> Library:
    """Returns the library. If it cannot be loaded, raises OSError with the errors of all attempts."""
    failed = []
    for path in candidates():
        try:
            return Library(path)
        except (OSError, AttributeError) as error:  # AttributeError: it lacks a function.
            failed.append(str(error))
    raise OSError(
        f"cannot load {NAME} ({'; '.join(failed)}); "
        f"install it, or set SLUICE_CLIENT_LIBRARY to its path"
    )
