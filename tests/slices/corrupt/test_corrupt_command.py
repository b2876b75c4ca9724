"""`robustkit corrupt`: contact sheets, trees written and resumed, trees compared, and every mistake in one line."""

import io
import json
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from legacy_draws import write_frost_photographs
from PIL import Image
from torch import Tensor

import corruptions
from robustkit.cli import app as cli
from robustkit.common.determinism import SampleRng
from robustkit.errors import ProtocolError
from robustkit.slices.corrupt import compare_tree, corrupt_tree, drift, write_sheets
from robustkit.slices.corrupt.sheet import Layout

SMALL = ("--img-size", "32", "--device", "cpu")
pytestmark = pytest.mark.usefixtures("one_thread")


def picture(seed: int, size: tuple[int, int]) -> Image.Image:
    """Smooth colours with some noise, so that blurs and JPEG have something to work on; size: (width, height)."""
    rng = np.random.Generator(np.random.PCG64(seed))
    coarse = Image.fromarray(rng.integers(0, 256, (4, 4, 3), dtype=np.uint8)).resize(size, Image.Resampling.BICUBIC)
    noisy = np.asarray(coarse, dtype=np.int64) + rng.integers(-12, 13, (size[1], size[0], 3))
    return Image.fromarray(noisy.clip(0, 255).astype(np.uint8))


class Ran(NamedTuple):
    """How a command ended, and what it printed."""

    status: object
    out: str
    err: str


Command = Callable[..., Ran]


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten images of 48x40 in two class folders, PNG and JPEG."""
    root = tmp_path_factory.mktemp("photos") / "photos"
    for index in range(10):
        path = root / "ab"[index % 2] / f"{index}.{('png', 'JPEG')[index % 3 == 0]}"
        path.parent.mkdir(parents=True, exist_ok=True)
        picture(index, (48, 40)).save(path)
    return root


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    def call(*words: object) -> Ran:
        monkeypatch.setattr("sys.argv", ["robustkit", "corrupt", *map(str, words)])
        with pytest.raises(SystemExit) as exit:
            cli.main()
        return Ran(exit.value.code, *capsys.readouterr())

    return call


def clean_32(path: Path) -> Tensor:
    """(1, 3, 32, 32): the benchmark's Resize and CenterCrop, written out; 36 = 32 / 0.875 rounded down."""
    with Image.open(path) as image:
        width, height = image.size
        size = (36, int(36 * height / width)) if width < height else (int(36 * width / height), 36)
        resized = np.asarray(image.convert("RGB").resize(size, Image.Resampling.BILINEAR))
    top, left = round((size[1] - 32) / 2), round((size[0] - 32) / 2)
    return torch.from_numpy(resized[top : top + 32, left : left + 32].copy()).permute(2, 0, 1)[None]


def expected(path: Path, sample_id: str, name: str, severity: int, seed: int = 0) -> Tensor:
    """(3, 32, 32): what an audit of the same seed shows the model."""
    rng = SampleRng.of([sample_id], seed=seed, condition=f"corruption({name},severity={severity})", device="cpu")
    return corruptions.corrupt(clean_32(path), name, severity, rng=rng)[0]


def pixels(path: Path) -> Tensor:
    with Image.open(path) as image:
        return torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1)


def tree_files(root: Path) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in sorted(root.rglob("*")) if p.is_file()}


# ---- contact sheets


def test_a_sheet_shows_every_corruption_at_its_place(photos: Path, tmp_path: Path, run: Command) -> None:
    source = photos / "b/1.png"
    out = tmp_path / "new/sheet.png"
    done = run(source, "--out", out, "--corruptions", "brightness,gaussian_noise(severity=2+4)", *SMALL)
    assert (done.status, done.out.strip()) == (0, f"{out}: 1.png under 2 corruptions")
    sheet = pixels(out)
    found = {}
    for name, severities in (("gaussian_noise", (2, 4)), ("brightness", (1, 2, 3, 4, 5))):
        for severity in (0, *severities):
            tile = expected(source, "1.png", name, severity) if severity else clean_32(source)[0]
            large = tile.repeat_interleave(4, dim=1).repeat_interleave(4, dim=2)  # small pictures are enlarged
            found[name, severity] = place(sheet, large)
    columns = [found["brightness", severity][0][1] for severity in range(6)]
    gaps = np.diff(columns).tolist()
    assert gaps == [128 + Layout.gap + Layout.apart, *[128 + Layout.gap] * 4]
    ((noise, _),), ((bright, _),) = found["gaussian_noise", 2], found["brightness", 2]
    assert bright == noise + 128 + Layout.group
    assert found["gaussian_noise", 4] == [(noise, columns[4])] and found["brightness", 5] == [(bright, columns[5])]
    assert found["brightness", 0] == [(noise, columns[0]), (bright, columns[0])]  # the clean picture, in each row
    assert (sheet[:, noise : noise + 128, columns[1] : columns[1] + 128] == 255).all()  # severity 1 was not asked for


def test_a_sheet_of_all_19_from_a_jpeg(photos: Path, tmp_path: Path, run: Command) -> None:
    write_frost_photographs(tmp_path)
    done = run(photos / "a/0.JPEG", "--out", tmp_path / "sheet.png", "--frost-dir", tmp_path, *SMALL)
    assert (done.status, done.err) == (0, "") and "0.JPEG under 19 corruptions" in done.out


def place(sheet: Tensor, tile: Tensor) -> list[tuple[int, int]]:
    """Where (row, column) the tile is in the sheet, from top to bottom."""
    height, width = tile.shape[1:]
    windows = sheet.unfold(1, height, 1).unfold(2, width, 1)
    corners = (windows[..., 0, 0] == tile[:, None, None, 0, 0]).all(0)
    return [(y, x) for y, x in corners.nonzero().tolist() if torch.equal(windows[:, y, x], tile)]


def test_sheets_of_several_pictures_and_what_is_never_written_over(photos: Path, tmp_path: Path, run: Command) -> None:
    first, second, small = photos / "b/1.png", photos / "a/0.JPEG", tmp_path / "small.png"
    picture(3, (32, 32)).save(small)
    words = (first, second, small, "--corruptions", "contrast", "--out", tmp_path / "sheets", "--device", "cpu")
    done = run(*words)
    assert done.status == 0
    assert done.err.count("images of 48x40 are enlarged to 224x224; --img-size sets another size") == 2
    assert (
        "CIFAR-10-C's constants (--constants cifar, in conditions preset=cifar), since the images are 32x32" in done.err
    )
    names = ["0-corruptions.png", "1-corruptions.png", "small-corruptions.png"]
    assert sorted(path.name for path in (tmp_path / "sheets").iterdir()) == names
    tile = corruptions.corrupt(pixels(small)[None], "contrast", 5, preset="cifar")[0]
    assert place(
        pixels(tmp_path / "sheets/small-corruptions.png"), tile.repeat_interleave(4, 1).repeat_interleave(4, 2)
    )
    assert run(*words).status == 0  # its own sheets
    other = tmp_path / "sheets/1-corruptions.png"
    picture(4, (16, 16)).save(other)
    before = other.read_bytes()
    done = run(*words)
    assert done.status == 2 and f"{other} exists and is not a contact sheet" in done.err
    assert other.read_bytes() == before


def test_without_frosts_photographs_a_sheet_has_our_own_textures(
    photos: Path, tmp_path: Path, run: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless a folder is named. A tree has them only if they are asked for: it outlives the line that says so."""
    for module in ("corruptions.weather", "robustkit.evaluations.corruptions.plan"):
        monkeypatch.setattr(f"{module}.find_spec", lambda name: None)
    listed = ("--corruptions", "frost(severity=1),brightness(severity=1)", *SMALL)
    done = run(photos / "b/1.png", "--out", tmp_path / "s.png", *listed)
    assert done.status == 0 and "frost(texture=own): the benchmark's photographs are missing" in done.err
    assert done.out.endswith("under 2 corruptions\n")
    done = run("--write", tmp_path / "tree", "--data-dir", photos, *listed)
    assert done.status == 2 and "frost(texture=own)" in done.err and not (tmp_path / "tree").exists()
    asked = ("--corruptions", "frost(severity=1,texture=own)", *SMALL)
    assert run("--write", tmp_path / "own", "--data-dir", photos, *asked).status == 0
    assert len(list((tmp_path / "own" / "frost" / "1").rglob("*.JPEG"))) > 1
    words = ("--frost-dir", tmp_path, *listed)
    done = run(photos / "b/1.png", "--out", tmp_path / "t.png", *words)
    assert done.status == 2 and re.match(r"error: .*frost1\.png", done.err)
    done = run("--write", tmp_path / "tree", "--data-dir", photos, *words)
    assert done.status == 2 and re.match(r"error: .*frost1\.png", done.err)
    assert not (tmp_path / "tree").exists()


# ---- trees


def test_a_written_tree_holds_what_an_audit_computes(photos: Path, tmp_path: Path, run: Command) -> None:
    words = ("--data-dir", photos, "--corruptions", "shot_noise(severity=3),contrast(severity=5)", *SMALL)
    assert run("--write", tmp_path / "jpeg", *words, "--batch-size", "3").status == 0
    done = run("--write", tmp_path / "png", *words, "--format", "png", "--seed", "7")
    assert done.status == 0 and done.out.strip() == f"{tmp_path / 'png'}: 20 files written; 2 corruptions of 10 images"
    for index in range(10):
        source = next((photos / "ab"[index % 2]).glob(f"{index}.*"))
        sample_id = f"{'ab'[index % 2]}/{source.name}"
        for name, severity in (("shot_noise", 3), ("contrast", 5)):
            folder = f"{name}/{severity}/{sample_id.rpartition('.')[0]}"
            assert torch.equal(pixels(tmp_path / f"png/{folder}.png"), expected(source, sample_id, name, severity, 7))
            buffer = io.BytesIO()
            image = expected(source, sample_id, name, severity).permute(1, 2, 0).contiguous().numpy()
            Image.fromarray(image).save(buffer, "JPEG", quality=85, optimize=True)
            assert (tmp_path / f"jpeg/{folder}.JPEG").read_bytes() == buffer.getvalue()
    assert len(tree_files(tmp_path / "jpeg")) == 21
    manifest = json.loads((tmp_path / "jpeg/corruptions.json").read_text())
    assert manifest["corruptions"] == {"shot_noise": [3], "contrast": [5]}
    assert manifest["deciding"]["img size"] == 32 and manifest["deciding"]["preset"] == "imagenet"


@pytest.mark.slow
def test_a_killed_writer_goes_on_and_the_bytes_are_the_same(photos: Path, tmp_path: Path, run: Command) -> None:
    words = ["--data-dir", str(photos), "--corruptions", "noise,digital", *SMALL, "--workers", "1"]
    assert run("--write", tmp_path / "whole", *words).status == 0
    whole = tree_files(tmp_path / "whole")
    code = (  # stops for good after the hundredth file, in the middle of writing one
        "import sys, time, robustkit.slices.corrupt.tree as w\n"
        "from pathlib import Path\n"
        "from robustkit.cli.app import main\n"
        "write, count = Path.write_bytes, [0]\n"
        "def slow(path, data):\n"
        "    count[0] += 1\n"
        "    if count[0] == 100:\n"
        "        write(path, data[:40]); print('half', flush=True); time.sleep(600)\n"
        "    return write(path, data)\n"
        "Path.write_bytes = slow\n"
        "main()\n"
    )
    line = [sys.executable, "-c", code, "corrupt", "--write", str(tmp_path / "killed"), *words]
    process = subprocess.Popen(line, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "half\n"
    process.send_signal(signal.SIGKILL)
    process.communicate()
    partial = tree_files(tmp_path / "killed")
    assert 99 <= len(partial) - 1 < len(whole) and any(name.endswith(".tmp") for name in partial)
    assert all(whole[name] == data for name, data in partial.items() if not name.endswith(".tmp"))
    kept = next(iter((tmp_path / "killed").rglob("*.JPEG")))
    stamp = kept.stat().st_mtime_ns
    broken = sorted((tmp_path / "killed").rglob("*.JPEG"))[7]
    broken.write_bytes(broken.read_bytes()[:-9])  # as after a loss of power
    done = run("--write", tmp_path / "killed", *words, "--batch-size", "4")
    assert done.status == 0 and f"{len(whole) - 99} files written, 98 already existed" in done.out
    assert tree_files(tmp_path / "killed") == whole
    assert kept == broken or kept.stat().st_mtime_ns == stamp


def test_a_tree_grows_but_does_not_mix(photos: Path, tmp_path: Path, run: Command) -> None:
    tree = tmp_path / "tree"
    words = ("--write", tree, "--data-dir", photos, *SMALL)
    assert run(*words, "--corruptions", "contrast(severity=1)", "--limit", "4").status == 0
    done = run(*words, "--corruptions", "contrast(severity=2),pixelate(severity=5)", "--limit", "6")
    assert done.status == 0 and "12 files written; 2 corruptions of 6 images" in done.out
    done = run(*words, "--corruptions", "contrast(severity=1)", "--limit", "6")
    assert done.status == 0 and "2 files written, 4 already existed" in done.out
    assert json.loads((tree / "corruptions.json").read_text())["corruptions"] == {"contrast": [1, 2], "pixelate": [5]}
    before = tree_files(tree)
    other = tmp_path / "photos"
    shutil.copytree(photos, other)
    for index in range(0, 10, 2):
        picture(99 + index, (48, 40)).save(next((other / "a").glob(f"{index}.*")))
    for extra, message in (
        (("--seed", "1"), "made with seed 0, not 1"),
        (("--format", "png"), "made with format 'jpeg', not 'png'"),
        (("--crop-pct", "1"), "made with crop pct 0.875, not 1.0"),
        (("--constants", "cifar"), "made with preset 'imagenet', not 'cifar'"),
        (("--data-dir", other), "made with source digest"),
    ):
        done = run(*words, "--corruptions", "contrast(severity=1)", *extra)
        assert done.status == 2 and message in done.err and done.err.count("\n") == 1, done.err
    assert tree_files(tree) == before


def test_a_tree_is_not_mixed_of_two_sets_of_photographs(photos: Path, tmp_path: Path, run: Command) -> None:
    for name, side in (("one", 66), ("two", 70)):
        (tmp_path / name).mkdir()
        write_frost_photographs(tmp_path / name, side=side)
    words = ("--write", tmp_path / "tree", "--data-dir", photos, "--corruptions", "frost(severity=1)", *SMALL)
    assert run(*words, "--limit", "2", "--frost-dir", tmp_path / "one").status == 0
    done = run(*words, "--frost-dir", tmp_path / "two")
    assert done.status == 2 and "the tree was made with different pictures for frost" in done.err


def test_drift_sees_severities_that_changed_places(photos: Path, tmp_path: Path, run: Command) -> None:
    tree, swapped = tmp_path / "tree/contrast", tmp_path / "swapped/contrast"
    words = ("--data-dir", photos, "--corruptions", "contrast(severity=1+2+3)", *SMALL)
    assert run("--write", tree.parent, *words).status == 0
    for severity, other in (("1", "3"), ("2", "2"), ("3", "1")):
        shutil.copytree(tree / severity, swapped / other)
    assert "differs at 1+3" in run("--drift", swapped.parent, *words).out
    assert "differs" not in run("--drift", tree.parent, *words).out.partition("mean absolute")[0]


def test_a_written_tree_is_read_as_a_released_one(photos: Path, tmp_path: Path, run: Command) -> None:
    from robustkit.data.dataset import open_dataset
    from robustkit.evaluations.corruptions.tree import CorruptedTree, is_tree

    words = ("--corruptions", "pixelate", *SMALL)
    assert run("--write", tmp_path / "png", "--data-dir", photos, "--format", "png", *words).status == 0
    assert is_tree(tmp_path / "png")
    tree = CorruptedTree.open(tmp_path / "png")
    assert tree.present == {"pixelate": (1, 2, 3, 4, 5)} and tree.notes == ()
    samples = open_dataset(photos).samples
    assert tree.missing(samples, "pixelate", 5) == []
    assert [sample.label for sample in tree.dataset().samples] == [sample.label for sample in samples]


def test_an_unreadable_image_is_counted_and_decides_the_exit_status(photos: Path, tmp_path: Path, run: Command) -> None:
    shutil.copytree(photos, tmp_path / "photos")
    (tmp_path / "photos/a/text.jpg").write_text("text")
    words = ("--data-dir", tmp_path / "photos", "--corruptions", "contrast", *SMALL)
    done = run("--write", tmp_path / "tree", *words)
    assert done.status == 2 and "50 files written" in done.out
    assert "1 of 11 images could not be read and were skipped, the first: a/text.jpg: not an image" in done.err
    assert len(list((tmp_path / "tree").rglob("*.JPEG"))) == 50


# ---- drift


def distance(apart: float, own: float, released: float = 10.0, ours: float = 10.0) -> drift.Distance:
    return drift.Distance(apart, own, released, ours)


def test_the_verdict_follows_its_rule() -> None:
    certain = [distance(1.0, 0), distance(1.0, 0)]
    assert drift.verdict(certain) == "same"
    assert drift.verdict([*certain, distance(1.01, 0)]) == "differs"
    assert drift.verdict([distance(20.9, 20)] * 4) == "too few images"
    assert drift.verdict([]) == "too few images"
    assert drift.verdict([distance(22.0, 20)] * 5) == "same"
    assert drift.verdict([distance(22.1, 20)] * 5) == "differs"
    assert drift.verdict([distance(0.0, 20)] * 5) == "same"  # the same draws
    assert drift.verdict([distance(20, 20, 11.0, 10.0)] * 5) == "same"
    assert drift.verdict([distance(20, 20, 11.1, 10.0)] * 5) == "differs"
    assert drift.verdict([distance(20, 20, 8.9, 10.0)] * 5) == "differs"
    assert drift.verdict([distance(0.6, 0.1)] * 5) == "same"  # half a level is nothing
    assert drift.verdict([distance(0.61, 0.1)] * 5) == "differs"
    spread = [distance(20 + more, 20) for more in (-4.0, -4.0, 5.0, 14.0, 14.0)]  # 5 on average, standard error 4.02
    assert drift.verdict(spread) == "same"
    assert drift.verdict(spread * 16) == "differs"  # 5 on average, standard error 0.91


def test_drift_tells_the_same_tree_from_another(photos: Path, tmp_path: Path, run: Command) -> None:
    words = ("--data-dir", photos, "--device", "cpu")
    names = "gaussian_noise,brightness,contrast,snow(severity=1+3)"
    for seed in (0, 5):
        done = run("--write", tmp_path / f"{seed}", *words, "--img-size", 32, "--corruptions", names, "--seed", seed)
        assert done.status == 0

    def drifted(tree: str, *more: str) -> dict[tuple[str, int | None], dict[str, float]]:
        done = run("--drift", tmp_path / tree, *words, "--json", tmp_path / f"{tree}.json", *more)
        assert done.status == 0, done.err
        report = json.loads((tmp_path / f"{tree}.json").read_text())
        assert report["rule"] == drift.DRIFT_RULE and report["rule"] in done.out
        assert report["preprocessing"]["input_size"] == [32, 32]  # the tree's own
        return {(row["corruption"], row["severity"]): row for row in report["rows"]}

    same = drifted("0")
    assert len(same) == 4 + 5 + 5 + 5 + 2
    assert {row["apart"] for row in same.values()} == {0.0} and {row["verdict"] for row in same.values()} == {"same"}
    assert same["contrast", 3]["own"] == 0 and same["gaussian_noise", 3]["own"] > 10
    other = drifted("5")
    assert {row["verdict"] for row in other.values()} == {"same"}
    noise = other["gaussian_noise", 3]
    assert noise["apart"] == pytest.approx(noise["own"], rel=0.05) and noise["apart"] > noise["ours"]
    assert other["contrast", 3]["apart"] == 0
    sources = {path.stem: path for path in photos.rglob("*.*")}
    files = sorted((tmp_path / "5/brightness/4").rglob("*.JPEG"))
    change = torch.stack([pixels(path).double() - clean_32(sources[path.stem])[0] for path in files])
    assert other["brightness", 4]["released"] == pytest.approx(float(change.abs().mean()))

    for name in ("brightness", "gaussian_noise"):
        shutil.rmtree(tmp_path / f"5/{name}/3")
        shutil.copytree(tmp_path / f"5/{name}/4", tmp_path / f"5/{name}/3")
    shutil.rmtree(tmp_path / "5/contrast/2")
    (tmp_path / "5/contrast/1/b/1.JPEG").unlink()
    odd = drifted("5", "--corruptions", "gaussian_noise,brightness,contrast")
    verdicts = {key: row["verdict"] for key, row in odd.items() if key[1] in (2, 3, 4)}
    assert verdicts["brightness", 3] == verdicts["gaussian_noise", 3] == "differs"
    assert set(verdicts.values()) == {"same", "differs"} and list(verdicts.values()).count("differs") == 2
    assert odd["brightness", 3]["released"] == other["brightness", 4]["released"]
    assert odd["brightness", 3]["ours"] == other["brightness", 3]["ours"]
    assert odd["contrast", None]["severities"] == [1, 3, 4, 5] and odd["contrast", 1]["images"] == 9
    notes = json.loads((tmp_path / "5.json").read_text())["notes"]
    assert "contrast, severity 1: 1 files are missing; skipped" in notes
    assert "contrast, severity 2: not in the tree; skipped" in notes


def test_png_trees_are_compared_without_a_jpeg_between(photos: Path, tmp_path: Path, run: Command) -> None:
    words = ("--data-dir", photos, "--corruptions", "gaussian_noise(severity=5)", "--device", "cpu")
    assert run("--write", tmp_path / "png", *words, "--img-size", "32", "--format", "png").status == 0
    assert run("--drift", tmp_path / "png", *words, "--json", tmp_path / "drift.json").status == 0
    row = json.loads((tmp_path / "drift.json").read_text())["rows"][0]
    assert row["apart"] == 0 and row["released"] == row["ours"]


def test_drift_chooses_among_the_images_that_the_tree_holds(photos: Path, tmp_path: Path, run: Command) -> None:
    words = ("--data-dir", photos, "--corruptions", "contrast(severity=5)", "--device", "cpu")
    assert run("--write", tmp_path / "tree", *words, "--img-size", "32", "--limit", "4").status == 0
    for seed in range(3):  # whose choice among all ten would be others
        report = tmp_path / f"{seed}.json"
        done = run("--drift", tmp_path / "tree", *words, "--limit", "3", "--seed", seed, "--json", report)
        assert done.status == 0 and f"{tmp_path / 'tree'} holds 4 of 10 images" in done.err
        assert json.loads(report.read_text())["rows"][0]["images"] == 3


# ---- mistakes


def test_every_mistake_is_one_line_and_leaves_nothing(photos: Path, tmp_path: Path, run: Command) -> None:
    image, text, full = photos / "b/1.png", tmp_path / "text.jpg", tmp_path / "full"
    text.write_text("text")
    full.mkdir()
    (full / "holiday.txt").write_text("")
    twins = tmp_path / "twins/a"
    twins.mkdir(parents=True)
    for name in ("x.png", "x.bmp"):
        picture(0, (20, 20)).save(twins / name)
    new = tmp_path / "new"
    write, data = ("--write", new), ("--data-dir", photos)
    small_tree = tmp_path / "tree"
    assert run("--write", small_tree, *data, "--corruptions", "fog(severity=1)", *SMALL).status == 0
    before = tree_files(tmp_path)
    cases: list[tuple[tuple[object, ...], str]] = [
        ((), "give IMAGE..., --write DIR or --drift TREE, exactly one of them; got none of them"),
        ((image, *write, *data), "exactly one of them; got several of them"),
        ((*write, "--drift", full, *data), "exactly one of them; got several of them"),
        (write, "--write needs --data-dir, the clean images to corrupt"),
        (("--drift", small_tree), "--drift needs --data-dir, the clean images that the tree was made of"),
        ((tmp_path / "nowhere.png",), "nowhere.png: No such file or directory; give image files"),
        ((text,), "text.jpg: not an image of a supported format (starts with b'text')"),
        ((photos,), "photos: Is a directory; give image files"),
        ((image, "--corruptions", "fgo"), "unknown corruption 'fgo'; did you mean 'fog'?"),
        ((image, "--corruptions", "fog(severity=6)"), "severity '6'; expected whole numbers from 1 to 5"),
        ((image, "--corruptions", "fog(severity=0)"), "severity '0'; expected whole numbers from 1 to 5"),
        ((image, "--corruptions", ","), "expected a name or a set, such as in-c"),
        ((image, "--constants", "imagenette"), "unknown constants 'imagenette'; did you mean 'imagenet'?"),
        ((image, "--variant", "x"), "unknown variant 'x'; known: bethgelab, hendrycks"),
        ((image, "--constants", "cifar", "--variant", "bethgelab"), "variant 'bethgelab' has no constants"),
        ((image, "--interpolation", "cubic"), "unknown interpolation 'cubic'; did you mean 'bicubic'?"),
        ((image, "--img-size", "8"), "--img-size 8: corruptions need at least 16x16 pixels"),
        ((image, "--img-size", "5000"), "'--img-size': 5000 is not in the range"),
        ((image, "--json", "x.json"), "--json does not apply to a contact sheet; leave it out"),
        ((image, "--limit", "3"), "--limit does not apply to a contact sheet; leave it out"),
        ((*write, *data, "--json", "x.json"), "--json does not apply to --write; leave it out"),
        (("--drift", small_tree, *data, "--format", "png"), "--format does not apply to --drift; leave it out"),
        ((image, "--crop-pct", "1.5"), "--crop-pct 1.5: expected a number above 0, at most 1"),
        ((image, "--device", "abacus"), "unknown device 'abacus'; known: auto, cpu, cuda"),
        ((image, "--out", tmp_path / "sheet.jpg"), "a contact sheet is a PNG; give a name ending in .png"),
        ((image, photos / "a/2.png", "--out", tmp_path / "s.png"), "is one file for 2 images; give a folder"),
        ((image, "--out", image), "1.png is the input image; give another name"),
        ((image, image, "--out", tmp_path), "another image has the same name"),
        ((image, "--out", text / "s.png", "--corruptions", "contrast"), "cannot write"),
        ((*write, "--data-dir", tmp_path / "nowhere"), "no such folder or zip file; check --data-dir"),
        ((*write, *data, "--limit", "0"), "'--limit': 0 is not in the range"),
        (("--write", full, *data), "contains files but no corruptions.json; choose an empty folder"),
        (("--write", text, *data), "text.jpg is not a folder; choose another one"),
        (("--write", text / "tree", *data), "is not a folder; choose another one"),
        (("--write", photos / "c", *data), "and would become part of it; choose another folder"),
        ((*write, "--data-dir", twins.parent), "'a/x.bmp' and 'a/x.png' would become one file, 'a/x.JPEG'"),
        (("--drift", full, *data), "full: no corruption found; expected folders such as fog/3/<class>/<file>"),
        (("--drift", new, *data), "new: no such folder; expected a tree"),
        (("--drift", small_tree, *data, "--img-size", "64"), "is 32x32; give --img-size 32"),
        (("--drift", small_tree, *data, "--corruptions", "snow"), "under snow; an id is 'a/0.JPEG'"),
        (("--drift", small_tree, "--data-dir", twins.parent), "under fog; an id is 'a/x.bmp'"),
        (("--drift", small_tree, *data, "--json", text / "d.json"), "choose another file with --json"),
    ]
    for words, message in cases:
        quick = () if {"--corruptions", "--drift"} & set(words) else ("--corruptions", "contrast")
        done = run(*words, *quick)
        lines = done.err.strip().splitlines()
        assert done.status == 2 and len(lines) == 1, (words, done.err)
        assert lines[0].startswith("error: ") and message in lines[0], (words, done.err)
        assert tree_files(tmp_path) == before, words


def test_python_does_what_the_command_does(photos: Path, tmp_path: Path, run: Command) -> None:
    by_command, here = tmp_path / "command", tmp_path / "here"
    settings = {"corruptions": "shot_noise(severity=3),contrast(severity=5)", "img_size": 32, "device": "cpu"}
    words = ("--data-dir", photos, "--corruptions", settings["corruptions"], *SMALL)
    assert run("--write", by_command, *words).status == 0
    notes, files = list[str](), list[int]()

    @contextmanager
    def watch(some: Sequence[str], total: int) -> Iterator[Callable[[int], None]]:
        notes.extend(some)
        yield files.append
        assert sum(files) == total

    done = corrupt_tree(here, photos, watch=watch, **settings)
    assert (done.made, done.existing, done.images, done.unreadable) == (20, 0, 10, ())
    assert notes[0] == "layout folders: 10 images"
    assert tree_files(here) == tree_files(by_command)
    done = corrupt_tree(here, str(photos), ids=["a/0.JPEG", "b/1.png"], **settings)
    assert (done.made, done.existing, done.images) == (0, 4, 2)
    with pytest.raises(ProtocolError, match="unknown format 'gif'"):
        corrupt_tree(tmp_path / "gif", photos, image_format="gif", **settings)
    result = compare_tree(here, photos, device="cpu")
    verdicts = {row["corruption"]: row["verdict"] for row in result.rows()}
    assert verdicts == {"contrast": "same", "shot_noise": "same"}
    figures = tmp_path / "d.json"
    assert run("--drift", by_command, "--data-dir", photos, "--json", figures, "--device", "cpu").status == 0
    report = json.loads(figures.read_text())
    assert report["rows"] == json.loads(json.dumps(result.rows())) and report["notes"] == result.lines
    (sheet,) = write_sheets([photos / "a/2.png"], tmp_path, corruptions="contrast", device="cpu")
    assert sheet[0] == tmp_path / "2-corruptions.png" and sheet[0].is_file()
    assert sheet[1] == "2.png under 1 corruption"


def test_constants_that_images_of_this_size_lack_are_one_line(photos: Path, tmp_path: Path, run: Command) -> None:
    tree = ("--write", tmp_path / "tree", "--data-dir", photos)
    for words, line in (
        ((photos / "a/0.JPEG", "--corruptions", "lines", "--img-size", "64"), "lines: no constants for ImageNet's"),
        ((*tree, "--corruptions", "lines"), "lines: no constants for ImageNet's"),
        ((*tree, "--constants", "cifar", "--corruptions", "glitched"), "glitched: no constants for images of 32x32"),
    ):
        done = run(*words)
        assert done.status == 2 and line in done.err and not (tmp_path / "tree").exists()


def test_drift_leaves_out_what_was_made_with_other_pictures(photos: Path, tmp_path: Path, run: Command) -> None:
    for number, colour in enumerate(("red", "blue")):
        (tmp_path / str(number)).mkdir()
        Image.new("RGB", (30, 30), colour).save(tmp_path / str(number) / "tile.png")
    words = ("--data-dir", photos, "--corruptions", "mosaic(severity=1),glitched(severity=1)", *SMALL)
    assert run("--write", tmp_path / "tree", *words, "--tiles-dir", tmp_path / "0").status == 0
    done = run("--drift", tmp_path / "tree", *words, "--tiles-dir", tmp_path / "1")
    assert done.status == 0 and "left out mosaic: the tree was made with other pictures" in done.out + done.err
    done = run("--drift", tmp_path / "tree", *words, "--tiles-dir", tmp_path / "0")
    assert done.status == 0 and "left out" not in done.out + done.err
