"""What stands next to a released checkpoint: figures that can be traced, and texts that break nothing."""

import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml
from figures import EMPTY, figure, noted
from manifests import whole
from markdown_it import MarkdownIt
from released_runs import HOSTILE, PGD, records, write_run

from robustkit.cli import app as cli
from robustkit.common.figure import Figure
from robustkit.display.text import code, escape_markdown, markdown_table
from robustkit.errors import NothingEvaluated, RunError
from robustkit.evaluations.aggregate import Results
from robustkit.report.run import Run
from robustkit.runs.manifest import digest_of
from robustkit.slices.exports.card import HEIGHT, PADDING, badge, facts, headline, model_index, write_cards


def parsed(text: str) -> Any:
    """Markdown as GitHub and the Hub read it, as a tree of tokens."""
    return MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(text)


def kinds(text: str) -> set[str]:
    tokens = parsed(text)
    return {token.type for token in tokens} | {child.type for token in tokens for child in token.children or []}


def shown(text: str) -> list[str]:
    """What is read in each block of text."""
    inline = (token for token in parsed(text) if token.type == "inline")
    return ["".join(child.content for child in token.children) for token in inline]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Two checkpoints; of the first 8 of 10 are right, 3 under PGD, 5 under FGSM."""
    first = {"clean": records(8), "fgsm(eps=1/255)": records(5, linf=1 / 255), PGD: records(3, linf=1 / 255)}
    return write_run(tmp_path / "run", {"vit": first, "other": {"clean": records(1)}})


def test_the_card_says_who_said_how_images_are_shown(tmp_path: Path) -> None:
    entry = {"name": "vit", "preprocessing_source": {"mean": "option", "std": "option", "crop_pct": "default"}}
    write_cards(write_run(tmp_path / "run", {"vit": {"clean": records(8)}}, checkpoints=[entry]))
    card = (tmp_path / "run" / "card" / "card.md").read_text("utf-8")
    assert (
        "std 0.5`\n- Set-up: attention standard (by the checkpoint); normalisation mean 0.5, std 0.5 (by the user); "
        "crop 0.875 (assumed, our default; not confirmed); channels RGB (as images are read); not checked "
        "against the data; labels by layout folders\n"
    ) in card


def test_every_figure_is_there_with_its_interval_and_where_it_comes_from(run: Path) -> None:
    paths = write_cards(run, checkpoint="vit")
    assert [path.relative_to(run).as_posix() for path in paths] == [
        f"card/{name}" for name in ("card.md", "metadata.yml", "results.json", "badge.svg")
    ]
    card, front, whole, image = (path.read_text("utf-8") for path in paths)
    # Wilson by hand: 8 of 10 is (0.490, 0.943), 3 of 10 is (0.108, 0.603), 10 of 10 is (0.722, 1).
    assert "| `clean` | 10 | 80.0 [49.0, 94.3] | 100.0 [72.2, 100.0] | 0.500 [0.500, 0.500] | 5.0 [" in card
    assert re.search(r"\| `pgd\(eps=1/255,steps=20\)` \| 10 \| 30.0 \[10.8, 60.3\] .* \| 1/255 \|\n", card)
    assert "10.0" not in card, "the other checkpoint's"
    assert "\n| --- | ---: | ---: | ---: | ---: | ---: | ---: |\n| `clean` |" in card and "] | 0 |\n| `fgsm" in card
    assert (card.count("0" * 64), card.lower().count("robustkit 0.1.0")) == (2, 2)
    assert f"n = 10, digest `{'d1' * 6}`\n" in card
    assert "\n- Preprocessing: `32x32 pixels, bicubic, crop 0.875, center, mean 0.5, std 0.5`\n- Set-up: " in card
    for trace in ("standard@1:96fe6f4a", "d1" * 6, "d1" * 32, "0" * 64, "RobustKit 0.1.0", "n = 10", "Seed 7"):
        assert trace in card
    assert "```sh\nrobustkit audit vit.safetensors --data-dir val\n```" in card
    assert "No flag was raised" in card and "verified" not in card.lower()

    (model,) = yaml.safe_load(front)["model-index"]
    (result,) = model["results"]
    assert list(model) == ["name", "results"]
    assert (model["name"], result["task"], result["dataset"]) == (
        "vit",
        {"type": "image-classification"},
        {"type": "val", "name": "val", "args": {"n": 10, "digest": "d1" * 32}},
    )
    figures = {(metric["type"], metric["args"]["condition"]): metric for metric in result["metrics"]}
    assert {key: metric["value"] for key, metric in figures.items() if key[0] == "accuracy"} == {
        ("accuracy", "clean"): 0.8,
        ("accuracy", "fgsm(eps=1/255)"): 0.5,
        ("accuracy", PGD): 0.3,
    }
    assert figures["accuracy", PGD] == {
        "type": "accuracy",
        "name": f"top-1 accuracy under {PGD} (standard@1:96fe6f4a, n = 10)",
        "value": 0.3,
        "args": {"condition": PGD, "protocol": "standard@1:96fe6f4a", "n": 10, "ci_low": 0.107791, "ci_high": 0.603222}
        | {"space": "pixels", "data_digest": "d1" * 6, "checkpoint_sha256": "0" * 64, "seed": 7, "robustkit": "0.1.0"}
        | {"setup": re.search(r"- Set-up: (.*)", card)[1]},  # type: ignore[index]
        "verified": False,
    }

    found = json.loads(whole)
    assert {row["checkpoint"] for row in found["results"]} == {"vit"} and len(found["results"]) == 18
    assert "/home/me" not in whole and "secret" not in whole
    assert found["protocol"]["digest"] == "96fe" and found["checkpoint"]["sha256"] == "0" * 64
    reported = (
        f"<title>top-1 under {PGD}: 30.0 %, 95 % interval 10.8 to 60.3 %, n = 10, protocol standard@1:96fe6f4a</title>"
    )
    assert 'aria-label="PGD-20 1/255: 30.0 %"' in image and reported in image


def test_the_hub_reads_the_metadata(run: Path) -> None:
    hub = pytest.importorskip("huggingface_hub.repocard_data")
    front = write_cards(run, checkpoint="vit")[1].read_text("utf-8")
    content = yaml.safe_load(front)
    name, results = hub.model_index_to_eval_results(content["model-index"])
    assert name == "vit" and len(results) == 6
    assert {(one.task_type, one.dataset_name, one.verified) for one in results} == {
        ("image-classification", "val", False)
    }
    assert hub.eval_results_to_model_index(name, results) == content["model-index"]


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_breaks_nothing(tmp_path: Path, name: str) -> None:
    rows = {"clean": records(8), PGD: records(3, linf=1 / 255)}
    data = {"name": name, "root": name, "layout": "folders", "n": 12, "classes": 2, "digest": "12e34567" * 8}
    protocol = {"tag": name, "digest": name, "summary": name, "space": "pixels", "caveats": [name, name + name]}
    changes = {"data": data, "protocol": protocol, "command": name, "device": name}
    card, front, whole, image = write_cards(write_run(tmp_path / "run", {name: rows}, **changes))
    text = card.read_text("utf-8")
    assert "Not offered to be run again: " in text
    assert kinds(text) & {"link_open", "image", "html_inline", "em_open", "strong_open", "s_open"} == set()
    assert [token.content for token in parsed(text) if token.type == "html_block"] == [text.splitlines()[0] + "\n"]
    assert [token.tag for token in parsed(text) if token.type == "heading_open"] == ["h2", *["h3"] * 4]
    assert sum(token.type == "tr_open" for token in parsed(text)) == 3
    assert sum(token.type == "td_open" for token in parsed(text)) == 2 * 7
    (model,) = yaml.safe_load(front.read_text("utf-8"))["model-index"]
    dataset = model["results"][0]["dataset"]
    assert (model["name"], dataset["name"], dataset["args"]["digest"]) == (name, name, "12e34567" * 8)
    assert re.fullmatch(r"[a-z0-9._-]+", dataset["type"])
    assert json.loads(whole.read_text("utf-8"))["checkpoint"]["name"] == name
    (block,) = (token for token in parsed(text) if token.type == "fence")
    assert block.content == f"{name}\n".replace("\x00", "\ufffd")
    ET.fromstring(image.read_text("utf-8"))


@pytest.mark.parametrize("name", HOSTILE)
def test_texts_are_shown_as_they_are(name: str) -> None:
    visible = "".join(c if c.isprintable() else " " if c.isspace() or ord(c) < 32 else "\ufffd" for c in name)
    visible = " ".join(visible.split())
    assert shown(f"- {escape_markdown(name)}") == ([visible] if visible else [])
    assert shown(markdown_table([[name, code(name), "x"]], ["a", "b", "c"]))[3:] == [visible, visible, "x"]


def test_nothing_begins_in_a_text_that_only_some_readers_know() -> None:
    """Bare links and formulas, which the reader above has none of."""
    assert escape_markdown("_a_ b_c http://x.y Www.z $e$") == "\\_a\\_ b_c http&#58;//x.y Www&#46;z &#36;e&#36;"


def test_half_a_character_is_written_all_the_same(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", {"vit": {"clean": records(8)}}, command="HALF")
    text = (run / "run.json").read_text("utf-8")
    digest = digest_of({k: v for k, v in json.loads(text).items() if k != "digest"} | {"command": "\udc80"})
    text = text.replace("HALF", "\\udc80").replace(json.loads(text)["digest"], digest)
    (run / "run.json").write_text(text, "utf-8")
    assert "```sh\n?\n```" in write_cards(run)[0].read_text("utf-8")


def test_values_that_yaml_readers_disagree_about_are_quoted(run: Path) -> None:
    found = facts(Run(run), Run(run).manifest.checkpoint("vit"), Results(Run(run), []))
    named = {"checkpoint": {"name": "12e34", "sha256": "0o17"}, "data": {"name": "1e3", "n": 1, "digest": "n"}}
    text = model_index(found | named | {"protocol": {"task": "segmentation"}})
    assert all(f'"{value}"' in text for value in ("12e34", "1e3", "n")) and "type: image-segmentation" in text


def test_what_is_not_finite_is_a_dash_and_no_metadata(tmp_path: Path) -> None:
    rows = {"clean": records(8, nll=float("nan"))}
    card, _, whole, _ = write_cards(write_run(tmp_path / "run", {"vit": rows}))
    row = next(line for line in card.read_text("utf-8").splitlines() if line.startswith("| `clean`"))
    assert row.split(" | ")[4] == "–" and "nan" not in card.read_text("utf-8")
    (nll,) = (row for row in json.loads(whole.read_text("utf-8"))["results"] if row["metric"] == "nll")
    assert nll["value"] is None and nll["ci_low"] is None
    found = json.loads(whole.read_text("utf-8"))
    found["results"][0]["value"] = None
    kept = yaml.safe_load(model_index(found))["model-index"][0]["results"][0]["metrics"]
    assert [metric["type"] for metric in kept] == ["top5_accuracy"]


def test_flags_and_caveats_come_first(tmp_path: Path) -> None:
    rows = {"clean": records(8, n=9), PGD: records(3, n=9, linf=2 / 255)}
    lacking = {"digests": {}, "left_out": {"corruption(fog)": "no folder fog"}}
    caveats = {"tag": "t", "digest": "d", "summary": "s", "space": "pixels", "caveats": ["only a sketch"]}
    card, front, _, image = write_cards(write_run(tmp_path / "run", {"vit": rows}, protocol=caveats, corrupted=lacking))
    text = card.read_text("utf-8")
    first = text[: text.index("### What was measured")]
    assert "### Read first\n\n- only a sketch\n" in first
    assert (
        "- `clean` and 1 more: incomplete: 9 of 10 samples; rerun the same command to continue [run/incomplete]\n"
        in first
    )
    assert (
        f"- `{PGD}`: exceeds eps: largest linf perturbation 2/255 in pixels, claimed 1/255 [attack/exceeds-eps]\n"
        in first
    )
    assert "- left out: no folder fog; means that need it are not given [run/left-out]\n" in first
    assert f"| `{PGD}` ⚑ | 9 |" in text and "No flag" not in text
    metrics = yaml.safe_load(front.read_text("utf-8"))["model-index"][0]["results"][0]["metrics"]
    assert [len(metric["args"]["flags"]) for metric in metrics] == [1, 1, 2, 2] and "&id" not in front.read_text(
        "utf-8"
    )
    assert "33.3 % (flagged)" in image.read_text("utf-8")


def test_corruptions_are_published_as_means(tmp_path: Path) -> None:
    fog = {f"corruption(fog,severity={severity})": records(10 - severity) for severity in range(1, 6)}
    card, front, _, _ = write_cards(write_run(tmp_path / "run", {"vit": {"clean": records(10), **fog}}))
    assert "| fog | 90.0 | 80.0 | 70.0 | 60.0 | 50.0 | 70.0 |" in card.read_text("utf-8")
    text = card.read_text("utf-8")
    assert "Accuracy in % by corruption and severity, corrupted in memory after resize and crop:" in text
    metrics = yaml.safe_load(front.read_text("utf-8"))["model-index"][0]["results"][0]["metrics"]
    assert [(m["type"], m["args"]["condition"]) for m in metrics][2:] == [("mean_error", "corruption(fog)")]
    assert metrics[2]["value"] == 0.3
    row = EMPTY | {"metric": "mean_error", "value": 0.5, "n": 1, "protocol": "p", "flags": []}
    found = {"checkpoint": {"name": "a", "sha256": "b", "weights": "bare"}, "seed": 0, "setup": "as it is"}
    found |= {"data": {"name": "c", "n": 1, "digest": "d"}}
    for given, kept in (
        (["in-c", "noise(preset=cifar)", "corruption(fog)", "pgd"], ["in-c", "noise(preset=cifar)", "pgd"]),
        (["corruption(fog,severity=1)", "corruption(fog)"], ["corruption(fog)"]),
        (["corruption(fog,severity=1+2+3)", "corruption(fog,severity=1)"], None),
    ):
        text = model_index(
            found
            | {
                "robustkit": "0",
                "protocol": {"task": "classification", "space": "pixels", "caveats": []},
                "results": [row | {"condition": one} for one in given],
            }
        )
        metrics = yaml.safe_load(text)["model-index"][0]["results"][0]["metrics"]
        assert [metric["args"]["condition"] for metric in metrics] == (kept or given)


def test_maps_stand_beside_their_controls_and_not_in_the_metadata(tmp_path: Path) -> None:
    def maps(energy: float) -> pa.Table:
        rows = records(10).append_column("energy_inside", pa.array([energy] * 10))
        return rows.append_column("degenerate", pa.array([False] * 10))

    rows = {"clean": records(10), "cam(agcam)": maps(0.75), "cam(centre)": maps(0.5)}
    card, front, _, _ = write_cards(write_run(tmp_path / "run", {"vit": rows}))
    text = card.read_text("utf-8")
    assert "| agcam | 10 | 75.0 [75.0, 75.0] |\n" in text and "+25.0 [+25.0, +25.0]" in text
    assert "| centre | 10 | 50.0 |\n" in text and "best control: " not in text and "Read first" not in text
    assert "cam(" not in front.read_text("utf-8")


def test_a_segmenter(tmp_path: Path) -> None:
    def scenes(right: int) -> pa.Table:
        counts = {"intersections": [[right, 4]] * 10, "predicted": [[8, 4]] * 10, "labelled": [[8, 4]] * 10}
        return (
            records(0, linf=0.0)
            .select(["sample_id", "nll", "linf", "l2", "error"])
            .append_column("intersections", pa.array(counts["intersections"]))
            .append_column("predicted", pa.array(counts["predicted"]))
            .append_column("labelled", pa.array(counts["labelled"]))
        )

    data = {"name": "val", "n": 10, "digest": "d" * 64, "class_names": ["sky|sea", "<b>"], "unjudged": []}
    protocol = {"tag": "segmentation@1", "digest": "d", "summary": "s", "space": "pixels", "task": "segmentation"}
    rows = {"clean": scenes(8), PGD: scenes(4)}
    card, front, _, image = write_cards(write_run(tmp_path / "run", {"seg": rows}, data=data, protocol=protocol))
    text = card.read_text("utf-8")
    assert "\n| condition | n | mIoU % [95 %] |" in text
    # 4 of 8 pixels right: IoU 4 / 12 and 1, mean 2 / 3.
    assert f"| `{PGD}` | 10 | 66.7 [66.7, 66.7] | 66.7 [66.7, 66.7] | 75.0 [75.0, 75.0] | 0.500 | 0 |" in text
    assert "| sky&#124;sea | 10 | 100.0 | 33.3 |\n| &#60;b&#62; | 10 | 100.0 | 100.0 |" in text
    (result,) = yaml.safe_load(front.read_text("utf-8"))["model-index"][0]["results"]
    assert result["task"]["type"] == "image-segmentation"
    assert [m["value"] for m in result["metrics"] if m["type"] == "mean_iou"] == [1.0, 0.666667]
    assert "PGD-20 1/255 mIoU: 66.7 %" in image.read_text("utf-8")


def test_which_checkpoint(run: Path, tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"run has 2 checkpoints; choose one with --checkpoint: vit, other$"):
        write_cards(run)
    with pytest.raises(RunError, match=r"^unknown checkpoint 'vitt'; did you mean 'vit'\? known: other, vit$"):
        write_cards(run, checkpoint="vitt")
    with pytest.raises(RunError, match=r"^unknown checkpoint 'vit'; known: one$"):
        write_cards(write_run(tmp_path / "single", {"one": {"clean": records(1)}}), checkpoint="vit")
    with pytest.raises(RunError, match="is not a run folder"):
        write_cards(tmp_path / "none")
    assert not (run / "card").exists()


def test_a_checkpoint_without_results(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", {"vit": {"clean": records(1)}, "empty": {}})
    with pytest.raises(NothingEvaluated, match=r"run: empty has no results; run the audit again to make them$"):
        write_cards(run, checkpoint="empty")


def test_only_our_own_files_are_written_over(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "release"
    paths = write_cards(run, checkpoint="vit", out=out)
    before = {path: path.read_bytes() for path in paths}
    assert write_cards(run, checkpoint="vit", out=out) == paths
    assert {path: path.read_bytes() for path in paths} == before, "the same run gives the same bytes"
    paths[2].write_text("{}")
    paths[0].unlink()
    message = r"results.json exists and was not written by robustkit; choose another folder with --out$"
    with pytest.raises(RunError, match=message):
        write_cards(run, checkpoint="vit", out=out)
    assert not paths[0].exists()


def test_the_command(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "release"
    cli.cli.main(["card", str(run), "--checkpoint", "vit", "--out", str(out)], standalone_mode=False)
    assert capsys.readouterr().out.split() == [
        str(out / name) for name in ("card.md", "metadata.yml", "results.json", "badge.svg")
    ]


def row(condition: str, value: float | None, metric: str = "top1", flags: tuple[str, ...] = ()) -> Figure:
    return figure({"value": value, "n": 50, "ci_low": 0.1, "ci_high": 0.2, "protocol": "standard@1"}).of(
        condition, metric, noted(*flags)
    )


def test_the_badge_is_of_the_attack_that_leaves_the_least() -> None:
    def said(
        *rows: Figure, space: str = "pixels", norm: str = "linf", eps: float = 1 / 255, task: str | None = None
    ) -> tuple[str, str]:
        claims = {one.condition: {"norm": norm, "eps": eps} for one in rows if "eps" in one.condition}
        protocol = {"space": space, "task": task or "classification"}
        return headline(whole({"claims": claims, "protocol": protocol, "checkpoints": [{"name": "vit"}]}), rows)[:2]

    clean = row("clean", 0.9)
    assert said(clean, row("fgsm(eps=1/255)", 0.5), row(PGD, 0.301)) == ("PGD-20 1/255", "30.1 %")
    assert said(clean, row("fgsm(eps=1/255)", 0.25), row(PGD, 0.3)) == ("FGSM 1/255", "25.0 %")
    assert said(clean, row("corruption(fog,severity=5)", 0.1)) == ("clean top-1", "90.0 %")
    scenes = row("clean", 0.5, "miou"), row("clean", 0.1, "iou(sky)")
    assert said(*scenes, task="segmentation") == ("clean mIoU", "50.0 %")
    assert said(*scenes, row(PGD, 0.2, "miou"), task="segmentation") == ("PGD-20 1/255 mIoU", "20.0 %")
    sea = "sea(eps=1/255,steps=9)"
    runs = row(sea, 0.25, "miou"), row(sea, 0.15, "miou_worst"), row(PGD, 0.2, "miou")
    assert said(*scenes, *runs, task="segmentation") == ("SEA-9 1/255 mIoU", "15.0 %")
    assert said(row("autoattack(eps=1/255,version=standard)", 0.0)) == ("AutoAttack 1/255", "0.0 %")
    assert said(row("autoattack(eps=1/255,version=rand)", 0.0))[0] == "AutoAttack rand 1/255"
    assert said(row("autoattack(eps=1/255,version=standard,queries=9)", 0.0))[0] == "modified AutoAttack 1/255"
    assert said(row("spsa(eps=1/255,steps=3,directions=8)", 0.0))[0] == "modified SPSA-3 1/255"
    assert said(row("square(eps=1/255,queries=5000)", 0.0))[0] == "Square-5000 1/255"
    assert said(row("pgd(eps=0.5,steps=20,norm=l2)", 0.0), norm="l2", eps=0.5)[0] == "PGD-20 l2 0.5"
    assert said(row(PGD, 0.0), space="normalised")[0] == "PGD-20 1/255 normalised"
    first = row("autoattack(eps=1/255,version=standard,only=apgd-ce)", 0.3)
    rest = row("two-phase(autoattack(eps=1/255,version=standard),first=apgd-ce,m=9)", 0.3, "estimated_top1")
    kept = row(rest.condition, 0.1, "kept_in_second")
    assert said(clean, first, rest, kept) == ("AutoAttack, 1/255, two-phase(m=9)", "30.0 %")
    whole_attack = row("autoattack(eps=1/255,version=standard)", 0.31)
    assert said(clean, whole_attack, rest, kept) == ("AutoAttack 1/255", "31.0 %")
    assert said(row(PGD, 0.3, flags=("weak",))) == ("PGD-20 1/255", "30.0 % (flagged)")
    assert said(row(PGD, None), row("cam(agcam)", 0.1, "abpc")) == ("robustkit", "–")


def test_the_badge_fits_its_texts_and_links_nowhere() -> None:
    short, long = (ET.fromstring(badge("PGD", text, 'a "<&>\x00')) for text in ("30.1 %", "30.1 % (flagged)"))
    space = "{http://www.w3.org/2000/svg}"
    for image in (short, long):
        label, value = image.iter(f"{space}text")
        ends = [float(one.get("x", 0)) + float(one.get("textLength", 0)) + PADDING for one in (label, value)]
        assert ends == [float(value.get("x", 0)) - PADDING, float(image.get("width", 0))]
        assert image.get("height") == str(HEIGHT) and image.get("role") == "img"
    assert float(long.get("width", 0)) > float(short.get("width", 0)) + 40
    assert short.get("aria-label") == "PGD: 30.1 %" and short.findtext(f"{space}title") == 'a "<&>\ufffd'
    escaped = badge('<a href="x">&', "</text>", "</title><script>")
    assert [one.text for one in ET.fromstring(escaped).iter(f"{space}text")] == ['<a href="x">&', "</text>"]
    assert "href=" not in re.sub(r'aria-label="[^"]*"|aria-label=\'[^\']*\'|>[^<]*<', "", escaped)
