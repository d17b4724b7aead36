"""What is wrong with an option, a model or its data is said clearly, and the session goes on or fails cleanly."""

import ctypes
import re

import encore_session
import numpy as np
import onnx.parser
import onnxruntime as ort
import onnxruntime_ep_encore
import pytest
from encore_session import EAGER, in_new_process, make_session, needs_graphs, only_if
from onnx import TensorProto, helper, numpy_helper

pytestmark = pytest.mark.core

FLOAT = np.float32
INT64 = TensorProto.INT64
X = FLOAT([[-1, 2, -3], [4, -5, 6]])


@pytest.fixture
def relu(make_model):
    return make_model([helper.make_node("Relu", ["x"], ["y"], "relu")], {"x": ["n", 3]}, {"y": ["n", 3]})


def works(session):
    np.testing.assert_array_equal(session.run(None, {"x": X}, encore_session.run_options(EAGER))[0], np.maximum(X, 0))


# ---- options


def refusal(model, capfd, config=None, mode=None, **options):
    """The errors in the log: onnxruntime's Python goes on without Encore, or raises from 1.32 on."""
    session_options = ort.SessionOptions()
    for key, value in (config or {}).items():
        session_options.add_session_config_entry(key, value)
    if mode:
        session_options.execution_mode = mode
    device = onnxruntime_ep_encore.devices(encore_session.EP_NAME)[0]
    session_options.add_provider_for_devices([device], {key: str(value) for key, value in options.items()})
    if encore_session.ORT_VERSION < (1, 32):
        ort.InferenceSession(model.SerializeToString(), session_options)
    else:
        with pytest.raises(encore_session.REFUSED):
            ort.InferenceSession(model.SerializeToString(), session_options)
    said = capfd.readouterr()
    assert "EP Error" in said.out or encore_session.ORT_VERSION >= (1, 32), "the options were accepted"
    return "\n".join(re.findall(r"\[E:.*", said.err))


def test_a_stream_that_is_none_is_refused(encore, relu, capfd):
    for address in ("0x7fff0000dead000", "4096"):
        said = refusal(relu, capfd, user_compute_stream=address)
        assert "provider option 'user_compute_stream': " in said and "is no " in said


@only_if(encore_session.ORT_VERSION >= (1, 27))  # older ones don't tell a plugin the mode
def test_one_stream_and_parallel_execution_are_refused(encore, relu, capfd):
    said = refusal(relu, capfd, mode=ort.ExecutionMode.ORT_PARALLEL, use_ep_level_unified_stream=1)
    assert "parallel execution mode and one stream" in said


def test_an_unknown_option_names_the_nearest(encore, relu, capfd):
    said = refusal(relu, capfd, enable_cuda_grph=1)
    assert "enable_cuda_grph'; did you mean" in said
    assert "enable_cuda_graph'?" in said


@pytest.mark.parametrize(
    "key, value, allowed",
    [
        ("use_tf32", "maybe", "it must be 0 or 1"),
        ("gpu_mem_limit", "4GB", "it must be a number of bytes"),
        ("arena.max_mem", "-1", "it must be a number of bytes, more than zero"),
        ("arena.max_dead_bytes_per_chunk", "-2", "it must be a number of bytes, or -1 for the default"),
        ("graph_on_error", "ignore", "it must be fail or eager"),
        ("cudnn_conv_algo_search", "exhaustive", "it must be EXHAUSTIVE, HEURISTIC or DEFAULT"),
        ("cudnn_conv_algo_search", "0", "it must be EXHAUSTIVE, HEURISTIC or DEFAULT"),
        ("min_num_runs_before_cuda_graph_capture", "0", "it must be a number from 1 to 6"),
        ("min_num_runs_before_cuda_graph_capture", "7", "it must be a number from 1 to 6"),
    ],
)
def test_a_bad_value_is_named_with_what_is_allowed(encore, relu, capfd, key, value, allowed):
    said = refusal(relu, capfd, **{key: value})
    assert f"{key}' is '{value}'; {allowed}" in said


def test_options_of_the_session_are_checked_too(encore, relu, capfd):
    assert "'ep.cuda.use_tf32' is 'x'" in refusal(relu, capfd, {"ep.cuda.use_tf32": "x"})
    assert "'gpu_mem_limit' is '-5'" in refusal(relu, capfd, {"gpu_mem_limit": "-5"})
    assert "did you mean 'ep.cuda.device_id'?" in refusal(relu, capfd, {"ep.cuda.divice_id": "0"})
    for prefix in ("ep.encore.", "encore."):
        said = refusal(relu, capfd, {prefix + "use_tf32": "0"})
        assert f"unknown provider option '{prefix}use_tf32'; did you mean 'ep.cuda.use_tf32'?" in said


@pytest.mark.parametrize("key", ["auto_graph", "arena.max_mem", "ep.CUDA.auto_graph", "EP.cuda.regions"])
def test_an_option_under_a_key_that_nobody_reads_is_refused(encore, relu, capfd, key):
    right = "ep.cuda." + re.sub("(?i)^ep.cuda.", "", key)
    assert f"unknown provider option '{key}'; did you mean '{right}'?" in refusal(relu, capfd, {key: "0"})


@pytest.mark.parametrize("wrong", ["gpu_external_alloc", "gpu_external_free", "gpu_external_empty_cache"])
def test_an_address_without_a_function_is_refused(encore, relu, capfd, wrong):
    function = ctypes.CFUNCTYPE(None)(lambda: None)
    right = ctypes.cast(function, ctypes.c_void_p).value
    addresses = dict.fromkeys(("gpu_external_alloc", "gpu_external_free", "gpu_external_empty_cache"), right)
    for address in (16, X.ctypes.data):
        said = refusal(relu, capfd, **{**addresses, wrong: address})
        assert f"provider option '{wrong}': there is no function at {address:#x}; pass its address" in said


def test_contradictions_are_refused(encore, relu, capfd):
    said = refusal(relu, capfd, {"gpu_mem_limit": "5000000"}, gpu_mem_limit=6000000)
    assert re.search(r"gpu_mem_limit' is '\d+', but '(ep.*)?gpu_mem_limit' is '\d+'; give one of them", said)


def test_another_device_than_the_chosen_is_refused(encore, relu, capfd):
    others = [] if encore_session.EP_NAME == "CUDAExecutionProvider" else ["ep.cuda.device_id"]
    for key in ["device_id", *others]:
        said = refusal(relu, capfd, {key: "3"})
        assert f"provider option '{key}' is '3', but the session was given device 0; leave the option out" in said


@only_if(encore_session.EP_NAME != "CUDAExecutionProvider")  # onnxruntime drops this provider's from 1.28 on
def test_nor_as_the_providers_own_option(encore, relu, capfd):
    said = refusal(relu, capfd, device_id=3)
    assert "device_id' is '3', but the session was given device 0; leave the option out, or pass" in said


@only_if(encore_session.ORT_VERSION >= (1, 28))  # older ones refuse it themselves
def test_several_devices_for_one_session_are_refused(encore, relu):
    options = ort.SessionOptions()
    options.add_provider_for_devices(onnxruntime_ep_encore.devices(encore) * 2, {})
    raised = RuntimeError if encore_session.ORT_VERSION < (1, 32) else encore_session.REFUSED
    with pytest.raises(raised, match="a session runs on one device, but was given devices 0, .*pass one"):
        ort.InferenceSession(relu.SerializeToString(), options, enable_fallback=0)


@needs_graphs
@pytest.mark.parametrize("graph_id", ["-2", "99999999999"])
def test_a_bad_graph_id_is_refused(encore, relu, graph_id):
    session = make_session(relu, enable_cuda_graph=1)
    options = ort.RunOptions()
    options.add_run_config_entry("gpu_graph_id", graph_id)
    with pytest.raises(Exception, match=graph_id):
        session.run(None, {"x": X}, options)
    works(session)


@needs_graphs
@pytest.mark.parametrize(
    "key", ["gpu_graphid", "gpu_graph_id ", "gpu_grpah_id", "gpu_graph_idd", "cuda_graph_id", "ep.cuda.gpu_graph_id"]
)
def test_a_misspelt_graph_id_is_refused(encore, relu, key):
    session = make_session(relu, enable_cuda_graph=1)
    with pytest.raises(Exception, match=f"unknown run option '{key}'; did you mean 'gpu_graph_id'"):
        session.run(None, {"x": X}, encore_session.run_options(**{key: 3}))
    works(session)
    works(make_session(relu))


def test_an_unknown_dynamic_option_is_refused(encore, relu):
    session = make_session(relu)
    with pytest.raises(Exception, match="unknown dynamic option 'ep.cuda.reprot'.*report_graphs"):
        session.set_ep_dynamic_options({"ep.cuda.reprot": "1"})
    with pytest.raises(Exception, match="can't be written to '/nowhere/graphs.json'"):
        session.set_ep_dynamic_options({"ep.cuda.report_graphs": "/nowhere/graphs.json"})
    works(session)


def test_a_hint_of_onnxruntimes_is_none_of_these(encore, relu):
    session = make_session(relu)
    session.set_ep_dynamic_options({"ep.dynamic.workload_type": "Efficient"})
    works(session)


def test_a_report_of_a_session_elsewhere_is_refused(relu):
    session = ort.InferenceSession(relu.SerializeToString(), providers=["CPUExecutionProvider"])
    for report in (onnxruntime_ep_encore.graph_report, onnxruntime_ep_encore.memory_report):
        with pytest.raises(RuntimeError, match="the session is not on Encore; its providers are CPUExecutionProvider"):
            report(session)


# ---- models


def test_a_declined_node_is_named_with_the_reason(encore, make_model, capfd):
    nodes = [
        helper.make_node("Imputer", ["x"], ["y"], "where", domain="ai.onnx.ml", imputed_value_floats=[5.0]),
        helper.make_node("Neg", ["x"], ["z"], "minus"),
    ]
    model = make_model(nodes, {"x": [4]}, {"y": [4], "z": [4]}, domains=("ai.onnx.ml",))
    session = make_session(model, config={"ep.cuda.log_placement": "1"})
    said = capfd.readouterr().err
    assert "Imputer node 'where' is not on Encore: Encore has no kernel for ai.onnx.ml.Imputer" in said
    assert "Encore takes 1 of 2 nodes" in said
    y, z = session.run(None, {"x": FLOAT([0, 1, 0, 2])})
    np.testing.assert_array_equal(y, [5, 1, 5, 2])
    np.testing.assert_array_equal(z, [0, -1, 0, -2])


def cpu_node(make_model, aside=False):
    """y = -x or a, but 5 for zeros, on the CPU: behind what Encore computes, or aside."""
    nodes = [
        helper.make_node("Neg", ["x"], ["z"], "minus"),
        helper.make_node(
            "Imputer", ["a" if aside else "z"], ["y"], "where", domain="ai.onnx.ml", imputed_value_floats=[5.0]
        ),
    ]
    inputs = {"x": [4], "a": [4]} if aside else {"x": [4]}
    return make_model(nodes, inputs, {"y": [4], "z": [4]}, domains=("ai.onnx.ml",))


@needs_graphs
@pytest.mark.parametrize("aside", [False, True])  # of what is aside onnxruntime would repeat the first result for ever
def test_a_graph_of_a_model_with_a_node_on_the_cpu_is_refused_by_its_name(encore, make_model, capfd, aside):
    said = (
        "enable_cuda_graph=1 is impossible with this model, because of Imputer node 'where': Encore has no kernel "
        ".*Imputer of version 1: it is left to the CPU, .*graph_on_error=eager"
    )
    with pytest.raises(Exception, match=said):
        make_session(cpu_node(make_model, aside), enable_cuda_graph=1)
    assert len(re.findall(r"E:.*Encore\] enable_cuda_graph=1 is impossible", capfd.readouterr().err)) == 1


@needs_graphs
@only_if(encore_session.ORT_VERSION >= (1, 28))  # older ones refuse it themselves
def test_nor_is_there_one_of_a_model_that_is_all_on_the_cpu(encore, make_model):
    node = helper.make_node("Imputer", ["x"], ["y"], "where", domain="ai.onnx.ml", imputed_value_floats=[5.0])
    model = make_model([node], {"x": [4]}, {"y": [4]}, domains=("ai.onnx.ml",))
    with pytest.raises(Exception, match="impossible with this model, because of Imputer node 'where'"):
        make_session(model, enable_cuda_graph=1)


@needs_graphs
def test_a_function_that_onnxruntime_replaces_by_its_nodes_is_no_obstacle(encore, make_model):
    twice = helper.make_node("Twice", ["x"], ["y"], "twice", domain="own")
    model = make_model([twice], {"x": [2, 3]}, {"y": [2, 3]}, domains=("own",))
    inner = helper.make_node("Add", ["a", "a"], ["b"], "inner")
    model.functions.append(helper.make_function("own", "Twice", ["a"], ["b"], [inner], [helper.make_opsetid("", 18)]))
    run = encore_session.Bound(make_session(model, enable_cuda_graph=1), {"x": X}, {"y": ([2, 3], FLOAT)})
    for x in (X, -X, 3 * X):
        np.testing.assert_array_equal(run.run({"x": x})["y"], 2 * x)
    assert [report["state"] for report in onnxruntime_ep_encore.graph_report(run.session)] == ["ready"]


def test_the_graph_report_says_why_every_run_is_eager(encore, make_model):
    session = make_session(cpu_node(make_model), enable_cuda_graph=1, graph_on_error="eager")
    for x in (FLOAT([-1, 0, -3, 1]), FLOAT([1, 0, 3, -1])):
        np.testing.assert_array_equal(session.run(["y"], {"x": x})[0], np.where(x == 0, 5, -x))
    (report,) = onnxruntime_ep_encore.graph_report(session)
    assert (report["id"], report["state"], report["replays"]) == (EAGER, "refused", 0)
    why = "Imputer node 'where': Encore has no kernel" if encore_session.HAS_GRAPHS else "needs onnxruntime 1.26"
    assert why in report["refusal"] and "every run is eager" in report["refusal"]


@pytest.mark.parametrize("regions", [0, 1])
def test_a_node_without_a_name_is_told_by_what_it_makes(encore, make_model, capfd, regions):
    nodes = [
        helper.make_node("Reshape", ["x", "to"], ["r"]),
        helper.make_node("Gather", ["r", "i"], ["picked"]),
        helper.make_node("Imputer", ["picked"], ["y"], domain="ai.onnx.ml", imputed_value_floats=[5.0]),
    ]
    inputs = {"x": ["n", 3], "to": ([2], INT64), "i": (["k"], INT64)}
    session = make_session(
        make_model(nodes, inputs, {"y": None}, domains=("ai.onnx.ml",)), log_placement=1, regions=regions
    )
    assert "Imputer node '(unnamed, makes y)' is not on Encore: Encore has no kernel" in capfd.readouterr().err
    feeds = {"x": X, "to": np.int64([3, 2]), "i": np.int64([2])}
    with pytest.raises(Exception, match=r"Reshape node '\(unnamed, makes r\)': "):
        session.run(None, {**feeds, "to": np.int64([4, 2])})
    with pytest.raises(Exception, match=r"Gather node '\(unnamed, makes picked.*\)': index 5 is outside \[-3, 3\)"):
        session.run(None, {**feeds, "i": np.int64([5])})
    np.testing.assert_array_equal(session.run(None, feeds)[0], [[-5, 6]])


def test_a_type_without_kernel_is_named(encore, make_model, capfd):
    strings = (["n"], TensorProto.STRING)
    model = make_model([helper.make_node("Identity", ["x"], ["y"], "same")], {"x": strings}, {"y": strings})
    session = make_session(model, config={"ep.cuda.log_placement": "1"})
    assert "Identity node 'same' is not on Encore: input 0 has type string" in capfd.readouterr().err
    assert session.run(None, {"x": np.array(["a", "b"], object)})[0].tolist() == ["a", "b"]


def test_an_input_that_is_not_bound_is_named(encore, relu):
    session = make_session(relu)
    binding = session.io_binding()
    binding.bind_ortvalue_output("y", encore_session.empty_on_device([2, 3]))
    with pytest.raises(Exception, match="'relu' Status Message: input 0 \\('x'\\) has no tensor; .* was it bound?"):
        session.run_with_iobinding(binding)
    works(session)


def test_an_input_without_memory_is_named(encore, relu):
    """Its allocation failed, which onnxruntime doesn't say: a null pointer is left."""
    session = make_session(relu)
    binding = session.io_binding()
    binding.bind_ortvalue_input("x", encore_session.empty_on_device([1 << 40, 3]))
    binding.bind_output("y", "cpu")
    with pytest.raises(Exception, match="'relu' .*input 0 \\('x'\\) has no memory: .*device memory is exhausted"):
        session.run_with_iobinding(binding)
    works(session)


@only_if(encore_session.on_virtual_gpu())  # which may have as little memory as is needed
def test_an_output_without_memory_is_named(make_model):
    to = numpy_helper.from_array(np.int64([1 << 20, 3]), "to")
    model = make_model(
        [helper.make_node("Expand", ["x", "to"], ["y"], "spread")], {"x": [1]}, {"y": [1 << 20, 3]}, [to]
    )
    code = f"""
import encore_session as e, numpy as np
session = e.make_session({model.SerializeToString()!r})
binding = session.io_binding()
binding.bind_ortvalue_input("x", e.on_device(np.ones(1, np.float32)))
binding.bind_ortvalue_output("y", e.empty_on_device([1 << 20, 3]))
try:
    session.run_with_iobinding(binding)
except Exception as error:
    print(error)"""
    said = in_new_process(code, ENCORE_VIRTUAL_MEMORY_BYTES=str(4 << 20)).stdout
    assert "'spread'" in said and "output 0 ('y') has no memory: " in said and "device memory is exhausted" in said, (
        said
    )


@only_if(encore_session.on_virtual_gpu())
@pytest.mark.parametrize("options", ["", "auto_graph=0", "enable_cuda_graph=1"])
def test_a_device_that_can_not_be_opened_is_told(relu, options):
    """Others may have all of its memory. onnxruntime's Python says why, and goes on with the CPU."""
    code = f"""
import encore_session as e
try:
    e.make_session({relu.SerializeToString()!r}, {options})
except Exception as error:
    print(error)"""
    said = in_new_process(code, ENCORE_VIRTUAL_MEMORY_BYTES="0").stdout
    assert "device 0 has no memory left, and can't be opened" in said, said


@pytest.mark.parametrize("wrong", ["x", "y"])
def test_a_pointer_to_host_memory_that_is_bound_as_device_memory_is_named(encore, make_model, wrong):
    nodes = [helper.make_node("Neg", ["x"], ["n"], "first"), helper.make_node("Abs", ["n"], ["y"], "last")]
    session = make_session(make_model(nodes, {"x": [2, 3]}, {"y": [2, 3]}), fuse_elementwise=0)
    arrays = {"x": X, "y": np.zeros_like(X)}
    values = {name: encore_session.on_device(array) for name, array in arrays.items()}
    pointers = {name: value.data_ptr() for name, value in values.items()}
    memory = encore_session.capi.OrtDevice(1, 0, encore_session.NVIDIA, 0)

    def run(pointers):
        binding = session.io_binding()
        binding._iobinding.bind_input("x", memory, FLOAT, [2, 3], pointers["x"])
        binding._iobinding.bind_output("y", memory, FLOAT, [2, 3], pointers["y"])
        session.run_with_iobinding(binding)

    what, node = ("input", "first") if wrong == "x" else ("output", "last")
    for _ in range(2):
        with pytest.raises(
            Exception, match=f"'{node}'.*{what} 0 \\('{wrong}'\\) was bound as device memory, but its addr"
        ):
            run({**pointers, wrong: arrays[wrong].ctypes.data})
        run(pointers)
        np.testing.assert_array_equal(values["y"].numpy(), np.abs(X))


@pytest.mark.parametrize("index", [5, -6, 2**40])
def test_a_gather_index_out_of_range_fails_the_run(encore, make_model, index):
    node = helper.make_node("Gather", ["x", "i"], ["y"], "lookup")
    session = make_session(make_model([node], {"x": [5, 2], "i": (["n"], INT64)}, {"y": ["n", 2]}))
    x = np.arange(10, dtype=FLOAT).reshape(5, 2)
    with pytest.raises(Exception, match=rf"Gather node 'lookup': index {index} is outside \[-5, 5\)"):
        session.run(None, {"x": x, "i": np.int64([0, index, 1])})
    np.testing.assert_array_equal(session.run(None, {"x": x, "i": np.int64([-5, 4])})[0], x[[0, 4]])


def test_so_it_does_with_all_values_bound_on_the_device(encore, make_model):
    node = helper.make_node("Gather", ["x", "i"], ["y"], "lookup")
    session = make_session(make_model([node], {"x": [5, 2], "i": (["n"], INT64)}, {"y": ["n", 2]}))
    x = np.arange(10, dtype=FLOAT).reshape(5, 2)
    run = encore_session.Bound(session, {"x": x, "i": np.int64([9])}, {"y": ([1, 2], FLOAT)})
    with pytest.raises(Exception, match=r"Gather node 'lookup': index 9 is outside \[-5, 5\)"):
        run.run()
    np.testing.assert_array_equal(run.run({"i": np.int64([4])})["y"], x[4:])


@pytest.mark.parametrize("regions", [0, 1])
@pytest.mark.parametrize("arrangement", encore_session.ARRANGEMENTS)
def test_so_it_does_before_a_node_on_the_cpu(encore, make_model, arrangement, regions):
    """Which waits for it; but onnxruntime goes on whatever comes of that wait."""
    nodes = [
        helper.make_node("Gather", ["x", "i"], ["a"], "lookup"),
        helper.make_node("Neg", ["a"], ["b"], "minus"),
        helper.make_node("Imputer", ["b"], ["y"], "where", domain="ai.onnx.ml", imputed_value_floats=[5.0]),
    ]
    model = make_model(nodes, {"x": [5, 2], "i": (["n"], INT64)}, {"y": ["n", 2]}, domains=("ai.onnx.ml",))
    stream = encore_session.make_stream()
    session = make_session(model, regions=regions, **encore_session.arranged(arrangement, stream))
    x = np.arange(1, 11, dtype=FLOAT).reshape(5, 2)
    for _ in range(3):
        with pytest.raises(Exception, match=r"Gather node 'lookup': index 9 is outside \[-5, 5\)"):
            session.run(None, {"x": x, "i": np.int64([9, 0])})
        np.testing.assert_array_equal(session.run(None, {"x": x, "i": np.int64([4, 0])})[0], -x[[4, 0]])


@pytest.mark.parametrize(
    "target, said",
    [
        ([7], r"Reshape"),
        ([-1, -1], r"Reshape"),
        ([-2, 6], r"Reshape"),
        ([2**40, 2**40], r"Reshape"),
    ],
)
def test_an_impossible_shape_fails_the_run(encore, make_model, target, said):
    node = helper.make_node("Reshape", ["x", "to"], ["y"], "reshape")
    session = make_session(make_model([node], {"x": [2, 3], "to": (["r"], INT64)}, {"y": None}))
    with pytest.raises(Exception, match=said):
        session.run(None, {"x": X, "to": np.int64(target)})
    np.testing.assert_array_equal(session.run(None, {"x": X, "to": np.int64([3, 2])})[0], X.reshape(3, 2))


@pytest.mark.parametrize("sizes", [[-1], [2**40, 2**40], [2**62]])
def test_a_negative_or_overflowing_size_fails_the_run(encore, make_model, sizes):
    node = helper.make_node("ConstantOfShape", ["sizes"], ["y"], "fill")
    session = make_session(make_model([node], {"sizes": (["r"], INT64)}, {"y": None}))
    with pytest.raises(Exception, match="ConstantOfShape"):
        session.run(None, {"sizes": np.int64(sizes)})
    assert session.run(None, {"sizes": np.int64([2, 0])})[0].shape == (2, 0)


def test_shapes_that_do_not_broadcast_fail_the_run(encore, make_model):
    node = helper.make_node("Add", ["a", "b"], ["y"], "sum")
    session = make_session(make_model([node], {"a": ["n"], "b": ["m"]}, {"y": None}))
    with pytest.raises(Exception, match="(?s)sum.*[34].*[34]"):
        session.run(None, {"a": np.zeros(3, FLOAT), "b": np.zeros(4, FLOAT)})
    assert session.run(None, {"a": np.zeros(3, FLOAT), "b": np.zeros(1, FLOAT)})[0].shape == (3,)


# ---- memory and devices


def test_exhausted_memory_fails_the_run_and_the_session_goes_on(encore, make_model, capfd):
    n = 1 << 20
    w = numpy_helper.from_array(np.zeros((1, 64), FLOAT), "w")
    model = make_model([helper.make_node("Mul", ["x", "w"], ["y"], "outer")], {"x": ["n", 1]}, {"y": ["n", 64]}, [w])
    session = make_session(model, gpu_mem_limit=32 << 20)
    for _ in range(2):
        with pytest.raises(Exception, match="(?i)alloc|memory"):
            session.run(None, {"x": np.zeros((n, 1), FLOAT)})
        said = capfd.readouterr().err
        assert "device memory is exhausted" in said
        assert "the limit is 33554432 bytes" in said
    assert session.run(None, {"x": np.zeros((2, 1), FLOAT)})[0].shape == (2, 64)


def test_a_loop_without_memory_for_what_it_collects(encore):
    session = make_session(
        onnx.parser.parse_model("""
            <ir_version: 10, opset_import: ["": 18]>
            model (float[n] x, int64 count) => (float[n] last, float[c,n] all) {
                [collect] last, all = Loop (count, , x)
                    <body = body (int64 i, bool go_on, float[n] a) => (bool on, float[n] b, float[n] each) {
                        on = Identity (go_on)
                        b = Neg (a)
                        each = Abs (b)
                    }>
            }"""),
        gpu_mem_limit=16 << 20,
    )
    x = np.ones(1 << 18, FLOAT)
    for _ in range(2):
        with pytest.raises(Exception, match="Loop .*'collect'.* has no memory: .*device memory is exhausted"):
            session.run(None, {"x": x, "count": np.array(9, np.int64)})
        assert session.run(None, {"x": x, "count": np.array(3, np.int64)})[1].shape == (3, 1 << 18)


def test_a_scan_without_memory_for_what_it_turns(encore):
    session = make_session(
        onnx.parser.parse_model("""
            <ir_version: 10, opset_import: ["": 18]> model (float[n,m] x) => (float[m,n] y) {
                [turn] y = Scan <num_scan_inputs = 1, scan_input_axes = [1],
                          body = body (float[n] a) => (float[n] b) { b = Neg (a) }> (x)
            }"""),
        gpu_mem_limit=10 << 20,
    )
    for _ in range(2):
        with pytest.raises(Exception, match="Scan .*'turn' .* has no memory: .*device memory is exhausted"):
            session.run(None, {"x": np.ones((1 << 18, 6), FLOAT)})
        assert session.run(None, {"x": np.ones((8, 6), FLOAT)})[0].shape == (6, 8)


def test_a_feed_beyond_the_limit_is_named_with_the_reason(encore, relu):
    """onnxruntime itself says "Allocation failed." and no more."""
    session = make_session(relu, gpu_mem_limit=1 << 20)
    why = r" has no memory to be copied to: .* 12582912 bytes \(12 MiB\) wanted, .*the limit is 1048576 bytes"
    large = np.zeros((1 << 20, 3), FLOAT)
    for _ in range(2):
        with pytest.raises(Exception, match=r"input 'x' \(float\[1048576,3\]\)" + why):
            session.run(None, {"x": large})
        with pytest.raises(Exception, match=why):
            session.io_binding().bind_cpu_input("x", large)
        works(session)


@only_if(hasattr(ort, "copy_tensors"))
def test_a_copy_to_a_tensor_of_another_size_is_refused(encore):
    """onnxruntime asks for it, and what lies behind would be written."""
    small, large = encore_session.on_device(X), encore_session.on_device(np.full((4, 4), 7, FLOAT))
    stream = encore_session.make_stream()
    for value, target in ((large, small), (small, large), (ort.OrtValue.ortvalue_from_numpy(X), large)):
        with pytest.raises(Exception, match=r"float\[.*\] cannot be copied to one of another size, float\["):
            ort.copy_tensors([value], [target], stream)
    np.testing.assert_array_equal(small.numpy(), X)
    assert (large.numpy() == 7).all()


def test_a_limit_below_the_weights_fails_the_session(encore, make_model, capfd):
    w = numpy_helper.from_array(np.zeros(1 << 20, FLOAT), "w")
    model = make_model([helper.make_node("Add", ["x", "w"], ["y"])], {"x": [1]}, {"y": [1 << 20]}, [w])
    with pytest.raises(Exception, match="(?i)alloc|memory"):
        make_session(model, gpu_mem_limit=1 << 20)
    said = capfd.readouterr().err
    assert "device memory is exhausted: 4194304 bytes" in said
    assert "the limit is 1048576 bytes" in said


def test_no_device_is_said_at_registration():
    done = in_new_process(
        "import onnxruntime_ep_encore as e; print(len(e.devices(e.register())))",
        ENCORE_VIRTUAL_DEVICES="0",
        CUDA_VISIBLE_DEVICES="",
    )
    assert done.stdout.split() == ["0"]
    assert "Encore offers no device: " in done.stderr
