"""Draws docs/benchmarks.svg of the tables in docs/benchmarks.md: what a replay takes, here and elsewhere."""

import re

import environment as env
from onnxruntime_ep_encore.commands import bars

PAGE = env.ROOT / "docs" / "benchmarks.md"
FIGURE = env.ROOT / "docs" / "benchmarks.svg"
MODELS = ("resnet50_f16", "mobilenet_v3_f16", "vit_b16_f16", "bert_base_f16")
# With their columns, whose heads these are.
PROGRAMS = {
    "Encore": ("Encore", bars.OURS),
    "onnxruntime-gpu 1.31.1": ("onnxruntime-gpu", bars.OTHERS),
    "torch 2.11, graph": ("torch", "#c9b27c"),
    "torch.compile": ("torch.compile", "#7d6b99"),
}


def drawn():
    columns = {program: (_column(6, head), colour) for program, (head, colour) in PROGRAMS.items()}
    groups = {
        model: [
            bars.Bar(program, f"{column[model]:g}", column[model], colour=colour)
            for program, (column, colour) in columns.items()
        ]
        for model in MODELS
    }
    longest = max(bar.value for group in groups.values() for bar in group)
    return bars.svg(bars.drawn("Replayed runs of models on an H200", "µs a run, less is better", groups, longest))


def _column(columns, name):
    """{first cell: number} of the table of so many columns that has one of this name."""
    found, at = {}, None
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("|") or len(cells) != columns:
            at = None
        elif at is None:
            at = cells.index(name) if name in cells else None
        elif re.fullmatch(r"[\d.]+", cells[at]):
            found.setdefault(cells[0], float(cells[at]))
    return found
