"""The audit on the real ViT-Tiny, robust ResNets and real images, where the folder shared/ lies beside the checkout."""

import zipfile
from pathlib import Path

import pytest
import torch
from PIL import Image

import robustkit

SHARED = Path(__file__).parents[1].parent / "shared"
VIT = SHARED / "weights" / "vit_tiny_patch16_224.augreg_in21k_ft_in1k.safetensors"
VAL = SHARED / "data" / "imagenet-val" / "val"
CIFAR = SHARED / "data" / "cifar10-test.zip"
RESNETS = Path(__file__).parent / "cifar_resnets.py"
pytestmark = [
    pytest.mark.shared,
    pytest.mark.skipif(not SHARED.is_dir(), reason="needs the real data and weights of ../shared"),
]


def first_by_name(count: int) -> list[str]:
    paths = sorted(VAL.glob("*/*.JPEG"), key=lambda path: path.name)[:count]
    return [str(path.relative_to(VAL)) for path in paths]


def test_clean_predictions_are_timms_own(tmp_path: Path) -> None:
    import timm
    from safetensors.torch import load_file
    from timm.data import ImageNetInfo, create_transform, resolve_data_config

    ids = tmp_path / "ids.txt"
    ids.write_text("\n".join(first_by_name(24)))
    run = robustkit.audit(
        [VIT], data_dir=VAL, attacks="fgsm", ids=ids, out=tmp_path / "run", batch_size=8, shard_size=16, device="cpu"
    )
    name = run.manifest["checkpoints"][0]["name"]
    clean = run.table(name, "clean").to_pylist()
    net = timm.create_model("vit_tiny_patch16_224.augreg_in21k_ft_in1k", pretrained=False).eval()
    net.load_state_dict(load_file(VIT))
    transform = create_transform(**resolve_data_config(model=net), is_training=False)
    wnids = list((SHARED / "data" / "imagenet-val" / "synsets.txt").read_text().splitlines())
    place = {line.split()[0]: index for index, line in enumerate(wnids)}
    assert [ImageNetInfo().index_to_label_name(i) for i in (0, 999)] == [w.split()[0] for w in (wnids[0], wnids[999])]
    for row in clean:
        x = transform(Image.open(VAL / row["sample_id"]).convert("RGB"))[None]
        with torch.inference_mode():
            logits = net(x)[0]
        label = place[row["sample_id"].split("/")[0]]
        assert (row["label"], row["prediction"]) == (label, int(logits.argmax()))
        assert row["nll"] == pytest.approx(-logits.log_softmax(0)[label].item(), abs=1e-4)
        assert row["top5"] == (label in logits.topk(5).indices.tolist())
    attacked = run.table(name, "fgsm(eps=1/255)").to_pandas()
    assert attacked["linf"].max() <= 1 / 255 + 1e-6 and attacked["correct"].sum() < sum(r["correct"] for r in clean)


@pytest.mark.slow
def test_robust_resnets_of_ones_own_factory_keep_their_measured_accuracy(tmp_path: Path) -> None:
    """Clean on 1000 images within a point; PGD-30 on 200 images at most 1.5 points above the figures."""
    thousand, hundreds = tmp_path / "1000.txt", tmp_path / "200.txt"
    with zipfile.ZipFile(CIFAR) as archive:
        names = sorted((n for n in archive.namelist() if n.endswith(".png")), key=lambda name: name.split("/")[1])
    thousand.write_text("\n".join(names[:1000]))
    hundreds.write_text("\n".join(names[:200]))
    measured = {"resnet2b": (0.703, 0.57, 0.155), "resnet4b": (0.771, 0.65, 0.155)}
    for name, (clean, *robust) in measured.items():
        checkpoint = SHARED / "weights" / "cifar10" / f"{name}.pth"
        model = {"arch": f"{RESNETS}:{name}"}
        runs = [
            robustkit.audit(
                [checkpoint], data_dir=CIFAR, ids=ids, attacks=attacks, eps=eps, out=tmp_path / out, model=model
            )
            for ids, attacks, eps, out in (
                (thousand, "", None, f"{name}-clean"),
                (hundreds, "pgd(steps=30,restarts=2)", "2/255,8/255", f"{name}-pgd"),
            )
        ]
        top1 = [run.results().query("metric == 'top1'")["value"].tolist() for run in runs]
        assert abs(top1[0][0] - clean) <= 0.01
        for value, figure in zip(top1[1][1:], robust, strict=True):
            assert value <= figure + 0.015 and value > 0.05
        assert all(not flags for run in runs for flags in run.results()["flags"])
