"""Whole runs on a CUDA device, or the stand-in for one, against the same runs on the CPU."""

import os
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import stand_in
import torch
from click.testing import CliRunner
from small_audit import pages

import robustkit
from robustkit.cli.app import cli
from robustkit.common.environment import usual_workers
from robustkit.models.device import has_float64
from robustkit.pipeline.manifest import shard_size
from robustkit.pipeline.plan import plan_of
from robustkit.pipeline.request import ClassificationRequest, SegmentationRequest
from robustkit.tasks.labelled.subject import COPIES

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("pageless")]
needs_stand_in = pytest.mark.skipif(bool(stand_in.why_not()), reason=stand_in.why_not() or "there is a stand-in")
EXPLAINED: dict[str, Any] = {
    "checkpoints": ["zoo:shapes-vit-quest"],
    "data_dir": "embedded:shapes",
    "attacks": "none",
    "corruptions": "contrast(severity=3),pinch_and_twirl(severity=3),ripple(severity=3),lines(severity=3),"
    "circular_motion_blur(severity=3),transverse_chromatic_abberation(severity=3)",
    "constants": "cifar",
    "cams": "agcam,grad-cam,rollout,gradient",
    "watch_attention": True,
    "limit": 2,
    "batch_size": 4,  # a curve of faithfulness asks about as many at once, which some processors round otherwise
}
CORRUPTED: dict[str, Any] = {
    "checkpoints": ["zoo:shapes-vit-elliptical"],
    "data_dir": "embedded:shapes",
    "attacks": "none",
    "corruptions": "in-c(severity=1+5),-frost,in-c-bar(severity=3),laion-c(severity=3)",
    "constants": "imagenet",
    "limit": 3,
}
SEGMENTER: dict[str, Any] = {
    "checkpoints": ["zoo:shapes-segmenter-quest"],
    "data_dir": "embedded:shapes",
    "attacks": "pgd(steps=2),segpgd(steps=2)",
    "corruptions": "in-c(severity=3),-frost",
    "limit": 2,
}
MAPPED: dict[str, Any] = {
    "checkpoints": ["zoo:shapes-segmenter-quest"],
    "data_dir": "embedded:shapes",
    "attacks": "pgd(steps=2)",
    "cams": "agcam(of=*),legrad,rollout,chefer,layer-cam,grad-cam(over=component=30+30),smooth-grad,rise(masks=20)",
    "faithfulness": "abpc",
    "stability": True,
    "limit": 1,
    "batch_size": 4,
}


def evaluate(device: str, out: Path, request: Mapping[str, Any]) -> Mapping[str, str]:
    run = robustkit.segment if "segmenter" in request["checkpoints"][0] else robustkit.audit
    run(**request, out=out, device=device)
    return pages(out)


def attacked(place: Path) -> dict[str, Any]:
    """Return a request for all attacks on a small network of one's own."""
    return {
        "checkpoints": [str(place / "net.pth")],
        "data_dir": str(place / "images"),
        "model": {"arch": f"{place / 'net.py'}:build", "num_classes": 3},
        "attacks": "fgsm,pgd(steps=3),spsa(steps=2,directions=4),square(queries=10),autoattack(steps=3,queries=10),"
        "autoattack(version=fast,steps=3,queries=10),pgd(steps=12,loss=pma)",
        "evaluations": "spatial(degrees=3,shift=0.1)",
        "eps": "8/255",
        "limit": 6,
        "batch_size": 4,
    }


@needs_stand_in
@pytest.mark.parametrize(
    "what",
    [
        "attacked",
        "explained",
        *(pytest.param(each, marks=pytest.mark.slow) for each in ("corrupted", "segmenter", "mapped")),
    ],
)
def test_records_are_those_of_the_cpu_to_the_byte(tmp_path: Path, place: Path, what: str) -> None:
    kinds = {"explained": EXPLAINED, "corrupted": CORRUPTED, "segmenter": SEGMENTER, "mapped": MAPPED}
    request = kinds.get(what) or attacked(place)
    expected = evaluate("cpu", tmp_path / "cpu", request)
    with stand_in.devices() as seen:
        computed = evaluate("auto", tmp_path / "cuda", request)
        assert seen.launched > 1000  # it ran on the device
    assert expected and computed == expected


@pytest.mark.slow
@needs_stand_in
def test_without_float64_corruptions_are_made_on_the_cpu_and_it_is_said_once(tmp_path: Path) -> None:
    request = CORRUPTED | {"corruptions": "in-c(severity=2),-frost", "attacks": "pgd(steps=2)", "cams": "agcam"}
    request |= {"faithfulness": "none", "shard_size": 2, "batch_size": 2}
    expected = evaluate("cpu", tmp_path / "cpu", request)
    said: list[str] = []
    has_float64.cache_clear()
    try:
        with stand_in.devices(doubles=False):
            computed = evaluate("cuda", tmp_path / "cuda", request | {"say": said.append})
    finally:
        has_float64.cache_clear()
    assert said.count("cuda has no float64: corruptions are made on the CPU") == 1
    assert computed == expected


@needs_stand_in
def test_a_shard_is_uploaded_once_for_clean_and_all_corruptions(tmp_path: Path) -> None:
    request = {**CORRUPTED, "corruptions": "in-c(severity=4),-frost,saturate(severity=3)"}
    request |= {"limit": 6, "shard_size": 4, "batch_size": 2}
    with stand_in.devices() as seen:
        evaluate("cuda", tmp_path / "run", request)
    pictures = {key: count for key, count in seen.uploads.items() if len(key[0]) == 4 and min(key[0][2:]) > 16}
    inputs = {shape[0]: count for (shape, line), count in pictures.items() if line.startswith("robustkit/")}
    assert inputs == {4: 1, 2: 1, COPIES: 1}  # two shards, and noise
    lines = {line.partition(":")[0] for (_, line) in pictures}
    assert lines == {
        "robustkit/common/determinism.py",
        "corruptions/filters.py",
    }  # JPEG and pixelate are made on the host
    assert not any(
        line.startswith("robustkit/common/determinism.py:") and len(shape) == 4 for shape, line in seen.staged
    )
    assert len(list((tmp_path / "run" / "records").rglob("*.parquet"))) == 2 * 16


@needs_stand_in
def test_what_a_gpu_gets_by_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of 128, of small images up to 1024; units of up to eight times 128 samples by the memory of the device
    (the stand-in says 16 GiB), less where several processes share them; a decoding thread for each core.
    """

    def sizes(attacks: str, **more: Any) -> tuple[int, int]:
        request = ClassificationRequest(
            checkpoints=["zoo:shapes-vit-quest"], data_dir="embedded:shapes", attacks=attacks, out=tmp_path, **more
        )
        plan = plan_of(request)
        settings = plan.settings(None)
        return settings.batch_size, shard_size(plan, settings)

    with stand_in.devices():
        assert sizes("fgsm") == (1024, 256)
        assert sizes("fgsm", batch_size=128) == (128, 256) and sizes("fgsm", batch_size=512) == (512, 512)
        assert sizes("fgsm", limit=200) == (1024, 200)
        for gigabytes, samples in ((7.9, 128), (24, 256), (40, 512), (80, 1000)):  # there are 1000 images
            told = SimpleNamespace(total_memory=int(gigabytes * 2**30))
            with monkeypatch.context() as patched:
                patched.setattr(torch.cuda, "get_device_properties", lambda device, told=told: told)
                assert sizes("autoattack") == (1024, samples)
                assert sizes("autoattack", part="1/2") == (1024, 512)  # on another device, too
                scenes = {"checkpoints": ["zoo:shapes-segmenter-quest"], "data_dir": "embedded:shapes", "out": tmp_path}
                held = SegmentationRequest(**scenes, batch_size=8)  # images at their full size
                assert shard_size(plan_of(held), held.settings) == 32
        monkeypatch.setenv("WORLD_SIZE", "5")
        assert sizes("autoattack") == (1024, 200)
        monkeypatch.setenv("WORLD_SIZE", "64")
        assert sizes("autoattack") == (1024, 128)
    assert sizes("autoattack", device="cpu") == (16, 128)
    cores = usual_workers()
    assert cores == len(os.sched_getaffinity(0))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "64")
    assert usual_workers() == max(1, cores // 64)


@pytest.mark.parametrize(
    "words",
    [
        ["inspect", "zoo:shapes-vit-quest", "--data-dir", "embedded:shapes", "--limit", "8"],
        ["inspect", "zoo:shapes-segmenter-quest", "--data-dir", "embedded:shapes", "--limit", "2"],
        ["cam", "zoo:shapes-vit-quest", "--data-dir", "embedded:shapes", "--limit", "2"],
        ["corrupt", "picture.png", "--corruptions", "blur,pixelate,snow"],
        pytest.param(["doctor"], marks=pytest.mark.slow),
    ],
    ids=lambda words: "-".join(words[:2]).replace(":", "-"),
)
def test_commands_run_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cuda: torch.device, words: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    if "picture.png" in words:
        from PIL import Image

        Image.new("RGB", (48, 40), (90, 120, 30)).save("picture.png")
    done = CliRunner().invoke(cli, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    if words == ["doctor"]:
        assert done.output.count("on cpu and cuda") == 9
    assert os.environ.get("CUBLAS_WORKSPACE_CONFIG") or words == ["doctor"]
