"""The papers that a page asks to be cited: those of what the run used, each once."""

import re

import pytest
from figures import figure
from manifests import whole

from attacks.registry import ATTACKS, DENSE_ATTACKS
from cam.registry import CONTROLS, METHODS
from corruptions.constants import PRESETS
from corruptions.registry import CORRUPTIONS
from robustkit.attention.registry import FORMULAS
from robustkit.report.page import bibtex, references
from robustkit.tasks import metrics

QUEST = {
    "checkpoints": [{"name": "a", "attention": "quest"}, {"name": "b", "attention": "quest(eps=1e-6)"}],
    "conditions": [
        "clean",
        "autoattack(eps=1/255)",
        "apgd(eps=1/255,steps=50)",
        "corruption(fog,severity=1)",
        "corruption(jpeg_compression,severity=5)",
        "cam(agcam)",
        "cam(random)",
        "pgd(eps=1/255,from=rise)",
    ],
}


def keys(text: str) -> list[str]:
    return re.findall(r"^@\w+\{(\w+),", text, re.MULTILINE)


def test_a_quest_run_names_each_paper_once() -> None:
    text = bibtex(whole(QUEST), [figure({"metric": name}) for name in ("top1", "top1", "road")])
    assert keys(text) == [
        *("robustkit", "govindarajan2026quest", "madry2018towards", "croce2020reliable", "croce2020minimally"),
        *("andriushchenko2020square", "hendrycks2019benchmarking", "leem2024attention", "rong2022consistent"),
    ]
    assert text.count("{") == text.count("}") and " for = " not in text
    assert all(f"{name} = {{" in entry for entry in text.split("\n\n")[1:] for name in ("title", "author", "year"))


@pytest.mark.parametrize("conditions", [["clean"], ["clean", "cam(random)"], ["clean", "mine(eps=1/255)"]])
def test_what_nobody_published_has_no_paper(conditions: list[str]) -> None:
    manifest = whole({"checkpoints": [{"name": "a", "attention": "standard"}], "conditions": conditions})
    assert keys(bibtex(manifest, [figure({"metric": "top1"})])) == ["robustkit"]


def test_corruptions_are_those_of_imagenet_c_unless_a_plug_in_brings_them() -> None:
    under = {
        "checkpoints": [{"name": "a", "attention": "standard"}],
        "conditions": ["pgd(eps=1/255,under=fog,severity=3)"],
    }
    assert "hendrycks2019benchmarking" in keys(bibtex(whole(under), []))
    foreign = under | {"conditions": ["corruption(haze,severity=3)", "pgd(eps=1/255,under=haze,severity=3)"]}
    assert keys(bibtex(whole(foreign), [])) == ["robustkit", "madry2018towards"]


def test_every_method_with_a_paper_is_known_by_its_name() -> None:
    words = [word for of_entry in references().values() for word in of_entry]
    known = {*ATTACKS, *DENSE_ATTACKS, *METHODS, *FORMULAS, *metrics(), *CORRUPTIONS, "bethgelab", "robustkit"}
    assert set(words) <= known
    of_a_year = re.compile(r"\b(19|20)\d\d\b")
    kinds = [*ATTACKS.items(), *DENSE_ATTACKS.items(), *METHODS.items()]
    published = {name for name, kind in kinds if of_a_year.search(kind.__doc__ or "")} | PRESETS["imagenet"].keys()
    assert len(published) > 35 and {"fgsm", "cospgd", "agcam-full"} <= set(words)
    assert published - set(CONTROLS) <= set(words), "its docstring names a paper: add an entry to references.bib"
    assert set(FORMULAS) - set(words) == {"standard"}
