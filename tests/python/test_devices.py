"""Two devices in one process: the virtual GPU has two in all tests. A machine with one GPU has nothing to test here."""

import gc

import encore_session
import numpy as np
import onnxruntime as ort
import onnxruntime_ep_encore
import pytest
from encore_session import EAGER, HAS_GRAPHS, in_new_process, in_threads, on_device, only_if
from onnx import helper
from test_external_memory import Stock
from test_memory import MIB, arena, memory
from test_sessions import close, some, states

pytestmark = pytest.mark.core

DEVICES = len(onnxruntime_ep_encore.devices(encore_session.registered()))
ON_VIRTUAL_GPU = encore_session.on_virtual_gpu()
two = only_if(DEVICES > 1)


def session_on(device, model, **options):
    session = encore_session.make_session(model, device=device, **options)
    encore_session.assert_all_on_encore(session)
    return session


def run(session, x, out, **entries):
    """Runs with bound input and output; the output's contents."""
    binding = session.io_binding()
    binding.bind_ortvalue_input("x", x)
    binding.bind_ortvalue_output("y", out)
    session.run_with_iobinding(binding, encore_session.run_options(0, **entries))
    return out.numpy()


@two
def test_each_device_is_offered_with_its_number(encore):
    offered = onnxruntime_ep_encore.devices(encore)
    assert [device.ep_metadata["cuda_device_id"] for device in offered] == [str(i) for i in range(DEVICES)]


@two
def test_sessions_on_two_devices_at_once(encore, layer):
    model, expected = layer
    sessions = [session_on(device, model) for device in (0, 1)]

    def work(i):
        for seed in range(20):
            x = some(4 + i, seed)
            close(sessions[i % 2].run(None, {"x": x})[0], expected(x))
            close(run(sessions[i % 2], on_device(x, i % 2), on_device(np.zeros_like(x), i % 2)), expected(x))

    assert not in_threads(4, work)


@two
def test_graphs_on_the_second_device(encore, layer):
    model, expected = layer
    sessions = [session_on(device, model, enable_cuda_graph=1) for device in (1, 0)]
    values = [(on_device(some(), device), on_device(some(), device)) for device in (1, 0)]
    for seed in range(6):
        for session, (x, y) in zip(sessions, values):
            x.update_inplace(some(4, seed))
            close(run(session, x, y), expected(some(4, seed)))
    if HAS_GRAPHS:
        assert [states(session) for session in sessions] == [{0: "ready"}] * 2


@two
@pytest.mark.parametrize("rows", [1, 1000, 300000])
def test_inputs_and_outputs_on_the_other_device(encore, layer, rows):
    """onnxruntime copies them across, which is a copy between devices."""
    model, expected = layer
    session, x = session_on(1, model), some(rows)
    close(run(session, on_device(x, 0), on_device(np.zeros_like(x), 0)), expected(x))


@two
@only_if(hasattr(ort, "copy_tensors"))
def test_copies_between_devices(encore):
    rng = np.random.default_rng(3)
    arrays = [rng.standard_normal(n).astype(np.float32) for n in (1, 77, 1 << 20)]
    for source, target in ((0, 1), (1, 0)):
        there = [on_device(array, source) for array in arrays]
        here = [on_device(np.zeros_like(array), target) for array in arrays]
        ort.copy_tensors(there, here)
        for array, value in zip(arrays, here):
            np.testing.assert_array_equal(value.numpy(), array)


@two
def test_a_tensor_of_the_second_device_outlives_its_session(encore, layer):
    model, expected = layer
    session = session_on(1, model)
    out = on_device(np.zeros_like(some()), 1)
    run(session, on_device(some(), 1), out)
    del session
    close(out.numpy(), expected(some()))


# ---- options on the second device


@pytest.fixture
def devices_left(make_model):
    """devices_left(): the free bytes of the first two devices."""
    model = make_model([helper.make_node("Neg", ["x"], ["y"])], {"x": [4]}, {"y": [4]})
    sessions = [session_on(device, model) for device in range(2)]
    encore_session.empty_on_device([MIB], np.uint8, 1)  # stays in the environment's arena, for what is bound

    def free_bytes():
        gc.collect()
        return [memory(session)["device"]["free_bytes"] for session in sessions]

    return free_bytes


def run_with_host_memory(session, expected):
    close(session.run(None, {"x": some(3000)}, encore_session.run_options(EAGER))[0], expected(some(3000)))


def run_bound(session, expected):
    values = on_device(some(), 1), on_device(np.zeros_like(some()), 1)
    for _ in range(3):
        close(run(session, *values), expected(some()))


@two
@pytest.mark.parametrize("graphs", [0, 1] if HAS_GRAPHS else [0])
@pytest.mark.parametrize("apart", [False, True], ids=["", "copies apart"])
@pytest.mark.parametrize("given", [False, True], ids=["", "given"])
def test_streams_of_the_second_device(encore, layer, devices_left, given, apart, graphs):
    model, expected = layer
    stream = encore_session.make_stream(1)
    options = {"user_compute_stream": stream.get_handle()} if given else {}
    before = devices_left()
    session = session_on(1, model, enable_cuda_graph=graphs, do_copy_in_default_stream=int(not apart), **options)
    host_run = lambda: run_with_host_memory(session, expected)
    entries = encore_session.trace(session, host_run) if ON_VIRTUAL_GPU else host_run()
    run_bound(session, expected)
    if ON_VIRTUAL_GPU:
        streams_of = lambda kind: {entry["stream"] for entry in entries if entry["what"] == kind}
        computing, copying = streams_of("kernel"), streams_of("copy")
        assert len(computing) == len(copying) == 1
        assert (computing == {stream.get_handle()}) == given
        assert (computing != copying) == apart
        assert devices_left() == [before[0], before[1] - arena(session)["held_bytes"]]


@two
def test_a_stream_of_another_device_is_refused(encore, layer, capfd):
    stream = encore_session.make_stream(0)
    with pytest.raises(encore_session.REFUSED, match=encore_session.REFUSAL):
        session_on(1, layer[0], user_compute_stream=stream.get_handle())
    assert "is one of device 0, not of device 1" in capfd.readouterr().err


@two
@pytest.mark.parametrize("graphs", [0, 1] if HAS_GRAPHS else [0])
def test_an_external_allocator_of_the_second_device(encore, layer, devices_left, graphs):
    model, expected = layer
    stock = Stock(device=1)
    before = devices_left()
    session = session_on(1, model, enable_cuda_graph=graphs, **stock.options())
    run_with_host_memory(session, expected)
    run_bound(session, expected)
    assert stock.held() == arena(session)["held_bytes"] > 0
    if ON_VIRTUAL_GPU:
        assert devices_left() == before


@only_if(DEVICES > 1 and not ON_VIRTUAL_GPU)
def test_a_session_on_the_second_device_does_not_start_the_first(encore, layer, tmp_path):
    (tmp_path / "model.onnx").write_bytes(layer[0].SerializeToString())
    code = f"""
import ctypes, threading
import encore_session as e, numpy as np
session = e.make_session({str(tmp_path / "model.onnx")!r}, device=1)
run = lambda: session.run(None, {{"x": np.zeros((4, 8), np.float32)}})
thread = threading.Thread(target=run)
thread.start(), thread.join(), run()
flags, active = ctypes.c_uint(), (ctypes.c_int * 2)()
for device in (0, 1):
    state = ctypes.byref(active, device * ctypes.sizeof(ctypes.c_int))
    assert not ctypes.CDLL("libcuda.so.1").cuDevicePrimaryCtxGetState(device, ctypes.byref(flags), state)
print(list(active))
"""
    assert in_new_process(code).stdout.splitlines()[-1] == "[0, 1]"


@only_if(not ON_VIRTUAL_GPU)
@pytest.mark.parametrize("graphs", [0, 1] if HAS_GRAPHS else [0])
def test_a_context_of_the_application_stays_current(encore, layer, tmp_path, graphs):
    (tmp_path / "model.onnx").write_bytes(layer[0].SerializeToString())
    x = some()
    np.savez(tmp_path / "values", x=x, y=layer[1](x))
    code = f"""
import ctypes
import encore_session as e, numpy as np
values = np.load({str(tmp_path / "values.npz")!r})
cuda = ctypes.CDLL("libcuda.so.1")
own, now = ctypes.c_void_p(), ctypes.c_void_p()
assert not cuda.cuInit(0) and not cuda.cuCtxCreate_v2(ctypes.byref(own), 0, 0)
session = e.make_session({str(tmp_path / "model.onnx")!r}, enable_cuda_graph={graphs})
bound = e.Bound(session, {{"x": values["x"]}}, {{"y": (values["y"].shape, np.float32)}})
for _ in range(4):
    np.testing.assert_allclose(bound.run()["y"], values["y"], rtol=1e-4, atol=1e-4)
    assert not cuda.cuCtxGetCurrent(ctypes.byref(now)) and now.value == own.value
del bound, session
assert not cuda.cuCtxGetCurrent(ctypes.byref(now)) and now.value == own.value
"""
    in_new_process(code)
