"""What an audit announces for maps of regions, of two objects and of changed images is what it asks, by any method."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from timm.models.vision_transformer import VisionTransformer

import robustkit
from robustkit.evaluations.condition import Cost, kind_of, words_of
from robustkit.evaluations.family import family_of
from robustkit.evaluations.maps import map_condition, parse_explained
from robustkit.protocol.card import Card, load_card
from robustkit.protocol.condition import CLEAN
from robustkit.tasks.labelled.subject import COPIES

pytestmark = pytest.mark.usefixtures("one_thread", "pageless")
SAMPLES = 3
REGIONS = ("object", "map-top", "map-bottom,map=smooth-grad,samples=3", "random")


def cost_of(text: str, card: Card) -> Cost:
    explained = parse_explained(text)
    condition = CLEAN if text == CLEAN.text else map_condition(explained) if explained else words_of(text).parse(text)
    return family_of(kind_of(text)).evaluator.cost(condition, card, 10)


@pytest.mark.parametrize(
    ("data", "options", "named"),
    [
        (
            "shapes",
            {"evaluations": [f"region-noise({region})" for region in REGIONS]},
            "samples=3",
        ),
        ("shapes-pairs", {"cams": "agcam,rollout,rise(masks=5),centre"}, "two-object(map=rise,masks=5)"),
        ("shapes-counterfactual", {"cams": "agcam,integrated-gradients(steps=3)"}, "gradients,steps=3)"),
    ],
)
def test_what_is_announced_is_asked(data: str, options: dict[str, Any], named: str, tmp_path: Path) -> None:
    asked = 0

    def count(module: torch.nn.Module, inputs: tuple[Any, ...]) -> None:
        nonlocal asked
        asked += len(inputs[0]) if isinstance(module, VisionTransformer) else 0

    given: dict[str, Any] = {"data_dir": f"embedded:{data}", "attacks": "none", "faithfulness": "none", "device": "cpu"}
    hook = torch.nn.modules.module.register_module_forward_pre_hook(count)
    try:
        run = robustkit.audit(
            "zoo:shapes-vit-quest", limit=SAMPLES, browse=0, setup_check=False, out=tmp_path / "run", **given, **options
        )
    finally:
        hook.remove()
    texts, card = run.manifest.conditions, load_card("standard")
    assert any(named in text for text in texts), texts
    announced = sum((cost_of(text, card) for text in texts), Cost(0))
    alone, grey = min(SAMPLES, 4), 1  # asked alone, too; and a grey image, which shows whether gradients pass
    answers = 2 * min(SAMPLES, 3)  # to know the checkpoint again, each twice
    assert asked == SAMPLES * announced.forwards + alone + grey + answers + 2 * COPIES  # are outputs random?
