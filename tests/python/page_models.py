"""Models that the pages' examples run, small and quick, in the current folder."""

import onnx

# y = Relu(x · w)
SMALL = """<ir_version: 10, opset_import: ["": 18]>
    small (float[rows, 3] x) => (float[rows, 2] y)
    <float[3, 2] w = {1, 0, 0, 1, 1, 1}> { h = MatMul(x, w) y = Relu(h) }"""


def write(text=SMALL, name="model.onnx"):
    model = onnx.parser.parse_model(text)
    onnx.checker.check_model(model)
    onnx.save(model, name)
