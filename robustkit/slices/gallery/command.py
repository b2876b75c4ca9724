"""Draw attribution maps: a gallery of a run's samples, and maps of a user's own pictures.

What is needed is imported when the command runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ...cli.completion import checkpoints as known_checkpoints
from ...cli.options import (
    AT_LEAST_0,
    Command,
    common,
    details_option,
    group,
    images_option,
    loading,
    quiet_option,
    refuse_for_pictures,
    request_options,
    setting,
    skip_bad_option,
    take_entries,
)
from ...cli.terminal import audit_request, console, run_to_the_end
from ...common.names import nothing
from ...display.console import print_as_it_is, print_line
from ...errors import ProtocolError
from ...pipeline.request import ClassificationRequest

if TYPE_CHECKING:
    from .sheet import Look

_OF_MAPS = (
    *("boxes", "masks", "faithfulness", "keep_misclassified", "model", "data", "limit", "ids", "protocol"),
    *("browse", "show_channels", "setup_check", "out", "batch_size", "shard_size", "workers", "device", "dtype"),
    *("compile", "seed"),
)
"""The options that `cam` has from an audit."""
COLORMAPS = ("inferno", "magma", "plasma", "viridis", "cividis", "turbo", "jet")
"""Those of `cam.overlay`, whose libraries the help does without."""
_map_option = partial(setting, section="Maps")


@click.command(
    cls=Command,
    after="segment",
    short_help="draw and score attribution maps of classifiers",
)
@click.argument(
    "arguments", nargs=-1, required=True, metavar="CHECKPOINT... [IMAGE|FOLDER]...", shell_complete=known_checkpoints
)
@images_option("Folder, zip, or embedded:shapes; without it, the IMAGEs are explained.", required=False)
@_map_option(
    *("--target", "targets"),
    multiple=True,
    help="Class to draw maps for: a name, a number, predicted, (with --data-dir) label, (of a segmenter) all; may be "
    "repeated.",
)
@_map_option(
    *("--target-text", "texts"),
    multiple=True,
    help="Sentence to draw maps of a zero-shot model (CLIP, SigLIP) for; may be repeated.",
)
@_map_option(
    "--over",
    default="predicted",
    help="Of a segmenter, where: predicted, component=ROW+COLUMN, pixel=ROW+COLUMN or box=TOP+LEFT+BOTTOM+RIGHT.",
)
@_map_option("--prompt", hidden=True)
@_map_option("--cams", default="agcam,rollout,grad-cam", help="Methods (robustkit list cams); controls are added.")
@setting(
    "--attacks",
    section="Attacks",
    default="none",
    help="Also attack the images, and draw their maps next to the clean ones.",
)
@request_options(ClassificationRequest, "eps", "norm")
@_map_option("--gallery", type=AT_LEAST_0, default=12, help="Samples to draw; 0 for none.")
@_map_option(
    "--choose",
    help="Samples to draw: disagreement, worst, best, random or class:NAME; default: disagreement, or worst for one "
    "checkpoint.",
)
@_map_option("--show", multiple=True, help="Id of a sample to draw; may be repeated.")
@_map_option(
    "--colormap", type=click.Choice(COLORMAPS), default=COLORMAPS[0], help="Colours of the maps over the images."
)
@_map_option("--alpha", type=click.FloatRange(0, 1), default=0.85, help="Weight of the colour where a map is 1.")
@_map_option(
    *("--format", "kind"),
    type=click.Choice(["png", "pdf", "svg"]),
    help="Kind of file; pdf and svg are figures for a paper. Default: of --out, or png.",
)
@_map_option("--size", type=click.FloatRange(20, 1000), help="Width of a figure for a paper, in mm; a PNG has 300 dpi.")
@_map_option("--save-maps", is_flag=True, help="Save the drawn maps: cams/maps.npz, or <stem>-cam.npz for an IMAGE.")
@request_options(ClassificationRequest, *_OF_MAPS)
@group([details_option, quiet_option, skip_bad_option, common])
def cam(
    arguments: tuple[str, ...], data_dir: str | None, skip_bad: bool, details: bool, quiet: bool, **options: Any
) -> None:
    """Draw attribution maps of checkpoints, score them, and show them side by side.

    With --data-dir: a run with scores next to controls that do not look at the image, and a gallery in its folder.
    Without: the maps of your own pictures, or of a folder of them, as <stem>-cam.png, with the options of the model and
    of maps, --out and --device. A segmenter's maps are of a class in a region.

    \b
    robustkit cam standard.pth quest.pth --data-dir imagenet/val --boxes boxes.csv --limit 500 --out runs/maps
    robustkit cam vit.safetensors photographs/zebra.jpg --target zebra --target tusker
    robustkit cam zoo:shapes-segmenter-quest scene.png --target disc --over component=30+22 --cams agcam,gradient
    robustkit cam vit.safetensors photographs --cams agcam,rollout,grad-cam --format pdf --size 85
    """
    _run(arguments, data_dir, skip_bad, details, quiet, options)


def _run(
    arguments: Sequence[str], data_dir: str | None, skip_bad: bool, details: bool, quiet: bool, options: dict[str, Any]
) -> None:
    with loading():
        from .drawing import explain_pictures, holds_pictures, is_picture, pictures_in, read_picture_files
        from .segments import are_segmenters
        from .sheet import Look

    look_options = (
        "targets",
        "texts",
        "over",
        "gallery",
        "choose",
        "show",
        "save_maps",
        "colormap",
        "alpha",
        "kind",
        "size",
    )
    gallery = {key: options.pop(key) for key in look_options}
    if options.pop("prompt") is not None:
        remedy = "maps for a sentence are drawn with --target-text; --prompts has templates for the names of classes"
        raise ProtocolError(f"--prompt: no such option; {remedy}")
    look = Look(gallery["colormap"], gallery["alpha"], gallery["size"])
    options.update(stability=not nothing(options["attacks"], "attacks"))
    pictures = pictures_in(arguments) if data_dir is None else [each for each in arguments if is_picture(each)]
    checkpoints = tuple(
        argument for argument in arguments if not is_picture(argument) and not (pictures and holds_pictures(argument))
    )
    if bool(pictures) == (data_dir is not None):
        what = "either pictures of your own" if pictures else "pictures of your own next to the checkpoint"
        raise ProtocolError(f"give {what}, or --data-dir with a data set")
    if not pictures:
        if gallery["over"] != "predicted":
            raise ProtocolError(f"--over {gallery['over']}: of segmenters on pictures of your own; leave it out")
        if are_segmenters(checkpoints):
            remedy = (
                f'robustkit segment CHECKPOINT --data-dir {data_dir} --cams "agcam(of=*)" scores and draws their maps'
            )
            raise ProtocolError(f"--data-dir {data_dir} with segmenters: {remedy}")
        request = audit_request({"checkpoints": checkpoints, "data_dir": data_dir, **options})
        _draw(request, gallery, look, skip_bad, details, quiet)
        return
    refuse_for_pictures()
    if not checkpoints:
        raise ProtocolError("robustkit cam IMAGE needs a checkpoint next to the image: robustkit cam cat.jpg model.pth")
    model = take_entries(ClassificationRequest, "model", options)
    targets, path = (gallery["targets"], options["cams"]), _sheet_path(pictures, options["out"], gallery["kind"])
    how = {"model": model, "device": options["device"], "texts": gallery["texts"], "over": gallery["over"]}
    side = console(stderr=True)
    how["say"] = lambda line: print_as_it_is(side, line)
    maps = replace(explain_pictures(read_picture_files(pictures), checkpoints, *targets, **how), look=look)
    for row in maps.rows:
        whose = f"{row.sample_id}, {row.checkpoint}" if len(checkpoints) > 1 else row.sample_id
        print_line(console(), f"{whose}: {', '.join(row.lines)}")
    path.parent.mkdir(parents=True, exist_ok=True)
    paths = [path, path.with_suffix(".npz")] if gallery["save_maps"] else [path]
    print_as_it_is(console(), *(str(maps.save(each)) for each in paths))


def _sheet_path(pictures: Sequence[str], out: Path | None, kind: str | None) -> Path:
    """Return `out`, or `<stem>-cam.png` (or of another kind) in that folder. Raises ProtocolError for a file of no such
    kind, or one of the pictures."""
    name = f"{Path(pictures[0]).stem}-cam.{kind or 'png'}"
    path = Path(name) if out is None else out / name if out.is_dir() or not out.suffix else out
    kinds = (f".{kind}",) if kind else (".png", ".pdf", ".svg")
    if path.suffix.lower() not in kinds:
        raise ProtocolError(f"--out {out}: expected a folder, or a name ending in {' or '.join(kinds)}")
    if path.resolve() in {Path(picture).resolve() for picture in pictures}:
        raise ProtocolError(f"--out {path} is one of the input images; give another name")
    return path


def _draw(
    request: ClassificationRequest, gallery: Mapping[str, Any], look: Look, skip_bad: bool, details: bool, quiet: bool
) -> None:
    from .drawing import Choice, make_gallery, write_gallery

    choice = None
    if gallery["gallery"] or gallery["show"]:
        asked = {"how": "choose", "count": "gallery", "ids": "show", "targets": "targets", "texts": "texts"}
        values = {name: gallery[option] for name, option in asked.items()}
        choice = Choice.of(tuple(map(str, request.checkpoints)), request.cams or "", request.faithfulness, **values)
        choice.check(request)
    run = run_to_the_end(request, skip_bad, details, quiet)
    if choice is not None:
        made = replace(make_gallery(run, request, choice), look=look)
        paths = [*write_gallery(run, made, raw=gallery["save_maps"])]
        if (kind := gallery["kind"]) is not None and kind != "png":
            paths.append(made.save(run.path / "cams" / f"gallery.{kind}"))
        elif look.size is not None:
            paths.append(made.save(run.path / "cams" / "figure.png"))
        for path in paths:
            print_as_it_is(console(), f"gallery: {path}")
