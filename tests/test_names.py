# ruff: noqa: F401 - the lines of the table use what is imported
"""Lines that people type out of habit, and what comes: the right thing, or one line that names it."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from attack_oracles import tiny_cnn
from cam_models import cnn
from click.testing import CliRunner
from PIL import Image
from small_audit import files

import attacks
import cam
import corruptions
import robustkit
from robustkit.attention.formulas import find_formula
from robustkit.cli.app import cli
from robustkit.common.names import canonical, norm_name, nothing, plain
from robustkit.errors import RobustkitError
from robustkit.evaluations.attacks.evaluate import parse_condition
from robustkit.evaluations.condition import check_condition
from robustkit.evaluations.corruptions import corruption_condition, expand, parse_corrupted
from robustkit.evaluations.maps import parse_cams
from robustkit.gate.policy import parse_statement
from robustkit.models.specs import find
from robustkit.pipeline.inputs import evaluation_condition
from robustkit.pipeline.request import ClassificationRequest
from robustkit.protocol.card import load_card
from robustkit.slices.regions import VOCABULARY as REGIONS

request = partial(ClassificationRequest, checkpoints=("zoo:shapes-vit-standard",), data_dir="embedded:shapes")
PIXELS = np.random.default_rng(0).integers(0, 256, (2, 32, 40, 3), dtype=np.uint8)
STACK = torch.from_numpy(PIXELS).movedim(-1, 1)


def attack(text: str, **options: Any) -> str:
    return parse_condition(text, load_card("standard"), **options).text


def conditions(**options: Any) -> list[str]:
    asked = request(**options)
    return [each.text for each in asked.attack_conditions(asked.attack_list)]


def corrupted(text: str) -> str:
    part = parse_corrupted(text)
    assert part is not None
    return corruption_condition(part).text


def fogged(images: Any, *names: Any, **given: Any) -> Any:
    torch.manual_seed(0)
    return corruptions.corrupt(images, *names, **given)


def same(ours: Any, other: Any) -> bool:
    return type(ours) is type(other) and np.array_equal(np.asarray(ours), np.asarray(other))


def mapped(**given: Any) -> torch.Tensor:
    return cam.GradCAM(cnn(), **given)(torch.linspace(0, 1, 48).reshape(1, 3, 4, 4))


WORKS = [
    # attacks
    ('attacks.PGD(eps=1/255, steps=10, norm="linf")', attacks.PGD(attacks.ThreatModel("linf", 1 / 255), steps=10)),
    ('attacks.FGSM(eps=8/255, norm="Linf")', attacks.FGSM(attacks.ThreatModel("linf", 8 / 255))),
    ("attacks.DensePGD(eps=0.5, norm=2)", attacks.DensePGD(attacks.ThreatModel("l2", 0.5))),
    ('attacks.AutoAttack(net, norm="Linf", eps=8/255).norm', "Linf"),
    ('attack("AA")', "autoattack(eps=1/255,version=standard)"),
    ('attack("auto-attack(norm=L2,eps=0.5)")', "autoattack(eps=0.5,norm=l2,version=standard)"),
    ('attack("PGD", norm="L2")', "pgd(eps=1/255,norm=l2,steps=20)"),
    ('attack("pgd(under=Gaussian Noise,severity=3)")', "pgd(eps=1/255,steps=20,under=gaussian_noise,severity=3)"),
    ('conditions(attacks="AA", norm="Linf")', ["clean", "autoattack(eps=1/255,version=standard)"]),
    ('conditions(attacks="fgsm", norm=2)', ["clean", "fgsm(eps=1/255,norm=l2)"]),
    ('conditions(attacks="None")', ["clean"]),
    ('len(conditions(attacks="AA(second=20)"))', 3),
    # corruptions
    ('list(expand("ImageNet-C"))', list(expand("in-c"))),
    ('expand("Gaussian Noise,-frost")', {"gaussian_noise": (1, 2, 3, 4, 5)}),
    ('corrupted("corruption(JPEG-Compression,severity=3)")', "corruption(jpeg_compression,severity=3)"),
    ('check_condition("imagenet_c").text', "in-c"),
    ('same(fogged(PIXELS[0], "fog", 3), fogged(PIXELS[:1], "fog", 3)[0])', True),
    ('same(fogged(Image.fromarray(PIXELS[0]), "Fog", 3), Image.fromarray(fogged(PIXELS[0], "fog", 3)))', True),
    ('same(fogged(PIXELS, "fog", 3), fogged(STACK, "fog", 3).movedim(1, -1).numpy())', True),
    ('torch.equal(fogged(STACK[0], "fog", 3), fogged(STACK[:1], "fog", 3)[0])', True),
    ('same(fogged([*map(Image.fromarray, PIXELS)], "fog", 3)[1], Image.fromarray(fogged(PIXELS, "fog", 3)[1]))', True),
    ('same(fogged(PIXELS[0], corruption_name="snow"), fogged(PIXELS[0], "snow", 1, variant="bethgelab"))', True),
    ('same(fogged(PIXELS[0], severity=2, corruption_number=9), fogged(PIXELS[0], 2, "fog"))', True),
    ('same(fogged(PIXELS[0], 2, "snow", -1), fogged(PIXELS[0], "snow", 2, variant="hendrycks"))', False),
    # attention, maps, cards
    ('find_formula("QUEST").name', "quest"),
    ('find_formula("QKNorm_LN").name', "qknorm-ln"),
    ('find_formula("QANA(hidden=8)").name', "qana(hidden=8)"),
    ('parse_cams("GradCAM++, AG-CAM(threshold=0.3)")[0].text', "cam(grad-cam-pp)"),
    ('parse_cams("Grad CAM,AGCAM")[1].text', "cam(agcam)"),
    ('check_condition("CAM(AG-CAM,mode=box)").text', "cam(agcam,mode=box)"),
    (
        'REGIONS.parse("region-noise(Map_Top,map=GradCAM)").text',
        "region-noise(region=map-top,map=grad-cam,share=0.5,severity=5)",
    ),
    ('cam.method("AG-CAM")', cam.AGCAM),
    ('torch.equal(mapped(target_layer="0"), mapped(layer="0"))', True),
    ('torch.equal(mapped(target_layers=["0"]), mapped(layer="0"))', True),
    ('load_card("Quest_Paper").name', "quest-paper"),
    ('evaluation_condition("FMN(steps=5)")', evaluation_condition("fmn(steps=5)")),
    # nothing
    ('request(cams="none").cams', None),
    ('request(corruptions="none", preset="quick").corruptions', None),
    ('request(corruptions="none", preset="quick").attacks', "fgsm,pgd"),
    ('request(evaluations=["None"]).arguments().get("evaluations")', None),
]
REFUSED = [
    ("attacks.PGD(attacks.ThreatModel(), eps=1/255)", "PGD has threat and eps; expected one of the two"),
    ("attacks.PGD(net, eps=8/255)", "the model is passed when the attack is called: PGD(eps=8/255)(model, images,"),
    ("attacks.SPSA(estimator=net)", "the model is passed when the attack is called: SPSA("),
    ("attacks.PGD(8/255)", "PGD(0.03137254901960784): expected a ThreatModel, or keywords such as eps=8/255"),
    ("attacks.PGD(eps=8/255, alpha=2/255)", "PGD has no alpha; it is called step_size here"),
    ("attacks.PGD(rel_stepsize=0.1)", "it is called step_size here, in the unit of the images: rel_stepsize * eps"),
    ("attacks.PGD(eps=0.1, nb_iter=10)", "PGD has no nb_iter; it is called steps here"),
    ("attacks.FGSM(epsilon=8/255)", "FGSM has no epsilon; it is called eps here"),
    ("attacks.APGD(eot_iter=4, n_restarts=2)", "APGD has no eot_iter; it is called eot here"),
    ("attacks.APGD(n_restarts=2)", "APGD has no n_restarts; it is called restarts here"),
    ("attacks.Square(n_queries=100)", "Square has no n_queries; it is called queries here"),
    ("attacks.Square(max_iter=100)", "Square has no max_iter; it is called queries here"),
    ("attacks.SPSA(nb_sample=64)", "SPSA has no nb_sample; it is called directions here"),
    ("attacks.DensePGD(clip_min=0)", "DensePGD has no clip_min; it is called bounds here, such as (0, 1)"),
    ("attacks.PGD(eps=0.1, seed=0)", "PGD has no seed: random numbers come from torch's generator, or from rng="),
    ("attacks.PGD(stesp=3)", "PGD has no stesp; did you mean steps? it takes eps, norm, bounds, threat, steps,"),
    ('attack("pgd(norm=L7)")', "unknown norm 'L7'"),
    ('corruptions.corrupt(PIXELS[0], "fog")', "severity is missing; expected 1 to 5"),
    ('corruptions.corrupt(PIXELS[0], "fog", 3, corruption_name="snow")', "'fog' and 'snow' were given; expected one"),
    ("corruptions.corrupt(PIXELS[0], severity=3)", "no corruption is named; expected one name"),
    ("corruptions.corrupt(PIXELS[0], corruption_number=19)", "corruption_number is 19; expected 0 to 18"),
    ('corruptions.corrupt(STACK.numpy(), "fog", 3)', "the array has the shape (2, 3, 32, 40); expected (H, W, 3)"),
    ('corruptions.corrupt(Image.new("L", (32, 32)), "fog", 3)', "the image is of mode L; expected RGB: image.convert"),
    ('corruptions.corrupt("cat.jpg", "fog", 3)', "images are str; expected a tensor (B, 3, H, W), a NumPy array"),
    ('cam.GradCAM(cnn(), target_layers=["0", "1"])', "GradCAM was given 2 layers; expected one"),
    (
        "cam.GradCAM(cnn(), reshape_transform=len)",
        "GradCAM takes no reshape_transform; leave it out: the tokens of",
    ),
    ("cam.GradCAM(cnn())(input_tensor=STACK)", "GradCAM, when it is called, takes no input_tensor; give the images"),
    (
        "cam.GradCAM(cnn())(STACK, targets=[3])",
        "takes no targets; give target=, a class for all images or (B,)",
    ),
    ('find("resnet50")', "resnet50: no such file; did you mean timm:resnet50?"),
    ('find("ViT-Base-Patch16-224")', "no such file; did you mean timm:vit_base_patch16_224?"),
    ('find("Shapes-ViT-Standard")', "no such file; did you mean zoo:shapes-vit-standard?"),
    ('parse_statement("accuracy under clean >= 0.7")', "unknown metric 'accuracy'; did you mean 'top1'?"),
    ('request(corruptions="none,fog")', "none,fog: none cannot be combined with others; leave out none, or the others"),
    (
        'request(cams=("agcam", "none"))',
        "agcam,none: none cannot be combined with others; leave out none, or the others",
    ),
]


@pytest.mark.parametrize(("line", "came"), WORKS, ids=[line for line, _ in WORKS])
def test_it_works(line: str, came: Any) -> None:
    assert eval(line, {**globals(), "net": tiny_cnn()}) == came


@pytest.mark.parametrize(("line", "said"), REFUSED, ids=[line for line, _ in REFUSED])
def test_one_line_names_what_is_right(line: str, said: str) -> None:
    with pytest.raises((RobustkitError, TypeError, ValueError)) as fault:
        eval(line, {**globals(), "net": tiny_cnn()})
    message = str(fault.value)
    assert said in message and "\n" not in message and len(message) < 260


def test_the_command_line_makes_the_same_records(tmp_path: Path) -> None:
    where = ["zoo:shapes-vit-standard", "--data-dir", "embedded:shapes", "--limit", "4", "--device", "cpu", "--quiet"]
    typed = (
        "--attacks",
        "FMN(steps=2)",
        "--norm",
        "L2",
        "--protocol",
        "Standard",
        "--corruptions",
        "None",
        "--cams",
        "none",
    )
    usual = ("--attacks", "fmn(steps=2)", "--norm", "l2", "--protocol", "standard")
    for name, words in (("typed", (*typed, "--evaluations", "none")), ("usual", usual)):
        command = ["audit", *where, "--no-setup-check", *words, "--out", str(tmp_path / name)]
        assert CliRunner().invoke(cli, command, catch_exceptions=False).exit_code == 0
    given = {"limit": 4, "attacks": "Fmn(steps=2)", "norm": 2, "cams": "none", "setup_check": False, "device": "cpu"}
    robustkit.audit("zoo:shapes-vit-standard", "embedded:shapes", out=tmp_path / "python", **given)  # type: ignore[arg-type]
    first, *others = (files(tmp_path / name) for name in ("usual", "typed", "python"))
    assert len(first) == 6 and all(other == first for other in others)


def test_a_name_in_any_case_and_with_any_separators() -> None:
    known = ("in-c", "grad-cam", "grad-cam-pp", "a-b", "ab")
    assert [canonical(each, known) for each in ("IN_C", "Grad CAM", "GradCAM++", "a-b", "ab", "A_B", "x Y")] == (
        ["in-c", "grad-cam", "grad-cam-pp", "a-b", "ab", "A_B", "x Y"]  # A_B may be two of them
    )
    assert canonical("ImageNet-C", known, {"imagenetc": "in-c"}) == "in-c"
    assert canonical("ImageNet-C", ("fog",), {"imagenetc": "in-c"}) == "ImageNet-C"
    assert plain("Grad-CAM++ L∞") == "gradcampplinf"
    assert [norm_name(each) for each in ("Linf", "L_2", 2, 2.0, math.inf, "L7")] == (
        ["linf", "l2", "l2", "l2", "linf", "L7"]
    )
    assert nothing("None ") and nothing(["none"]) and not (nothing(None) or nothing("fog") or nothing([]))
