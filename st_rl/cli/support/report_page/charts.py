"""Charts as HTML: inline SVG that scales to any width, with labels of fixed size.

The drawing area of a chart is 1000 by 1000 units; strokes do not scale. Labels are HTML positioned in percent. The
values are stored in `data-numbers` for the tooltips of the page's script.
"""

import json
import math
from collections.abc import Callable, Iterable, Sequence
from html import escape
from typing import NamedTuple

UNITS = 1000
MAX_POINTS = 400
NUM_COLORS = 8
"""Colors of lines in the style sheet."""


class Series(NamedTuple):
    """One line of a chart."""

    label: str
    """Label in the legend."""
    x: Sequence[float]
    """x values."""
    y: Sequence[float]
    """y values, NaN if missing."""
    color: int = 1
    """Index of the color in the style sheet, from 1."""
    dashed: bool = False
    """Whether the line is dashed, for commands."""
    band: tuple[Sequence[float], Sequence[float]] | None = None
    """Lower and upper edge of an area around the line, such as its spread."""


def finite(values: Sequence[float | None]) -> list[float]:
    """Return the finite values."""
    return [float(value) for value in values if value is not None and math.isfinite(value)]


def downsample(x: Sequence[float], y: Sequence[float], points: int = MAX_POINTS) -> tuple[list[float], list[float]]:
    """Average a line to at most about `points` points, without values that are not finite."""
    pairs = [(float(a), float(b)) for a, b in zip(x, y) if math.isfinite(a) and math.isfinite(b)]
    if len(pairs) <= points:
        return [a for a, _ in pairs], [b for _, b in pairs]
    size = math.ceil(len(pairs) / points)
    bins = [pairs[i : i + size] for i in range(0, len(pairs), size)]
    return [sum(a for a, _ in b) / len(b) for b in bins], [sum(v for _, v in b) / len(b) for b in bins]


def nice_ticks(low: float, high: float, count: int = 4) -> list[float]:
    """Return round numbers that cover the range `low` to `high` in about `count` steps."""
    if not math.isfinite(low) or not math.isfinite(high):
        return [0.0, 1.0]
    if high <= low:
        margin = abs(low) * 0.1 or 1.0
        low, high = low - margin, high + margin
    raw = (high - low) / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(i * step, 12) for i in range(first, last + 1)]


def format_number(value: float) -> str:
    """Format a tick label: short, without trailing zeros."""
    if value == 0:
        return "0"
    size = abs(value)
    if size >= 1e6:
        return f"{value / 1e6:.3g}M"
    if size >= 1e4:
        return f"{value / 1e3:.3g}k"
    if size < 1e-3:
        return f"{value:.1e}".replace("e-0", "e-")
    return f"{value:.4g}"


class Axis(NamedTuple):
    """An axis of the drawing area."""

    ticks: list[float]

    @property
    def low(self) -> float:
        """Lower end of the axis."""
        return self.ticks[0]

    @property
    def span(self) -> float:
        """Length of the range."""
        return self.ticks[-1] - self.ticks[0]

    def position(self, value: float) -> float:
        """Return the relative position of a value, 0 at the lower and 1 at the upper end."""
        return (value - self.low) / self.span


def _exact_axis(low: float, high: float, count: int = 5) -> Axis:
    """Return an axis with the limits of the data; only the inner ticks are round numbers."""
    if high <= low:
        high = low + 1.0
    inner = [tick for tick in nice_ticks(low, high, count) if low < tick < high]
    margin = (high - low) * 0.14
    inner = [tick for tick in inner if tick - low > margin and high - tick > margin]
    return Axis([low, *inner, high])


def line_chart(
    title: str,
    series: Sequence[Series],
    x_label: str = "",
    note: str = "",
    y_range: tuple[float, float] | None = None,
    logarithmic: bool = False,
    small: bool = False,
) -> str:
    """Draw lines over a common axis; empty without data."""
    places = finite([place for line in series for place in line.x])
    lines = [line for line in map(_downsampled, series) if line.x]
    if logarithmic:
        lines = [line._replace(y=_logarithms(line.y), band=None) for line in lines]
    if not lines:
        return ""
    values = [value for line in lines for values in (line.y, *(line.band or ())) for value in values]
    low, high = y_range if y_range is not None else (min(values), max(values))
    y_axis = Axis(nice_ticks(min(low, min(values)), max(high, max(values)), 3 if small else 4))
    x_axis = _exact_axis(min(places), max(places), 3 if small else 5)
    shapes = [_grid(y_axis)]
    shapes += [_area(line, x_axis, y_axis) for line in lines if line.band is not None]
    shapes += [_polyline(line, x_axis, y_axis) for line in lines]
    label = (lambda value: format_number(10**value)) if logarithmic else format_number
    numbers = {
        "x0": x_axis.low,
        "x1": x_axis.low + x_axis.span,
        "xl": x_label,
        "log": logarithmic,
        "series": [{"n": line.label, "c": line.color, "x": _rounded(line.x), "y": _rounded(line.y)} for line in lines],
    }
    legend = _legend(lines) if len(lines) > 1 else ""
    plot = _plot("".join(shapes), _y_labels(y_axis, label) + _x_labels(x_axis), numbers, title)
    return _figure(title, note, legend, plot, _x_caption(x_label), "small" if small else "")


def _downsampled(line: Series) -> Series:
    """Return a line with at most about `MAX_POINTS` points, its band with the same ones."""
    x, y = downsample(line.x, line.y)
    band = line.band and (downsample(line.x, line.band[0])[1], downsample(line.x, line.band[1])[1])
    return line._replace(x=x, y=y, band=band)


def _logarithms(values: Sequence[float]) -> list[float]:
    return [math.log10(max(value, 1e-12)) for value in values]


def scatter_chart(title: str, points: Sequence[tuple[float | None, float | None]], x_label: str, note: str = "") -> str:
    """Draw points and the diagonal; empty without points."""
    places = [(pair[0], pair[1]) for point in points if len(pair := finite(point)) == 2]
    if not places:
        return ""
    numbers = [value for place in places for value in place]
    axis = Axis(nice_ticks(min(numbers), max(numbers), 5))
    diagonal = f'<path class="target" d="M0 {UNITS} L{UNITS} 0"/>'
    # A circle would be distorted by the scaling; the round caps of a zero-length line are not.
    dots = "".join(
        f'<path class="dot c1" d="M{axis.position(a) * UNITS:.1f} {(1 - axis.position(b)) * UNITS:.1f}h0"/>'
        for a, b in places
    )
    labels = _y_labels(axis, format_number) + _x_labels(axis)
    plot = _plot(_grid(axis) + diagonal + dots, labels, None, title)
    return _figure(title, note, "", plot, _x_caption(x_label), "")


def gait_chart(
    title: str, feet: Sequence[str], contact: Sequence[Sequence[bool]], period: float, note: str = ""
) -> str:
    """Draw bars for foot contacts; `contact` has a row per foot and a column per step."""
    if not feet or not contact or not contact[0]:
        return ""
    seconds = len(contact[0]) * period
    x_axis = _exact_axis(0.0, seconds, 6)
    row = UNITS / len(feet)
    bars, labels = [], []
    for index, (foot, touches) in enumerate(zip(feet, contact)):
        top = index * row + row * 0.16
        for begin, end in runs_of_true(touches):
            left, width = begin * period / seconds * UNITS, (end - begin) * period / seconds * UNITS
            bars.append(
                f'<rect class="bar c{index % 4 + 1}" x="{left:.1f}" y="{top:.1f}" '
                f'width="{width:.1f}" height="{row * 0.68:.1f}"/>'
            )
        middle = 100 * (index + 0.5) / len(feet)
        labels.append(f'<span class="tick y" style="top:{middle:.2f}%">{escape(foot)}</span>')
    plot = _plot("".join(bars), "".join(labels) + _x_labels(x_axis), None, title)
    return _figure(title, note, "", plot, _x_caption("time, s"), "gait")


def runs_of_true(values: Sequence[bool]) -> list[tuple[int, int]]:
    """Return start and end (exclusive) of every run of true values."""
    runs, begin = [], None
    for index, value in enumerate([*values, False]):
        if value and begin is None:
            begin = index
        elif not value and begin is not None:
            runs.append((begin, index))
            begin = None
    return runs


def _rounded(values: Sequence[float]) -> list[float]:
    return [float(f"{value:.4g}") for value in values]


def _grid(axis: Axis) -> str:
    levels = "".join(f"M0 {(1 - axis.position(tick)) * UNITS:.1f}h{UNITS}" for tick in axis.ticks)
    zero = (
        f'<path class="zero" d="M0 {(1 - axis.position(0)) * UNITS:.1f}h{UNITS}"/>'
        if axis.low < 0 < axis.ticks[-1]
        else ""
    )
    return f'<path class="grid" d="{levels}"/>{zero}'


def _area(line: Series, x_axis: Axis, y_axis: Axis) -> str:
    """Draw the band of a line."""
    low, high = line.band or ((), ())
    edge = [*zip(line.x, high), *zip(reversed(line.x), reversed(low))]
    return f'<polygon class="band c{line.color}" points="{_points(edge, x_axis, y_axis)}"/>'


def _points(places: Iterable[tuple[float, float]], x_axis: Axis, y_axis: Axis) -> str:
    return " ".join(f"{x_axis.position(x) * UNITS:.1f},{(1 - y_axis.position(y)) * UNITS:.1f}" for x, y in places)


def _polyline(line: Series, x_axis: Axis, y_axis: Axis) -> str:
    points = _points(zip(line.x, line.y), x_axis, y_axis)
    style = f"line c{line.color}" + (" dashed" if line.dashed else "")
    return f'<polyline class="{style}" points="{points}"/>'


def _y_labels(axis: Axis, text: Callable[[float], str]) -> str:
    return "".join(
        f'<span class="tick y" style="top:{(1 - axis.position(tick)) * 100:.2f}%">{text(tick)}</span>'
        for tick in axis.ticks
    )


def _x_labels(axis: Axis) -> str:
    spans = []
    for tick in axis.ticks:
        position = axis.position(tick)
        edge = " first" if position < 0.02 else " last" if position > 0.98 else ""
        spans.append(f'<span class="tick x{edge}" style="left:{position * 100:.2f}%">{format_number(tick)}</span>')
    return "".join(spans)


def _x_caption(label: str) -> str:
    return f'<div class="caption">{escape(label)}</div>' if label else ""


def _legend(lines: Sequence[Series]) -> str:
    items = []
    for line in lines:
        style = f"swatch c{line.color}" + (" dashed" if line.dashed else "")
        items.append(f'<span class="key"><i class="{style}"></i>{escape(line.label)}</span>')
    return f'<div class="legend">{"".join(items)}</div>'


def _plot(shapes: str, labels: str, numbers: object, title: str) -> str:
    data = f" data-numbers='{escape(json.dumps(numbers, separators=(',', ':')), quote=True)}'" if numbers else ""
    frame = f'viewBox="0 0 {UNITS} {UNITS}" preserveAspectRatio="none" role="img" aria-label="{escape(title)}"'
    return f'<div class="plot"{data}><svg {frame}>{shapes}</svg>{labels}</div>'


def _figure(title: str, note: str, legend: str, plot: str, caption: str, style: str) -> str:
    remark = f'<span class="note">{escape(note)}</span>' if note else ""
    heading = f"<figcaption><b>{escape(title)}</b>{remark}{legend}</figcaption>"
    return f'<figure class="chart {style}">{heading}{plot}{caption}</figure>'
