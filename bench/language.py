#!/usr/bin/env python3
"""Times one step of a language model's decoding on Encore, eagerly and replayed, beside torch where it is installed.

    python bench/language.py [--models llama_1b_f16,llama_1b_int4] [--batch 1] [--past 1024] [--capacity 2048]
                             [--seconds 1] [--peer torch] [--json FILE] [--options tunable_op_enable=1] [--kernels 20]

The model is the one that onnxruntime-genai's builder makes: 32,000 tokens, 2,048 features, 8,192 in between, 16 layers,
32 heads of 64 that share 8 of keys and values. A step reads one token of each sequence and the caches in which `past`
positions are taken; caches, inputs and outputs stay in device memory, a layer's past and present in one buffer.
Figures are medians in microseconds, the wait for a run's end included:
  eager    a run without a graph
  replay   a replayed run
  host     what an asynchronous replay costs the calling thread
  torch    a replayed CUDA graph of the same step in plain torch, in float16
  GB/s     what a replay reads at least, weights and the caches' taken positions, in the time it takes
With --kernels so many names of kernels are listed by the time that they take in a replay, as kernel_times.py does.
"""

import argparse
import os
import statistics
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests"), str(ROOT / "tests" / "models"), str(ROOT / "bench")]

# The name under which onnxruntime applies its own fusions for CUDA; ENCORE_EP_NAME asks for another.
os.environ.setdefault("ENCORE_EP_NAME", "CUDAExecutionProvider")

import encore_session as es  # noqa: E402
import kernel_times  # noqa: E402
import language_zoo  # noqa: E402
import models  # noqa: E402
import numpy as np  # noqa: E402
import onnxruntime as ort  # noqa: E402
from onnx import helper  # noqa: E402

COLUMNS = ["model", "batch", "past", "nodes", "on_cpu", "create_ms", "eager_us", "replay_us", "host_us", "GB/s"]


def file_of(name, kind):
    folder = Path(os.environ.get("ENCORE_MODEL_CACHE") or ROOT / "build" / "models") / f"{name}_{kind}"
    if not (folder / "model.onnx").exists():
        language_zoo.save(name, kind, folder)
    return folder / "model.onnx"


def bind(session, shapes, batch, past, capacity):
    """A step's binding, what it keeps alive, and the bytes of the positions that are taken."""
    binding, keep, taken = session.io_binding(), [], 0
    mask = np.arange(capacity) < np.full((batch, 1), past + 1)
    for name, array in {"input_ids": np.full((batch, 1), 7), "attention_mask": mask}.items():
        keep.append(es.on_device(array.astype(np.int64)))
        binding.bind_ortvalue_input(name, keep[-1])
    logits = session.get_outputs()[0]
    dtype = models.NUMPY[logits.type]
    keep.append(es.empty_on_device((batch, 1, logits.shape[-1]), dtype))
    binding.bind_ortvalue_output("logits", keep[-1])
    rng = np.random.default_rng(0)
    for name, shape in shapes.items():
        keep.append(es.on_device(rng.standard_normal(shape, np.float32).astype(dtype)))
        binding.bind_ortvalue_input(name, keep[-1])
        binding.bind_ortvalue_output(name.replace("past_key_values", "present"), keep[-1])
        taken += np.dtype(dtype).itemsize * np.prod(shape) // shape[2] * min(past, shape[2])
    return binding, keep, int(taken)


def figures(name, kind, args, options):
    file = file_of(name, kind)
    graph = language_zoo.graph(name, kind)
    start = time.perf_counter()
    session = es.make_session(str(file), **{"enable_cuda_graph": 1, "use_tf32": 1, **options})
    placed = es.nodes_on(session)
    row = {
        "model": f"{name}_{kind}",
        "batch": args.batch,
        "past": args.past,
        "nodes": len(placed.get(es.EP_NAME, [])),
        "on_cpu": sum(len(nodes) for provider, nodes in placed.items() if provider != es.EP_NAME),
        "create_ms": (time.perf_counter() - start) * 1e3,
    }
    shapes = language_zoo.cache_shapes(graph, args.batch, args.capacity)
    binding, _keep, taken = bind(session, shapes, args.batch, args.past, args.capacity)
    eager, replayed = es.run_options(es.EAGER), es.run_options(0)
    row["eager_us"] = models.median_us(lambda: session.run_with_iobinding(binding, eager), args.seconds)
    session.run_with_iobinding(binding, replayed)  # captures
    row["replay_us"] = models.median_us(lambda: session.run_with_iobinding(binding, replayed), args.seconds)
    asynchronous = es.run_options(0, disable_synchronize_execution_providers=1)
    times = []
    for _ in range(20):
        start = time.perf_counter()
        session.run_with_iobinding(binding, asynchronous)
        times.append(time.perf_counter() - start)
        binding.synchronize_outputs()
    row["host_us"] = statistics.median(times) * 1e6
    row["GB/s"] = (read_bytes(graph, args.batch) + taken) / row["replay_us"] / 1e3
    if args.kernels:
        row["kernels"] = kernel_times.kernels_of(lambda: session.run_with_iobinding(binding, replayed))
    return row


def read_bytes(graph, batch):
    """Of weights: of an embedding that is looked up only the rows that are."""
    total = 0
    for tensor in graph.graph.initializer:
        dims = (batch, tensor.dims[1]) if tensor.name == language_zoo.EMBEDDING else tensor.dims
        total += helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize * int(np.prod(dims))
    return total


def torch_figure(graph, args):
    """The same step in plain torch, captured: as much as it can know beforehand, which is how long the caches are."""
    import torch
    from torch.nn import functional

    weights = {tensor.name: tuple(tensor.dims) for tensor in graph.graph.initializer}
    make = lambda *dims: torch.randn(*dims, device="cuda", dtype=torch.float16) * dims[-1] ** -0.5
    of_layers = lambda part: [dims for name, dims in weights.items() if name.endswith(part)]
    batch, past = args.batch, args.past
    caches = list(language_zoo.cache_shapes(graph, batch, args.capacity).values())
    kv_heads, head = caches[0][1], caches[0][3]
    features, vocabulary = weights[language_zoo.HEAD]
    layers = [
        {"qkv": make(*qkv[::-1]), "out": make(*out[::-1]), "gate": make(*up[::-1]), "up": make(*up[::-1])}
        | {"down": make(*up), "k": make(*shape), "v": make(*shape)}
        for qkv, out, up, shape in zip(
            of_layers("qkv_proj.MatMul.weight"),
            of_layers("o_proj.MatMul.weight"),
            of_layers("up_proj.MatMul.weight"),
            caches[0::2],
        )
    ]
    heads = layers[0]["out"].shape[1] // head
    embedding, lm_head = make(vocabulary, features), make(vocabulary, features)
    gamma = torch.ones(features, device="cuda", dtype=torch.float16)
    cos = torch.randn(head // 2, device="cuda", dtype=torch.float16)
    sin = torch.randn(head // 2, device="cuda", dtype=torch.float16)
    ids = torch.full((batch,), 7, device="cuda")

    def rotate(x):
        a, b = x.chunk(2, -1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)

    def step():
        x = embedding[ids]
        for layer in layers:
            qkv = functional.linear(functional.rms_norm(x, (features,), gamma), layer["qkv"])
            q, k, v = qkv.view(batch, -1, head).split((heads, kv_heads, kv_heads), 1)
            layer["k"][:, :, past] = rotate(k)
            layer["v"][:, :, past] = v
            keys, values = layer["k"][:, :, : past + 1], layer["v"][:, :, : past + 1]
            query = rotate(q)[:, :, None]
            seen = functional.scaled_dot_product_attention(query, keys, values, enable_gqa=True)
            x = x + functional.linear(seen.reshape(batch, -1), layer["out"])
            normed = functional.rms_norm(x, (features,), gamma)
            gated = functional.silu(functional.linear(normed, layer["gate"])) * functional.linear(normed, layer["up"])
            x = x + functional.linear(gated, layer["down"])
        return functional.linear(functional.rms_norm(x, (features,), gamma), lm_head)

    return models.torch_replay_us(step, args.seconds)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="llama_1b_f16,llama_1b_int4")
    parser.add_argument("--past", type=int, default=1024)
    parser.add_argument("--capacity", type=int, default=2048)
    parser.add_argument("--kernels", type=int, default=0, help="names to list; wants torch")
    models.add_arguments(parser)
    args = parser.parse_args()
    options = models.provider_options(args)
    ort.set_default_logger_severity(3)

    done = []

    def rows():
        for model in args.models.split(","):
            name, kind = model.rsplit("_", 1)
            row = figures(name, kind, args, options)
            row["torch_us"] = torch_figure(language_zoo.graph(name, "f16"), args) if args.peer else None
            done.append(row)
            yield row

    models.print_table([*COLUMNS, "torch_us"], rows(), args.json)
    for row in done if args.kernels else ():
        kernel_times.print_kernels(row["model"], *row["kernels"], args.kernels)


if __name__ == "__main__":
    main()
