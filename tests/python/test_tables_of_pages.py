"""Pages that repeat what the code has: messages, options and figures. Each is found there, or a page is wrong."""

import re

import pytest
from encore_session import ROOT

pytestmark = pytest.mark.newest

DOCS = ROOT / "docs"
# Of onnxruntime 1.32: cuda_provider_options.h, cuda_execution_provider_info.cc, and plugin/cuda_ep_factory.cc.
CUDA_OPTIONS = """
    device_id has_user_compute_stream user_compute_stream do_copy_in_default_stream use_ep_level_unified_stream
    gpu_mem_limit arena_extend_strategy default_memory_arena_cfg gpu_external_alloc gpu_external_free
    gpu_external_empty_cache cudnn_conv_algo_search cudnn_conv_algo cudnn_conv_use_max_workspace
    cudnn_conv1d_pad_to_nc1d fuse_conv_bias sdpa_kernel enable_cuda_graph min_num_runs_before_cuda_graph_capture
    enable_skip_layer_norm_strict_mode prefer_nhwc prefer_nhwc_layout use_tf32 tunable_op_enable
    tunable_op_tuning_enable tunable_op_max_tuning_duration_ms
""".split()
LITERAL = r'"(?:[^"\\\n]|\\.)*"'
# Whose messages the page has, those that are sentences; a new one has to be told there, too.
TOLD = """
    src/plugin/options/options.cc src/plugin/options/run_options.cc src/plugin/factory.cc src/plugin/session/ep_runs.cc
    src/graph/thread_graphs.cc src/graph/session_graphs.cc src/graph/shared_stream.cc src/graph/capture_gate.cc
    src/memory/source.cc src/device/forked.h src/device/cuda/device.cu src/device/cuda/stream.cc
    python/onnxruntime_ep_encore/__init__.py python/onnxruntime_ep_encore/bindings.py
    python/onnxruntime_ep_encore/libraries.py python/onnxruntime_ep_encore/registration.py
    python/onnxruntime_ep_encore/callables.py python/onnxruntime_ep_encore/values.py
""".split()
SENTENCE = 38  # characters
# Parts of messages that are told.
IGNORED = {
    "time elapses between events of a device that have timing and have been recorded",  # Encore's own mistake
    "for name, value in self._asdict().items())})",
    "it has no device; CUDA_VISIBLE_DEVICES may hide them",
    "no onnxruntime, though a folder has its name",
}


def rows(page, columns):
    """The cells of its tables that have so many columns, without heads and rules."""
    for line in (ROOT / page).read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and len(cells) == columns and not set(line) <= set("|- :"):
            yield cells


def keys_in(text):
    return re.findall(r"`([\w.]+)`", text)


def own_options():
    """{key: whether it is read without a prefix, too}"""
    sections = re.split(r"^### `([\w.]+)`$", (DOCS / "options.md").read_text(), flags=re.M)[1:]
    return {key: "*Also as a bare key.*" in told for key, told in zip(sections[::2], sections[1::2])}


# ---- messages


def strings_of(file):
    """What strings of a source hold: neighbours joined, and taken apart at what Python puts in between."""
    source = re.sub(r'""".*?"""', "", file.read_text(), flags=re.S) if file.suffix == ".py" else file.read_text()
    for found in re.findall(rf"f?{LITERAL}(?:\s*f?{LITERAL})*", source):
        joined = "".join(one[1:-1] for one in re.findall(LITERAL, found)).replace('\\"', '"').replace("\\n", "\n")
        yield from re.split(r"\{[^{}]*\}", joined) if file.suffix == ".py" else [joined]


def texts():
    files = [file for ending in ("*.cc", "*.h", "*.cu") for file in (ROOT / "src").rglob(ending)]
    files += [*(ROOT / "python").rglob("*.py"), ROOT / "CMakeLists.txt"]
    return "\n".join(text for file in files for text in strings_of(file))


def messages():
    page = (DOCS / "troubleshooting.md").read_text()
    return re.findall(r"^- `(.+)`$", page, re.M)


def test_messages_are_the_codes():
    code = texts()
    assert len(messages()) > 100
    wrong = []
    for message in messages():
        pieces = [piece.strip(" .;:,'") for piece in message.split("…")]
        wrong += [f"{piece!r} of {message!r}" for piece in pieces if not _is_there(piece, code)]
    assert not wrong, "\n".join(wrong)


def _is_there(piece, code, most=3):
    """Whole, or in a few parts, which code joins: ' is in host memory' and ', but a replayed graph copies nothing'."""
    if piece in code:
        return True
    words = re.split(r"(?=[ ,;:])", piece)
    heads = ["".join(words[:count]) for count in range(len(words) - 1, 0, -1)]
    longest = next((head for head in heads if head in code), "")
    return bool(longest) and most > 1 and _is_there(piece[len(longest) :].strip(" .;:,'"), code, most - 1)


@pytest.mark.parametrize("file", TOLD)
def test_each_message_is_told(file):
    """Of what a user of the provider meets first; errors of operators name the node, and stand for themselves."""
    page = " ".join((DOCS / "troubleshooting.md").read_text().split())
    pieces = [text.strip(" .;:,'\"(") for text in strings_of(ROOT / file)]
    is_sentence = lambda piece: len(piece) > SENTENCE and " " in piece and "\\" not in piece  # which patterns have
    missing = [piece for piece in pieces if is_sentence(piece) and piece not in IGNORED and piece not in page]
    missing = [piece for piece in missing if not piece.startswith("encore: ")]  # notes on stderr
    assert not missing, "docs/troubleshooting.md lacks\n" + "\n".join(missing)


def test_no_message_is_told_twice():
    assert len(set(messages())) == len(messages())


# ---- options


def test_each_option_of_the_cuda_provider_is_told():
    own = own_options()
    options = [row for row in rows("docs/cuda-provider.md", 3) if re.fullmatch(r"`[\w.]+`", row[0])]
    table = {row[0].strip("`"): row[1] for row in options}
    assert sorted(table) == sorted(CUDA_OPTIONS)
    for theirs, ours in table.items():
        if theirs in own:
            assert ours == "the same", theirs
        else:
            assert keys_in(ours) and set(keys_in(ours)) <= own.keys(), theirs
    assert {key for key, bare in own.items() if bare} <= table.keys(), "options that are read as the CUDA provider's"


def test_options_in_pages_exist():
    """Where a page says `key=value`, key is an option of the provider, or one of these of runs, sessions and others."""
    known = own_options().keys() | {"gpu_graph_id", "disable_synchronize_execution_providers"}
    known |= {"session.use_env_allocators", "session.use_device_allocator_for_initializers", "dtype", "x"}
    known |= {
        "device",
        "use_paged_attention",
        "kv_cache_rotation",
    }  # of session(), of onnxruntime-genai's model builder
    wrong = []
    for file in [ROOT / "README.md", *DOCS.glob("*.md")]:
        for key in re.findall(r"`([a-z_.0-9]+)=[^`]*`", file.read_text()):
            if key.removeprefix("ep.cuda.") not in known:
                wrong.append(f"{file.name}: {key}")
    assert not wrong, "\n".join(wrong)


# ---- figures


def test_the_readmes_figures_are_the_benchmarks():
    measured = {}
    for row in [*rows("docs/benchmarks.md", 6), *rows("docs/benchmarks.md", 5)]:
        measured.setdefault(row[0], set()).update(row[1:])
    told = [row for row in rows("README.md", 6) if row[0] in measured and row[0] != "model"]
    assert len(told) >= 4
    for model, *figures in told:
        assert set(figures) <= measured[model], model
