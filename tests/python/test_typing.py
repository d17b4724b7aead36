"""Type hints: the package has none that contradict, and a checker finds what a session would refuse."""

import re
import subprocess
import sys

import onnxruntime_ep_encore
import pytest
from encore_session import ROOT

pytestmark = pytest.mark.newest

PACKAGE = ROOT / "python" / "onnxruntime_ep_encore"
# Each line, and what a checker says of it; none if it is right.
LINES = {
    'encore.session("m", enable_cuda_graph=True, gpu_mem_limit=1 << 30, tuning_cache=Path("x"))': None,
    'encore.session("m", pad={"batch": [1, 2], "length": 64}, auto_graph="safe", gpu_mem_limit="unlimited")': None,
    'encore.session(b"m", device_id=1, regions=None, user_compute_stream=94033)': None,
    'encore.session("m", cudnn_conv_algo_search="HEURISTIC")': None,
    'few: Options = {"arena.max_mem": 1 << 30}; encore.session("m", **few)': None,
    'none: Options = {"arena.max_memory": 1 << 30}': 'Extra key "arena.max_memory" for TypedDict "Options"',
    'encore.graphed("m", pad="batch:1,2")(1, x=2)': None,
    'encore.graphed("m", use_tf32=False).warm_up(batch=[1, 2]).submit(1).result()': None,
    'encore.session("m", enable_cuda_grph=True)': 'Unexpected keyword argument "enable_cuda_grph"',
    'encore.graphed("m", pat={"batch": 1})': 'Unexpected keyword argument "pat"',
    'encore.session("m", gpu_mem_limit="lots")': 'Argument "gpu_mem_limit" to "session" has incompatible type',
    'encore.session("m", regions="yes")': 'Argument "regions" to "session" has incompatible type "Literal[',
    'encore.session("m", pad=[1, 2])': 'Argument "pad" to "session" has incompatible type',
    'encore.session("m", graph_on_error="ignore")': 'Argument "graph_on_error" to "session" has incompatible type',
    'encore.graphed("m", device_id="0")': 'Argument "device_id" to "graphed" has incompatible type',
    'encore.graphed("m").begin(1)': '"Graphed" has no attribute "begin"',
}


def test_a_checker_finds_what_is_wrong(tmp_path):
    caller = tmp_path / "caller.py"
    head = ["from pathlib import Path", "import onnxruntime_ep_encore as encore"]
    head.append("from onnxruntime_ep_encore.options import Options")
    caller.write_text("\n".join([*head, *LINES]) + "\n")
    options = ["--python-version", "3.10", "--ignore-missing-imports", "--cache-dir", tmp_path / "cache", "--no-pretty"]
    command = [sys.executable, "-m", "mypy", *options, "--no-error-summary", caller, PACKAGE]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, cwd=ROOT, check=False)
    assert not done.stderr, done.stderr
    said = {}
    for line in done.stdout.splitlines():
        file, number, kind, text = re.match(r"(.*?):(\d+): (\w+): (.*)", line).groups()
        if kind == "error":
            assert file == str(caller), line
            said[int(number)] = text
    for number, (line, words) in enumerate(LINES.items(), 1 + len(head)):
        assert (words is None) == (number not in said), (line, said.get(number))
        assert words is None or words in said[number], said[number]


def test_checkers_look_into_the_package():
    assert (PACKAGE / "py.typed").is_file()


def test_every_option_has_a_type():
    from onnxruntime_ep_encore.options import Options

    rows = re.findall(r"^### `([\w.]+)`", (ROOT / "docs" / "options.md").read_text(), re.MULTILINE)
    assert set(rows) - {"device_id"} == set(Options.__annotations__) == Options.__optional_keys__
    assert onnxruntime_ep_encore.session.__annotations__["options"] == "Unpack[Options]"
