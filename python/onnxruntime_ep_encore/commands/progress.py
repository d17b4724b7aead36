"""How far a command is: a bar in a terminal's last line, and nothing where stderr is none."""

import contextlib
import sys

WIDTH = 24


class Progress:
    def __init__(self, steps):
        self.steps, self.done = steps, 0

    @contextlib.contextmanager
    def step(self, name):
        """Shows the bar while one of the steps is under way."""
        filled = WIDTH * self.done // self.steps
        self._show(f"  [{'#' * filled}{'.' * (WIDTH - filled)}] {self.done} of {self.steps} done, now {name}")
        try:
            yield
        finally:
            self.done += 1
            self._show("\x1b[K")  # which clears the line

    def _show(self, words):
        if sys.stderr.isatty():
            print(words, end="\r", file=sys.stderr, flush=True)
