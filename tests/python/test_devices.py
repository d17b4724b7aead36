"""Two devices in one process: the virtual GPU has two in all tests. A machine with one GPU has nothing to test here."""

import encore_session
import numpy as np
import onnxruntime as ort
import onnxruntime_ep_encore
import pytest
from encore_session import HAS_GRAPHS, NVIDIA, in_threads, only_if
from test_sessions import close, some, states

DEVICES = len(onnxruntime_ep_encore.devices(encore_session.registered()))
two = only_if(DEVICES > 1)


def on_device(array, device):
    return ort.OrtValue.ortvalue_from_numpy(np.asarray(array, order="C"), "gpu", device, NVIDIA)


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
