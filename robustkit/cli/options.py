"""The options that commands share: their types, groups in --help, and --config."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

from ..common.files import TEXT, reason, text_of
from ..errors import ProtocolError, unknown
from .completion import COMPLETERS
from .completion import checkpoints as completed_checkpoints


def _empty(param: click.Parameter | None) -> str:
    return f"it is empty; expected: {getattr(param, 'help', None) or 'a value'}"


class Whole(click.IntRange):
    """A whole number."""

    name = "integer"


AT_LEAST_0, AT_LEAST_1 = Whole(min=0), Whole(min=1)


class Text(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    """A text that is not empty: an empty one usually comes from an unset shell variable."""

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return str(value) if str(value).strip() else self.fail(_empty(param), param, ctx)


class Place(click.Path):
    """A path that is not empty, nor of blanks alone: Path("") is the current folder. writes: whether a command writes
    there, which an untrusted --config must not choose.
    """

    def __init__(self, *, writes: bool = False, **settings: Any) -> None:
        super().__init__(path_type=Path, **settings)
        self.writes = writes

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return super().convert(value, param, ctx) if str(value).strip() else self.fail(_empty(param), param, ctx)


class BatchSize(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    """A number of samples, or `auto`."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return value if value == "auto" else AT_LEAST_1.convert(value, param, ctx)
        except click.BadParameter:
            self.fail(f"{value!r}; expected a number of 1 or more, or auto.", param, ctx)


SECTIONS = {
    "": "Options",
    "Data": "Data",
    "Model": "Model and preprocessing",
    "Attacks": "Attacks",
    "Corruptions": "Corruptions",
    "Maps": "Maps and attention",
    "Run": "Run",
    "Output": "Output",
    "General": "General",
}
"""The heading of each section of options, in their order."""
SHORT = 12
"""The most options that are listed without headings."""


class Option(click.Option):
    """An option that knows under which heading it is listed."""

    def __init__(self, *names: Any, section: str = "", **settings: Any) -> None:
        super().__init__(*names, **settings)
        self.section = section


class Command(click.Command):
    """A command whose --help lists its options under headings, if they are many."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        every = [(getattr(param, "section", "General"), param.get_help_record(ctx)) for param in self.get_params(ctx)]
        listed = [(section, record) for section, record in every if record is not None]
        many = len(listed) > SHORT
        for name, heading in SECTIONS.items() if many else [("", "Options")]:
            if records := [record for section, record in listed if section == name or not many]:
                with formatter.section(heading):
                    formatter.write_dl(records, col_max=28)


class Commands(click.Group):
    """A group whose --help lists its commands under headings, each with a line that is never cut."""

    def __init__(self, sections: Mapping[str, Mapping[click.Command, str]], **settings: Any) -> None:
        super().__init__(**settings)
        self.sections = sections
        for commands in sections.values():
            for command, line in commands.items():
                command.short_help = line
                self.add_command(command)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        widest = max(len(str(command.name)) for commands in self.sections.values() for command in commands)
        for heading, commands in self.sections.items():
            with formatter.section(heading):
                formatter.write_dl([(f"{command.name!s:<{widest}}", line) for command, line in commands.items()])


def put_under(section: str, params: Iterable[click.Parameter]) -> None:
    """Put options under a heading, except for those that have one."""
    for param in params:
        if isinstance(param, Option):
            param.section = param.section or section


_CONFIG = "robustkit.config"


def use_config(context: click.Context, _: click.Parameter, path: str | None) -> None:
    """Make the entries of a TOML file the defaults of the options: top level, then the command's own table."""
    if path is None:
        return
    from ..common.files import parse_toml

    try:
        text = text_of(Path(path), TEXT, errors="replace")
    except OSError as fault:
        raise ProtocolError(f"--config {path}: {reason(fault)}; give a TOML file of options") from None
    table = parse_toml(text, path, ProtocolError)
    of_command = table.pop(str(context.info_name), {})
    if not isinstance(of_command, dict):
        raise ProtocolError(f"--config {path}: {context.info_name} is {of_command!r}; expected a table of its options")
    entries = {k: v for k, v in table.items() if not isinstance(v, dict)} | of_command
    parameters = {parameter.name: parameter for parameter in context.command.params}
    for name in ("config", "trust_config", "debug"):
        parameters.pop(name, None)
    commands = (
        context.parent.command.commands if context.parent and isinstance(context.parent.command, click.Group) else {}
    )
    for name in (name for name, value in table.items() if isinstance(value, dict) and name not in commands):
        raise ProtocolError(f"--config {path}: " + unknown("table", name, commands))
    for key in entries:
        if key.replace("-", "_") not in parameters:
            options = (str(name).replace("_", "-") for name in parameters)
            raise ProtocolError(f"--config {path}: " + unknown("option", key, options))
    named = {key.replace("-", "_"): value for key, value in entries.items()}
    context.default_map = {
        name: ",".join(map(str, value)) if isinstance(value, list) and not parameters[name].multiple else value
        for name, value in named.items()
    }
    context.meta[_CONFIG] = path


def check_trust(context: click.Context, parameter: click.Parameter, trusted: bool) -> None:
    """Refuse what an untrusted --config could do besides choosing options: run code, write elsewhere, send results
    away.

    Not eager, so that it comes after --config, wherever the two stand.
    """
    path = context.meta.get(_CONFIG)
    if path is None or trusted:
        return
    here = Path.cwd().resolve()
    for key, value in (context.default_map or {}).items():
        values = [str(part) for part in value] if isinstance(value, list) else [str(value)]
        parameter_type = next(part.type for part in context.command.params if part.name == key)
        written = isinstance(parameter_type, Place) and parameter_type.writes
        written = written and (key != "policy" or bool(context.params.get("init")))  # which is read, else
        if written and any(not (here / part).resolve().is_relative_to(here) for part in values):
            what = "writes outside the folder where you are"
        elif key == "plugin" or (key == "arch" and any(":" in part for part in values)):
            what = "names code to run"
        elif key == "ray" and ":" in values[0]:
            what = "names a cluster, which may run code here"
        elif key == "logs":
            what = "sends results away"
        else:
            continue
        name = max(next(part.opts for part in context.command.params if part.name == key), key=len)
        given = context.get_parameter_source(key)
        if given not in (click.core.ParameterSource.COMMANDLINE, click.core.ParameterSource.ENVIRONMENT):
            raise ProtocolError(
                f"--config {path} {what} ({key} = {', '.join(values)[:80]!r}); give {name} yourself, or --trust-config "
                "where you know who wrote the file"
            )


def load_plugins(context: click.Context, _: click.Parameter, files: tuple[Path, ...]) -> None:
    """Execute files of plug-ins. Not eager: files that a --config names run only after --trust-config was checked."""
    from ..common.plugins import load_plugin

    for file in files:
        load_plugin(file)


F = TypeVar("F", bound=Callable[..., Any])
CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 110, "show_default": True}


def option(*names: str, section: str = "", **settings: Any) -> Callable[[F], F]:
    """Return a click option that can also come from ROBUSTKIT_<NAME>. section: its heading in --help, of `SECTIONS`."""
    long = next(name for name in names if name.startswith("--")).lstrip("-")
    if "type" not in settings and not settings.get("is_flag"):
        settings["type"] = Text()
    settings.setdefault("shell_complete", COMPLETERS.get(f"--{long}"))
    settings |= {"cls": Option, "section": section}
    return click.option(*names, envvar=f"ROBUSTKIT_{long.upper().replace('-', '_')}", show_envvar=False, **settings)


def group(options: list[Callable[[Any], Any]], section: str = "") -> Callable[[F], F]:
    """Return several options as one decorator, in the order in which --help lists them.

    section: the heading of those that have none of their own.
    """

    def decorate(function: F) -> F:
        there = len(getattr(function, "__click_params__", ()))
        for decorator in reversed(options):
            function = decorator(function)
        put_under(section, getattr(function, "__click_params__", ())[there:])
        return function

    return decorate


checkpoints_argument = click.argument(
    "checkpoints", nargs=-1, required=True, metavar="CHECKPOINT...", shell_complete=completed_checkpoints
)
device_option = option(
    "--device", section="Run", default="auto", help="auto, cpu, cuda, cuda:N, mps, xpu or another that torch names."
)
ids_option = option("--ids", section="Data", type=Place(), help="File with the exact sample ids, one a line.")
quiet_option = option("--quiet", section="Run", is_flag=True, help="No progress on standard error.")
frost_option = option(
    "--frost-dir", help="Folder of frost's photographs; else imagecorruptions', else our own textures."
)


def images_option(what: str = "Folder, zip, or embedded:shapes.", required: bool = True) -> Callable[[F], F]:
    """Return the option that names the images. what: its help."""
    return option("--data-dir", section="Data", required=required, help=what)


common = group(
    [
        click.option("--config", is_eager=True, expose_value=False, callback=use_config, help="TOML file of options."),
        click.option(
            "--trust-config",
            is_flag=True,
            expose_value=False,
            callback=check_trust,
            help="Let --config name code to run, write outside this folder, send results away.",
        ),
        click.option("--debug", is_flag=True, expose_value=False, help="Show the traceback of an error."),
        click.option(
            "--plugin",
            "plugin",
            type=Place(),
            multiple=True,
            expose_value=False,
            callback=load_plugins,
            help="Python file to execute, which brings plug-ins; may be repeated (robustkit list plugins).",
        ),
    ]
)


def constants_instead(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    """Refuse a preset where there is none: the option of this name chose the constants of corruptions once."""
    if value is not None:
        raise ProtocolError(f"--preset {value}: the constants of corruptions are chosen by --constants {value}")


def network_options(arch: str, classes: str, *more: Callable[[Any], Any]) -> Callable[[F], F]:
    """Return the options for loading a network. arch, classes: their help. more: options that its task adds."""
    return group(
        [
            option("--arch", help=arch),
            option("--attention", help="Attention formula (robustkit list attentions); default: from the metadata."),
            option("--num-classes", type=AT_LEAST_1, help=classes),
            option("--mean", help="Channel means in [0, 1], one or three, separated by spaces or commas."),
            option("--std", help="Channel standard deviations, likewise."),
            *more,
            option("--use-ema", is_flag=True, help="Take the EMA weights where the file has them."),
            option("--allow-partial", is_flag=True, help="Go on with missing or unexpected tensors."),
        ],
        "Model",
    )


model_options = network_options(
    "timm name or code to run: module:function, file.py:function; guessed for ViTs.",
    "Number of classes of the head.",
    option("--interpolation", help="bicubic, bilinear, nearest, lanczos, box or hamming."),
    option("--crop-pct", type=float, help="Image size over resized size, as in timm."),
    option("--crop-mode", help="center, center-floor, squash or border."),
    option("--img-size", type=AT_LEAST_1, help="Size of the input; positional embeddings are resampled to it."),
)
label_options = group(
    [
        option("--layout", help="How to read the folder; detected by default (robustkit list datasets)."),
        option(
            "--labels",
            "labels_csv",
            type=Place(),
            help="CSV of file names and labels of a flat folder.",
        ),
        option("--real-labels", type=Place(), help="ImageNet ReaL's JSON of valid labels."),
    ],
    "Data",
)
data_options = group(
    [
        label_options,
        option("--limit", type=AT_LEAST_1, help="At most N samples: class-balanced, a function of the seed."),
        ids_option,
    ],
    "Data",
)
radius_options = group(
    [
        option("--eps", help="Radius, such as 1/255; several with commas; default: from the card."),
        option("--norm", type=click.Choice(["linf", "l2"]), help="Norm; default: from the card."),
    ],
    "Attacks",
)
attack_options = group(
    [
        option("--attacks", help="Names or conditions: pgd(steps=30),spsa; none; default: fgsm,pgd."),
        radius_options,
        option("--engine", help="Run the attacks by pyautoattack or torchattacks instead, for cross-checking."),
        option("--transfer", is_flag=True, help="Score each checkpoint on what the attacks found for the others."),
        option("--keep-adversarials", is_flag=True, help="Keep adversarial images in the run, in half precision."),
    ],
    "Attacks",
)
definition_options = group(
    [
        option(
            "--constants",
            default="auto",
            help="Of corruptions: auto, imagenet, or cifar for images of 32x32 (preset=cifar in conditions).",
        ),
        option("--variant", default="hendrycks", help="Code: hendrycks (the benchmark's) or bethgelab."),
        frost_option,
    ],
    "Corruptions",
)
evaluation_option = option(
    "--evaluations",
    section="Run",
    help="Conditions of plug-ins' families, such as rotation(degrees=30) (robustkit list plugins).",
)
corruption_options = group(
    [
        option("--corruptions", help="Sets or names: in-c, fog,snow(severity=1+3) (robustkit list corruptions)."),
        option("--corrupted-dir", help="Tree of released corrupted images, <corruption>/<1-5>/..., to read instead."),
        definition_options,
        evaluation_option,
    ],
    "Corruptions",
)
truth_options = group(
    [
        option("--boxes", type=Place(), help="Boxes of the objects: a CSV, or a folder of XML files."),
        option("--masks", type=Place(), help="Folder of masks, named and sized like the images."),
        option(
            "--faithfulness",
            type=click.Choice(["none", "abpc", "all"]),
            default="abpc",
            help="Test maps on the model itself: ABPC; all adds ROAD, insertion, deletion and a redrawn head.",
        ),
        option("--keep-misclassified", is_flag=True, help="Also score the maps of wrong predictions."),
    ],
    "Maps",
)
map_options = group(
    [
        option("--cams", help="Methods: agcam,grad-cam(threshold=0.3) (robustkit list cams); controls come along."),
        option(
            "--region-noise",
            help="Regions to drown: object,background,map-top(share=0.3),map-bottom,random.",
        ),
        option("--stability", is_flag=True, help="Compare maps under every attack and corruption with the clean ones."),
        option("--watch-attention", is_flag=True, help="Logits, norms and entropy of each head under every condition."),
        truth_options,
    ],
    "Maps",
)


def protocol_option(card: str = "standard") -> Callable[[F], F]:
    """Return the option that names a card."""
    return option("--protocol", section="Run", default=card, help="Protocol card: a name or a TOML file.")


shuffle_option = option(
    "--shuffle", section="Data", is_flag=True, help="Take samples in a random order, a function of the seed."
)
preset_option = option(
    "--preset", section="Run", help="Amount of work: quick, standard or full (robustkit list presets)."
)
browse_option = option(
    "--browse",
    section="Output",
    type=AT_LEAST_0,
    default=100,
    help="Samples whose images the report shows; 0 for none.",
)
setup_option = option(
    "--no-setup-check",
    section="Run",
    is_flag=True,
    help="Skip the check of attention formula, normalisation and crop against the labels.",
)
out_option = option("--out", section="Output", type=Place(writes=True), help="Run folder; default: runs/<checkpoint>.")
computing_options = group(
    [
        option("--batch-size", type=BatchSize(), help="Samples in a batch, or auto; default: by device."),
        option("--shard-size", type=AT_LEAST_1, help="Samples in a unit of work; fixed when a run begins."),
        option("--workers", type=AT_LEAST_1, help="Threads that decode images; default: a thread for each core."),
        device_option,
        option("--dtype", default="float32", help="float32 or bfloat16; attacks are scored in float32."),
        option("--compile", is_flag=True, help="torch.compile the model."),
        option("--seed", type=int, default=0, help="Seed of every random draw."),
        quiet_option,
        option("--skip-bad", is_flag=True, help="Exit 0 although some images or masks could not be read."),
    ],
    "Run",
)
run_options = group(
    [
        out_option,
        option("--details", section="Output", is_flag=True, help="Print every table, not only the short one."),
        computing_options,
    ],
    "Run",
)
sharing_options = group(
    [
        option("--part", help="Compute a share of the units, such as 3/64, and no summary (robustkit merge)."),
        option(
            "--ray",
            is_flag=False,
            flag_value="local",
            metavar="[ADDRESS]",
            help="Compute on a Ray cluster: auto or HOST:PORT; without an address on one of its own.",
        ),
    ],
    "Run",
)


mask_options = group(
    [
        option(
            "--masks",
            type=Place(),
            help="Folder of label maps, for segmenters, named like the images.",
        ),
        option("--classes", type=Place(), help="File of class names, one a line, in label order."),
        option("--ignore", type=str, default="255", help="Labels that do not count, separated by commas."),
    ],
    "Data",
)
scene_options = group(
    [
        mask_options,
        option("--layout", section="Data", help="ade20k, folders or embedded; detected by default."),
        option("--limit", section="Data", type=AT_LEAST_1, help="At most N images, a function of the seed."),
        ids_option,
        option(
            "--attacks",
            section="Attacks",
            help="fgsm, pgd, segpgd, cospgd, sea or conditions such as segpgd(steps=10); none; default: pgd.",
        ),
        radius_options,
        option("--corruptions", help="Sets or names: segformer-16, fan-19, fog(severity=3), of the whole image."),
        option("--variant", default="bethgelab", help="Code: bethgelab (published segmentation's) or hendrycks."),
        frost_option,
        evaluation_option,
        option(
            "--examples",
            section="Output",
            type=AT_LEAST_0,
            default=4,
            help="Scenes to draw in the report; 0 for none.",
        ),
    ],
    "Corruptions",
)
segmenter_options = network_options(
    "timm name of a Segmenter's encoder, or code to run: module:function, file.py:function.",
    "Number of classes of the output.",
    option("--window", help="Side, or HEIGHTxWIDTH, of the windows that the network sees."),
    option("--stride", help="Step from one window to the next, likewise."),
    option("--short-side", type=AT_LEAST_1, help="Resize images to this short side before windows are cut."),
    option("--resize", help="ade20k: resize images as the public data pipeline for ADE20K does."),
)
