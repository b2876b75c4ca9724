"""Runs with pictures and maps made by hand, and the report's page of one, parsed."""

import io
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from manifests import whole
from PIL import Image
from sealing import seal

from robustkit.protocol.card import load_card
from robustkit.report.run import Run
from robustkit.runs.kept_images import Picture, write_pictures
from robustkit.tasks.labelled.subject import CLASSIFICATION

PGD = "pgd(eps=1/255,steps=20)"
FOG = [f"corruption(fog,severity={severity})" for severity in (1, 2, 3)]
CONDITIONS = ["clean", PGD, *FOG, "cam(agcam)", "cam(centre)"]
MAPS = pa.schema([*CLASSIFICATION, ("degenerate", pa.bool_()), ("abpc", pa.float32())])
VOID = {"meta", "img", "input", "br", "hr", "link", "wbr"}
HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "</script></style></title>",
    "{{7*7}}{% raw %}",
    'it\'s "quoted" &amp; <b>',
    "x" * 300,
    "\u202eright to left\u202e \u05d0\u05d1",
    "two\nlines\ttab",
)


class Page(HTMLParser):
    """Tags with their attributes, and the text between them; refuses tags that are closed by another."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.said: dict[str, list[str]] = {}
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert not self._open

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        for tag in set(self._open):
            self.said.setdefault(tag, []).append(data)

    def all(self, tag: str) -> list[dict[str, str]]:
        return [attrs for name, attrs in self.tags if name == tag]

    def text(self, tag: str = "main") -> str:
        return " ".join("".join(self.said.get(tag, [])).split())


def webp(seed: int) -> bytes:
    buffer = io.BytesIO()
    noise = np.random.Generator(np.random.PCG64(seed)).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    Image.fromarray(noise).save(buffer, "WEBP", lossless=True)
    return buffer.getvalue()


def heat() -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(np.arange(64, dtype=np.uint8).reshape(8, 8) * 4).save(buffer, "PNG")
    return buffer.getvalue()


def make_run(
    path: Path,
    checkpoints: tuple[str, ...] = ("one", "two"),
    classes: tuple[str, ...] = ("cat", "dog", "owl"),
    ids: tuple[str, ...] = ("a.png", "b.png", "c.png"),
    shown: bool = True,
) -> Run:
    """Sample k is of class k % 3; the second checkpoint is wrong about the second sample clean, each about the first
    under PGD, and at severity 3 of fog all are the third class.
    """
    run = Run(path)
    entry = {
        "attention": "quest",
        "attention_source": "option",
        "spec": "vit.pth",
        "sha256": "ab",
        "arch": "vit",
        "num_classes": 3,
        "preprocessing": {"input_size": [8, 8], "mean": [0.5], "std": [0.5]}
        | {"interpolation": "bicubic", "crop_mode": "center", "crop_pct": 1.0},
    }
    card = load_card("standard")
    data = {"n": len(ids), "name": "pets", "root": "pets", "layout": "folders", "digest": "cd", "classes": 3}
    run.write_manifest(
        whole(
            {
                "checkpoints": [entry | {"name": name} for name in checkpoints],
                "conditions": CONDITIONS,
                "claims": {PGD: {"norm": "linf", "eps": 1 / 255}},
                "protocol": {
                    "tag": card.tag,
                    "name": card.name,
                    "version": 1,
                    "digest": card.digest,
                    "space": "pixels",
                    "parameters": card.parameters,
                }
                | {"summary": card.summary, "source": card.source, "caveats": []},
                "data": data | {"class_names": list(classes)},
                "pictures": list(ids) if shown else [],
                "bad_images": [],
                "seed": 0,
                "arguments": {},
                "command": "robustkit audit one two",
                "deciding": {"dtype": "float32"},
                "batch_size": 2,
                "device": "cpu",
                "robustkit": "0",
                "versions": {"torch": "2"},
            }
        )
    )
    for which, name in enumerate(checkpoints):
        for condition in CONDITIONS:
            rows, pictures = [], {}
            schema = MAPS if condition.startswith("cam(") else CLASSIFICATION
            for place, sample in enumerate(ids):
                label = place % 3
                wrong = (which == 1 and place == 1) or (condition == PGD and place == 0)
                prediction = 2 if condition == FOG[2] else (label + wrong) % 3
                rows.append(
                    {"sample_id": sample, "label": label, "prediction": prediction, "correct": prediction == label}
                    | {"top5": True, "nll": 0.5, "confidence": 0.75, "l2": 0.0}
                    | {"linf": 1 / 255 if condition == PGD else 0.0}
                    | ({"degenerate": False, "abpc": 0.25} if condition.startswith("cam(") else {})
                )
                if condition == PGD:
                    pictures[sample] = Picture(webp(100 + which + place), webp(200 + which + place))
                elif condition.startswith("cam("):
                    pictures[sample] = Picture(heat=heat())
                elif condition in ("clean", FOG[1]):
                    pictures[sample] = Picture(webp(10 + place + 50 * CONDITIONS.index(condition)))
            for shard, some in enumerate(part for part in (rows[:2], rows[2:]) if part):
                run.write_shard(run.shard_path(name, condition, shard), pa.Table.from_pylist(some, schema=schema))
            write_pictures(run, name, condition, 0, pictures if shown else {}, {})
    return seal(run)


def page_of(run: Run) -> Page:
    return Page((run.path / "report.html").read_text("utf-8"))
