"""The policy of break_even.cpp in Python. To test that it loads: `sluice policy break_even.py`."""
from sluice_policy import NEVER, OFFLINE, export, number, span


class BreakEven:
    def __init__(self, factor, least):
        self.factor, self.least = factor, least

    def decide(self, seen, out):
        for group in seen.changed:
            self.declare(seen, group, out)
        for event in seen.events:
            gpu = seen.gpu(event.gpu)
            for group in gpu.offline if gpu else ():
                self.declare(seen, group, out)

    def declare(self, seen, number, out):
        group = seen.group(number)
        if group is None or group.role != OFFLINE:
            return
        until = max((self.wanted(seen.gpu(gpu)) for gpu in group.gpus), default=0)
        if until > seen.now:
            out.hold(number, until)
        else:
            out.run(number)

    def wanted(self, gpu):
        """Returns the time until which the GPU is kept free for online work."""
        if gpu is None or gpu.last_begin == 0:
            return 0
        if gpu.online_in_flight:
            return NEVER
        return gpu.last_end + max(self.least,
                                  int(self.factor * (gpu.suspend_cost + gpu.resume_cost)))


sluice_get_policy_plugin = export(
    "break_even", "resume offline work when online work has paused for as long as a suspend and a resume take",
    [number("factor", 1, 0, 100, "length of this pause, relative to a suspend and a resume"),
     span("least", 1_000_000, 0, 1_000_000_000, "minimum length of this pause")], BreakEven)
