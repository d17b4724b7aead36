"""Models that onnxruntime takes apart, by control flow or by sizes that depend on data; with random weights."""

import numpy as np
import onnx.parser
from onnx import numpy_helper

FLOAT, INT = np.float32, np.int64


def some(*shape, seed=0, most=1.0):
    return np.random.default_rng(seed).uniform(-most, most, shape).astype(FLOAT)


def model(text, **weights):
    made = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 18, "com.microsoft" : 1]> g {text}')
    made.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in weights.items())
    return made


def detector(channels=8, layers=1):
    """Boxes and scores of a picture's places, of which NonMaxSuppression keeps some: how many depends on data."""
    blocks = "".join(
        f"c{n} = Conv <pads = [1, 1, 1, 1]> (f{n}, w1) d{n} = Add(c{n}, f{n}) f{n + 1} = Relu(d{n}) "
        for n in range(layers)
    )
    heads = f"f = Conv (f{layers}, w2) s = Conv (f{layers}, w3)"
    return model(
        """(float[1, 3, h, w] picture, float[1] threshold) => (float[k, 4] boxes, float[k] scores, int64[k] classes)
           <int64[3] rows = {1, -1, 4}, int64[3] columns = {1, 5, -1}, int64[1] most = {20}, float[1] overlap = {0.45},
            int64[1] one = {1}, int64[1] two = {2}, int64[1] three = {3}, int64[1] four = {4}, int64[1] last = {-1},
            int64 zero_ = {0}, int64[1] zero = {0}, float size = {0.4}, int64 second = {2}, int64 third = {3}> {
             a = Conv <pads = [1, 1, 1, 1], strides = [2, 2]> (picture, w0, b0) f0 = Relu(a) """
        + blocks
        + heads
        + """
             bt = Transpose <perm = [0, 2, 3, 1]> (f) centers = Reshape(bt, rows)
             corner = Slice(centers, zero, two, two) e0 = Slice(centers, two, four, two) extent0 = Abs(e0)
             extent = Add(extent0, size) end = Add(corner, extent) all = Concat <axis = 2> (corner, end)
             sr = Reshape(s, columns) probabilities = Sigmoid(sr)
             kept = NonMaxSuppression(all, probabilities, most, overlap, threshold)
             at = Gather <axis = 1> (kept, second) classes0 = Slice(kept, one, two, one)
             classes = Squeeze(classes0, one)
             flat = Squeeze(all, zero) boxes = Gather(flat, at) scores = GatherND(probabilities, kept) }""",
        w0=some(channels, 3, 3, 3),
        b0=some(channels),
        w1=some(channels, channels, 3, 3, most=(8 / channels) ** 0.5),
        w2=some(4, channels, 1, 1, seed=1),
        w3=some(5, channels, 1, 1, seed=2) / 16,
    )


def voice_activity():
    """A network for each of two sampling rates, as silero-vad has them, and a state from run to run."""

    def branch(name, window, stride):
        return f"""{name} = {name}_ () => (float[b, 1] {name}p, float[2, b, 16] {name}s) {{
            {name}a = Unsqueeze(x, one) {name}f = Conv <strides = [{stride}]> ({name}a, {name}w0)
            {name}q = Mul({name}f, {name}f) {name}m = Sqrt({name}q)
            {name}e = Conv <pads = [1, 1]> ({name}m, {name}w1, bias) {name}r = Relu({name}e)
            {name}t = Transpose <perm = [2, 0, 1]> ({name}r)
            {name}h, {name}c = Split <axis = 0, num_outputs = 2> (state)
            {name}y, {name}h2, {name}c2 = LSTM <hidden_size = 16> ({name}t, wi, wr, wb, , {name}h, {name}c)
            {name}s = Concat <axis = 0> ({name}h2, {name}c2)
            {name}l = Squeeze({name}h2, zero) {name}v = Relu({name}l) {name}z = Gemm({name}v, wo)
            {name}p = Sigmoid({name}z)
        }}"""

    text = f"""(float[b, n] x, float[2, b, 16] state, int64 rate) => (float[b, 1] p, float[2, b, 16] next)
        <int64[1] one = {{1}}, int64[1] zero = {{0}}, int64 high = {{16000}}> {{
          is_high = Equal(rate, high)
          p, next = If <{branch("then_branch", 32, 16)}, {branch("else_branch", 16, 8)}> (is_high) }}"""
    return model(
        text,
        then_branchw0=some(8, 1, 32),
        then_branchw1=some(12, 8, 3, seed=1),
        else_branchw0=some(8, 1, 16, seed=2),
        else_branchw1=some(12, 8, 3, seed=3),
        bias=some(12),
        wi=some(1, 64, 12, seed=4),
        wr=some(1, 64, 16, seed=5),
        wb=some(1, 128, seed=6),
        wo=some(16, 1),
    )


VOCABULARY, WIDTH, HEADS, CAPACITY = 48, 32, 2, 24


def decoder(cache, layers=2):
    """Greedy decoding of up to k tokens behind the first, until one is the last of the vocabulary."""
    size = WIDTH // HEADS
    weights = {"embedding": some(VOCABULARY, WIDTH), "gain": np.ones(WIDTH, FLOAT)}
    weights["positions"] = np.arange(CAPACITY, dtype=np.int32)
    weights["rows"] = weights["positions"].reshape(CAPACITY, 1)
    carried, body, made = [], "", []
    for n in range(layers):
        weights |= {
            f"{w}{n}": some(WIDTH, width, seed=n * 7 + i) / 4
            for i, (w, width) in enumerate((("q", WIDTH), ("k", WIDTH), ("v", WIDTH), ("o", WIDTH), ("up", 4 * WIDTH)))
        }
        weights[f"down{n}"] = some(4 * WIDTH, WIDTH, seed=n * 7 + 6) / 4
        carried += [f"K{n}", f"V{n}"]
        made += [f"K{n}_", f"V{n}_"]
        body += f"""
            norm{n} = LayerNormalization(x{n}, gain)
            q_{n} = MatMul(norm{n}, q{n}) k_{n} = MatMul(norm{n}, k{n}) v_{n} = MatMul(norm{n}, v{n})
            {cache(n, size)}
            out{n} = MatMul(mixed{n}, o{n}) y{n} = Add(x{n}, out{n})
            norm2{n} = LayerNormalization(y{n}, gain) up_{n} = MatMul(norm2{n}, up{n}) act{n} = Relu(up_{n})
            down_{n} = MatMul(act{n}, down{n}) x{n + 1} = Add(y{n}, down_{n})"""
    room, after = ("p_", "r_") if cache is grown else (CAPACITY, CAPACITY)
    typed = lambda names, rank4: ", ".join(f"float[{rank4}] {name}" for name in names)
    return model(
        f"""(int64 k, int64[1, 1] first, float[1, {HEADS}, p, {size}] past)
               => (int64[n, 1, 1] tokens, float[1, {HEADS}, r, {size}] cache)
            <int64[1] minus = {{-1}}, int64[4] split = {{1, -1, {HEADS}, {size}}}, int64[3] join = {{1, -1, {WIDTH}}},
             float lowest = {{-10000.0}}, int32 one = {{1}}, int64 last = {{{VOCABULARY - 1}}}, int64[1] all = {{-1}},
             float root = {{{size**-0.5}}}> {{
              token_, {", ".join(f"last{name}" for name in carried[1:])}, cache, tokens = Loop <body = step
                (int64 i, bool go, int64[1, 1] token, {typed(carried[1:] + carried[:1], f"1, {HEADS}, {room}, {size}")})
                => (bool on, int64[1, 1] next, {typed(made[1:] + made[:1], f"1, {HEADS}, {after}, {size}")},
                    int64[1, 1] told) {{
                x0 = Gather(embedding, token)
                number = Cast <to = 6> (i) total = Add(number, one) lengths = Reshape(number, all){body}
                norm = LayerNormalization(x{layers}, gain) turned = Transpose <perm = [1, 0]> (embedding)
                logits = MatMul(norm, turned) next = ArgMax <axis = -1, keepdims = 0> (logits)
                told = Identity(next) flat = Squeeze(next) ended = Equal(flat, last) on = Not(ended)
              }}> (k, , first, {", ".join(["past"] * (2 * layers))}) }}""",
        **weights,
    )


def shared(n, size):
    """As onnxruntime-genai has it: the cache has room for all, and what is past is present."""
    return f"""mixed{n}, K{n}_, V{n}_ = com.microsoft.GroupQueryAttention <num_heads = {HEADS}, kv_num_heads = {HEADS}>
        (q_{n}, k_{n}, v_{n}, K{n}, V{n}, lengths, total)"""


def grown(n, size):
    return spelled(n, f"K{n}_ = Concat <axis = 2> (K{n}, kt{n}) V{n}_ = Concat <axis = 2> (V{n}, vt{n})")


def fixed(n, size):
    """As exporters write a static cache: it has room for all, and a new row takes its place."""
    write = f"""here{n} = Equal(rows, number) K{n}_ = Where(here{n}, kt{n}, K{n}) V{n}_ = Where(here{n}, vt{n}, V{n})"""
    return spelled(
        n, write, f"later{n} = Greater(positions, number) seen{n} = Where(later{n}, lowest, scaled{n})", "seen"
    )


def spelled(n, write, mask="", masked="scaled"):
    heads = lambda x: f"{x}h{n} = Reshape({x}_{n}, split) {x}t{n} = Transpose <perm = [0, 2, 1, 3]> ({x}h{n})"
    return f"""{heads("q")} {heads("k")} {heads("v")} {write}
        turned{n} = Transpose <perm = [0, 1, 3, 2]> (K{n}_) scores{n} = MatMul(qt{n}, turned{n})
        scaled{n} = Mul(scores{n}, root) {mask} shares{n} = Softmax <axis = -1> ({masked}{n})
        sum{n} = MatMul(shares{n}, V{n}_)
        back{n} = Transpose <perm = [0, 2, 1, 3]> (sum{n}) mixed{n} = Reshape(back{n}, join)"""


def exported():
    """An encoder's layer as torch's older exporter writes one with dynamic axes: each reshape has a shape that nodes
    compute."""
    heads, size = 4, 8
    width = heads * size

    def split(name):
        return f"""{name}b = Shape(x) {name}n = Gather({name}b, zero_) {name}l0 = Shape(x)
            {name}l = Gather({name}l0, one_)
            {name}n1 = Unsqueeze({name}n, zero) {name}l1 = Unsqueeze({name}l, zero)
            {name}to = Concat <axis = 0> ({name}n1, {name}l1, heads, size)
            {name}p = MatMul(x, w{name}) {name}v = Reshape({name}p, {name}to)
            {name} = Transpose <perm = [0, 2, 1, 3]> ({name}v)"""

    return model(
        f"""(float[n, l, {width}] x, int64[n, l] mask) => (float[n, l, {width}] y)
            <int64 zero_ = {{0}}, int64 one_ = {{1}}, int64[1] zero = {{0}}, int64[1] one = {{1}}, int64[1] two = {{2}},
             int64[1] heads = {{{heads}}}, int64[1] size = {{{size}}}, int64[1] width = {{{width}}},
             float lowest = {{-10000.0}},
             float unit = {{1.0}}, int64 last_ = {{-1}}> {{
              {split("q")} {split("k")} {split("v")}
              kt = Transpose <perm = [0, 1, 3, 2]> (k) s = MatMul(q, kt)
              d0 = Shape(q) d1 = Gather(d0, last_) d2 = Cast <to = 1> (d1) d = Sqrt(d2) t = Div(s, d)
              m1 = Unsqueeze(mask, one) m2 = Unsqueeze(m1, two)
              s0 = Shape(x) n0 = Gather(s0, zero_) l0 = Gather(s0, one_)
              n1 = Unsqueeze(n0, zero) l1 = Unsqueeze(l0, zero)
              to = Concat <axis = 0> (n1, one, l1, l1) m3 = Expand(m2, to) m4 = Cast <to = 1> (m3) m5 = Sub(unit, m4)
              m = Mul(m5, lowest) u = Add(t, m) p = Softmax <axis = -1> (u) a = MatMul(p, v)
              b = Transpose <perm = [0, 2, 1, 3]> (a) c0 = Shape(b) c1 = Gather(c0, zero_) c2 = Shape(b)
              c3 = Gather(c2, one_) c4 = Unsqueeze(c1, zero) c5 = Unsqueeze(c3, zero)
              c6 = Concat <axis = 0> (c4, c5, width) c = Reshape(b, c6)
              o = MatMul(c, wo) r = Add(o, x) y = LayerNormalization(r, gain) }}""",
        wq=some(width, width),
        wk=some(width, width, seed=1),
        wv=some(width, width, seed=2),
        wo=some(width, width, seed=3),
        gain=np.ones(width, FLOAT),
    )
