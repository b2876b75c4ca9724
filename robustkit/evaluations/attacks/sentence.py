"""What the sentence about a checkpoint says about attacks."""

from __future__ import annotations

from collections.abc import Iterator

from ...display.numbers import pixels
from ...protocol.condition import CLEAN
from ...runs.manifest import Manifest
from ..cells import Cells, is_whole
from ..metric import Metric
from ..sentence import Clause, share

_NAMES = {"autoattack": "AutoAttack", "square": "Square", "segpgd": "SegPGD", "cospgd": "CosPGD", "sea": "SEA"}


def clauses(cells: Cells, manifest: Manifest, headline: Metric) -> Iterator[Clause]:
    """Yield the result of the attack that leaves least: `the strongest attack, pgd at 4/255, leaves 13.3 %`.

    While records of some attack are missing, none is called the strongest or the only one.
    """
    claims = manifest.claims
    attacked = [row for (condition, name), row in cells.items() if name == headline.name and condition in claims]
    if not attacked:
        return
    row, clean = min(attacked, key=lambda row: float(row["value"])), cells.get((CLEAN.text, headline.name))
    norm, eps = claims[row["condition"]].norm, float(claims[row["condition"]].eps)
    radius = pixels(eps, norm) + ("" if norm == "linf" else f" ({norm})")
    if manifest.protocol.space != "pixels":
        radius += " in normalised units"
    of_others = "" if clean is not None and row["n"] == clean["n"] else f" of {row['n']} images"
    call = f"{row['condition'].partition('(')[0]} at {radius}"
    leaves = f"leaves {share(row)}{of_others}"
    missing = sum(not is_whole(cells.get((condition, headline.name))) for condition in claims)
    if missing:
        so_far = f"{', the least' if len(attacked) > 1 else ''} so far (unfinished attacks: {missing} of {len(claims)})"
        yield Clause(f"the attack {call} {leaves}{so_far}", (row,))
    else:
        yield Clause(f"the {'strongest' if len(attacked) > 1 else 'only'} attack, {call}, {leaves}", (row,))


def called(text: str, manifest: Manifest) -> str:
    """Return `PGD, 4/255, 20 steps`: the name, the radius with its norm unless linf, and what else the text says."""
    claim, name, given = manifest.claims.get(text), *_parts(text)
    eps, norm = given.pop("eps", ""), given.pop("norm", "linf")
    radius = eps if "/" in eps or claim is None else pixels(claim.eps, norm)
    words = [_NAMES.get(name, name.upper()), f"{norm} {radius}" if norm != "linf" else radius]
    words += [] if manifest.protocol.space == "pixels" else ["normalised units"]
    if given.get("version") == "standard":
        del given["version"]
    for key, value in given.items():
        counted = value.isdigit() and key.endswith("s")
        word = key.removesuffix("s") if value == "1" else key
        words.append(f"{value} {word}" if counted else f"{key} {value}")
    return ", ".join(filter(None, words))


def _parts(text: str) -> tuple[str, dict[str, str]]:
    """Return the name of an attack and the parameters that its text names."""
    name, _, inside = text.partition("(")
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
    words += [pixels(claim.eps, claim.norm)]
    words += [] if manifest.protocol.space == "pixels" else ["normalised"]
    return " ".join(words)
