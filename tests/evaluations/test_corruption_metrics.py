"""mCE and its relatives from outcomes made by hand, conditions as texts, and sets of corruptions."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from figures import noted, said_of
from manifests import whole

from corruptions.registry import CATEGORIES
from robustkit.common.figure import Figure
from robustkit.errors import ProtocolError
from robustkit.evaluations import corruptions
from robustkit.evaluations.corruptions import (
    CORRUPTIONS,
    QUICK,
    SETS,
    TEST,
    VOCABULARY,
    Corrupted,
    conditions_of,
    expand,
    parse_corrupted,
    possible_means,
)
from robustkit.evaluations.corruptions.results import (
    ALEXNET,
    ALEXNET_CLEAN,
    CorruptionSample,
    corruption_rows,
    tree_doubts,
    why_no_mce,
)
from robustkit.evaluations.corruptions.tables import corruption_tables
from robustkit.runs.manifest import Manifest

# The published constants once more, in the order of the tables of Hendrycks and Dietterich.
PUBLISHED = (
    *(0.886428, 0.894468, 0.922640, 0.819880, 0.826268, 0.785948, 0.798360),
    *(0.866816, 0.826572, 0.819324, 0.564592, 0.853204, 0.646056, 0.717840, 0.606500),
)


def outcome(*wrong: float, ids: str = "abcdefgh", flags: tuple[str, ...] = (), nll: float = 2.0) -> CorruptionSample:
    """Wrong or not, as fractions, so that any error can be had with one sample."""
    n = len(wrong)
    return CorruptionSample(
        pa.array(list(ids[:n])), np.array(wrong, float), np.full(n, nll), np.full(n, 0.9), noted(*flags)
    )


def rows(outcomes: dict[str, CorruptionSample], why: str = "", n: int = 0) -> dict[tuple[str, str], tuple[Any, ...]]:
    """By condition and metric; n: samples of the data set, by default those of the first outcome."""
    n = n or len(next(iter(outcomes.values())).wrong)
    return {row.key: (row.value, row.n, row.low, row.high, said_of(row)) for row in corruption_rows(outcomes, n, why)}


def all_of(error: dict[str, float], suffix: str = "") -> dict[str, CorruptionSample]:
    return {f"corruption({c},severity={s}{suffix})": outcome(error[c]) for c in error for s in (1, 2, 3, 4, 5)}


def test_alexnets_own_errors_give_100() -> None:
    assert tuple(ALEXNET[name] for name in TEST) == PUBLISHED
    found = rows(all_of(ALEXNET) | {"clean": outcome(ALEXNET_CLEAN)})
    assert found["in-c", "mce"][0] == pytest.approx(1.0) and found["in-c", "relative_mce"][0] == pytest.approx(1.0)
    assert found["in-c", "mean_error"][0] == pytest.approx(sum(PUBLISHED) / 15)
    for name in TEST:
        assert found[f"corruption({name})", "ce"][0] == pytest.approx(1.0)


def test_an_all_wrong_model_has_what_the_constants_imply() -> None:
    found = rows(all_of(dict.fromkeys(TEST, 1.0)) | {"clean": outcome(1.0)})
    assert found["in-c", "mce"][0] == pytest.approx(sum(1 / error for error in PUBLISHED) / 15)
    assert found["in-c", "mce"][0] == pytest.approx(1.2939, abs=5e-4)  # worked out by hand
    assert found["in-c", "relative_mce"][0] == pytest.approx(0, abs=1e-12)  # no worse than clean
    assert ("in-c", "relative_mce") not in rows(all_of(dict.fromkeys(TEST, 1.0)))


def test_severities_count_alike_then_corruptions() -> None:
    # One severity of one corruption fails: a fifth of its error, a fifteenth of the set's.
    own = all_of(dict.fromkeys(TEST, 0.0))
    own["corruption(fog,severity=4)"] = outcome(1.0)
    found = rows(own)
    assert found["corruption(fog)", "mean_error"][0] == pytest.approx(0.2)
    assert found["corruption(fog)", "ce"][0] == pytest.approx(0.2 / 0.819324)
    assert found["in-c", "mce"][0] == pytest.approx(0.2 / 0.819324 / 15)
    assert found["in-c", "mean_error"][0] == pytest.approx(0.2 / 15)
    assert found["weather", "mean_error"][0] == pytest.approx(0.05) and found["blur", "mean_error"][0] == 0
    # segformer-16 takes noise at three severities only: a third there, a fifth elsewhere, then a sixteenth.
    own = all_of(dict.fromkeys(CORRUPTIONS, 0.0))
    own["corruption(shot_noise,severity=3)"] = own["corruption(spatter,severity=5)"] = outcome(1.0)
    found = rows(own)
    assert found["segformer-16", "mean_error"][0] == pytest.approx((1 / 3 + 1 / 5) / 16)
    assert found["fan-19", "mean_error"][0] == pytest.approx(1 / 3 / 19)
    assert found["in-c-extra", "mean_error"][0] == pytest.approx(1 / 5 / 4)


def test_a_mean_is_given_only_where_nothing_is_missing() -> None:
    own = all_of(dict.fromkeys(TEST, 0.5))
    del own["corruption(frost,severity=3)"]
    found = rows(own)
    assert {key[0] for key in found} & {"in-c", "weather", "fan-19", "corruption(frost)"} == set()
    assert ("digital", "mean_error") in found and ("corruption(snow)", "mean_error") in found


def test_means_over_some_severities_are_named_for_them() -> None:
    own = {f"corruption({c},severity=3)": outcome(0.0, 0.0) for c in TEST}
    own["corruption(fog,severity=3)"] = outcome(1.0, 0.0, nll=17.0)
    found = rows(own | {"clean": outcome(0.0, 0.0)})
    assert {text for text, _ in found} == {f"{s}(severity=3)" for s in ("in-c", "noise", "blur", "weather", "digital")}
    value, n, low, high, flags = found["in-c(severity=3)", "mean_error"]
    assert (value, n) == (pytest.approx(1 / 30), 2) and low <= value <= high
    assert flags == ["no mCE: AlexNet's errors are means over all five severities"]
    assert found["weather(severity=3)", "mean_error"][0] == pytest.approx(1 / 8)
    assert found["in-c(severity=3)", "nll"][0] == pytest.approx(2 + 1)
    assert {metric for _, metric in found} == {"mean_error", "nll", "ece"}
    assert conditions_of("in-c(severity=3)") == list(own)
    assert conditions_of("noise(severity=1+3,source=released)")[:2] == [
        f"corruption(gaussian_noise,severity={severity},source=released)" for severity in (1, 3)
    ]
    mild = {f"corruption({c},severity={s})": outcome(0.0) for c in CORRUPTIONS for s in (1, 2, 3)}
    assert {text for text, _ in rows(mild)} == {
        "fan-19",
        *(f"{each}(severity=1+2+3)" for each in ("in-c-bar", "cifar-c-bar", "laion-c")),
    }  # not in-c
    two = {f"corruption({c},severity={s},preset=cifar)": outcome(0.5) for c in SETS["noise"] for s in (2, 4)}
    assert {text for text, _ in rows(two)} == {"noise(severity=2+4,preset=cifar)"}
    del two["corruption(shot_noise,severity=4,preset=cifar)"]
    assert rows(two) == {}


def test_a_quick_set_is_a_mean_of_its_own_and_named_where_no_other_holds_it() -> None:
    quick = QUICK["in-c-quick"]
    assert SETS["in-c-quick"] == dict.fromkeys(quick.kinds, (quick.severity,)) == expand("in-c-quick")
    errors = dict(zip(quick.kinds, (0.0, 0.5, 1.0), strict=True))
    outcomes = {f"corruption({c},severity={quick.severity})": outcome(errors[c], 0.4) for c in quick.kinds}
    figures = rows(outcomes)
    assert {text for text, _ in figures} == {"in-c-quick"}  # no mean over one severity, which is its own condition
    assert figures["in-c-quick", "mean_error"][0] == pytest.approx((0.5 + 0.4) / 2)
    assert {metric for _, metric in figures} == {"mean_error", "nll", "ece"}  # no mCE
    whole = {f"corruption({c},severity={s})": outcome(1.0) for c in TEST for s in (1, 2, 3, 4, 5)}
    three = {text: each for text, each in whole.items() if f"severity={quick.severity})" in text}
    assert "in-c" in (means := {text for text, _ in rows(whole)}) and "in-c-quick" not in means
    means = {text for text, _ in rows(three)}
    assert f"in-c(severity={quick.severity})" in means and "in-c-quick" not in means
    del three[f"corruption({next(c for c in TEST if c not in quick.kinds)},severity={quick.severity})"]
    assert "in-c-quick" in {text for text, _ in rows(three)}
    frost = {text.replace(")", ",texture=own)"): whole.pop(text) for text in list(whole) if "frost" in text}
    tiles = {f"corruption(stickers,severity={s})": outcome(1.0) for s in (1, 2, 3, 4, 5)}
    assert "in-c-quick" not in {text for text, _ in rows(whole | frost | tiles)}  # the mean with the other texture
    other = {text.replace(f"={quick.severity})", "=1)"): each for text, each in outcomes.items()}
    assert quick.severity != 1 and rows(other) == {}  # the three at another severity estimate nothing
    assert not any("quick" in mean for mean in possible_means(conditions_of("fan-19")))


def test_a_quick_set_has_one_severity_and_says_how_far_off_it_may_be() -> None:
    quick = QUICK["in-c-quick"]
    assert expand(f"in-c-quick(severity={quick.severity})") == expand("in-c-quick")
    for some in ("1", f"1+{quick.severity}"):
        with pytest.raises(ProtocolError) as fault:
            expand(f"fog,in-c-quick(severity={some})")
        assert str(fault.value) == (
            f"in-c-quick(severity={some}): in-c-quick is of severity {quick.severity} alone; leave severity out"
        )
    (note,) = tree_doubts("in-c-quick", (224, 224), [])
    assert (note.code, note.severity) == ("corruptions/quick-set", "note")
    assert note.text == (
        f"in-c-quick estimates the mean error of in-c from three kinds at severity {quick.severity}; it was off by "
        f"{quick.off:.1f} points (root mean square; at most {quick.most:.1f}) on {quick.count} checkpoints that the "
        f"choice had not seen; on data sets that it had not seen: {quick.elsewhere:.1f} points"
    )
    (_, alone) = tree_doubts("cifar-c-bar-quick(preset=cifar)", (32, 32), [])
    assert alone.text.endswith("on data sets that it had not seen: not measured")  # there is one
    assert [each.code for each in tree_doubts("in-c", (224, 224), [])] == []


def test_tables_show_means_over_some_severities_and_which() -> None:
    names = ("corruption(fog,severity=3)", "corruption(snow,severity=1)", "corruption(snow,severity=2)")
    figures = {names[0]: (0.25, 2.0, 0.1), names[1]: (0.5, 1.0, 0.2), names[2]: (0.75, 4.0, 0.4)}
    results: list[Figure] = []
    for text, (error, nll, ece) in figures.items():
        for metric, value in (("top1", 1 - error), ("nll", nll), ("ece", ece)):
            results.append(Figure(value, 1, checkpoint="a").of(text, metric))
    (table,) = corruption_tables(results)
    assert table.errors.headings == ("corruption", "1", "2", "3", "4", "5", "mean", "NLL", "ECE %")
    by_name = {cells[0]: cells[1:] for cells in table.errors.rows}
    assert by_name["fog"] == ("–", "–", "75.0", "–", "–", "75.0 (3)", "2.000 (3)", "10.0 (3)")
    assert by_name["snow"] == ("50.0", "25.0", "–", "–", "–", "37.5 (1–2)", "2.500 (1–2)", "30.0 (1–2)")
    assert [table.errors.shade(row, 6) for row in (0, 1)] == [0.625, 0.25]
    mean = Figure(0.2, 9, 0.1, 0.3, checkpoint="a").of("in-c(severity=3)", "mean_error", noted("x"))
    (table,) = corruption_tables([*results, mean])
    assert table.means.rows == (("in-c, severity 3 only", "9", "80.0 [70.0, 90.0]", "–", "–"),)


def test_a_mean_is_over_the_samples_that_all_conditions_have() -> None:
    own = {f"corruption(fog,severity={s})": outcome(1.0, 0.0, 0.0, 0.0, flags=("weights in part",)) for s in (1, 2, 3)}
    own["corruption(fog,severity=4)"] = outcome(0.0, 0.0, 0.0, 1.0, ids="dcba")  # the same in another order
    unread = ("2 of 4 images could not be read; excluded [data/unreadable]",)
    own["corruption(fog,severity=5)"] = outcome(1.0, 0.0, ids="ca", flags=unread, nll=7.0)
    found = rows(own)
    value, n, _, _, flags = found["corruption(fog)", "mean_error"]
    assert value == pytest.approx((4 * 1 / 2 + 1 / 2) / 5) and n == 2  # of a and c
    assert flags == ["weights in part", "2 of 4 samples lack some of its conditions; excluded"]
    assert found["corruption(fog)", "nll"][:2] == (pytest.approx((4 * 2 + 7) / 5), 2)
    assert found["corruption(fog)", "nll"][4] == flags
    own = all_of(ALEXNET) | {"clean": outcome(0.5, 0.5)}
    own["corruption(fog,severity=5)"] = outcome(
        1.0, 1.0, ids="xy", flags=("incomplete: 2 of 3 samples [run/incomplete]",)
    )
    found = rows(own, n=3)
    assert not {"in-c", "weather", "corruption(fog)"} & {text for text, _ in found}  # no sample is in all
    own["corruption(fog,severity=5)"] = outcome(1.0, 1.0)
    assert {row[4][-1] for key, row in rows(own, n=3).items() if key[0] == "in-c"} == {
        "2 of 3 samples lack some of its conditions; excluded"
    }
    why = rows(own, "no ImageNet", n=3)["in-c", "mean_error"]
    assert why[4] == ["2 of 3 samples lack some of its conditions; excluded", "no mCE: no ImageNet"]


def test_the_interval_keeps_the_conditions_of_a_sample_together() -> None:
    # Two samples, wrong everywhere or nowhere: the mean error of a resample is 0, 1/2 or 1.
    wide = rows({f"corruption(fog,severity={s})": outcome(1.0, 0.0) for s in (1, 2, 3, 4, 5)})
    assert wide["corruption(fog)", "mean_error"][2:4] == (0.0, 1.0)


def run_on(data: dict[str, Any]) -> Manifest:
    return whole({"checkpoints": [{"name": "net"}], "data": data})


def test_without_imagenet_mce_is_refused_and_says_why() -> None:
    why = why_no_mce(run_on({"layout": "cifar10", "classes": 10, "name": "cifar10-test"}))
    found = rows(all_of(ALEXNET, ",preset=cifar"), why)
    assert not {metric for _, metric in found} & {"mce", "relative_mce", "ce"}
    assert found["in-c(preset=cifar)", "mean_error"][4] == [
        "no mCE: AlexNet's errors are known only for the 1000 ImageNet classes, not for cifar10-test"
    ]
    assert why_no_mce(run_on({"layout": "imagenet", "classes": 1000, "name": "val"})) == ""
    assert "ImageNet" in why_no_mce(run_on({"layout": "imagenet-r", "classes": 1000, "name": "r"}))


def test_definitions_are_not_mixed() -> None:
    own = all_of(dict.fromkeys(TEST, 0.0)) | all_of(dict.fromkeys(TEST, 1.0), ",source=released")
    found = rows(own)
    assert found["in-c", "mean_error"][0] == 0
    assert found["in-c(source=released)", "mean_error"][0] == pytest.approx(1)
    assert found["corruption(fog,source=released)", "mean_error"][0] == pytest.approx(1)


def test_what_differs_from_the_benchmark_is_said() -> None:
    assert tree_doubts("in-c", (224, 224), []) == []
    (size,) = tree_doubts("in-c", (192, 384), [])
    assert size.code == "corruptions/other-size" and size.text == (
        "corruptions were applied at 384x192; ImageNet-C uses 224x224, so published figures are not comparable"
    )
    (constants,) = tree_doubts("in-c(preset=cifar)", (32, 32), [])
    assert (constants.code, constants.severity) == ("corruptions/cifar-constants", "note")
    one, other = (
        {"root": root, "image_sizes": [[224, 224], size]} for root, size in (("a", [192, 96]), ("b", [32, 32]))
    )
    whole = {"root": "a", "image_sizes": [[224, 224]]}
    assert tree_doubts("in-c(source=released)", (224, 224), [whole, whole]) == []
    assert [str(each) for each in tree_doubts("in-c(source=released)", (224, 224), [one, other, one])] == [
        "released files of 32x32 were resized to 224x224 [corruptions/released-resized]",
        "released files of 96x192 were resized to 224x224 [corruptions/released-resized]",
        "released files of several trees: a, b [corruptions/several-trees]",
    ]
    assert conditions_of("corruption(fog,source=released)")[4] == "corruption(fog,severity=5,source=released)"
    assert len(conditions_of("in-c(preset=cifar)")) == 75 and "preset=cifar" in conditions_of("in-c(preset=cifar)")[0]
    (variant,) = tree_doubts("in-c(variant=bethgelab)", (224, 224), [])
    assert variant.code == "corruptions/variant" and "snow" in variant.text


def test_conditions_are_texts_and_back() -> None:
    for text, parts in {
        "corruption(fog,severity=3)": Corrupted("fog", 3),
        "corruption(fog,severity=5,preset=cifar)": Corrupted("fog", 5, preset="cifar"),
        "corruption(snow,severity=1,variant=bethgelab)": Corrupted("snow", 1, variant="bethgelab"),
        "corruption(snow,severity=1,source=released)": Corrupted("snow", 1, source="released"),
        "corruption(fog,preset=cifar)": Corrupted("fog", preset="cifar"),
    }.items():
        assert parse_corrupted(text) == parts and parts.text == text
    assert parse_corrupted("pgd(eps=1/255,steps=20)") is None and parse_corrupted("clean") is None
    for text, said in {
        "corruption(fogg,severity=3)": "did you mean 'fog'?",
        "corruption(fog,severity=6)": "severity '6'; expected a whole number from 1 to 5",
        "corruption(fog,preset=imagnet)": "did you mean 'imagenet'?",
        "corruption(fog,colour=red)": "unknown parameter of corruption 'colour'",
        "corruption(fog,constants=cifar)": "--constants cifar is written preset=cifar in a condition",
        "corruption(fog": "expected such as corruption(fog,severity=3)",
    }.items():
        with pytest.raises(ProtocolError) as fault:
            parse_corrupted(text)
        assert said in str(fault.value)


def test_lists_of_corruptions() -> None:
    assert {name: len(members) for name, members in SETS.items()} == {
        "in-c": 15,
        "in-c-extra": 4,
        "segformer-16": 16,
        "fan-19": 19,
        "in-c-bar": 10,
        "cifar-c-bar": 10,
        "laion-c": 6,
        "noise": 3,
        "blur": 4,
        "weather": 4,
        "digital": 4,
        **dict.fromkeys(("in-c-quick", "in-c-bar-quick", "cifar-c-bar-quick", "laion-c-quick"), 3),
    }
    assert sum(map(len, SETS["segformer-16"].values())) == 4 * 3 + 12 * 5
    assert expand("fog, snow(severity=1+3),noise(severity=2)") == {
        "gaussian_noise": (2,),
        "shot_noise": (2,),
        "impulse_noise": (2,),
        "snow": (1, 3),
        "fog": (1, 2, 3, 4, 5),
    }
    assert expand(["corruption(fog,severity=2)", "fog(severity=4)"]) == {"fog": (2, 4)}
    assert expand("weather,-frost,-fog(severity=5),snow") == {
        "snow": (1, 2, 3, 4, 5),
        "fog": (1, 2, 3, 4),
        "brightness": (1, 2, 3, 4, 5),
    }
    for text, said in {
        "fog,-weather": "none is left",
        "foq": "did you mean 'fog'?",
        "in-d": "did you mean 'in-c'?",
        "fog(severity=6)": "severity '6'; expected whole numbers from 1 to 5",
        "fog(severity=0)": "severity '0'",
        "fog(level=2)": "is not severity=",
        "fog(severity=1))": "expected a name, a set, or fog(severity=1+3)",
    }.items():
        with pytest.raises(ProtocolError) as fault:
            expand(text)
        assert said in str(fault.value)


def summary(outcomes: dict[str, CorruptionSample], why: str = "") -> list[Figure]:
    """Figures of a summary, as `metrics` makes them."""
    made = [*corruption_rows(outcomes, 1, why)]
    for text, one in outcomes.items():
        made.append(Figure(1 - one.wrong.mean(), 1, 0.0, 1.0).of(text, "top1"))
    return [replace(row, checkpoint="vit") for row in made]


def test_the_tables_show_errors_means_and_alexnets_columns_where_it_is_a_yardstick() -> None:
    own = all_of(ALEXNET) | {"clean": outcome(0.25)} | all_of({"spatter": 0.5})
    own["corruption(fog,severity=1)"] = outcome(0.0)
    (table,) = corruption_tables(summary(own))
    assert table.errors.headings == ("corruption", "1", "2", "3", "4", "5", "mean", "CE %", "NLL", "ECE %")
    by_name = {cells[0]: (kind, cells) for kind, cells in zip(table.kinds, table.errors.rows, strict=True)}
    assert list(by_name) == [*TEST, "spatter"]
    kind, cells = by_name["fog"]
    assert kind == "weather" and cells[1:8] == ("100.0", "18.1", "18.1", "18.1", "18.1", "34.5", "80.0")
    assert cells[8:] == ("2.000", "59.5") and [cell.value for cell in cells[1:3]] == pytest.approx([1, 1 - 0.819324])
    assert by_name["spatter"][1][7] == "–"  # AlexNet's error there was not published
    assert [row[0] for row in table.means.rows] == ["in-c", "noise", "blur", "weather", "digital"]
    assert table.means.rows[0][3].startswith("98.7 [") and table.means.rows[1][3] == "–"
    (without,) = corruption_tables(summary(own, "no ImageNet"))
    assert without.errors.headings == ("corruption", "1", "2", "3", "4", "5", "mean", "NLL", "ECE %")
    assert without.means.headings == ("mean over", "n", "top-1 % [95 %]", "NLL", "ECE %")
    assert "CIFAR-10-C's constants" in replace(table, definition="(preset=cifar)").source
    assert "released files" in replace(table, definition="(source=released)").source


def test_a_corruption_that_is_added_enters_no_published_set(monkeypatch: pytest.MonkeyPatch) -> None:
    more = {**CATEGORIES, "noise": (*CATEGORIES["noise"], "salt")}
    monkeypatch.setattr("corruptions.registry.CATEGORIES", more)
    module: dict[str, Any] = {"__package__": corruptions.__package__, "__name__": corruptions.__name__}
    exec(compile(Path(corruptions.__file__).read_text("utf-8"), corruptions.__file__, "exec"), module)
    assert "salt" in module["CATEGORIES"]["noise"] and module["SETS"] == corruptions.SETS
    assert list(corruptions.SETS["in-c"])[-1] == "jpeg_compression" and len(corruptions.SETS["fan-19"]) == 19


def test_a_mean_over_some_severities_has_a_name() -> None:
    text = "corruption(snow,severity=1+2+3,variant=bethgelab)"
    assert corruptions.VOCABULARY.label(text) == "snow, severity 1+2+3"
    assert corruptions.VOCABULARY.label("corruption(frost,severity=2,texture=own)") == "frost(texture=own), severity 2"
    assert [corruptions.VOCABULARY.label(each) for each in ("corruption(fog)", "in-c")] == ["fog", "in-c"]


def test_a_draft_has_the_benchmarks_figure_where_there_is_one() -> None:
    of_mean = ("in-c", "mean_error", "mean over corruptions and severities")
    assert [*VOCABULARY.chief({("in-c", "mean_error"): 0.5}, "top1")] == [of_mean]
    values = {("in-c", "mean_error"): 0.5, ("in-c", "mce"): 0.6}
    assert [*VOCABULARY.chief(values, "top1")] == [of_mean, ("in-c", "mce", "the benchmark's figure")]
