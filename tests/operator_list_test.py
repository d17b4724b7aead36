"""The list of the functions that return rows, which the build makes from the sources in src/ops."""

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[1] / "cmake" / "list_operators.py"
ROWS = "std::vector<OpRow> {}() {{ return {{}}; }}\n"


def run(folder, **functions):
    """Lists sources which define these functions; the file's name is the key, with _ for /."""
    sources = []
    for name, function in functions.items():
        source = folder / "src" / "ops" / (name.replace("_", "/", 1) + ".cu")
        source.parent.mkdir(parents=True, exist_ok=True)
        source.write_text(ROWS.format(function) if function else "// nothing here\n")
        sources.append(source)
    header = folder / "made" / "operators.h"
    command = [sys.executable, SCRIPT, header, folder / "src", *sources]
    return header, subprocess.run(command, capture_output=True, text=True)


def test_lists_in_the_order_of_the_files(tmp_path):
    header, done = run(tmp_path, shape_pad="pad_rows", nn_conv="conv_rows", nn_window=None)
    assert done.returncode == 0, done.stderr
    lines = [line for line in header.read_text().splitlines() if "_rows" in line]
    assert lines == [
        "std::vector<OpRow> conv_rows();",
        "std::vector<OpRow> pad_rows();",
        '    {"ops/nn/conv.cu", conv_rows},',
        '    {"ops/shape/pad.cu", pad_rows},',
    ]


def test_leaves_alone_what_would_not_change(tmp_path):
    header, _ = run(tmp_path, nn_conv="conv_rows")
    before = header.stat().st_mtime_ns
    run(tmp_path, nn_conv="conv_rows", nn_window=None)
    assert header.stat().st_mtime_ns == before
    run(tmp_path, nn_conv="conv_rows", nn_pool="pool_rows")
    assert "pool_rows" in header.read_text()


def test_a_name_used_twice_is_an_error(tmp_path):
    header, done = run(tmp_path, nn_pool="pool_rows", reduce_pool="pool_rows")
    assert done.returncode != 0 and not header.exists()
    assert "ops/reduce/pool.cu defines pool_rows(), as ops/nn/pool.cu does" in done.stderr


def test_a_name_that_would_not_be_found_is_an_error(tmp_path):
    _, done = run(tmp_path, nn_pool="rows_of_pool")
    assert done.returncode != 0 and "ops/nn/pool.cu defines rows_of_pool()" in done.stderr
