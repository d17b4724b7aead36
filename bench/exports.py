#!/usr/bin/env python3
"""Exports models of families that tests/models has not, with random weights, by torch's exporters.

    bench/exports.py FOLDER [--models swin,efficientnet_f32]

Those whose names end with _f32 are in floats, others in halves. bench/peers.py and bench/kernel_times.py take the
files. Wants torch, torchvision, timm, transformers and onnxscript.
"""

import argparse
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
# transformers would take kernels.py for a package of that name.
sys.path[:] = [folder for folder in sys.path if Path(folder or ".").resolve() != HERE]

import torch  # noqa: E402

PICTURE = (1, 3, 224, 224)


def of_torchvision(name, shape=PICTURE):
    import torchvision

    return getattr(torchvision.models, name)(weights=None), torch.randn(shape)


def of_timm(name, shape=PICTURE):
    import timm

    return timm.create_model(name, pretrained=False), torch.randn(shape)


def whisper():
    import transformers
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    tiny = transformers.WhisperConfig(d_model=384, encoder_layers=4, encoder_attention_heads=6, encoder_ffn_dim=1536)
    return WhisperEncoder(tiny), torch.randn(1, 80, 3000)


def wav2vec2():
    import transformers

    return transformers.Wav2Vec2Model(transformers.Wav2Vec2Config()), torch.randn(1, 4 * 16000)


def segformer():
    import transformers

    return transformers.SegformerForSemanticSegmentation(transformers.SegformerConfig()), torch.randn(1, 3, 512, 512)


LANGUAGE = {"hidden_size": 1024, "num_hidden_layers": 12, "num_attention_heads": 16, "vocab_size": 32000}


def prefill(model, config, **more):
    """That of a small language model."""
    import transformers

    shared = {"intermediate_size": 3072, "num_key_value_heads": 8, "use_cache": False}
    config = getattr(transformers, config)(**LANGUAGE, **shared, **more)
    return getattr(transformers, model)(config), torch.randint(0, config.vocab_size, (1, 256))


def t5():
    import transformers

    config = transformers.T5Config(d_model=768, d_ff=3072, num_layers=12, num_heads=12)
    return transformers.T5EncoderModel(config), torch.randint(0, config.vocab_size, (1, 128))


def encoder(model, config, **more):
    """A small one of texts."""
    import transformers

    shape = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 6, "intermediate_size": 1536}
    config = getattr(transformers, config)(**shape, **more)
    return getattr(transformers, model)(config), torch.randint(5, config.vocab_size, (1, 128))


def deberta():
    relative = {"relative_attention": True, "position_buckets": 256, "pos_att_type": ["p2c", "c2p"]}
    return encoder("DebertaV2Model", "DebertaV2Config", **relative, share_att_key=True, type_vocab_size=0)


# The exporter by tracing makes other graphs than the one by torch.export; each has its users.
TRACED = {
    "convnext": lambda: of_torchvision("convnext_tiny"),
    "densenet": lambda: of_torchvision("densenet121"),
    "efficientnet": lambda: of_torchvision("efficientnet_b0"),
    "maxvit": lambda: of_torchvision("maxvit_t"),
    "mobilevit": lambda: of_timm("mobilevit_s", (1, 3, 256, 256)),
    "swin": lambda: of_torchvision("swin_t"),
    "swinv2": lambda: of_torchvision("swin_v2_t", (1, 3, 256, 256)),
    "t5": t5,
}
EXPORTED = {
    "coatnet": lambda: of_timm("coatnet_nano_rw_224"),
    "convmixer": lambda: of_timm("convmixer_768_32"),
    "convnextv2": lambda: of_timm("convnextv2_tiny"),
    "cohere": lambda: prefill("CohereForCausalLM", "CohereConfig"),
    "deberta": deberta,
    "edgenext": lambda: of_timm("edgenext_x_small", (1, 3, 256, 256)),
    "efficientvit": lambda: of_timm("efficientvit_m0"),
    "fastvit": lambda: of_timm("fastvit_t8", (1, 3, 256, 256)),
    "gemma2": lambda: prefill("Gemma2ForCausalLM", "Gemma2Config", head_dim=64),
    "ghostnet": lambda: of_timm("ghostnet_100"),
    "qwen3": lambda: prefill("Qwen3ForCausalLM", "Qwen3Config", head_dim=128),
    "repvit": lambda: of_timm("repvit_m1"),
    "resnest": lambda: of_timm("resnest14d"),
    "roformer": lambda: encoder("RoFormerModel", "RoFormerConfig"),
    "segformer": segformer,
    "shufflenet": lambda: of_torchvision("shufflenet_v2_x1_0"),
    "wav2vec2": wav2vec2,
    "whisper": whisper,
}


MODELS = TRACED | EXPORTED
FLOATS = "_f32"


class FirstOutput(torch.nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, x):
        y = self.module(x)
        return y if isinstance(y, torch.Tensor) else y[0]


def knows(name):
    return name.removesuffix(FLOATS) in MODELS


def module(name):
    """And what it takes."""
    torch.manual_seed(0)
    made, x = MODELS[name.removesuffix(FLOATS)]()
    dtype = torch.float if name.endswith(FLOATS) else torch.half
    return FirstOutput(made).to(dtype).eval(), (x.to(dtype) if x.is_floating_point() else x,)


def export(name, file):
    made, inputs = module(name)
    names = {"input_names": ["x"], "output_names": ["y"], "opset_version": 18}
    torch.onnx.export(made, inputs, str(file), dynamo=name.removesuffix(FLOATS) in EXPORTED, **names)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--models", default=",".join(MODELS))
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    for name in args.models.split(","):
        export(name, args.folder / f"{name}.onnx")
        print(args.folder / f"{name}.onnx", flush=True)


if __name__ == "__main__":
    main()
