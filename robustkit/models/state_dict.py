"""Find the weights of a network in what a training script saved, and what the file says about them.

A file is read as one table of tensors by dotted names: keys of mappings, then names in them. The weights of a network
are the names under one prefix: `state_dict.model.`, `teacher.backbone.`, `module.model.`, or none. Where several
prefixes hold them, a stated rule decides, or nothing does.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import CheckpointError

Shapes = Mapping[str, "torch.Size | None"]  # Names of the tensors of a network, with their shapes where they are known

VIT: Shapes = dict.fromkeys(  # Tensors that every ViT and DeiT of timm has
    ("patch_embed.proj.weight", "blocks.0.attn.qkv.weight", "blocks.0.mlp.fc1.weight", "blocks.0.mlp.fc2.weight")
)
WEIGHTS = ("state_dict", "model", "model_state_dict", "net", "module", "weights", "params")
PREFIXES = ("module.", "_orig_mod.", "model.")
# What wrappers of torch and Lightning put anywhere into a name:
_WRAPPERS = ("module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_forward_module")
_AVERAGED = re.compile(
    r"(?i)(?<![a-z])(ema|swag?|avg|polyak|momentum)(?![a-z])|(model|net|weights)(ema|swa|avg)|(ema|swa|avg)(model|net)"
    r"|averag|shadow"
)
_BUFFERS = ("running_mean", "running_var", "num_batches_tracked")  # which an average of parameters lacks
_NEXT_TO_IT = re.compile(  # what a training pipeline keeps next to its network and a forward pass does not use
    r"n_averaged|mask_token|masked_embed|(criterion|\w*loss\w*|\w*metrics?|\w*(acc|accuracy|auroc|confmat))(\..*)?"
)
_MEAN, _STDS = re.compile(r"((?:.*\.)?(?:\w+_)?)(means?|mu)"), ("std", "stds", "sd", "sds", "sigma")
_ADAPTER = re.compile(
    r"(.*[._])?(lora_(A|B|E|down|up|embedding_[AB]|magnitude_vector)|hada_w\d_[ab]|lokr_w\d(_[ab])?|ia3_l|oft_[rRsS]"
    r"|vera_lambda_[bd])(\..*)?"
)
_DEEPEST, _MOST_PARTS, _LONGEST = 6, 32, 400  # mappings in mappings; parts and letters of a name that may have a prefix


@dataclass(frozen=True)
class Held:
    """All tensors of a file by dotted names. places: mappings that hold them; unnamed: places of lists of tensors.
    notes: on what the file says about its model.
    """

    tensors: dict[str, Tensor] = field(repr=False)
    places: tuple[str, ...] = ("",)
    unnamed: tuple[str, ...] = ()
    use_ema: bool = False
    notes: tuple[str, ...] = ()

    def place(self, prefix: str) -> str:
        return max((p for p in self.places if not p or prefix.startswith(f"{p}.")), key=len, default="")


@dataclass(frozen=True)
class NetworkPart:
    """A network's weights under its own names. weights: the mapping that holds them, or 'bare'. statistics: mean and
    std that tensors next to it hold. aside: names of all other tensors, except for sets that notes name.
    """

    tensors: dict[str, Tensor] = field(repr=False)
    weights: str
    aside: tuple[str, ...]
    statistics: dict[str, list[float]]
    notes: tuple[str, ...]


def held_in(path: Path, content: Mapping[Any, Any], use_ema: bool) -> Held:
    """Return all tensors of what torch.load returned. CheckpointError where two have one name."""
    tensors, places, unnamed = dict[str, Tensor](), dict[str, None](), list[str]()
    waiting: list[tuple[str, int, Mapping[Any, Any]]] = [("", 0, content)]
    seen = {id(content)}
    for place, depth, mapping in waiting:
        for key, value in mapping.items():
            name = f"{place}.{key}" if place else str(key)
            if not isinstance(key, str):  # the states of an optimizer, by numbers
                continue
            if isinstance(value, Tensor):
                if name in tensors:
                    raise CheckpointError(f"{path}: two tensors are called {name[:80]!r}; save the weights alone")
                tensors[name], places[place] = value, None
            elif isinstance(value, list | tuple) and value and all(isinstance(each, Tensor) for each in value):
                unnamed.append(name)
            elif isinstance(value, Mapping) and id(value) not in seen and depth < _DEEPEST:
                seen.add(id(value))
                waiting.append((name, depth + 1, value))
    return Held(tensors, tuple(places), tuple(unnamed), use_ema)


def usual_part(path: Path, held: Held) -> NetworkPart:
    """Return the weights by names of mappings alone, without their common prefix; else all tensors."""
    named = [place for place in held.places if place]
    averaged = [place for place in named if _AVERAGED.search(place)]
    places = [place for place in named if place.rpartition(".")[2] in WEIGHTS and place not in averaged]
    plain = sorted(places, key=lambda place: (place.count("."), WEIGHTS.index(place.rpartition(".")[2])))
    teachers = [place for place in named if place == "teacher" and "student" in named]
    if held.use_ema and not (teachers or any(map(_AVERAGED.search, held.tensors))):
        raise _no_average(path, held)
    chosen = averaged or teachers if held.use_ema else plain or teachers or averaged
    if not chosen and len(named) == 1 == len(held.places):
        chosen = named
    place = chosen[0] if chosen else ""
    inside = f"{place}." if place else ""
    tensors = {name.removeprefix(inside): tensor for name, tensor in held.tensors.items() if name.startswith(inside)}
    notes = _taken(place, "")
    if tensors.pop("n_averaged", None) is not None:
        notes.append("counter 'n_averaged' of torch's AveragedModel ignored")
    if not held.use_ema:
        notes += [_averaged_note(other) for other in averaged[:1] if other != place]
    stripped = ""
    while tensors and (prefix := next((p for p in PREFIXES if all(n.startswith(p) for n in tensors)), None)):
        tensors = {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}
        stripped += prefix
    if stripped:
        notes.append(f"prefix {stripped!r} taken off the names")
    return NetworkPart(tensors, place or "bare", (), {}, tuple(notes))


def part_for(path: Path, held: Held, expected: Shapes) -> NetworkPart | None:
    """Return the network's weights, by `expected`; None where the file has too little of them. Of student and teacher
    it is the teacher, the student's average; else averages only if asked for, or alone. CheckpointError where two fit
    equally.
    """
    short = _short(held.tensors)
    by_short = dict(zip(_short(expected).values(), expected.items(), strict=True))
    outer, prefixes = _search(held.tensors, short, by_short)
    best = max((each.score for each in prefixes), default=0)
    if not best or 2 * best < len(by_short):
        return None
    near = [each for each in prefixes if 2 * each.score >= best]
    chosen, named, notes = _decided(path, held, near)
    names = {name: by_short[outer + rest][0] for rest, name in chosen.names.items()}
    statistics, taken, more = normalisation_tensors(held.tensors, [name for name in held.tensors if name not in names])
    for name in held.tensors:
        rest = short[name].removeprefix(chosen.prefix)
        if short[name].startswith(chosen.prefix) and name not in taken and not _NEXT_TO_IT.fullmatch(rest):
            names.setdefault(name, outer + rest)
    tensors = {names[name]: tensor for name, tensor in held.tensors.items() if name in names}
    if held.use_ema:
        missing = {by_short[outer + rest][0]: name for each in near for rest, name in each.names.items()}
        added = {ours: held.tensors[name] for ours, name in missing.items() if ours.endswith(_BUFFERS)}
        if added := {ours: tensor for ours, tensor in added.items() if ours not in tensors}:
            tensors |= added
            notes.append(f"{len(added)} running statistics taken from the plain weights, since the average has none")
    place, stage = held.place(chosen.whole), chosen.whole.rstrip(".").rpartition(".")[2]
    prefix = chosen.whole.removeprefix(f"{place}." if place else "")
    if not more and stage.isdecimal() and int(stage):
        gone = f"what came before {chosen.whole!r} in the Sequential is not in the file"
        more = f"{gone}; give --mean and --std if it normalised pixels"
    used = {*names, *taken, *(name for each in named for name in each.names.values())}
    aside = [name for name in held.tensors if name not in used]
    notes = [*_taken(place, prefix), *notes, *([more] if more else [])]
    return NetworkPart(tensors, place or "bare", tuple(aside), statistics, tuple(notes))


@dataclass
class _Prefix:
    """A prefix of a network's tensors, without wrappers' words. names: the file's, by its own. score: 2 with shape."""

    prefix: str
    whole: str
    names: dict[str, str] = field(default_factory=dict)
    score: int = 0

    @property
    def label(self) -> str:
        parts = self.whole.rstrip(".").split(".")
        while len(parts) > 1 and parts[-1] in _WRAPPERS:
            parts.pop()
        return ".".join(parts)


def _short(names: Sequence[str] | Mapping[str, Any]) -> dict[str, str]:
    """Return names without the words of wrappers; as they are where two would become one."""
    short = {}
    for name in names:
        *parts, last = name.split(".")
        short[name] = ".".join([*(part for part in parts if part not in _WRAPPERS), last])
    return short if len(set(short.values())) == len(short) else {name: name for name in names}


def _search(
    tensors: Mapping[str, Tensor], short: Mapping[str, str], by_short: Mapping[str, tuple[str, Any]]
) -> tuple[str, list[_Prefix]]:
    """Return what the network's own names begin with, and the prefixes of a file under which the rest of them stand."""
    ranked = []
    for outer in _common(list(by_short)):
        inner = {name.removeprefix(outer): size for name, (_, size) in by_short.items()}
        prefixes = dict[str, _Prefix]()
        for name, tensor in tensors.items():
            for prefix, rest, whole in _splits(name, short[name]):
                if rest in inner:
                    each = prefixes.setdefault(prefix, _Prefix(prefix, whole))
                    each.names[rest] = name
                    each.score += 1 + (inner[rest] in (None, tensor.shape))
        ranked.append((outer, list(prefixes.values())))
    return max(ranked, key=lambda pair: max((each.score for each in pair[1]), default=0))  # the first of equals


def _common(names: Sequence[str]) -> Iterator[str]:
    """Yield '' and the prefixes that all names have, without those that leave no more than `weight` of a name."""
    prefix = ""
    while True:
        yield prefix
        following = {name.removeprefix(prefix).partition(".")[0] for name in names}
        if len(following) != 1 or any(name.removeprefix(prefix).count(".") < 2 for name in names):
            return
        prefix += f"{following.pop()}."


def _splits(name: str, short: str) -> Iterator[tuple[str, str, str]]:
    """Yield (prefix, rest, prefix as it stands) of a name at each of its points; first, with no prefix."""
    parts = name.split(".")
    if len(parts) > _MOST_PARTS or len(name) > _LONGEST:
        yield "", short, ""
        return
    positions = [at for at, part in enumerate(parts) if part not in _WRAPPERS or at == len(parts) - 1 or short == name]
    for place, at in enumerate(positions):
        before, rest = (".".join(parts[i] for i in some) for some in (positions[:place], positions[place:]))
        whole = ".".join(parts[:at])
        yield before and f"{before}.", rest, whole and f"{whole}."


def _decided(path: Path, held: Held, near: Sequence[_Prefix]) -> tuple[_Prefix, list[_Prefix], list[str]]:
    """Return the set that a rule takes of these; those that are the same, its student, or an average; and notes."""
    averaged = [each for each in near if _AVERAGED.search(each.whole)]
    pairs = [(t, s) for t in near for s in near if t is not s and _is_pair(t, s, held.tensors)]
    students = [student for _, student in pairs]
    if held.use_ema:
        pool = averaged or [teacher for teacher, _ in pairs]
        if not pool:
            raise _no_average(path, held)
    else:
        pool = [each for each in near if each not in students]
    best = max(each.score for each in pool)
    tied = [each for each in pool if each.score == best]
    if not held.use_ema:
        tied = [each for each in tied if each not in averaged] or tied
    distinct = list[_Prefix]()  # without copies; those with the shortest prefixes first
    for each in sorted(tied, key=lambda one: one.prefix.count(".")):
        if not any(_same(each, other, held.tensors) for other in distinct):
            distinct.append(each)
    chosen = distinct[0]
    if len(distinct) > 1:
        listed = ", ".join(repr(each.label or "the file itself") for each in distinct[:5])
        raise CheckpointError(
            f"{path}: {len(distinct)} sets of weights fit equally: {listed}; save only the intended one, e.g."
            " torch.save(torch.load(FILE)[NAME], 'one.pth')"
        )
    named = [each for each in near if each in averaged or each in students or _same(each, chosen, held.tensors)]
    left = (student.label for teacher, student in pairs if teacher is chosen)
    notes = [f"the teacher is used, not the student; to evaluate {label!r}, save it alone" for label in left]
    if not held.use_ema:
        notes += [_averaged_note(each.label) for each in averaged if each is not chosen]
        lists = [place for place in held.unnamed if _AVERAGED.search(place)]
        notes += [f"averaged weights under {place!r} ignored: a list without names is not supported" for place in lists]
    return chosen, named, notes


def _same(first: _Prefix, second: _Prefix, tensors: Mapping[str, Tensor]) -> bool:
    if first.names.keys() != second.names.keys():
        return False
    pairs = [(tensors[name], tensors[second.names[rest]]) for rest, name in first.names.items()]
    kinds = ([(t.shape, t.dtype, t.layout, t.is_meta) for t in (a, b)] for a, b in pairs)
    plain = all(a == b and a[2:] == (torch.strided, False) for a, b in kinds)
    return plain and all(torch.equal(a, b) for a, b in pairs)


def _is_pair(teacher: _Prefix, student: _Prefix, tensors: Mapping[str, Tensor]) -> bool:
    if re.sub("(?i)teacher", "student", teacher.prefix) != student.prefix or teacher.prefix == student.prefix:
        return False
    ours, theirs = (
        {name.removeprefix(each.whole): tensor.shape for name, tensor in tensors.items() if name.startswith(each.whole)}
        for each in (teacher, student)
    )
    both = ours.keys() & theirs.keys()
    return 2 * len(both) > len(ours) and all(ours[name] == theirs[name] for name in both)


def _no_average(path: Path, held: Held) -> CheckpointError:
    lists = [place for place in held.unnamed if _AVERAGED.search(place)]
    why = f"; {lists[0]!r} is a list without names, which is not supported" if lists else ""
    return CheckpointError(f"{path}: has no EMA weights (such as model_ema or swa_model){why}; leave --use-ema out")


def _taken(place: str, prefix: str) -> list[str]:
    notes = [f"weights taken from {place!r}" + (" (EMA)" if _AVERAGED.search(place) else "")] if place else []
    return [*notes, f"prefix {prefix!r} taken off the names"] if prefix else notes


def _averaged_note(place: str) -> str:
    return f"EMA weights under {place!r} ignored; --use-ema uses them"


def adapters(names: Sequence[str] | Mapping[str, Any]) -> list[str]:
    """Return the names of tensors that an adapter (LoRA and its kin) adds to a network."""
    return [name for name in names if _ADAPTER.fullmatch(name)]


def normalisation_tensors(
    tensors: Mapping[str, Tensor], names: Sequence[str]
) -> tuple[dict[str, list[float]], tuple[str, ...], str]:
    """Return the mean and std of pixels in [0, 1] that tensors hold, their names, and a note; none where two differ."""
    statistics = dict[tuple[str, str], dict[str, list[float]]]()
    for name in names:
        match = _MEAN.fullmatch(name)
        stds = [f"{match[1]}{word}" for word in _STDS if f"{match[1]}{word}" in tensors] if match else []
        pair = [tensors[each] for each in (name, *stds[:1])]
        plain = all(t.layout == torch.strided and not (t.is_meta or t.is_quantized or t.is_complex()) for t in pair)
        if stds and plain and all(t.numel() in (1, 3) for t in pair):
            mean, std = _three(tensors[name]), _three(tensors[stds[0]])
            if max(mean) > 1 and min(std) > 1:  # of pixels in [0, 255]
                mean, std = [value / 255 for value in mean], [value / 255 for value in std]
            statistics[name, stds[0]] = {"mean": mean, "std": std}
    if not statistics:
        return {}, (), ""
    taken, values = tuple(name for pair in statistics for name in pair), list(statistics.values())
    where = " and ".join(next(iter(statistics)))
    if any(each != values[0] for each in values):
        listed = ", ".join(name for name, _ in statistics)
        return {}, taken, f"tensors hold different normalisations ({listed}), so none is used; give --mean and --std"
    texts = [", ".join(f"{value:.4g}" for value in numbers) for numbers in values[0].values()]
    return values[0], taken, f"mean {texts[0]} and std {texts[1]} from the tensors {where}"


def _three(tensor: Tensor) -> list[float]:
    """Return a number per channel, with as few digits as float32 needs."""
    return [float(str(np.float32(value))) for value in tensor.flatten().tolist() * (3 // tensor.numel())]
