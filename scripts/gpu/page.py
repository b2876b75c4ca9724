"""The page of a run of `scripts.gpu`: what was measured, and which defaults follow by rules that are written here."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.pages.writing import markdown

from .steps import STEPS

BEGIN, END = "<!-- gpu: made by scripts/gpu/page.py -->", "<!-- /gpu -->"
Line = dict[str, Any]


@dataclass(frozen=True)
class Rule:
    """What decides a default. holds: from the lines of a run to whether it does, None where they do not tell."""

    default: str
    text: str
    holds: Callable[[Sequence[Line]], bool | None]


def of(lines: Iterable[Line], **given: Any) -> list[Line]:
    """Return the lines that have these values."""
    return [line for line in lines if all(line.get(name) == value for name, value in given.items())]


def faster(lines: Sequence[Line], mode: str, stage: str = "PGD-20") -> list[float]:
    """Return how many times as fast as float32 a mode is, for each network and batch that both measured."""
    rates = {(each["network"], each["batch"], each["mode"]): each for each in of(lines, what="attack", stage=stage)}
    pairs = [(rates.get((network, batch, "float32")), rates[network, batch, mode]) for network, batch, _ in
             (key for key in rates if key[2] == mode)]  # fmt: skip
    return [own["images_a_second"] / plain["images_a_second"] for plain, own in pairs if plain]


def _all_faster(lines: Sequence[Line], mode: str, least: float) -> bool | None:
    times = faster(lines, mode)
    return min(times) >= least if times else None


_TELLING = 100


def _low_precision(lines: Sequence[Line]) -> bool | None:
    verdicts = of(lines, what="verdicts", mode="bfloat16")
    fast = _all_faster(lines, "bfloat16", 1.3)
    if fast is None or not verdicts:
        return None
    if not fast or any(each["more_than_float32"] for each in verdicts):
        return False
    trained = sum(each["stand"] for each in verdicts if each["step"] == "truth")
    return True if trained >= _TELLING else None


def _compiled(lines: Sequence[Line]) -> bool | None:
    modes = [_all_faster(lines, mode, 1.2) for mode in ("float32, compiled", "bfloat16, compiled")]
    compiled = [line for line in of(lines, what="bare") if "compiled" in line["mode"]]
    if None in modes or not compiled:
        return None
    soon = all((line["seconds_to_compile"] or 0) <= 60 and not line["failure"] for line in compiled)
    return all(modes) and soon


def _tf32(lines: Sequence[Line]) -> bool | None:
    verdicts, fast = of(lines, what="verdicts", mode="tf32"), _all_faster(lines, "tf32", 1.3)
    if fast is None or not verdicts:
        return None
    return fast and all(each["more_than_float32"] == each["fewer"] == 0 for each in verdicts)


def _larger_batches(lines: Sequence[Line]) -> bool | None:
    rates: dict[str, dict[int, float]] = {}
    for each in of(lines, what="bare", mode="float32"):
        rates.setdefault(each["network"], {})[each["batch"]] = each["passes_a_second"]
    both = [(by[min(by)], max(by.values())) for by in rates.values() if len(by) > 1]
    return any(best > 1.05 * small for small, best in both) if both else None


RULES = (
    Rule(
        "`--dtype auto` on CUDA",
        "the search in bfloat16 is 1.3 times as fast on each network, and leaves no image standing that float32 "
        f"breaks, where at least {_TELLING} attacked images of trained networks stand",
        _low_precision,
    ),
    Rule(
        "`--compile` on CUDA",
        "it is 1.2 times as fast on each network in both precisions, compiles within a minute, and never fails",
        _compiled,
    ),
    Rule("TF32", "it is 1.3 times as fast on each network, and no verdict differs from float32", _tf32),
    Rule(
        "larger batches on CUDA",
        "some network passes 5 % more images a second than at the smallest size",
        _larger_batches,
    ),
)
"""Written before anything was measured, except for the condition of the first on trained networks."""


def read(path: Path) -> list[Line]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines() if line.strip()]


def page(lines: Sequence[Line]) -> str:
    """Return the section in Markdown."""
    return "\n\n".join([BEGIN, *_parts(lines), END]) + "\n"


def _parts(lines: Sequence[Line]) -> Iterator[str]:
    device = next(iter(of(lines, step="machine", what="device")), {})
    versions = next(iter(of(lines, what="versions")), {})
    name = device.get("name", "an unknown device")
    yield f"## Measured on {name}"
    if any(line["rehearsal"] for line in of(lines, what="begun")):
        yield "**A rehearsal, without a GPU: these figures say nothing about one.**"
    yield (
        f"By `python -m scripts.gpu`, torch {versions.get('torch')}, timm {versions.get('timm')}, CUDA "
        f"{device.get('cuda')}. A rate is images over the median of three calls; networks have random weights."
    )
    ends = [line for line in lines if "status" in line and line["step"] in STEPS]
    rows = [[STEPS[each["step"]].title, each["status"], f"{each.get('seconds', 0)}", each["why"]] for each in ends]
    yield markdown([["step", "ended", "seconds", "why"], *rows])
    yield from _truth(lines)
    yield from _rates(lines)
    yield "Which defaults follow, by rules:"
    told = {True: "yes", False: "no", None: "not measured"}
    yield markdown(
        [["default", "if", "holds"], *([rule.default, rule.text, told[rule.holds(lines)]] for rule in RULES)]
    )


def _truth(lines: Sequence[Line]) -> Iterator[str]:
    rows = []
    for kind in dict.fromkeys(line["kind"] for line in of(lines, what="truth")):
        some = of(lines, what="truth", kind=kind)
        sums = [str(sum(each[name] for each in some)) for name in ("samples", "other labels", "other verdicts")]
        rows.append([kind, str(len(some)), *sums, f"{max(each['largest gap'] for each in some):.1e}"])
    if rows:
        yield "Records against the CPU's, with the same draws:"
        yield markdown([["records", "conditions", "samples", "other labels", "other verdicts", "largest gap"], *rows])
    same = [line for line in lines if "same_bytes" in line]
    if same:
        said = (f"{line.get('kind', line['what'])} {'yes' if line['same_bytes'] else '**no**'}" for line in same)
        yield f"The same bytes again: {', '.join(said)}."


_SAME = ("what", "network", "mode", "batch", "stage", "kind", "workers")  # what two steps measured is told once


def _rates(lines: Sequence[Line]) -> Iterator[str]:
    first: dict[tuple[str, ...], Line] = {}
    for line in lines:
        first.setdefault(tuple(str(line.get(name)) for name in _SAME), line)
    lines = [*first.values()]
    rows = [
        [each["network"], each["mode"], str(each["batch"]), each["stage"], *_rate(each), f"{each['share_of_bare']:.2f}"]
        for each in of(lines, what="attack")
    ]
    if rows:
        yield markdown([["network", "mode", "batch", "attack", "images a second", "of the bare model's rate"], *rows])
    rows = [
        [each["network"], each["mode"], str(each["batch"]), f"{each['passes_a_second']:,.0f}", each["failure"]]
        for each in of(lines, what="bare")
    ]
    if rows:
        yield markdown([["bare network", "mode", "batch", "forwards and backwards a second", "failure"], *rows])
    for what, heading in (("map", "map"), ("corruption", "corruption, severity 3")):
        some = [each for each in of(lines, what=what) if "images_a_second" in each]
        if some:
            sizes = [f", {each['pixels']} pixels" if each.get("pixels", 224) != 224 else "" for each in some]
            rows = [[each["kind"] + size, *_rate(each)] for each, size in zip(some, sizes, strict=True)]
            yield markdown([[heading, "images a second"], *rows])
    host = [each for each in of(lines, step="host") if "images_a_second" in each]
    if host:
        named = [f"{each['what']}{_workers(each)}" for each in host]
        rows = [[name, *_rate(each)] for name, each in zip(named, host, strict=True)]
        yield markdown([["host", "images a second"], *rows])
    for line in of(lines, what="left out"):
        left = ", ".join(f"{value}" for name, value in line.items() if name not in ("step", "what"))
        yield f"Left out, since time was missing: {left}."


def _workers(line: Line) -> str:
    return f", {line['workers']} threads" if "workers" in line else ""


def _rate(line: Line) -> list[str]:
    rate = line["images_a_second"]
    return [f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"]


def write_page(results: Path, into: Path | None) -> None:
    """Write the section of a page between its marks, at the end where it has none; print it without a page."""
    made = page(read(results))
    if into is None:
        print(made)
        return
    text = into.read_text("utf-8")
    before, begin, rest = text.partition(BEGIN)
    after = rest.partition(END)[2].lstrip("\n") if begin else ""
    into.write_text(before.rstrip("\n") + "\n\n" + made + (f"\n{after}" if after else ""), encoding="utf-8")
