"""Protocol cards and canonical conditions."""

import hashlib
import json
import struct
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

import attacks
from robustkit.common.preprocessing import Preprocessing
from robustkit.errors import ProtocolError
from robustkit.evaluations.attacks.evaluate import build_attack, parse_condition, parse_conditions
from robustkit.protocol.card import TASKS, Card, card_names, digest_of_part, format_number, load_card, parse_number
from robustkit.protocol.condition import split_list

STANDARD = load_card("standard")
PAPER = load_card("quest-paper")


@pytest.mark.parametrize(
    ("text", "value", "shown"),
    [
        ("1/255", Fraction(1, 255), "1/255"),
        (" 0.25/255 ", Fraction(1, 1020), "0.25/255"),
        ("8/255", Fraction(8, 255), "8/255"),
        ("0.1", Fraction(1, 10), "0.1"),
        ("2e-3", Fraction(1, 500), "0.002"),
        ("0", Fraction(0), "0"),
        ("1/3", Fraction(1, 3), "85/255"),
        ("1/7", Fraction(1, 7), "1/7"),
    ],
)
def test_numbers_as_people_write_them(text: str, value: Fraction, shown: str) -> None:
    assert parse_number(text) == value
    assert format_number(value) == shown
    assert parse_number(shown) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *((str(k / 255), Fraction(k, 255)) for k in (1, 8, 128, 254)),
        *((str(k / 510), Fraction(k, 510)) for k in (1, 3)),
        *((str(part / 255), Fraction(str(part)) / 255) for part in (0.1, 0.25, 0.015, -0.5)),
        (str(0.1 + 0.2), Fraction(3, 10)),
        (str(3 * (1 / 255)), Fraction(3, 255)),
        ("0.0313725490196", Fraction(8, 255)),
        ("0.0313725", Fraction(8, 255)),
        ("0.03137254901961", Fraction(8, 255)),
        ("3.92156862745e-3", Fraction(1, 255)),
        (str(struct.unpack("<f", struct.pack("<f", 4 / 255))[0]), Fraction(4, 255)),
        (str(struct.unpack("<f", struct.pack("<f", 0.1))[0]), Fraction(1, 10)),
        # what stays as it is written
        ("0.031373", Fraction(31373, 10**6)),
        ("0.0313726", Fraction(313726, 10**7)),
        ("0.0313725490197", Fraction(313725490197, 10**13)),
        ("0.1234567891", Fraction(1234567891, 10**10)),
        ("1e-7", Fraction(1, 10**7)),
        ("0.0000196", Fraction(196, 10**7)),  # 0.005/255 to these digits, as one number in thirty would be one
        ("31372549/1000000000", Fraction(31372549, 10**9)),
    ],
)
def test_a_long_decimal_means_the_number_that_it_rounds(text: str, value: Fraction) -> None:
    assert parse_number(text) == value


@pytest.mark.parametrize("text", ["banana", "", "1/0", "nan", "inf", "1/2/3", "0x10", "True/1"])
def test_what_is_not_a_number_is_named(text: str) -> None:
    with pytest.raises(ProtocolError) as fault:
        parse_number(text, "eps")
    assert str(fault.value) == f"eps {text!r}: expected a number such as 1/255, 0.5/255 or 0.004"


def test_canonical_text_holds_eps_steps_and_what_differs_from_the_card() -> None:
    def text(source: str, **options: object) -> str:
        return parse_condition(source, STANDARD, **options).text  # type: ignore[arg-type]

    assert text("PGD") == "pgd(eps=1/255,steps=20)"
    assert text("pgd( steps = 30, restarts=3 ,eps=8/255)") == "pgd(eps=8/255,steps=30,restarts=3)"
    assert text("pgd(step_size=0.15*eps,restarts=1)") == "pgd(eps=1/255,steps=20)"
    assert (
        text("pgd(early_stop=true,step_size=0.25*eps)") == "pgd(eps=1/255,steps=20,step_size=0.25*eps,early_stop=true)"
    )
    assert text("fgsm", eps=Fraction(2, 255), norm="l2") == "fgsm(eps=2/255,norm=l2)"
    assert text("fgsm(eps=3/255)", eps=Fraction(2, 255)) == "fgsm(eps=3/255)"
    assert text("clean") == "clean"


@pytest.mark.parametrize("card", [STANDARD, PAPER])
def test_canonical_text_reads_back_as_itself(card: Card) -> None:
    for source in ("fgsm", "pgd(steps=7,restarts=2)", "spsa(lr=0.003,directions=8)", "pgd(norm=l2,eps=0.5)"):
        condition = parse_condition(source, card)
        assert parse_condition(condition.text, card) == condition


def test_lists_keep_order_drop_doubles_and_start_clean() -> None:
    found = parse_conditions("pgd(steps=3,restarts=2),fgsm,fgsm", STANDARD, eps=(Fraction(1, 255), Fraction(2, 255)))
    assert [c.text for c in found] == [
        "clean",
        "pgd(eps=1/255,steps=3,restarts=2)",
        "pgd(eps=2/255,steps=3,restarts=2)",
        "fgsm(eps=1/255)",
        "fgsm(eps=2/255)",
    ]


def test_an_attack_gets_exactly_the_cards_parameters() -> None:
    threat = attacks.ThreatModel("linf", 1 / 255, (0.0, 1.0))
    assert build_attack(parse_condition("pgd", STANDARD), STANDARD) == attacks.PGD(
        threat, steps=20, step_size=0.15 * (1 / 255)
    )
    spsa = build_attack(parse_condition("spsa", STANDARD), STANDARD)
    assert spsa == attacks.SPSA(threat, steps=40, lr=0.01, delta=0.01, directions=128, loss="margin")


def test_steps_of_pgd_are_longer_in_l2_where_the_card_says_so(tmp_path: Path) -> None:
    condition = parse_condition("pgd(norm=l2,eps=0.5)", STANDARD)
    assert condition.text == "pgd(eps=0.5,norm=l2,steps=20)"
    l2 = attacks.ThreatModel("l2", 0.5, (0.0, 1.0))
    assert build_attack(condition, STANDARD) == attacks.PGD(l2, steps=20, step_size=0.175)
    assert parse_condition("pgd(eps=0.5)", STANDARD, norm="l2") == condition
    assert "step_size=0.15*eps" in parse_condition("pgd(norm=l2,eps=0.5,step_size=0.15*eps)", STANDARD).text
    # A published protocol keeps the length that it states; a card that states none has that of the class.
    text = "pgd(norm=l2,eps=0.5)"
    assert build_attack(parse_condition(text, PAPER), PAPER) == attacks.PGD(replace(l2, bounds=None), step_size=0.075)
    (tmp_path / "own.toml").write_text(
        'name = "own"\nversion = 1\n[threat]\nnorm = "l2"\nbounds = [0.0, 1.0]\n[attacks.pgd]\nsteps = 20\n'
    )
    own = load_card(str(tmp_path / "own.toml"))
    attack = build_attack(parse_condition("pgd(eps=0.5)", own), own)
    assert attack == attacks.PGD(l2, step_size=0.175)


def test_the_paper_card_holds_the_published_settings() -> None:
    assert (PAPER.space, PAPER.labels, PAPER.bounds) == ("normalised", "predicted", None)
    spsa = build_attack(parse_condition("spsa", PAPER), PAPER)
    assert isinstance(spsa, attacks.SPSA)
    assert (spsa.threat.eps, spsa.gradient_at, spsa.threat.bounds) == (0.1, "doubled-input", None)
    assert build_attack(parse_condition("pgd", PAPER), PAPER) == attacks.PGD(
        attacks.ThreatModel("linf", 1 / 255, None), steps=20, step_size=0.15 * (1 / 255)
    )
    changed, _ = PAPER.preprocess(Preprocessing(crop_pct=0.9, interpolation="bilinear"))
    assert (changed.crop_pct, changed.interpolation) == (0.875, "bicubic")
    small = Preprocessing(input_size=(32, 32), crop_pct=1.0)
    kept, line = PAPER.preprocess(small)
    assert kept == small and "224x224 only" in line


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "nope",
            "unknown attack 'nope'; known: apgd, autoattack, ddn, fab, fgsm, fmn, hopskipjump, patch, pgd, spatial, "
            "spsa, square",
        ),
        (
            "pdg",
            "unknown attack 'pdg'; did you mean 'pgd'? known: apgd, autoattack, ddn, fab, fgsm, fmn, hopskipjump, "
            "patch, pgd, spatial, spsa, square",
        ),
        ("pgd(step=3)", "unknown parameter of pgd 'step'; did you mean 'steps'?"),
        ("pgd(steps=2.5)", "pgd: steps '2.5': expected a whole number"),
        ("pgd(steps=0)", "steps is 0; expected 1 or more"),
        ("pgd(3)", "pgd: '3' is not key=value"),
        ("pgd(steps=1,steps=2)", "pgd: steps is given twice; expected it once"),
        ("pgd(early_stop=maybe)", "expected true or false"),
        ("fgsm(eps=-1/255)", "expected a radius of 0 or more"),
        ("fgsm(eps=8)", "did you mean 8/255?"),
        ("fgsm(norm=l7)", "unknown norm 'l7'"),
        ("clean(eps=1)", "clean takes no parameters"),
        ("pgd(", "expected a name or name(key=value,...)"),
    ],
)
def test_what_is_not_a_condition_is_explained(text: str, message: str) -> None:
    with pytest.raises(ProtocolError) as fault:
        parse_condition(text, STANDARD)
    assert message in str(fault.value) and "\n" not in str(fault.value)


def test_cards_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('name = "mine"\nversion = 3\n[threat]\neps = "4/255"\nbounds = [0, 1]\n[attacks.pgd]\nsteps = 5\n')
    card = load_card(str(path))
    assert card.tag == f"mine@3:{card.digest[:8]}"
    assert parse_condition("pgd", card).text == "pgd(eps=4/255,steps=5)"
    path.write_text(path.read_text().replace("steps = 5", "steps = 6"))
    assert load_card(str(path)).digest != card.digest
    for text, message in (
        ("name = ", "not valid TOML"),
        ('name = "x"', "missing attacks, threat, version"),
        (
            'name = "x"\nversion = 1\nthreats = 1\n[threat]\n[attacks]',
            "unknown field 'threats'; did you mean 'threat'?",
        ),
        ('name = "x"\nversion = 1\n[threat]\nspace = "rgb"\n[attacks]', "expected pixels, normalised, sigma"),
        ('name = "x"\nversion = 1\n[threat]\nbounds = 3\n[attacks]', "expected two numbers"),
        ('name = "x"\nversion = 1\ntask = "depth"\n[threat]\n[attacks]', "unknown task 'depth'"),
        ('name = "x"\nversion = 1\n[threat]\n[attacks]\npgd = 3', "expected a table"),
    ):
        path.write_text(text)
        with pytest.raises(ProtocolError) as fault:
            load_card(str(path))
        assert message in str(fault.value)
    with pytest.raises(ProtocolError, match=r"unknown protocol 'standart'; did you mean 'standard'\?"):
        load_card("standart")


def test_a_condition_counts_by_what_it_uses_of_the_card() -> None:
    def changed(**attacks: dict[str, Any]) -> Card:
        return replace(STANDARD, name="mine", summary="", attacks={**STANDARD.attacks, **attacks})

    parts = {name: STANDARD.parameters[name] for name in ("threat", "fgsm")}
    canonical = json.dumps(["classification", "pixels", "true", parts], sort_keys=True, separators=(",", ":"))
    assert digest_of_part(STANDARD, "fgsm(eps=1/255)") == hashlib.sha256(canonical.encode()).hexdigest()
    stronger = changed(pgd={**STANDARD.attacks["pgd"], "step_size": "0.2*eps"}, mine={"steps": 3})
    of_pgd = [
        *(
            "pgd(eps=1/255,steps=20)",
            "pgd(eps=1/255,steps=20,under=fog,severity=3)",
            "attention(pgd(eps=1/255,steps=20))",
        ),
        *("stability(agcam,under=pgd(eps=1/255,steps=20))", "transfer(pgd(eps=1/255,steps=20),from=vit)"),
    ]
    others = ["clean", "corruption(fog,severity=3)", "cam(agcam)", "fgsm(eps=1/255)", "apgd(eps=1/255,steps=100)"]
    others += ["stability(agcam,under=fgsm(eps=1/255))", "two-phase(autoattack(eps=1/255),first=apgd-ce,m=9)"]
    for text in (*of_pgd, *others):
        assert (digest_of_part(stronger, text) != digest_of_part(STANDARD, text)) == (text in of_pgd), text
        assert digest_of_part(changed(mine={"steps": 3}), text) == digest_of_part(STANDARD, text)
        assert digest_of_part(stronger, text, whole=True) != digest_of_part(STANDARD, text, whole=True)
        for shared in (
            *({"eps": Fraction(2, 255)}, {"labels": "predicted"}, {"bounds": (0.0, 1 + 1e-9)}, {"task": "features"}),
            *({"scoring": {"autocast": True}}, {"preprocessing": {"crop_pct": 0.9}}),
        ):
            other = replace(STANDARD, **shared)  # type: ignore[arg-type]
            assert digest_of_part(other, text) != digest_of_part(STANDARD, text), shared


def test_every_shipped_card_is_whole() -> None:
    of_the_core = [name for name in card_names() if load_card(name).task in TASKS]
    assert of_the_core == ["agcam-paper", "elliptical-images", "quest-paper", "segmentation", "standard"]
    for card in map(load_card, card_names()):
        assert card.summary and card.source
        if not card.attacks:
            assert "threat" not in card.parameters
            continue
        others = ["segpgd"] if card.task == "segmentation" else ["spsa"]
        names = ["pgd"] if card.task == "features" else ["fgsm", "pgd", *others]
        assert [c.name for c in parse_conditions(",".join(names), card)] == ["clean", *names]


def test_the_card_of_segmentation_attacks_pixels() -> None:
    card = load_card("segmentation")
    uniform, weighted = (
        build_attack(condition, card) for condition in parse_conditions("pgd,segpgd(steps=7)", card)[1:]
    )
    assert isinstance(uniform, attacks.DensePGD) and isinstance(weighted, attacks.DensePGD)
    assert (uniform.steps, uniform.weighting, uniform.step_size) == (20, "uniform", pytest.approx(0.15 / 255))
    assert (weighted.steps, weighted.weighting, weighted.threat.eps) == (7, "segpgd", pytest.approx(1 / 255))
    texts = [condition.text for condition in parse_conditions("segpgd(weighting=uniform),fgsm", card)]
    assert texts == ["clean", "segpgd(eps=1/255,steps=20,weighting=uniform)", "fgsm(eps=1/255)"]
    with pytest.raises(ProtocolError, match="unknown attack 'spsa'"):
        parse_conditions("spsa", card)


@pytest.mark.parametrize(
    ("text", "items"),
    [
        ("", []),
        (" , ", []),
        ("fgsm", ["fgsm"]),
        (" pgd( steps=5, restarts=2 ) ,fgsm,", ["pgd( steps=5, restarts=2 )", "fgsm"]),
        (
            "stability(agcam,under=pgd(eps=1/255,steps=20)),fog",
            ["stability(agcam,under=pgd(eps=1/255,steps=20))", "fog"],
        ),
        ("transfer(pgd(eps=1),from=a(on=5),on=7)", ["transfer(pgd(eps=1),from=a(on=5),on=7)"]),
        ("a(b(c,d),e,f(g)),h(i,j),k", ["a(b(c,d),e,f(g))", "h(i,j)", "k"]),
        ("pgd),fgsm", ["pgd)", "fgsm"]),
        ("fgsm,pgd(steps=2,eps=1", ["fgsm", "pgd(steps=2,eps=1"]),
        (["fgsm ", "", "pgd(steps=2,eps=1)"], ["fgsm", "pgd(steps=2,eps=1)"]),
    ],
)
def test_a_list_is_split_outside_brackets_alone(text: str | list[str], items: list[str]) -> None:
    assert split_list(text) == items
    assert split_list(",".join(items)) == items
