"""What is left out of a model that an exporter has made, before its graph is stored for the tests."""

import pathlib
import sys

from onnx import TensorProto, numpy_helper

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests" / "models"))
import zoo

SMALLEST_SEEDED = 64  # elements


def drop_traces(model):
    """The exporter notes on every node which line of Python it comes from."""
    graph = model.graph
    for part in (model, graph, *graph.node, *graph.input, *graph.output, *graph.value_info, *graph.initializer):
        part.ClearField("doc_string")
        part.ClearField("metadata_props")


def drop_weights(model, spread):
    """Of a weight only what `spread` says of its values is kept, their mean and standard deviation."""
    for tensor in model.graph.initializer:
        values = numpy_helper.to_array(tensor)
        kept = TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
        if tensor.data_type == TensorProto.FLOAT and values.size >= SMALLEST_SEEDED:
            zoo.mark_seeded(kept, *spread(values))
        else:
            kept.raw_data = values.tobytes()
        tensor.CopyFrom(kept)
