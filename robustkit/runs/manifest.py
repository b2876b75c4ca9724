"""run.json as a typed value: its parts, a check that a file has the shape that an audit writes, and digests.

msgspec names neither the value nor the key of a table, nor the type in plain words; so what it refuses is looked up.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import math
import struct
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import msgspec
from msgspec import UNSET, Meta, UnsetType

from ..common.finding import Finding
from ..common.preprocessing import UNPROVEN
from ..errors import RunError, unknown
from ..protocol.card import SampleWords, digest_of_part, samples_of


def fault_of(value: Any, kind: Any, where: str = "") -> str:
    """Return which part of a value has the wrong type, named as precisely as possible, and what was expected."""
    for more, part, its_kind in _parts(value, kind):
        if part is msgspec.NODEFAULT:
            return f"{(where + more).lstrip('.')} is missing; expected {_expected(its_kind)}"
        if not _is(part, its_kind):
            return fault_of(part, its_kind, where + more)
    return malformed_part(where.lstrip("."), value, _expected(kind))


def _parts(value: Any, kind: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield the rest of the path of each named part, the part, and its type; NODEFAULT for one that is missing."""
    bare = _bare(kind)
    inner = get_args(bare)
    if isinstance(value, dict) and _is_part(bare):
        for field in msgspec.structs.fields(bare):
            if field.required or field.encode_name in value:
                yield f".{field.encode_name}", value.get(field.encode_name, msgspec.NODEFAULT), field.type
    elif isinstance(value, list) and get_origin(bare) is tuple and _is_part(inner[0]):
        yield from ((f"[{place}]", part, inner[0]) for place, part in enumerate(value))
    elif isinstance(value, dict) and get_origin(bare) is Mapping and _is_part(_bare(inner[1])):
        yield from ((f"[{key!r}]", part, inner[1]) for key, part in value.items())


def _bare(kind: Any) -> Any:
    return get_args(kind)[0] if get_origin(kind) is Annotated else kind


def _is_part(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def _is(value: Any, kind: Any) -> bool:
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError:
        return False
    return True


def _expected(kind: Any) -> str:
    """Return a type in plain words."""
    notes = get_args(kind)[1:] if get_origin(kind) is Annotated else ()
    return next((note.description for note in notes if isinstance(note, Meta) and note.description), "a table")


def malformed_part(where: str, value: Any, expected: str) -> str:
    """Return in words what is wrong with a part of a value."""
    text = repr(value)
    short = f"{text[:80]}{'…' * (len(text) > 80)}"
    return f"{where} is {short}; expected {expected}"


Format = Literal[2]
"""The form of run.json, records and evidence. A version that changes what they hold, or mean, takes the next number."""
_REMEDY = "restore it, or make the run again"
_LARGEST = sys.float_info.max  # a bound that neither NaN nor an infinity keeps
Count = Annotated[int, Meta(ge=0, lt=1 << 53, description="a whole number from 0 on")]
Number = Annotated[
    Annotated[int, Meta(ge=-(2**63 - 1), le=2**63 - 1)] | Annotated[float, Meta(ge=-_LARGEST, le=_LARGEST)],
    Meta(description="a number"),
]
Text = Annotated[str, Meta(description="a text")]
Flag = Annotated[bool, Meta(description="true or false")]
_Encodable = Meta(pattern=r"\A[^\ud800-\udfff]*\Z", max_length=4096)  # no half of a character, which no file name has
Name = Annotated[str, _Encodable, Meta(description="a text")]
TextOrNone = Annotated[str | None, Meta(description="a text")]
Texts = Annotated[tuple[str, ...], Meta(description="a list of texts")]
TextsOrNone = Annotated[tuple[str, ...] | None, Meta(description="a list of texts")]
Numbers = Annotated[tuple[Number, ...], Meta(min_length=1, description="a list of numbers")]
Table = Annotated[Mapping[str, Any], Meta(description="a table")]
TextTable = Annotated[Mapping[str, str], Meta(description="a table of texts")]


def made_with(versions: Mapping[str, str]) -> dict[str, str]:
    """Return those of robustkit, torch and timm among versions, without what follows a plus: the kind of build."""
    named = ("robustkit", "torch", "timm")
    return {name: str(versions[name])[:40].partition("+")[0] for name in named if name in versions}


ELSEWHERE = "computed elsewhere"
"""What stands for the weights of a checkpoint whose predictions another system made; a flag of its figures."""


class ManifestPart(msgspec.Struct, frozen=True, kw_only=True):
    """A part of run.json. Lists are tuples, since all readers share one value."""

    def to_plain(self) -> dict[str, Any]:
        """Return the same in JSON types, keys in the order of the file."""
        plain: dict[str, Any] = json.loads(json.dumps(msgspec.to_builtins(self)))
        return plain


class PreprocessingEntry(ManifestPart, frozen=True, kw_only=True):
    """How an image becomes the pixels that a checkpoint takes; see `common.preprocessing`."""

    input_size: Annotated[tuple[Count, Count], Meta(description="two whole numbers")]
    mean: Numbers
    std: Numbers
    interpolation: Text
    crop_pct: Number
    crop_mode: Text
    value_range: Numbers | UnsetType = UNSET


ROUNDING = 1e-3
"""How far answers of one network may be apart, as a share of the largest: processors and versions round differently."""


class AnswersEntry(ManifestPart, frozen=True, kw_only=True):
    """What a checkpoint answers to a few samples; see `evaluations.answers`.

    on: what rounds: torch, threads, processor. digest: of all answers and gradients to the bit, None where they differ
    from one call to the next. values: some of the answers, base64 of little-endian float32; empty where a second call
    differs by more than rounding.
    """

    on: Text
    samples: Texts
    digest: TextOrNone
    values: Text

    def gap(self, other: AnswersEntry) -> str:
        """Return in words how the answers to the same samples differ; empty where those are other samples, or where
        only rounding may be between them."""
        if self.samples != other.samples or (self.digest is not None and self.digest == other.digest):
            return ""
        if not (self.values and other.values):
            return "" if self.values == other.values else "as only one of them gives the same answer twice"
        pairs = [*itertools.zip_longest(self._numbers(), other._numbers(), fillvalue=math.nan)]
        largest = max(abs(value) for value in self._numbers())
        gaps = (0.0 if repr(here) == repr(there) else abs(here - there) for here, there in pairs)
        apart = max(math.inf if math.isnan(gap) else gap for gap in gaps)
        rounds_alike = self.on == other.on and None not in (self.digest, other.digest)
        if apart <= ROUNDING * largest and not rounds_alike:
            return ""
        return f"by up to {apart:.3g}, where the largest is {largest:.3g}" if apart else "in bits or gradients alone"

    def _numbers(self) -> Iterator[float]:
        try:
            for (number,) in struct.iter_unpack("<f", base64.b64decode(self.values, validate=True)):
                yield number
        except (ValueError, struct.error):  # of a file that was altered
            yield math.nan


class CheckpointEntry(ManifestPart, frozen=True, kw_only=True):
    """What a checkpoint is; see `models.identity.ModelIdentity`. windows: for segmenters only. heads: for features
    only. preprocessing_source: who said each value of the preprocessing, by `common.preprocessing.SOURCES`.
    trained_attention: the formula of training, where it has other options than `attention`. answers: to a few samples;
    absent where it could not be asked. outputs: what the network returns, where that are no logits. method: of which
    it is a training, where the user says so. label_map: what pools its outputs, by name, SHA-256 and settings."""

    name: Name
    spec: Text
    path: TextOrNone
    sha256: TextOrNone
    arch: Text
    attention: Text
    attention_source: Text
    num_classes: Count
    preprocessing: PreprocessingEntry
    weights: Text
    code_sha256: TextOrNone
    class_names: TextsOrNone
    notes: Texts
    metadata: Table
    windows: Annotated[Mapping[str, Any] | UnsetType | None, Meta(description="a table")] = UNSET
    heads: Annotated[Mapping[str, Any] | UnsetType, Meta(description="a table")] = UNSET
    preprocessing_source: Annotated[Mapping[str, str] | UnsetType, Meta(description="a table of texts")] = UNSET
    trained_attention: Text | UnsetType = UNSET
    answers: AnswersEntry | UnsetType = UNSET
    outputs: Text | UnsetType = UNSET
    method: Name | UnsetType = UNSET
    label_map: Annotated[Mapping[str, Any] | UnsetType, Meta(description="a table")] = UNSET

    @property
    def attention_words(self) -> str:
        words = {"none": "no attention", "other": "attention formula unknown", "unknown": ELSEWHERE}
        return words.get(self.attention, f"{self.attention} attention")

    @property
    def has_own_code(self) -> bool:
        """Whether a function of the user's built it, `FILE.py:FUNCTION`."""
        return ":" in self.arch

    def answers_gap(self, other: CheckpointEntry) -> str:
        """Return in words how the answers of two checkpoints differ; empty where they do not, or where nobody asked."""
        one, two = self.answers, other.answers
        return "" if one is UNSET or two is UNSET else one.gap(two)

    @property
    def is_elsewhere(self) -> bool:
        """Whether its predictions were computed by another system."""
        return self.weights == ELSEWHERE

    @property
    def origin(self) -> Mapping[str, str]:
        """The source of each value of the preprocessing; empty where the run does not say."""
        return {} if self.preprocessing_source is UNSET else self.preprocessing_source

    @property
    def sources(self) -> dict[str, str]:
        """The known source of each part of the set-up; of a mean and a std with two, the one that proves less."""
        named = {name: self.origin.get(name, "") for name in ("mean", "std", "crop_pct", "interpolation")}
        statistics = sorted((named["mean"], named["std"]), key=UNPROVEN.__contains__)
        sources = {"normalisation": statistics[-1], "crop": named["crop_pct"], "interpolation": named["interpolation"]}
        if self.attention not in ("none", "other"):
            sources = {"attention": self.attention_source, **sources}
        sources["text"] = self.origin.get("text", "")
        return {part: source for part, source in sources.items() if source}

    @property
    def assumed(self) -> list[str]:
        """The parts of the set-up that nobody stated for this checkpoint."""
        return [part for part, source in self.sources.items() if source in UNPROVEN]


def same_training(entries: Iterable[CheckpointEntry]) -> str:
    """Return `a and b of METHOD` for two trainings that are one network; empty where there are none."""
    seen: dict[tuple[object, ...], CheckpointEntry] = {}
    for entry in entries:
        if entry.method is not UNSET and entry.sha256:
            other = seen.setdefault((entry.sha256, entry.code_sha256, entry.attention), entry)
            if other is not entry:
                first = other.name if other.method == entry.method else f"{other.name} of {other.method}"
                return f"{first} and {entry.name} of {entry.method}"
    return ""


class CardEntry(ManifestPart, frozen=True, kw_only=True):
    """The protocol card with all its parameters."""

    tag: Text
    name: Text
    version: Count
    task: Text
    digest: Text
    space: Text
    labels: Text
    summary: Text
    source: Text
    caveats: Texts
    parameters: Annotated[Mapping[str, Mapping[str, Any]], Meta(description="a table of tables")]

    @property
    def samples(self) -> SampleWords:
        return samples_of(self.task)


class DataEntry(ManifestPart, frozen=True, kw_only=True):
    """The data set. shards: a digest of the sample ids of each. unjudged: mask labels that do not count. total: samples
    of the data set of which a part was chosen."""

    name: Text
    root: Text
    layout: Text
    n: Count
    classes: Count
    digest: Text
    notes: Texts
    class_names: Texts
    unjudged: Annotated[tuple[Count, ...] | UnsetType, Meta(description="a list of whole numbers")] = UNSET
    shards: Texts
    total: Count | UnsetType = UNSET

    def findings(self, *rooms: str) -> list[Finding]:
        """Return the findings among the notes whose codes begin with one of these."""
        return [finding for note in self.notes if (finding := Finding.parse(note)) and finding.room in rooms]


class Claim(ManifestPart, frozen=True, kw_only=True):
    """The bound that the records of an attack are checked against. eps: in the units of the card's space."""

    norm: Annotated[Literal["linf", "l2"], Meta(description="linf or l2")]
    eps: Number
    early_stop: Flag


class CorruptedEntry(ManifestPart, frozen=True, kw_only=True):
    """What corruptions and maps need besides the data set; see `evaluations.corruptions.plan.CorruptedInputs`."""

    digests: TextTable
    released: Annotated[Mapping[str, Mapping[str, Any]], Meta(description="a table of tables")]
    left_out: TextTable


class Deciding(ManifestPart, frozen=True, kw_only=True):
    """What decides every record of a run, besides its checkpoint and condition."""

    seed: Annotated[int, Meta(description="a whole number")]
    protocol: Text
    data_digest: Text = msgspec.field(name="data digest")
    dtype: Text
    compile: Flag


class PluginEntry(ManifestPart, frozen=True, kw_only=True):
    """A plug-in that the run uses; see `common.plugins.Plugin`. conditions, checkpoints: whose records it decides."""

    group: Text
    name: Text
    distribution: Text
    version: Text
    source: Text
    conditions: Texts = ()
    checkpoints: Texts = ()

    @property
    def identity(self) -> dict[str, str]:
        named = ("group", "name", "distribution", "version", "source")
        return {name: getattr(self, name) for name in named}

    @property
    def words(self) -> str:
        return f"{self.name} of {self.distribution} {self.version}".rstrip() + f" (source {self.source[:12]}…)"


class BadImage(ManifestPart, frozen=True, kw_only=True):
    """A sample that could not be read, and why."""

    sample_id: Text
    error: Text


class Manifest(ManifestPart, frozen=True, kw_only=True):
    """The contents of run.json, of the last command; records name their own. claims: by the text of an attack's
    condition. evidence: conditions whose results need it to be trusted. pictures: ids of the samples whose images are
    kept. parts: how many the units were divided into (`--part`), if they were. sequential: true where the samples were
    looked at while they came (`--until-decided`), so that their number depends on what they show; else absent.
    unsuited: by the name of a checkpoint, the conditions that cannot be evaluated on it. parity: the name of the
    checkpoint that the others were made from (`--parity`)."""

    format: Annotated[Format, Meta(description="the number of a format")]
    robustkit: Text
    command: Text
    started: Text
    arguments: Table
    seed: Annotated[int, Meta(description="a whole number")]
    protocol: CardEntry
    conditions: Annotated[tuple[Annotated[Name, Meta(min_length=1)], ...], Meta(description="a list of texts")]
    claims: Annotated[
        Mapping[str, Annotated[Claim, Meta(description="a table of norm and eps")]], Meta(description="a table")
    ]
    checkpoints: Annotated[
        tuple[CheckpointEntry, ...], Meta(min_length=1, description="a list of tables, one at least")
    ]
    data: DataEntry
    corrupted: CorruptedEntry
    keep_misclassified: Flag
    shard_size: Annotated[int, Meta(ge=1, lt=1 << 53, description="a whole number from 1 on")]
    batch_size: Count
    device: Text
    versions: TextTable
    deciding: Deciding
    bad_images: Annotated[tuple[BadImage, ...], Meta(description="a list of tables")]
    pictures: Texts
    evidence: Texts
    plugins: Annotated[tuple[PluginEntry, ...] | UnsetType, Meta(description="a list of tables")] = UNSET
    parts: Annotated[int, Meta(ge=1, lt=1 << 31, description="a whole number from 1 on")] | UnsetType = UNSET
    sequential: Flag | UnsetType = UNSET
    unsuited: Annotated[Mapping[str, Texts] | UnsetType, Meta(description="a table of lists of texts")] = UNSET
    parity: Name | UnsetType = UNSET

    def conditions_of(self, name: str) -> tuple[str, ...]:
        """Return the conditions that a checkpoint is evaluated under."""
        unsuited = () if self.unsuited is UNSET else self.unsuited.get(name, ())
        return tuple(text for text in self.conditions if text not in unsuited)

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """Each checkpoint's name with each of its conditions."""
        return [(name, text) for name in self.names for text in self.conditions_of(name)]

    @property
    def names(self) -> list[str]:
        return [checkpoint.name for checkpoint in self.checkpoints]

    @property
    def methods(self) -> dict[str, list[str]]:
        """The names of checkpoints by the method that they are trainings of; empty where nobody says."""
        methods: dict[str, list[str]] = {}
        for entry in self.checkpoints:
            if entry.method is not UNSET:
                methods.setdefault(entry.method, []).append(entry.name)
        return methods

    @property
    def used_plugins(self) -> tuple[PluginEntry, ...]:
        return () if self.plugins is UNSET else self.plugins

    @property
    def made_with(self) -> dict[str, str]:
        """The versions that decide figures, by name, of the last command."""
        return made_with({"robustkit": self.robustkit, **self.versions})

    @property
    def is_sequential(self) -> bool:
        """Whether what the samples show may have ended the run before its last one."""
        return self.sequential is True

    @property
    def keeps_adversarials(self) -> bool:
        """Whether adversarial images stay in the run, because they were asked for once."""
        return self.arguments.get("keep_adversarials") is True

    def plugins_of(self, checkpoint: str, condition: str) -> list[PluginEntry]:
        return [
            plugin for plugin in self.used_plugins if condition in plugin.conditions or checkpoint in plugin.checkpoints
        ]

    def card_digest(self, condition: str, other: Manifest | None = None) -> str:
        """Return the digest of what a condition uses of the card; of the whole card where a plug-in, here or in
        `other`, may read it.
        """
        plugins = (*self.used_plugins, *(other.used_plugins if other else ()))
        reading = (plugin for plugin in plugins if plugin.group in ("families", "tasks"))
        whole = any(condition in plugin.conditions or plugin.checkpoints for plugin in reading)
        return digest_of_part(self.protocol, condition, whole)

    def norm(self, condition: str) -> str:
        """Return the norm that an attack claims; linf where it claims none."""
        claim = self.claims.get(condition)
        return "linf" if claim is None else claim.norm

    def checkpoint(self, name: str) -> CheckpointEntry:
        """Return the checkpoint of this name. Raises RunError where there is none."""
        for checkpoint in self.checkpoints:
            if checkpoint.name == name:
                return checkpoint
        raise RunError(unknown("checkpoint", name, self.names))


def digest_of(value: Any) -> str:
    """Return the SHA-256 (hex) of a value of JSON types, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def digest_of_ids(ids: Sequence[str]) -> str:
    """Return 16 hex digits for sample ids in their order."""
    texts = [name.encode("utf-8", "surrogatepass") for name in ids]
    lengths = ",".join(str(len(text)) for text in texts)  # so that no two lists are joined alike
    return hashlib.sha256(lengths.encode() + b"\0" + b"".join(texts)).hexdigest()[:16]


def digests_of_shards(ids: Sequence[str], size: int) -> list[str]:
    """Return `digest_of_ids` of each shard of `size` samples, whose rows are in the order of their ids."""
    return [digest_of_ids(sorted(ids[start : start + size])) for start in range(0, len(ids), size)]


def digest_of_pages(data: bytes) -> str:
    """Return the SHA-256 (hex) of a Parquet file up to its footer."""
    end = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    return hashlib.sha256(memoryview(data)[: max(end, 0)]).hexdigest()


def encode_manifest(plain: Mapping[str, Any]) -> bytes:
    """Return the bytes of run.json for its contents, in JSON types, with a digest of them."""
    held = {key: value for key, value in plain.items() if key != "digest"}
    return (json.dumps(held | {"digest": digest_of(held)}, indent=2, ensure_ascii=False) + "\n").encode()


def manifest_of(data: Any, path: Path) -> Manifest:
    """Return what a run.json holds. data: its JSON. Raises RunError where no audit wrote it so, or it was altered."""
    if not isinstance(data, dict):
        raise RunError(f"{path}: not a whole run.json; restore it or use another --out")
    if type(number := data.get("format")) is not int or number not in get_args(Format):
        made = f"format {str(number)[:20]}" if number is not None else "no format"
        raise RunError(
            f"{path}: names {made}, and this version of RobustKit reads and continues format 2 "
            f"alone; use the version that made it ({str(data.get('robustkit'))[:40]}), or make the run again with "
            "another --out"
        )
    try:
        manifest = msgspec.convert(data, Manifest)
    except msgspec.ValidationError:
        raise RunError(f"{path}: {fault_of(data, Manifest)}; {_REMEDY}") from None
    if doubled := next((name for name in manifest.names if manifest.names.count(name) > 1), None):
        raise RunError(f"{path}: {malformed_part('checkpoints', doubled, 'names that differ')}; {_REMEDY}")
    digest = data.get("digest")
    if digest != digest_of({key: value for key, value in data.items() if key != "digest"}):
        why = (
            "was modified after it was written"
            if digest
            else "has no digest: it was written by an earlier version or by hand"
        )
        raise RunError(f"{path}: {why}; {_REMEDY} with another --out")
    return manifest
