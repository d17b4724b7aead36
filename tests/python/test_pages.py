"""README.md and docs/: every block of code runs as it is printed, and prints what the page says (pages.py)."""

import collections
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import onnxruntime_ep_encore
import pages
import pytest
from encore_session import HAS_GRAPHS, ORT_VERSION, ROOT, on_virtual_gpu, only_if

# What is not run, by reason: a block that joins these should have to.
NOT_RUN = {
    "builds": 6,
    "installs": 2,
    "is a pattern": 1,
    "is for another program": 3,
    "wants a GPU": 17,
    "wants a server": 1,
    "wants onnxruntime's headers": 2,
}
# That run under every onnxruntime; what the others tell, the newest has.
CORE = ("README.md", "docs/getting-started.md", "docs/graphs.md")


def each_page():
    for page, blocks in pages.pages().items():
        if any(block.language in pages.RUN and not block.reason for block in blocks):
            yield pytest.param(page, marks=pytest.mark.core if page in CORE else pytest.mark.newest)


@pytest.fixture
def variables(tmp_path):
    """The environment of a page's process: as if Encore's wheel were installed, and the checkout the folder."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, arguments in {"encore": "-m onnxruntime_ep_encore", "python": ""}.items():
        (programs / name).write_text(f'#!/bin/sh\nexec {sys.executable} {arguments} "$@"\n')
        (programs / name).chmod(0o755)
    folders = [str(ROOT / "python"), str(ROOT / "tests" / "python"), os.environ.get("PYTHONPATH", "")]
    own = {
        "PYTHONPATH": os.pathsep.join(folders),
        "PATH": os.pathsep.join([str(programs), os.environ["PATH"]]),
        "ENCORE_LIBRARY": os.path.abspath(onnxruntime_ep_encore.get_library_path()),
    }
    return os.environ | own


@only_if(HAS_GRAPHS and on_virtual_gpu())  # nearly every page tells of graphs; some have the virtual GPU's own
@pytest.mark.parametrize("page", list(each_page()))
def test_blocks_run_as_printed(page, tmp_path, variables):
    blocks = [
        block
        for block in pages.pages()[page]
        if block.language in pages.RUN and not block.reason and ORT_VERSION >= block.since
    ]
    told = {
        "setup": pages.setup_of(page),
        "blocks": [
            {
                "page": block.page,
                "line": block.line,
                "place": block.place,
                "language": block.language,
                "code": block.code,
                "file": block.file,
                "may_fail": block.printed is not None,
            }
            for block in blocks
        ],
    }
    folder = tmp_path / "folder"
    folder.mkdir()
    command = [sys.executable, str(Path(__file__).with_name("run_page.py"))]
    done = subprocess.run(
        command, input=json.dumps(told), cwd=folder, env=variables, capture_output=True, text=True, timeout=120
    )
    ran = [json.loads(line) for line in done.stdout.splitlines()]
    for block, one in zip(blocks, ran):
        if block.printed is None:
            assert not one["failure"], f"{block.place}: {one['failure']}"
        else:
            assert pages.matches(one["printed"], block.printed), (
                f"{block.place} printed\n{one['printed']}\nand the page says\n{block.printed}\n{one['failure']}"
            )
    assert done.returncode == 0 and len(ran) == len(blocks), done.stderr[-3000:]


@pytest.mark.newest
def test_what_is_not_run_is_known():
    every = [block for blocks in pages.pages().values() for block in blocks]
    wrong = [block.place for block in every if not block.language]
    assert not wrong, "a block tells its language"
    unknown = [block.place for block in every if block.reason and block.reason not in pages.NOT_RUN]
    assert not unknown, f"reasons are: {', '.join(pages.NOT_RUN)}"
    left = [block for block in every if block.reason]
    unmarked = [block.place for block in every if block.language not in (*pages.RUN, "text") and not block.reason]
    assert not unmarked, "a block that is neither run nor what one prints tells why"
    assert collections.Counter(block.reason for block in left) == NOT_RUN, "\n".join(
        f"{block.place}: {block.reason}" for block in left
    )


@pytest.mark.newest
def test_programs_start_as_printed():
    """Also those that are not run here, and those that tell of themselves so."""
    texts = [file.read_text() for folder in ("docs", "bench", "tools") for file in (ROOT / folder).glob("*.[mp][dy]")]
    programs = {
        name
        for text in texts
        for name in re.findall(r"^ *(?:PYTHONPATH=python )?((?:bench|tools)/\w+\.py)\b", text, re.M)
    }
    assert len(programs) > 15
    for name in programs:
        assert os.access(ROOT / name, os.X_OK) and (ROOT / name).read_text().startswith("#!"), name


@pytest.mark.newest
def test_every_setup_has_its_page():
    setups = {*pages.HAVE_MODEL, *(file.stem for file in pages.SETUPS.glob("*.py"))}
    assert setups <= {Path(page).stem for page in pages.pages()}


@pytest.mark.newest
def test_matching():
    assert pages.matches("a 1\nb 2 \n", "a …\nb 2")
    assert pages.matches("a 1\nb 2\nc", "a …\nc") and not pages.matches("a 1\nb 2", "a 1")
    assert not pages.matches("a 1", "b …")
