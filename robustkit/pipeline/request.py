"""What a run is asked for: a dataclass for each task, whose fields say what the command line and Python need to know.

Options of commands (`cli.options`), signatures (`pipeline.audit`, `keywords.pyi`) and the reference are made from them.
`--help` loads this module, so torch is imported only where a request is carried out.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, dataclass
from functools import cached_property
from numbers import Number
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from ..common.environment import check_date, usual_workers
from ..common.names import IN_MEMORY, norm_name, nothing
from ..common.options import (
    Option,
    check_paths,
    option,
    option_group,
    options_of,
    read_channels,
    read_labels,
    read_output,
    read_place,
    read_places,
    read_range,
    read_several,
    read_sides,
    text_of_value,
)
from ..common.plugins import built_in, plugin_files
from ..errors import ProtocolError, unknown
from ..protocol.card import presets_of
from ..runs.description import without_option
from .processes import is_follower

if TYPE_CHECKING:
    from ..evaluations.parts import RunPart
    from ..evaluations.subject import Settings
    from ..models.specs import Trainings
    from ..protocol.card import Card
    from ..protocol.condition import Condition

_CONSTANTS = ("auto", "imagenet", "cifar")


@dataclass(frozen=True)
class Preset:
    """An amount of work by its name, and the options that stand for it."""

    name: str
    options: Mapping[str, str | int]

    def only(self, names: Iterable[str]) -> Preset:
        return Preset(self.name, {name: self.options[name] for name in names if name in self.options})

    def words(self) -> Iterator[str]:
        for name, value in self.options.items():
            yield from (f"--{name.replace('_', '-')}", str(value))


def preset_of(task: str, name: str) -> Preset:
    """Return a preset by its name. Raises ProtocolError for an unknown one."""
    presets = presets_of(task)
    if name in presets:
        return Preset(name, presets[name])
    if name in _CONSTANTS:
        why = f"preset {name!r}: the constants of corruptions are chosen by --constants {name}"
        raise ProtocolError(f"{why}; a preset is an amount of work: {', '.join(presets) or 'none for this task'}")
    raise ProtocolError(unknown("preset", name, presets))


def spelled_out(words: Sequence[str], preset: Preset) -> list[str]:
    """Return the words of a command with the options that a preset stands for in place of its name."""
    rest = without_option(words, "--preset")
    end = rest.index("--") if "--" in rest else len(rest)
    return [*rest[:end], *preset.words(), *rest[end:]]


# The options of models and data sets, which are entries of one field


@dataclass(frozen=True, kw_only=True)
class NetworkOptions:
    """What the loaders of networks take."""

    own_before: ClassVar[str] = "use_ema"

    arch: str | None = option("Model", "timm name, or code: module:function, file.py:function; inferred for ViTs.")
    attention: str | None = option("Model", "Attention formula (robustkit list attentions); default: from metadata.")
    num_classes: int | None = option("Model", "Number of classes of the head.")
    mean: str | None = option("Model", "Channel means in [0, 1]: one, or one a channel.", read=read_channels)
    std: str | None = option("Model", "Channel standard deviations, in the same form.", read=read_channels)
    use_ema: bool = option("Model", "Use the EMA weights if the file has them.", False)
    allow_partial: bool = option("Model", "Load despite missing or unexpected tensors.", False)
    output: int | str | None = option(
        "Model",
        "Which tensor of the network's or the graph's output the logits are: its place or name.",
        flag="--logits",
        read=read_output,
    )


@dataclass(frozen=True, kw_only=True)
class ClassifierOptions(NetworkOptions):
    """What `robustkit.load` takes."""

    pixels: bool = option("Model", "The network normalises its own input: it takes pixels in [0, 1].", False)
    interpolation: str | None = option("Model", "bicubic, bilinear, nearest, lanczos, box or hamming.")
    value_range: str | None = option("Model", "What 0 and 1 stand for in image files, as 0,10000.", read=read_range)
    crop_pct: float | None = option("Model", "Image size over resized size, as in timm.")
    crop_mode: str | None = option("Model", "center, center-floor, squash or border.")
    img_size: int | None = option("Model", "Size of the input; positional embeddings are resampled to it.")
    classes: str | None = option(
        "Model",
        "Classes of a zero-shot model (CLIP, SigLIP): a file with a name per line, imagenet, imagenet-openai or "
        "cifar10.",
    )
    prompts: str | None = option("Model", "Its templates, {} for the class: a file, simple (default) or clip-80.")
    text: str | None = option(
        "Model", "Form of its sentences: written, or canonical: in lower case, without punctuation, as for SigLIP."
    )
    label_map: str | None = option("Model", "Pool outputs into fewer classes: TOML, objectnet, cue-conflict, laion-c.")
    custom_ops: str | Path | None = option(
        "Model", "Native code to run: a library with the custom operators of an ONNX file.", type=Path
    )


@dataclass(frozen=True, kw_only=True)
class SegmenterOptions(NetworkOptions):
    """What `robustkit.load_segmenter` takes."""

    arch: str | None = option(
        "Model", "timm name of a Segmenter's encoder, or code to run: module:function, file.py:function."
    )
    num_classes: int | None = option("Model", "Number of classes of the output.")
    pixels: bool = option("Model", "The network normalises its own input: it takes pixels in [0, 1].", False)
    window: str | None = option("Model", "Side, or HEIGHTxWIDTH, of the windows the network sees.", read=read_sides)
    stride: str | None = option("Model", "Step from one window to the next, in the same form.", read=read_sides)
    short_side: int | None = option("Model", "Resize images to this short side before windows are cut.")
    resize: str | None = option("Model", "ade20k: resize images as the public data pipeline for ADE20K does.")


@dataclass(frozen=True, kw_only=True)
class LabelOptions:
    """What `robustkit.data.open_dataset` takes besides."""

    layout: str | None = option("Data", "Dataset layout; detected by default (robustkit list datasets).")
    labels_csv: str | None = option(
        "Data", "CSV of file names and labels of a flat folder.", flag="--labels", type=Path
    )
    real_labels: str | None = option("Data", "ImageNet ReaL's JSON of valid labels.", type=Path)


def _word(each: Option, value: Any) -> Any:
    if each.annotation == "bool":
        return value != each.default  # the flag of what is on by default takes it away
    if not isinstance(value, _PLAIN):  # an object of Python's, which no command can name
        return None if value is None else f"{IN_MEMORY}{type(value).__name__}"
    return text_of_value(value, each.read)


_PLAIN = (str, Path, Number, list, tuple)
_NOT_AGAIN = ("preset", "part", "ray", "out")  # a preset's options are filled in


# The requests


@dataclass(frozen=True, kw_only=True)
class Request:
    """A request for a run, whatever its task.

    task: as in cards. usual_attacks: used where none are named. usual_batch: the batch size by kind of device, where
    none is given. least_shard: samples in a unit of work, unless given or a batch is larger. argument_names: of the
    fields that run.json keeps, so that the same samples can be found again. lacks: of those that mean nothing for the
    task. lists: of those that are read more than once, so that an iterator becomes a tuple. preset: fills what is not
    given; what it filled stays. Raises ProtocolError where a size is below 1, or a dtype is not supported.
    """

    task: ClassVar[str]
    usual_attacks: ClassVar[str]
    usual_batch: ClassVar[Mapping[str, int]]
    least_shard: ClassVar[int]
    argument_names: ClassVar[tuple[str, ...]]
    lacks: ClassVar[tuple[str, ...]] = ()
    lists: ClassVar[tuple[str, ...]] = ("attacks", "corruptions", "cams", "evaluations")
    own_before: ClassVar[str] = "limit"

    checkpoints: Sequence[str | Path]
    data_dir: str | Path = option("Data", "Folder, zip, or embedded:shapes.", MISSING)
    model: Mapping[str, Any] = option_group(ClassifierOptions)
    method: str | Sequence[str] | Mapping[str, Any] | None = option(
        "Model",
        "NAME=CHECKPOINTS, such as quest=trained/q*.pth: trainings of a method, of which results speak; or a CSV "
        "with the columns checkpoint, method and, if needed, attention; may be repeated.",
        settings={"multiple": True},
        read=read_several,
    )
    preset: str | Preset | None = option("Run", "")
    attacks: str | Iterable[str] | None = option("Attacks", "")
    eps: str | float | None = option("Attacks", "Radius, such as 1/255; several with commas; default: from the card.")
    norm: str | None = option("Attacks", "Norm; default: from the card.", type=("linf", "l2"))
    corruptions: str | Iterable[str] | None = option("Corruptions", "")
    limit: int | None = option("Data", "At most N samples: class-balanced, determined by the seed.")
    ids: str | Path | None = option("Data", "File with the exact sample ids, one per line.", type=Path)
    metadata: str | Path | None = option(
        "Data",
        "CSV of samples and columns of your own, such as camera, to find weak slices (robustkit report --by).",
        type=Path,
    )
    groups: str | None = option(
        "Data",
        "Column of the metadata, such as patient: samples of one value may resemble each other, so that intervals and "
        "tests are of groups.",
    )
    groups_from: str | None = option(
        "Data", "Regular expression that finds the group in the id of a sample, such as ^(.*)_ for frames of videos."
    )
    variant: str = option("Corruptions", "Implementation: hendrycks (the benchmark's) or bethgelab.", "hendrycks")
    frost_dir: str | Path | None = option(
        "Corruptions", "Folder of frost's photographs; default: those of imagecorruptions, else our own textures."
    )
    tiles_dir: str | Path | None = option(
        "Corruptions", "Folder of images that give tiles to mosaic and stickers (laion-c); default: our own tiles."
    )
    evaluations: str | Iterable[str] | None = option(
        "Run",
        "Conditions of any family, including plug-ins: pgd(steps=5),rotation(degrees=30) (robustkit list plugins).",
    )
    protocol: str = option("Run", "Protocol card: a name or a TOML file.", "standard")
    setup_check: bool = option(
        "Run", "Skip the quick check for a better-fitting normalisation, crop or attention formula.", True
    )
    out: str | Path | None = option("Output", "Run folder; default: runs/<checkpoint>.", type="output")
    batch_size: int | Literal["auto"] | None = option("Run", "Batch size, or auto; default: depends on the device.")
    shard_size: int | None = option("Run", "Samples per unit of work; fixed when a run begins.")
    workers: int | None = option("Run", "Threads that decode images; default: one per core.")
    device: str = option("Run", "auto, cpu, cuda, cuda:N, mps, xpu or any other torch device.", "auto")
    dtype: str = option(
        "Run",
        "float32, bfloat16, or auto: attacks search in bfloat16 where the device is fast in it, all else in float32. "
        "Square always searches in float32, and attacks are always scored in it.",
        "float32",
    )
    compile: bool = option(
        "Run",
        "torch.compile the network, on CUDA as graphs of kernels; where that fails, it runs as written.",
        False,
    )
    seed: int = option("Run", "Seed of every random draw.", 0, type=int)
    part: str | None = option("Run", "Compute only part of the units, as 3/64, with no summary (robustkit merge).")
    ray: str | None = option(
        "Run",
        "Compute on a Ray cluster: auto or HOST:PORT; without an address, a local one is started.",
        settings={"is_flag": False, "flag_value": "local", "metavar": "[ADDRESS]"},
    )

    def _read_numbers(self) -> None:
        """Take numbers of other libraries, and a torch.device, as the command line has them."""
        object.__setattr__(self, "device", str(self.device))
        for name in ("limit", "seed", "shard_size", "batch_size", "workers"):
            value = getattr(self, name)
            if value is not None and not (name == "batch_size" and value == "auto"):
                if not hasattr(value, "__index__"):
                    raise ProtocolError(f"{name} is {value!r}; expected a whole number")
                object.__setattr__(self, name, operator.index(value))

    def __post_init__(self) -> None:
        from ..models.device import DTYPES

        check_date()
        check_paths(self)
        object.__setattr__(self, "checkpoints", self.trainings.specs)
        if self.preset is not None:
            preset = preset_of(self.task, self.preset) if isinstance(self.preset, str) else self.preset
            free = [name for name in preset.options if getattr(self, name) is None]
            preset = preset.only(name for name in free if name != "limit" or self.ids is None)
            object.__setattr__(self, "preset", preset)
            for name, filled in preset.options.items():
                object.__setattr__(self, name, filled)
        _ = self.share
        if self.ray is not None and not re.fullmatch(r"local|auto|(ray://)?[^\s/]+:\d+", self.ray):
            raise ProtocolError(f"--ray {self.ray}: expected nothing, auto, HOST:PORT or ray://HOST:PORT")
        self._read_numbers()
        for name in ("batch_size", "shard_size", "limit"):
            if isinstance(size := getattr(self, name), int) and size < 1:
                raise ProtocolError(f"{name} is {size}; expected 1 or more")
        if self.dtype not in (*DTYPES, "auto"):
            raise ProtocolError(unknown("dtype", self.dtype, (*DTYPES, "auto")))
        if self.out is not None and not str(self.out).strip():
            raise ProtocolError("out is empty; expected a run folder, or leave it out for runs/<checkpoint>")
        for name in self.lists:
            if not isinstance(value := getattr(self, name, None), str | None):
                object.__setattr__(self, name, tuple(value))
        if self.norm is not None:
            object.__setattr__(self, "norm", norm_name(self.norm))
        for name in self.lists:
            if name != "attacks" and nothing(getattr(self, name, None), name):
                self._leave_out(name)
        if self.evaluations:
            self._ask_by_options()

    def _leave_out(self, name: str) -> None:
        """Ask for none of a list that is `none`. ProtocolError for corruptions where the data are released ones."""
        from ..evaluations.corruptions.tree import is_tree

        tree = getattr(self, "corrupted_dir", None)
        if name == "corruptions" and (tree is not None or is_tree(self.data_dir)):
            raise ProtocolError(f"--corruptions none with corrupted images of {tree or self.data_dir}; leave one out")
        object.__setattr__(self, name, None)

    def _ask_by_options(self) -> None:
        """Ask by their options for evaluations of families that have some; without attacks, those are all attacks."""
        from ..protocol.condition import split_list
        from .inputs import options_asking

        evaluations = []
        for text in split_list(self.evaluations or ()):
            options = options_asking(text)
            evaluations += [] if options else [text]
            for name, value in options.items():
                if name == "data_dir" or not hasattr(self, name):
                    command = f"--{name.replace('_', '-')} {value}"
                    raise ProtocolError(f"--evaluations {text}: it is evaluated by {command}, where a command has it")
                if value is True:
                    object.__setattr__(self, name, True)
                elif value != "none":
                    items = [item for item in split_list(getattr(self, name) or ()) if item not in ("none", value)]
                    object.__setattr__(self, name, (*items, value))
        object.__setattr__(self, "evaluations", tuple(evaluations) or None)

    @cached_property
    def card(self) -> Card:
        """The protocol card. Raises ProtocolError where it is for another task."""
        from ..protocol.card import load_card
        from ..tasks import EVERY_TASK
        from ..tasks.task import task_named

        card = load_card(self.protocol)
        if card.task != self.task:
            plugin = EVERY_TASK.plugin(card.task)
            remedy = f"{plugin.origin} says how" if plugin else f"use robustkit {task_named(card.task).command}"
            raise ProtocolError(f"protocol {card.name} is for {card.task}; {remedy}")
        return card

    @cached_property
    def settings(self) -> Settings:
        """How to compute, with the usual batch size where none is given. Raises ModelError for an unusable device."""
        from ..evaluations.subject import Settings
        from ..models.device import DTYPES, is_fast_in_bfloat16, pick_device

        where = pick_device(self.device)
        usual = self.usual_batch.get("cpu" if where.type == "cpu" else "accelerator", self.usual_batch["cpu"])
        batch = self.batch_size if isinstance(self.batch_size, int) else usual
        workers = usual_workers() if self.workers is None else self.workers
        low = self.dtype == "auto" and is_fast_in_bfloat16(where)
        show = tuple(getattr(self, "show_channels", None) or ())
        search, dtype = DTYPES["bfloat16"] if low else None, DTYPES.get(self.dtype, DTYPES["float32"])
        return Settings(self.seed, batch, workers, where, dtype, self.compile, self.pictures, search, show)

    @cached_property
    def share(self) -> RunPart | None:
        """The part of the units that is asked for; None for all of them. Raises ProtocolError where it means none."""
        from ..evaluations.parts import RunPart

        return None if self.part is None else RunPart.of(self.part)

    @cached_property
    def trainings(self) -> Trainings:
        """The checkpoints, those of methods among them, and which method each is a training of."""
        from ..models.specs import read_trainings

        return read_trainings(self.method or (), self.checkpoints)

    @property
    def pictures(self) -> dict[str, str | None]:
        """The folders that corruptions take parts of pictures from."""
        return {each: str(getattr(self, each) or "") or None for each in ("frost_dir", "tiles_dir")}

    @property
    def attack_list(self) -> str:
        """The attacks as one text: the usual ones where none are named, nothing for `none`."""
        attacks = self.usual_attacks if self.attacks is None else self.attacks
        text = attacks if isinstance(attacks, str) else ",".join(attacks)
        if "none" in (names := [name.strip().lower() for name in text.split(",")]) and len(names) > 1:
            raise ProtocolError(f"--attacks {text}: none cannot be combined with others; leave out none, or the others")
        return "" if names == ["none"] else text

    def attack_conditions(self, attacks: str, engine: str | None = None) -> tuple[Condition, ...]:
        """Return clean and the attacks of a list, at each radius. Raises ProtocolError for what is not understood."""
        from ..evaluations.attacks.evaluate import parse_conditions
        from ..protocol.card import parse_number

        several = entry.load() if (entry := built_in("functions").get("in_two_phases")) else None
        radii = tuple(parse_number(part, "eps") for part in str(self.eps).split(",")) if self.eps is not None else ()
        return parse_conditions(attacks, self.card, eps=radii, norm=self.norm, engine=engine, several=several)

    def evaluation_conditions(self) -> tuple[Condition, ...]:
        from ..protocol.condition import split_list
        from .inputs import evaluation_condition

        return tuple(dict.fromkeys(map(evaluation_condition, split_list(self.evaluations or ()))))

    def folder(self, name: str) -> Path:
        """Return the run folder. name: of the first checkpoint."""
        return Path(self.out) if self.out is not None else Path("runs") / name

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Where this fails, leave a mark in a run folder that holds a run, which is another one."""
        try:
            yield
        except Exception as fault:
            from ..runs.folder import RunFolder

            if not is_follower() and (folder := self._known_folder) is not None:
                RunFolder(folder).note_refusal(f"{type(fault).__name__}: {fault}")
            raise

    @property
    def _known_folder(self) -> Path | None:
        """The run folder, if it is named or follows from a name that a checkpoint has without being read."""
        from ..models.identity import display_name

        first = next(iter(self.checkpoints), None)
        if self.out is not None:
            return Path(self.out) if str(self.out).strip() else None
        return None if first is None else self.folder(display_name(Path(str(first).rpartition(":")[2]).stem))

    def arguments(self) -> dict[str, Any]:
        """Return the part of the request that run.json keeps."""
        evaluations = {} if self.evaluations is None else {"evaluations": self.evaluations}
        return {name: getattr(self, name) for name in self.argument_names} | evaluations | {"options": self.options()}

    def options(self) -> dict[str, Any]:
        """Return what a command has to say for the same figures: by flag a text, texts, or True."""
        flags: dict[str, Any] = {}
        for each in options_of(type(self)):
            value = getattr(self, each.name)
            if each.group is not None:
                entries = {entry.name: entry for entry in options_of(each.group)}
                flags |= {entries[name].flag: _word(entries[name], of) for name, of in value.items() if name in entries}
            elif each.heading and each.name not in _NOT_AGAIN:
                usual = isinstance(value, _PLAIN) and value == each.default
                flags[each.flag] = None if usual else _word(each, value)
        flags["--method"] = self.trainings.words() or None
        if plugins := plugin_files():
            flags["--plugin"] = [str(path) for path in plugins]
        return {flag: value for flag, value in flags.items() if value not in (None, False, "")}


@dataclass(frozen=True, kw_only=True)
class ClassificationRequest(Request):
    """The request of `audit`. without_gradients: the usual attack where a checkpoint has none, at the same radius."""

    task = "classification"
    usual_attacks, without_gradients = "fgsm,pgd", "square"
    usual_batch: ClassVar = {"cpu": 16, "accelerator": 128}  # a ViT on a CPU is fastest while a batch fits its cache
    least_shard = 128
    argument_names = (
        *("checkpoints", "data_dir", "attacks", "corruptions", "corrupted_dir", "frost_dir", "tiles_dir", "cams"),
        *("boxes", "masks", "eps", "norm", "engine", "limit", "ids", "shuffle", "data", "model"),
        *("transfer", "keep_adversarials", "setup_check", "evidence"),
    )

    data_dir: str | Path = option("Data", "Folder, zip, or embedded:shapes.", "", read=read_place)
    preset: str | Preset | None = option(
        "Run",
        "Amount of work, with forward + backward passes per image: quick 28 + 21, standard 155 + 22, full at most "
        "7097 + 1922, quest at most 3670 + 482 (robustkit list presets).",
    )
    attacks: str | Iterable[str] | None = option(
        "Attacks", "Names or conditions: pgd(steps=30),spsa; none; default: fgsm,pgd."
    )
    corruptions: str | Iterable[str] | None = option(
        "Corruptions", "Sets or names: in-c, fog,snow(severity=1+3) (robustkit list corruptions)."
    )
    data: Mapping[str, Any] = option_group(LabelOptions)
    shuffle: bool = option("Data", "Take samples in a random order, determined by the seed.", False, last=True)
    engine: str | None = option("Attacks", "Run attacks with pyautoattack or torchattacks instead, as a cross-check.")
    transfer: bool = option("Attacks", "Also score each checkpoint on adversarial images found for others.", False)
    parity: bool = option(
        "Attacks",
        "How often each checkpoint, such as an exported one, predicts what the first does: clean, corrupted, attacked, "
        "and on the adversarial images found for the first.",
        False,
    )
    evidence: str = option(
        "Attacks",
        "Checks for gradient masking: quick takes at most a quarter of the attacks' passes.",
        "quick" if "evidence" in built_in("functions") else "none",
        type=("none", "quick", "full"),
    )
    keep_adversarials: bool = option("Attacks", "Store adversarial images in the run, in half precision.", False)
    corrupted_dir: str | Path | None = option(
        "Corruptions", "Released images to read instead: <corruption>/<1-5>/..., or CIFAR-10-C's .npy files."
    )
    constants: str = option(
        "Corruptions",
        "Constants of the corruptions: auto, imagenet, or cifar for 32x32 images (preset=cifar in conditions).",
        "auto",
    )
    cams: str | Iterable[str] | None = option(
        "Maps",
        "Methods: agcam,grad-cam(threshold=0.3) (robustkit list cams); auto: agcam, or grad-cam where there is a CNN; "
        "controls are added.",
    )
    stability: bool = option("Maps", "Compare maps under every attack and corruption with the clean ones.", False)
    watch_attention: bool = option(
        "Maps", "Record logits, norms and entropy of each attention head under every condition.", False
    )
    boxes: str | Path | None = option("Maps", "Boxes of the objects: a CSV, or a folder of XML files.", type=Path)
    masks: str | Path | None = option("Maps", "Folder of masks, named and sized like the images.", type=Path)
    faithfulness: str = option(
        "Maps",
        "Test maps on the model itself: ABPC; all adds ROAD, insertion, deletion and a randomised head.",
        "abpc",
        type=("none", "abpc", "all"),
    )
    keep_misclassified: bool = option("Maps", "Also score the maps of wrong predictions.", False)
    browse: int = option("Output", "Samples to show in the report; 0 for none.", 100)
    show_channels: str | None = option(
        "Output", "Channels of pictures, as 3,2,1; default: the first.", read=read_places
    )


@dataclass(frozen=True, kw_only=True)
class SegmentationRequest(Request):
    """The request of `segment`."""

    task = "segmentation"
    usual_attacks = "pgd"
    usual_batch: ClassVar = {"cpu": 4, "accelerator": 16}
    least_shard = 32  # images are held decoded at their full size
    argument_names = (
        *("checkpoints", "data_dir", "masks", "classes", "ignore", "reduce_zero_label", "layout", "attacks"),
        *(
            "corruptions",
            "variant",
            "frost_dir",
            "tiles_dir",
            "eps",
            "norm",
            "limit",
            "ids",
            "model",
            "setup_check",
            "cams",
        ),
    )

    data_dir: str | Path = option("Data", "Folder or zip of images, ADE20K's folder, or embedded:shapes.", MISSING)
    model: Mapping[str, Any] = option_group(SegmenterOptions)
    preset: str | Preset | None = option(
        "Run",
        "Amount of work, with forward + backward passes per image: quick 26 + 20, standard 115 + 40, full 138 + 40 "
        "(robustkit list presets).",
    )
    attacks: str | Iterable[str] | None = option(
        "Attacks", "fgsm, pgd, segpgd, cospgd, sea or conditions such as segpgd(steps=10); none; default: pgd."
    )
    corruptions: str | Iterable[str] | None = option(
        "Corruptions", "Sets or names: segformer-16, fan-19, fog(severity=3), applied to the whole image."
    )
    limit: int | None = option("Data", "At most N images, determined by the seed.")
    variant: str = option(
        "Corruptions", "Implementation: bethgelab (used for published segmentation results) or hendrycks.", "bethgelab"
    )
    protocol: str = "segmentation"
    cams: str | Iterable[str] | None = option(
        "Maps",
        "Methods, with the class and where: agcam,grad-cam(of=road,over=true) (robustkit list cams); of: a name, "
        "largest (default), or * for each class of the image; auto: agcam or grad-cam; controls are added.",
    )
    stability: bool = option("Maps", "Compare maps under every attack and corruption with the clean ones.", False)
    faithfulness: str = option(
        "Maps", "Tests: ABPC of the class's IoU; all adds insertion, deletion.", "abpc", type=("none", "abpc", "all")
    )
    masks: str | Path | None = option("Data", "Folder of label maps (of segmenters), named as the images.", type=Path)
    classes: str | Path | None = option("Data", "File of class names, one per line, in label order.", type=Path)
    ignore: Sequence[int] = option("Data", "Labels to ignore, separated by commas.", (255,), type=str, read=read_labels)
    reduce_zero_label: bool = option("Data", "Masks are as ADE20K's: 0 does not count, class k is k + 1.", False)
    layout: str | None = option("Data", "ade20k, folders or embedded; detected by default.")
    examples: int = option("Output", "Scenes to draw in the report; 0 for none.", 4)

    def arguments(self) -> dict[str, Any]:
        attacks = self.attacks if self.attacks is None or isinstance(self.attacks, str) else ",".join(self.attacks)
        return super().arguments() | {"attacks": attacks}
