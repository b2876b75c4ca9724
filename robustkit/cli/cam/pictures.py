"""Draw maps of a user's own pictures as one PNG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...common.files import bytes_of, reason
from ...data.class_names import class_names
from ...data.dataset import Sample
from ...data.images import read_image, to_pixels
from ...data.sources import MAX_FILE_BYTES, is_image_name
from ...errors import DataError, ProtocolError
from ...evaluations.maps.condition import MapSpec, parse_cams
from ...evaluations.maps.evaluate import check_explainable
from ...evaluations.maps.gallery import Gallery, GalleryRow, write_sheet
from ...evaluations.subject import Settings
from ...models.classifier import load
from ...models.device import pick_device
from ...models.identity import distinct_names
from ...protocol.card import load_card
from ...tasks.classification.subject import ClassifierSubject
from .choice import LABEL, Target
from .command import write_maps
from .drawing import Heat, Painter


def is_picture(argument: str) -> bool:
    """Whether an argument names an image file rather than a checkpoint."""
    return is_image_name(argument) and ":" not in argument


def explain_pictures(
    pictures: Sequence[str],
    checkpoints: Sequence[str],
    targets: Sequence[str],
    methods: str,
    *,
    model: Mapping[str, Any],
    device: str = "auto",
    out: Path | None = None,
    raw: bool = False,
) -> list[Path]:
    """Draw maps of pictures for the named classes, or the predicted one, as a PNG; return the files written.

    out: its name, or the folder of `<stem>-cam.png`. raw: also keep the maps next to it, as .npz.

    Raises:
        RobustkitError: the request cannot be fulfilled; raised before anything is computed.
    """
    if not checkpoints:
        raise ProtocolError("robustkit cam IMAGE needs a checkpoint next to the image: robustkit cam cat.jpg model.pth")
    wanted, path = _plain(methods), sheet_path(pictures, out)
    decoded = [read_image(_bytes(picture), picture) for picture in pictures]
    settings, card = Settings(device=pick_device(device)), load_card("standard")
    opened = distinct_names([load(spec, **model) for spec in checkpoints])
    subjects = [ClassifierSubject(classifier, card, settings, None) for classifier in opened]
    wished: list[Sequence[Target]] = []
    for subject in subjects:
        identity = subject.classifier.identity
        check_explainable(subject.classifier, identity.name, wanted)
        names = class_names(identity.class_names, identity.num_classes)
        wished.append([Target.of(text, names) for text in dict.fromkeys(targets or ["predicted"])])
        if LABEL in wished[-1]:
            raise ProtocolError("--target label: a picture has no label; name a class, or give predicted")
    rows: list[GalleryRow] = []
    kept: dict[str, Heat] = {}
    for picture, image in zip(pictures, decoded, strict=True):
        for subject, classes in zip(subjects, wished, strict=True):
            pixels = to_pixels(image, subject.classifier.identity.preprocessing, picture)
            painter = Painter(wanted, classes, (), kept)
            rows += painter.rows(subject, pixels, Sample(picture, -1), Path(picture).stem, None, {})
    write_sheet(Gallery(", ".join(subject.classifier.identity.name for subject in subjects), tuple(rows)), path)
    if raw:
        write_maps(kept, path.with_suffix(".npz"))
    return [path, path.with_suffix(".npz")] if raw else [path]


def sheet_path(pictures: Sequence[str], out: Path | None) -> Path:
    """Return where the PNG goes: `out`, or `<stem>-cam.png` of the first picture in that folder, here if none is named.

    Raises:
        ProtocolError: it would not be a PNG, or would replace a picture.
    """
    name = f"{Path(pictures[0]).stem}-cam.png"
    path = Path(name) if out is None else out / name if out.is_dir() else out
    if path.suffix.lower() != ".png":
        raise ProtocolError(f"--out {out}: maps of pictures are a PNG; give a name that ends in .png, or a folder")
    if path.resolve() in {Path(picture).resolve() for picture in pictures}:
        raise ProtocolError(f"--out {path} is one of the pictures itself; give another name")
    return path


def _plain(methods: str) -> list[MapSpec]:
    """Return the methods without controls. Raises ProtocolError for what needs a label or a score."""
    specs = [spec for spec in parse_cams(methods) if not spec.is_control]
    for spec in specs:
        if spec != MapSpec(spec.method, options=spec.options):
            raise ProtocolError(
                f"--cams {methods}: a picture has neither label nor score; give methods alone, such as {spec.method}, "
                "and the class with --target"
            )
    if not specs:
        raise ProtocolError(
            f"--cams {methods}: controls only, which do not look at the image; give a method such as agcam"
        )
    return specs


def _bytes(picture: str) -> bytes:
    try:
        return bytes_of(Path(picture), MAX_FILE_BYTES)
    except OSError as fault:
        raise DataError(f"{picture}: cannot be read ({reason(fault)}); check its name") from None
