"""An application's allocator, which a session has all its device memory from."""

import ctypes
import gc
import re

import encore_session
import numpy as np
import pytest
from encore_session import EAGER, HAS_GRAPHS, in_threads, make_session, needs_late_free, only_if
from test_memory import HEAVY, MIB, SHRINK, arena, bound, close, memory, needs_shrink, some

pytestmark = pytest.mark.core


class Allocator:
    """ctypes callbacks that give out device memory, and keep the books. The memory is that of OrtValues."""

    everyone = []  # kept for good: the session of a test that failed may end after the test's allocator

    def __init__(self, device=0):
        self.device = device
        self.values, self.sizes, self.emptied, self.limit, self.offset = {}, {}, 0, 2**62, 0
        self.allocations = 0
        self._callbacks = (
            ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t)(self._allocate),
            ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self._free),
            ctypes.CFUNCTYPE(None)(self._empty_cache),
        )
        self.everyone.append(self)

    def options(self):
        keys = ("gpu_external_alloc", "gpu_external_free", "gpu_external_empty_cache")
        return dict(zip(keys, (ctypes.cast(each, ctypes.c_void_p).value for each in self._callbacks), strict=True))

    def held(self):
        return sum(self.sizes.values())

    def _allocate(self, size):
        if size > self.limit:
            return None
        address, value = self._take(size)
        self.allocations += 1
        self.values[address], self.sizes[address] = value, size
        return address

    def _take(self, size):
        value = encore_session.empty_on_device([size + self.offset], np.uint8, self.device)
        return value.data_ptr() + self.offset, value

    def _free(self, address):
        del self.values[address], self.sizes[address]

    def _empty_cache(self):
        self.emptied += 1


class Stock(Allocator):
    """Gives out pieces of memory that it has from the beginning, none of them twice."""

    def __init__(self, device=0):
        super().__init__(device)
        self.limit = 16 * MIB
        self.stock = encore_session.empty_on_device([self.limit], np.uint8, device)
        self.next = self.stock.data_ptr()

    def _take(self, size):
        self.limit -= size
        self.next += size
        return self.next - size, self.stock


@pytest.mark.parametrize("graphs", [0, 1] if HAS_GRAPHS else [0])
def test_two_external_allocators_and_none(encore, chain, graphs):
    model, expected = chain
    one, other = Allocator(), Allocator()
    sessions = [
        make_session(model, enable_cuda_graph=graphs, **options) for options in (one.options(), other.options(), {})
    ]
    runs = [bound(session, 16 + i) for i, session in enumerate(sessions)]
    for seed in range(5):
        for i, run in enumerate(runs):
            close(run.run({"x": some(16 + i, seed)})["y"], expected(some(16 + i, seed)))
        for i, session in enumerate(sessions):
            x = some(3000 * (1 + i), seed)
            close(session.run(None, {"x": x}, encore_session.run_options(EAGER))[0], expected(x))
    for allocator, session in zip((one, other), sessions, strict=False):
        assert allocator.held() == arena(session)["held_bytes"] > 0
        assert (arena(session)["graph_bytes"] > 0) == bool(graphs)
    calls = one.allocations, other.allocations
    sessions[2].run(None, {"x": some(200000)}, encore_session.run_options(EAGER))
    assert calls == (one.allocations, other.allocations), "the third session is none of theirs"
    del run, runs, session, sessions
    gc.collect()
    assert one.held() == other.held() == 0
    assert not one.values


@only_if(encore_session.on_virtual_gpu())  # elsewhere others take memory too, CUDA's libraries for example
@pytest.mark.parametrize("graphs", [0, 1] if HAS_GRAPHS else [0])
def test_external_callbacks_are_the_only_source(encore, heavy, graphs):
    model, expected = heavy
    elsewhere = make_session(model, config={"session.use_env_allocators": 1})  # reports the environment's arena too
    stock = Stock()
    encore_session.empty_on_device([MIB], np.uint8)  # stays in the environment's arena, for what is bound below

    def taken():
        gc.collect()
        report = memory(elsewhere)
        return report["arena"]["in_use_bytes"], report["device"]["free_bytes"]

    def use(session):
        run = bound(session, 4, HEAVY)
        for seed in range(3):
            close(run.run({"x": some(4, seed, HEAVY)})["y"], expected(some(4, seed, HEAVY)))
        x = some(100, row=HEAVY)
        close(session.run(None, {"x": x}, encore_session.run_options(EAGER))[0], expected(x))
        assert (arena(session)["graph_bytes"] > 0) == bool(graphs)

    before = taken()
    session = make_session(model, enable_cuda_graph=graphs, **stock.options())
    use(session)
    assert stock.held() == arena(session)["held_bytes"] > MIB
    assert taken() == before
    own = make_session(model, enable_cuda_graph=graphs)
    use(own)
    assert taken() == (before[0], before[1] - arena(own)["held_bytes"])


@needs_shrink
def test_external_cache_is_emptied_on_shrink(encore, chain):
    model, expected = chain
    allocator = Allocator()
    session = make_session(model, **allocator.options())
    close(session.run(None, {"x": some(20000)})[0], expected(some(20000)))
    held = allocator.held()
    assert allocator.emptied == 0
    close(session.run(None, {"x": some()}, encore_session.run_options(**SHRINK))[0], expected(some()))
    assert allocator.emptied == 1
    assert allocator.held() < held


def test_external_allocator_has_no_more(encore, chain):
    model, expected = chain
    allocator = Allocator()
    session = make_session(model, **allocator.options())
    allocator.limit = MIB
    with pytest.raises(Exception, match="gpu_external_alloc has no"):
        run = bound(session, 1 << 16)
        run.run()
    close(session.run(None, {"x": some()})[0], expected(some()))


def test_external_memory_must_be_aligned(encore, chain):
    allocator = Allocator()
    session = make_session(chain[0], **allocator.options())
    run = bound(session, 1 << 14)
    allocator.offset = 128
    with pytest.raises(Exception, match="which is not aligned to 256 bytes"):
        run.run()
    allocator.offset = 0
    run.run()


@needs_late_free
def test_external_memory_outlives_its_session(encore, chain):
    model, expected = chain
    allocator = Allocator()
    session = make_session(model, **allocator.options())
    x = encore_session.on_device(some())
    binding = encore_session.bind_unallocated(session, x)
    session.run_with_iobinding(binding)
    (y,) = binding.get_outputs()
    del session, binding
    gc.collect()
    assert allocator.held() > 0
    close(y.numpy(), expected(some()))
    del y
    gc.collect()
    assert allocator.held() == 0


def test_external_callbacks_wait_for_python_without_a_deadlock(encore, chain):
    """Callbacks want Python's lock while other threads, which have it, free tensors of the same session."""
    model, expected = chain
    allocator = Allocator()
    session = make_session(model, use_arena=0, **allocator.options())
    x = encore_session.on_device(some())

    def work(_):
        for _ in range(40):
            binding = encore_session.bind_unallocated(session, x)
            session.run_with_iobinding(binding)
            (y,) = binding.get_outputs()
            memory(session)
            close(y.numpy(), expected(some()))

    assert not in_threads(3, work)


def test_memory_that_is_none_of_the_device_is_refused(encore, layer, capfd):
    class OnTheHost(Allocator):
        def _take(self, size):
            array = np.empty(size + 256, np.uint8)
            return array.ctypes.data + -array.ctypes.data % 256, array

    with pytest.raises(Exception, match="gpu_external_alloc gave 0x[0-9a-f]+, which is no device memory"):
        make_session(layer[0], regions=0, **OnTheHost().options()).run(None, {"x": np.zeros((4, 8), np.float32)})
    assert re.search(r"\[E:.*gpu_external_alloc gave 0x[0-9a-f]+, which is no device memory", capfd.readouterr().err)
