"""Policies: every form of a rule, what is refused and where, and which conditions of a run a rule means."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from places import ROOT

from attacks.registry import ATTACKS, DENSE_ATTACKS
from robustkit.errors import ProtocolError
from robustkit.evaluations.condition import check_condition, is_exactly, matches, pattern_of
from robustkit.evaluations.corruptions import SETS
from robustkit.gate.policy import Change, Identity, NoFindings, Value, parse_policy, parse_statement, read_policy
from robustkit.protocol.condition import ConditionPattern
from robustkit.tasks import metrics

CLEAN, PGD = ConditionPattern("clean", "clean"), ConditionPattern("pgd(eps=1/255)", "pgd", "", (("eps", "1/255"),))


@pytest.mark.parametrize(
    ("text", "statement"),
    [
        ("top1 under pgd(eps=1/255) >= 0.30", Value("top1", PGD, ">=", 0.3)),
        ("top1 under PGD( eps = 1/255 )>=30%", Value("top1", PGD, ">=", 0.3)),
        ("top1 under clean > 3/4 with 95 % confidence", Value("top1", CLEAN, ">", 0.75, True)),
        ("top1 under clean >= 70 % with 95% confidence", Value("top1", CLEAN, ">=", 0.7, True)),
        ("mce <= 0.60", Value("mce", ConditionPattern("in-c", "in-c"), "<=", 0.6)),
        ("mean_error of in-c < 4e-1", Value("mean_error", ConditionPattern("in-c", "in-c"), "<", 0.4)),
        ("iou(traffic (red) light) under clean >= .5", Value("iou(traffic (red) light)", CLEAN, ">=", 0.5)),
        ("top1_after_apgd-ce under clean >= 0.1", Value("top1_after_apgd-ce", CLEAN, ">=", 0.1)),
        ("n under clean >= 1000", Value("n", CLEAN, ">=", 1000.0)),
        ("drop against baseline <= 1 %", Change(True, "", None, "<=", 0.01)),
        (
            "drop in top1 under pgd(eps=1/255) against baseline <= 0.01 with 95 % confidence",
            Change(True, "top1", PGD, "<=", 0.01, True),
        ),
        ("rise in nll of clean against baseline <= 0.1", Change(False, "nll", CLEAN, "<=", 0.1)),
        ("no findings", NoFindings()),
        ("no flags", NoFindings()),  # as policies of earlier versions say it
        ("no findings under clean", NoFindings(CLEAN)),
        ("no findings except evidence/thin, labels/shifted", NoFindings(None, ("evidence/thin", "labels/shifted"))),
        ("no doubts of clean except 'abcdef', evidence/thin", NoFindings(CLEAN, ("abcdef", "evidence/thin"), True)),
        (
            r"""no findings except "a \"b\" \\ cdefgh", 'coded "d"'""",
            NoFindings(None, ('a "b" \\ cdefgh', 'coded "d"')),
        ),
        ('attention == "quest"', Identity("attention", "quest")),
        ("arch=='vit'", Identity("arch", "vit")),
        ('checkpoint sha256 == "ab"', Identity("checkpoint sha256", "ab")),
        ('data digest == "ab"', Identity("data digest", "ab")),
        ('protocol == "standard@1:0"', Identity("protocol", "standard@1:0")),
    ],
)
def test_every_form_of_a_rule(text: str, statement: object) -> None:
    assert parse_statement(text) == statement
    assert parse_statement(f"  {text}\n".replace(" ", "  ") if '"' not in text and "(red" not in text else text) == (
        statement
    )


def test_a_map_and_its_stability_are_conditions() -> None:
    box = parse_statement("cam_iou_over_control under cam(agcam,mode=box) > -0.1")
    assert isinstance(box, Value) and box.bound == -0.1
    assert (box.condition.what, dict(box.condition.parameters)) == ("agcam", {"mode": "box"})
    stable = parse_statement("rank_correlation under stability(agcam,under=pgd(eps=1/255,steps=20)) >= 0.5")
    assert isinstance(stable, Value) and dict(stable.condition.parameters) == {"under": "pgd(eps=1/255,steps=20)"}


@pytest.mark.parametrize(
    ("text", "column", "message"),
    [
        ("", 1, "expected a metric such as top1"),
        ("topp1 under clean >= 0.3", 1, "unknown metric 'topp1'; did you mean 'top1'?"),
        ("top1 >= 0.3", 6, "expected under CONDITION, such as top1 under clean, found '>='"),
        ("top1 under pgdd(eps=1/255) >= 0.3", 12, "unknown condition 'pgdd'; did you mean 'pgd'?"),
        ("top1 under pgd(epss=1/255) >= 0.3", 12, "unknown parameter of pgd 'epss'; did you mean 'eps'?"),
        ("top1 under pgd(eps=a) >= 0.3", 12, "pgd: eps 'a': expected a number"),
        ("miou under segpgd(epss=1/255) >= 0.3", 12, "unknown parameter of segpgd 'epss'; did you mean 'eps'?"),
        ("top1 under corruption(fogg,severity=3) >= 0.3", 12, "unknown corruption 'fogg'; did you mean 'fog'?"),
        ("top1 under corruption(fog,severity=6) >= 0.3", 12, "severity '6'; expected a whole number from 1 to 5"),
        ("mean_error of in-c(fog) <= 0.3", 15, "a set has its own corruptions; leave fog out"),
        ("mean_error of in-c(severity=6) <= 0.3", 15, "severity '6'; expected a whole number from 1 to 5"),
        ("mean_error of in-c(presett=cifar) <= 0.3", 15, "did you mean 'preset'?"),
        ("cam_iou under cam(agcm,mode=box) >= 0.3", 15, "unknown map 'agcm'; did you mean 'agcam'?"),
        ("other_mass under two-object(map=agcm) <= 0.3", 18, "unknown map 'agcm'; did you mean 'agcam'?"),
        ("region_area under region-noise(region=map-top,map=agcm) <= 0.3", 19, "did you mean 'agcam'?"),
        ("flipped under counterfactual(change=colour,map=agcm) <= 0.3", 15, "did you mean 'agcam'?"),
        ("cam_iou under cam(agcam,mode=boxes) >= 0.3", 15, "unknown mode 'boxes'; did you mean 'box'?"),
        ("top1 under clean(eps=1/255) >= 0.3", 12, "clean takes no parameters"),
        ("top1 under pgd(eps=1/255 >= 0.3", 15, "this parenthesis is not closed"),
        ("top1 under 3 >= 0.3", 12, "expected a condition such as clean"),
        ("top1 under clean = 0.3", 18, "expected one of >=, <=, >, <, found '='"),
        ("top1 under clean == 0.3", 18, "expected one of >=, <=, >, <, found '=='"),
        ("top1 under clean >= ", 21, "expected a number such as 0.30, 30 % or 1/3, found the end"),
        ("top1 under clean >= 1/0", 21, "expected a number such as 0.30, 30 % or 1/3, found '1/0'"),
        ("top1 under clean >= nan", 21, "found 'nan'"),
        (
            "top1 under clean >= 0.3 wiht 95 % confidence",
            25,
            "the end of the rule or 'with 95 % confidence', found 'wiht'",
        ),
        ("top1 under clean >= 0.3 with 90 % confidence", 30, "expected 95 %: a run's intervals are 95 % intervals"),
        ("top1 under clean >= 0.3 with 95 %", 34, "expected confidence after with 95 %, found the end"),
        ("n under clean >= 10.5", 1, "n is a whole number of samples; the bound is 10.5"),
        ("n under clean >= 10 with 95 % confidence", 21, "expected the end of the rule, found 'with'"),
        ("drop in ece under clean against baseline <= 0.1", 9, "ece cannot be paired by sample"),
        ("drop in nll under clean against baseline <= 0.1", 9, "nll is better lower: expected rise in nll"),
        ("rise in top1 under clean against baseline <= 0.1", 9, "top1 is better higher: expected drop in top1"),
        ("rise against baseline <= 0.1", 6, "expected in METRIC after rise, found 'against'"),
        ("drop in top1 under clean <= 0.1", 26, "expected against baseline, found '<='"),
        ("drop against the baseline <= 0.1", 6, "expected against baseline, found 'against'"),
        ("no finding", 4, "expected findings or doubts after no, found 'finding'"),
        ("no findings except", 19, "expected a text in quotes or a code, found the end"),
        ("no findings except ''", 20, "expected a text in quotes that is not empty"),
        ("no findings except 'a", 20, "this quote is not closed"),
        ("no doubts except evidence/thinn", 18, "unknown finding 'evidence/thinn'; did you mean 'evidence/thin'"),
        ("attention = 'quest'", 11, "expected == and a text in quotes after attention, found '='"),
        ("attention == quest", 14, "expected a text in quotes, found 'quest'"),
        ("top1 under clean ≥ 0.3", 18, "'≥' is not valid here"),
    ],
)
def test_what_is_not_understood_is_refused_at_its_column(text: str, column: int, message: str) -> None:
    with pytest.raises(ProtocolError) as fault:
        parse_statement(text)
    assert str(fault.value).startswith(f"column {column}: ") and message in str(fault.value)
    assert "\n" not in str(fault.value)


@pytest.mark.parametrize(
    ("text", "line", "column"),
    [
        ('[[rule]]\nrequire = "topp1 under clean >= 0"\n', 2, 12),
        ("\n[[rule]]\n  require   =  'top1 under klean >= 0' # note\n", 3, 28),
        ('[[rule]]\nrequire = "no findings except \\"abcdef\\", \\u0022bcdefg\\", c"\n', 2, 59),
        ('[[rule]]\nrequire = """\ntop1\nunder klean >= 0"""\n', 4, 7),
        ('[[rule]]\nrequire = """top1 \\\n   under klean >= 0"""\n', 3, 10),
        ("[[rule]]\nrequire = '''top1\nunder klean >= 0'''\n", 3, 7),
        ("[[rule]]\r\nrequire = '''top1\r\nunder klean >= 0'''\r\n", 3, 7),
        ("rule = [{require = 'no findings'}, {name = \"require = 'x'\", 'require' = 'no finding'}]", 1, 77),
        ("# require = 'a'\r\n[[rule]]\r\nname = 'require'\r\nrequire = 'no finding'\r\n", 4, 15),
    ],
)
def test_faults_are_found_in_the_file_by_line_and_column(text: str, line: int, column: int) -> None:
    with pytest.raises(ProtocolError) as fault:
        parse_policy(text, "p.toml")
    assert str(fault.value).startswith(f"p.toml: line {line}, column {column}: ")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[rule]\n", "not valid TOML: .*line 1, column 7"),
        ("[[rule]]\nrequire = 'a\n", r"not valid TOML: .*line [23], column \d+"),
        ("[[rule]]\nrequire = '''a\n", r"not valid TOML: .*at line 3, column 1, the end of the document"),
        ("[[rule]]\nrequire = 'no findings'\nrequire = 'no findings'\n", "not valid TOML: .*line 3"),
        ("a = " + "[" * 100_000, "not valid TOML|nested too deeply"),
        ("", "no rules, so nothing would be checked"),
        ("rule = 3", "no rules, so nothing would be checked"),
        ("undecidd = 'pass'\n", "line 1, column 1: unknown field 'undecidd'; did you mean 'undecided'"),
        ("undecided = 'maybe'\n", "line 1, column 1: undecided 'maybe'; expected fail or pass"),
        ("[[rules]]\nrequire = 'no findings'", "line 1, column 3: unknown field 'rules'; did you mean 'rule'"),
        ("[[rule]]\nrequire = 'no findings'\n[[rule]]\nname = 'a'", "rule 2 has no require"),
        ("\n[[rule]]\nrequire = 3", "rule at line 3: require is 3; expected a text in quotes"),
        ("[[rule]]\nrequire = 'no findings'\nchekpoint = 'a'", "rule at line 2: .*did you mean 'checkpoint'"),
        ("[[rule]]\nrequire = 'no findings'\nseverity = 'eror'", "rule at line 2: .*did you mean 'error'"),
    ],
)
def test_a_malformed_policy_is_refused(text: str, message: str) -> None:
    with pytest.raises(ProtocolError, match=rf"^p\.toml.*{message}") as fault:
        parse_policy(text, "p.toml")
    assert "\n" not in str(fault.value)


def test_a_policy_file(tmp_path: Path) -> None:
    path = tmp_path / "p.toml"
    path.write_bytes(
        b"\xef\xbb\xbfundecided = 'pass'\n[[rule]]\nrequire = 'no findings'\nname = 'tidy'\ncheckpoint = 'vit-*'\n"
        b"severity = 'warning'\n[[rule]]\nrequire = ' mce <=\t0.6 '\n"
    )
    policy = read_policy(path)
    assert (policy.path, policy.undecided, len(policy.rules)) == (str(path), "pass", 2)
    first, second = policy.rules
    assert (first.name, first.checkpoint, first.severity, first.line) == ("tidy", "vit-*", "warning", 3)
    assert (second.name, second.require, second.checkpoint) == ("mce <= 0.6", "mce <= 0.6", "*")
    assert (second.severity, second.place) == ("error", "line 8, column 12")
    with pytest.raises(ProtocolError, match=r"none\.toml: No such file.*--init"):
        read_policy(tmp_path / "none.toml")


@pytest.mark.parametrize(
    ("wanted", "condition", "meant"),
    [
        ("pgd(eps=1/255)", "pgd(eps=1/255,steps=20)", True),
        ("pgd(steps=20,eps=1/255)", "pgd(eps=1/255,steps=20)", True),
        ("pgd", "pgd(eps=1/255,steps=20)", True),
        ("pgd(eps=0.00392156862745098)", "pgd(eps=1/255,steps=20)", True),
        ("pgd(eps=1/255,steps=10)", "pgd(eps=1/255,steps=20)", False),
        ("pgd(eps=1/255)", "pgd(eps=10/255,steps=20)", False),
        ("pgd(eps=1/255)", "apgd(eps=1/255,steps=20)", False),
        ("pgd(eps=1/255,restarts=2)", "pgd(eps=1/255,steps=20)", False),
        ("pgd(eps=1/255,norm=linf)", "pgd(eps=1/255,steps=20)", True),
        ("pgd(eps=1/255,norm=linf)", "pgd(eps=1/255,steps=20,norm=l2)", False),
        ("clean", "clean", True),
        ("corruption(fog)", "corruption(fog)", True),
        ("corruption(fog)", "corruption(fog,severity=3)", False),
        ("corruption(fog,severity=3)", "corruption(fog)", False),
        ("corruption(fog,severity=3)", "corruption(fog,severity=3,preset=cifar)", True),
        ("corruption(fog,severity=3,preset=imagenet)", "corruption(fog,severity=3)", True),
        ("corruption(fog,severity=3,preset=imagenet)", "corruption(fog,severity=3,preset=cifar)", False),
        ("corruption(fog,severity=3)", "corruption(snow,severity=3)", False),
        ("in-c", "in-c(preset=cifar)", True),
        ("in-c(variant=hendrycks)", "in-c(preset=cifar)", True),
        ("in-c(preset=imagenet)", "in-c(preset=cifar)", False),
        ("in-c", "in-c-extra", False),
        ("cam(agcam,mode=box)", "cam(agcam,faithfulness=all,mode=box)", True),
        ("cam(agcam,threshold=0.50,mode=box)", "cam(agcam,mode=box)", True),
        ("cam(agcam,threshold=0.3)", "cam(agcam,mode=box)", False),
        ("cam(agcam,mode=box)", "cam(rollout,mode=box)", False),
        ("stability(agcam,under=pgd(eps=1/255))", "stability(agcam,under=pgd(eps=1/255,steps=20))", True),
        ("stability(agcam,under=pgd(eps=2/255))", "stability(agcam,under=pgd(eps=1/255,steps=20))", False),
    ],
)
def test_a_condition_fits_by_the_parameters_that_are_given(wanted: str, condition: str, meant: bool) -> None:
    assert matches(check_condition(wanted), condition) is meant
    assert not meant or is_exactly(pattern_of(condition), condition)


def test_every_attack_and_set_of_the_house_is_known() -> None:
    for name in (*ATTACKS, *DENSE_ATTACKS, *SETS):
        assert check_condition(name).name == name
    assert {"top1", "miou", "mce", "cam_iou", "abpc", "map_iou_held", "max_box_acc"} <= set(metrics())


def test_whatever_a_rule_holds_only_a_protocol_error_comes_out() -> None:
    draw = random.Random(0)
    words = [
        "top1",
        "n",
        "mce",
        "under",
        "of",
        "clean",
        "pgd",
        "(",
        ")",
        "eps=",
        "1/255",
        ",",
        "drop",
        "rise",
        "in",
        "no",
    ]
    words += [
        "against",
        "baseline",
        ">=",
        "<",
        "==",
        "0.3",
        "%",
        "with",
        "95",
        "confidence",
        "findings",
        "except",
        "'",
        '"',
    ]
    words += [
        "a",
        "\\",
        "attention",
        "checkpoint",
        "sha256",
        "cam(agcam",
        "stability(",
        "under=",
        "corruption(fog",
        "\n",
    ]
    words += [
        "severity=",
        "in-c(",
        "iou(",
        "steps=",
        "mode=",
        "threshold=",
        "é",
        "\x00",
        "9" * 40,
        "1e99",
        "/",
        "=",
        "-",
    ]
    understood = 0
    for turn in range(4000):
        text = draw.choice(["", " "]).join(draw.choices(words, k=draw.randint(1, 12)))
        if turn % 4 == 0:
            good = list("top1 under cam(agcam,threshold=0.3) >= 0.30 with 95 % confidence")
            for _ in range(draw.randint(1, 3)):
                good[draw.randrange(len(good))] = chr(draw.choice([draw.randrange(128), draw.randrange(0x3000)]))
            text = "".join(good)
        try:
            parse_statement(text)
            understood += 1
        except ProtocolError as fault:
            assert str(fault).startswith("column ")
    assert 0 < understood < 2000


def test_the_rules_in_the_docs_are_understood() -> None:
    blocks = (ROOT / "docs" / "reference" / "policies.md").read_text(encoding="utf-8").split("```toml\n")[1:]
    rules = [
        rule for block in blocks for rule in parse_policy(block.split("```")[0], "docs/reference/policies.md").rules
    ]
    assert {type(rule.statement) for rule in rules} == {Value, Change, NoFindings, Identity}


def test_a_set_at_some_severities_is_named_by_them() -> None:
    whole, some = check_condition("in-c"), check_condition("in-c(severity=3)")
    assert (
        matches(whole, "in-c") and not matches(whole, "in-c(severity=3)") and not matches(whole, "in-c(severity=1+3)")
    )
    assert matches(some, "in-c(severity=3)") and not matches(some, "in-c") and not matches(some, "in-c(severity=1+3)")
    assert matches(check_condition("noise(severity=1+3,preset=cifar)"), "noise(severity=1+3,preset=cifar)")


@pytest.mark.parametrize(
    ("written", "text"),
    [
        ("fog(severity=3)", "corruption(fog,severity=3)"),
        ("Gaussian-Noise(severity=2)", "corruption(gaussian_noise,severity=2)"),
        ("fog", "corruption(fog)"),
        ("snow(severity=1+3)", "corruption(snow,severity=1+3)"),
        ("jpeg_compression(severity=1,preset=cifar)", "corruption(jpeg_compression,severity=1,preset=cifar)"),
    ],
)
def test_a_corruption_is_spelled_as_by_its_option(written: str, text: str) -> None:
    (rule,) = parse_policy(f"[[rule]]\nrequire = 'top1 under {written} >= 0.3'", "p").rules
    assert isinstance(rule.statement, Value) and rule.statement.condition == pattern_of(text)


@pytest.mark.parametrize("written", ["fogg(severity=3)", "fog(snow,severity=3)", "fog(severity=6)", "fog(steps=2)"])
def test_what_is_no_corruption_is_refused(written: str) -> None:
    with pytest.raises(ProtocolError):
        parse_policy(f"[[rule]]\nrequire = 'top1 under {written} >= 0.3'", "p")
