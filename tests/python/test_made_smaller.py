"""Models that onnxruntime's own tools have made smaller: with weights of eight bits, or in halves."""

import encore_session as es
import numpy as np
import onnx
import pytest
from onnx import TensorProto
from test_fused_attention import HEADS, SIZE, Network, attend, heads_of, numbers
from test_models import distance, on_cpu
from test_whole_models import bound_for

pytestmark = pytest.mark.newest

WIDTH, WIDE, TOKENS, WORDS, PIXELS = HEADS * SIZE, 64, 12, 40, 16
# Of the Euclidean norm. A rounding that falls the other way is a step of 1/255 of the largest number.
DISTANCE = 1e-2


def dense(net, x, rows, columns, seed):
    weights = numbers((rows, columns), seed) / np.sqrt(rows)
    return net.node(
        "Add", [net.node("MatMul", [x, net.constant(weights)]), net.constant(numbers((columns,), seed + 1))]
    )


def norm(net, x, seed):
    scale, bias = net.constant(numbers((WIDTH,), seed, 0.5, 1.5)), net.constant(numbers((WIDTH,), seed + 1))
    return net.node("LayerNormalization", [x, scale, bias], axis=-1)


def encoder(make_model):
    """A layer of a transformer that reads words."""
    net = Network("float32")
    net.inputs["words"] = ["n", TOKENS]
    words = net.node("Cast", ["words"], to=TensorProto.INT64)
    x = norm(net, net.node("Gather", [net.constant(numbers((WORDS, WIDTH), 1)), words]), 2)
    q, k, v = (
        heads_of(net, dense(net, x, WIDTH, WIDTH, 10 * i), order)
        for i, order in enumerate(((0, 2, 1, 3), (0, 2, 3, 1), (0, 2, 1, 3)), 1)
    )
    seen = net.node("Transpose", [attend(net, q, k, v)], perm=[0, 2, 1, 3])
    seen = net.node("Reshape", [seen, net.ints(0, 0, WIDTH)])
    x = norm(net, net.node("Add", [x, dense(net, seen, WIDTH, WIDTH, 40)]), 42)
    bent = net.node("Tanh", [dense(net, x, WIDTH, WIDE, 50)])
    net.output(norm(net, net.node("Add", [x, dense(net, bent, WIDE, WIDTH, 60)]), 62), ["n", TOKENS, WIDTH])
    return net.model(make_model, opset=21)


def pictures(make_model):
    """Convolutions, one of them of each channel alone, and what decides."""
    net = Network("float32")
    x = net.input("picture", ["n", 3, PIXELS, PIXELS])
    for seed, shape, more in ((1, (8, 3, 3, 3), {"strides": [2, 2]}), (2, (8, 1, 3, 3), {"group": 8})):
        weights = [net.constant(numbers(shape, seed)), net.constant(numbers(shape[:1], seed + 5))]
        x = net.node("Relu", [net.node("Conv", [x, *weights], pads=[1, 1, 1, 1], **more)])
    x = net.node("MaxPool", [x], kernel_shape=[2, 2], strides=[2, 2])
    x = net.node("Flatten", [x])
    weights = net.constant(numbers((10, 8 * 4 * 4), 3)), net.constant(numbers((10,), 4))
    net.output(net.node("Gemm", [x, *weights], transB=1), ["n", 10])
    return net.model(make_model, opset=21)


def gates(make_model):
    """A classifier with what the quantizer has operators of its own for."""
    net = Network("float32")
    x = net.input("picture", ["n", 3, PIXELS, PIXELS])
    weights = [net.constant(numbers((8, 3, 3, 3), 1)), net.constant(numbers((8,), 6))]
    x = net.node("Conv", [x, *weights], pads=[1, 1, 1, 1])
    x = net.node("Mul", [x, net.node("Sigmoid", [x])])
    x = net.node("Concat", [x, net.node("LeakyRelu", [x], alpha=0.1)], axis=1)
    x = net.node(
        "Add",
        [
            net.node("AveragePool", [x], kernel_shape=[2, 2], strides=[2, 2]),
            net.node("MaxPool", [x], kernel_shape=[2, 2], strides=[2, 2]),
        ],
    )
    x = net.node("Flatten", [net.node("GlobalAveragePool", [x])])
    weights = net.constant(numbers((10, 16), 3)), net.constant(numbers((10,), 4))
    net.output(net.node("Softmax", [net.node("Gemm", [x, *weights], transB=1)], axis=-1), ["n", 10])
    return net.model(make_model, opset=21)


def sequences(make_model):
    """An LSTM in both directions."""
    net = Network("float32")
    x = net.input("picture", ["n", 3, PIXELS, PIXELS])
    x = net.node("Reshape", [x, net.ints(3 * PIXELS, -1, PIXELS)])
    weights = [net.constant(numbers(shape, i) / 4) for i, shape in enumerate([(2, 48, PIXELS), (2, 48, 12), (2, 96)])]
    net.output(net.node("LSTM", [x, *weights], hidden_size=12, direction="bidirectional"), [3 * PIXELS, 2, "n", 12])
    return net.model(make_model, opset=21)


def feeds(model, seed):
    (name,) = (value.name for value in model.graph.input)
    if name == "words":
        return {name: np.random.default_rng(seed).integers(0, WORDS, (2, TOKENS)).astype(np.float32)}
    return {name: numbers((2, 3, PIXELS, PIXELS), seed)}


class Examples:
    def __init__(self, model):
        self.left = [feeds(model, seed) for seed in range(4)]

    def get_next(self):
        return self.left.pop() if self.left else None


def quantized(**options):
    def make(model, before, after):
        from onnxruntime import quantization

        types = {"activation_type": "QUInt8", "weight_type": "QUInt8", **options}
        for key in "activation_type", "weight_type":
            types[key] = quantization.QuantType[types[key]]
        types["quant_format"] = quantization.QuantFormat[types.get("quant_format", "QDQ")]
        quantization.quantize_static(before, after, Examples(model), **types)

    return make


def dynamic(model, before, after):
    from onnxruntime import quantization

    # An LSTM's are signed all the same, and of seven bits for CPUs without VNNI, as below.
    weights = {"weight_type": quantization.QuantType.QUInt8, "per_channel": True, "reduce_range": True}
    quantization.quantize_dynamic(before, after, **weights)


def in_halves(model, before, after):
    from onnxruntime.transformers.float16 import convert_float_to_float16

    onnx.save(convert_float_to_float16(model, keep_io_types=True), after)


TOOLS = {
    "dynamic": dynamic,
    "with scales beside": quantized(),
    # Of seven bits: CPUs without VNNI clip the sums of products of signed and unsigned bytes.
    "of each channel": quantized(weight_type="QInt8", per_channel=True, reduce_range=True),
    "of sixteen bits": quantized(activation_type="QUInt16", weight_type="QInt16"),
    "as operators": quantized(quant_format="QOperator", op_types_to_quantize=["MatMul", "Conv"]),
    "as operators all over": quantized(quant_format="QOperator"),
    "in halves": in_halves,
}

# Of com.microsoft, that the tool makes of a model's.
OPERATORS = {
    ("as operators all over", encoder): {"QLinearAdd", "QLinearSoftmax"},
    ("as operators all over", pictures): {"QGemm"},
    ("as operators all over", gates): {
        *("QLinearAdd", "QLinearMul", "QLinearSigmoid", "QLinearLeakyRelu", "QLinearConcat", "QLinearAveragePool"),
        *("QLinearGlobalAveragePool", "QGemm", "QLinearSoftmax"),
    },
    ("dynamic", sequences): {"DynamicQuantizeLSTM"},
}


@es.only_if(es.ORT_VERSION >= (1, 28))  # older ones' tools want sympy
@pytest.mark.parametrize(
    "tool,build",
    [(tool, build) for tool in TOOLS for build in (encoder, pictures, gates)]
    + [(tool, sequences) for tool in ("dynamic", "in halves")],  # the others leave an LSTM alone
)
def test_made_smaller(make_model, tmp_path, tool, build):
    whole, smaller = build(make_model), tmp_path / "smaller.onnx"
    onnx.save(whole, tmp_path / "whole.onnx")
    TOOLS[tool](whole, tmp_path / "whole.onnx", smaller)
    model = onnx.load(smaller)
    assert [node.op_type for node in model.graph.node] != [node.op_type for node in whole.graph.node], "nothing is done"
    if (tool, build) in OPERATORS:
        assert OPERATORS[tool, build] <= {node.op_type for node in model.graph.node}
    reference, session = on_cpu(model), es.make_session(model, enable_cuda_graph=1)
    es.assert_all_on_encore(session)
    bound = bound_for(session, model, feeds(whole, 0))
    for seed in range(3):
        given = feeds(whole, seed)
        (wanted,) = reference.run(None, given)
        (eager,) = bound.run(given, graph_id=es.EAGER).values()
        assert distance(eager, wanted) < DISTANCE
        (replayed,) = bound.run().values()
        assert np.array_equal(replayed, eager)
