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
    """Capture what runs again with the same shapes, and replay it; the application has nothing to keep to. `safe` is
    1 where captures survive a wait for the whole device in another thread, as with drivers of CUDA 13. Elsewhere it
    is 0. Default: safe."""

    auto_graph_limit: int | None
    """The most graphs that `auto_graph` keeps in a session: those that are used most. Default: 128."""

    auto_graph_mem_limit: int | Literal["half"] | None
    """The most device memory that graphs of `auto_graph` hold in a session: those that are used most. It is what they
    work in, and what the driver takes for them, which is estimated as 10 KiB a node. `half` is half of
    `gpu_mem_limit`, or of the device's memory. Default: half."""

    conditional_nodes: bool | None
    """Let graphs hold an If or a Loop about which data on the device decides, if no shape depends on it and the
    driver is CUDA 12.8's or newer. Elsewhere onnxruntime runs these nodes. Default: 1."""

    pad: Mapping[str, int | Iterable[int]] | str | None
    """Pad these dimensions to the next of their lengths, and cut what comes out. So few shapes are run, and with
    `auto_graph` each has a graph. A session fails if padding might change a result: every node of a region has to
    leave the rows of the dimension apart; attention and reductions are masked. `auto_graph` also pads a mask that
    grows from run to run, if no output shows its length; `off` stops that. Default: none."""

    has_user_compute_stream: bool | None
    """Run on `user_compute_stream`. It need not be given, since an address implies it. Default: 0."""

    user_compute_stream: int | None
    """The address of a cudaStream_t of the application's. The session runs, captures and replays on it, and never
    destroys it. Default: 0."""

    do_copy_in_default_stream: bool | None
    """Copy between host and device on the stream that computes. With 0 copies have a stream of their own, and events
    keep both in order. Default: 1."""

    use_ep_level_unified_stream: bool | None
    """One stream for all of the session's runs and copies; its runs then come one after another. Default: 0."""

    run_after_default_stream: bool | None
    """Each run, a replay too, comes on the device after what the application has enqueued on its default stream, as
    torch does. So inputs that torch makes need no synchronisation. With 0 the application sees to that. Default:
    1."""

    default_stream_after_run: bool | None
    """What the application enqueues on its default stream after a run comes after that run on the device. So outputs
    of asynchronous runs that torch reads there need no synchronisation. Default: 0."""

    gpu_mem_limit: int | Literal["unlimited"] | None
    """The most device memory that the session may hold, graphs included. Default: unlimited."""

    arena_extend_strategy: Literal["kNextPowerOfTwo", "kSameAsRequested"] | None
    """Let the arena grow by doubling, or by what is asked for. Default: kNextPowerOfTwo."""

    use_arena: bool | None
    """Keep freed device memory for later. With 0 the driver gets it back each time. Default: 1."""

    gpu_external_alloc: int | None
    """A function `void* (size_t bytes)` of the application's that gives the session all its device memory. Default:
    0."""

    gpu_external_free: int | None
    """A function `void (void*)` that takes it back. Default: 0."""

    gpu_external_empty_cache: int | None
    """A function `void ()`, called after a shrink; optional. Default: 0."""

    use_tf32: bool | None
    """Let float matrix products, convolutions and attention use TF32 tensor cores. Default: 1."""

    deterministic: bool | None
    """Compute the same bits in every session: nothing is chosen by timing, and algorithms of libraries that vary are
    left out. onnxruntime's own `use_deterministic_compute` does not reach providers. Default: 0."""

    enable_cudnn: bool | None
    """Use cuDNN for convolutions and attention. With 0, or if there is none, convolutions become matrix products, and
    the log says so. Default: 1."""

    cudnn_conv_algo_search: Literal["EXHAUSTIVE", "HEURISTIC", "DEFAULT"] | None
    """How cuDNN's engine for a new convolution is chosen. EXHAUSTIVE times the candidates in the first run;
    `tuning_cache` keeps what it found. HEURISTIC trusts cuDNN's heuristics, as do sessions with `deterministic`.
    DEFAULT takes the first engine that works. Default: EXHAUSTIVE."""

    cudnn_conv_use_max_workspace: bool | None
    """Let convolutions use up to 1 GiB of scratch memory (256 MiB without cuDNN) if that is faster. With 0 they have
    32 MiB. Default: 1."""

    cudnn_conv1d_pad_to_nc1d: bool | None
    """Give one-dimensional convolutions to cuDNN as [N, C, 1, D] instead of [N, C, D, 1]. Default: 0."""

    fuse_conv_bias: bool | None
    """Add a convolution's bias inside cuDNN's own kernel wherever it can. With 0 that is done only where timing found
    it faster. Default: 0."""

    fuse_nodes: bool | None
    """Make one node of several that belong together: convolutions and what stands between them, with the channels
    last inside; attention in halves that is spelled out; a softmax and its mask; a product and its bias; a Gelu; a
    residual sum and its norm; x * sigmoid(x) * y; a norm and the product by quantized weights that alone reads it.
    With `enable_cuda_graph` also a whole model that computes with its shapes on the device. onnxruntime can't save
    such a model: `encore.session` leaves this off for `optimized_model_filepath`, as does `ep.context_enable`.
    Default: 1."""

    fuse_elementwise: bool | None
    """Make one kernel of elementwise nodes in a region whose outputs have one shape. Profiles tell such nodes as one;
    with 0 they tell each. Default: 1."""

    compile_elementwise: bool | Literal["now"] | None
    """Compile the kernels that `fuse_elementwise` makes by NVRTC, where graphs are captured. That takes about a tenth
    of a second for each that is new, in a thread beside. Meanwhile graphs have a kernel that interprets what it is to
    do, with results equal to the bit; what is compiled takes its place. With `now` a capture waits, with 0 all is
    interpreted, as where there is no NVRTC. `tuning_cache` keeps what was compiled. Default: 1."""

    regions: bool | Literal["all"] | None
    """Make one node of all that Encore can run together; the host has less to do for it. Such a region ends at nodes
    of other providers, at sizes that depend on data and, without graphs, at control flow about which data decides.
    There are no regions without `fuse_nodes`, nor with `optimized_model_filepath`. With `all` a node that has nothing
    beside it is one, too, which gains nothing but that `auto_graph` can be tried with it. Default: 1."""

    prefer_nhwc: bool | None
    """Ask onnxruntime to put the channels last in convolutions, pools and batch normalisation, which suits tensor
    cores. Default: 0."""

    prefer_nhwc_layout: bool | None
    """The same as `prefer_nhwc`. Default: 0."""

    sdpa_kernel: int | None
    """Which kernels attention may use, by the bits of onnxruntime's CUDA provider. The bit 8 allows cuDNN's, where it
    serves; any others stand for Encore's own, which are always there. 0 is all of them. Default: 0."""

    enable_skip_layer_norm_strict_mode: bool | None
    """Compute SkipLayerNormalization of float in double. Halves are computed in float in any case. Default: 0."""

    tunable_op_enable: bool | None
    """Allow tuning, and use what it finds. Default: 0."""

    tunable_op_tuning_enable: bool | None
    """Time the best few algorithms for each new matrix product and convolution outside of captures, and remember the
    fastest. Default: 0."""

    tunable_op_max_tuning_duration_ms: int | None
    """The most time spent on tuning one matrix product. 0: no limit. Default: 0."""

    tuning_cache: str | os.PathLike[str] | None
    """Keep in this file what was chosen for convolutions, cuDNN's compiled plans and elementwise kernels, so that the
    next process's first run need neither search nor compile. One file may serve several models, devices, versions of
    cuDNN and processes at a time. What is damaged is not used, and the log says so. Who may write the file may have
    the GPU run anything. Default: none."""

    log_placement: bool | None
    """Log as warnings each node that is left to another provider, and why. Those of com.microsoft are logged anyway.
    Default: 0."""

    dump_regions: str | os.PathLike[str] | None
    """Write into this folder, for each node that is made of others, what it computes as text: as its nodes were, and
    after each pass that rewrote them. A session fails if that cannot be written. Default: none."""
