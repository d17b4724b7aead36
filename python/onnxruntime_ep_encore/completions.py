"""Of runs that nobody waits for: whether they are over, and what went wrong (src/plugin/session/completion.h)."""

from __future__ import annotations

import ctypes
from collections import deque
from functools import cache


class Completions:
    """Completions of a library, each with run options that name it, used again and again."""

    def __init__(self, library, ort):
        self._library = _functions_of(library)
        self._ort = ort
        self._free: deque[Completion] = deque()

    def take(self):
        try:
            return self._free.popleft()
        except IndexError:
            return Completion(self._library, self._ort)

    def give_back(self, completion):
        self._free.append(completion)


class Completion:
    """Of one run at a time, which has these run options."""

    def __init__(self, library, ort):
        self._library = library
        self._address = library.encore_completion_new()
        self.run_options = ort.RunOptions()
        self.run_options.add_run_config_entry("disable_synchronize_execution_providers", "1")
        self.run_options.add_run_config_entry("ep.cuda.completion", str(self._address))

    def __del__(self):
        self._library.encore_completion_free(self._address)

    def done(self) -> bool:
        return bool(self._library.encore_completion_done(self._address))

    def wait(self):
        """Waits for the run, while other threads go on; raises what went wrong."""
        self._call(self._library.encore_completion_wait)

    def order(self, stream: int):
        """Makes a stream go on after the run."""
        self._call(self._library.encore_completion_order, ctypes.c_void_p(stream))

    def _call(self, function, *arguments):
        why = ctypes.create_string_buffer(4096)
        if function(self._address, *arguments, why, ctypes.sizeof(why)):
            raise RuntimeError(why.value.decode(errors="replace"))


@cache
def _functions_of(library):
    functions = ctypes.CDLL(library)
    address, size, text = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p
    forms = {
        "new": (address, []),
        "free": (None, [address]),
        "done": (ctypes.c_int, [address]),
        "wait": (ctypes.c_int, [address, text, size]),
        "order": (ctypes.c_int, [address, address, text, size]),
    }
    for name, (result, arguments) in forms.items():
        function = getattr(functions, f"encore_completion_{name}")
        function.restype, function.argtypes = result, arguments
    return functions
