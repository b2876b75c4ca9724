"""Folders of open_clip: logits and sizes of the library itself, and configs that would fetch or run something."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from clips import CLASSES, answers, draw, pictures
from safetensors.torch import save_file
from torch.nn import functional

import cam
import robustkit
from robustkit.common.preprocessing import UNPROVEN
from robustkit.errors import CheckpointError, ModelError, RobustkitWarning

pytestmark = pytest.mark.usefixtures("one_thread", "cache")
TEMPLATES = ("a photo of a {}.", "this is a {}.")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROBUSTKIT_CACHE", str(tmp_path / "cache"))


def test_a_tower_of_open_clip_says_its_size(tmp_path: Path) -> None:
    open_clip = pytest.importorskip("open_clip", reason='open_clip is an extra: pip install ".[clip]"')
    text = {"context_length": 77, "vocab_size": 49408, "width": 32, "heads": 2, "layers": 1}
    vision = {"image_size": 48, "layers": 1, "width": 64, "patch_size": 8, "head_width": 32}
    model = {"embed_dim": 24, "vision_cfg": vision, "text_cfg": text}
    draw(made := open_clip.CLIP(**model))
    save_file({k: v.contiguous() for k, v in made.state_dict().items()}, tmp_path / "open_clip_model.safetensors")

    def size(shown: dict[str, Any], **options: Any) -> tuple[tuple[int, int], str]:
        usual = {"mean": [0.48, 0.45, 0.4], "std": [0.26, 0.26, 0.27]}
        said = {"model_cfg": model, "preprocess_cfg": usual | shown}
        (tmp_path / "open_clip_config.json").write_text(json.dumps(said))
        identity = robustkit.load(f"local-dir:{tmp_path}", classes=CLASSES, **options).identity
        return identity.preprocessing.input_size, identity.preprocessing_source["input_size"]

    assert size({}) == size({"size": 32}) == ((48, 48), "metadata")  # the tower decides, as in open_clip
    assert size({}, img_size=32) == ((32, 32), "option")
    del vision["image_size"]
    with pytest.warns(RobustkitWarning, match=r"image size \(224, 224\), text|image size \(224, 224\) assumed"):
        assert size({}) == ((224, 224), "family")  # of which nothing but the library speaks
    vision["image_size"] = 48
    size({})
    theirs, _, _ = open_clip.create_model_and_transforms(f"local-dir:{tmp_path}", force_image_size=32)
    ours, image = robustkit.load(f"local-dir:{tmp_path}", classes=CLASSES, img_size=32), torch.rand(2, 3, 32, 32)
    with torch.no_grad():
        expected = functional.normalize(theirs.encode_image(ours.normalize(image)), dim=-1)
    torch.testing.assert_close(ours.network.embed(ours.normalize(image)), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("quick", [False, True])
def test_the_logits_are_those_of_open_clip(quick: bool, tmp_path: Path) -> None:
    open_clip = pytest.importorskip("open_clip", reason='open_clip is an extra: pip install ".[clip]"')
    text = {"context_length": 77, "vocab_size": 49408, "width": 32, "heads": 2, "layers": 2}
    vision = {"image_size": 32, "layers": 2, "width": 64, "patch_size": 8, "head_width": 32}
    config = {"embed_dim": 24, "vision_cfg": vision, "text_cfg": text, "quick_gelu": quick}
    shown = {"size": 32, "mean": [0.48, 0.45, 0.4], "std": [0.26, 0.26, 0.27], "interpolation": "bicubic"}
    said = {"model_cfg": config, "preprocess_cfg": shown | {"resize_mode": "shortest"}}
    (tmp_path / "open_clip_config.json").write_text(json.dumps(said))
    place = f"local-dir:{tmp_path}"
    theirs, _, preprocess = open_clip.create_model_and_transforms(place, load_weights=False)
    draw(theirs)
    save_file({k: v.contiguous() for k, v in theirs.state_dict().items()}, tmp_path / "open_clip_model.safetensors")
    ours, tokenizer = (
        robustkit.load(f"hf:{tmp_path}", classes=CLASSES, prompts=TEMPLATES),
        open_clip.get_tokenizer(place),
    )
    with torch.no_grad():
        rows = [theirs.encode_text(tokenizer([t.replace("{}", c) for t in TEMPLATES]), normalize=True) for c in CLASSES]
        rows = functional.normalize(torch.stack(rows).mean(dim=1), dim=-1)
        for image in pictures(squares=False):
            expected = theirs.logit_scale.exp() * theirs.encode_image(preprocess(image)[None], normalize=True) @ rows.T
            assert answers(ours, image).numpy() == pytest.approx(expected[0].numpy(), abs=1e-5)
    assert ours.identity.preprocessing_source["mean"] == "metadata"
    del said["preprocess_cfg"]["mean"]  # open_clip's default is taken then, which the file does not say
    (tmp_path / "open_clip_config.json").write_text(json.dumps(said))
    unsaid = robustkit.load(f"hf:{tmp_path}", classes=CLASSES).identity
    assert (
        unsaid.preprocessing.mean == open_clip.OPENAI_DATASET_MEAN and unsaid.preprocessing_source["mean"] in UNPROVEN
    )
    assert isinstance(ours.network.tower, timm.models.vision_transformer.VisionTransformer)
    assert cam.AGCAM(ours)(torch.rand(1, 3, 32, 32), torch.tensor([1])).shape[-2:] == (32, 32)


@pytest.mark.parametrize(
    ("part", "given", "said"),
    [
        ("text_cfg", {"tokenizer_kwargs": {"trust_remote_code": True}}, "trust_remote_code, which may name code or"),
        ("text_cfg", {"tokenizer_kwargs": {"bpe_path": "/etc/passwd"}}, "bpe_path, which may name code or files"),
        ("text_cfg", {"hf_model_name": "roberta-base"}, "'roberta-base' of the Hub, which nothing here fetches"),
        ("text_cfg", {"tokenizer_kwargs": [{}]}, "tokenizer_kwargs has"),
        ("vision_cfg", {"timm_model_name": "hf-hub:some-org/some"}, "expected a network of timm"),
        ("vision_cfg", {"timm_model_name": "resnet18", "timm_model_pretrained": True}, "would fetch other weights"),
        ("preprocess_cfg", {"resize_mode": []}, r"resize_mode \[\] is not supported"),
    ],
)
def test_a_config_of_open_clip_fetches_and_runs_nothing(part: str, given: Any, said: str, tmp_path: Path) -> None:
    pytest.importorskip("open_clip", reason='open_clip is an extra: pip install ".[clip]"')
    config: Any = {"model_cfg": {"embed_dim": 8, "text_cfg": {}, "vision_cfg": {}}, "preprocess_cfg": {}}
    (config["preprocess_cfg"] if part == "preprocess_cfg" else config["model_cfg"][part]).update(given)
    (tmp_path / "open_clip_config.json").write_text(json.dumps(config))
    save_file({"logit_scale": torch.ones(())}, tmp_path / "open_clip_model.safetensors")
    with pytest.raises((CheckpointError, ModelError), match=said):
        robustkit.load(f"hf:{tmp_path}", classes=CLASSES)
