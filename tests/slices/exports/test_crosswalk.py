"""Which clauses figures are evidence for: only those of figures that the run has, in careful words."""

from figures import figure
from places import ROOT

from robustkit.common.figure import Figure
from robustkit.slices.exports.card import clauses, evidence_of
from robustkit.tasks import find_metric

PAGE = ROOT / "docs" / "concepts" / "standards.md"


def row(condition: str, metric: str, value: float | None, flags: tuple[str, ...] = ()) -> Figure:
    return figure({"condition": condition, "metric": metric, "value": value, "n": 50, "flags": flags})


def test_the_worst_of_several_is_shown_with_its_flags() -> None:
    rows = [
        row("clean", "top1", 0.9),
        row("fgsm(eps=1/255)", "top1", 0.5),
        row("pgd(eps=1/255,steps=20)", "top1", 0.25, ("gradients are masked",)),
        row("pgd(eps=1/255,steps=20)", "nll", 3.0),
        row("cam(agcam,mode=mask)", "cam_iou", 0.4),
        row("cam(random,mode=mask)", "cam_iou", 0.1),
        row("corruption(fog,severity=3)", "top1", None),
        row("patch(eps=1,size=16)", "top1", 0.125),
        row("two-phase(autoattack(eps=1/255),m=5)", "estimated_top1", 0.375),
    ]
    found = {figure: named for figure, _, named in evidence_of(rows)}
    clean, attacked, maps = found
    assert clean.endswith("top-1 % 90.0 (clean, n = 50)")
    assert "top-1 % 12.5 (patch(eps=1,size=16), n = 50, the lowest of 3 conditions); robust accuracy" in attacked
    assert attacked.endswith("estimated % 37.5 (two-phase(autoattack(eps=1/255),m=5), n = 50)")
    ((flagged, _, of_series),) = evidence_of(rows[1:3], images=False)
    assert flagged.endswith("n = 50, the lowest of 2 conditions; flag: gradients are masked [run/note])")
    assert "IEEE 3129" in found[attacked] and "IEEE 3129" not in of_series
    assert maps.endswith("IoU % 40.0 (cam(agcam,mode=mask), n = 50)")
    assert "Article 15(5)" in found[attacked] and "Article 15(5)" not in found[clean]
    assert not list(evidence_of([]))
    sea = [row("sea(eps=1/255)", "miou", 0.5), row("sea(eps=1/255)", "miou_worst", 0.4), row("clean", "miou", 0.9)]
    assert [figure.rpartition(": ")[2] for figure, _, _ in evidence_of(sea)] == [
        "mIoU % 90.0 (clean, n = 50)",
        "worst-case mIoU % 40.0 (sea(eps=1/255), n = 50)",
    ]


def test_words_stay_careful_and_the_page_says_the_same() -> None:
    page = " ".join(PAGE.read_text("utf-8").split())
    for part in clauses():
        assert all(find_metric(name) is not None for name in part["metrics"])
        for text in (part["figure"], part["evidence"], *part["clauses"], *part.get("of_images", ())):
            assert text in page
            assert not any(word in text.lower() for word in ("complian", "complies", "conform", "certif", "fulfil"))
