"""The audit on the real ViT-Tiny, robust ResNets and real images, where shared/ lies next to the checkout."""

import zipfile
from pathlib import Path

import pytest
import torch
from PIL import Image
from places import SHARED, SUPPORT

import robustkit

VIT = SHARED / "weights" / "vit_tiny_patch16_224.augreg_in21k_ft_in1k.safetensors"
VAL = SHARED / "data" / "imagenet-val" / "val"
CIFAR = SHARED / "data" / "cifar10-test.zip"
RESNETS = SUPPORT / "cifar_resnets.py"
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
    ids.write_text("\n".join(first_by_name(12)))
    run = robustkit.audit(
        [VIT],
        data_dir=VAL,
        attacks="none",
        ids=ids,
        out=tmp_path / "run",
        batch_size=5,
        shard_size=8,
        device="cpu",
        setup_check=False,
    )
    name = run.manifest.checkpoints[0].name
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
    assert len(clean) == 12


@pytest.mark.slow
def test_a_vit_in_the_layout_of_transformers_is_audited_as_timms(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason='transformers is an extra: pip install ".[hf]"')
    from scripts.hf.convert_vit import write

    ids = tmp_path / "ids.txt"
    ids.write_text("\n".join(first_by_name(50)))
    theirs = write(robustkit.load(VIT), tmp_path / "theirs")
    run = robustkit.audit(
        [VIT, f"hf:{theirs}"],
        data_dir=VAL,
        attacks="fgsm,pgd(steps=2)",
        ids=ids,
        out=tmp_path / "run",
        device="cpu",
        model={"crop_mode": "center-floor"},  # as the library's processor cuts; timm rounds half a pixel to even
    )
    for condition in ("clean", "fgsm(eps=1/255)", "pgd(eps=1/255,steps=2)"):
        one, other = (run.table(name, condition).to_pandas() for name in run.manifest.names)
        for column in ("sample_id", "label", "prediction", "correct"):
            assert one[column].tolist() == other[column].tolist(), condition
        assert one["nll"].to_numpy() == pytest.approx(other["nll"].to_numpy(), abs=1e-3)
        if condition != "clean":
            assert one["linf"].tolist() == other["linf"].tolist()


@pytest.mark.slow
def test_corruptions_cost_accuracy_and_are_held_against_alexnet(tmp_path: Path) -> None:
    ids = tmp_path / "ids.txt"
    ids.write_text("\n".join(first_by_name(8)))
    run = robustkit.audit(
        [VIT],
        data_dir=VAL,
        attacks="none",
        corruptions="noise,blur(severity=1)",
        ids=ids,
        out=tmp_path / "run",
        browse=0,
        setup_check=False,
    )
    rows = {(row["condition"], row["metric"]): row for row in run.results().to_dict("records")}
    clean = 1 - rows["clean", "top1"]["value"]
    by_severity = [1 - rows[f"corruption(gaussian_noise,severity={s})", "top1"]["value"] for s in (1, 2, 3, 4, 5)]
    assert clean < 0.4 < by_severity[4] and by_severity[0] < by_severity[4]
    ce = rows["corruption(gaussian_noise)", "ce"]
    assert ce["value"] == pytest.approx(sum(by_severity) / 5 / 0.886428) and all(
        "assumed" in flag["text"] for flag in ce["flags"]
    )
    assert ("noise", "mean_error") in rows and ("blur", "mean_error") not in rows and ("in-c", "mce") not in rows


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


@pytest.mark.slow
def test_autoattack_leaves_an_undefended_vit_nothing(tmp_path: Path) -> None:
    ids = tmp_path / "ids.txt"
    ids.write_text("\n".join(first_by_name(2)))
    run = robustkit.audit([VIT], data_dir=VAL, attacks="autoattack", ids=ids, out=tmp_path / "run", device="cpu")
    name = run.manifest.checkpoints[0].name
    rows = run.table(name, "autoattack(eps=1/255,version=standard)").to_pylist()
    right = sum(row["correct"] for row in run.table(name, "clean").to_pylist())
    broken_by = [row["broken_by"] for row in rows]
    assert right >= 1 and broken_by.count("apgd-ce") == right and broken_by.count("clean") == 2 - right
    assert all(not row["correct"] and row["linf"] <= 1 / 255 + 1e-6 for row in rows)
    # The original makes 102 forwards for each sample in this stage alone.
    assert all(row["forwards"] <= 10 for row in rows)
    assert all("was assumed: not checked" in flag["text"] for flags in run.results()["flags"] for flag in flags)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "arch", "norm", "eps"),
    [
        ("resnet4b.pth", "cifar_resnets.py:resnet4b", "linf", "2/255"),
        ("resnet2b.pth", "cifar_resnets.py:resnet2b", "l2", "0.5"),
        ("vit_pgd_2_3_16_torchport.safetensors", "cifar_vit.py:vit_2_16", "linf", "8/255"),
    ],
)
def test_autoattack_is_as_strong_as_the_original_on_robust_models(
    tmp_path: Path, file: str, arch: str, norm: str, eps: str
) -> None:
    """Stage by stage at most one sample above pyautoattack's; saved adversarials are what the records say."""
    pytest.importorskip("pyautoattack", reason="pyautoattack is not installed")
    from robustkit.evaluations.attacks.results import stages_of

    model = {"arch": f"{SUPPORT / arch}"}
    checkpoint = SHARED / "weights" / "cifar10" / file
    for engine in ("robustkit", "pyautoattack"):
        run = robustkit.audit(
            [checkpoint],
            data_dir=CIFAR,
            limit=40,
            attacks="autoattack",
            engine=engine,
            eps=eps,
            norm=norm,
            out=tmp_path / "run",
            model=model,
        )
    name = run.manifest.checkpoints[0].name
    ours, theirs = (stages_of(run.table(name, text)) for text in run.manifest.conditions[1:])
    assert [stage.name for stage in ours] == [stage.name for stage in theirs]
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.standing <= other.standing + 1
    assert ours[0].standing > ours[-1].standing > 0
    assert sum(stage.forwards for stage in ours) < sum(stage.forwards for stage in theirs)


@pytest.mark.slow
def test_saved_adversarials_are_inside_the_ball_and_wrong_in_float32(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    import attacks
    from robustkit.common.determinism import SampleRng
    from robustkit.data.dataset import open_dataset
    from robustkit.data.images import to_pixels

    classifier = robustkit.load(str(SHARED / "weights/cifar10/resnet4b.pth"), arch=f"{RESNETS}:resnet4b")
    dataset = open_dataset(CIFAR, num_classes=10).select(limit=60, ids=None, seed=0)
    pixels = torch.stack([to_pixels(dataset.image(s), classifier.identity.preprocessing) for s in dataset.samples])
    images, labels = pixels.float() / 255, torch.tensor([sample.label for sample in dataset.samples])
    rng = SampleRng.of([s.id for s in dataset.samples], seed=0, condition="saved", device="cpu")
    for norm, eps in (("linf", 8 / 255), ("l2", 0.5)):
        threat = attacks.ThreatModel(norm, eps)  # type: ignore[arg-type]
        result = attacks.AutoAttack(threat, queries=300).run(classifier, images, labels, rng=rng, batch_size=32)
        assert isinstance(result, attacks.StagedResult)
        save_file({"points": result.adversarials, "broken_by": result.broken_by}, tmp_path / "saved.safetensors")
        saved = load_file(tmp_path / "saved.safetensors")
        points, broken = saved["points"], saved["broken_by"] >= 0
        assert 20 < broken.sum() < 60 and set(saved["broken_by"].tolist()) >= {-1, 0, 1}
        change = (points - images).double().flatten(1)
        size = change.abs().amax(dim=1) if norm == "linf" else change.norm(dim=1)
        assert size.max() <= eps + 1e-6 and points.min() >= 0 and points.max() <= 1
        with torch.inference_mode():
            wrong = torch.cat([classifier(point[None]).argmax(dim=1) for point in points]) != labels
        assert torch.equal(wrong, broken)
        assert torch.equal(points[~broken], images[~broken])


@pytest.mark.slow
def test_agcam_scores_of_a_few_images_by_plain_loops(tmp_path: Path) -> None:
    """The published protocol on the first 6 images by name, each score of each image from the definitions."""
    import csv
    import math

    import cv2
    import numpy as np
    import timm
    from cam_oracles import agcam_by_detaching, upsampled_slowly
    from safetensors.torch import load_file

    names = first_by_name(6)
    (tmp_path / "ids.txt").write_text("\n".join(names))
    places = SHARED / "data" / "imagenet-val" / "boxes.csv"
    run = robustkit.audit(
        [VIT],
        data_dir=VAL,
        attacks="none",
        cams="agcam(faithfulness=none)",
        boxes=places,
        ids=tmp_path / "ids.txt",
        protocol="agcam-paper",
        out=tmp_path / "run",
    )
    table = run.table(run.manifest.checkpoints[0].name, "cam(agcam,faithfulness=none)")
    found = {row["sample_id"]: row for row in table.to_pylist()}
    net = timm.create_model("vit_tiny_patch16_224.augreg_in21k_ft_in1k", pretrained=False).eval()
    net.load_state_dict(load_file(VIT))
    boxes: dict[str, list[list[float]]] = {}
    with places.open() as lines:
        for line in csv.DictReader(lines):
            corners = [float(line[corner]) for corner in ("xmin", "ymin", "xmax", "ymax")]
            boxes.setdefault(Path(line["image"]).stem, []).append(corners)
    for name in names:
        image = Image.open(VAL / name).convert("RGB")
        small = np.asarray(image.resize((224, 224), Image.Resampling.BILINEAR), np.float32)
        x = torch.from_numpy(small / 255 * 2 - 1).permute(2, 0, 1)
        with torch.no_grad():
            predicted = int(net(x[None]).argmax())
        heat = upsampled_slowly(agcam_by_detaching(net, x, predicted), (14, 14), (224, 224)).numpy()
        truth, mask = np.zeros((224, 224), bool), heat >= 0.5
        for x0, y0, x1, y1 in boxes[Path(name).stem]:
            left, right = math.floor(x0 * 224 / image.width), math.ceil(x1 * 224 / image.width)
            top, bottom = math.floor(y0 * 224 / image.height), math.ceil(y1 * 224 / image.height)
            truth[top:bottom, left:right] = True
        box = np.zeros_like(mask)
        for left, top, width, height, _ in cv2.connectedComponentsWithStats(mask.astype(np.uint8))[2][1:]:
            box[top : top + height, left : left + width] = True
        row = found[name]
        assert row["target"] == predicted and row["correct"] == (row["label"] == predicted)
        for mode, marked in (("mask", mask), ("box", box)):
            both = (marked & truth).sum()
            expected = {
                "pixel_accuracy": (marked == truth).mean(),
                "iou": both / (marked | truth).sum(),
                "dice": 2 * both / (marked.sum() + truth.sum()),
            }
            for score, value in expected.items():
                assert row[f"{mode}_{score}"] == pytest.approx(value, abs=2e-4), (name, mode, score)
        assert row["pointing_game"] == truth.flat[heat.argmax()]


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_agcam_scores_are_those_measured_with_plain_loops(tmp_path: Path) -> None:
    """The published protocol on the first 200 images by name, of which 145 are right; ABPC on the first 60 of these."""
    ids = tmp_path / "ids.txt"
    boxes = SHARED / "data" / "imagenet-val" / "boxes.csv"

    def scores(count: int, cams: str) -> dict[tuple[str, str], dict[str, object]]:
        ids.write_text("\n".join(first_by_name(count)))
        run = robustkit.audit(
            [VIT],
            data_dir=VAL,
            attacks="none",
            cams=cams,
            boxes=boxes,
            ids=ids,
            protocol="agcam-paper",
            out=tmp_path / f"run-{count}",
        )
        return {(row.condition, row.metric): row for row in run.summary()}

    found = scores(200, "agcam(faithfulness=none),agcam-full(faithfulness=none)")
    measured = {
        ("agcam", "mask"): (0.5580, 0.2106, 0.3327, 2e-4),
        ("agcam", "box"): (0.6327, 0.3674, 0.5056, 2e-4),
        ("agcam-full", "mask"): (0.5595, 0.2179, 0.3408, 2e-4),
        ("agcam-full", "box"): (0.6314, 0.3731, 0.5103, 2e-4),
        ("centre", "mask"): (0.652, 0.435, 0.590, 0.005),
        ("centre", "box"): (0.666, 0.477, 0.627, 0.005),
        ("full", "box"): (0.520, 0.520, 0.631, 0.005),
    }
    for (method, mode), (*figures, within) in measured.items():
        rows = [
            found[f"cam({method},faithfulness=none,mode={mode})", f"cam_{name}"]
            for name in ("pixel_accuracy", "iou", "dice")
        ]
        assert [row.value for row in rows] == pytest.approx(figures, abs=within)
        assert {row.n for row in rows} == {145}
    for method, figure in (("agcam", 130 / 145), ("agcam-full", 128 / 145), ("centre", 128 / 145)):
        assert found[f"cam({method},faithfulness=none)", "pointing_game"].value == pytest.approx(figure, abs=1e-6)
    names = first_by_name(200)
    right = robustkit.Run(tmp_path / "run-200")
    rows = right.table(right.manifest.checkpoints[0].name, "cam(agcam,faithfulness=none)").to_pylist()
    known = {row["sample_id"]: row["correct"] for row in rows}
    enough = next(count for count in range(60, 200) if sum(known[name] for name in names[:count]) == 60)
    found = scores(enough, "agcam,agcam-full")
    measured_abpc = {"agcam": (0.319, 0.002), "agcam-full": (0.335, 0.002), "centre": (0.216, 0.01)}
    for method, (figure, within) in (measured_abpc | {"random": (0.016, 0.03)}).items():
        row = found[f"cam({method})", "abpc"]
        assert (row.value, row.n) == (pytest.approx(figure, abs=within), 60)


@pytest.mark.slow
def test_a_published_segmenter_of_another_kind_gives_what_its_own_loader_gives(tmp_path: Path) -> None:
    """ESPNet on CamVid, through a user's own factory file, compared with plain loops over OpenCV's images."""
    import cv2
    import numpy as np
    from espnet import ESPNet

    weights, data = SHARED / "weights" / "espnet_p_2_q_8_camvid.pth", SHARED / "data" / "camvid"
    names = sorted(path.name for path in (data / "images" / "test").iterdir())[::12]
    mean, std = (105.033, 108.409, 110.331), (69.904, 72.691, 72.126)
    classes = "sky,building,pole,road,pavement,tree,sign,fence,car,pedestrian,bicyclist,void"
    (tmp_path / "classes.txt").write_text(classes.replace(",", "\n"))
    (tmp_path / "ids.txt").write_text("\n".join(names))
    run = robustkit.segment(
        [weights],
        data_dir=data / "images" / "test",
        masks=data / "annotations" / "test",
        classes=tmp_path / "classes.txt",
        ignore=(11,),
        attacks="none",
        ids=tmp_path / "ids.txt",
        out=tmp_path / "run",
        examples=0,
        model={
            "arch": f"{SUPPORT / 'espnet.py'}:espnet",
            "mean": [value / 255 for value in mean],
            "std": [value / 255 for value in std],
        },
    )
    network = ESPNet(12, 2, 8)
    network.load_state_dict(torch.load(weights, weights_only=True, map_location="cpu"))
    network.eval()
    right, union = np.zeros(11), np.zeros(11)
    for name in names:
        image = cv2.imread(str(data / "images" / "test" / name)).astype(np.float32)
        image = (image - mean[::-1]) / std[::-1] / 255
        with torch.inference_mode():
            found = network(torch.from_numpy(image.astype(np.float32)).permute(2, 0, 1)[None])[0].argmax(0).numpy()
        truth = cv2.imread(str(data / "annotations" / "test" / name), cv2.IMREAD_UNCHANGED)
        for place in range(11):
            right[place] += ((found == place) & (truth == place)).sum()
            union[place] += (((found == place) & (truth < 11)) | (truth == place)).sum()
    rows = {row.metric: row for row in run.summary()}
    assert len(names) == 12 and (union > 0).all()
    assert rows["miou"].value == pytest.approx((right / union).mean(), abs=1e-4) and rows["miou"].value > 0.5
    assert rows["iou(road)"].value == pytest.approx(right[3] / union[3], abs=1e-4)
    assert "iou(void)" not in rows
