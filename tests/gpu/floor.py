#!/usr/bin/env python3
"""usage: floor.py COUNT HELD_MS RUNNING_MS PID...

Suspends and resumes processes COUNT times by the driver's call alone, with one call for all of them, and prints how long
the calls took (us, p50 and p99) and the processor time of a suspend with its resume. No scheduler may manage them."""

import collections
import ctypes
import fcntl
import json
import os
import re
import signal
import struct
import sys
import time

import seeing

# adapters/nvidia/include/sluice/nvidia/uapi.hpp has the names and the source of these.
RM_CONTROL = 0xC020462A
GET_HANDLE_INFO, PARENT, CLASS = 0xD02, 1, 2
DISABLE_CHANNELS, MOST_CHANNELS = 0x2080110B, 64
ROOT_CLIENT, SUBDEVICE, CHANNEL_GROUP = 0x41, 0x2080, 0xA06C
FIRST_OBJECT, LAST_OBJECT = 0x5C000001, 0x5C0FFFFF
LONGEST_GAP = 1024  # Numbers in a row that no object has.
RARER_BY = 8
# A handle of a client, 0xc1d00000 to 0xc1dfffff, beside one of an object. Lookaheads, because matches can overlap.
PAIRS = (re.compile(rb"(?s)(?=(..[\xd0-\xdf]\xc1)..[\x00-\x0f]\x5c)"),
         re.compile(rb"(?s)(?=..[\x00-\x0f]\x5c(..[\xd0-\xdf]\xc1))"))
SYS_PIDFD_GETFD = 438
LIBC = ctypes.CDLL(None, use_errno=True)


def control(fd, client, target, command, parameters):
    """Makes a call. Returns the driver's status; 0: it succeeded."""
    call = bytearray(struct.pack("<IIIIQII", client, target, command, 0, ctypes.addressof(parameters),
                                 ctypes.sizeof(parameters), 0))
    fcntl.ioctl(fd, RM_CONTROL, call)
    return struct.unpack_from("<I", call, 28)[0]


def info(fd, client, handle, which):
    """The class or the parent of an object, or None if there is no such object."""
    parameters = ctypes.create_string_buffer(struct.pack("<IIQ", handle, which, 0), 16)
    if control(fd, client, client, GET_HANDLE_INFO, parameters) != 0:
        return None
    return struct.unpack_from("<I", parameters, 8)[0]


def count_handles(memory, counts):
    """Counts the handles of clients in a piece of memory that begins at a multiple of four bytes."""
    for pair in PAIRS:
        for found in pair.finditer(memory):
            if found.start() % 4 == 0:
                counts[struct.unpack("<I", found[1])[0]] += 1


def likely_clients(pid):
    """The handles that stand most often in the memory of a process. Each wrong guess would add lines to the kernel's
    log."""
    counts = collections.Counter()
    with open(f"/proc/{pid}/maps", encoding="utf-8") as maps, open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        for line in maps:
            fields = line.split()
            begin, end = (int(each, 16) for each in fields[0].split("-"))
            if fields[1] != "rw-p" or fields[5:] not in ([], ["[heap]"]) or end - begin > 64 << 20:
                continue
            try:
                count_handles(os.pread(memory.fileno(), end - begin, begin), counts)
            except OSError:
                continue
    return [handle for handle, places in counts.most_common(4) if RARER_BY * places >= counts.most_common(1)[0][1]]


def copies_of_device(pid):
    """Duplicates of the descriptors that a process has of the driver's control device."""
    pidfd = os.pidfd_open(pid)
    for number in sorted(map(int, os.listdir(f"/proc/{pid}/fd"))):
        try:
            if os.readlink(f"/proc/{pid}/fd/{number}") != "/dev/nvidiactl":
                continue
        except OSError:
            continue
        copy = LIBC.syscall(SYS_PIDFD_GETFD, pidfd, number, 0)
        if copy < 0:
            raise OSError(ctypes.get_errno(), f"cannot copy descriptor {number} of process {pid}")
        yield copy


def find_client(pid):
    """The descriptor and the handle of the client of a process."""
    copies = list(copies_of_device(pid))
    for handle in likely_clients(pid):
        for copy in copies:
            if info(copy, handle, handle, CLASS) == ROOT_CLIENT:
                return copy, handle
    raise LookupError(f"process {pid}: its client of the driver was not found")


def compute_channels(fd, client):
    """The channels of the groups that compute on one GPU, and that GPU's subdevice."""
    classes, missed = {}, 0
    for handle in range(FIRST_OBJECT, LAST_OBJECT):
        found = info(fd, client, handle, CLASS)
        missed = 0 if found is not None else missed + 1
        if found is not None:
            classes[handle] = found
        if missed == LONGEST_GAP:
            break
    parents = {handle: info(fd, client, handle, PARENT) for handle in classes}
    high = {handle: of for handle, of in classes.items() if of > 0xA000}
    computing = {parents.get(parents[handle]) for handle, of in high.items() if of & 0xFF == 0xC0}
    channels = [handle for handle, of in high.items() if of & 0xFF == 0x6F and parents[handle] in computing
                and classes.get(parents[handle]) == CHANNEL_GROUP]
    devices = {parents[parents[each]] for each in channels}
    subdevices = [handle for handle, of in classes.items() if of == SUBDEVICE and parents[handle] in devices]
    if len(devices) != 1 or not subdevices:
        raise LookupError(f"a process has channels on {len(devices)} GPUs; expected 1")
    return subdevices[0], channels


def disabling(names, disable):
    """The parameters of the call. names: pairs of client and channel."""
    made = bytearray(536)
    struct.pack_into("<BxxxI", made, 0, int(disable), len(names))
    for index, (client, channel) in enumerate(names):
        struct.pack_into("<I", made, 24 + 4 * index, client)
        struct.pack_into("<I", made, 280 + 4 * index, channel)
    return ctypes.create_string_buffer(bytes(made), len(made))


def main():
    count, held, running = int(sys.argv[1]), float(sys.argv[2]) / 1e3, float(sys.argv[3]) / 1e3
    names, at = [], None
    for pid in map(int, sys.argv[4:]):
        fd, client = find_client(pid)
        subdevice, channels = compute_channels(fd, client)
        names += [(client, channel) for channel in channels]
        at = at or (fd, client, subdevice)
    if len(names) > MOST_CHANNELS:
        raise LookupError(f"{len(names)} channels; a call takes at most {MOST_CHANNELS}")
    suspend, resume = disabling(names, True), disabling(names, False)
    took = {"suspend": [], "resume": []}
    processor = 0

    def timed(which, parameters):
        nonlocal processor
        begun, used = time.perf_counter_ns(), time.process_time_ns()
        status = control(*at, DISABLE_CHANNELS, parameters)
        processor += time.process_time_ns() - used
        took[which].append((time.perf_counter_ns() - begun) / 1e3)
        if status != 0:
            raise OSError(f"the driver refused to {which}: status {status:#x}")

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        for _ in range(count):
            timed("suspend", suspend)
            time.sleep(held)
            timed("resume", resume)
            time.sleep(running)
    finally:
        control(*at, DISABLE_CHANNELS, resume)  # One too many is harmless.
    shown = {which: [seeing.quantile(values, share) for share in (0.5, 0.99)] for which, values in took.items()}
    print(json.dumps({"channels": len(names), **shown, "processor": processor / 1e3 / count}))


if __name__ == "__main__":
    main()
