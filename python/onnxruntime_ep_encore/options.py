"""The provider's options as session() takes them; made from the table in the code by `./encore docs`.

None is an option's default.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Literal, TypedDict

# Those whose keys are no names in Python: `few: Options = {"arena.max_mem": 1 << 30}`, session(model, **few).
_Dotted = TypedDict(
    "_Dotted",
    {
        "arena.max_mem": int | Literal["unlimited"] | None,
        "arena.extend_strategy": Literal["kNextPowerOfTwo", "kSameAsRequested"] | None,
        "arena.initial_chunk_size_bytes": int | None,
        "arena.initial_growth_chunk_size_bytes": int | None,
        "arena.max_power_of_two_extend_bytes": int | None,
        "arena.max_dead_bytes_per_chunk": int | None,
        "arena.use_cuda_mempool": bool | None,
        "arena.cuda_mempool_release_threshold": int | None,
        "arena.cuda_mempool_bytes_to_keep_on_shrink": int | None,
    },
    total=False,
)


class Options(_Dotted, total=False):
    enable_cuda_graph: bool | None
    """Capture the model into a CUDA graph, and replay it (onnxruntime 1.26 or newer). Default: 0."""

    min_num_runs_before_cuda_graph_capture: int | None
    """Eager runs before the capture, in each thread and for each graph id. Default: 2."""

    graph_on_error: Literal["fail", "eager"] | None
    """When a model can't be captured: fail the run with the reason, or warn and go on without graphs. Default:
    fail."""

    auto_graph: bool | Literal["safe"] | None
    """Replay what runs again with the same shapes, without anything that the application has to keep to. `safe` is 1
    where captures survive a wait for the whole device in another thread, as with the drivers of CUDA 13, and else 0.
    Default: safe."""

    auto_graph_limit: int | None
    """The most graphs that `auto_graph` keeps in a session: those that are used most. Default: 128."""

    conditional_nodes: bool | Literal["safe"] | None
    """Let data on the device decide inside of graphs about If and Loop, where their shapes do not depend on it.
    `safe` is 1 where that has been tried, which is the virtual GPU alone so far, and else 0: these nodes are
    onnxruntime's. Default: safe."""

    pad: Mapping[str, int | Iterable[int]] | str | None
    """Pad these dimensions to the next of their lengths, and cut what comes out, so that few shapes are run, each of
    which has a graph with `auto_graph`. A session fails if padding might change a result: where not every node of a
    region leaves rows of the dimension apart, but for attention and reductions, which are masked. Masks that grow
    from run to run, and whose length no output tells, `auto_graph` pads by itself, unless this is `off`. Default:
    none."""

    has_user_compute_stream: bool | None
    """Run on `user_compute_stream`. Need not be given: an address implies it. Default: 0."""

    user_compute_stream: int | None
    """A cudaStream_t of the application's, on which the session runs, captures and replays. It stays the
    application's. Default: 0."""

    do_copy_in_default_stream: bool | None
    """Copy between host and device on the stream that computes. If not, on a stream of its own, with events between.
    Default: 1."""

    use_ep_level_unified_stream: bool | None
    """One stream for all of the session's runs and copies; its runs then come one after another. Default: 0."""

    run_after_default_stream: bool | None
    """Each run, a replay too, comes on the device after what the application has enqueued on its default stream, as
    torch does: inputs that torch makes need no synchronisation. If not, the application sees to that. Default: 1."""

    default_stream_after_run: bool | None
    """The application's default stream goes on, on the device, after each run: outputs that torch reads there need no
    synchronisation when runs are asynchronous. Default: 0."""

    gpu_mem_limit: int | Literal["unlimited"] | None
    """The most device memory that the session may hold, graphs included. Default: unlimited."""

    arena_extend_strategy: Literal["kNextPowerOfTwo", "kSameAsRequested"] | None
    """Grow the arena by doubling, or by what is asked for. Default: kNextPowerOfTwo."""

    use_arena: bool | None
    """Keep freed device memory for later; if not, the driver gets it back each time. Default: 1."""

    gpu_external_alloc: int | None
    """A function `void* (size_t bytes)` of the application's that gives the session all its device memory. Default:
    0."""

    gpu_external_free: int | None
    """A function `void (void*)` that takes it back. Default: 0."""

    gpu_external_empty_cache: int | None
    """A function `void ()`, called after a shrink; optional. Default: 0."""

    use_tf32: bool | None
    """Let float matrix products and convolutions use TF32 tensor cores. Default: 1."""

    deterministic: bool | None
    """The same bits in every session: nothing is chosen by timing, and libraries' algorithms that vary are left out.
    onnxruntime tells providers nothing of its own `use_deterministic_compute`. Default: 0."""

    enable_cudnn: bool | None
    """Use cuDNN for convolutions and attention; if not, or if there is none, convolutions are lowered to matrix
    products, and the log says so. Default: 1."""

    cudnn_conv_algo_search: Literal["EXHAUSTIVE", "HEURISTIC", "DEFAULT"] | None
    """How cuDNN's engine for a new convolution is chosen: EXHAUSTIVE times the candidates in the first run, of which
    `tuning_cache` keeps what it found, HEURISTIC trusts cuDNN's heuristics (as do sessions with `deterministic`),
    DEFAULT takes the first engine that does without. Default: EXHAUSTIVE."""

    cudnn_conv_use_max_workspace: bool | None
    """Let convolutions use up to 1 GiB of scratch memory (256 MiB without cuDNN) if that is faster; if not, 32 MiB.
    Default: 1."""

    cudnn_conv1d_pad_to_nc1d: bool | None
    """Give one-dimensional convolutions to cuDNN as [N, C, 1, D] instead of [N, C, D, 1]. Default: 0."""

    fuse_conv_bias: bool | None
    """Add a convolution's bias inside cuDNN's own kernel wherever it can; if not, only where timing found that
    faster. Default: 0."""

    fuse_nodes: bool | None
    """Make one node of convolutions and what stands between them, with the channels last inside, of attention in
    halves that is spelled out, of a softmax and its mask, of a product and its bias, of a Gelu, of a residual sum and
    its norm, of x * sigmoid(x) * y, and of a norm and the product by quantized weights that alone reads it; and, with
    `enable_cuda_graph`, of a whole model that computes with its shapes on the device. onnxruntime can't save such a
    model: `encore.session` leaves this off for `optimized_model_filepath`, as does `ep.context_enable`. Default:
    1."""

    regions: bool | None
    """Make one node of all that Encore can run together, as far as nothing between is another provider's, sized by
    data or, without graphs, control flow by data: the host has less to do for it. What `fuse_nodes` makes one is a
    part of it, and without that there are no regions, nor with `optimized_model_filepath`. Default: 1."""

    prefer_nhwc: bool | None
    """Ask onnxruntime to put the channels last in convolutions, pools and batch normalisation: it suits tensor cores.
    Default: 0."""

    prefer_nhwc_layout: bool | None
    """The same as `prefer_nhwc`. Default: 0."""

    sdpa_kernel: int | None
    """Which kernels attention may use, by the bits of onnxruntime's CUDA provider: with 8 cuDNN's, where it serves;
    with any others Encore's own, which are always there. 0 is all of them. Default: 0."""

    enable_skip_layer_norm_strict_mode: bool | None
    """Compute SkipLayerNormalization of float in double; halves are computed in float in any case. Default: 0."""

    tunable_op_enable: bool | None
    """Allow tuning, and use what it finds. Default: 0."""

    tunable_op_tuning_enable: bool | None
    """Time the best few algorithms for each new matrix product and convolution outside of captures, and remember the
    fastest. Default: 0."""

    tunable_op_max_tuning_duration_ms: int | None
    """The most time spent on tuning one matrix product; 0: no limit. Default: 0."""

    tuning_cache: str | os.PathLike[str] | None
    """Keep in this file what was chosen for convolutions, and cuDNN's compiled plans: the next process's first run
    need not search. It may serve several models, devices, versions of cuDNN and processes at a time. What is damaged
    is not used, and the log says so. Default: none."""

    log_placement: bool | None
    """Log, as warnings, each node that is left to another provider, and why; those of com.microsoft are told anyway.
    Default: 0."""

    dump_regions: str | os.PathLike[str] | None
    """Write there, in a folder for each node that is made of others, what it computes as text: as its nodes were, and
    after each pass that rewrote them. A session fails if that cannot be written. Default: none."""
