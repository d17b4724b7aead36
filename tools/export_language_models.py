"""Makes tests/models/language/*.onnx: the graphs, without weights, that onnxruntime-genai's model builder makes.

    python -m venv export
    export/bin/pip install torch==2.11.0 transformers==5.17.0 onnx==1.23.2 onnx_ir onnxruntime==1.31.1 onnxruntime-genai==0.18.0
    export/bin/python tools/export_language_models.py

The models exist only as configurations: nothing is downloaded. Which weights they get is tests/models/language_zoo.py's.
"""  # noqa: E501

import contextlib
import importlib.util
import io
import json
import os
import pathlib
import sys
import tempfile

os.environ.update(ORT_DISABLE_TELEMETRY="1", HF_HUB_OFFLINE="1")
ROOT = pathlib.Path(__file__).resolve().parents[1]
GENAI = pathlib.Path(importlib.util.find_spec("onnxruntime_genai").submodule_search_locations[0])
sys.path[:0] = [str(ROOT / "tests" / "models"), str(GENAI / "models")]

import builder
import language_zoo
import numpy as np
import onnx
import tokenizers
import torch
import transformers
from builders.gptoss import GPTOSSModel
from onnx import TensorProto, numpy_helper

SMALL = {
    "vocab_size": 512,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
}
MODELS = {
    "llama": transformers.LlamaConfig(**SMALL, intermediate_size=128),
    # Embeddings shared with the head, and norms of queries and keys.
    "qwen": transformers.Qwen3Config(**SMALL, intermediate_size=128, head_dim=32, tie_word_embeddings=True),
    # A mixture of experts, attention sinks, and every other layer's window.
    "gptoss": transformers.GptOssConfig(
        **SMALL,
        intermediate_size=64,
        head_dim=32,
        num_local_experts=4,
        num_experts_per_tok=2,
        sliding_window=16,
        layer_types=["sliding_attention", "full_attention"],
    ),
}
# For bench/language.py.
LARGE = {
    "llama_1b": transformers.LlamaConfig(
        vocab_size=32000,
        hidden_size=2048,
        intermediate_size=8192,
        num_hidden_layers=16,
        num_attention_heads=32,
        num_key_value_heads=8,
        max_position_embeddings=2048,
    )
}
# The truth is what the CPU makes of the graph for it; the others are for CUDA.
SMALL_KINDS = {
    "f32": ("fp32", "cpu"),
    "f16": ("fp16", "cuda"),
    "int4": ("int4", "cuda"),
    "paged": ("fp16", "cuda", "use_paged_attention=1", "paged_block_size=16"),
}
LARGE_KINDS = {"f16": SMALL_KINDS["f16"], "int4": SMALL_KINDS["int4"]}
# Caches of codes, which one model has.
CODES = {
    "paged_int8": (*SMALL_KINDS["paged"], "kv_cache_quant_scheme=int8_per_tensor"),
    "paged_int4": (*SMALL_KINDS["paged"], "kv_cache_quant_scheme=int4_per_channel"),
    "cache_int8": (*SMALL_KINDS["f16"], "kv_cache_quant_scheme=int8_per_tensor"),
    "cache_int4": (*SMALL_KINDS["f16"], "kv_cache_quant_scheme=int4_per_channel"),
    "cache_fp8": (*SMALL_KINDS["f16"], "kv_cache_quant_scheme=fp8_per_tensor"),
}
RUNTIMES = {"f16": "", "paged": "_paged"}  # whose files for onnxruntime-genai are kept, under these names
# Weights of experts as they are: by default the builder permutes them for one library's kernels.
OPTIONS = ["qmoe_weights_prepacked=0"]


def unquantized_experts(self, layer_id, decode=False):
    """The builder asks for the checkpoint that OpenAI has quantized; these are random weights."""
    experts = self.weights.model.layers[layer_id].mlp.experts
    return experts.gate_up_proj.transpose(-1, -2), experts.down_proj.transpose(-1, -2)


GPTOSSModel.load_mxfp4_experts = unquantized_experts


def checkpoint(config, folder):
    torch.manual_seed(0)
    transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float16).save_pretrained(folder)
    words = tokenizers.models.WordLevel({f"t{i}": i for i in range(4)}, unk_token="t0")
    tokens = tokenizers.Tokenizer(words)
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokens, unk_token="t0").save_pretrained(folder)


def scales_for(options, config, folder):
    """The option that a cache of codes wants besides, of a file with any scales."""
    schemes = [option.partition("=")[2] for option in options if option.startswith("kv_cache_quant_scheme=")]
    if not schemes:
        return []
    (scheme,) = schemes
    size = config.num_key_value_heads * config.head_dim if scheme.endswith("_per_channel") else 1
    scales = [[1.0] * size] * config.num_hidden_layers
    file = folder / f"{scheme}.json"
    file.write_text(json.dumps({"scales": {"k_scales": scales, "v_scales": scales}}))
    return [f"kv_cache_scale_file={file}"]


def build(checkpoint, config, kind, folder):
    """The builder's model, and what its runtime is told of it."""
    precision, provider, *special = kind
    cache = str(folder / "cache")
    arguments = (None, str(checkpoint), str(folder), precision, provider, cache)
    with contextlib.redirect_stdout(io.StringIO()):
        options = [*OPTIONS, *special, *scales_for(special, config, checkpoint)]
        extra = builder.parse_extra_options(*arguments, options)
        builder.create_model(*arguments, **extra)
    return onnx.load(folder / "model.onnx"), (folder / "genai_config.json").read_text()


def drop_weights(model, rope):
    for tensor in model.graph.initializer:
        kept = TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
        if tensor.name in language_zoo.TABLES:
            values = numpy_helper.to_array(tensor)
            if rope["rope_type"] == "default":
                wanted = language_zoo.table(tensor.name, tensor.dims, rope["rope_theta"])
                np.testing.assert_allclose(values, wanted, atol=2e-3)
                kept.metadata_props.add(key=language_zoo.THETA, value=f"{rope['rope_theta']:g}")
            else:
                kept.raw_data = values.tobytes()
        tensor.CopyFrom(kept)
    for part in (model.graph, *model.graph.node):
        part.ClearField("doc_string")
        part.ClearField("metadata_props")
    del model.graph.value_info[:]


def main():
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        for models, kinds in ((MODELS, SMALL_KINDS), (LARGE, LARGE_KINDS)):
            for name, config in models.items():
                checkpoint(config, folder / name)
                for kind, how in (kinds | CODES if name == "llama" else kinds).items():
                    model, runtime = build(folder / name, config, how, folder / f"{name}_{kind}")
                    drop_weights(model, config.rope_parameters)
                    file = language_zoo.GRAPHS / f"{name}_{kind}.onnx"
                    onnx.save(model, file)
                    if kind in RUNTIMES:
                        (language_zoo.GRAPHS / f"{name}{RUNTIMES[kind]}.json").write_text(runtime + "\n")
                    print(f"{file.name}: {len(model.graph.node)} nodes, {file.stat().st_size // 1024} KiB", flush=True)


if __name__ == "__main__":
    main()
