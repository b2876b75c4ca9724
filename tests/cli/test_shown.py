"""What commands print: every number whole at any width, what flags are about, help and lists under headings."""

from __future__ import annotations

import html
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from places import ROOT

import robustkit
from robustkit.cli.app import COMMANDS, cli
from robustkit.cli.options import SECTIONS
from robustkit.common.finding import Finding, entry_of
from robustkit.models.specs import embedded_file
from robustkit.report.refresh import refresh
from robustkit.report.run import Run
from robustkit.runs.folder import RunFolder
from robustkit.slices.listing import LISTINGS, listing
from robustkit.tasks.classification import TASK
from robustkit.tasks.task import ConditionTable

pytestmark = pytest.mark.usefixtures("one_thread", "unexamined")
LONG = "a_checkpoint_whose_name_has_more_than_sixty_characters_in_its_file_name"
NUMBER = re.compile(r"(?<![\w.])[-+]?\d+(?:\.\d+)?")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Run, Run]]:
    """One checkpoint of a long name under attacks and corruptions, and two. Commands write no page again."""
    place = tmp_path_factory.mktemp("shown")
    long = place / f"{LONG}.safetensors"
    long.write_bytes(embedded_file("shapes-vit-quest").read_bytes())
    words: dict[str, Any] = {"data_dir": "embedded:shapes", "limit": 10, "browse": 0, "device": "cpu"}
    attacks = "fgsm,pgd(steps=2,step_size=0.5/255,random_start=False),fgsm(eps=7.99/255)"
    both = ["zoo:shapes-vit-standard", long]
    one = robustkit.audit([long], attacks=attacks, corruptions="noise", out=place / "one", **words)
    two = robustkit.audit(both, attacks="fgsm", corruptions="noise", variant="bethgelab", out=place / "two", **words)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("robustkit.report.page.write_report", lambda *_: None)
        yield one, two


def said(*words: str, columns: int | None = None) -> str:
    environment = {"COLUMNS": str(columns)} if columns else {"COLUMNS": ""}
    done = CliRunner(env=environment).invoke(cli, [*words], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


@pytest.mark.parametrize("columns", [60, None, *(pytest.param(width, marks=pytest.mark.slow) for width in (80, 200))])
def test_an_audit_is_read_back_from_what_it_prints(runs: tuple[Run, Run], columns: int | None) -> None:
    one, _ = runs
    text = said("report", str(one.path), "--details", columns=columns)
    prose = ("report: ", "all tables: ")
    lines = [line for line in text.splitlines() if not line.startswith(prose)]
    assert columns is None or max(map(len, lines)) <= columns  # a log's lines of prose are not wrapped
    results = refresh(RunFolder.existing(one.path))
    rows = ConditionTable.of(TASK, results, results.manifest).rows
    left_out = re.search(r"not shown: (.*?) \(in", text.replace("\n", " "))
    for heading in ("top-1 % [95 %]", "NLL", "ECE %", "largest |δ|"):
        shown = [row[heading] in text for row in rows]
        assert all(shown) or (left_out and heading in left_out[1]), heading
    assert "7.99/255" in text
    summary = json.loads((one.path / "summary.json").read_text("utf-8"))["results"]
    shares = [f"{100 * (1 - row['value']):.1f}" for row in summary if row["metric"] == "mean_error"]
    assert shares and set(shares) <= set(NUMBER.findall(text))  # errors are shown as accuracies


@pytest.mark.parametrize("columns", [60, 80, 200])
def test_the_short_table_has_the_headline_of_each_checkpoint(runs: tuple[Run, Run], columns: int) -> None:
    _, two = runs
    text = said("report", str(two.path), columns=columns)
    assert "top-1 %, higher is better" in text and "under corruption: top-1 %, higher is better" in text
    assert all(part in text for part in ("shapes-vit-", "a_checkpoint_", "characters_in_"))
    for row in two.results().to_dict("records"):
        if (row["condition"], row["metric"]) in (("clean", "top1"), ("noise", "mean_error")):
            ends = [row[key] for key in ("value", "ci_low", "ci_high")]
            if row["metric"] == "mean_error":  # shown as the accuracy
                ends = [1 - ends[0], 1 - ends[2], 1 - ends[1]]
            value, low, high = (f"{100 * end:.1f}" for end in ends)
            assert f"{value} [{low}, {high}]" in text
    assert "NLL" not in text and f"all tables: robustkit report {two.path} --details" in text


@pytest.mark.parametrize("columns", [60, 80, 200])
def test_a_comparison_prints_each_difference_whole(runs: tuple[Run, Run], columns: int, tmp_path: Path) -> None:
    _, two = runs
    text = said("compare", str(two.path), "--json", str(tmp_path / "d.json"), columns=columns)
    (pair,) = json.loads((tmp_path / "d.json").read_text("utf-8"))["pairs"]
    for row in pair["rows"]:
        scale, digits = (1, 3) if row["metric"] == "nll" else (100, 1)
        is_error = row["metric"] == "mean_error"  # shown as the accuracy
        gap = f"{scale * row['difference'] * (-1 if is_error else 1) + 0.0:+.{digits}f}".replace("-", "−")
        assert f"{gap} [" in text or f"{gap}\n" in text
        assert f"{scale * (1 - row['first'] if is_error else row['first']):.{digits}f}" in NUMBER.findall(text)


@pytest.mark.parametrize("columns", [60, 80, 200])
def test_a_gate_prints_each_verdict_whole(runs: tuple[Run, Run], columns: int, tmp_path: Path) -> None:
    _, two = runs
    rules = (
        "top1 under clean >= 0.999 with 95 % confidence",
        "nll under clean <= 0.001",
        *("mean_error under noise <= 0", "arch == 'resnet'", "mce <= 1", "n under clean >= 5000", "n under clean >= 1"),
    )
    policy = tmp_path / "policy.toml"
    policy.write_text("".join(f'[[rule]]\nrequire = "{rule}"\nseverity = "warning"\n' for rule in rules), "utf-8")
    words = ("check", str(two.path), "--policy", str(policy), "--details", "--json", str(tmp_path / "v.json"))
    text = said(*words, columns=columns)
    lines = text.splitlines()
    commands = [line for line in lines if line.startswith("robustkit ")]  # to copy: whole, whatever the width
    assert max(len(line) for line in lines if line not in commands) <= columns
    verdicts = json.loads((tmp_path / "v.json").read_text("utf-8"))["verdicts"]
    assert len(verdicts) == 2 * len(rules)
    left_out = re.search(r"not shown: (.*?) \(in", text.replace("\n", " "))
    flat = "".join(re.sub(r"[\s→]", "", line) for line in lines)
    for verdict in verdicts:
        scale, form = (100, ".1f") if verdict["metric"] in ("top1", "mean_error") else (1, ".4g")
        value, *ends = (verdict[name] and f"{scale * verdict[name]:{form}}" for name in ("value", "ci_low", "ci_high"))
        interval = f" [{ends[0]}, {ends[1]}]" if ends[0] else ""
        assert value is None or f" {value}{' %' * (scale == 100)}{interval}" in text
        for part in (verdict["advice"], verdict["reason"].partition("; evaluate it with: ")[0]):
            assert part.replace(" ", "") in flat
        if verdict["verdict"] == "fail" and verdict["bound"] is not None and verdict["metric"] != "n":
            missed = f"{scale * abs(verdict['value'] - verdict['bound']):{form}}"
            assert (missed in NUMBER.findall(text)) or (left_out and "missed by" in left_out[1])
    assert columns < 200 or not left_out
    reasons = (each["reason"] for each in verdicts if each["metric"] == "mce")
    assert commands == [*dict.fromkeys(reason.partition("with: ")[2] for reason in reasons)]  # of all checkpoints
    assert re.search(r"^FAIL", text, re.MULTILINE) and re.search(r"^inconclusive", text, re.MULTILINE)


@pytest.mark.parametrize("columns", [60, 80])
def test_no_table_is_repeated_for_one_column(runs: tuple[Run, Run], columns: int) -> None:
    shown = said("compare", str(runs[1].path), columns=columns)
    assert shown.count("baseline  value") == 1 and len(re.findall(r"^ *figure ", shown, re.MULTILINE)) == 1
    worse = [line for line in shown.splitlines() if re.search(r"\b(worse|better)$", line)]
    assert not worse or columns > 60 or all(line == "    at 0.05: worse" for line in worse)


def test_flags_read_the_same_in_terminal_page_and_comparison(runs: tuple[Run, Run]) -> None:
    _, two = runs
    finding, entry = Finding.of("corruptions/variant"), entry_of("corruptions/variant")
    flag = f"⚑ both checkpoints, all corruptions: {finding}"
    for words in (("report",), ("report", "--details"), ("compare",)):
        text = said(words[0], str(two.path), *words[1:])
        assert [line for line in text.splitlines() if line.startswith("⚑")] == [flag], words
    page = (two.path / "report.html").read_text("utf-8")
    reported = re.findall(r'<(li|p) class="flag">(.*?)</\1>', page, re.DOTALL)
    assert [kind for kind, _ in reported] == ["li", "p"]  # on the first screen, and with the tables that it is about
    first, below = (html.unescape(re.sub(r"<.*?>", "", text)) for _, text in reported)
    explained = f"{finding.code}{entry.why}What to do: {entry.remedy} When to ignore it: "
    assert first == f"{flag.removesuffix(f'[{finding.code}]')}{explained}{entry.ignore}" and below == flag


def test_help_lists_options_under_headings_and_cuts_no_line() -> None:
    for name in ("audit", "attack", "segment", "cam", "corrupt", "inspect"):
        text = said(name, "--help", columns=80)
        headings = re.findall(r"^([A-Z][\w ]+):$", text, re.MULTILINE)
        assert headings == [heading for heading in SECTIONS.values() if heading in headings], name
        assert {"Model and preprocessing", "Data", "Run", "General"} <= set(headings), name
        options = {
            word
            for parameter in cli.commands[name].params
            if not getattr(parameter, "hidden", False)
            for word in parameter.opts
            if word[:2] == "--"
        }
        assert not re.search(r"[a-z]-$", text, re.MULTILINE), name  # words are whole
        assert options <= set(re.findall(r"^  (?:-\w, )?(--[\w-]+)", text, re.MULTILINE)), name
    top = said("--help", columns=80)
    assert "..." not in top.partition("Evaluate:")[2]
    for commands in COMMANDS.values():
        for command, line in commands.items():
            assert f"{command.name}" in top and line in top


def test_what_goes_into_a_pipe_is_not_wrapped() -> None:
    """`robustkit list models | grep vowels` finds whole names."""
    lines = said("list", "models").splitlines()
    names = [entry["name"] for entry in listing("models") if "vowels" in entry["name"]]
    assert len(names) > 2 and all(any(line.startswith(f"{name} ") for line in lines) for name in names)
    assert sum(line.count("370 series of JapaneseVowels_TEST") for line in lines) == len(names)  # no cell is wrapped
    short = said("list", "models", columns=80).splitlines()
    assert all(any(line.startswith(f"{name} ") for line in short) for name in names)


def test_lists_are_tables_and_json() -> None:
    kinds = said("list")
    assert all(re.search(rf"^{kind} +\w", kinds, re.MULTILINE) for kind in LISTINGS)
    entries = {entry["name"]: entry for entry in json.loads(said("list", "attacks", "--json"))}
    assert entries["pgd"]["parameters"]["step_size"] == "0.15*eps" and entries["segpgd"]["for"] == "segment"
    for kind in ("models", "attacks", "corruptions", "cams", "attentions", "protocols", "datasets"):
        text = said("list", kind, columns=80)
        assert max(map(len, text.splitlines())) <= 80, kind
        for entry in json.loads(said("list", kind, "--json")):
            assert entry["name"].partition("-")[0] in text


def test_help_loads_no_torch() -> None:
    script = (
        "import sys; from click.testing import CliRunner; from robustkit.cli.app import cli\n"
        "for words in (['--help'], ['audit', '--help'], ['list']): CliRunner().invoke(cli, words)\n"
        "assert not {'torch', 'timm', 'pyarrow', 'pandas'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", script], check=True, cwd=ROOT)


def test_libraries_are_loaded_without_a_search_for_garbage() -> None:
    script = (
        "import gc, sys; from click.testing import CliRunner; from robustkit.cli.app import cli\n"
        "half, done, searched = 'torch.nn', 'timm.models.vision_transformer', []\n"
        "gc.callbacks.append(lambda *_: searched.append(half in sys.modules and done not in sys.modules))\n"
        "result = CliRunner().invoke(cli, ['audit', 'none.pth', '--arch', 'resnet18', '--data-dir', 'none'])\n"
        "assert 'none' in str(result.exception) and done in sys.modules, result\n"
        "assert gc.isenabled() and gc.get_freeze_count() > 100_000 and not any(searched), sum(searched)"
    )
    subprocess.run([sys.executable, "-c", script], check=True, cwd=ROOT)
