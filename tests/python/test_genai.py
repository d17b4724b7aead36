"""onnxruntime-genai's own runtime generates with Encore as any other provider of a plugin: docs/language-models.md."""

import importlib.util
import json
from pathlib import Path

import encore_session as es
import language_zoo
import numpy as np
import onnxruntime_ep_encore
import pytest
from test_language_models import PAGED, PROMPTS, SEEDS, TOKENS, almost, regrets, truth_for

# It has an onnxruntime of its own beside Python's in the process, and takes none that is older than the one it knows.
GENAI = importlib.util.find_spec("onnxruntime_genai") if es.ORT_VERSION >= (1, 31) else None
with_genai = es.only_if(GENAI is not None)
# Its package onnxruntime-genai-cuda, which has code of its own for CUDA's memory.
HAS_CUDA = GENAI and (Path(GENAI.submodule_search_locations[0]) / "libonnxruntime-genai-cuda.so").exists()
with_genai_cuda = es.only_if(HAS_CUDA and not es.on_virtual_gpu())

UNSAID = 33  # a token that none of the prompts leads to, for that would end what follows

GENERATE = """
import json
import onnxruntime_genai as genai

work = json.loads(WORK)
genai.register_execution_provider_library(work["provider"], work["library"])
model = genai.Model(work["folder"])
for prompt in work["prompts"]:
    length = len(prompt) + work["tokens"]
    params = genai.GeneratorParams(model)
    params.set_search_options(max_length=length, do_sample=False)
    generator = genai.Generator(model, params)
    generator.append_tokens(prompt)
    while not generator.is_done():
        generator.generate_next_token()
    print([int(token) for token in generator.get_sequence(0)][len(prompt) :])
"""

SERVE = """
import json
import numpy as np
import onnxruntime_genai as genai

work = json.loads(WORK)
genai.register_execution_provider_library(work["provider"], work["library"])
engine = genai.Engine(genai.Model(work["folder"]))
requests, chosen = [], [[] for _ in work["prompts"]]
for prompt in work["prompts"]:
    requests.append(engine.create_request())
    options = genai.TurnOptions(requests[-1])
    options.set_max_generated_tokens(work["tokens"])
    options.set_do_sample(False)
    requests[-1].begin_turn(np.array(prompt, np.int32), options)
events = engine.create_event_buffer(64)
while engine.has_pending_requests():
    for event in engine.run(events):
        assert event.flags != genai.EngineEventFlags.FAILED, event.error_code
        if event.token is not None and event.token >= 0:
            chosen[requests.index(event.request)].append(int(event.token))
for tokens in chosen:
    print(tokens)
"""


def folder_of(name, kind, folder, provider=es.EP_NAME, **options):
    """A model as genai takes it: with what its runtime is told of it, and this provider."""
    language_zoo.save(name, kind, folder, (SEEDS | PAGED)[name, kind])
    file = f"{name}_paged.json" if kind.startswith("paged") else f"{name}.json"
    config = json.loads((language_zoo.GRAPHS / file).read_text())
    if "engine" in config:  # its memory is the host's, and it can't tell how much of it there is
        batching = config["engine"]["dynamic_batching"]
        del batching["gpu_utilization_factor"]
        batching |= {"num_blocks": 32, "max_batch_size": 4}
    values = {key: str(value) for key, value in options.items()}
    config["model"]["decoder"]["session_options"]["provider_options"] = [{provider: values}]
    config["model"]["eos_token_id"] = UNSAID
    (folder / "genai_config.json").write_text(json.dumps(config))


def generate(folder, provider=es.EP_NAME, how=GENERATE):
    work = {
        "provider": provider,
        "library": onnxruntime_ep_encore.get_library_path(),
        "folder": str(folder),
        "prompts": [prompt.tolist() for prompt in PROMPTS],
        "tokens": TOKENS,
    }
    one_device = {"ENCORE_VIRTUAL_DEVICES": "1", "CUDA_VISIBLE_DEVICES": "0"}  # it passes all to a session
    code = f"WORK = {json.dumps(work)!r}\n{how}"
    done = es.in_new_process(code, ORT_DISABLE_TELEMETRY="1", **one_device)
    return [json.loads(line) for line in done.stdout.splitlines()]


@with_genai
@pytest.mark.parametrize(
    "name, kind", [("llama", "f16"), ("llama", "int4"), ("llama", "cache_int8"), ("gptoss", "f16")]
)
@pytest.mark.parametrize("auto_graph", [0, 1])
def test_genai_generates(name, kind, auto_graph, tmp_path):
    folder_of(name, kind, tmp_path, auto_graph=auto_graph)
    truth = truth_for(name, kind, SEEDS[name, kind])
    for prompt, tokens in zip(PROMPTS, generate(tmp_path), strict=True):
        assert len(tokens) == TOKENS
        assert (regrets(truth, prompt, np.array(tokens)) == 0).all()


@with_genai
@pytest.mark.parametrize("name, kind", PAGED)
@pytest.mark.parametrize("auto_graph", [0, 1])
def test_genai_serves(name, kind, auto_graph, tmp_path):
    """Several requests at once: prompts of any length beside each other's steps."""
    folder_of(name, kind, tmp_path, auto_graph=auto_graph)
    truth = truth_for(name, kind, PAGED[name, kind])
    for prompt, tokens in zip(PROMPTS, generate(tmp_path, how=SERVE), strict=True):
        assert len(tokens) == TOKENS
        assert (regrets(truth, prompt, np.array(tokens)) <= almost(name, kind)).all()


@with_genai_cuda
@pytest.mark.parametrize("graphs", [0, 1])
def test_genai_generates_with_buffers_on_the_device(graphs, tmp_path):
    folder_of("llama", "f16", tmp_path, provider="cuda", enable_cuda_graph=graphs)
    truth = truth_for("llama", "f16", SEEDS["llama", "f16"])
    for prompt, tokens in zip(PROMPTS, generate(tmp_path, "CUDAExecutionProvider"), strict=True):
        assert (regrets(truth, prompt, np.array(tokens)) == 0).all()


@with_genai
def test_genai_keeps_its_buffers_on_the_host_otherwise(tmp_path):
    """So it cannot have its runs captured, and is told so."""
    folder_of("llama", "f16", tmp_path, enable_cuda_graph=1)
    with pytest.raises(AssertionError, match="is in host memory, but a replayed graph copies nothing"):
        generate(tmp_path)
