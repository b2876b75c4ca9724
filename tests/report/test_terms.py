"""The glossary: every number that a report shows is explained, and words lead to what they mean."""

from page_runs import HOSTILE

from robustkit.evaluations.condition import vocabularies
from robustkit.report.page import Terms, term_id
from robustkit.report.pages import allow_breaks
from robustkit.tasks import EVERY_TASK
from robustkit.tasks.classification import TASK as CLASSIFICATION
from robustkit.tasks.segmentation import TASK as SEGMENTATION
from robustkit.tasks.task import glossary


def test_every_number_of_the_results_is_explained() -> None:
    for task in map(EVERY_TASK.__getitem__, EVERY_TASK.entries):
        terms, words = (
            Terms(task),
            (
                *task.metrics,
                *(
                    metric
                    for one in vocabularies()
                    if type(one).__module__.startswith("robustkit.")
                    for metric in one.metrics
                ),
            ),
        )
        assert not [metric.word for metric in words if metric.label and "<a " not in terms.linked(metric.word)]
        explained = glossary(task)
        assert len({term.name for term in explained}) == len({term_id(term) for term in explained}) == len(explained)
        assert all(len(term.definition) > 20 and term.definition.endswith(".") for term in explained)
    names = {term.name for term in glossary(CLASSIFICATION)}
    assert {"ABPC", "PxAP", "MaxBoxAccV2", "energy inside", "ECE", "NLL", "mCE", "relative mCE", "Holm"} <= names


def test_words_lead_to_their_meaning_once_and_whole_words_only() -> None:
    terms = Terms(CLASSIFICATION)
    assert terms.linked("IoU, mCE, IoU") == (
        '<a class="term" href="#term-iou">IoU</a>,<wbr> <a class="term" href="#term-mce">mCE</a>,<wbr> IoU'
    )
    assert terms.linked("relative mCE %").startswith('<a class="term" href="#term-relative-mce">relative mCE</a>')
    assert terms.linked("nPGDx top-10") == "nPGDx top-10"
    assert [term.name for _, term in terms.used] == ["IoU", "mCE", "relative mCE"]
    for name in HOSTILE:
        assert terms.linked(name) == allow_breaks(name)


def test_a_task_explains_its_own_words_first() -> None:
    said = [{term.name: term.definition for term in glossary(task)} for task in (CLASSIFICATION, SEGMENTATION)]
    assert "map and truth" in said[0]["IoU"] and "prediction and truth" in said[1]["IoU"]


def test_texts_break_between_words_and_never_in_a_fraction() -> None:
    whole = '<span class="whole">8/255</span>'
    assert allow_breaks("pgd(eps=8/255,steps=20)") == f"pgd(<wbr>eps={whole},<wbr>steps=20)"
    assert allow_breaks("runs/2026/01/a:b") == "runs/<wbr>2026/01/<wbr>a:<wbr>b"
    assert allow_breaks("=1/<b>") == "&#39;=1/<wbr>&lt;b&gt;"
    assert Terms(CLASSIFICATION).linked("ECE under 8/255").endswith(f"</a> under {whole}")
