"""Models with If, Loop and Scan, and what to run them on."""

from dataclasses import dataclass

import numpy as np

FLOAT, INT = np.float32, np.int64
YES, NO = np.array(True), np.array(False)


def some(*shape, dtype=FLOAT, seed=0):
    return (np.random.default_rng(seed).standard_normal(shape) * 4).astype(dtype)


@dataclass
class Case:
    text: str
    feeds: list  # dictionaries, run one after the other
    left: tuple = ()  # operators that stay on the CPU
    opset: int = 18


# What a loop makes of its condition and iteration number stays where these are: in host memory.
KEEP = ("Identity",)

CASES = {
    # ---- If
    "if: both branches, a value from outside": Case(
        """(bool c, float[n] x) => (float[m] y) {
             z = Exp(x)
             y = If <then_branch = t () => (float[n] a) { a = Neg(z) },
                     else_branch = e () => (float[n] b) { b = Add(z, x) }> (c) }""",
        [{"c": YES, "x": some(5)}, {"c": NO, "x": some(5)}, {"c": YES, "x": some(0)}],
    ),
    "if: the condition is computed on the device": Case(
        """(float[n] x) => (float[n] y) <float zero = {0.0}> {
             sum = ReduceSum <keepdims = 0> (x)
             c = Greater(sum, zero)
             y = If <then_branch = t () => (float[n] a) { a = Neg(x) },
                     else_branch = e () => (float[n] b) { b = Abs(x) }> (c) }""",
        [{"x": FLOAT([1, 2])}, {"x": FLOAT([-1, -2])}],
    ),
    "if: a value from outside on the CPU": Case(
        """(bool c, float[n, 2] x) => (float[k] y) <int64[1] two = {2}, int64[1] all = {-1}> {
             s = Shape(x)
             d = Mul(s, two)
             y = If <then_branch = t () => (float[k] a) { a = Reshape(x, all) },
                     else_branch = e () => (float[k] b) { b0 = Expand(x, d) b = Reshape(b0, all) }> (c) }""",
        [{"c": YES, "x": some(3, 2)}],
        left=("Mul",),
    ),
    "if: branches return constants": Case(
        """(bool c, float[2] x) => (float[2] z) {
             y = If <then_branch = t () => (float[2] a) <float[2] a = {1.0, 2.0}> { },
                     else_branch = e () => (float[2] b) { b = Constant <value = float[2] {3.0, 4.0}> () }> (c)
             z = Add(x, y) }""",
        [{"c": YES, "x": some(2)}, {"c": NO, "x": some(2)}],
    ),
    "if: a branch hands on what it captured, several outputs of different shapes and types": Case(
        """(bool c, float[n] x, int64[m] k) => (float[p] y, int64[q] l, bool[r] b) {
             w = Neg(x)
             y, l, b = If <then_branch = t () => (float[p] y1, int64[q] l1, bool[r] b1) {
                             y1 = Identity(w) l1 = Abs(k) b1 = Greater(w, x) },
                           else_branch = e () => (float[p] y2, int64[q] l2, bool[r] b2) {
                             y2 = Concat <axis = 0> (w, x) l2 = Identity(k) b2 = Less(y2, y2) }> (c) }""",
        [{"c": c, "x": some(3), "k": some(4, dtype=INT)} for c in (YES, NO)],
    ),
    "if: in both branches of another": Case(
        """(bool c, bool d, float[n] x) => (float[n] y) {
             y = If <then_branch = t () => (float[n] a) {
                       u = Exp(x)
                       a = If <then_branch = tt () => (float[n] aa) { aa = Add(u, x) },
                               else_branch = te () => (float[n] ab) { ab = Neg(u) }> (d) },
                     else_branch = e () => (float[n] b) {
                       b = If <then_branch = et () => (float[n] ba) { ba = Abs(x) },
                               else_branch = ee () => (float[n] bb) { bb = Sub(x, x) }> (d) }> (c) }""",
        [{"c": c, "d": d, "x": some(3)} for c in (YES, NO) for d in (YES, NO)],
    ),
    "if: a branch with nodes on both sides": Case(
        """(bool c, float[n] x) => (float[n] y) {
             y = If <then_branch = t () => (float[n] y1) {
                       n1 = Neg(x) z1 = ai.onnx.ml.Imputer <imputed_value_floats = [5.0]> (n1) y1 = Abs(z1) },
                     else_branch = e () => (float[n] y2) {
                       y2 = ai.onnx.ml.Imputer <imputed_value_floats = [5.0]> (x) }> (c) }""",
        [{"c": c, "x": FLOAT([0, 1, 0, 2])} for c in (YES, NO)],
        left=("Imputer",),
    ),
    # ---- Loop
    "loop: trip count and condition": Case(
        """(int64 n, bool go, float[2] x) => (float[2] y, float[k, 2] all) <float[2] w = {1.0, 2.0}> {
             y, all = Loop <body = step (int64 i, bool c, float[2] a) => (bool c2, float[2] b, float[2] out) {
                 c2 = Identity(c) b = Add(a, w) out = Neg(b) }> (n, go, x) }""",
        [{"n": np.array(n), "go": YES, "x": some(2)} for n in (3, 1, 40)]
        + [{"n": np.array(n), "go": go, "x": some(2)} for n, go in ((0, YES), (5, NO), (-1, YES))],
        KEEP,
    ),
    "loop: no iterations of unknown shape": Case(
        """(int64 n, float[p, q] x) => (float[p, q] y, float[k, p, 3] all) <float[1, 3] w = {1.0, 2.0, 3.0}> {
             y, all = Loop <body = step (int64 i, bool c, float[p, q] a) => (bool c2, float[p, q] b, float[p, 3] out) {
                 c2 = Identity(c) b = Neg(a) out = Mul(b, w) }> (n, , x) }""",
        [{"n": np.array(n), "x": some(2, 1)} for n in (0, 2)],
        KEEP,
    ),
    "loop: no trip count, ended by a condition from the device": Case(
        """(bool go, float[1] x) => (float[1] y, float[k, 1] all) <float[1] limit = {10.0}> {
             y, all = Loop <body = step (int64 i, bool c, float[1] a) => (bool c2, float[1] b, float[1] out) {
                 b = Add(a, a) less = Less(b, limit) c2 = Squeeze(less) out = Identity(b) }> (, go, x) }""",
        [{"go": YES, "x": FLOAT([0.75])}, {"go": YES, "x": FLOAT([100])}, {"go": NO, "x": FLOAT([100])}],
        left=("Squeeze",),
    ),
    "loop: neither trip count nor condition, ended by the iteration number": Case(
        """(float[2] x) => (float[2] y) <int64 last = {4}> {
             y = Loop <body = step (int64 i, bool c, float[2] a) => (bool c2, float[2] b) {
                 c2 = Less(i, last) b = Add(a, a) }> (, , x) }""",
        [{"x": some(2)}],
        left=("Less",),
    ),
    "loop: trip count from a shape, rows picked by the iteration number": Case(
        """(bool go, float[n, 3] x) => (float[k, 3] y) <int64 zero = {0}> {
             s = Shape(x)
             m = Gather(s, zero)
             u = Exp(x)
             y = Loop <body = step (int64 i, bool c) => (bool c2, float[3] out) {
                 c2 = Identity(c) row = Gather(u, i) out = Neg(row) }> (m, go) }""",
        [{"go": YES, "x": some(4, 3)}, {"go": YES, "x": some(1, 3)}, {"go": NO, "x": some(2, 3)}],
        left=(*KEEP, "Gather"),
    ),
    "loop: values swapped, handed on, used twice, and constant": Case(
        """(int64 n, float[2] x, float[2] y)
               => (float[2] x2, float[2] y2, float[k, 2] p, float[l, 2] q, float[m, 2] r) {
             u = Neg(x)
             x2, y2, p, q, r = Loop <body = step (int64 i, bool c, float[2] a, float[2] b)
                 => (bool c, float[2] b, float[2] a, float[2] s, float[2] s2, float[2] w)
                 <float[2] w = {5.0, 6.0}> { s = Add(a, b) s2 = Identity(s) }> (n, , u, y) }""",
        [{"n": np.array(n), "x": some(2), "y": some(2, seed=1)} for n in (0, 1, 2, 3)],
        KEEP,
    ),
    "loop: a carried value that grows": Case(
        """(int64 n, float[p] x) => (float[q] y, float[k, 1] sums) {
             y, sums = Loop <body = step (int64 i, bool c, float[r] a) => (bool c2, float[s] b, float[1] sum) {
                 c2 = Identity(c) b = Concat <axis = 0> (a, x) sum = ReduceSum(b) }> (n, , x) }""",
        [{"n": np.array(4), "x": some(3)}, {"n": np.array(2), "x": some(0)}],
        KEEP,
    ),
    "loop: outputs of three bytes, of a scalar, and empty": Case(
        """(int64 n, float[3] x, float[0] e) => (float[3] y, bool[k, 3] t, float[k] s, float[k, 0] z) {
             y, t, s, z = Loop <body = step (int64 i, bool c, float[3] a)
                 => (bool c2, float[3] b, bool[3] t, float s, float[0] z) {
                 c2 = Identity(c) b = Neg(a) t = Less(a, b)
                 s = ReduceMax <keepdims = 0> (b) z = Exp(e) }> (n, , x) }""",
        [{"n": np.array(n), "x": some(3), "e": some(0)} for n in (0, 1, 21)],
        KEEP,
    ),
    "loop: a body with nodes on both sides": Case(
        """(int64 n, float[4] x) => (float[4] y, float[k, 4] all) {
             y, all = Loop <body = step (int64 i, bool c, float[4] v) => (bool c2, float[4] w, float[4] out) {
                 c2 = Identity(c) w = Neg(v)
                 z = ai.onnx.ml.Imputer <imputed_value_floats = [5.0]> (w) out = Abs(z) }> (n, , x) }""",
        [{"n": np.array(3), "x": FLOAT([0, 1, 0, 2])}],
        left=(*KEEP, "Imputer"),
    ),
    "if in loop in if": Case(
        """(bool go, int64 n, float[2] x) => (float[2] y) <int64 two = {2}, int64 zero = {0}> {
             u = Exp(x)
             y = If <then_branch = t () => (float[2] a) {
                   v = Neg(u)
                   a = Loop <body = step (int64 i, bool c, float[2] p) => (bool c2, float[2] q) {
                       c2 = Identity(c)
                       odd = Mod(i, two)
                       even = Equal(odd, zero)
                       q = If <then_branch = tt () => (float[2] ta) { ta = Add(p, u) },
                               else_branch = te () => (float[2] tb) { tb = Sub(p, v) }> (even) }> (n, , v) },
                 else_branch = e () => (float[2] b) { b = Identity(u) }> (go) }""",
        [{"go": go, "n": np.array(n), "x": some(2)} for go in (YES, NO) for n in (0, 3)],
        left=(*KEEP, "Mod", "Equal"),
    ),
    "loop in loop": Case(
        """(int64 n, float[2] x) => (float[2] y, float[k, l, 2] all) {
             y, all = Loop <body = outer (int64 i, bool c, float[2] a) => (bool c2, float[2] b, float[l, 2] rows) {
                 c2 = Identity(c)
                 b, rows = Loop <body = inner (int64 j, bool d, float[2] p) => (bool d2, float[2] q, float[2] row) {
                     d2 = Identity(d) q = Add(p, x) row = Mul(q, a) }> (n, , a) }> (n, , x) }""",
        [{"n": np.array(3), "x": some(2)}],
        KEEP,
    ),
    "loop: values from outside on the CPU, read on the device": Case(
        """(int64 n, float[m, 2] x) => (float[2] y) <int64[2] two = {2, 2}> {
             s = Shape(x)
             d = Mul(s, two)
             zero = ReduceMin <axes = [0], keepdims = 0> (x)
             y = Loop <body = step (int64 i, bool c, float[2] a) => (bool c2, float[2] b) {
                 c2 = Identity(c) e = Cast <to = 1> (d) f = Add(a, e) b = Sub(f, zero) }> (n, , zero) }""",
        [{"n": np.array(3), "x": some(3, 2)}],
        left=(*KEEP, "Mul"),
        opset=13,
    ),
    # ---- Scan
    "scan: a sum and its steps": Case(
        """(float[2] s, float[n, 2] x) => (float[2] y, float[n, 2] all) {
             y, all = Scan <num_scan_inputs = 1, body = step (float[2] a, float[2] e) => (float[2] b, float[2] out) {
                 b = Add(a, e) out = Identity(b) }> (s, x) }""",
        [{"s": some(2), "x": some(n, 2)} for n in (1, 2, 3, 40)],
    ),
    "scan: backwards, along other axes": Case(
        """(float[2] s, float[2, n] x, float[n, 3] w) => (float[2] y, float[n, 2] p, float[2, n] q, float[3, n] r) {
             u = Exp(x)
             y, p, q, r = Scan <num_scan_inputs = 2, scan_input_axes = [1, 0], scan_input_directions = [1, 0],
                 scan_output_axes = [0, -1, 1], scan_output_directions = [1, 0, 1],
                 body = step (float[2] a, float[2] e, float[3] f)
                     => (float[2] b, float[2] o1, float[2] o2, float[3] o3) {
                 b = Add(a, e) o1 = Neg(b) o2 = Abs(b) o3 = Neg(f) }> (s, u, w) }""",
        [{"s": some(2), "x": some(2, n), "w": some(n, 3)} for n in (1, 2, 5)],
    ),
    "scan: axes of tensors with many dimensions": Case(
        """(float[2, 3, n, 4] x) => (float[2, 3, n, 4] y, float[3, 2, 4, n] z) {
             u = Neg(x)
             y, z = Scan <num_scan_inputs = 1, scan_input_axes = [-2], scan_output_axes = [2, 3],
                 body = step (float[2, 3, 4] e) => (float[2, 3, 4] o, float[3, 2, 4] t) {
                 o = Abs(e) t = Transpose <perm = [1, 0, 2]> (e) }> (u) }""",
        [{"x": some(2, 3, n, 4)} for n in (1, 3)],
    ),
    "scan: several states, one handed on, one constant, values from outside": Case(
        """(float[2] s, int64[1] t, float[n, 2] x) => (float[2] y, int64[1] l, float[2] c, float[n, 2] all) {
             u = Exp(s)
             y, l, c, all = Scan <num_scan_inputs = 1,
                 body = step (float[2] a, int64[1] k, float[2] d, float[2] e)
                     => (float[2] b, int64[1] k2, float[2] w, float[2] out) <float[2] w = {1.0, 2.0}> {
                 b = Add(a, u) k2 = Identity(k) v = Mul(e, d) out = Sub(v, b) }> (s, t, u, x) }""",
        [{"s": some(2), "t": INT([7]), "x": some(n, 2)} for n in (1, 4)],
    ),
    "scan: no state, an output without dimensions": Case(
        """(float[n, 3] x) => (float[n] y, bool[n, 3] z) {
             y, z = Scan <num_scan_inputs = 1, body = step (float[3] e) => (float o, bool[3] l) {
                 o = ReduceMax <keepdims = 0> (e) n = Neg(e) l = Less(e, n) }> (x) }""",
        [{"x": some(6, 3)}],
    ),
    "scan: in a scan, in a loop": Case(
        """(int64 m, float[n, n] x) => (float[n, n] y) {
             y = Loop <body = step (int64 i, bool c, float[n, n] a) => (bool c2, float[n, n] b) {
                 c2 = Identity(c)
                 b = Scan <num_scan_inputs = 1, scan_input_axes = [1], body = column (float[n] e) => (float[n] o) {
                     o = Scan <num_scan_inputs = 1, scan_input_directions = [1],
                               body = element (float f) => (float p) { p = Neg(f) }> (e) }> (a) }> (m, , x) }""",
        [{"m": np.array(3), "x": some(3, 3)}],
        KEEP,
    ),
}
