#!/usr/bin/env python3
"""Changes a rule of the simulated device, one at a time, and expects that the recorded calls find it.

usage: mutations.py [--build DIR] [RULE...]

For each rule it builds a simulated device that breaks the rule, from a copy of the sources in
build/mutations, and runs tests/conformance/cases.calls on it. Without RULE it tries all of them.
It prints the first difference for each rule. If the calls find no difference, it exits with 1.
Needs kfd_calls of a release build.
"""
import argparse
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading

TOP = pathlib.Path(__file__).resolve().parents[2]
WORK = TOP / "build/mutations"
SOURCES = "adapters/sim/src/"
LONGEST = 300  # Seconds for all calls.

# A rule of the driver; the file that follows it; the text there, which occurs once; what replaces it.
MUTATIONS = [
    ("SUSPEND_QUEUES skips new queues", "driver_debug.cpp",
     "return (queue.exception_status & new_bit) == 0 && !queue.being_destroyed;", "return !queue.being_destroyed;"),
    ("an interrupted DESTROY_QUEUE leaves the queue as it was", "driver_queues.cpp",
     "if (profile_.has_fixes_of_2026()) q->being_destroyed = false;", ""),
    ("SUSPEND_QUEUES marks ids without a queue", "driver_debug.cpp",
     "for (auto& id : ids) id |= uapi::KFD_DBG_QUEUE_INVALID_MASK;", ""),
    ("SUSPEND_QUEUES clears exceptions of suspended queues", "driver_debug.cpp",
     "q->exception_status &= ~exception_mask;  // Those skipped as new included.", "{}"),
    ("RESUME_QUEUES without an array resumes all queues", "driver_debug.cpp",
     "if (args.queue_array_ptr == 0) co_return co_await resume(target, nullptr);",
     "if (args.queue_array_ptr == 0) co_return 0;"),
    ("DISABLE resumes the queues", "driver_debug.cpp",
     "co_await resume(target, nullptr);\n  target->debug_flags = 0;", "target->debug_flags = 0;"),
    ("a second ENABLE is refused", "driver_debug.cpp",
     "if (target->debug_enabled) co_return -EALREADY;", ""),
    ("only a tracer or the debugger may debug", "driver_debug.cpp",
     "if (!allowed) co_return -EPERM;", ""),
    ("settings of the hardware need an enabled runtime", "driver_debug.cpp",
     "if (is_hardware_operation(args.op) &&", "if (false && is_hardware_operation(args.op) &&"),
    ("a runtime is enabled before the first queue is created", "driver_debug.cpp",
     "if (!process->queues.empty()) co_return -EEXIST;", ""),
    ("a snapshot counts queues for which there is no room", "driver_debug.cpp",
     "at += stride;\n    }\n    ++args.num_queues;", "at += stride;\n      ++args.num_queues;\n    }"),
    ("a query clears only the exceptions that are requested", "driver_debug.cpp",
     "status &= ~clear;\n    return true;", "status = 0;\n    return true;"),
    ("a GPU has four watch points", "driver_debug.cpp",
     "while (id < taken.size() && taken.test(id)) ++id;", "while (id + 1 < taken.size() && taken.test(id)) ++id;"),
    ("the trap mask is restricted to what the GPU supports", "driver_debug.cpp",
     "if ((requested & ~o.support_request_mask) != 0) co_return -EACCES;", ""),
    ("the end of a debugger ends its sessions", "driver.cpp",
     "co_await trap_disable(target);\n    --process->debugged;", ""),
    ("a debugger ends only sessions that the driver counts", "driver.cpp",
     "if (process->debugged <= 0) break;", ""),
    ("a call comes from the process that opened the file", "driver.cpp",
     "if (os_.leader_of(tid) != process->pid && ", "if (false && os_.leader_of(tid) != process->pid && "),
    ("one process uses an address space", "driver.cpp",
     "if (used.render >= 0 && os_.same_file(used.render, fd)) return -EINVAL;", ""),
    ("a new queue gets the lowest free id", "driver_queues.cpp",
     "std::uint32_t id = 0;\n  while (id < process->queue_ids.size() && process->queue_ids.test(id)) ++id;",
     "std::uint32_t id = 100;\n  while (id < process->queue_ids.size() && process->queue_ids.test(id)) ++id;"),
    ("DESTROY_QUEUE waits while a debugger holds the queue", "driver_queues.cpp",
     "if (process->debug_enabled && q->suspended) {", "if (false) {"),
    ("a queue of an evicted process is evicted", "driver_queues.cpp",
     "q->evicted = device->evictions > 0;", ""),
    ("CU masks name pairs of compute units", "driver_queues.cpp",
     "if (((word ^ (word >> 1U)) & 0x55555555U) != 0) co_return -EINVAL;", ""),
    ("a snapshot lists the newest queue first", "driver_queues.cpp",
     "process->queues.insert(process->queues.begin(), q);", "process->queues.push_back(q);"),
    ("memory of queues is not freed", "driver_memory.cpp",
     "if (!object->queues.empty()) return -EBUSY;", ""),
    ("a closed descriptor keeps no memory", "driver_files.cpp", "dmabufs_.erase(number);", ""),
    ("an import on its own GPU shares the memory", "driver_memory.cpp",
     "if (&shared->gpu != &node) {", "{"),
    ("buffers that share memory share a handle", "driver_memory.cpp",
     "object.memory->gpu.handles.erase(object.handle);", "(void)object;"),
    ("hang_hws resets the GPU", "driver_faults.cpp",
     "node.failing = failing_cycle{profile_.preemption_timeout};", ""),
    ("a control stack has the size for all waves", "driver_memory.cpp",
     "queue.control_stack_size != wanted.control_stack ||", ""),
    ("mapped addresses do not overlap", "driver_memory.cpp",
     "object.address < other.address + other.memory->size)\n        return -EINVAL;",
     "object.address < other.address + other.memory->size)\n        continue;"),
    ("an event that resets itself wakes one waiter", "driver_events.cpp",
     "event.signaled = event.signaled && !event.auto_reset;", ""),
    ("WAIT_EVENTS waits for all events if requested", "driver_events.cpp",
     "const bool all = args.wait_for_all != 0;", "const bool all = false;"),
    ("CRIU evicts once, however often it is called", "driver_evict.cpp",
     "if (!process->queues_paused || !profile_.has_fixes_of_2026()) {", "{"),
    ("a page fault evicts a process without a debugger", "driver_evict.cpp",
     "co_await evict(process, node, std::nullopt);", "if (false) co_await evict(process, node, std::nullopt);"),
    ("an SMI client gets only the events of its mask", "driver_smi.cpp",
     "if ((client.events & mask_of(event)) == 0) return false;", ""),
]


def copy_sources():
    """Copies what git knows or would add, and leaves unchanged files as they are."""
    listed = subprocess.run(["git", "-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others",
                             "--exclude-standard"], cwd=TOP, check=True, capture_output=True, text=True).stdout
    for name in filter(None, listed.split("\0")):
        source, copy = TOP / name, WORK / "source" / name
        if not source.is_file():
            continue
        if copy.is_file() and copy.read_bytes() == source.read_bytes():
            continue
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(source.read_bytes())


def build():
    made = subprocess.run(["cmake", "--build", WORK / "build", "--target", "sluice-sim"], capture_output=True, text=True)
    if made.returncode != 0:
        sys.exit(f"mutations.py: cannot build: {made.stdout}{made.stderr}")


def first_difference(build_folder, device):
    """Returns the first difference that kfd_calls prints, or None."""
    command = [TOP / "examples/with_simulated_gpu.sh", "--profile", TOP / f"tests/conformance/gfx{device}.toml",
               build_folder / "bin/kfd_calls", "--check", TOP / "tests/conformance/cases.calls"]
    found = None
    with tempfile.TemporaryFile("w+") as errors:
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True,
                              env=os.environ | {"SLUICE_SIM": str(WORK / "build/bin/sluice-sim")}) as running:
            hangs = threading.Timer(LONGEST, os.killpg, (running.pid, signal.SIGTERM))
            hangs.start()
            for line in running.stdout:
                if line.startswith("line "):
                    # The case; what was expected; the result. The other cases may wait long.
                    lines = (line, next(running.stdout, ""), next(running.stdout, ""))
                    found = " ".join(each.strip() for each in lines)
                    os.killpg(running.pid, signal.SIGTERM)
                    break
        hangs.cancel()
        errors.seek(0)
        said = errors.read()
    if not found and running.returncode == -signal.SIGTERM:
        return f"calls that did not end within {LONGEST} s"
    if "simulated device exited" in said or (not found and running.returncode != 0):
        sys.exit(f"mutations.py: the simulated device or kfd_calls failed (code {running.returncode}): {said}")
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build/release")
    parser.add_argument("rules", nargs="*", metavar="RULE")
    asked = parser.parse_args()
    unknown = set(asked.rules) - {rule for rule, *_ in MUTATIONS}
    if unknown:
        parser.error(f"unknown rule '{unknown.pop()}'")

    if os.geteuid() != 0:
        sys.exit("mutations.py: run this as root, which the simulated device needs")
    copy_sources()
    subprocess.run(["cmake", "-S", WORK / "source", "-B", WORK / "build", "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Debug",
                    "-DCMAKE_CXX_FLAGS=-O0 -g0", "-DSLUICE_FAST_BUILD=ON"], check=True, stdout=subprocess.DEVNULL)
    build()
    devices = ("942", "1100")
    for device in devices:
        if difference := first_difference(TOP / asked.build, device):
            sys.exit(f"mutations.py: a difference without a change of the sources, gfx{device}: {difference}")

    missed = 0
    for rule, file, text, replacement in MUTATIONS:
        if asked.rules and rule not in asked.rules:
            continue
        path = WORK / "source" / SOURCES / file
        original = path.read_text()
        if original.count(text) != 1:
            sys.exit(f"mutations.py: {file} has {original.count(text)} times the text of the rule '{rule}'")
        path.write_text(original.replace(text, replacement))
        try:
            build()
            found = next(filter(None, (first_difference(TOP / asked.build, device) for device in devices)), None)
        finally:
            path.write_text(original)
        print(f"{rule}: {found or 'NOT FOUND'}", flush=True)
        missed += found is None
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
