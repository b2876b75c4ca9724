"""The options that commands share, each also from ROBUSTKIT_<NAME> and from a TOML file (--config)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from ..errors import ProtocolError
from .completion import COMPLETERS
from .completion import checkpoints as completed_checkpoints
from .config import check_trust, load_plugins, use_config
from .help import Option, put_under
from .option_types import AT_LEAST_0, AT_LEAST_1, BatchSize, Place, Text

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
