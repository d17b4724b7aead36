"""One operator each, with whatever shapes, axes and attributes Hypothesis thinks of: Encore and the CPU EP agree.

The fuzzer (tests/fuzz) judges. What it looks at is drawn here, and a failure shrinks to the smallest one there is.
Whole graphs (test_fused_graphs.py, test_grown_graphs.py, test_shape_arithmetic.py) are judged there.
"""
