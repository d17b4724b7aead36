"""What automatic graphs make of masks that grow: whatever is computed of one, they give what eager runs give, to the
bit, and of what is as long as the mask nothing is longer."""

import encore_session as es
import numpy as np
import onnxruntime_ep_encore
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

pytestmark = pytest.mark.newest

KINDS = {kind: getattr(TensorProto, kind.upper()) for kind in ("bool", "int32", "int64", "uint8", "float", "float16")}
INTEGERS = ["int32", "int64"]
TO_SHAPES = ["Shape", "Size"]
ONE_OF_ONE = ["Identity", "Cast", "Abs", "Neg", "Sign", "Unsqueeze", "CumSum", "Not"]
REDUCTIONS = ["ReduceSum", "ReduceMax", "ReduceMin", "ReduceMean", "ReduceProd", "ReduceL1"]
CONSTANTS = {"zero": [0], "one": [1], "both": [0, 1], "last": [-1], "first": 0, "second": 1}


class Chain:
    """Nodes that begin with a mask, of which each reads one that was made before."""

    def __init__(self, data):
        self.data, self.nodes = data, []
        kind = self.one_of([*INTEGERS * 2, *KINDS])
        self.mask = kind
        self.made = [("mask", kind, 2)]  # name, type, rank
        for _ in range(data.draw(st.integers(1, 5))):
            self.grow()

    def one_of(self, choices):
        return self.data.draw(st.sampled_from(choices))

    def add(self, op, inputs, kind, rank, **attributes):
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], name, **attributes))
        self.made.append((name, kind, rank))

    def grow(self):
        name, kind, rank = self.one_of(self.made)
        op = self.one_of([*ONE_OF_ONE, *REDUCTIONS, *["ReduceSum"] * 8, *TO_SHAPES])
        numeric = kind in [*INTEGERS, "float"]
        if op == "Cast":
            to = self.one_of(list(KINDS))
            self.add(op, [name], to, rank, to=KINDS[to])
        elif op == "Shape":
            self.add(op, [name], "int64", 1)
            if rank == 2 and self.data.draw(st.booleans()):
                self.add("Gather", [self.made[-1][0], self.one_of(["first", "second"])], "int64", 0)
        elif op == "Size":
            self.add(op, [name], "int64", 0)
        elif op == "Unsqueeze" and rank == 2:
            self.add(op, [name, self.one_of(["zero", "one", "last"])], kind, 3)
        elif op == "CumSum" and numeric and rank == 2:
            self.add(op, [name, self.one_of(["first", "second"])], kind, rank)
        elif op in REDUCTIONS and numeric and rank == 2:
            keeps, axes = self.data.draw(st.booleans()), self.one_of(["one", "last", "both", "zero"])
            self.add(op, [name, axes], kind, 2 if keeps else 0 if axes == "both" else 1, keepdims=int(keeps))
        elif op == "Not" and kind == "bool" or op in ("Abs", "Neg", "Sign") and numeric or op == "Identity":
            self.add(op, [name], kind, rank)

    def model(self):
        read = {name for node in self.nodes for name in node.input}
        outputs = [helper.make_empty_tensor_value_info(made[0]) for made in self.made[1:] if made[0] not in read]
        constants = [numpy_helper.from_array(np.array(value), name) for name, value in CONSTANTS.items()]
        mask = helper.make_tensor_value_info("mask", KINDS[self.mask], ["batch", "total"])
        graph = helper.make_graph(self.nodes, "chain", [mask], outputs, constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def test_eager_runs_give_the_same():
    grown = []

    @given(st.data())
    def try_chain(data):
        chain = Chain(data)
        if not chain.nodes:
            return
        model, dtype = chain.model(), helper.tensor_dtype_to_np_dtype(KINDS[chain.mask])
        session, eager = (es.make_session(model, regions=1, auto_graph=auto) for auto in (1, 0))
        for batch, length in ((2, 3), (2, 4), (3, 5), (2, 5), (3, 6), (3, 3), (4, 4), (2, 300)):
            feeds = {"mask": np.random.default_rng(length).integers(0, 3, (batch, length)).astype(dtype)}
            for got, wanted in zip(session.run(None, feeds), eager.run(None, feeds), strict=True):
                assert (got.shape, got.tobytes()) == (wanted.shape, wanted.tobytes())
        grown.extend(told["grown"] for told in onnxruntime_ep_encore.region_report(session))

    try_chain()
    assert np.count_nonzero(grown) > 3, grown
