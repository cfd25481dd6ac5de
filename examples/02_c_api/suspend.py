#!/usr/bin/env python3
"""Suspend the GPU queues of process PID for MILLISECONDS (default 500).

usage: suspend.py PID [MILLISECONDS]

The script calls the C API through ctypes, so you do not compile anything. When the script ends for
any reason, the queues are resumed. Set $SLUICE_KFD_LIBRARY to the path of libsluice_kfd.so. If it is
not set, the script searches the system's library path.

Expected output for a process with one queue:
  process 4242, queue 0 on GPU 51110: priority 7, 65536 bytes
  suspended for 500 ms
  resumed
"""
import ctypes
import os
import sys
import time

ALL_QUEUES = 0xFFFFFFFF
COMPUTE = 0


class QueueRef(ctypes.Structure):
    """sluice_kfd_queue_ref"""

    _fields_ = [
        ("pid", ctypes.c_int32),
        ("queue_id", ctypes.c_uint32),
        ("gpu_id", ctypes.c_uint32),
        ("status", ctypes.c_int32),
    ]


class Queue(ctypes.Structure):
    """sluice_kfd_queue"""

    _fields_ = [
        ("pid", ctypes.c_int32),
        ("queue_id", ctypes.c_uint32),
        ("gpu_id", ctypes.c_uint32),
        ("type", ctypes.c_uint32),
        ("priority", ctypes.c_int32),
        ("flags", ctypes.c_uint32),
        ("ring_bytes", ctypes.c_uint64),
        ("start_time", ctypes.c_uint64),
    ]


def load():
    name = os.environ.get("SLUICE_KFD_LIBRARY", "libsluice_kfd.so.0")
    try:
        library = ctypes.CDLL(name)
        library.sluice_kfd_version()
    except OSError as error:
        raise OSError(f"cannot load the library: {error}; build or install libsluice_kfd.so and "
                      "set its path in SLUICE_KFD_LIBRARY") from error
    except AttributeError as error:
        raise OSError(f"{name} is not libsluice_kfd.so; set its path in SLUICE_KFD_LIBRARY") from error
    handle, size, queues = ctypes.c_void_p, ctypes.c_size_t, ctypes.POINTER(Queue)
    refs = ctypes.POINTER(QueueRef)
    library.sluice_kfd_last_error.restype = ctypes.c_char_p
    library.sluice_kfd_init.argtypes = [ctypes.c_void_p, ctypes.POINTER(handle)]
    library.sluice_kfd_cleanup.argtypes = [handle]
    library.sluice_kfd_suspend_queues.argtypes = [handle, refs, size, ctypes.c_uint32]
    library.sluice_kfd_resume_queues.argtypes = [handle, refs, size, ctypes.c_uint32]
    library.sluice_kfd_find_queues_by_process.argtypes = [
        handle, ctypes.c_int32, size, ctypes.POINTER(queues), ctypes.POINTER(size)]
    library.sluice_kfd_free.argtypes = [queues]
    library.sluice_kfd_free.restype = None
    return library


def main():
    if len(sys.argv) == 2 and sys.argv[1] == "--help":
        print(__doc__)
        return 0
    given = sys.argv[1:]
    pid, milliseconds = [int(each) if each.isdecimal() else 0 for each in (given + ["500"])[:2]] \
        if given else (0, 0)
    # ctypes would cut larger numbers to 32 bits, and name another process.
    if len(given) > 2 or not 0 < pid < 2**31 or not 0 < milliseconds <= 3_600_000:
        print("suspend.py: expected PID [MILLISECONDS] (see --help)", file=sys.stderr)
        return 2

    try:
        kfd = load()
    except OSError as error:
        print(f"suspend.py: {error}", file=sys.stderr)
        return 1

    def check(result, least=0):
        if result < least:
            raise OSError(kfd.sluice_kfd_last_error().decode())

    handle = ctypes.c_void_p()
    try:
        check(kfd.sluice_kfd_init(None, ctypes.byref(handle)))
        queues, count = ctypes.POINTER(Queue)(), ctypes.c_size_t()
        check(kfd.sluice_kfd_find_queues_by_process(
            handle, pid, ctypes.sizeof(Queue), ctypes.byref(queues), ctypes.byref(count)))
        for queue in queues[:count.value]:
            print(f"process {queue.pid}, queue {queue.queue_id} on GPU {queue.gpu_id}: "
                  f"priority {queue.priority}, {queue.ring_bytes} bytes")
        compute = sum(queue.type == COMPUTE for queue in queues[:count.value])
        kfd.sluice_kfd_free(queues)
        if compute == 0:
            raise OSError(f"process {pid} has no compute queue; nothing was suspended")

        ref = QueueRef(pid=pid, queue_id=ALL_QUEUES)
        check(kfd.sluice_kfd_suspend_queues(handle, ctypes.byref(ref), 1, 0), least=1)
        print(f"suspended for {milliseconds} ms", flush=True)
        time.sleep(milliseconds / 1000)
        check(kfd.sluice_kfd_resume_queues(handle, ctypes.byref(ref), 1, 0), least=1)
        print("resumed")
    except KeyboardInterrupt:
        print("suspend.py: interrupted; resuming the queues", file=sys.stderr)
        return 130
    except OSError as error:
        print(f"suspend.py: {error}", file=sys.stderr)
        return 1
    finally:
        kfd.sluice_kfd_cleanup(handle)
    return 0


if __name__ == "__main__":
    sys.exit(main())
