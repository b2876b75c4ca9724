"""Where a model's spec points: a file, or an index of several, with what lies next to it; other readers of weights."""

from __future__ import annotations

import csv
import hashlib
import json
import re
import shlex
import threading
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import wraps
from glob import glob, has_magic
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

from ..attention.registry import EVERY_FORMULA
from ..common.files import first_line, json_of, reason_of, text_of
from ..common.names import canonical
from ..common.plugins import Registry, built_in, instance_of
from ..errors import CheckpointError, ModelError, ProtocolError, unknown
from ..protocol.condition import split_list
from .transformers_config import MOST, PROCESSORS, is_theirs

INDEX = "model.safetensors.index.json"
_LARGEST = 64 << 20  # bytes of an index
_SHARD = re.compile(r"(.+)-(\d{3,6})-of-(\d{3,6})(\.(?:safetensors|bin|pt|pth))")
_AS_ONE = "load the whole model in its library, and save it as one file"
_DISTRIBUTED = "python -m torch.distributed.checkpoint.format_utils dcp_to_torch"


def is_index(path: Path) -> bool:
    return path.name.endswith(".index.json")


def index_in(folder: Path) -> Path | None:
    """Return the index of the weights in a folder; of safetensors, where there are others, too. CheckpointError for
    several."""
    if (folder / INDEX).is_file():
        return folder / INDEX
    indexes = sorted(folder.glob("*.safetensors.index.json")) or sorted(folder.glob("*.index.json"))
    if len(indexes) > 1:
        names = ", ".join(each.name for each in indexes[:5])
        raise CheckpointError(f"{folder}: {len(indexes)} indexes of weights ({names}); give the path of one")
    return indexes[0] if indexes else None


def places_of(index: Path) -> Mapping[str, str]:
    """Return the file name of each tensor. CheckpointError for what is not an index, or names files elsewhere."""
    try:
        content = json_of(index, _LARGEST)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{index}: not JSON ({reason_of(error)}); expected an index of weights") from error
    places = content.get("weight_map") if isinstance(content, Mapping) else None
    if not isinstance(places, Mapping) or not places:
        raise CheckpointError(f"{index}: has no weight_map; expected the file of each tensor")
    for name in map(str, places.values()):
        if Path(name).name != name or len(name) > 200 or not name.isprintable() or not name.endswith(".safetensors"):
            remedy = f"; {_AS_ONE}" if name.endswith((".bin", ".pt", ".pth")) else ""
            expected = f"expected .safetensors files next to it{remedy}"
            raise CheckpointError(f"{index}: names the file {name[:80]!r}; {expected}")
    return places


def shards_of(index: Path) -> list[Path]:
    """Return the files that an index names, in the order of their names."""
    return [index.parent / name for name in sorted({str(name) for name in places_of(index).values()})]


def digest_of_shards(digests: Iterable[tuple[str, str]]) -> str:
    """Return the digest of weights in several files. digests: names of the files, each with its SHA-256 (hex)."""
    return hashlib.sha256("".join(f"{digest} {name}\n" for name, digest in digests).encode()).hexdigest()


def refuse_part(path: Path) -> None:
    """Raise CheckpointError for a file or a folder that holds a part of weights, or parts in a form of their own."""
    is_part = path.suffix == ".distcp" or path.name == ".metadata"
    folder = path.parent if is_part else path
    whole = next((each.parent for each in (*folder.glob(".metadata"), *folder.glob("*/.metadata"))), folder)
    if next(whole.glob("*.distcp"), None) and (is_part or (whole / ".metadata").is_file()):
        what = "a distributed checkpoint of torch"
        if not (whole / ".metadata").is_file():
            raise CheckpointError(f"{path}: a part of {what}, whose .metadata is missing; fetch all of its folder")
        raise CheckpointError(
            f"{whole}: {what}; convert it to one file: {_DISTRIBUTED} {shlex.quote(str(whole))} weights.pth"
        )
    if path.is_dir() and index_in(path) is None:
        path = next((each for each in sorted(path.glob("*-of-*")) if _SHARD.fullmatch(each.name)), path)
    shard = _SHARD.fullmatch(path.name)
    if shard is None or int(shard[3]) < 2 or not path.is_file():
        return
    what = f"{path}: part {int(shard[2])} of {int(shard[3])} of some weights"
    index = path.parent / f"{shard[1]}.safetensors.index.json"
    if shard[4] != ".safetensors":
        raise CheckpointError(f"{what}; {_AS_ONE}")
    lacks = "" if index.is_file() else ", which is missing here"
    raise CheckpointError(f"{what}; give their index, {index}{lacks}")


ANSWER, WAIT = 4.0, 5.0
"""Seconds: that a server has for each step of its answer, and for all of it, since looking up a name has no limit."""
REMEDY = (
    "give a local file with --arch {arch}, or download the weights once on a machine with network access: files in "
    "the folder HF_HUB_CACHE are used offline"
)


def hub_address() -> str:
    """Return the address of the Hub that is asked; empty where HF_HUB_OFFLINE forbids it."""
    from huggingface_hub import constants

    return "" if constants.HF_HUB_OFFLINE else str(constants.ENDPOINT)


def is_reachable(address: str) -> bool:
    """Whether a server gives any answer at all, within `WAIT` seconds, by the proxies that the environment names."""
    heard = list[bool]()
    asking = threading.Thread(target=lambda: heard.append(_asked(address)), daemon=True)
    asking.start()
    asking.join(WAIT)
    return bool(heard and heard[0])


def _asked(address: str) -> bool:
    try:
        request = urllib.request.Request(address, method="HEAD")
        with urllib.request.build_opener().open(request, timeout=ANSWER):  # urlopen would keep the first proxies it saw
            return True
    except urllib.error.HTTPError:
        return True
    except Exception as fault:  # a proxy may say anything
        return "CERTIFICATE_VERIFY_FAILED" in str(fault)  # the Hub's client brings other certificates


_KINDS = ("hf", "hf-hub", "local-dir", "timm", "zoo")
_FORMS = ("a file", "zoo:NAME", "timm:NAME", "hf:DIR", "hf-hub:ORG/NAME", "local-dir:PATH")
OPEN_CLIP = "open_clip_config.json"  # in the layout of open_clip, and next to config.json in many folders
TEXT_FILES = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json"),
    *("merges.txt", "spiece.model", "tokenizer.model", "vocab.txt"),
)
WEIGHT_FILES = ("model.safetensors", "pytorch_model.bin")


def text_files(folder: Path) -> list[Path]:
    """Return the files of a folder that decide what its text tower reads: configs and tokenizer."""
    names = ("config.json", OPEN_CLIP, *TEXT_FILES)
    return [file for name in names if (file := folder / name).is_file()]


@dataclass(frozen=True)
class ModelFile:
    """The weights, or the folder of a checkpoint of transformers, or what a reader loads. metadata: timm's config.json
    next to the weights. reader: its name in `EVERY_READER`; empty where none is needed."""

    path: Path
    name: str
    metadata: dict[str, Any] = field(default_factory=dict)
    transformers: bool = False
    reader: str = ""


@dataclass(frozen=True)
class CheckpointReader:
    """What opens checkpoints that are not weights of a network: exported graphs, folders in the layout of a library.

    A user gives the checkpoint as NAME:FILE, by the name of the entry point, or as a folder. What is heavy is imported
    inside of `load`, so that a reader is asked whose a checkpoint is at no cost.
    """

    load: Callable[..., Any]
    """Called with a `ModelFile`, the spec, `InputOptions` and whether features are asked for; returns a `Classifier`,
    or raises ModelError or CheckpointError."""
    files: tuple[str, ...] = ()
    """Of its folders, the first of which marks one that has no config.json; all are fetched from the Hub. Without any,
    the checkpoint is NAME:FILE."""
    options: frozenset[str] = frozenset()
    """What NAME:FILE takes of `output` and `custom_ops`, which are refused for other checkpoints."""


EVERY_READER: Registry[CheckpointReader] = Registry(
    "readers", built_in("readers"), instance_of(CheckpointReader), reserved=(*_KINDS, "predictions"), same_name=False
)
"""The readers of slices and of plug-ins, by name."""


def reader_options(spec: str) -> frozenset[str] | None:
    """Return the options of the reader that a spec names, as NAME:FILE does; None where it names none."""
    kind = spec.partition(":")[0]
    return None if kind == spec or kind not in EVERY_READER or EVERY_READER[kind].files else EVERY_READER[kind].options


def reader_specs(option: str = "") -> list[str]:
    """Return what readers are given, `onnx:FILE`. option: only of those that take it."""
    readers = ((name, reader) for name, reader in EVERY_READER.usable() if not reader.files)
    return [f"{name}:FILE" for name, reader in readers if not option or option in reader.options]


def reader_in(folder: Path) -> str:
    """Return the name of the reader that a folder without config.json is of; empty where nothing marks it."""
    if (folder / "config.json").is_file():
        return ""
    marks = ((name, folder / reader.files[0]) for name, reader in EVERY_READER.usable() if reader.files)
    return next((name for name, mark in marks if mark.is_file()), "")


def split_formula(spec: str) -> tuple[str, str | None]:
    """Return a spec and the attention formula that it names, as `vit.pth@quest` does; None where it names none. What is
    behind the only @ of `hf-hub:ORG/NAME@REVISION` is a revision."""
    bare, at, formula = spec.rpartition("@")
    if not at or Path(spec).exists() or (spec.startswith("hf-hub:") and "@" not in bare):
        return spec, None
    is_formula = canonical(formula.partition("(")[0], EVERY_FORMULA) in EVERY_FORMULA
    has_none = bare.startswith(("zoo:", "timm:"))  # an @ of its own
    return (bare, formula) if is_formula or has_none or Path(bare).exists() else (spec, None)


L = TypeVar("L", bound=Callable[..., Any])


def takes_formula(load: L) -> L:
    """Let a loader take `SPEC@FORMULA`, which outweighs its argument `attention`."""

    @wraps(load)
    def loaded(spec: Any, **options: Any) -> Any:
        bare, formula = split_formula(str(spec)) if isinstance(spec, str | Path) else (spec, None)
        if formula is None:
            return load(spec, **options)
        network = load(bare, **{**options, "attention": formula})
        network.identity = replace(network.identity, spec=str(spec))
        return network

    return cast(L, loaded)


class Trainings(NamedTuple):
    """Specs, and by the text of a spec the method that it is a training of."""

    specs: list[str | Path]
    methods: dict[str, str]

    def words(self) -> list[str]:
        """Return the value of each `--method`."""
        of = {name: [spec for spec, its in self.methods.items() if its == name] for name in self.methods.values()}
        return [f"{name}={','.join(specs)}" for name, specs in of.items()]


def read_trainings(asked: str | Iterable[str] | Mapping[str, Iterable[Any]], specs: Sequence[str | Path]) -> Trainings:
    """Return specs with those of methods added. asked: specs by method; texts such as `quest=trained/q*.pth@quest`,
    whose patterns name specs or files; or a CSV with the columns checkpoint, method and, if needed, attention. Raises
    ProtocolError for what means nothing, a checkpoint of two methods, and one training next to several."""
    every, texts, methods = [*specs], [*map(str, specs)], dict[str, str]()
    if isinstance(asked, Mapping):
        pairs = [(name, str(spec)) for name, several in asked.items() for spec in several]
        if malformed := [name for name, some in asked.items() if not (isinstance(name, str) and name.strip() and some)]:
            raise ProtocolError(f"method {malformed[0]!r}: expected a name, and one checkpoint or more")
    else:
        pairs = [pair for text in ([asked] if isinstance(asked, str) else asked) for pair in _trainings(text, texts)]
    for (name, spec), count in Counter(pairs).items():
        if count > 1:
            of = f" for {name}" if name else ""
            raise ProtocolError(f"{spec} is given twice{of}, but is one training; leave one out")
        if "=" in name or "," in re.sub(r"\(.*?\)", "", spec):
            raise ProtocolError(f"method {name} with {spec}: expected a name without =, and files without a comma")
        every += [] if spec in texts else [spec]
        if name and methods.setdefault(spec, name) != name:
            raise ProtocolError(f"{spec} is of {methods[spec]} and of {name}; expected one method")
    if methods and (rest := [text for text in map(str, every) if text not in methods]):
        raise ProtocolError(f"{rest[0]} is of no method; name its method, too, or leave it out")
    counts = Counter(methods.values())
    if 1 in counts.values() and max(counts.values()) > 1:
        (one, _), (many, count) = counts.most_common()[-1], counts.most_common(1)[0]
        why = f"how much trainings of {one} differ is unknown; give two or more of each"
        raise ProtocolError(f"{one} has one training and {many} {count}: {why}")
    if not every:
        raise ProtocolError("no checkpoint; expected one or more, or --method NAME=CHECKPOINTS")
    return Trainings(every, methods)


def _trainings(text: str, specs: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield method and spec; an empty method for a checkpoint of none."""
    name, equals, patterns = text.partition("=")
    if not equals and text.lower().endswith(".csv"):
        yield from _of_table(Path(text))
        return
    if not (equals and name.strip() and patterns.strip(" ,")):
        raise ProtocolError(f"--method {text}: expected NAME=CHECKPOINTS, such as quest=trained/q*.pth, or a CSV")
    seen = set[str]()
    for pattern in filter(None, map(str.strip, split_list(patterns))):
        bare, formula = split_formula(pattern)
        is_pattern = has_magic(bare) and not Path(bare).exists()
        fitting = [spec for spec in specs if spec == pattern or fnmatchcase(spec, pattern)]
        behind = "" if formula is None else f"@{formula}"
        files = [f"{file}{behind}" for file in sorted(glob(bare))] if is_pattern else []  # noqa: PTH207 - any path
        if is_pattern and not (fitting or files):
            raise ProtocolError(f"--method {text}: {pattern} fits no file and no CHECKPOINT; check it")
        chosen = [spec for spec in dict.fromkeys((*fitting, *files)) if spec not in seen] if is_pattern else [pattern]
        seen.update(chosen)
        yield from ((name.strip(), spec) for spec in chosen)


def _of_table(table: Path) -> Iterator[tuple[str, str]]:
    try:
        rows = [*csv.DictReader(text_of(table, _LARGEST).splitlines())]
    except (OSError, ValueError, csv.Error) as error:
        raise ProtocolError(f"--method {table}: no CSV that can be read ({reason_of(error)})") from None
    columns = [*(rows[0] if rows else ())]
    if not {"checkpoint", "method"} <= {*columns} <= {"checkpoint", "method", "attention"}:
        expected = "expected checkpoint and method, and attention if needed"
        raise ProtocolError(
            f"--method {table}: its columns are {', '.join(map(str, columns)) or 'missing'}; {expected}"
        )
    for row in rows:
        spec, method, formula = ((row.get(name) or "").strip() for name in ("checkpoint", "method", "attention"))
        beside = table.parent / spec
        spec = str(beside) if spec and beside.exists() else spec
        if not spec:
            raise ProtocolError(f"--method {table}: a row has no checkpoint; expected one in each")
        revision = "@main" * (spec.startswith("hf-hub:") and "@" not in spec)
        yield method, f"{spec}{revision}@{formula}" if formula else spec


def find(spec: str) -> ModelFile:
    kind, _, rest = spec.partition(":")
    if kind == "zoo":
        return ModelFile(embedded_file(rest), rest)
    if kind in ("local-dir", "hf"):
        return _folder(Path(rest), Path(rest).resolve().name)
    if kind == "hf-hub":
        return _from_hub(rest)
    if reader_options(spec) is not None:
        return ModelFile(Path(rest), Path(rest).stem, reader=kind)
    path = Path(spec)
    if not spec:
        raise CheckpointError(f"the name of a checkpoint is empty; {_expected()}")
    if len(kind) > 1 and kind.replace("-", "").isalnum() and kind != spec and not path.exists():
        remedy = "fetch it to a file first" if rest.startswith("//") else _expected()
        kinds = sorted((*_KINDS, *(each.partition(":")[0] for each in reader_specs())))
        raise CheckpointError(f"{spec}: no such file, and {unknown('kind of checkpoint', kind, kinds, remedy=remedy)}")
    if path.is_dir() and (path / "config.json").is_file() and _folder(path, path.name).transformers:
        raise CheckpointError(f"{spec}: a folder in the layout of transformers; expected a file, or hf:{spec}")
    if not path.exists() and (meant := _named_elsewhere(spec)):
        raise CheckpointError(f"{spec}: no such file; did you mean {meant}?")
    if path.is_dir():
        path = index_in(path) or path
    return ModelFile(path, path.absolute().parent.name if is_index(path) else path.stem)


def _expected() -> str:
    *names, last = (*_FORMS, *reader_specs())
    return f"expected {', '.join(names)} or {last}"


def _named_elsewhere(spec: str) -> str:
    """Return the spec of a shipped checkpoint, or of a network of timm, that a bare name stands for; empty for none."""
    import timm

    for kind, names in (("zoo", embedded(None)), ("timm", (*timm.list_models(), *timm.list_pretrained()))):
        if (name := canonical(spec, names)) in names:
            return f"{kind}:{name}"
    return ""


def embedded(task: str | None = "classification") -> tuple[str, ...]:
    """Return the names of the checkpoints for a task that ship with the package; of all tasks for None."""
    tasks = {name: entry.get("task", "classification") for name, entry in _shipped().items()}
    also = "zero-shot" if task == "classification" else ""
    return tuple(name for name, kind in tasks.items() if task in (None, kind) or kind == also)


def embedded_file(name: str) -> Path:
    """Return the file of a shipped checkpoint, checked against the digest in checkpoints.json."""
    shipped = _shipped()
    if name not in shipped:
        raise ModelError(unknown("zoo model", name, shipped))
    entry = shipped[name]
    path: Path = _zoo() / entry["file"]
    if not path.is_file():
        raise CheckpointError(f"zoo:{name}: {path} is missing; install RobustKit again from its source")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    if digest != entry["sha256"]:
        other = f"{path} has sha256 {digest[:12]}…, expected {entry['sha256'][:12]}…"
        why = "it is not the checkpoint that was shipped; install RobustKit again from its source"
        raise CheckpointError(f"zoo:{name}: {other}: {why}")
    return path


def _shipped() -> dict[str, dict[str, Any]]:
    listing: dict[str, dict[str, Any]] = json.loads((_zoo() / "checkpoints.json").read_text(encoding="utf-8"))
    return listing


def _zoo() -> Path:
    return Path(str(resources.files("robustkit"))) / "embedded"


def _folder(folder: Path, name: str) -> ModelFile:
    config = folder / "config.json"
    if (folder / "adapter_config.json").is_file():
        remedy = "merge it first: model.merge_and_unload(), then model.save_pretrained(FOLDER)"
        raise CheckpointError(f"{folder}: an adapter of PEFT, not the weights of a network; {remedy}")
    if reader := reader_in(folder):
        return ModelFile(folder, name, reader=reader)
    if not config.is_file():
        refuse_part(folder)
        expected = "the layout of timm or transformers, config.json and model.safetensors"
        raise CheckpointError(f"{folder}: no config.json in it; expected {expected}")
    try:
        content = json_of(config, MOST)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{config}: not JSON ({reason_of(error)}); expected a config.json") from error
    if is_theirs(content):
        return ModelFile(folder, name, transformers=True)
    weights = next((folder / file for file in (*WEIGHT_FILES, INDEX) if (folder / file).is_file()), None)
    if weights is None:
        raise CheckpointError(f"{folder}: no weights next to config.json; expected {' or '.join(WEIGHT_FILES)}")
    if not isinstance(content, dict) or not isinstance(content.get("architecture"), str):
        what = "names no architecture of timm and no model_type of transformers"
        raise CheckpointError(f"{config}: {what}; expected one of the two, or give the weights' path")
    return ModelFile(weights, name, _metadata(content))


def _metadata(config: dict[str, Any]) -> dict[str, Any]:
    """Translate timm's config.json into the names of our own metadata; old ones have everything at the top."""
    inner = config.get("pretrained_cfg")
    merged = {**config, **(inner if isinstance(inner, dict) else {})}
    names = {"architecture": "arch", "model_args": "arch_kwargs", "label_names": "class_names"}
    keys = ("num_classes", "mean", "std", "interpolation", "crop_pct", "crop_mode", "attention")
    metadata = {names.get(key, key): value for key, value in merged.items() if key in (*names, *keys)}
    if isinstance(config.get("num_classes"), int):
        metadata["num_classes"] = config["num_classes"]
    size = merged.get("input_size")
    if isinstance(size, list):
        metadata["input_size"] = size[-2:]
    return {key: value for key, value in metadata.items() if value is not None}


def _from_hub(name: str) -> ModelFile:
    from huggingface_hub import snapshot_download

    repository, _, revision = name.partition("@")
    silent = bool(address := hub_address()) and not is_reachable(address)
    files = ["config.json", *PROCESSORS, *WEIGHT_FILES, "model*.safetensors", "model.safetensors.index.json"]
    files += [*TEXT_FILES, OPEN_CLIP, *(file for _, reader in EVERY_READER.usable() for file in reader.files)]
    options: dict[str, Any] = {"revision": revision or None, "allow_patterns": files, "local_files_only": silent}
    try:
        folder = snapshot_download(repository, **options)
    except Exception as error:  # network, name and rights each raise another class
        why = f"{address} does not respond" if silent else first_line(error)
        remedy = f"check the name and the network; {REMEDY.format(arch='NAME')}"
        raise ModelError(f"hf-hub:{name} could not be fetched ({why}); {remedy}") from error
    return _folder(Path(folder), repository.rsplit("/", 1)[-1])
