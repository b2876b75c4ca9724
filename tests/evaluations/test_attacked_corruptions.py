"""Attacks on corrupted images: the ball around the image that the corruption makes, its texts, order and refusals."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from manifests import whole
from PIL import Image
from small_audit import UNCHECKED
from torch import nn

import corruptions
import robustkit
from robustkit.common.determinism import SampleRng
from robustkit.errors import ProtocolError
from robustkit.evaluations.attacks.evaluate import bearing_evidence, parse_condition, parse_conditions
from robustkit.evaluations.attacks.ranking import Outcomes, out_of_order
from robustkit.evaluations.attacks.results import curves
from robustkit.evaluations.condition import check_condition, matches, name_of, pattern_of
from robustkit.protocol.card import load_card
from robustkit.report.run import Run

pytestmark = pytest.mark.usefixtures("one_thread")
CARD = load_card("standard")
NOISE = "corruption(gaussian_noise,severity=2)"
FGSM = "fgsm(eps=4/255,under=gaussian_noise,severity=2)"
LINEAR = """
import torch
from torch import nn

def build(num_classes=3):
    torch.manual_seed(3)
    net = nn.Sequential(nn.Flatten(), nn.Linear(3 * 40 * 40, num_classes))
    net.default_cfg = {"mean": (0.0,) * 3, "std": (1.0,) * 3, "input_size": (3, 40, 40), "crop_pct": 1.0}
    return net
"""


@pytest.fixture(scope="module")
def linear(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A linear model of 40x40 pixels, and 12 images."""
    root = tmp_path_factory.mktemp("linear")
    (root / "net.py").write_text(LINEAR)
    scope: dict[str, object] = {}
    exec(LINEAR, scope)
    torch.save(scope["build"]().state_dict(), root / "net.pth")  # type: ignore[operator]
    pixels = np.random.Generator(np.random.PCG64(1)).integers(0, 256, (12, 40, 40, 3), dtype=np.uint8)
    for index, image in enumerate(pixels):
        (root / "images" / "abc"[index % 3]).mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(root / "images" / "abc"[index % 3] / f"{index:02d}.png")
    return root


def audit(place: Path, out: Path, **options: object) -> Run:
    model = {"arch": f"{place / 'net.py'}:build", "num_classes": 3}
    arguments = {"data_dir": place / "images", "device": "cpu", "setup_check": False, "model": model} | options
    return robustkit.audit([place / "net.pth"], out=out, **arguments)  # type: ignore[arg-type]


def test_the_ball_is_around_the_corrupted_image(linear: Path, tmp_path: Path) -> None:
    """FGSM on a linear model in closed form, at the pixels that the corruption alone draws."""
    attacks = f"{FGSM},fgsm(eps=0,under=gaussian_noise,severity=2),pgd(steps=3,under=fog,severity=1),fgsm(eps=4/255)"
    run = audit(
        linear,
        tmp_path / "run",
        attacks=attacks,
        corruptions="gaussian_noise(severity=2)",
        batch_size=5,
        evidence="full",
    )
    attacked, alone = run.table("net", FGSM).to_pandas(), run.table("net", NOISE).to_pandas()
    state = torch.load(linear / "net.pth")
    weight, bias = state["1.weight"].double(), state["1.bias"].double()
    assert isinstance(weight, torch.Tensor)
    noise = corruptions.corruption("gaussian_noise")
    ids = alone["sample_id"].tolist()
    read = [np.asarray(Image.open(linear / "images" / name)).transpose(2, 0, 1) for name in ids]
    draws = noise.draw((3, 40, 40), 2, SampleRng.of(ids, seed=0, condition=NOISE, device=torch.device("cpu")))
    corrupted = noise.apply(torch.from_numpy(np.stack(read)), draws).double().flatten(1) / 255
    labels = torch.tensor(attacked["label"].tolist())
    logits = corrupted @ weight.T + bias
    assert alone["prediction"].tolist() == logits.argmax(dim=1).tolist()
    wrong = logits.softmax(dim=1) - nn.functional.one_hot(labels, 3)
    reached = (corrupted + 4 / 255 * (wrong @ weight).sign()).clamp(0, 1)
    expected = nn.functional.cross_entropy(reached @ weight.T + bias, labels, reduction="none")
    assert attacked["nll"].to_numpy() == pytest.approx(expected.numpy(), rel=1e-4, abs=1e-5)
    assert attacked["linf"].to_numpy() == pytest.approx((reached - corrupted).abs().amax(dim=1).numpy(), abs=1e-6)
    still = run.table("net", "fgsm(eps=0,under=gaussian_noise,severity=2)").to_pandas()
    assert still["nll"].tolist() == alone["nll"].tolist()
    rows = {(row["condition"], row["metric"]): row for row in run.results().to_dict("records")}
    assert rows[FGSM, "top1"]["value"] < rows[NOISE, "top1"]["value"]
    assert {each["text"] for each in rows[FGSM, "top1"]["flags"]} <= {UNCHECKED}
    assert abs(rows[FGSM, "nll"]["value"] - rows["fgsm(eps=4/255)", "nll"]["value"]) > 0.001
    drawn = {line.attack: line for line in curves(run.summary(), run.manifest.claims)}
    start = drawn["fgsm, under=gaussian_noise, severity=2"].points
    assert [eps for eps, _ in start] == [0.0, 4 / 255]  # from the attack of eps 0, not from clean
    (pgd,) = (line for name, line in drawn.items() if name.startswith("pgd"))
    assert len(pgd.points) == 1 and drawn["fgsm"].points[0][1].value == rows["clean", "top1"]["value"]
    again = audit(linear, tmp_path / "again", attacks=FGSM, batch_size=12, shard_size=4)
    assert again.table("net", FGSM).to_pandas()["nll"].to_numpy() == pytest.approx(attacked["nll"].to_numpy(), rel=1e-5)
    page = re.sub("<[^>]*>", "", (tmp_path / "run" / "report.html").read_text())
    assert "FGSM, 4/255, on gaussian noise, severity 2" in page
    assert "on corrupted images, FGSM at 4/255 on gaussian noise, severity 2, leaves" in page


def test_texts_are_canonical_and_name_the_corruption_last() -> None:
    given = "pgd(severity=3,under=fog,steps=30, eps=2/255)"
    condition = parse_condition(given, CARD)
    assert condition.text == "pgd(eps=2/255,steps=30,under=fog,severity=3)"
    assert condition.under is not None and condition.under.text == "corruption(fog,severity=3)"
    assert parse_condition(condition.text, CARD) == condition and condition.eps == pytest.approx(2 / 255)
    odd = "fgsm(eps=1/255,norm=l2,under=frost,severity=1,preset=cifar,texture=own)"
    assert parse_condition(odd, CARD).text == odd and parse_condition("fgsm", CARD).under is None
    texts = [each.text for each in parse_conditions("fgsm,fgsm(under=fog,severity=2)", CARD, eps=(1,))]  # type: ignore[arg-type]
    assert texts == ["clean", "fgsm(eps=1)", "fgsm(eps=1,under=fog,severity=2)"]


def test_rules_tell_attacks_on_corrupted_images_from_those_on_clean_ones() -> None:
    whole_text = "pgd(eps=1/255,steps=20,under=fog,severity=3)"
    assert not matches(pattern_of("pgd"), whole_text) and not matches(pattern_of("pgd(eps=1/255,steps=20)"), whole_text)
    assert matches(pattern_of("pgd(under=fog,severity=3)"), whole_text) and matches(
        check_condition(whole_text), whole_text
    )
    assert not matches(pattern_of("pgd(under=fog,severity=2)"), whole_text)
    assert not matches(pattern_of(whole_text), "pgd(eps=1/255,steps=20)")
    inner = f"attention({whole_text})"
    assert check_condition(inner).text == inner and matches(pattern_of(inner), inner)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("pgd(under=mist,severity=3)", "unknown corruption 'mist'"),
        (
            "pgd(steps=3,under=fog(severity=3))",
            "expected under without brackets, such as under=fog,severity=3",
        ),
        ("pgd(under=corruption(fog,severity=3))", "expected under without brackets, such as under=fog,severity=3"),
        ("pgd(under=fog,severity=0)", "expected a severity from 1 to 5"),
        ("pgd(under=fog)", "expected a severity from 1 to 5"),
        ("pgd(under=fog,severity=6)", "severity '6'; expected a whole number from 1 to 5"),
        ("pgd(under=fog,severity=1+3)", "severity '1+3'; expected a whole number"),
        ("pgd(severity=3)", "severity=3 is of a corruption; name it, such as under=fog"),
        ("pgd(under=fog,severity=3,source=released)", "leave out source=released"),
        ("fmn(under=fog,severity=3)", "under applies to attacks of a fixed radius; leave it out of fmn"),
        ("pgd(under=fog,severity=3,texture=own)", "unknown parameter of corruption 'texture'"),
        ("pgd(under=fog,severity=3,step=2)", "unknown parameter of pgd 'step'"),
    ],
)
def test_refusals_are_a_line(text: str, said: str) -> None:
    with pytest.raises(ProtocolError) as raised:
        parse_condition(text, CARD)
    assert said in str(raised.value) and "\n" not in str(raised.value)


def test_attacks_are_compared_on_the_same_images() -> None:
    """The stronger attack under fog is above the weaker one under fog, and above fog, but not above clean."""
    claim = {"norm": "linf", "eps": 8 / 255, "early_stop": False}
    fgsm, pgd = "fgsm(eps=8/255,under=fog,severity=3)", "pgd(eps=8/255,steps=20,under=fog,severity=3)"
    reported = {"claims": dict.fromkeys((fgsm, pgd, "fgsm(eps=8/255)"), claim), "checkpoints": [{"name": "net"}]}
    manifest = whole(reported | {"protocol": {"labels": "true"}})
    ids = [f"s{place}" for place in range(40)]
    few, many = (Outcomes.of(pa.table({"sample_id": ids, "correct": [k >= n for k in range(40)]})) for n in (20, 0))
    (weaker,) = out_of_order(manifest, pgd, {fgsm: few, pgd: many})
    assert "20 of 40 samples correct that fgsm(eps=8/255,under=fog,severity=3) broke" in weaker.text
    (alone,) = out_of_order(manifest, pgd, {"corruption(fog,severity=3)": few, pgd: many})
    assert "20 of 40 samples correct that were wrong before the attack" in alone.text
    assert weaker.code == alone.code == "masking/attacks-in-order"
    others = {"clean": few, "fgsm(eps=8/255)": few, "corruption(fog,severity=2)": few, pgd: many}
    assert out_of_order(manifest, pgd, others) == []
    assert name_of(pgd, "table", manifest) == "PGD, 8/255, 20 steps, on fog, severity 3"
    assert name_of(pgd, "badge", manifest) == "PGD-20 8/255 on fog, severity 3"


def test_constants_are_those_of_the_corruption_alone(tmp_path: Path) -> None:
    """Images of 32x32 have CIFAR-10-C's constants; what the text says itself stays."""
    (tmp_path / "net.py").write_text(LINEAR.replace("40", "32"))
    scope: dict[str, object] = {}
    exec(LINEAR.replace("40", "32"), scope)
    torch.save(scope["build"]().state_dict(), tmp_path / "net.pth")  # type: ignore[operator]
    for index in range(6):
        (tmp_path / "images" / "abc"[index % 3]).mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (32, 32), (40 * index, 9, 77)).save(tmp_path / "images" / "abc"[index % 3] / f"{index}.png")
    attacks = "fgsm(under=frost,severity=3,texture=own),fgsm(under=fog,severity=3)"
    run = audit(tmp_path, tmp_path / "run", attacks=attacks, corruptions="fog(severity=3)")
    frost = "fgsm(eps=1/255,under=frost,severity=3,preset=cifar,texture=own)"
    texts = ("clean", frost, "fgsm(eps=1/255,under=fog,severity=3,preset=cifar)")
    assert run.manifest.conditions == (*texts, "corruption(fog,severity=3,preset=cifar)")
    assert len(run.manifest.corrupted.digests[frost]) == 64 and frost in run.manifest.evidence
    given = parse_conditions("pgd,fgsm,pgd(under=fog,severity=1),fgsm(under=fog,severity=1)", CARD)
    bearing = [each.text for each in bearing_evidence(given, CARD)]
    assert bearing == ["pgd(eps=1/255,steps=20)", "pgd(eps=1/255,steps=20,under=fog,severity=1)"]
