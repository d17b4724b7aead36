"""Bad values inside kernels fail the run that has them, and no other."""

import gc

import encore_session as es
import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

pytestmark = pytest.mark.core

TABLE = np.arange(40, dtype=np.float32).reshape(10, 4)


@pytest.fixture(scope="module")
def lookup(make_model):
    node = helper.make_node("Gather", ["table", "i"], ["y"], "look")
    inputs, table = {"i": (["n"], TensorProto.INT64)}, numpy_helper.from_array(TABLE, "table")
    return make_model([node], inputs, {"y": ["n", 4]}, [table])


def look(session, index):
    return session.run(None, {"i": np.full(300, index)}, es.run_options(es.EAGER))[0]


@pytest.mark.parametrize("options", [{}, {"use_ep_level_unified_stream": 1}, {"enable_cuda_graph": 1}], ids=str)
def test_a_fault_is_of_the_run_that_has_it(encore, lookup, options):
    session = es.make_session(lookup, **options)

    def work(i):
        for _ in range(100):
            if i % 2:
                with pytest.raises(Exception, match="Gather node 'look': index 10 is outside"):
                    look(session, 10)
            else:
                np.testing.assert_array_equal(look(session, 3), np.tile(TABLE[3], (300, 1)))

    assert not es.in_threads(4, work)


@es.needs_graphs
def test_a_run_that_could_not_begin_leaves_nothing_behind(encore, lookup):
    session = es.make_session(lookup, enable_cuda_graph=1)
    with pytest.raises(Exception, match="gpu_graph_id"):
        session.run(None, {"i": np.zeros(1, np.int64)}, es.run_options(-2))
    del session
    gc.collect()
    np.testing.assert_array_equal(es.on_device(TABLE).numpy(), TABLE)  # a copy outside of runs looks at the last one
