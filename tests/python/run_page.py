"""Runs the blocks of one page, told as JSON on the standard input, in this process; prints what each of them did."""

import contextlib
import io
import json
import subprocess
import sys
import traceback
from pathlib import Path


def main():
    sys.path.insert(0, str(Path.cwd()))
    told = json.load(sys.stdin)
    namespace = {"__name__": "__main__"}
    if told["setup"]:
        exec(compile(told["setup"], "the setup", "exec"), namespace)
    for block in told["blocks"]:
        run = _write if block["file"] else _run_python if block["language"] == "python" else _run_shell
        printed, failure = run(block, namespace)
        print(json.dumps({"place": block["place"], "printed": printed, "failure": failure}), flush=True)
        if failure and not block["may_fail"]:
            break


def _write(block, _):
    Path(block["file"]).write_text(block["code"])
    return "", ""


def _run_python(block, namespace):
    printed = io.StringIO()
    code = "\n" * (block["line"] - 1) + block["code"]  # so that a traceback tells the page's lines
    try:
        with contextlib.redirect_stdout(printed):
            exec(compile(code, block["page"], "exec"), namespace)
    except Exception as error:
        return printed.getvalue() + f"{type(error).__name__}: {error}\n", traceback.format_exc()
    return printed.getvalue(), ""


def _run_shell(block, _):
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", block["code"]], capture_output=True, text=True, check=False
    )
    if not done.returncode:
        return done.stdout, ""
    return done.stdout + done.stderr, f"it ended with {done.returncode}\n{done.stdout}{done.stderr}"


if __name__ == "__main__":
    main()
