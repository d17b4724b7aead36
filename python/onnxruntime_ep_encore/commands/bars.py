"""Groups of bars as a picture: an SVG that is written here, or a PNG that matplotlib paints of the same shapes."""

from typing import NamedTuple
from xml.sax.saxutils import escape, quoteattr

from .mistake import Mistake

WIDTH, EDGE, TOP, HEADING, ROW, THICK, BETWEEN = 720, 10, 46, 24, 18, 12, 12  # all in pixels
LETTER, BOLD_LETTER = 7, 8  # about
CUT = 5  # how wide the gap is in a bar that is longer than there is room
OURS, OTHERS, TEXT = "#009485", "#9e9e9e", "#808080"  # seen on a white page and on a dark one
SUFFIXES = (".svg", ".png")


class Bar(NamedTuple):
    name: str
    words: str  # beside the bar
    value: float | None = None  # None has words alone
    reach: float = 0  # of its whisker
    colour: str = OURS


class Picture(NamedTuple):
    title: str
    height: int
    rects: list  # x, y, width, height, colour
    lines: list  # x, y, and those of the other end
    texts: list  # x, y, which end is there, weight, words


def drawn(title, note, groups, end):
    """Of {heading: bars}, on a scale that ends at `end`: what is longer is cut, and a whisker has no end then."""
    every = [bar for bars in groups.values() for bar in bars]
    left = 2 * EDGE + LETTER * max(len(bar.name) for bar in every)
    room = WIDTH - left - 2 * EDGE - LETTER * max((len(bar.words) for bar in every if bar.value is not None), default=0)
    if any(bar.value is not None and max(bar.value, bar.reach) > end for bar in every):
        note += "; what has a gap or no end is longer"
    bold = (WIDTH - 2 * EDGE) // BOLD_LETTER
    texts = [(EDGE, 20, "start", "bold", _cut(title, bold)), (EDGE, 37, "start", "normal", note)]
    height = TOP + sum(HEADING + ROW * len(bars) + BETWEEN for bars in groups.values())
    picture = Picture(title, height, [], [], texts)
    y = TOP
    for heading, bars in groups.items():
        texts.append((EDGE, y + 15, "start", "bold", _cut(heading, bold)))
        y += HEADING
        for bar in bars:
            texts.append((left - EDGE, y + 10, "end", "normal", bar.name))
            if bar.value is None:
                texts.append((left, y + 10, "start", "normal", _cut(bar.words, (WIDTH - left - EDGE) // LETTER)))
            else:
                _draw(picture, bar, left, y, room / end, end)
            y += ROW
        y += BETWEEN
    return picture


def _draw(picture, bar, x, y, scale, end):
    length = min(bar.value, end) * scale
    reach = min(max(bar.reach, bar.value), end) * scale
    if bar.value <= end:
        picture.rects.append((x, y, length, THICK, bar.colour))
    else:
        tail = length / 10
        picture.rects.append((x, y, length - tail - CUT, THICK, bar.colour))
        picture.rects.append((x + length - tail, y, tail, THICK, bar.colour))
    if reach > length:
        picture.lines.append((x + length, y + THICK / 2, x + reach, y + THICK / 2))
        if bar.reach <= end:
            picture.lines.append((x + reach, y + 2, x + reach, y + THICK - 2))
    picture.texts.append((x + reach + 6, y + 10, "start", "normal", bar.words))


def _cut(words, letters):
    return words if len(words) <= letters else words[: letters - 1] + "…"


def svg(picture):
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {picture.height}" role="img" '
        f"aria-label={quoteattr(picture.title)}>"
    ]
    for x, y, width, height, colour in picture.rects:
        parts.append(f'<rect x="{x:g}" y="{y}" width="{width:.1f}" height="{height}" fill="{colour}"/>')
    for x, y, end_x, end_y in picture.lines:
        parts.append(f'<path d="M{x:.1f} {y:g}L{end_x:.1f} {end_y:g}" stroke="{TEXT}"/>')
    font = f'font-family="sans-serif" font-size="12" fill="{TEXT}"'
    for x, y, anchor, weight, words in picture.texts:
        place = f'x="{x:.1f}" y="{y}" text-anchor="{anchor}" font-weight="{weight}"'
        parts.append(f"<text {place} {font}>{escape(words)}</text>")
    return "\n".join([*parts, "</svg>", ""])


def check(file):
    """Whether write() could write there."""
    if file.suffix not in SUFFIXES:
        raise Mistake(f"{file}: a picture is one of {', '.join(SUFFIXES)}")
    if file.suffix == ".png":
        try:
            import matplotlib.figure  # noqa: F401
        except ImportError as error:
            way_out = f"`pip install matplotlib`, or write {file.with_suffix('.svg')}, which needs nothing"
            raise Mistake(f"{file}: {error}; {way_out}") from error


def write(picture, file):
    if file.suffix == ".svg":
        file.write_text(svg(picture), encoding="utf-8")
    else:
        _paint(picture, file)


def _paint(picture, file):
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH / 72, picture.height / 72))  # inches of 72 points, which are the SVG's pixels
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, WIDTH), ylim=(picture.height, 0))
    axes.axis("off")
    for x, y, width, height, colour in picture.rects:
        axes.barh(y, width, height, x, align="edge", color=colour)
    for x, y, end_x, end_y in picture.lines:
        axes.plot((x, end_x), (y, end_y), color=TEXT, linewidth=1, solid_capstyle="butt")
    sides = {"start": "left", "end": "right"}
    for x, y, anchor, weight, words in picture.texts:
        axes.text(x, y, words, ha=sides[anchor], weight=weight, size=12, color=TEXT, parse_math=False)
    figure.savefig(file, dpi=144, transparent=True)
