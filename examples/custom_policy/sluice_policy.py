"""Support for policies in Python, without a compiler. Defines the structures of sluice/plugin.h with
ctypes. export() creates the descriptor of a policy from a class.

A policy is a class with `__init__(self, **parameters)` and `decide(self, seen, out)`. The structures
in `seen` are valid only during the call of decide(): copy numbers, and do not keep structures. Times
are in nanoseconds.
"""
import ctypes
import operator
import traceback

ABI = 2
NEVER = 2**63 - 1

FLAG, COUNT, NUMBER, SPAN, TEXT = range(5)  # sluice_parameter_kind
ONLINE_BEGIN, ONLINE_END, ONLINE_MOVED = range(3)  # sluice_event_kind, as the next line
SPAN_BEGIN, SPAN_END, SPAN_ABANDONED = range(3, 6)
REQUEST, TTFT, ITL = range(3)  # sluice_span_kind
WORK_UNKNOWN, WORK_WAITING, WORK_CONSUMED, WORK_FINISHED, WORK_RUNNING = range(5)  # sluice_online_work
UNMATCHED, ONLINE, OFFLINE = range(3)  # sluice_role
RUNNING, SUSPENDING, SUSPENDED, RESUMING, MIXED = range(5)  # sluice_run_state

_u32, _u64, _i64, _size = ctypes.c_uint32, ctypes.c_uint64, ctypes.c_int64, ctypes.c_size_t
_text, _any = ctypes.c_char_p, ctypes.c_void_p


class Value(ctypes.Structure):
    """sluice_value"""

    _fields_ = [("key", _text), ("kind", _u32), ("whole", _i64), ("number", ctypes.c_double),
                ("text", _text)]

    def get(self):
        if self.kind == FLAG:
            return self.whole != 0
        return {NUMBER: self.number, TEXT: self.text}.get(self.kind, self.whole)


class Parameter(ctypes.Structure):
    """sluice_parameter"""

    _fields_ = [("fallback", Value), ("optional", _u32), ("low", ctypes.c_double),
                ("high", ctypes.c_double), ("help", _text)]


class Event(ctypes.Structure):
    """sluice_event"""

    _fields_ = [("kind", _u32), ("gpu", _u32), ("client", _u64), ("count", _u32), ("span", _u32),
                ("at", _i64), ("request", _u64), ("length", _i64)]


class Gpu(ctypes.Structure):
    """sluice_gpu"""

    _fields_ = [("id", _u32), ("online_in_flight", _u32), ("lost", _u32), ("can_reserve", _u32),
                ("can_set_quantum", _u32), ("slots", _u32), ("work", _u32),
                ("can_see_work", _u32), ("suspend_cost", _i64), ("resume_cost", _i64), ("last_move", _i64),
                ("last_begin", _i64), ("last_end", _i64),
                ("_offline", ctypes.POINTER(_u64)), ("_offline_count", _size)]

    @property
    def offline(self):
        """The offline groups that have queues on this GPU."""
        return self._offline[:self._offline_count]


class Group(ctypes.Structure):
    """sluice_group"""

    _fields_ = [("id", _u64), ("role", _u32), ("state", _u32), ("manageable", _u32),
                ("priority", _u32), ("queues", _u32), ("_gpus", ctypes.POINTER(_u32)),
                ("_queues_on", ctypes.POINTER(_u32)), ("_gpu_count", _size),
                ("state_since", _i64)]

    @property
    def gpus(self):
        return self._gpus[:self._gpu_count]

    @property
    def queues_on(self):
        return self._queues_on[:self._gpu_count]


class Client(ctypes.Structure):
    """sluice_client"""

    _fields_ = [("id", _u64), ("_name", ctypes.POINTER(ctypes.c_char)), ("_name_length", _size),
                ("_gpus", ctypes.POINTER(_u32)), ("_gpu_count", _size), ("_targets", _i64 * 3)]

    @property
    def targets(self):
        """The longest acceptable spans, by REQUEST, TTFT and ITL. 0 if the client gave none."""
        return list(self._targets)

    @property
    def name(self):
        return self._name[:self._name_length].decode(errors="replace")

    @property
    def gpus(self):
        """The GPUs of the client. If empty, all GPUs of the node."""
        return self._gpus[:self._gpu_count]


class Snapshot(ctypes.Structure):
    """sluice_snapshot"""

    _fields_ = [("struct_size", _u32), ("now", _i64), ("turn", _u64),
                ("_events", ctypes.POINTER(Event)), ("_event_count", _size),
                ("_changed", ctypes.POINTER(_u64)), ("_changed_count", _size),
                ("_gpus", ctypes.POINTER(Gpu)), ("_gpu_count", _size),
                ("_find_group", ctypes.CFUNCTYPE(ctypes.c_int32, _any, _u64, _any)),
                ("_find_client", ctypes.CFUNCTYPE(ctypes.c_int32, _any, _u64, _any)),
                ("_find_gpu", ctypes.CFUNCTYPE(_any, _any, _u32)), ("_host", _any)]

    @property
    def events(self):
        return self._events[:self._event_count]

    @property
    def changed(self):
        return self._changed[:self._changed_count]

    @property
    def gpus(self):
        return self._gpus[:self._gpu_count]

    def _filled(self, find, what, number):
        return what if find(ctypes.addressof(self), number, ctypes.addressof(what)) else None

    def group(self, number):
        """Returns the group with this id, or None."""
        return self._filled(self._find_group, Group(), number)

    def client(self, number):
        return self._filled(self._find_client, Client(), number)

    def gpu(self, number):
        found = self._find_gpu(ctypes.addressof(self), number)
        return Gpu.from_address(found) if found else None


def _whole(call, name, value, least=None):
    try:
        value = operator.index(value)
    except TypeError:
        raise TypeError(f"{call}(): {name} must be a whole number, not {value!r}") from None
    if least is not None and value < least:
        raise ValueError(f"{call}(): {name} must be {least} or more, not {value}")
    return value


def _number(call, name, value):
    try:
        return operator.truediv(value, 1)
    except TypeError:
        raise TypeError(f"{call}(): {name} must be a number, not {value!r}") from None


class Sink(ctypes.Structure):
    """sluice_sink"""

    _fields_ = [("struct_size", _u32), ("_hold", ctypes.CFUNCTYPE(None, _any, _u64, _i64)),
                ("_run", ctypes.CFUNCTYPE(None, _any, _u64)),
                ("_wake_at", ctypes.CFUNCTYPE(None, _any, _i64)),
                ("_poll_pointers", ctypes.CFUNCTYPE(None, _any, _i64)),
                ("_reserve", ctypes.CFUNCTYPE(None, _any, _u32, ctypes.c_double)),
                ("_set_quantum", ctypes.CFUNCTYPE(None, _any, _u64, _i64)),
                ("_listen", ctypes.CFUNCTYPE(None, _any, _u32, ctypes.c_int32)),
                ("_note", ctypes.CFUNCTYPE(None, _any, _text, _any, _size)),
                ("_host", _any)]

    def hold(self, group, until=NEVER):
        self._hold(ctypes.addressof(self), _whole("hold", "group", group, 0),
                   _whole("hold", "until", until))

    def run(self, group):
        self._run(ctypes.addressof(self), _whole("run", "group", group, 0))

    def wake_at(self, when):
        self._wake_at(ctypes.addressof(self), _whole("wake_at", "when", when))

    def poll_pointers(self, every):
        self._poll_pointers(ctypes.addressof(self), _whole("poll_pointers", "every", every))

    def reserve(self, gpu, offline_share):
        self._reserve(ctypes.addressof(self), _whole("reserve", "gpu", gpu, 0),
                      _number("reserve", "offline_share", offline_share))

    def set_quantum(self, group, length):
        self._set_quantum(ctypes.addressof(self), _whole("set_quantum", "group", group, 0),
                          _whole("set_quantum", "length", length, 0))

    def listen(self, span_kind, at_once):
        self._listen(ctypes.addressof(self), _whole("listen", "span_kind", span_kind, 0),
                     bool(at_once))

    def note(self, text, *numbers):
        """Logs the text. Replaces each "{}" with the next number."""
        given = [_number("note", "each value", each) for each in numbers]
        array = (ctypes.c_double * len(given))(*given)
        self._note(ctypes.addressof(self), text.encode(), ctypes.addressof(array), len(numbers))


_create = ctypes.CFUNCTYPE(_any, ctypes.POINTER(Value), _size, _any, _size)
_decide = ctypes.CFUNCTYPE(ctypes.c_int32, _any, ctypes.POINTER(Snapshot), ctypes.POINTER(Sink),
                           _any, _size)
_destroy = ctypes.CFUNCTYPE(None, _any)


class Plugin(ctypes.Structure):
    """sluice_policy_plugin"""

    _fields_ = [("abi_version", _u32), ("struct_size", _u32), ("name", _text), ("summary", _text),
                ("parameters", ctypes.POINTER(Parameter)), ("parameter_count", _size),
                ("create", _create), ("decide", _decide), ("destroy", _destroy),
                ("name_of", _any), ("needs_marks", _any)]


# A fallback of None makes a parameter optional: export()'s `make` gets it only where a user gives it.
def _parameter(kind, key, low, high, help_text, field, fallback):
    nothing = b"" if field == "text" else 0
    value = Value(key.encode(), kind, **{field: nothing if fallback is None else fallback})
    return Parameter(value, fallback is None, low, high, help_text.encode())


def number(key, fallback, low, high, help_text):
    return _parameter(NUMBER, key, low, high, help_text, "number", fallback)


def count(key, fallback, low, high, help_text):
    return _parameter(COUNT, key, low, high, help_text, "whole", fallback)


def span(key, fallback, low, high, help_text):
    """A duration: numbers here are in nanoseconds; users write a unit, such as "20ms"."""
    return _parameter(SPAN, key, low, high, help_text, "whole", fallback)


def flag(key, fallback, help_text):
    return _parameter(FLAG, key, 0, 1, help_text, "whole", fallback)


def text(key, fallback, help_text):
    held = fallback if fallback is None else fallback.encode()
    return _parameter(TEXT, key, 0, 0, help_text, "text", held)


def _say(problem, size, error):
    """Writes the error, with its place in the policy, into the buffer `problem`."""
    frames = traceback.extract_tb(error.__traceback__)
    place = next((each for each in reversed(frames) if each.filename != __file__), frames[-1])
    what = f"{type(error).__name__}: {error} ({place.filename}:{place.lineno})"
    line = what.encode("utf-8", "replace")[:size - 1] + b"\0"
    ctypes.memmove(problem, line, len(line))


def export(name, summary, parameters, make):
    """Returns the function that a policy file assigns to sluice_get_policy_plugin. The function
    returns the address of the descriptor. `make(**values)` creates one policy. A "." in a key
    becomes "_"."""
    made = {}
    numbers = iter(range(1, 2**62))

    def create(values, size, problem, problem_size):
        try:
            given = {}
            for value in values[:size]:
                held = value.get()
                held = held.decode() if isinstance(held, bytes) else held
                given[value.key.decode().replace(".", "_")] = held
            handle = next(numbers)
            made[handle] = make(**given)
            return handle
        except BaseException as error:  # sys.exit() must not look as if all went well.
            _say(problem, problem_size, error)
            return None

    def decide(state, seen, out, problem, problem_size):
        try:
            made[state].decide(seen.contents, out.contents)
            return 0
        except BaseException as error:
            _say(problem, problem_size, error)
            return 1

    def destroy(state):
        made.pop(state, None)

    array = (Parameter * len(parameters))(*parameters)
    plugin = Plugin(ABI, ctypes.sizeof(Plugin), name.encode(), summary.encode(), array,
                    len(parameters), _create(create), _decide(decide), _destroy(destroy), None, None)
    return lambda: ctypes.addressof(plugin)
