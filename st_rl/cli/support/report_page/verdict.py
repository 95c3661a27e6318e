"""The verdict of a report: whether the policy walks, in one line."""

from collections.abc import Mapping
from html import escape
from typing import Any, NamedTuple

from st_rl.cli.support.report_page.curves import Curves, read_number

# A policy walks if fewer robots fall, and the mean forward velocity is closer to the command, m/s.
MAX_FALLS = 0.05
MAX_ERROR = 0.15
# A policy tracks its clips if more robots reach their end, and the mean position error of the bodies is smaller, m.
MIN_REACHED, MAX_BODY_ERROR = 0.9, 0.1
_WORDS = {
    "reached_end": "{:.0%} of the robots reach the end of their clip",
    "body_pos_error": "body error {:.3f} m",
    "joint_pos_error": "joint error {:.3f} rad",
    "falls": "",
    "success": "{:.0%} pass their obstacles",
    "lin_vel_x_error": "forward velocity error {:.3f} m/s",
    "return_mean": "mean episode return {:.4g}",
    "reached_time_limit": "{:.0%} of the episodes reach the time limit",
}
# More falls are not walking at all.
MANY_FALLS = 0.5


class Verdict(NamedTuple):
    """A sentence on a policy, and whether it does its task; None if that is not known."""

    text: str
    is_good: bool | None


def find_verdict(
    result: Mapping[str, Any] | None, curves: Curves, reference: tuple[str, Mapping[str, Any]] | None
) -> Verdict:
    """Return the verdict of `eval.json`, with the physics in which most robots fall, else of the training's last one.

    `reference` is the name of a pretrained policy of the task, and its `eval.json`.
    """
    figures = _worst_column(result)
    if figures is not None:
        verdict = _assess(figures)
        compared = None if reference is None else _worst_column(reference[1])
        if reference is None or compared is None:
            return verdict
        return Verdict(f"{verdict.text} {reference[0]}: {_figures(compared)}.", verdict.is_good)
    measured = {
        tag.removeprefix("Evaluation/"): values[1][-1] for tag, values in curves.items() if "Evaluation/" in tag
    }
    if not measured:
        return Verdict("Not evaluated: st-rl eval measures the policy without exploration noise.", None)
    verdict = _assess({"num_envs": 1, **measured})
    return Verdict(f"{verdict.text} Measured in the training; st-rl eval measures longer.", verdict.is_good)


def _worst_column(result: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Return the metrics with the physics in which most robots fail, the finest if they agree; None without any."""
    columns = list(((result or {}).get("columns") or {}).values())
    return max(reversed(columns), key=_fall_fraction, default=None)


def _fall_fraction(figures: Mapping[str, Any]) -> float:
    reached = read_number(figures.get("reached_end"))
    if reached is not None:
        return 1.0 - reached
    return (read_number(figures.get("falls")) or 0.0) / max(1.0, read_number(figures.get("num_envs")) or 1.0)


def _assess(figures: Mapping[str, Any]) -> Verdict:
    """Return the verdict of the metrics of an evaluation."""
    falls, error = read_number(figures.get("falls")), read_number(figures.get("lin_vel_x_error"))
    reached, body_error = read_number(figures.get("reached_end")), read_number(figures.get("body_pos_error"))
    if reached is not None and body_error is not None:
        is_good = reached >= MIN_REACHED and body_error <= MAX_BODY_ERROR
        word = "Tracks its clips" if is_good else "Fails in its clips" if reached < MIN_REACHED else "Tracks inexactly"
        return Verdict(f"{word}: {_figures(figures)}.", is_good)
    if falls is None:
        value = read_number(figures.get("return_mean"))
        return Verdict("Evaluated." if value is None else f"{_figures(figures).capitalize()}.", None)
    fraction = _fall_fraction(figures)
    if fraction > MANY_FALLS:
        word, is_good = "Falls", False
    elif error is None or error > MAX_ERROR:
        word, is_good = "Stays up, but does not follow its commands", False
    elif fraction > MAX_FALLS:
        word, is_good = "Walks, but falls too often", False
    else:
        word, is_good = "Walks", True
    return Verdict(f"{word}: {_figures(figures)}.", is_good)


def _figures(figures: Mapping[str, Any]) -> str:
    """Describe clips, or falls, obstacles and error, or the returns of a task without commands."""
    words = []
    for name, text in _WORDS.items():
        value = read_number(figures.get(name))
        if value is not None:
            words.append(_describe_falls(value, figures) if name == "falls" else text.format(value))
    return ", ".join(words)


def _describe_falls(falls: float, figures: Mapping[str, Any]) -> str:
    count = read_number(figures.get("num_envs")) or 1.0
    # The log of a training has the fraction.
    number = f"{falls:.0%} of the robots fall" if count == 1 else f"{falls:.0f} of {count:.0f} robots fall"
    return "no robot falls" if falls == 0 else number


def verdict(result: Mapping[str, Any] | None, curves: Curves, reference: tuple[str, Mapping[str, Any]] | None) -> str:
    """Return the verdict as HTML."""
    text, is_good = find_verdict(result, curves, reference)
    style = {True: " good", False: " bad", None: ""}[is_good]
    return f'<p class="verdict{style}">{escape(text)}</p>'
