"""What models take at their peak besides weights: no more by regions than by onnxruntime's own plan."""

from pathlib import Path

import encore_session as es
import numpy as np
import onnxruntime_ep_encore
import pytest
import zoo

pytestmark = pytest.mark.newest

ENCODERS = sorted(file.stem for file in (Path(__file__).parent / "encoders").glob("*.onnx"))
UNIT = 256  # of which a block has whole ones
HIDDEN = 64  # floats of a token
HEADS = 4
FEW_ROWS = 128


def of_encoder(name):
    model = zoo.filled(Path(__file__).parent / "encoders" / f"{name}.onnx")

    def feeds(batch, length):
        ids = np.random.default_rng(0).integers(3, 200, (batch, length))
        return {"input_ids": ids, "attention_mask": np.ones_like(ids)}

    return model, [feeds(*shape) for shape in ((1, 8), (4, 64), (3, 27))]


def of_zoo(name):
    return zoo.load(name), [zoo.inputs(name, batch=batch) for batch in (1, 3)]


MODELS = {name: of_encoder for name in ENCODERS} | {"chain_f32": of_zoo, "mobilenet_v3_f32": of_zoo}


def rounded(arrays):
    return sum(-(-array.nbytes // UNIT) * UNIT for array in arrays)


def peak(model, feeds, **options):
    """Of runs, beside what the session has before; the bytes of inputs, and of outputs."""
    session = es.make_session(model, **options)
    arena = lambda: onnxruntime_ep_encore.memory_report(session)["arena"]
    before = arena()["in_use_bytes"]
    for _ in range(3):  # onnxruntime plans in the second, as a graph is captured then
        outputs = session.run(None, feeds)
    return arena()["peak_in_use_bytes"] - before, rounded(feeds.values()), rounded(outputs), session


@pytest.mark.parametrize("tf32", [0, 1])
@pytest.mark.parametrize("name", MODELS)
def test_regions_take_no_more_than_nodes_do(name, tf32):
    es.registered()
    model, all_feeds = MODELS[name](name)
    for feeds in all_feeds:
        nodes, ins, outs, _ = peak(model, feeds, regions=0, auto_graph=0, use_tf32=tf32)
        regions, _, _, _ = peak(model, feeds, regions=1, auto_graph=0, use_tf32=tf32)
        graphs, _, _, session = peak(model, feeds, regions=1, auto_graph=1, use_tf32=tf32)
        told = {key: one.shape for key, one in feeds.items()}
        # The block that a plan lies in is whole, also when outputs are made, by which time little of it is needed.
        most = nodes + outs
        # Attention of floats by products copies queries and keys of several sequences, so that one product finds all
        # heads, and has its output beside them; the product of queries, keys and values is there as a whole meanwhile,
        # where nodes have let go of queries and keys as they were before they were turned.
        ids = feeds.get("input_ids")
        if ids is not None and len(ids) > 1 and not tf32:
            most += 3 * ids.size * HIDDEN * 4
        # In TF32 it is a kernel that has neither. A product of few rows lies in up to four parts, which its norm adds
        # up.
        elif ids is not None and ids.size < FEW_ROWS:
            most += 3 * ids.size * HIDDEN * 4
        assert regions <= most, told
        # A graph has places of its own for the tensors that it copies, since these are elsewhere each time. Its
        # branches look up the embeddings of words, positions and types at a time, and make the mask.
        if ids is not None:
            most += 2 * ids.size * HIDDEN * 4
        assert graphs <= most + ins + outs, told
        (region,) = onnxruntime_ep_encore.region_report(session)
        (shapes,) = region["shapes"]
        assert shapes["inputs"] == {key: list(one.shape) for key, one in feeds.items()}


@pytest.mark.parametrize("name", ["bert_dynamo", "bert_script"])
def test_attention_in_tf32_has_no_scores_in_memory(name):
    es.registered()
    model, _ = of_encoder(name)
    batch, length = 2, 100
    ids = np.random.default_rng(0).integers(3, 200, (batch, length))
    feeds = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
    products, kernel = (peak(model, feeds, regions=1, auto_graph=1, use_tf32=tf32)[0] for tf32 in (0, 1))
    scores = batch * HEADS * length * length * 4
    assert kernel <= products - scores // 2
