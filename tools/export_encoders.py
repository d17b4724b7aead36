"""Makes tests/models/encoders/*.onnx: small encoders of text, of any batch and sequence, as exporters write them.

    python -m venv export
    export/bin/pip install torch==2.11.0 transformers==5.17.0 onnxscript==0.7.2 onnx==1.23.2
    export/bin/python tools/export_encoders.py

and once more with transformers==4.46.3, whose models go through torch's older exporter. The models exist only as
configurations: nothing is downloaded. Weights are left to tests/models/zoo.py.
"""

import os
import pathlib
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"
GRAPHS = pathlib.Path(__file__).resolve().parents[1] / "tests" / "models" / "encoders"
import onnx
import torch
import transformers
from stored_graphs import drop_traces, drop_weights

NEWER = int(transformers.__version__.split(".")[0]) >= 5
LONGEST = 128
SMALL = {
    "vocab_size": 200,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "max_position_embeddings": LONGEST,
}


class Sentences(torch.nn.Module):
    """One vector a sentence: the mean of its tokens', the last one's, or what the model itself makes of them."""

    def __init__(self, model, pooled):
        super().__init__()
        self.model, self.pooled = model, pooled

    def forward(self, input_ids, attention_mask):
        made = self.model(input_ids=input_ids, attention_mask=attention_mask)
        if self.pooled == "by itself":
            return made.pooler_output
        tokens = made.last_hidden_state
        if self.pooled == "last":
            return tokens[torch.arange(tokens.shape[0]), attention_mask.sum(1) - 1]
        mask = attention_mask.unsqueeze(-1).expand(tokens.size()).float()
        mean = (tokens * mask).sum(1) / torch.clamp(mask.sum(1), min=1e-9)
        return torch.nn.functional.normalize(mean, p=2, dim=1)


def of(name, pooled="mean", **more):
    config = getattr(transformers, f"{name}Config")(**{**SMALL, **more})
    model = {"T5": "T5Encoder", "CLIPText": "CLIPText"}.get(name, name)
    return Sentences(getattr(transformers, f"{model}Model")(config), pooled).eval()


T5 = {"d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4}
GPT2 = {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": LONGEST, "use_cache": False}
QWEN2 = {"num_key_value_heads": 2, "use_cache": False}
BY_NEWER = {
    "bert": lambda: of("Bert"),
    "t5": lambda: of("T5", **T5),
    "qwen2": lambda: of("Qwen2", pooled="last", **QWEN2),
    "clip": lambda: of("CLIPText", pooled="by itself", eos_token_id=2),
}
BY_NEWER_SCRIPTED = {
    "electra": lambda: of("Electra", embedding_size=32),
    "gpt2": lambda: of("GPT2", pooled="last", **GPT2),
}
BY_OLDER = {"bert": lambda: of("Bert"), "roberta": lambda: of("Roberta", max_position_embeddings=LONGEST + 2)}


def export(module, file, by_dynamo):
    feeds = (torch.randint(3, 200, (2, 7)), torch.ones(2, 7, dtype=torch.int64))
    names = {"input_names": ["input_ids", "attention_mask"], "output_names": ["sentence"]}
    if by_dynamo:
        dims = {0: torch.export.Dim("batch"), 1: torch.export.Dim("sequence", max=LONGEST - 1)}
        torch.onnx.export(module, feeds, file, dynamo=True, dynamic_shapes=(dims, dims), verbose=False, **names)
    else:
        dims = {0: "batch", 1: "sequence"}
        axes = {"input_ids": dims, "attention_mask": dims, "sentence": {0: "batch"}}
        torch.onnx.export(module, feeds, file, dynamo=False, opset_version=17, dynamic_axes=axes, **names)
    return onnx.load(file)


def spread(values):
    """The scales of norms begin as ones, all else about zero."""
    return (1 if values.ndim == 1 and values.mean() > 0.5 else 0), 0.15


def main():
    GRAPHS.mkdir(exist_ok=True)
    by_exporter = {"dynamo": BY_NEWER, "script": BY_NEWER_SCRIPTED} if NEWER else {"script": BY_OLDER}
    for exporter, models in by_exporter.items():
        for name, make in models.items():
            torch.manual_seed(0)
            with tempfile.TemporaryDirectory() as folder, torch.no_grad():
                model = export(make(), pathlib.Path(folder) / "model.onnx", exporter == "dynamo")
            drop_traces(model)
            drop_weights(model, spread)
            file = GRAPHS / f"{name}_{exporter}.onnx"
            onnx.save(model, file)
            print(f"{file.name}: {len(model.graph.node)} nodes, {file.stat().st_size // 1024} KiB")


if __name__ == "__main__":
    main()
