"""Language models of onnxruntime-genai's builder: prompts read, tokens chosen, with caches that stay in place.

The past and the present of a layer are one buffer. A step's inputs and outputs stay where they are too, so that one
captured graph serves every step of a batch size, however long the sequences have become. Caches may hold codes, or be
in pages that are handed out in any order.
"""

import os
import subprocess
import sys

import encore_session as es
import language_zoo
import numpy as np
import onnxruntime as ort
import onnxruntime_ep_encore
import pytest
from onnx import TensorProto

CAPACITY = 96  # positions in a cache
TOKENS = 64  # that follow each prompt
RNG = np.random.default_rng(0)
PROMPTS = [RNG.integers(3, 512, length) for length in (1, 7, 24)]
NUMPY = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(int8)": np.int8,
    "tensor(uint8)": np.uint8,
    "tensor(float8e4m3fn)": np.uint8,  # its bits
}
SLOTS = 16  # in a page
RING = 48  # positions that a layer with a window keeps: a prompt and the window

# Of the truth's logits the best is this far from the second best, in standard deviations, wherever a token is chosen:
# several times as much as float16 moves them. ALMOST as good tokens may be chosen with tied embeddings, for which no
# seed has such margins; where another rounding makes another code of four bits; and where floats of eight bits are held
# against float32.
SEEDS = {
    ("llama", "f16"): 60,
    ("llama", "int4"): 92,
    ("llama", "cache_int8"): 25,
    ("llama", "cache_int4"): 43,
    ("llama", "cache_fp8"): 7,
    ("gptoss", "f16"): 30,
    ("gptoss", "int4"): 28,
    ("qwen", "f16"): 37,
    ("qwen", "int4"): 37,
}
PAGED = {
    ("llama", "paged"): 60,
    ("llama", "paged_int8"): 25,
    ("llama", "paged_int4"): 43,
    ("gptoss", "paged"): 30,
    ("qwen", "paged"): 37,
}
ALMOST = {"qwen": 0.02, "cache_int4": 0.1, "paged_int4": 0.1, "cache_fp8": 0.5}
# Only shapes' arithmetic, which the host needs the result of.
ON_HOST = {"Gather", "Cast"}


def caches(session, shapes):
    """Buffers of these shapes for inputs of these names."""
    types = {item.name: item.type.removeprefix("tensor(").removesuffix(")") for item in session.get_inputs()}
    make = lambda name, shape: ort.OrtValue.ortvalue_from_shape_and_type(
        shape, TensorProto.DataType.Value(types[name].upper()), "gpu", 0, es.NVIDIA
    )
    return {name: make(name, list(shape)) for name, shape in shapes.items()}


def bind_caches(run, caches):
    for name, cache in caches.items():
        run.binding.bind_ortvalue_input(name, cache)
        run.binding.bind_ortvalue_output(name.replace("past_key_values", "present"), cache)


def clear(caches):
    """Whoever reads what nobody has written is found out: NaN, or the loudest of codes."""
    for cache in caches.values():
        dtype = NUMPY[cache.data_type()]
        cache.update_inplace(np.full(cache.shape(), np.nan if dtype == np.float16 else 0x7F, dtype))


class Steps:
    """What the steps of one batch size are bound to."""

    def __init__(self, session, model, batch):
        self.session, self.batch = session, batch
        self.shapes = language_zoo.cache_shapes(model, batch, CAPACITY)
        self.logits = NUMPY[session.get_outputs()[0].type]
        self.caches = caches(session, self.shapes)
        self.step = self._bound(1, CAPACITY)

    def _bound(self, length, mask):
        """A run that reads so many tokens, with a mask of so many positions."""
        feeds = {"input_ids": (self.batch, length), "attention_mask": (self.batch, mask)}
        vocabulary = self.session.get_outputs()[0].shape[-1]
        run = es.Bound(
            self.session,
            {name: np.ones(shape, np.int64) for name, shape in feeds.items()},
            {"logits": ((self.batch, length, vocabulary), self.logits)},
        )
        bind_caches(run, self.caches)
        return run

    def generate(self, prompts, graph_id):
        """The tokens that follow each prompt; shorter ones are padded behind."""
        clear(self.caches)
        lengths = np.array([len(prompt) for prompt in prompts])
        ids = np.zeros((self.batch, lengths.max()), np.int64)
        for row, prompt in zip(ids, prompts):
            row[: len(prompt)] = prompt
        there = np.arange(ids.shape[1]) < lengths[:, None]
        first = self._bound(*there.shape[1:], there.shape[1])
        logits = first.run({"input_ids": ids, "attention_mask": there.astype(np.int64)}, graph_id=es.EAGER)["logits"]
        chosen = [logits[np.arange(self.batch), lengths - 1].argmax(-1)]
        for step in range(1, TOKENS):
            mask = np.arange(CAPACITY) < lengths[:, None] + step
            feeds = {"input_ids": chosen[-1][:, None], "attention_mask": mask.astype(np.int64)}
            chosen.append(self.step.run(feeds, graph_id=graph_id)["logits"][:, 0].argmax(-1))
        return np.stack(chosen, axis=1)


class Pages:
    """What the runs of some sequences share, each of which is given pages as it grows, up to CAPACITY positions.

    A layer with a window has other pages, fewer, which come again and again.
    """

    def __init__(self, session, sequences):
        self.session, self.sequences = session, sequences
        self.tables, shapes = {}, {}
        for item in session.get_inputs():
            kept = RING if "windowed" in str(item.shape[0]) or "windowed" in item.name else CAPACITY
            pages = sequences * kept // SLOTS
            if item.name.startswith("past_key_values"):
                shapes[item.name] = (pages, SLOTS, *item.shape[2:])
            elif item.name.startswith("block_table"):
                rows = np.random.default_rng(1).permutation(pages).reshape(sequences, -1)
                self.tables[item.name] = np.tile(rows, CAPACITY // kept).astype(np.int32)
        self.caches = caches(session, shapes)
        self.step = self._bound([1] * sequences, [1, CAPACITY, 0])

    def _bound(self, lengths, bounds):
        """A run that reads so many new tokens of each sequence."""
        tokens = sum(lengths)
        feeds = {
            "input_ids": np.zeros(tokens, np.int64),
            "past_sequence_lengths": np.zeros(self.sequences, np.int32),
            "cumulative_sequence_lengths": np.cumsum([0, *lengths], dtype=np.int32),
        }
        logits = self.session.get_outputs()[0]
        run = es.Bound(self.session, feeds | self.tables, {"logits": ((tokens, logits.shape[-1]), NUMPY[logits.type])})
        run.binding.bind_cpu_input("attention_metadata", np.array(bounds, np.int32))
        bind_caches(run, self.caches)
        return run

    def generate(self, prompts, arrivals, graph_id):
        """The tokens that follow each prompt; prompts arrive at steps in which other sequences are further on."""
        clear(self.caches)
        chosen = [[] for _ in prompts]
        pasts = np.zeros(self.sequences, np.int32)
        for step in range(max(arrivals) + TOKENS):
            news = [
                prompt if step == arrival else tokens[-1:] for prompt, arrival, tokens in zip(prompts, arrivals, chosen)
            ]
            lengths = np.array([len(new) for new in news])
            needed = np.arange(0, CAPACITY, SLOTS) < (pasts + lengths)[:, None]
            feeds = {name: np.where(needed, table, np.int32(-1)) for name, table in self.tables.items()}
            feeds |= {"input_ids": np.concatenate(news).astype(np.int64), "past_sequence_lengths": pasts}
            if (lengths == 1).all():
                logits = self.step.run(feeds, graph_id=graph_id)["logits"]
            else:
                bounds = [lengths.max(), (pasts + lengths).max(), 0]
                logits = self._bound(lengths, bounds).run(feeds, graph_id=es.EAGER)["logits"]
            for tokens, length, end in zip(chosen, lengths, np.cumsum(lengths)):
                if length:
                    tokens.append(logits[end - 1].argmax())
            pasts += lengths.astype(np.int32)
        return [np.array(tokens[:TOKENS]) for tokens in chosen]


def regrets(truth, prompt, tokens):
    """How much better the truth's best token is than each that was chosen, in the logits' standard deviations."""
    ids = np.concatenate([prompt, tokens])[None, :-1]
    feeds = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
    for item in truth.get_inputs():
        if item.name.startswith("past_key_values"):
            size = item.shape[3] if isinstance(item.shape[3], int) else truth.head
            feeds[item.name] = np.zeros((1, item.shape[1], 0, size), NUMPY[item.type])
    logits = truth.run(["logits"], feeds)[0][0, len(prompt) - 1 :].astype(np.float32)
    return (logits.max(-1) - logits[np.arange(len(tokens)), tokens]) / logits.std(-1)


def truth_for(name, kind, seed):
    """The float32 model, or one with a cache of the same codes; the CPU has none of floats of eight bits."""
    if kind in ("cache_int4", "cache_int8", "paged_int4", "paged_int8"):
        return on_cpu(language_zoo.load(name, kind.replace("paged", "cache"), seed))
    model = language_zoo.load(name, "f32", seed, rounded=kind == "int4")
    return on_cpu(language_zoo.without_windowed_caches(model))


def almost(name, kind):
    return ALMOST.get(kind, ALMOST.get(name, 0))


def on_cpu(model):
    session = es.on_cpu(model)
    session.head = next(iter(language_zoo.cache_shapes(model, 1, 1).values()))[-1]
    return session


@pytest.mark.newest
@es.needs_graphs
@pytest.mark.parametrize("name, kind", SEEDS)
def test_greedy_tokens(encore, name, kind):
    seed = SEEDS[name, kind]
    truth = truth_for(name, kind, seed)
    model = language_zoo.load(name, kind, seed)
    session = es.make_session(model, enable_cuda_graph=1)
    placed = es.nodes_on(session)
    elsewhere = {op for provider, ops in placed.items() if provider != es.EP_NAME for op in ops}
    assert elsewhere <= ON_HOST, f"nodes are elsewhere: {placed}"

    kept = []  # with its buffers, or its graph is captured anew
    for batch in (1, 2):
        steps = Steps(session, model, batch)
        kept.append(steps)
        steps.step.run(graph_id=batch)  # captured with any contents: the caches are cleared before they are used
        for prompts in [PROMPTS[1:]] if batch == 2 else [[prompt] for prompt in PROMPTS]:
            eager = steps.generate(prompts, es.EAGER)
            np.testing.assert_array_equal(steps.generate(prompts, batch), eager)
            for prompt, tokens in zip(prompts, eager):
                assert len(set(tokens)) > 8, f"hardly anything to tell apart: {tokens}"
                assert (regrets(truth, prompt, tokens) <= almost(name, kind)).all()
    reports = onnxruntime_ep_encore.graph_report(session)
    assert {report["id"]: report["state"] for report in reports} == {1: "ready", 2: "ready"}
    assert [report["replays"] for report in reports] == [len(PROMPTS) * (TOKENS - 1), TOKENS - 1]


@pytest.mark.newest
@pytest.mark.parametrize("name, norms", [("llama", 5), ("qwen", 5), ("gptoss", 3)])
def test_products_by_four_bits_norm_their_rows(encore, name, norms):
    """But for those of experts."""
    if not es.on_virtual_gpu():
        return
    model = language_zoo.load(name, "int4")
    session = es.make_session(model)
    step = Steps(session, model, 1).step
    kernels = [work["name"] for work in es.trace(session, step.run) if work["what"] == "kernel"]
    assert sum("RowsNormed" in kernel for kernel in kernels) == norms
    assert sum("NormalizeFewRows" in kernel for kernel in kernels) == 5 - norms


@pytest.mark.newest
@es.needs_graphs
@pytest.mark.parametrize("name, kind", PAGED)
def test_pages(encore, name, kind):
    seed = PAGED[name, kind]
    truth = truth_for(name, kind, seed)
    session = es.make_session(language_zoo.load(name, kind, seed), enable_cuda_graph=1)
    es.assert_all_on_encore(session)

    # One prompt, two at once, and one that is read beside another sequence's step.
    kept = []
    for graph_id, arrivals in enumerate(([0], [0, 0], [0, 5])):
        prompts = PROMPTS[-len(arrivals) :]
        pages = Pages(session, len(prompts))
        kept.append(pages)
        pages.step.run(graph_id=graph_id)
        eager = pages.generate(prompts, arrivals, es.EAGER)
        replayed = pages.generate(prompts, arrivals, graph_id)
        for prompt, tokens, again in zip(prompts, eager, replayed):
            np.testing.assert_array_equal(again, tokens)
            assert len(set(tokens)) > 8, f"hardly anything to tell apart: {tokens}"
            assert (regrets(truth, prompt, tokens) <= almost(name, kind)).all()
    reports = onnxruntime_ep_encore.graph_report(session)
    assert [(report["state"], report["replays"]) for report in reports] == [("ready", TOKENS - 1)] * 3


@pytest.mark.newest
@es.needs_graphs
@pytest.mark.parametrize("name", ["llama", "gptoss"])
def test_example(name, tmp_path):
    model = language_zoo.save(name, "f16", tmp_path, SEEDS[name, "f16"])
    (tmp_path / "genai_config.json").write_text((language_zoo.GRAPHS / f"{name}.json").read_text())
    prompt = PROMPTS[-1]
    command = [sys.executable, es.ROOT / "examples" / "generate.py", model.parent, *map(str, prompt)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(es.ROOT / "python"), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    tokens = np.array([int(token) for token in done.stdout.split()])
    assert len(tokens) == TOKENS
    assert (regrets(truth_for(name, "f16", SEEDS[name, "f16"]), prompt, tokens) == 0).all()
