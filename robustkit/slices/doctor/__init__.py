"""Try an installation: a demo on embedded checkpoints and data, and tests of this machine with known answers.

The demo takes what shows in about a minute, at one radius and one severity, on so many samples that the four
attentions differ significantly. `--full` adds a radius, SPSA, all severities and a test of maps on the model.
AutoAttack has a small budget. Corruptions are those that need no further files.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ...cli.options import Place, SliceCommand, common, quiet_option, request_options, setting
from ...cli.terminal import console, run_and_show
from ...display.console import print_as_it_is
from ...pipeline.request import ClassificationRequest, SegmentationRequest

if TYPE_CHECKING:
    import torch


class UnexpectedAnswer(Exception):  # noqa: N818 - an answer rather than a fault
    """Something differs from what it must be; the message says what was found."""


def on_all_devices(check: Callable[[torch.device], str]) -> Callable[[], str]:
    """Return a check of all devices of this machine, from that of one; its line names several."""

    @wraps(check)
    def checked() -> str:
        from ...models.device import devices

        present = devices()
        for device in present:
            try:
                line = check(device)
            except UnexpectedAnswer as fault:
                raise UnexpectedAnswer(f"on {device}: {fault}") from None
        return line if len(present) == 1 else f"{line}, on {' and '.join(map(str, present))}"

    return checked


_AUTOATTACK = "autoattack(eps={},steps=10,targets=3,queries=100)"
_CHOSEN = "noise(severity=3),blur(severity=3),digital(severity=3)"
DEMO: dict[str, Any] = {
    "checkpoints": [f"zoo:shapes-vit-{name}" for name in ("standard", "quest", "elliptical", "elliptical-quest")],
    "data_dir": "embedded:shapes",
    "attacks": f"fgsm(eps=2/255),pgd(eps=2/255),{_AUTOATTACK.format('2/255,first=apgd-ce,second=16')}",
    "corruptions": _CHOSEN,
    "cams": "agcam",
    "faithfulness": "none",
    "limit": 128,
    "browse": 24,
}
SEGMENTERS: dict[str, Any] = {
    "checkpoints": ["zoo:shapes-segmenter-standard", "zoo:shapes-segmenter-quest"],
    "data_dir": "embedded:shapes",
    "attacks": "pgd,segpgd",
    "corruptions": _CHOSEN,
    "variant": "hendrycks",
    "limit": 20,
}
FULL_DEMO: dict[str, Any] = DEMO | {
    "attacks": f"fgsm,pgd,spsa(steps=3,directions=8),fgsm(eps=4/255),pgd(eps=4/255),{_AUTOATTACK.format('4/255')}",
    "corruptions": "noise,blur,digital",
    "faithfulness": "abpc",
}
FULL_SEGMENTERS: dict[str, Any] = SEGMENTERS | {"corruptions": "noise,blur,digital", "limit": 40}


def epilogue(classifiers: Path, segmenters: Path) -> str:
    return f"""
{classifiers} and {segmenters} contain report.html, summary.csv and
records/, one row per image. Next:
  robustkit report {classifiers} --details
    all tables: losses, calibration, each corruption, AutoAttack by stage
  robustkit compare {classifiers}
    paired differences with intervals and tests
  robustkit check {classifiers} --init
    draft a policy for CI
Your own checkpoint:
  robustkit inspect CHECKPOINT --data-dir IMAGES
    contents, attention formula, normalisation
  robustkit audit CHECKPOINT --data-dir IMAGES --limit 200 --out runs/first"""


@click.command(
    cls=SliceCommand,
    after="segment",
    short_help="run a short audit on embedded checkpoints and data",
)
@setting("--out", type=Place(writes=True), help="Run folder; default: robustkit-demo, with --full robustkit-demo-full.")
@request_options(ClassificationRequest, "device")
@setting("--full", is_flag=True, help="More samples, two radii, SPSA and all severities; takes minutes.")
@quiet_option
@common
def demo(out: Path | None, device: str, full: bool, quiet: bool) -> None:
    """Audit four embedded classifiers, one for each of four attentions, and two segmenters, on embedded images.

    \b
    robustkit demo
    robustkit demo --full --out runs/demo --device cpu
    """
    out = out or Path(f"robustkit-demo{'-full' * full}")
    classifiers, segmenters = (FULL_DEMO, FULL_SEGMENTERS) if full else (DEMO, SEGMENTERS)
    screen = console()
    screen.print(
        "Four small ViTs (standard, QUEST, Elliptical, Elliptical-QUEST attention) on generated shapes: clean, FGSM, "
        f"PGD, {'SPSA, ' * full}AutoAttack, corruptions, AG-CAM.\n"
    )
    run = run_and_show(ClassificationRequest(**classifiers, out=out, device=device), quiet=quiet)
    screen.print(
        "\nTwo small Segmenters (standard, QUEST) on the same kind of images: clean, PGD, SegPGD, corruptions.\n"
    )
    scenes = run_and_show(SegmentationRequest(**segmenters, out=out / "segmentation", device=device), quiet=quiet)
    print_as_it_is(screen, epilogue(run.path, scenes.path))
