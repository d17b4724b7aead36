"""Options that are right reach the session, however they are given and spelled."""

import json

import encore_session
import numpy as np
import onnxruntime_ep_encore
import pytest
from encore_session import ORT_VERSION, in_new_process, make_session
from onnx import helper

pytestmark = pytest.mark.core

LIMIT = 64 << 20
LAST_DEVICE = len(onnxruntime_ep_encore.devices(encore_session.registered())) - 1
X = np.arange(1000, dtype=np.float32)


@pytest.fixture
def negation(make_model):
    return make_model([helper.make_node("Neg", ["x"], ["y"])], {"x": ["n"]}, {"y": ["n"]})


def arena(session):
    """The session's, after a run."""
    np.testing.assert_array_equal(session.run(None, {"x": X})[0], -X)
    return onnxruntime_ep_encore.memory_report(session)["arena"]


@pytest.mark.parametrize("name", ["CUDAExecutionProvider", "CudaPluginExecutionProvider"])
def test_the_providers_argument_with_options(negation, name):
    """onnxruntime knows a plugin by its name from 1.26 on; before 1.28, it means a provider of its own by CUDA's."""
    known = ORT_VERSION >= ((1, 28) if name == "CUDAExecutionProvider" else (1, 26))
    options = {"device_id": LAST_DEVICE, "gpu_mem_limit": LIMIT}
    code = f"""
import json
import encore_session as e, numpy as np, onnxruntime as ort, onnxruntime_ep_encore as encore
e.registered()
elsewhere = [e.empty_on_device([{LIMIT}], np.uint8, device) for device in range({LAST_DEVICE})]
session = ort.InferenceSession({negation.SerializeToString()!r}, providers=[({name!r}, {options})])
y = session.run(None, {{"x": np.float32([1, -2])}})[0].tolist()
providers = session.get_providers()
report = encore.memory_report(session) if {name!r} in providers else None
print(json.dumps([y, providers, report]))"""
    y, providers, report = json.loads(in_new_process(code, ENCORE_EP_NAME=name).stdout.splitlines()[-1])
    assert y == [-1, 2]
    assert providers == [name] * known + ["CPUExecutionProvider"]
    if known:
        assert report["arena"]["limit_bytes"] == LIMIT and report["arena"]["allocations"] > 0
        if encore_session.on_virtual_gpu():
            assert report["device"]["total_bytes"] - report["device"]["free_bytes"] < LIMIT, "another device"


@pytest.mark.parametrize("yes, no", [("1", "0"), ("true", "false"), (True, False), ("TRUE", "FALSE")])
def test_spellings_of_yes_and_no(encore, negation, yes, no):
    with_arena, without = (arena(make_session(negation, use_arena=value)) for value in (yes, no))
    assert with_arena["driver_allocations"] < with_arena["allocations"]
    assert without["driver_allocations"] == without["allocations"]


@pytest.mark.parametrize(
    "key",
    [
        "arena.initial_chunk_size_bytes",
        "arena.initial_growth_chunk_size_bytes",
        "arena.max_power_of_two_extend_bytes",
        "arena.max_dead_bytes_per_chunk",
    ],
)
def test_minus_one_is_the_arenas_default(encore, negation, key):
    assert arena(make_session(negation, **{key: -1})) == arena(make_session(negation))


def test_strategies_by_number_and_name(encore, negation):
    held = {
        value: arena(make_session(negation, arena_extend_strategy=value))["held_bytes"]
        for value in ("kNextPowerOfTwo", "0", "-1", "kSameAsRequested", "1")
    }
    assert held["kNextPowerOfTwo"] == held["0"] == held["-1"] > held["kSameAsRequested"] == held["1"]
