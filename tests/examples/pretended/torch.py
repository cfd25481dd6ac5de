"""In place of PyTorch, for tests of programs: every attribute and call gives the same object, which computes nothing."""

import time


class Anything:
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *arguments, **named):
        return self

    __getitem__ = __call__

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def tolist(self):
        time.sleep(0.004)
        return [0.5] * 8

    def item(self):
        time.sleep(0.05)
        return 0.25


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return Anything()
