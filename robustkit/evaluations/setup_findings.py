"""Tell for each part of a checkpoint's set-up whether it is stated, confirmed by the data, or only assumed.

It reads run.json, the evidence of the set-up check and the clean records, and needs no torch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..common.differences import of_means
from ..common.finding import Finding
from ..common.preprocessing import PROBABILITIES, UNIT, UNPROVEN, exact_numbers, few_numbers, source_words
from ..protocol.condition import CLEAN
from ..runs.folder import RunFolder
from ..runs.manifest import ELSEWHERE, CheckpointEntry, Manifest

if TYPE_CHECKING:
    import pyarrow as pa

Evidence = Mapping[str, Any]
DECISIVE = ("attention", "normalisation", "text")
"""The parts that change what a model is. A crop or an interpolation changes figures by little, so an assumed one is
stated, and flagged only where another fits better."""
_OF_ZERO = 103.2  # a loss above which the probability of the label is 0: -log 2^-149 is 103.28
MANY_TIED = 0.01  # share of samples without a single largest logit from which on results are flagged
FEWEST = 10  # images below which nothing can be decided
_BETTER, _FITS = "another-fits-better", "fits"
_UNKNOWN = ("inconclusive", "cannot-tell")  # the second in records of earlier versions


@dataclass(frozen=True)
class SetupPart:
    """A part of a set-up: its source, its status (stated, confirmed, assumed, contradicted), and n images checked."""

    name: str
    value: str
    source: str
    status: str
    n: int

    @property
    def why(self) -> str:
        """`assumed, our default; confirmed on 64 images`."""
        checked = {"confirmed": f"; confirmed on {self.n} images", "contradicted": "; another fits better"}
        return self.source + checked.get(self.status, "; not confirmed" if self.status == "assumed" else "")


def setup_parts(entry: CheckpointEntry, evidence: Evidence | None) -> list[SetupPart]:
    """Return the parts of a set-up that have a source. evidence: of `check_setup`."""
    by_name, parts = {part["part"]: part for part in _parts(evidence)}, []
    for name, source in entry.sources.items():
        checked = by_name.get(name, {})
        unchecked = "assumed" if source in UNPROVEN else "stated"
        status = {_BETTER: "contradicted", _FITS: "confirmed"}.get(str(checked.get("verdict")), unchecked)
        source_text = "as built" if source == "n/a" else source_words(source, entry.arch) or source
        parts.append(SetupPart(name, _value(entry, name)[0], source_text, status, int(checked.get("n", 0))))
    return parts


def _setup_clauses(manifest: Manifest, checkpoint: str, evidence: Evidence | None) -> Iterator[tuple[str, str]]:
    """Yield the parts of a set-up in words, each with its source."""
    entry = manifest.checkpoint(checkpoint)
    if entry.is_elsewhere:
        yield ELSEWHERE, ""
    else:
        yield from ((f"{part.name} {part.value}", part.why) for part in setup_parts(entry, evidence))
        if manifest.protocol.samples.many == "images" and any(entry.preprocessing.input_size):
            rgb = len(entry.preprocessing.mean) == 3 and not entry.preprocessing.value_range
            yield "channels RGB" if rgb else f"{len(entry.preprocessing.mean)} channels", "as images are read"
        if not list(_parts(evidence)):
            yield "not checked against the data", ""
    if manifest.data.classes:  # documents have none
        yield f"labels by layout {manifest.data.layout}", ""


def setup_text(manifest: Manifest, checkpoint: str, evidence: Evidence | None) -> str:
    """Return the set-up of a checkpoint in a line; parts with the same source share a bracket."""
    return _in_brackets(_setup_clauses(manifest, checkpoint, evidence))


def setups_of(run: RunFolder) -> list[tuple[str, str]]:
    """Return the set-up of a run's checkpoints in words: what all share, then what is of some of them alone. Parts with
    the same source share a bracket."""
    manifest = run.manifest
    clauses = {name: [*_setup_clauses(manifest, name, run.evidence(name, CLEAN.text))] for name in manifest.names}
    first, *others = clauses.values()
    common = [clause for clause in first if all(clause in other for other in others)]
    alike = dict[str, list[str]]()
    for name, pairs in clauses.items():
        alike.setdefault(_in_brackets(clause for clause in pairs if clause not in common), []).append(name)
    subject = "all checkpoints" if others else manifest.names[0]
    return [(subject, _in_brackets(common)), *((", ".join(names), text) for text, names in alike.items() if text)]


def _in_brackets(clauses: Iterable[tuple[str, str]]) -> str:
    together = dict[str, list[str]]()
    for value, why in clauses:
        together.setdefault(why, []).append(value)
    return "; ".join(f"{', '.join(values)} ({why})" if why else "; ".join(values) for why, values in together.items())


def setup_findings(manifest: Manifest, checkpoint: str, evidence: Evidence | None) -> list[Finding]:
    """Return each part that a candidate beats, each decisive part not confirmed, a missing check, and a formula of
    attention with other options than in training; or that predictions were computed elsewhere.

    evidence: of `check_setup`; it may come from someone else, so what has another shape says nothing.
    """
    entry = manifest.checkpoint(checkpoint)
    if entry.is_elsewhere:  # by a set-up of which nothing is known
        return [Finding.of("setup/elsewhere")]
    parts = list(_parts(evidence))
    raised = [_better(part, entry) for part in parts if part.get("verdict") == _BETTER]
    open_parts = [part for part in setup_parts(entry, evidence) if part.status == "assumed"]
    if parts or not {part.name for part in open_parts} & set(DECISIVE):
        open_parts = [part for part in open_parts if part.name in DECISIVE]
    missing = "" if parts else _why_unchecked(manifest)
    look = "; robustkit inspect CHECKPOINT --data-dir DIR shows what fits" * ("setup_check" in manifest.arguments)
    for part in open_parts:
        ahead = [
            f" ({each['best']} is ahead)"
            for each in parts
            if each["part"] == part.name and each["best"] != each["in_use"] and not each.get("same")
        ]
        unconfirmed = f"not confirmed on {part.n} images{''.join(ahead)}"
        seen = unconfirmed if parts else f"not checked, {missing or 'it has no evidence'}"
        option = _value(entry, part.name)[1]
        raised.append(Finding.of(f"setup/{part.name}-assumed", value=part.value, seen=seen, option=option, look=look))
    if missing == _LOST:
        raised.append(Finding.of("setup/evidence-missing"))
    elif not open_parts and missing and missing != _TOO_FEW:
        raised.append(Finding.of("setup/unchecked", why=missing))
    if entry.origin.get("input_size") == "family":
        rows, columns = entry.preprocessing.input_size
        size = f"--img-size {rows} if that is right" if rows == columns else "one whose config states it"
        raised.append(Finding.of("setup/size-assumed", rows=rows, columns=columns, arch=entry.arch, option=size))
    if entry.trained_attention:
        attention, trained = entry.attention, entry.trained_attention
        raised.append(Finding.of("setup/other-attention", attention=attention, trained=trained))
    return raised


_TOO_FEW = f"fewer than {FEWEST} labelled images"
_LOST = "its evidence is missing"


def _why_unchecked(manifest: Manifest) -> str:
    """Return why a run has no evidence on set-ups; empty for a task that has no such check."""
    if "setup_check" not in manifest.arguments:
        return ""
    if not manifest.arguments["setup_check"]:
        return "--no-setup-check was given"
    if CLEAN.text not in manifest.conditions:
        return "clean images were not evaluated"
    if manifest.data.n < FEWEST or manifest.data.layout == "unlabelled":
        return _TOO_FEW
    return _LOST


def setup_notes(evidence: Evidence | None) -> list[str]:
    """Return a line for each part whose better candidate may be chance. evidence: as of `setup_findings`."""
    open_parts = (part for part in _parts(evidence) if part.get("verdict") in _UNKNOWN and part.get("same") is False)
    return [
        "{part}: inconclusive, {best} is ahead of {in_use} (in use): NLL lower by {difference:.3f} [{ci_low:.3f}, "
        "{ci_high:.3f}], {n} images, not significant for the best of several; more images may settle it".format(**part)
        for part in open_parts
        if part["best"] != part["in_use"] and not _is_guessing(part)
    ]


def ties(read: pa.Table) -> list[Finding]:
    """Return a finding on readable rows where `MANY_TIED` of the samples, and two or more, have no single likeliest
    class."""
    tied = sum(read["tied"].to_pylist()) if "tied" in read.column_names and not read["tied"].null_count else 0
    if tied < 2 or tied < MANY_TIED * len(read):
        return []
    return [Finding.of("model/tied-outputs", count=tied, n=len(read), share=tied / len(read))]


def odd_outputs(read: pa.Table, entry: CheckpointEntry, classes: int) -> Iterator[Finding]:
    """Yield findings on readable rows of a network that returns no logits: probabilities of 0, and outputs that lie
    between 0 and 1 for these samples, too. classes: how many compete."""
    if "nll" not in read.column_names or entry.outputs not in (PROBABILITIES, UNIT):
        return
    nll = read["nll"].drop_null().to_numpy().astype(np.float64)
    if entry.outputs == PROBABILITIES and (zeros := int((nll > _OF_ZERO).sum())):
        yield Finding.of("model/zero-probability", count=zeros, n=len(nll))
    if entry.outputs == UNIT and len(nll):
        surest = read["confidence"].drop_null().to_numpy() if "confidence" in read.column_names else np.zeros(0)
        most = max(float(np.exp(-nll.min())), float(surest.max(initial=0.0)))
        if most <= math.e / (math.e + classes - 1) + 1e-5:  # a softmax of numbers from 0 to 1 is no surer
            yield Finding.of("model/unit-outputs")


_OWN_NUMBERS = "give --labels FILE.csv with the model's own numbers"
_OWN_NAMES = "give --classes FILE with the names of the classes in the order of the model's outputs"


def guessing(read: pa.Table, classes: int, arguments: Mapping[str, Any] | None = None) -> list[Finding]:
    """Return findings on readable clean rows whose model is no better than one that knows nothing of its classes.
    arguments: of the command, which say what remedies it has.
    """
    arguments = arguments or {}
    if not len(read) or classes < 2 or "nll" not in read.column_names:
        return []
    table = read.filter(read["nll"].is_valid())
    nll = table["nll"].to_numpy().astype(np.float64)
    places = table["tokens"].to_numpy().astype(np.float64) if "tokens" in table.column_names else np.ones(len(nll))
    chance, raised = math.log(classes), list[Finding]()
    with np.errstate(invalid="ignore"):
        mean = float(nll.sum() / places.sum()) if places.sum() else math.nan
    shifted = _shifted_labels(table, arguments) if "shifted" in table.column_names else None
    look = (
        shifted.text
        if shifted
        else "check the weights, attention, normalisation, and that labels are in the order of the outputs"
    )
    if mean >= chance:
        raised.append(Finding.of("labels/no-better-than-chance", nll=mean, chance=chance, look=look))
    if "labelled" in table.column_names and not raised and len(table):
        hits, labelled = (np.array(table[name].to_pylist()).sum(axis=0) for name in ("intersections", "labelled"))
        if hits.sum() <= labelled.max():
            correct, covers = hits.sum() / labelled.sum(), labelled.max() / labelled.sum()
            raised.append(Finding.of("labels/most-frequent-class", correct=correct, covers=covers, look=look))
    if {"label", "prediction"} <= set(read.column_names):
        remedy = _OWN_NAMES if "classes" in arguments else _OWN_NUMBERS
        raised += other_order(read["label"].to_numpy(), read["prediction"].to_numpy(), remedy)
    return raised or ([shifted] if shifted else [])


_SHIFTED = 0.2  # of what the best constant prediction misses, what labels by one less or more must get right


def _shifted_labels(table: pa.Table, arguments: Mapping[str, Any]) -> Finding | None:
    """Return that the masks seem to store class k as k + 1, or not to, against what was said; None where more pixels
    are right as it was said, or hardly more than of one class everywhere."""
    if arguments.get("reduce_zero_label") is None or not len(table):
        return None
    reduced = bool(arguments["reduce_zero_label"])
    hits, labelled = (np.array(table[name].to_pylist()).sum(axis=0) for name in ("intersections", "labelled"))
    ours, shifted = int(hits.sum()), int(table["shifted"].to_numpy().sum())
    meant = labelled[:-1] if reduced else labelled[1:]
    constant, total = int(meant.max()), int(meant.sum())
    if shifted <= ours or shifted - constant <= _SHIFTED * (total - constant):
        return None
    how, remedy = ("k", "leave out") if reduced else ("k + 1, with 0 for none", "give")
    return Finding.of("labels/shifted", share=shifted / total, how=how, remedy=remedy)


def other_order(labels: NDArray[np.int64], predictions: NDArray[np.int64], remedy: str = _OWN_NUMBERS) -> list[Finding]:
    """Return that samples of a class, each aside, are mostly predicted as one other class; nothing where not."""
    if not len(labels) or labels.min() < 0 or predictions.min() < 0:
        return []
    classes, rows = np.unique(labels, return_inverse=True)
    votes = np.zeros((len(classes), int(max(predictions.max(), labels.max())) + 1))
    np.add.at(votes, (rows, predictions), 1)
    seen = votes.sum(axis=1) > 1
    theirs = votes.argmax(axis=1)
    mapped = [(int(a), int(b)) for a, b in zip(classes[seen], theirs[seen], strict=True) if a != b]
    if 2 * len(mapped) < seen.sum() or seen.sum() < 3 or len(set(theirs[seen].tolist())) < 0.8 * seen.sum():
        return []
    others = votes[rows]
    others[np.arange(len(labels)), predictions] -= 1
    counted = seen[rows]
    agrees = (others.argmax(axis=1) == predictions)[counted].astype(np.float64)
    right = (predictions == labels)[counted].astype(np.float64)
    difference = of_means(right, agrees, binary=True)
    if difference.value <= 0 or difference.p_value >= 0.01:
        return []
    named = ", ".join(f"{a} as {b}" for a, b in mapped[:4]) + (", …" if len(mapped) > 4 else "")
    rest, label = 100 * difference.second, 100 * difference.first
    return [Finding.of("labels/other-order", rest=rest, label=label, pairs=named, remedy=remedy)]


def _value(entry: CheckpointEntry, part: str) -> tuple[str, str]:
    """Return the value of a part in use, and the option that states it."""
    p = entry.preprocessing
    numbers = f"mean {few_numbers(p.mean)}, std {few_numbers(p.std)}"
    return {
        "attention": (entry.attention, f"--attention {entry.attention}"),
        "normalisation": (numbers, f"--mean '{exact_numbers(p.mean)}' --std '{exact_numbers(p.std)}'"),
        "crop": (f"{p.crop_pct:.4g}", f"--crop-pct {p.crop_pct:.6g}"),
        "interpolation": (p.interpolation, f"--interpolation {p.interpolation}"),
        "text": (form := str(entry.metadata.get("text", "written")), f"--text {form}"),
    }[part]


def _is_guessing(part: Evidence) -> bool:
    """Whether the best candidate's loss is no lower than that of a model that knows nothing."""
    nll, guessing = part.get("nll"), part.get("guessing")
    return isinstance(nll, int | float) and isinstance(guessing, int | float) and not nll < guessing


def _parts(evidence: Evidence | None) -> Iterator[Evidence]:
    """Yield the parts that have the shape that we write."""
    texts, numbers = ("part", "in_use", "best", "remedy"), ("difference", "ci_low", "ci_high", "n")
    parts = (evidence or {}).get("setup")
    for part in parts if isinstance(parts, list) else ():
        fine = isinstance(part, dict) and all(isinstance(part.get(name), str) for name in texts)
        if fine and all(isinstance(part.get(name), int | float) for name in numbers):
            yield part


def _better(part: Evidence, entry: CheckpointEntry) -> Finding:
    how = "was assumed and does not fit" if part["part"] in entry.assumed else "does not fit"
    return Finding.of("setup/another-fits-better", **{**part, "how": how, "alike": _alike(part)})


def _alike(part: Evidence) -> str:
    """Return the other candidates that may be meant as well."""
    listed = part.get("alike")
    pairs = [pair for pair in listed if isinstance(pair, list)] if isinstance(listed, list) else []
    fine = (pair for pair in pairs if len(pair) == 2 and all(isinstance(text, str) for text in pair))
    names = [name for name, _ in fine]
    more = f" and {len(names) - 2} more" if len(names) > 2 else ""
    return f"; as good, as far as these images tell: {', '.join(names[:2])}{more}" if names else ""
