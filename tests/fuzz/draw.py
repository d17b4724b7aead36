"""What is drawn at random: choices, shapes and contents.

The same seed gives the same everywhere, but for int8, which has one bit less where the CPU EP clips sums of bytes
(encore_session.py).
"""

import random

import numpy as np
from element_types import FLOATS, INTEGERS, NUMPY, carrier, rounded
from encore_session import CPU_CLIPS_BYTES
from harness import SPECIAL

LEAST, GREATEST = -(2**63), 2**63 - 1
# Of anything with so many elements there is no memory; a few GiB would be had, and take long. As an int32 it is 1.
HUGE = 2**40 + 1
SMALL = [-9, -3, -2, -1, 0, 1, 2, 3, 4, 7, 8, 9]
HOSTILE = [*SMALL, 20, -100, HUGE, -HUGE, 2**62, LEAST, LEAST + 1, GREATEST, GREATEST - 1]
SIZES = [1, 1, 1, 2, 2, 3, 3, 4, 5, 5, 7, 8, 9, 13, 16, 17, 32, 33, 64, 127]
MOST_ELEMENTS = 4096


def for_cpu(array, name):
    """Without what the CPU EP clips."""
    return array >> 1 if name == "int8" and CPU_CLIPS_BYTES else array


class Draw:
    def __init__(self, seed):
        self.random = random.Random(seed)
        self.numpy = np.random.default_rng(seed)

    def chance(self, probability):
        return self.random.random() < probability

    def pick(self, some):
        return self.random.choice(list(some))

    def picks(self, some, count):
        return [self.pick(some) for _ in range(count)]

    def number(self, low, high):
        return self.random.randint(low, high)

    def real(self, low=-2.0, high=2.0):
        return float(np.float32(self.random.uniform(low, high)))

    def shuffled(self, some):
        some = list(some)
        self.random.shuffle(some)
        return some

    def shape(self, low=0, high=9):
        """Of a rank in [low, high]; large ranks and empty dimensions are rare."""
        ranks = [rank for rank in [0, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 4, 4, 5, 6, 7, 8, 9] if low <= rank <= high]
        shape = self.picks(SIZES, self.pick(ranks or [low]))
        while np.prod(shape) > MOST_ELEMENTS:
            i = self.number(0, len(shape) - 1)
            shape[i] = max(1, shape[i] // 2)
        if shape and self.chance(0.04):
            shape[self.number(0, len(shape) - 1)] = 0
        return shape

    def partner(self, shape):
        """A shape that broadcasts together with this one, most of the time to it."""
        shape = [1 if self.chance(0.25) else size for size in shape[self.number(0, len(shape)) * self.chance(0.4) :]]
        if self.chance(0.1):
            shape = [self.number(1, 3)] + shape
        return shape

    def axis(self, rank):
        return self.number(-rank, rank - 1) if rank else 0

    def axes(self, rank):
        """Distinct ones, counted from either end."""
        some = self.random.sample(range(rank), self.number(0, rank))
        return [axis - rank * self.chance(0.3) for axis in some]

    def contents(self, name, shape, mild=False):
        """An array in the type's carrier. `mild`: nothing beyond a few units, so that sums stay near the truth."""
        if name == "bool":
            return self.numpy.integers(0, 2, shape).astype(bool)
        make = self._integers if name in INTEGERS else self._floats
        return for_cpu(rounded(np.asarray(make(name, tuple(shape), mild)), name), name)

    def _integers(self, name, shape, mild):
        info = np.iinfo(NUMPY[name])
        low, high = max(info.min, -100), min(info.max, 100)
        if not mild and self.chance(0.15):
            edges = [info.min, info.min + 1, info.max, info.max - 1, max(info.min, -1), 0, 1, info.max // 2 + 1]
            return self.numpy.choice(np.array(edges, NUMPY[name]), shape)
        if self.chance(0.2):
            low, high = max(low, -2), 2
        return self.numpy.integers(low, high, shape, endpoint=True).astype(NUMPY[name])

    def _floats(self, name, shape, mild):
        way = self.random.random()
        if mild or way < 0.6:
            return self.numpy.uniform(-3, 3, shape)
        if way < 0.7:  # ties
            return self.numpy.integers(-2, 3, shape) / 2
        if way < 0.8:
            values = self.numpy.uniform(-3, 3, shape)
            return np.where(self.numpy.random(shape) < 0.2, self.numpy.choice(SPECIAL, shape), values)
        if way < 0.87:
            return self.numpy.choice(self._edges(name), shape)
        if way < 0.94:  # every magnitude
            return self.numpy.uniform(-1, 1, shape) * 10.0 ** self.numpy.uniform(-12, 12, shape)
        return np.full(shape, self.real())

    @staticmethod
    def _edges(name):
        if name not in FLOATS:
            return SPECIAL
        info = np.finfo(carrier(name))
        largest, least, smallest = (float(x) for x in (info.max, info.tiny, info.smallest_subnormal))
        return np.array([largest, -largest, least, -least, smallest, 3 * smallest, np.inf, -np.inf, np.nan, 0.0, 1.0])
