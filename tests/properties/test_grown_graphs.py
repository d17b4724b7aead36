"""Whole graphs: regions give what single nodes do, automatic graphs what regions do, and all what the CPU EP does."""

import os
import tempfile
from pathlib import Path

import encore_session as es
import numpy as np
import onnx.printer
import onnxruntime as ort
import onnxruntime_ep_encore
import pytest
from hypothesis import assume, given, note, settings
from hypothesis import strategies as st

from properties.grown import CONTENTS, FLOATS, SETTINGS, Graph
from properties.growth import MORE, grow

pytestmark = pytest.mark.newest

# Passes after which sums have another order, or halves are rounded elsewhere; the others change no bit.
THAT_ROUND = (
    "joined_masks attention softmaxes gates norms biases gelu tanh_gelu quick_gelu bias_gelu residuals products "
    "channels_last convolutions convolution_sums group_norms group_norm_activations folded_batch_norms batch_norms "
    "projections einsums product_sums product_activations layer_scales norm_sums reduction_casts gated_products "
    "squeeze_excite read_parts"
).split()
# What the CPU EP computes as Encore does, where onnxruntime leaves arithmetic of shapes to it.
EXACT_ON_CPU = set(
    "Abs Add Cast Concat Div Equal Gather Greater GreaterOrEqual Identity Less LessOrEqual Max Min Mod Mul Neg Range "
    "Relu Reshape SequenceAt SequenceConstruct Shape Sign Slice Sqrt Squeeze Sub Unsqueeze Where".split()
)
LEVELS = ort.GraphOptimizationLevel
LAYOUTS = [{}, {"prefer_nhwc": 1}, {"use_tf32": 1}]
TF32 = 500  # times the errors of float
WAYS = [
    {},
    {},
    {"auto_graph_limit": 1},
    {"auto_graph_limit": 2},
    {"gpu_mem_limit": 1 << 20, "arena.initial_chunk_size_bytes": 1 << 14},
    {"use_arena": 0},
    {"arena.use_cuda_mempool": 1},
    {"do_copy_in_default_stream": 0},
    {"use_ep_level_unified_stream": 1},
    *map(dict, LAYOUTS[1:]),
    {"user_compute_stream": "given"},
]


# What vision models and transformers are made of: pictures and rows, which are turned into one another.
BLOCKS = (
    "convolution depthwise branches group_norm batch_norm projections projections attention transpose transpose "
    "reshape reshape split cut product residual pair unary".split()
)
OF_BLOCKS = [["n", 4, 5, 6], ["n", 8, "m", 4], ["n", 6, 16], ["n", "m", 8], [2, 16, 4, 4]]


def draw_blocks(data):
    it = Graph(data, opset=data.draw(st.sampled_from([21, 18])))
    it.input(it.pick("float16", "float16", "float32"), *it.pick(*OF_BLOCKS))
    wanted = it(st.integers(3, 24))
    for _ in range(3 * wanted):
        if len(it.nodes) < wanted:
            grow(it, BLOCKS, always=True)
    return it


def draw_graph(data):
    it = Graph(data, opset=data.draw(st.sampled_from([21, 18, 23])))
    kind = it.pick(*FLOATS)
    dims = st.sampled_from(["n", "m", 4, 8, 2, 1, 3])
    it.input(kind, *it(st.lists(dims, min_size=1, max_size=4) | st.just(["n", 4, "m", 8])))
    if it.chance(2):
        it.input(it.pick(*FLOATS), *it(st.lists(dims, max_size=3)))
    if it.chance(3):
        it.input("int64", *it(st.lists(dims, max_size=2)), most=4)
    if it.chance(3):
        it.input("bool", *it(st.lists(dims, max_size=2)), most=1)
    wanted, more = it(st.integers(3, 40)), it(st.sampled_from([None, *MORE]))
    for _ in range(2 * wanted):
        if len(it.nodes) < wanted:
            grow(it, more)
    assume(it.nodes)
    return it


def quiet(level):
    options = ort.SessionOptions()
    options.graph_optimization_level = level
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    return options


class Tried:
    """A graph, the sessions that run it, and what they are to give."""

    def __init__(self, it, level):
        self.it, self.level = it, level
        self.ends = it.outputs()
        model = it.model(self.ends)
        note(onnx.printer.to_text(model))
        self.model = model.SerializeToString()
        if kept := os.environ.get("ENCORE_KEEP_MODEL"):  # of which a crash leaves the last
            Path(kept).write_bytes(self.model)
        self.names = [end.name for end in self.ends]
        self.all = [(setting, seed) for setting in range(SETTINGS) for seed in range(CONTENTS)]

    def session(self, **options):
        return es.make_session(self.model, quiet(self.level), **options)

    def feeds(self, which):
        return self.it.feeds(*which)

    def run(self, session):
        return {which: session.run(self.names, self.feeds(which)) for which in self.all}

    def on_cpu(self):
        session = ort.InferenceSession(self.model, quiet(self.level), providers=["CPUExecutionProvider"])
        return self.run(session)


def same(got, wanted, names):
    for name, a, b in zip(names, got, wanted, strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype), name
        if a.tobytes() != b.tobytes():
            np.testing.assert_array_equal(a, b, err_msg=name)


def near(got, wanted, ends, what, times):
    """As near as rounding may lead them."""
    for which in wanted:
        for end, a, b in zip(ends, got[which], wanted[which], strict=True):
            told = f"{end.name} {what}, in {which}"
            assert (a.shape, a.dtype) == (b.shape, b.dtype), told
            assert list(a.shape) == [sizes[which[0]] for sizes in end.dims], told
            if not end.error:
                np.testing.assert_array_equal(a, b, err_msg=told)
            elif np.isfinite(end.error):
                np.testing.assert_allclose(
                    a.astype(float), b.astype(float), rtol=0, atol=times * end.error, err_msg=told
                )


def rounds(folder):
    """Whether a pass has done more than to leave out and to move."""
    for region in Path(folder).iterdir():
        texts = {}
        for file in sorted(region.iterdir()):
            steps = [line for line in file.read_text().splitlines() if not line.startswith("#")]
            texts[file.stem.partition("_")[2]] = steps
        before = None
        for name, steps in texts.items():
            if steps != before and name in THAT_ROUND:
                return True
            before = steps
    return False


twice_as_many = settings(max_examples=2 * settings().max_examples)


@twice_as_many
@given(st.data())
@pytest.mark.parametrize("draw", [draw_graph, draw_blocks])
def test_regions(draw, data):
    it = draw(data)
    assume(it.nodes)
    level = data.draw(st.sampled_from([LEVELS.ORT_DISABLE_ALL] * 3 + [LEVELS.ORT_ENABLE_ALL]))
    tried = Tried(it, level)
    layout = data.draw(st.sampled_from(LAYOUTS))
    session = tried.session(regions=0, fuse_nodes=0, **layout)
    single = tried.run(session)
    with tempfile.TemporaryDirectory() as folder:
        joined = tried.run(tried.session(regions=1, dump_regions=folder, **layout))
        to_the_bit = level == LEVELS.ORT_DISABLE_ALL and not rounds(folder)
    to_the_bit &= EXACT_ON_CPU.issuperset(es.nodes_on(session).get("CPUExecutionProvider", []))
    if to_the_bit:
        for which in tried.all:
            same(joined[which], single[which], tried.names)
    times = TF32 if "use_tf32" in layout else 1
    near(joined, single, tried.ends, "beside single nodes", times)
    near(single, tried.on_cpu(), tried.ends, "beside the CPU EP", times)


class Steps:
    """What one thread does with a session of automatic graphs."""

    def __init__(self, tried, session, wanted):
        self.tried, self.session, self.wanted = tried, session, wanted
        self.bound = {}

    def run(self, steps):
        for how, *which in steps:
            which = tuple(which)
            getattr(self, how)(which)

    def arrays(self, which):
        same(self.session.run(self.tried.names, self.tried.feeds(which)), self.wanted[which], self.tried.names)

    def bind(self, which):
        """Where contents are alike, so are buffers."""
        forms = {name: (y.shape, y.dtype) for name, y in zip(self.tried.names, self.wanted[which])}
        feeds = self.tried.feeds(which)
        bound = es.Bound(self.session, feeds, forms)
        places = {id(array): bound.inputs[name] for name, array in feeds.items()}
        bound.inputs = {name: places[id(array)] for name, array in feeds.items()}
        return bound

    def stays(self, which, **entries):
        key = which[0], which[1] == CONTENTS - 1
        if key not in self.bound:
            self.bound[key] = self.bind(which)
        bound = self.bound[key]
        for name, array in self.tried.feeds(which).items():
            bound.inputs[name].update_inplace(np.asarray(array, order="C"))
            # What nodes on the CPU read onnxruntime has copied to the host when it was bound.
            bound.binding.bind_ortvalue_input(name, bound.inputs[name])
        self.session.run_with_iobinding(bound.binding, es.run_options(**entries))
        bound.binding.synchronize_outputs()
        same([value.numpy() for value in bound.outputs.values()], self.wanted[which], self.tried.names)

    def moves(self, which):
        self.bound.pop((which[0], which[1] == CONTENTS - 1), None)
        self.stays(which)

    def unawaited(self, which):
        self.stays(which, disable_synchronize_execution_providers=1)

    def held(self, which):
        with onnxruntime_ep_encore.captures_held_back(self.session):
            self.arrays(which)


HOW = ["arrays", "stays", "moves", "unawaited"]


def steps(data, how):
    one = st.tuples(st.sampled_from(how), st.integers(0, SETTINGS - 1), st.integers(0, CONTENTS - 1))
    return data.draw(st.lists(one, min_size=4, max_size=24))


@twice_as_many
@given(st.data())
def test_automatic_graphs(data):
    it = draw_graph(data)
    tried = Tried(it, data.draw(st.sampled_from([LEVELS.ORT_DISABLE_ALL, LEVELS.ORT_ENABLE_ALL])))
    options = data.draw(st.sampled_from(WAYS))
    layout = {key: options[key] for key in options if key in ("prefer_nhwc", "use_tf32")}
    stream = es.make_stream()
    options = {key: stream.get_handle() if value == "given" else value for key, value in options.items()}
    wanted = tried.run(tried.session(regions=1, auto_graph=0, **layout))
    session = tried.session(regions=1, auto_graph=1, **options)
    how = data.draw(st.sampled_from([HOW, HOW, [*HOW, "held"]]))
    threads = [steps(data, how) for _ in range(data.draw(st.sampled_from([1, 3])))]
    if len(threads) == 1:
        Steps(tried, session, wanted).run(threads[0])
    elif wrong := es.in_threads(len(threads), lambda i: Steps(tried, session, wanted).run(threads[i])):
        raise wrong[0]
    if "gpu_mem_limit" not in options and "held" not in how:
        Steps(tried, session, wanted).run([("arrays", 0, 0)] * 4)
        assert_replays(session)


def assert_replays(session):
    """Whatever ran four times alike has been replayed, or says why not."""
    told = onnxruntime_ep_encore.region_report(session)
    ran = [region for region in told if region["first_runs"]]
    assert not ran or any(region["replays"] or region["refusal"] or region["crowded"] for region in ran), told
