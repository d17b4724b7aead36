"""If, Loop and Scan on Encore, against the CPU EP: bodies of all kinds, opsets, types, streams, threads, graphs."""

import re

import encore_session
import numpy as np
import onnx.parser
import onnxruntime as ort
import pytest
from control_flow_cases import CASES, FLOAT, INT, KEEP, NO, YES, some
from encore_session import (
    ARRANGEMENTS,
    EP_NAME,
    NEWEST_OPSET,
    Bound,
    in_new_process,
    in_threads,
    make_session,
    needs_graphs,
    nodes_on,
    on_virtual_gpu,
    trace,
)

pytestmark = pytest.mark.core

CONTROL_FLOW = {"If", "Loop", "Scan"}


def parse(text, opset=18):
    domains = f'"": {opset}, "ai.onnx.ml": 1, "com.microsoft": 1'
    return onnx.parser.parse_model(f"<ir_version: 10, opset_import: [{domains}]> model {text}")


def on_cpu(model, feeds):
    return encore_session.on_cpu(model).run(None, feeds)


def assert_same(got, wanted):
    assert len(got) == len(wanted)
    for a, b in zip(got, wanted, strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape
        if a.dtype.kind == "f":
            np.testing.assert_allclose(a.astype(FLOAT), b.astype(FLOAT), rtol=1e-5, atol=1e-5)
        else:
            np.testing.assert_array_equal(a, b)


def assert_placed(session, left=()):
    """Everything is on Encore but for operators in `left`."""
    placed = nodes_on(session)
    assert CONTROL_FLOW & set(placed[EP_NAME])
    others = {op for name, ops in placed.items() if name != EP_NAME for op in ops}
    assert others <= set(left), f"on the CPU: {others}"


SWITCHED_OFF = {"enable_cuda_graph": 1, "graph_on_error": "eager"}


AUTOMATIC = {"auto_graph": 1}


@pytest.mark.parametrize(
    "graphs", [{}, SWITCHED_OFF, AUTOMATIC], ids=["", "with graphs switched off", "automatic graphs"]
)
@pytest.mark.parametrize("name", CASES)
def test_as_on_the_cpu(encore, name, graphs):
    case = CASES[name]
    model = parse(case.text, case.opset)
    session = make_session(model, **graphs)
    assert_placed(session, case.left)
    for feeds in case.feeds * 3:
        assert_same(session.run(None, feeds), on_cpu(model, feeds))


ALL_THREE = """(int64 n, bool go, float[2] s, float[m, 2] x) => (float[2] y, float[k, 2] p, float[2] t, float[2, m] q) {
    y, p = Loop <body = step (int64 i, bool c, float[2] a) => (bool c2, float[2] b, float[2] out) {
        c2 = Identity(c) b = Add(a, s) out = Neg(b) }> (n, go, s)
    t0, q = Scan <num_scan_inputs = 1, scan_input_directions = [1], scan_output_axes = [1],
        body = step2 (float[2] a, float[2] e) => (float[2] b, float[2] out) {
        b = Add(a, e) out = Neg(b) }> (y, x)
    t = If <then_branch = yes () => (float[2] u) { u = Add(y, t0) },
            else_branch = no () => (float[2] v) { v = Sub(y, t0) }> (go) }"""
ALL_FEEDS = [
    {"n": np.array(n), "go": go, "s": some(2, seed=n), "x": some(m, 2, seed=m)}
    for n, go, m in ((3, YES, 4), (0, YES, 1), (5, NO, 2), (20, YES, 20))
]


@pytest.mark.parametrize("opset", [o for o in (9, 11, 13, 16, 19, 21, 23, 24, 25, 26) if o <= NEWEST_OPSET])
def test_opsets(encore, opset):
    model = parse(ALL_THREE, opset)
    session = make_session(model)
    assert_placed(session, KEEP)
    for feeds in ALL_FEEDS:
        assert_same(session.run(None, feeds), on_cpu(model, feeds))


def test_if_and_loop_of_opset_8(encore):
    model = parse(
        """(int64 n, bool go, float[2] s) => (float[2] y, float[k, 2] p, float[2] t) {
            y, p = Loop <body = step (int64 i, bool c, float[2] a) => (bool c2, float[2] b, float[2] out) {
                c2 = Identity(c) b = Add(a, s) out = Neg(b) }> (n, go, s)
            t = If <then_branch = yes () => (float[2] u) { u = Add(y, s) },
                    else_branch = no () => (float[2] v) { v = Sub(y, s) }> (go) }""",
        8,
    )
    session = make_session(model)
    assert sorted(CONTROL_FLOW & set(nodes_on(session)[EP_NAME])) == ["If", "Loop"]
    for feeds in ({name: feeds[name] for name in ("n", "go", "s")} for feeds in ALL_FEEDS):
        assert_same(session.run(None, feeds), on_cpu(model, feeds))


TYPES = (
    "float16 double int8 int16 int32 int64 uint8 uint16 uint32 uint64 bool bfloat16 float8e4m3fn "
    "float8e5m2 float8e4m3fnuz float8e5m2fnuz"
).split()


@pytest.mark.parametrize("kind", TYPES)
def test_types(encore, kind):
    """Every type goes through all three; the types that numpy lacks come and go as floats."""
    number = onnx.TensorProto.DataType.Value(kind.upper())
    model = parse(
        f"""(int64 n, bool go, float[2, 3] f, float[2] g) => (float[2] y, float[k, 2] p, float[3, 2] q) {{
            x = Cast <to = {number}> (f)
            s = Cast <to = {number}> (g)
            a, b = Loop <body = step (int64 i, bool c, {kind}[2] v) => (bool c2, {kind}[2] w, {kind}[2] out) {{
                c2 = Identity(c) w = Identity(s) out = Identity(v) }}> (n, , s)
            d = Scan <num_scan_inputs = 1, scan_input_axes = [1],
                body = turn ({kind}[2] e) => ({kind}[2] o) {{ o = Identity(e) }}> (x)
            r = If <then_branch = yes () => ({kind}[2] t) {{ t = Identity(a) }},
                    else_branch = no () => ({kind}[2] u) {{ u = Identity(s) }}> (go)
            y = Cast <to = 1> (r)
            p = Cast <to = 1> (b)
            q = Cast <to = 1> (d) }}""",
        19,
    )
    session = make_session(model)
    assert_placed(session, KEEP)
    x, s = np.abs(some(2, 3)), np.abs(some(2))
    for feeds in ({"n": np.array(3), "go": go, "f": x, "g": s} for go in (YES, NO)):
        assert_same(session.run(None, feeds), on_cpu(model, feeds))


def test_values_stay_on_the_device(encore):
    """With inputs and outputs bound on the device, in a session with and without graphs."""
    model = parse(ALL_THREE)
    for options in ({}, SWITCHED_OFF):
        feeds = ALL_FEEDS[0]
        wanted = on_cpu(model, feeds)
        names = [output.name for output in model.graph.output]
        run = Bound(make_session(model, **options), feeds, dict(zip(names, [(w.shape, w.dtype) for w in wanted])))
        for _ in range(3):
            got = run.run()
            assert_same([got[name] for name in names], wanted)


def test_many_threads_in_one_session(encore):
    model = parse(ALL_THREE)
    session = make_session(model)
    wanted = [on_cpu(model, feeds) for feeds in ALL_FEEDS]

    def work(first):
        for turn in range(12):
            i = (first + turn) % len(ALL_FEEDS)
            assert_same(session.run(None, ALL_FEEDS[i]), wanted[i])

    assert not in_threads(4, work)


@pytest.mark.parametrize(
    "arrangement",
    [pytest.param(each, marks=[pytest.mark.newest] * ("copies" in each)) for each in ARRANGEMENTS],
)
def test_streams_keep_their_order(arrangement):
    """Each task of the virtual GPU sleeps for a random time first, so that work on a wrong stream comes too early."""
    first = list(ARRANGEMENTS).index(arrangement)
    code = f"""
import itertools, encore_session as e, test_control_flow as t
stream = e.make_stream()
ways = itertools.islice(itertools.cycle(({{}}, t.SWITCHED_OFF, t.AUTOMATIC)), {first}, None)
for case, graphs in zip(t.CASES.values(), ways):  # each case meets them all in other arrangements
    model = t.parse(case.text, case.opset)
    session = t.make_session(model, **e.arranged({arrangement!r}, stream), **graphs)
    wanted = [t.on_cpu(model, feeds) for feeds in case.feeds]
    def work(_):
        for feeds, right in zip(case.feeds, wanted): t.assert_same(session.run(None, feeds), right)
    wrong = e.in_threads(2, work)
    assert not wrong, (case.text, graphs, wrong)
"""
    in_new_process(code, ENCORE_VIRTUAL_DELAY_US="500")


@pytest.mark.parametrize("options", [{"auto_graph": 0}, AUTOMATIC], ids=["", "automatic graphs"])
def test_the_host_waits_for_no_iteration_whose_condition_it_knows(encore, options):
    if not on_virtual_gpu():
        return
    session = make_session(parse(CASES["loop: trip count and condition"].text), **options)
    waits = []
    for count in (3, 40) * 3:
        run = lambda: session.run(None, {"n": np.array(count), "go": YES, "x": some(2)})  # noqa: B023
        waits.append(sum(line["what"].startswith("synchronize") for line in trace(session, run)))
    assert waits[4] == waits[5] > 0, waits


@pytest.mark.parametrize("mode", ort.ExecutionMode.__members__)
def test_a_body_on_another_stream_waits_for_what_the_run_is_fed(encore, mode):
    """The CPU has the Loop, one of whose values is read on the host and on the device; not so its body."""
    options = ort.SessionOptions()
    options.execution_mode = ort.ExecutionMode.__members__[mode]
    options.inter_op_num_threads = 3
    model = parse(
        """(bool c, float[n] x) => (float[n] y, float[k] all) <int64 last = {-1}, int64 k = {2}> {
             y = Neg(x)
             go, all = Loop <body = step (int64 i, bool d, bool e) => (bool d2, bool e2, float out) {
                 d2 = Identity(d) e2 = Identity(e) out = Gather(x, last) }> (k, c, c) }"""
    )
    session = make_session(model, options)
    assert "Loop" in nodes_on(session)["CPUExecutionProvider"] and "Gather" in nodes_on(session)[EP_NAME]
    for number in range(20):
        x = np.full(4_000_000, number, FLOAT)
        assert session.run(["all"], {"c": YES, "x": x})[0].tolist() == [number] * 2


@pytest.mark.parametrize("op", ["Div", "Mod"])
@pytest.mark.parametrize("where", ["a branch", "a loop in a branch"])
def test_a_divisor_that_a_graph_around_has_on_the_device(encore, op, where):
    """Which onnxruntime's CPU provider reads, from 1.30 on, when it makes its kernel, and ends the process."""
    half = f"n = Size(x) h = {op}(n, two) f = Cast <to = 1> (h) v = Mul(x, f)"
    if where == "a loop in a branch":
        half = f"""v = Loop <body = step (int64 i, bool d, float[n] a) => (bool d2, float[n] v) {{
            d2 = Identity(d) {half} }}> (two, , x)"""
    model = parse(
        f"""(bool c, float[n] x, int64[n] k) => (float[n] y, int64[n] l) <int64 two = {{2}}> {{
             l = Mul(k, two)
             y = If <then_branch = t () => (float[n] v) {{ {half} }},
                     else_branch = e () => (float[n] b) {{ b = Neg(x) }}> (c) }}"""
    )
    for regions in (0, 1):
        session = make_session(model, regions=regions)
        for c in (YES, NO):
            feeds = {"c": c, "x": some(5), "k": some(5, dtype=INT)}
            assert_same(session.run(None, feeds), on_cpu(model, feeds))


# ---- what is declined or refused


def declined(model, capfd, **options):
    """A session with the reasons for its placement: what is said of the control flow."""
    session = make_session(model, log_placement=1, **options)
    (line,) = [line for line in capfd.readouterr().err.splitlines() if re.search(r"(If|Loop|Scan) node", line)]
    assert not CONTROL_FLOW & set(nodes_on(session).get(EP_NAME, []))
    return session, line


def test_sequences_are_declined(encore, capfd):
    model = parse(
        """(int64 n, float[2] x) => (float[k] y) {
             e = SequenceEmpty()
             [collect] s = Loop <body = step (int64 i, bool c, seq(float[2]) a) => (bool c2, seq(float[2]) b) {
                 c2 = Identity(c) v = Exp(x) b = SequenceInsert(a, v) }> (n, , e)
             y = ConcatFromSequence <axis = 0> (s) }"""
    )
    session, line = declined(model, capfd)
    assert "Loop node 'collect' is not on Encore: input 2 is not known to be a tensor" in line
    feeds = {"n": np.array(3), "x": some(2)}
    assert_same(session.run(None, feeds), on_cpu(model, feeds))


def test_a_loop_whose_body_is_all_on_the_cpu_stays_there(encore, capfd):
    model = parse(
        """(int64 n, float[4] x) => (float[4] y, float[k, 4] all) {
             [where] y, all = Loop <body = step (int64 i, bool c, float[4] v) => (bool c, float[4] v, float[4] out) {
                 out = ai.onnx.ml.Imputer <imputed_value_floats = [5.0]> (v) }> (n, , x) }"""
    )
    session, line = declined(model, capfd)
    assert "Loop node 'where' is not on Encore: no node of its body is on Encore" in line
    feeds = {"n": np.array(3), "x": FLOAT([0, 1, 0, 2])}
    assert_same(session.run(None, feeds), on_cpu(model, feeds))


def test_scan_of_version_8_is_declined(encore, capfd):
    model = parse(
        """(float[b, 2] s, float[b, n, 2] x) => (float[b, 2] y, float[b, n, 2] all) {
             [old] y, all = Scan <num_scan_inputs = 1, body = step (float[2] a, float[2] e)
                 => (float[2] c, float[2] out) { c = Add(a, e) out = Neg(c) }> (, s, x) }""",
        8,
    )
    session, line = declined(model, capfd)
    assert "Scan node 'old' is not on Encore: Encore has no kernel for Scan of version 8, for onnxruntime lets" in line
    feeds = {"s": some(1, 2), "x": some(1, 3, 2)}
    assert_same(session.run(None, feeds), on_cpu(model, feeds))


SEARCHES = {
    "GreedySearch": "(ids, longest, shortest, penalty)",
    "BeamSearch": "(ids, longest, shortest, beams, returned, penalty, penalty)",
}


@pytest.mark.parametrize("op", SEARCHES)
@pytest.mark.parametrize("options", [{}, {"regions": 0}, AUTOMATIC], ids=["", "no regions", "automatic graphs"])
def test_decoders_of_searches_are_left_to_the_cpu(encore, op, options):
    """onnxruntime runs these bodies with what is in host memory, wherever their nodes are."""
    table = some(7, 7)
    table[:, 6] = -9  # no sequence ends: onnxruntime leaves what is behind the end as it was
    model = parse(
        f"""(int32[b, s] ids, int32[1] longest, int32[1] shortest, int32[1] beams, int32[1] returned, float[1] penalty)
                => (int32[n, m] sequences, float[1] twice) {{
             twice = Add(penalty, penalty)
             sequences = com.microsoft.{op} <eos_token_id = 6, pad_token_id = 0, decoder = step (
                 int32[b, s] input_ids, int32[b, s] position_ids, int32[b, t] attention_mask,
                 float[2, b, 1, p, 2] past_0
             ) => (float[b, s, 7] logits, float[2, b, 1, q, 2] present_0) {{
                 table = Constant <value = float[7, 7] {{{", ".join(map(str, table.ravel()))}}}> ()
                 logits = Gather(table, input_ids)
                 shape = Shape(input_ids)
                 b = Constant <value_ints = [0]> ()
                 s = Constant <value_ints = [1]> ()
                 two = Constant <value_ints = [2]> ()
                 rows = Gather(shape, b)
                 length = Gather(shape, s)
                 dims = Concat <axis = 0> (two, rows, s, length, two)
                 new = ConstantOfShape(dims)
                 present_0 = Concat <axis = 3> (past_0, new) }}> {SEARCHES[op]} }}"""
    )
    session = make_session(model, **options)
    assert nodes_on(session)[EP_NAME] == ["Add"]
    numbers = {"longest": 8, "shortest": 1, "beams": 2, "returned": 1}
    fed = {name: np.array([number], np.int32) for name, number in numbers.items()} | {"penalty": FLOAT([1])}
    for rows in (1, 2, 2):
        feeds = fed | {"ids": np.arange(1, 1 + 2 * rows, dtype=np.int32).reshape(rows, 2)}
        assert_same(session.run(None, feeds), on_cpu(model, feeds))


def test_outputs_that_change_their_shape_are_an_error_and_the_session_goes_on(encore):
    model = parse(
        """(int64 n, float[p] x) => (float[q] y, float[k, r] all) {
             [ragged] y, all = Loop <body = step (int64 i, bool c, float[s] a) => (bool c2, float[t] b, float[t] out) {
                 c2 = Identity(c) b = Concat <axis = 0> (a, x) out = Neg(b) }> (n, , x) }"""
    )
    session = make_session(model)
    with pytest.raises(Exception, match=r"'ragged'.*shape \[4\] in iteration 0 and \[6\] in iteration 1"):
        session.run(None, {"n": np.array(3), "x": some(2)})
    feeds = {"n": np.array(1), "x": some(2)}
    assert_same(session.run(None, feeds), on_cpu(model, feeds))


def test_an_error_in_a_body_names_its_node(encore):
    model = parse(
        """(int64 n, float[2, 3] x, int64[1] k) => (float[1, 3] y) <float[1, 3] zero = {0.0, 0.0, 0.0}> {
             y = Loop <body = step (int64 i, bool c, float[1, 3] a) => (bool c2, float[1, 3] b) {
                 c2 = Identity(c) [pick] b = Gather(x, k) }> (n, , zero) }"""
    )
    session = make_session(model)
    with pytest.raises(Exception, match="Gather node 'pick': index 7 is outside"):
        session.run(None, {"n": np.array(3), "x": some(2, 3), "k": INT([7])})
    feeds = {"n": np.array(3), "x": some(2, 3), "k": INT([1])}
    assert_same(session.run(None, feeds), on_cpu(model, feeds))


LOST = {
    "an input of Scan's body": """(float[2] s, float[n, 2] x) => (float[2] y, float[n, 2] all) {
        [keep] y, all = Scan <num_scan_inputs = 1, body = step (float[2] a, float[2] e) => (float[2] a, float[2] out) {
            out = Neg(e) }> (s, x) }""",
    "two outputs of Scan's body": """(float[2] s, float[n, 2] x) => (float[2] y, float[n, 2] all) {
        [keep] y, all = Scan <num_scan_inputs = 1, body = step (float[2] a, float[2] e) => (float[2] b, float[2] b) {
            b = Add(a, e) }> (s, x) }""",
    "two outputs of a branch": """(bool c, float[2] x) => (float[2] y, float[2] z) {
        [keep] y, z = If <then_branch = t () => (float[2] a, float[2] a) { a = Neg(x) },
                          else_branch = e () => (float[2] b, float[2] d) { b = Abs(x) d = Exp(x) }> (c) }""",
}


@pytest.mark.parametrize("what", LOST)
def test_values_that_onnxruntime_would_lose_are_refused(encore, capfd, what):
    """Its CPU EP answers with whatever was in memory."""
    with pytest.raises(Exception, match="node 'keep' hands on '[ab]'.*put an Identity between"):
        make_session(parse(LOST[what]))
    assert re.search(r"E:.*node 'keep' hands on", capfd.readouterr().err)


@needs_graphs
@pytest.mark.parametrize("layout", [{}, {"prefer_nhwc": 1}], ids=str)  # onnxruntime asks twice then
def test_graphs_are_refused_with_the_name_of_the_node(encore, capfd, layout):
    """Of the Loop; the device may decide about the If, and the Scan's length is known."""
    model = parse(ALL_THREE)
    for node in model.graph.node:
        node.name = "my " + node.op_type
    with pytest.raises(
        Exception, match="enable_cuda_graph=1 is impossible .*Loop node 'my Loop'.*graph_on_error=eager"
    ):
        make_session(model, enable_cuda_graph=1, **layout)
    said = r"E:.*Encore\].*impossible with this model, because of .*Loop node 'my Loop'"
    assert len(re.findall(said, capfd.readouterr().err)) == 1


@needs_graphs
def test_graphs_are_switched_off_with_one_warning_if_so_asked(encore, capfd):
    model = parse(ALL_THREE)
    session = make_session(model, enable_cuda_graph=1, graph_on_error="eager")
    for feeds in ALL_FEEDS:
        assert_same(session.run(None, feeds), on_cpu(model, feeds))
    warnings = [line for line in capfd.readouterr().err.splitlines() if "W:" in line and "Encore]" in line]
    assert len(warnings) == 1 and "can't be captured, so every run is eager" in warnings[0]
