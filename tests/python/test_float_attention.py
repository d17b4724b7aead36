"""Attention of floats in regions: one kernel, as TF32, or a product, a softmax and a product, which read and write
heads where they lie."""

import encore_session as es
import numpy as np
import onnxruntime_ep_encore
import pytest
from test_fused_attention import HEADS, MASKS, SIZE, WIDTH, Network, attend, feeds_of, heads_of, numbers, plain, rows_of
from test_fused_windows import BATCHES, ROWS, WINDOWS, of_five_dimensions, projections, shifted
from test_fusion import kernels_of, on_cpu

TOLERANCE = {0: 4e-6, 1: 4e-3}  # of the largest value, by whether products may be in TF32


def check(make_model, tmp_path, net, *all_feeds, tf32=0, copies=None, by_kernel=None):
    """As the CPU EP has it, NaN too; by one node, and so many copies beside the Cast at the end."""
    model = net.model(make_model)
    session = es.make_session(model, regions=1, auto_graph=1, use_tf32=tf32, dump_regions=tmp_path)
    es.assert_all_on_encore(session)
    steps = es.last_plan(tmp_path)
    assert steps.count("encore.Attention(") == 1 and "Softmax(" not in steps, steps
    for feeds in [*all_feeds] * 3:
        (wanted,), (got,) = on_cpu(model, feeds), session.run(None, feeds)
        assert got.shape == wanted.shape
        if wanted.size:
            largest = np.nanmax(np.abs(wanted))
            np.testing.assert_allclose(got, wanted, rtol=0, atol=TOLERANCE[tf32] * largest)
    if copies is not None and es.on_virtual_gpu():
        moving = [name for name in kernels_of(session, all_feeds[0]) if "Strided" in name or "Fill" in name]
        assert len(moving) == copies + 1, moving
    if by_kernel is not None and es.on_virtual_gpu():
        for feeds in all_feeds:
            ran = kernels_of(session, feeds)
            assert any("AttendTf32" in name for name in ran) == by_kernel, ran
            assert any("Softmax" in name for name in ran) != by_kernel, ran


@pytest.mark.parametrize("tf32", [0, 1])
def test_heads_of_one_batch_are_read_in_place(encore, make_model, tmp_path, tf32):
    feeds = [feeds_of(1), feeds_of(1, 70, 130), feeds_of(1, 1, 9)]
    check(make_model, tmp_path, plain("float32"), *feeds, tf32=tf32, copies=0)


def test_heads_of_several_are_made_neighbours(encore, make_model, tmp_path):
    feeds = [feeds_of(3), feeds_of(2, 70, 33), feeds_of(0), feeds_of(2, 0, 3), feeds_of(2, 3, 0)]
    check(make_model, tmp_path, plain("float32"), *feeds, copies=4)


@pytest.mark.parametrize("shape", MASKS, ids=str)
@pytest.mark.parametrize("batch", [1, 2])
def test_a_mask_is_added(encore, make_model, tmp_path, shape, batch):
    sizes = {"b": batch, "q": 5, "k": 8}
    mask = numbers([sizes.get(dim, dim) for dim in shape], 7, -4, 4)
    check(make_model, tmp_path, plain("float32", shape, mask_first=True), feeds_of(batch, keys=8) | {"mask": mask})


@pytest.mark.parametrize("zeros", [False, True])
def test_rows_that_see_nothing(encore, make_model, tmp_path, zeros):
    """They are no numbers, but where the model makes zeros of them."""
    mask = np.zeros((2, 1, 5, 7), np.float32)
    mask[0, 0, 1] = mask[1, 0, :, 3:] = -np.inf
    check(make_model, tmp_path, plain("float32", ["b", 1, "q", "k"], zeros=zeros), feeds_of() | {"mask": mask})


def test_zeros_without_a_mask_are_left(encore, make_model, tmp_path):
    model = plain("float32", zeros=True).model(make_model)
    session = es.make_session(model, regions=1, dump_regions=tmp_path)
    feeds = feeds_of()
    feeds["q"][0, 0, 0] = np.nan
    np.testing.assert_allclose(session.run(None, feeds)[0], on_cpu(model, feeds)[0], rtol=0, atol=1e-5)
    assert not any("encore.Attention" in file.read_text() for file in tmp_path.rglob("*.txt"))


@pytest.mark.parametrize("batch", [1, 2])
def test_columns_that_are_neighbours_stay_so(encore, make_model, tmp_path, batch):
    """CoAtNet's, whose heads have their sizes before their rows."""
    net = Network("float32")
    x = net.input("x", ["b", 3, HEADS, SIZE, 9])
    q, k, v = (net.node("Gather", [x, net.constant(i, np.int64)], axis=1) for i in range(3))
    q, v = (net.node("Transpose", [each], perm=(0, 1, 3, 2)) for each in (q, v))
    net.output(attend(net, q, k, v), ["b", HEADS, 9, SIZE])
    check(make_model, tmp_path, net, {"x": numbers((batch, 3, HEADS, SIZE, 9))}, copies=0 if batch == 1 else 3)


@pytest.mark.parametrize("build", [shifted, of_five_dimensions])
def test_windows(encore, make_model, tmp_path, build):
    feeds = [{"x": numbers((batch, WINDOWS, ROWS, WIDTH), batch)} for batch in BATCHES]
    check(make_model, tmp_path, build("float32"), *feeds)


@pytest.mark.parametrize("what", ["q", "k", "v"])
def test_what_is_there_once_is_there_for_all(encore, make_model, tmp_path, what):
    net = Network("float32")
    batch = {name: 1 if name == what else "b" for name in "qkv"}
    q, k, v = (net.input(name, [batch[name], HEADS, "n", SIZE]) for name in "qkv")
    y = attend(net, q, net.node("Transpose", [k], perm=(0, 1, 3, 2)), v)
    net.output(y, ["b", HEADS, "n", SIZE])
    check(make_model, tmp_path, net, {name: numbers((1 if name == what else 2, HEADS, 6, SIZE), 1) for name in "qkv"})


def test_projections_are_one_product(encore, make_model, tmp_path):
    net = Network("float32")
    q, k, v = projections(net, net.input("x", ["b", "n", WIDTH]))
    rows_of(net, attend(net, heads_of(net, q), heads_of(net, k, (0, 2, 3, 1)), heads_of(net, v)), ("b", "n", WIDTH))
    feeds = [{"x": numbers((1, rows, WIDTH), rows)} for rows in (5, 40)]
    check(make_model, tmp_path, net, *feeds, copies=0)
    plan = es.last_plan(tmp_path)
    assert plan.count("MatMul(") == 1


@es.needs_graphs
def test_it_is_captured_and_replayed(encore, make_model):
    model = plain("float32", ["b", 1, 1, "k"]).model(make_model)
    session = es.make_session(model, enable_cuda_graph=1, use_tf32=0)
    mask = np.zeros((2, 1, 1, 8), np.float32)
    bound = es.Bound(session, feeds_of(keys=8) | {"mask": mask}, {"y.out": ([2, 5, WIDTH], np.float32)})
    for seed in range(5):
        mask = np.where(np.arange(8) < 8 - seed, 0, -1e4).astype(np.float32)[None, None, None].repeat(2, 0)
        feeds = feeds_of(keys=8) | {"q": numbers((2, 5, WIDTH), seed), "mask": mask}
        (wanted,) = on_cpu(model, feeds)
        np.testing.assert_allclose(bound.run(feeds)["y.out"], wanted, rtol=0, atol=TOLERANCE[0] * np.abs(wanted).max())
    (report,) = onnxruntime_ep_encore.graph_report(session)
    assert report["state"] == "ready"


def direct(size, value_size=None, mask_shape=None, heads=HEADS, kv_heads=HEADS, **how):
    """Of heads as they come in, those of keys and values repeated as models do."""
    net = Network("float32")
    q = net.input("q", ["b", heads, "q", size])
    k = net.input("k", ["b", kv_heads, "k", size])
    v = net.input("v", ["b", kv_heads, "k", value_size or size])
    if heads != kv_heads:
        repeats = net.ints(1, 1, heads // kv_heads, 1, 1)
        k, v = (
            net.node(
                "Reshape",
                [net.node("Expand", [net.node("Unsqueeze", [x, net.ints(2)]), repeats]), net.ints(0, heads, -1, of)],
            )
            for x, of in ((k, size), (v, value_size or size))
        )
    mask = net.input("mask", mask_shape) if mask_shape else None
    kt = net.node("Transpose", [k], perm=(0, 1, 3, 2))
    net.output(attend(net, q, kt, v, mask, **how), ["b", heads, "q", value_size or size])
    return net


def heads_in(batch, queries, keys, size, value_size=None, heads=HEADS, kv_heads=HEADS):
    return {
        "q": numbers((batch, heads, queries, size), 1),
        "k": numbers((batch, kv_heads, keys, size), 2),
        "v": numbers((batch, kv_heads, keys, value_size or size), 3),
    }


@pytest.mark.parametrize("size", [8, 16, 40, 64, 80, 96, 128])
def test_one_kernel_in_tf32(encore, make_model, tmp_path, size):
    shapes = [(1, 9, 9), (3, 1, 33), (2, 197, 101), (1, 70, 5)]
    feeds = [heads_in(*shape, size) for shape in shapes]
    check(make_model, tmp_path, direct(size), *feeds, tf32=1, copies=0, by_kernel=True)


@pytest.mark.parametrize("size,value_size", [(136, 136), (16, 160), (200, 8)])
def test_sizes_that_the_kernel_does_not_take(encore, make_model, tmp_path, size, value_size):
    feeds = heads_in(2, 9, 12, size, value_size)
    check(make_model, tmp_path, direct(size, value_size), feeds, tf32=1, by_kernel=False)


def test_values_have_another_size_in_tf32(encore, make_model, tmp_path):
    check(make_model, tmp_path, direct(64, 24), heads_in(2, 40, 70, 64, 24), tf32=1, by_kernel=True)


def test_no_keys_in_tf32(encore, make_model, tmp_path):
    check(make_model, tmp_path, direct(16), heads_in(2, 3, 0, 16), heads_in(0, 3, 4, 16), heads_in(2, 0, 4, 16), tf32=1)


@pytest.mark.parametrize("batch", [1, 3])
def test_heads_of_several_are_read_in_place_in_tf32(encore, make_model, tmp_path, batch):
    feeds = [feeds_of(batch), feeds_of(batch, 70, 133), feeds_of(batch, 1, 9)]
    check(make_model, tmp_path, plain("float32"), *feeds, tf32=1, copies=0, by_kernel=True)


@pytest.mark.parametrize("shape", MASKS, ids=str)
@pytest.mark.parametrize("batch", [1, 2])
def test_a_mask_is_added_in_tf32(encore, make_model, tmp_path, shape, batch):
    sizes = {"b": batch, "q": 37, "k": 150}
    mask = numbers([sizes.get(dim, dim) for dim in shape], 7, -4, 4)
    feeds = feeds_of(batch, 37, 150) | {"mask": mask}
    check(make_model, tmp_path, plain("float32", shape), feeds, tf32=1, by_kernel=True)


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("keys", [7, 300])
def test_rows_that_see_nothing_in_tf32(encore, make_model, tmp_path, zeros, keys):
    mask = np.zeros((2, 1, 45, keys), np.float32)
    mask[0, 0, 1] = mask[1, 0, :, keys // 2 :] = mask[1, 0, 17] = -np.inf
    mask[0, 0, 3, : keys - 2] = -np.inf
    net = plain("float32", ["b", 1, "q", "k"], zeros=zeros)
    check(make_model, tmp_path, net, feeds_of(2, 45, keys) | {"mask": mask}, tf32=1, by_kernel=True)


@pytest.mark.parametrize("zeros", [False, True])
def test_what_is_no_number_stays_none_in_tf32(encore, make_model, tmp_path, zeros):
    """In a query, a key or a value, seen or masked."""
    feeds = heads_in(2, 40, 70, 16) | {"mask": np.zeros((2, 1, 1, 70), np.float32)}
    feeds["mask"][1, 0, 0, 60:] = -np.inf
    feeds["q"][0, 0, 3, 2] = feeds["k"][0, 1, 50, 7] = np.nan
    feeds["k"][0, 2, 9, 0] = feeds["q"][1, 0, 5, 1] = np.inf
    if not zeros:
        feeds["v"][1, 1, 20, 3] = np.nan
        feeds["v"][1, 2, 21, 4] = np.inf
        feeds["k"][1, 2, 65, 5] = np.nan
    net = direct(16, mask_shape=["b", 1, 1, "k"], zeros=zeros)
    check(make_model, tmp_path, net, feeds, tf32=1, by_kernel=True)


@pytest.mark.parametrize("before", [None, 5])
def test_causal_masks_and_windows_in_tf32(encore, make_model, tmp_path, before):
    rows = 140
    at, key = np.arange(rows)[:, None], np.arange(rows)
    seen = (key <= at) & (key >= at - (before if before is not None else rows))
    mask = np.where(seen, 0, -np.inf).astype(np.float32)[None, None]
    net = plain("float32", [1, 1, "q", "k"])
    check(make_model, tmp_path, net, feeds_of(2, rows, rows) | {"mask": mask}, tf32=1, by_kernel=True)


@pytest.mark.parametrize("build", [shifted, of_five_dimensions])
def test_shifted_windows_in_tf32(encore, make_model, tmp_path, build):
    feeds = [{"x": numbers((batch, WINDOWS, ROWS, WIDTH), batch)} for batch in BATCHES]
    check(make_model, tmp_path, build("float32"), *feeds, tf32=1, by_kernel=True)


@pytest.mark.parametrize("heads,kv_heads", [(6, 2), (4, 1)])
@pytest.mark.parametrize("size", [16, 136])
def test_heads_that_share_keys(encore, make_model, tmp_path, heads, kv_heads, size):
    """By the kernel where they lie; for products they are repeated, but where all are one."""
    of_heads = {"heads": heads, "kv_heads": kv_heads}
    feeds = [heads_in(batch, 30, 40, size, **of_heads) for batch in (1, 2)]
    small = size == 16
    copies = 0 if small or kv_heads == 1 else 2
    net = direct(size, **of_heads)
    check(make_model, tmp_path, net, *feeds, tf32=1, copies=copies, by_kernel=small)
    check(make_model, tmp_path, net, *feeds)
