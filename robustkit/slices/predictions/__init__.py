"""Predictions of other systems: files of labels or probabilities become records.

This module has the command that writes images for them, and imports what it needs when it runs.
"""

from __future__ import annotations

from pathlib import Path

import click

from ...cli.options import Place, SliceCommand, common, images_option, setting
from ...cli.terminal import console
from ...display.console import print_as_it_is, print_line


@click.command(
    cls=SliceCommand,
    name="export-data",
    after="inspect",
    short_help="write a condition's images as PNG, for another system",
)
@click.argument("run", type=Place(file_okay=False))
@setting("--condition", required=True, help="Condition of the run: clean, a corruption, or an attack with kept images.")
@setting("--out", type=Place(writes=True), required=True, help="New or empty folder to write to.")
@setting("--checkpoint", help="Checkpoint of the run; required where each is shown other images.")
@images_option("Where the images of the run are now; default: where they were.", required=False)
@common
def export_data(run: Path, condition: str, out: Path, checkpoint: str | None, data_dir: str | None) -> None:
    """Write the images of a condition as PNG, exactly as the run's checkpoint is shown them before normalisation.

    Another system can predict on them; robustkit audit predictions:FILE reads what it predicts. The folder also has
    samples.csv (sample_id, label, file, sha256) and export.json, and appears whole or not at all. Adversarial images
    (--keep-adversarials) are rounded to 8 bits; the output says how far.

    \b
    robustkit export-data runs/vit --condition "corruption(fog,severity=3)" --out fog-3
    robustkit export-data runs/vit --condition "pgd(eps=1/255,steps=20)" --checkpoint vit --out pgd
    """
    from ...runs.folder import RunFolder
    from .export import export_data as export

    done = export(RunFolder.existing(run), condition, out, checkpoint, data_dir)
    exact = f"rounded to 8 bits, by at most {done.rounding:.2f} of 255 levels" if done.rounding else "exact pixels"
    lost = f"; {len(done.unreadable)} could not be read, such as {done.unreadable[0]}" if done.unreadable else ""
    print_line(console(), f"{done.checkpoint} under {done.condition}: {done.n} images, {exact}{lost}")
    print_as_it_is(console(), f"samples: {out / 'samples.csv'}")
