"""What is printed from tables in the code, from what tests find, and from other pages: documentation, options.py."""

import difflib
import subprocess

import benchmark_figure
import environment as env

NODE_TESTS = env.ROOT / "docs" / "onnx-node-tests.md"  # which the tests themselves check
PAGES = {  # as `tables` calls them
    "operators": env.ROOT / "docs" / "operators.md",
    "options": env.ROOT / "docs" / "options.md",
    "options.py": env.ROOT / "python" / "onnxruntime_ep_encore" / "options.py",
}


def write(check=False):
    """Writes the pages anew, or fails if that would change one."""
    env.build("virtual", "tables")
    stale = []
    made = {file: _of_tables(page) for page, file in PAGES.items()}
    made[benchmark_figure.FIGURE] = benchmark_figure.drawn()
    for file, wanted in made.items():
        written = file.read_text() if file.exists() else ""
        if written == wanted:
            continue
        if not check:
            file.write_text(wanted)
            print(f"wrote {file.relative_to(env.ROOT)}")
            continue
        stale.append(str(file.relative_to(env.ROOT)))
        for line in difflib.unified_diff(
            written.splitlines(), wanted.splitlines(), "written", "wanted", lineterm="", n=0
        ):
            print(line)
    if not check:
        _write_node_tests()
    if stale:
        raise env.Failed(f"{' and '.join(stale)} would change; `./encore docs` writes them")


def _of_tables(page):
    command = [env.ROOT / "build" / "virtual" / "tables", page]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def _write_node_tests():
    env.build("virtual", "onnxruntime_providers_cuda_plugin")
    variables = env.variables(ENCORE_LIBRARY=str(env.library("virtual")))
    command = [env.PYTHON, env.ROOT / "tools" / "node_tests.py", "-n", str(env.JOBS)]
    done = subprocess.run(command, env=variables, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise env.Failed(f"{NODE_TESTS.relative_to(env.ROOT)} is as it was")
    if NODE_TESTS.read_text() != done.stdout:
        NODE_TESTS.write_text(done.stdout)
        print(f"wrote {NODE_TESTS.relative_to(env.ROOT)}")
