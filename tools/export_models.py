"""Makes tests/models/*.onnx: the graphs, without weights, of well-known models as torch exports them.

    python -m venv export
    export/bin/pip install torch==2.11.0 torchvision==0.26.0 transformers==5.17.0 onnxscript==0.7.2 onnx==1.23.2
    export/bin/python tools/export_models.py

The weights are random and scaled so that every layer's output has unit size. Of a weight only its mean and standard
deviation are kept, from which tests/models/zoo.py fills it; small tensors and integers keep their values.
"""

import pathlib
import sys
import tempfile

import numpy as np
import onnx
import torch
import torchvision
import transformers
from onnx import numpy_helper

GRAPHS = pathlib.Path(__file__).resolve().parents[1] / "tests" / "models"
sys.path.insert(0, str(GRAPHS))
import zoo
from stored_graphs import drop_traces, drop_weights

EXAMPLE_BATCH = 2  # At 1 the exporter takes the batch for a constant.


class Bert(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.bert = transformers.BertModel(transformers.BertConfig(), add_pooling_layer=False)

    def forward(self, input_ids, attention_mask):
        return self.bert(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state


def image():
    return {"image": torch.randn(EXAMPLE_BATCH, 3, 224, 224)}


def text():
    shape = (EXAMPLE_BATCH, 128)
    return {"input_ids": torch.randint(0, 30522, shape), "attention_mask": torch.ones(shape, dtype=torch.int64)}


MODELS = {
    "resnet50": (torchvision.models.resnet50, image, "logits"),
    "mobilenet_v3": (torchvision.models.mobilenet_v3_large, image, "logits"),
    "vit_b16": (torchvision.models.vit_b_16, image, "logits"),
    "bert_base": (Bert, text, "last_hidden_state"),
}


@torch.no_grad()
def randomize(module, example):
    """Random weights without two equal tensors, for the exporter would merge those."""
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if name.endswith("running_var"):
            tensor.uniform_(0.8, 1.2)
        elif tensor.is_floating_point() and tensor.dim() <= 1:
            around = 1 if name.endswith("weight") else 0  # The vectors called weight are scales of normalizations.
            tensor.normal_(around, 0.05)
        elif tensor.is_floating_point() and not tensor.any():
            tensor.normal_(0, 0.02)

    def scale_to_unit_output(layer, _, output):
        size = output.square().mean().sqrt()
        for parameter in layer.parameters(recurse=False):
            parameter /= size
        return output / size

    layers = [layer for layer in module.modules() if isinstance(layer, (torch.nn.Conv2d, torch.nn.Linear))]
    hooks = [layer.register_forward_hook(scale_to_unit_output) for layer in layers]
    module(*example)
    for hook in hooks:
        hook.remove()


def export(module, feeds, output, folder):
    batch = torch.export.Dim(zoo.BATCH)
    file = folder / "model.onnx"
    torch.onnx.export(
        module,
        tuple(feeds.values()),
        file,
        dynamo=True,
        opset_version=18,
        dynamic_shapes=[{0: batch} for _ in feeds],
        input_names=list(feeds),
        output_names=[output],
        verbose=False,
    )
    return onnx.load(file)


def spread(values):
    return round(float(values.mean()), 2), float(values.std())


def anonymous(model):
    """The graph with values named in order of appearance: equal for graphs that differ in names of values only."""
    plain = onnx.ModelProto()
    plain.CopyFrom(model)
    graph = plain.graph
    numbers = {"": ""}
    number = lambda name: numbers.setdefault(name, str(len(numbers)))
    for node in graph.node:
        inputs, outputs = map(number, node.input), map(number, node.output)
        node.input[:], node.output[:], node.name = inputs, outputs, ""
        node.attribute.sort(key=lambda attribute: attribute.name)
    for value in (*graph.input, *graph.output, *graph.value_info, *graph.initializer):
        value.name = number(value.name)
    graph.value_info.sort(key=lambda value: value.name)
    graph.initializer.sort(key=lambda tensor: tensor.name)
    return plain


def check_half(single, half):
    """zoo.to_half() must give the graph that torch gives for float16; weights may be off by their rounding."""
    zoo.to_half(single)
    ours, theirs = anonymous(single), anonymous(half)
    for a, b in zip(ours.graph.initializer, theirs.graph.initializer, strict=True):
        np.testing.assert_allclose(numpy_helper.to_array(a), numpy_helper.to_array(b), rtol=2e-3, atol=1e-3)
        for tensor in (a, b):
            tensor.ClearField("raw_data")
            tensor.ClearField("data_location")
    if ours != theirs:
        raise SystemExit("torch's float16 graph differs in more than types; store it beside the float32 graph")


def main():
    for name, (build, example, output) in MODELS.items():
        torch.manual_seed(0)
        module, feeds = build().eval(), example()
        randomize(module, feeds.values())
        with tempfile.TemporaryDirectory() as folder:
            model = export(module, feeds, output, pathlib.Path(folder))
            floats = {key: value.half() if value.is_floating_point() else value for key, value in feeds.items()}
            half = export(module.half(), floats, output, pathlib.Path(folder))
        drop_traces(model)
        drop_traces(half)
        stored = onnx.ModelProto()
        stored.CopyFrom(model)
        check_half(model, half)
        drop_weights(stored, spread)
        file = GRAPHS / f"{name}.onnx"
        onnx.save(stored, file)
        print(f"{file.name}: {len(stored.graph.node)} nodes, {file.stat().st_size // 1024} KiB")


if __name__ == "__main__":
    main()
