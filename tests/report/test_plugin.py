"""A family of another distribution: compared, gated and shown, though nothing here names it."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import page_runs
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import rotation_plugin
import yaml
from gate_runs import drafted, verdict
from msgspec.structs import replace
from page_runs import make_run, page_of, webp
from rich.console import Console
from sealing import seal

from robustkit.common import plugins
from robustkit.display.console import print_tables
from robustkit.errors import ProtocolError
from robustkit.evaluations.condition import check_condition, pattern_of, vocabularies
from robustkit.evaluations.family import families_of
from robustkit.gate.policy import parse_policy
from robustkit.gate.verdicts import judge
from robustkit.report.refresh import refresh
from robustkit.report.run import Run
from robustkit.report.samples import Browser
from robustkit.results.comparison import compare_sides
from robustkit.results.pairing import checkpoint_pairs, missing_command
from robustkit.results.summary_text import clauses_of
from robustkit.results.survey import survey, write_summary
from robustkit.results.tables import tables
from robustkit.runs.kept_images import Picture, write_pictures
from robustkit.runs.manifest import PluginEntry
from robustkit.slices.exports.card import write_cards
from robustkit.tasks import metrics
from robustkit.tasks.task import ConditionTable, task_of

TURNED = [f"rotation(degrees={angle})" for angle in (30, 90)]
STAYS = {"one": (1.0, 0.5, 0.0), "two": (1.0, 1.0, 0.0)}


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """Two checkpoints under rotations, whose family is installed, and other conditions."""
    (tmp_path / "site").mkdir()
    rotation_plugin.install(tmp_path / "site")
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.setattr(page_runs, "CONDITIONS", ["clean", page_runs.PGD, *TURNED, "cam(agcam)"])
    plugins._installed.cache_clear()
    made = make_run(tmp_path / "run")
    (plugin,) = plugins.declared("families")
    entry = PluginEntry(**plugin.identity, conditions=tuple(TURNED))
    made.write_manifest(replace(made.manifest, plugins=(entry,)))
    for name, stays in STAYS.items():
        for condition in TURNED:
            left = list(stays)
            for path in sorted((made.path / "records" / name / condition).glob("*.parquet")):
                table = pq.ParquetFile(path).read()
                own, left = left[: len(table)], left[len(table) :]
                made.write_shard(path, table.append_column("agreement", pa.array(own, pa.float32())))
            pictures = {sample: Picture(webp(7)) for sample in ("a.png", "b.png", "c.png")}
            write_pictures(made, name, condition, 0, pictures, {})
    yield seal(made)
    plugins._installed.cache_clear()


@pytest.fixture
def run(installed: Run) -> Iterator[Run]:
    """The same, read in a session of its own."""
    with plugins.plugin_session():
        yield installed


def test_reading_it_leaves_no_trace(installed: Run, tmp_path: Path) -> None:
    before = [*metrics()], len(vocabularies())
    policy = parse_policy(f'[[rule]]\nrequire = "agreement under {TURNED[0]} >= 0.9"', "policy.toml")
    for read in (
        lambda: survey(installed),
        lambda: refresh(installed),
        lambda: compare_sides(checkpoint_pairs([installed])),
        lambda: drafted(installed),
        lambda: judge(policy, installed),
    ):
        read()
        assert ([*metrics()], len(vocabularies())) == before and not plugins.loaded_plugins()
    with plugins.plugin_session():
        survey(installed)
        assert "agreement" in metrics() and len(plugins.loaded_plugins()) == 1
    assert "agreement" not in metrics()


def test_it_is_one_of_the_families(run: Run) -> None:
    assert [family.name for family in families_of(run.manifest)][-1] == "rotations"
    with pytest.raises(ProtocolError, match="rotation: degrees 'x': expected a whole number, such as degrees=30"):
        check_condition("rotation(degrees=x)")


def test_it_is_on_the_page_and_in_the_terminal(run: Run) -> None:
    rows = refresh(run)
    (one,) = (r for r in rows if (r.checkpoint, r.condition, r.metric) == ("one", TURNED[0], "agreement"))
    assert (one.value, one.n) == (0.5, 3)
    page = page_of(run)
    text = page.text()
    assert "Rotations" in text and "predictions that stay" in text
    assert "Agreement by angle." in (run.path / "report.html").read_text("utf-8")  # the figure
    table = ConditionTable.of(task_of(run.manifest), rows, run.manifest)
    assert ("one", TURNED[1]) in table.figures
    console = Console(width=160, record=True, file=io.StringIO())
    print_tables(console, task_of(run.manifest).terminal(rows))
    assert "predictions that stay" in console.export_text()
    assert "turned by 90° it keeps 66.7 % [0.0, 100.0] of its predictions" in "; ".join(
        clauses_of(rows, run.manifest.names[1])
    )


def test_its_pictures_share_a_line_of_the_browser(run: Run) -> None:
    first = next(Browser(run).samples())
    (line,) = (line for line in first.lines if line.heading.startswith("rotation"))
    assert line.heading == "rotation, picture: degrees 30"
    assert [[one.level for one in cell.answers] for cell in line.cells] == [["30", "90"]] * 2


def test_it_is_compared(run: Run) -> None:
    write_summary(run)
    comparison = compare_sides(checkpoint_pairs([run]))
    own = [(row.metric, row.difference.value) for row in comparison.rows if row.condition == TURNED[0]]
    assert own == [("top1", pytest.approx(-1 / 3)), ("nll", 0.0), ("agreement", pytest.approx(1 / 6))]
    (table,) = tables(comparison)
    assert ("turned by 30°", "agreement %", "3", "50.0", "66.7") in [row[:5] for row in table.rows]


def test_the_gate_holds_it_against_rules(run: Run, tmp_path: Path) -> None:
    assert verdict(run, f"agreement under {TURNED[0]} >= 0.5", more="checkpoint = 'one'").state == "pass"
    assert verdict(run, f"agreement under {TURNED[0]} >= 0.6", more="checkpoint = 'one'").state == "FAIL"
    rise = verdict(run, f"drop in agreement under {TURNED[1]} against baseline <= 0", run, "checkpoint = 'one'")
    assert rise.state == "inconclusive" and rise.figure is not None and rise.figure.n == 3  # a run against itself
    missing = verdict(run, "top1 under rotation(degrees=5) >= 0.5", more="checkpoint = 'one'")
    assert "was not evaluated" in missing.why
    stated = replace(run.manifest, arguments={"options": {"--data-dir": "val"}, "checkpoints": ["vit.pth"]})
    command = missing_command(stated, "one", pattern_of("rotation(degrees=5)"), run.path)
    assert command.startswith("robustkit audit vit.pth --data-dir val --evaluations 'rotation(degrees=5)' --out ")
    assert f"agreement under {TURNED[0]} is" in drafted(run, every=True)


def test_the_card_of_a_release_has_it(run: Run, tmp_path: Path) -> None:
    card, metadata, *_ = write_cards(run.path, checkpoint="two", out=tmp_path / "card")
    text = card.read_text("utf-8")
    assert "### Rotations" in text and "Predictions that stay" in text and f"`{TURNED[1]}`" in text
    (result,) = yaml.safe_load(metadata.read_text("utf-8"))["model-index"][0]["results"]
    assert [one["value"] for one in result["metrics"] if one["type"] == "agreement"] == [0.666667, 0.666667]
