"""The pages of the documentation as a reader tries them: blocks of code, in their order, in one process a page.

A block of Python runs in the page's one namespace, a block of a shell in the page's folder. A block of text right
behind one is what it prints, or the error that it ends with; `…` stands for anything. A comment before a block tells
what a renderer does not show:

    <!-- not run: REASON -->            one of NOT_RUN, below
    <!-- from onnxruntime 1.30 -->      older ones lack what it shows
    <!-- file: worker.py -->            it is kept in the page's folder under this name, and not run by itself

Pages of HAVE_MODEL begin with the small model, which the others make themselves if they need it. What else blocks need
and a page does not say comes from page_setups/PAGE.py, which runs first in the namespace.

`python tests/python/pages.py` lists what is not run.
"""

import collections
import re
import textwrap
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SETUPS = Path(__file__).parent / "page_setups"
HAVE_MODEL = (
    *("cuda-provider", "functions", "graphs", "profiling", "serving", "shapes", "streams-and-memory", "torch"),
    *("troubleshooting", "where-time-goes"),
)
RUN = ("python", "sh")
NOT_RUN = {
    "installs": "it would change the machine, or needs the network",
    "builds": "stages of their own build and test",
    "wants a GPU": "there is none in CI",
    "wants onnxruntime's headers": "no wheel has them",
    "wants a server": "a cluster, a container's registry, or a program that serves",
    "is for another program": "a file that Encore does not read",
    "is a pattern": "it stands for what the reader has",
}
_BLOCK = re.compile(r"^(?P<indent> *)```(?P<language>\w*)[^\n]*\n(?P<code>.*?)^(?P=indent)```$", re.M | re.S)
_COMMENT = re.compile(
    r"<!-- (?:not run: (?P<reason>[^>]+?)|from onnxruntime (?P<since>[\d.]+)|file: (?P<file>\S+)) -->\n\Z"
)


@dataclass
class Block:
    page: str
    line: int  # of its first line
    language: str
    code: str
    reason: str = ""  # that it is not run
    since: tuple = (0,)  # the onnxruntime that has what it shows
    file: str = ""
    printed: str | None = None

    @property
    def place(self):
        return f"{self.page}:{self.line}"


def pages():
    """All pages with blocks that somebody wrote, by name: README.md, docs/graphs.md ..."""
    files = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
    return {str(file.relative_to(ROOT)): blocks for file in files if (blocks := blocks_of(file))}


def blocks_of(file):
    text = file.read_text()
    blocks = []
    end = 0
    for found in _BLOCK.finditer(text):
        language, code = found["language"], textwrap.dedent(found["code"])
        line = text.count("\n", 0, found.start()) + 2
        behind = blocks and not text[end : found.start()].strip()
        if language == "text" and behind and blocks[-1].language in RUN:
            blocks[-1].printed = code
        else:
            comment = _COMMENT.search(text[: found.start()])
            told = (comment.groupdict() if comment else {}).get
            since = tuple(int(part) for part in (told("since") or "0").split("."))
            page = str(file.relative_to(ROOT))
            blocks.append(Block(page, line, language, code, told("reason") or "", since, told("file") or ""))
        end = found.end()
    return blocks


def setup_of(page):
    """The code that runs before its blocks."""
    name = Path(page).stem
    own = SETUPS / f"{name}.py"
    model = "import page_models\npage_models.write()\n" if name in HAVE_MODEL else ""
    return model + (own.read_text() if own.exists() else "")


def matches(printed, wanted):
    """Whether what was printed is what the page says, where `…` stands for anything."""
    lines = lambda text: "\n".join(line.rstrip() for line in text.strip().splitlines())
    pattern = ".*?".join(map(re.escape, lines(wanted).split("…")))
    return re.fullmatch(pattern, lines(printed), re.S) is not None


def main():
    left = [block for blocks in pages().values() for block in blocks if block.reason]
    for block in left:
        print(f"{block.place}: {block.language}, {block.reason}")
    run = sum(block.language in RUN and not block.reason for blocks in pages().values() for block in blocks)
    counts = collections.Counter(block.reason for block in left)
    print(f"{run} blocks are run, {len(left)} are not: " + ", ".join(f"{n} ({why})" for why, n in counts.items()))


if __name__ == "__main__":
    main()
