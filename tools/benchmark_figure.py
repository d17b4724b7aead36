"""Draws docs/benchmarks.svg of the tables in docs/benchmarks.md: what a replay takes, here and elsewhere."""

import re

import environment as env

PAGE = env.ROOT / "docs" / "benchmarks.md"
FIGURE = env.ROOT / "docs" / "benchmarks.svg"
MODELS = ("resnet50_f16", "mobilenet_v3_f16", "vit_b16_f16", "bert_base_f16")
SERIES = {
    "Encore": ("replay: Encore", "#009485"),
    "onnxruntime-gpu 1.31.1": ("onnxruntime-gpu", "#9e9e9e"),
    "torch 2.11, graph": ("torch", "#c9b27c"),
    "torch.compile": ("torch.compile", "#7d6b99"),
}
WIDTH, LEFT, RIGHT, BAR, GAP, TOP = 720, 140, 50, 14, 18, 44
TEXT = 'font-family="sans-serif" font-size="12" fill="#808080"'


def drawn():
    columns = [_column(9, column) for column, _ in SERIES.values()]
    figures = {model: [column[model] for column in columns] for model in MODELS}
    scale = (WIDTH - LEFT - RIGHT) / max(max(row) for row in figures.values())
    height = TOP + len(MODELS) * (len(SERIES) * BAR + GAP) + GAP
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        'aria-label="Microseconds of a replayed run on an H200, by model and program">'
    ]
    x = LEFT
    for name, (_, colour) in SERIES.items():
        parts.append(f'<rect x="{x}" y="10" width="12" height="12" fill="{colour}"/>')
        parts.append(f'<text x="{x + 18}" y="21" {TEXT}>{name}</text>')
        x += 44 + 7 * len(name)
    y = TOP
    for model, row in figures.items():
        middle = y + len(SERIES) * BAR / 2 + 4
        parts.append(f'<text x="{LEFT - 10}" y="{middle:g}" text-anchor="end" {TEXT}>{model}</text>')
        for value, (_, colour) in zip(row, SERIES.values()):
            parts.append(f'<rect x="{LEFT}" y="{y}" width="{value * scale:.1f}" height="{BAR - 2}" fill="{colour}"/>')
            parts.append(f'<text x="{LEFT + value * scale + 6:.1f}" y="{y + 10}" {TEXT}>{value:g}</text>')
            y += BAR
        y += GAP
    parts.append(f'<text x="{LEFT}" y="{y + 8}" {TEXT}>µs a run, less is better</text>')
    return "\n".join([*parts, "</svg>", ""])


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
