"""Draw what `needs` measured on generated images, as the QUEST paper's Figures 1 and A8 do on photographs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from robustkit.data.dataset import Dataset, open_dataset
from robustkit.data.images import to_pixels
from robustkit.data.layouts import Sample
from robustkit.evaluations.family import family_of
from robustkit.evaluations.maps import EVERY_EXPLAINER
from robustkit.evaluations.maps.evaluate import masses
from robustkit.evaluations.maps.truth import open_truth
from robustkit.evaluations.subject import Batch, Settings
from robustkit.models.classifier import load
from robustkit.protocol.card import load_card
from robustkit.protocol.condition import Condition
from robustkit.report.run import Run
from robustkit.slices.counterfactuals import counterfactual_conditions
from robustkit.slices.gallery.sheet import Gallery, GalleryRow, Panel, write_sheet
from robustkit.slices.regions import VOCABULARY as REGIONS
from robustkit.slices.two_objects import two_object_condition
from robustkit.tasks.labelled.subject import ClassifierSubject

SHOWN = {"shapes-vit-standard": "standard", "shapes-vit-quest": "QUEST"}
"""The checkpoints that are drawn, and what they are called."""
TOP, BOTTOM = (REGIONS.parse(f"region-noise({region})") for region in ("map-top", "map-bottom"))
Rows = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Painter:
    """One checkpoint that looks at samples of a data set."""

    name: str
    dataset: Dataset

    @cached_property
    def subject(self) -> ClassifierSubject:
        """The checkpoint on the CPU."""
        return ClassifierSubject(load(f"zoo:{self.name}"), load_card("standard"), Settings(batch_size=1), None)

    def batch(self, sample: Sample) -> Batch:
        """Return a sample alone, with its truth."""
        preprocessing = self.subject.classifier.identity.preprocessing
        pixels = to_pixels(self.dataset.image(sample), preprocessing, sample.id)
        return Batch(pixels[None], [sample], [open_truth(self.dataset).locate(sample, preprocessing)])

    def shown(self, batch: Batch, condition: Condition | None) -> Tensor:
        """Return the pixels (1, 3, H, W) that a condition shows; None: as they are."""
        if condition is None:
            return batch.inputs
        rng = self.subject.rng(batch.samples, condition)
        return family_of(condition.name).evaluator.show(self.subject, batch, condition, rng).images()

    def tile(self, batch: Batch, condition: Condition | None, heading: str) -> Panel:
        """Return AG-CAM of the predicted class over what a condition shows."""
        pixels = self.shown(batch, condition)
        with EVERY_EXPLAINER["agcam"](self.subject.exact) as explainer:
            explained = explainer.explain(self.subject.inputs(pixels))
        place = int(explained.target[0])
        sure = explained.logits.softmax(dim=1)[0, place].item()
        label = batch.samples[0].label
        if condition is not None and "change" in dict(condition.parameters):
            label = batch.truths[0].changed(str(dict(condition.parameters)["change"])).label
        wrong = "" if place == label else " (wrong)"
        line = f"{self.dataset.class_names[place]} {sure:.0%}{wrong}"
        return Panel(f"{SHOWN[self.name]}, {heading}", _image(pixels), explained.maps[0].numpy(), (line,))

    def asked(self, batch: Batch) -> Iterator[Panel]:
        """Yield AG-CAM of each of two classes."""
        labels = torch.tensor([batch.samples[0].valid])
        with EVERY_EXPLAINER["agcam"](self.subject.exact) as explainer:
            explained = explainer.explain(self.subject.inputs(batch.inputs), labels)
        shares = masses(explained.maps, batch.truths[0].objects[None])[2][0]
        for place, label in enumerate(labels[0].tolist()):
            said = (f"asked for {self.dataset.class_names[label]}", f"{shares[place]:.0%} in it, of both")
            which, mask = ("first", "second")[place], batch.truths[0].objects[place].numpy()
            image = _image(batch.inputs)
            yield Panel(f"{SHOWN[self.name]}, the {which}", image, explained.maps[0, place].numpy(), said, mask)


def pictures(runs: Mapping[str, Run], folder: Path) -> Iterator[tuple[str, str]]:
    """Yield all pictures, as (path from the page, caption). runs: by folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, draw in (("figure-1", _regions), ("figure-a8", _two_objects), ("changed", _changed)):
        gallery, caption = draw(runs)
        write_sheet(gallery, folder / f"{name}.png")
        yield f"{name}.png", caption


def _regions(runs: Mapping[str, Run]) -> tuple[Gallery, str]:
    rows = {name: _records(runs["shapes"], name, TOP.text) for name in SHOWN}
    standard, quest = rows.values()
    held = [key for key in standard if quest[key]["correct"] and not standard[key]["correct"]]
    fell = [key for key in standard if standard[key]["correct"] and not quest[key]["correct"]]
    both = [[key for key in keys if all(side[key]["clean_correct"] for side in rows.values())] for keys in (held, fell)]
    states = {None: "as it is", TOP: "highest half drowned", BOTTOM: "lowest half drowned"}

    def tiles(painter: Painter, batch: Batch) -> Iterator[Panel]:
        yield from (painter.tile(batch, state, said) for state, said in states.items())

    chosen = [key for keys in both for key in keys[:2]]
    caption = (
        "After the paper's Figure 1: AG-CAM as the image is, and with the half drowned that the map had highest, or "
        f"lowest. Both are right as they are. Of {len(standard)} images QUEST alone is right without the highest half "
        f"on {len(both[0])} (the first two rows show such), standard attention alone on {len(both[1])} (the last two)"
    )
    return _gallery("Regions drowned in noise", "embedded:shapes", chosen, tiles), caption


def _two_objects(runs: Mapping[str, Run]) -> tuple[Gallery, str]:
    condition = two_object_condition("agcam")
    rows = {name: _records(runs["pairs"], name, condition.text) for name in SHOWN}
    found = [key for key in next(iter(rows.values())) if all(side[key]["both_found"] for side in rows.values())]
    caption = (
        "After the paper's Figure A8: AG-CAM asked for each of two objects, the asked one outlined. The first four of "
        f"the {len(found)} of {runs['pairs'].manifest.data.n} images in which both checkpoints find both classes"
    )
    return _gallery("Two objects", "embedded:shapes-pairs", found[:4], Painter.asked), caption


def _changed(runs: Mapping[str, Run]) -> tuple[Gallery, str]:
    changes = {
        condition: f"{dict(condition.parameters)['change']} changed" for condition in counterfactual_conditions()
    }
    ids = list(_records(runs["changed"], next(iter(SHOWN)), counterfactual_conditions("agcam")[0].text))[:2]
    dataset = open_dataset("embedded:shapes-counterfactual").select(ids=ids)
    painters, rows = [Painter(name, dataset) for name in SHOWN], []
    for sample in dataset.samples:
        batch = painters[0].batch(sample)
        for state, said in {None: "as it is", **changes}.items():
            drawn = tuple(painter.tile(batch, state, "AG-CAM") for painter in painters)
            rows.append(GalleryRow(sample.id, said, _image(painters[0].shown(batch, state)), drawn))
    caption = (
        "The first two images as they are, and with their colour, outline or background changed. Wrong means that the "
        "prediction is not the outline's class"
    )
    return Gallery("One thing changed", tuple(rows)), caption


def _gallery(title: str, spec: str, ids: Sequence[str], tiles: Callable[[Painter, Batch], Iterator[Panel]]) -> Gallery:
    dataset = open_dataset(spec).select(ids=ids)
    samples = {sample.id: sample for sample in dataset.samples}
    painters = [Painter(name, dataset) for name in SHOWN]
    rows = []
    for key in ids:
        batch = painters[0].batch(samples[key])
        names = " and ".join(dataset.class_names[label] for label in samples[key].valid or (samples[key].label,))
        drawn = tuple(tile for painter in painters for tile in tiles(painter, batch))
        rows.append(GalleryRow(key, names, _image(batch.inputs), drawn))
    return Gallery(title, tuple(rows))


def _records(run: Run, name: str, text: str) -> Rows:
    return {row["sample_id"]: row for row in run.table(name, text).to_pylist()}


def _image(pixels: Tensor) -> Any:
    return pixels[0].permute(1, 2, 0).contiguous().numpy()
