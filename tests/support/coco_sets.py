"""Random COCO annotations and results: crowds, equal scores, images without anything, a category without objects."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

HEIGHT, WIDTH = 60, 80
Entry = dict[str, Any]


def code_of(mask: np.ndarray[Any, Any]) -> Entry:
    """Return a mask (H, W) as a list of run lengths, which begins with what is outside."""
    flat = mask.ravel(order="F")
    places = np.flatnonzero(np.diff(flat)) + 1
    counts = np.diff([0, *places, flat.size]).tolist()
    return {"size": list(mask.shape), "counts": [0, *counts] if flat[0] else counts}


def coco_set(
    seed: int, images: int = 12, most: int = 30, compress: Callable[[np.ndarray[Any, Any]], Entry] | None = None
) -> tuple[Entry, list[Entry]]:
    """Return annotations and results. most: results of an image. compress: from a mask to its code, of sets of masks;
    without one they are of boxes."""
    draw = np.random.default_rng(seed)
    truth: Entry = {
        "images": [],
        "annotations": [],
        "categories": [{"id": 7 * k + 1, "name": f"c{k}"} for k in range(4)],
    }
    results: list[Entry] = []
    for place in range(images):
        image = 1000 - 3 * place  # their order is not that of the file
        truth["images"].append({"id": image, "file_name": f"{place:02d}.png", "width": WIDTH, "height": HEIGHT})
        objects = [_object(draw, image, compress is not None) for _ in range(draw.integers(0, 7))]
        for each in objects:
            each["id"] = len(truth["annotations"]) + 1
            truth["annotations"].append(each)
        for _ in range(0 if draw.random() < 0.15 else most):
            near = objects[draw.integers(len(objects))] if objects and draw.random() < 0.7 else None
            results.append(_result(draw, image, near, compress))
    return truth, [results[place] for place in draw.permutation(len(results))]


def _object(draw: np.random.Generator, image: int, masks: bool) -> Entry:
    width, height = draw.uniform(2, 40, 2)
    x, y = draw.uniform(0, WIDTH - width), draw.uniform(0, HEIGHT - height)
    area = width * height if draw.random() < 0.8 else draw.choice([1024.0, 9216.0, 5.0, 20000.0])  # ends of sizes
    plain = {"image_id": image, "category_id": int(7 * draw.integers(3) + 1), "bbox": [x, y, width, height]}
    made: Entry = {**plain, "area": float(area), "iscrowd": int(draw.random() < 0.2)}
    if masks and made["iscrowd"]:
        mask = np.zeros((HEIGHT, WIDTH), np.uint8)
        mask[int(y) : int(y + height) + 1, int(x) : int(x + width) + 1] = 1
        made["segmentation"] = code_of(mask & (draw.random(mask.shape) < 0.7))
    elif masks:
        corners = [x, y, x + width, y + draw.uniform(0, 3), x + width - draw.uniform(0, 4), y + height, x, y + height]
        second = [x, y, x + 5, y, x + 5, y + 5, x, y + 5]
        made["segmentation"] = [corners, second] if draw.random() < 0.3 else [corners]
    return made


def _result(draw: np.random.Generator, image: int, near: Entry | None, compress: Any) -> Entry:
    box = np.array([*draw.uniform(0, 50, 2), *draw.uniform(1, 40, 2)])
    category = int(7 * draw.integers(4) + 1)
    if near is not None:
        box = np.array(near["bbox"]) + draw.normal(0, 3 * draw.random(), 4)
        category = near["category_id"] if draw.random() < 0.8 else category
    box[2:] = np.abs(box[2:])
    made: Entry = {"image_id": image, "category_id": category, "score": float(np.round(draw.random(), 1))}
    if compress is None:
        return made | {"bbox": box.tolist()}
    x, y, width, height = np.maximum(box, 0)
    mask = np.zeros((HEIGHT, WIDTH), np.uint8)
    mask[int(y) : int(y + height), int(x) : int(x + width)] = draw.random() > 0.1  # some are empty
    return made | {"segmentation": compress(mask & (draw.random(mask.shape) < 0.95))}


def write_json(path: Path, value: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))
    return path
