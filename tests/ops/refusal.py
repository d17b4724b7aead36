"""Nodes that Encore must not take, and runs that must fail with the reason."""

import pytest
from encore_session import EP_NAME, ORT_VERSION, assert_all_on_encore, nodes_on
from harness import Const, _onnx_type, session
from onnx import helper, numpy_helper


def _session(op, inputs, attrs, opset, outputs, ranks, domain="", domain_opset=1):
    """Of the node "it"; every dimension is unknown, or even the ranks are."""
    while inputs and inputs[-1] is None:  # which an older schema may not know
        inputs = inputs[:-1]
    names = [f"x{i}" for i in range(len(inputs))]
    made = [f"y{i}" if w else "" for i, w in enumerate([True] * outputs if isinstance(outputs, int) else outputs)]
    node = helper.make_node(
        op,
        [n if v is not None else "" for n, v in zip(names, inputs)],
        made,
        name="it",
        domain=domain,
        **attrs,
    )
    values = [
        helper.make_tensor_value_info(n, _onnx_type(v.dtype), [f"{n}_{d}" for d in range(v.ndim)] if ranks else None)
        for n, v in zip(names, inputs)
        if v is not None and not isinstance(v, Const)
    ]
    constants = [numpy_helper.from_array(v.value, n) for n, v in zip(names, inputs) if isinstance(v, Const)]
    results = [helper.make_empty_tensor_value_info(n) for n in made if n]
    graph = helper.make_graph([node], "case", values, results, constants)
    opsets = [helper.make_opsetid("", opset)] + ([helper.make_opsetid(domain, domain_opset)] if domain else [])
    return session(helper.make_model(graph, opset_imports=opsets, ir_version=10))


def unranked_session(op, inputs):
    """In which nothing is known of the shapes."""
    return _session(op, inputs, {}, 21, 1, ranks=False)


def declined(op, inputs, attrs, opset=21, outputs=1, domain="", domain_opset=1):
    """Leaves the node to the CPU EP, which may take it or refuse it; or to a function, whose nodes may be Encore's."""
    try:
        sess = _session(op, inputs, attrs, opset, outputs, True, domain, domain_opset)
    except AssertionError:
        raise
    except Exception as error:
        assert "Encore" not in str(error)
        assert ORT_VERSION < (1, 32) or "Unrecognized attribute" not in str(error), "older ones lack some"
        return
    assert op not in nodes_on(sess).get(EP_NAME, [])


def fails(op, inputs, attrs, words, opset=21, outputs=1, ranks=True, domain=""):
    sess = _session(op, inputs, attrs, opset, outputs, ranks, domain)
    assert_all_on_encore(sess)
    with pytest.raises(Exception, match=words) as caught:
        sess.run(None, {f"x{i}": v for i, v in enumerate(inputs) if v is not None and not isinstance(v, Const)})
    assert "'it'" in str(caught.value)
