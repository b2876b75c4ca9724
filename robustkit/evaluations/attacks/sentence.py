"""What the sentence about a checkpoint says about attacks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...display.text import amount
from ...protocol.condition import CLEAN, part_of
from ...runs.manifest import Manifest
from ..cells import Cells, is_whole
from ..family import family_of
from ..kinds import kind_of, words_of
from ..metric import Metric
from ..sentence import Clause, share
from .on_corrupted import UNDER, starts_from

_NAMES = {"autoattack": "AutoAttack", "square": "Square", "segpgd": "SegPGD", "cospgd": "CosPGD", "sea": "SEA"}
_STAGES = {
    "apgd-ce": "APGD on the cross-entropy",
    "apgd-dlr": "APGD on the DLR loss",
    "apgd-t": "targeted APGD",
    "fab-t": "targeted FAB",
    "square": "Square",
}


def clauses(cells: Cells, manifest: Manifest, headline: Metric) -> Iterator[Clause]:
    """Yield the result of the attack that leaves least: `the strongest attack, pgd at 4/255, leaves 13.3 %`; then that
    of those on corrupted images.

    While records of some attack are missing, none is called the strongest or the only one. Attacks on a part of the
    samples count only where there are no others, and stages of an attack that is estimated as a whole do not.
    """
    whole = [text for text in manifest.claims if not text.startswith(_parts_of_estimated(manifest))]
    every = [text for text in whole if not part_of(text)] or whole
    on_clean = [text for text in every if starts_from(text) == CLEAN.text]
    on_corrupted = [text for text in every if text not in on_clean]
    yield from _least(on_clean, cells, manifest, headline)
    yield from _least(on_corrupted, cells, manifest, headline, " on corrupted images")


def _parts_of_estimated(manifest: Manifest) -> tuple[str, ...]:
    """Return how the texts of stages begin that ran for the estimate of a whole attack, which has its own clause."""
    named = ((text, metric.name) for text in manifest.conditions for metric in words_of(text).metrics)
    estimated = (words_of(text).estimated(text, name) for text, name in named)
    return tuple(dict.fromkeys(f"{attack.removesuffix(')')},only=" for attack in estimated if attack))


def _least(texts: Sequence[str], cells: Cells, manifest: Manifest, headline: Metric, of: str = "") -> Iterator[Clause]:
    """Yield the result of one of these attacks, of equally strong ones the last. of: whose images they change, where
    those are not clean.
    """
    attacked = [row for (condition, name), row in cells.items() if name == headline.name and condition in texts]
    if not attacked:
        return
    claims = manifest.claims
    row, clean = min(reversed(attacked), key=lambda row: float(row["value"])), cells.get((CLEAN.text, headline.name))
    norm, eps = claims[row["condition"]].norm, float(claims[row["condition"]].eps)
    space = manifest.protocol.space
    radius = amount(eps, norm, space) + ("" if norm == "linf" else f" ({norm})")
    if space == "normalised":
        radius += " in normalised units"
    of_others = (
        "" if clean is not None and row["n"] == clean["n"] else f" of {row['n']} {manifest.protocol.samples.many}"
    )
    name, given = _parts(row["condition"])
    stages = f" with {_alone(given['only'])}" if "only" in given else ""
    call = f"{name}{stages} at {radius}{_beneath(row['condition'], manifest)}"
    leaves = f"leaves {share(row)}{of_others}"
    missing = sum(not is_whole(cells.get((condition, headline.name))) for condition in texts)
    if missing:
        so_far = f"{', the least' if len(attacked) > 1 else ''} so far (unfinished attacks: {missing} of {len(texts)})"
        yield Clause(f"the attack{of} {call} {leaves}{so_far}", (row,))
    else:
        yield Clause(f"the {'strongest' if len(attacked) > 1 else 'only'} attack{of}, {call}, {leaves}", (row,))


def _alone(only: str) -> str:
    """Return which stages of AutoAttack run, in words: `targeted FAB and Square alone`."""
    *first, last = (_STAGES.get(stage, stage) for stage in only.split("+"))
    return f"{', '.join(first)} and {last} alone" if first else f"{last} alone"


def _beneath(text: str, manifest: Manifest) -> str:
    """Return ` on fog, severity 3` for an attack on corrupted images; nothing on clean ones."""
    start = starts_from(text)
    return "" if start == CLEAN.text else f" on {family_of(kind_of(start)).called(start, manifest)}"


def called(text: str, manifest: Manifest) -> str:
    """Return `PGD, 4/255, 20 steps`: the name, the radius with its norm unless linf, and what else the text says."""
    claim, name, given = manifest.claims.get(text), *_parts(text)
    eps, norm = given.pop("eps", ""), given.pop("norm", "linf")
    space = manifest.protocol.space
    radius = eps if "/" in eps or claim is None else amount(claim.eps, norm, space)
    words = [_NAMES.get(name, name.upper()), f"{norm} {radius}" if norm != "linf" else radius]
    words += ["normalised units"] if space == "normalised" else []
    if given.get("version") == "standard":
        del given["version"]
    words += [_alone(given.pop("only"))] if "only" in given else []
    for key, value in given.items():
        counted = value.isdigit() and key.endswith("s")
        word = key.removesuffix("s") if value == "1" else key
        words.append(f"{value} {word}" if counted else f"{key} {value}")
    return ", ".join(filter(None, (*words, _beneath(text, manifest).strip())))


def _parts(text: str) -> tuple[str, dict[str, str]]:
    """Return the name of an attack and the parameters that its text names, without those of a corruption."""
    name, _, inside = text.partition(f",{UNDER}=")[0].partition("(")
    return name, dict(item.split("=", 1) for item in inside.rstrip(")").split(",") if "=" in item)


def title(text: str, manifest: Manifest) -> str:
    """Return `PGD-20 1/255`, as people write it; with the norm unless linf, and the units unless pixels."""
    claim, (name, given) = manifest.claims[text], _parts(text)
    budget = next((given[key] for key in ("steps", "queries") if key in given and name != "autoattack"), None)
    version = given.get("version", "standard")
    # A text names what differs from the card's attack, apart from its radius and budget.
    modified = given.keys() - {"eps", "norm", "version", *(["steps", "queries"] if budget else [])}
    words = [_NAMES.get(name, name.upper()) + (f"-{budget}" if budget else "")]
    words = ["modified", *words] if modified else words
    words += [version] if version != "standard" else []
    words += [] if claim.norm == "linf" else [claim.norm]
    words += [amount(claim.eps, claim.norm, manifest.protocol.space)]
    words += ["normalised"] if manifest.protocol.space == "normalised" else []
    return " ".join(words) + _beneath(text, manifest)
