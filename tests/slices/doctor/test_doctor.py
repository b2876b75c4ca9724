"""The doctor finds nothing wrong here, and each of its checks finds what is broken, with a remedy."""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from click.testing import CliRunner
from page_blocks import blocks_of, unprinted
from places import ROOT
from torch import Tensor

import attacks
import cam
from corruptions import CORRUPTIONS
from robustkit.attention import apply as attention
from robustkit.attention import formulas
from robustkit.attention.registry import FORMULAS
from robustkit.cli.app import cli
from robustkit.common import determinism
from robustkit.runs.folder import RunFolder
from robustkit.slices.doctor import command as doctor
from robustkit.slices.doctor import known_answers
from robustkit.slices.doctor.command import Caution, MachineCheck

Patch = pytest.MonkeyPatch
pytestmark = pytest.mark.usefixtures("one_thread")
NAMES = [name for name, _, _ in doctor.CHECKS]


def finding(name: str, monkeypatch: Patch) -> MachineCheck:
    """What one check finds, without the others."""
    monkeypatch.setattr(doctor, "CHECKS", tuple(check for check in doctor.CHECKS if check[0] == name))
    (found,) = doctor.examine_machine()
    return found


def test_nothing_is_wrong_here() -> None:
    found = doctor.examine_machine()
    assert [one.name for one in found] == NAMES and len(set(NAMES)) == len(NAMES)
    assert [one for one in found if not one.fine and one.name != "distribution"] == []
    assert all(one.text and "\n" not in one.text for one in found)
    (quoted,) = (
        block for block in blocks_of(ROOT / "docs" / "how-to" / "install.md") if block.said.endswith(" doctor")
    )
    assert not unprinted(quoted.text, "\n".join(f"ok   {one.name}: {one.text}" for one in found), exactly=True)


def wrong_draws(monkeypatch: Patch) -> str:
    monkeypatch.setattr(determinism, "_MIX_2", determinism._MIX_2 ^ 2)
    return "SplitMix64 gives"


def wrong_stream(monkeypatch: Patch) -> str:
    own = determinism.hash_values
    monkeypatch.setattr(determinism, "hash_values", lambda *parts: own(*parts[::-1]))
    return "the stream gives"


def wrong_signs(monkeypatch: Patch) -> str:
    own = determinism.SampleRng.signs
    monkeypatch.setattr(determinism.SampleRng, "signs", lambda *arguments, **named: -own(*arguments, **named))
    return "the stream gives"


def wrong_normal(monkeypatch: Patch) -> str:
    own = determinism.SampleRng.normal
    monkeypatch.setattr(determinism.SampleRng, "normal", lambda *arguments: own(*arguments) * 1.001)
    return "the normal draw is"


def ascent_downhill(monkeypatch: Patch) -> str:
    own = attacks.ThreatModel.steepest
    monkeypatch.setattr(attacks.ThreatModel, "steepest", lambda self, gradient: -own(self, gradient))
    return "the step on a linear model is [0.6, 0.4, 0.11] instead of [0.4, 0.6, 0.0]"


def no_projection(monkeypatch: Patch) -> str:
    monkeypatch.setattr("attacks.threat.Ball.project_", lambda self, points: points)
    return "PGD's end is [0.26, 0.74"


def wide_l2(monkeypatch: Patch) -> str:
    own = attacks.ThreatModel.project

    def project(self: Any, far: Tensor, clean: Tensor) -> Tensor:
        return far if self.norm == "l2" else own(self, far, clean)

    monkeypatch.setattr(attacks.ThreatModel, "project", project)
    return "the l2 projection is [0.8, 0.9] instead of [0.65, 0.7]"


def wrong_linf(monkeypatch: Patch) -> str:
    own = attacks.ThreatModel.project

    def project(self: Any, far: Tensor, clean: Tensor) -> Tensor:
        return own(replace(self, bounds=None) if self.norm == "linf" else self, far, clean)

    monkeypatch.setattr(attacks.ThreatModel, "project", project)
    return "the l-inf projection is [0.6, -0.05, 1.05] instead of [0.6, 0.0, 1.0]"


def scaled_quest(monkeypatch: Patch) -> str:
    monkeypatch.setattr(formulas, "QUEST", replace(formulas.QUEST, scaled=True))
    return "quest: logits "


def metric_of_the_sum(monkeypatch: Patch) -> str:
    even = replace(formulas.ELLIPTICAL, metric=lambda v, before: torch.ones_like(v[:, :, :1]))
    monkeypatch.setattr(formulas, "ELLIPTICAL", even)
    return "elliptical: logits "


def agcam_without_relu(monkeypatch: Patch) -> str:
    monkeypatch.setattr(torch.Tensor, "relu", lambda self: self)
    return "the map of agcam differs from its definition by up to"


def agcam_uncut(monkeypatch: Patch) -> str:
    monkeypatch.setattr(cam.AGCAM, "_cut", False)
    return "the map of agcam differs from its definition by up to"


def agcam_full_cut(monkeypatch: Patch) -> str:
    monkeypatch.setattr(cam.AGCAMFull, "_cut", True)
    return "the map of agcam-full differs from its definition by up to"


def agcam_transposed(monkeypatch: Patch) -> str:
    own = cam.AGCAM._raw

    def flipped(self: Any, *arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
        logits, classes, grids = own(self, *arguments)
        return logits, classes, grids.flip(-1)

    monkeypatch.setattr(cam.AGCAM, "_raw", flipped)
    return "the map of agcam differs from its definition by up to"


def other_fog(monkeypatch: Patch) -> str:
    monkeypatch.setattr(CORRUPTIONS["fog"], "constants", lambda self, severity: (2.5, 1.8))
    return "fog gives pixels"


def another_file(monkeypatch: Patch) -> str:
    monkeypatch.setattr("robustkit.models.specs.hashlib.sha256", __import__("hashlib").sha1)
    return "it is not the checkpoint that was shipped"


def other_predictions(monkeypatch: Patch) -> str:
    own = known_answers._shown
    monkeypatch.setattr(known_answers, "_shown", lambda *arguments: (own(3)[0], *own(*arguments)[1:]))
    return "on cpu: [0, 1, "


def an_attack_at_eps_0(monkeypatch: Patch) -> str:
    monkeypatch.setattr(attacks.Square, "__call__", lambda self, model, images, labels: images * 1.0001)
    return "Square changes images by 9.33e-05 at eps 0"


def weak_pgd(monkeypatch: Patch) -> str:
    monkeypatch.setattr(attacks.PGD, "__call__", lambda self, model, images, labels, rng: images)
    return "15, 15 and 15 of 16 right at eps 0, 1/255 and 4/255; expected a fall"


def pgd_stronger_when_narrow(monkeypatch: Patch) -> str:
    own: Callable[..., Tensor] = attacks.PGD.__call__

    def backwards(self: Any, *arguments: Any, **named: Any) -> Tensor:
        eps = self.threat.eps if self.threat.eps > 2 / 255 else 10 * self.threat.eps
        return own(replace(self, threat=attacks.ThreatModel(eps=eps), step_size=None), *arguments, **named)

    monkeypatch.setattr(attacks.PGD, "__call__", backwards)
    return "; expected a fall"


def parquet_loses_a_row(monkeypatch: Patch) -> str:
    own = RunFolder.write_shard
    monkeypatch.setattr(RunFolder, "write_shard", lambda self, path, table: own(self, path, table.slice(0, 1)))
    return "Parquet gives back"


def parquet_loses_metadata(monkeypatch: Patch) -> str:
    own = RunFolder.write_shard
    monkeypatch.setattr(
        RunFolder, "write_shard", lambda self, path, table: own(self, path, table.replace_schema_metadata(None))
    )
    return "Parquet gives back"


def written_in_place(monkeypatch: Patch) -> str:
    monkeypatch.setattr(doctor, "write_whole", lambda path, data: path.write_bytes(data))
    return "a file is not replaced atomically"


def something_left_behind(monkeypatch: Patch) -> str:
    from robustkit.common.files import write_whole

    def leaving(path: Path, data: bytes) -> None:
        write_whole(path, data)
        path.with_name(".half.tmp").write_bytes(b"")

    monkeypatch.setattr(doctor, "write_whole", leaving)
    return "is not replaced atomically: ['.half.tmp']"


def opencv_gone(monkeypatch: Patch) -> str:
    monkeypatch.delattr(cv2, "__version__")
    return "AttributeError: module 'cv2' has no attribute"


def another_build(monkeypatch: Patch) -> str:
    monkeypatch.setitem(sys.modules, "torchvision", None)
    return "import of torchvision halted"


def the_other_robustkit(monkeypatch: Patch) -> str:
    """It was installed later, and its files lie where robustkit's lay."""
    monkeypatch.setattr(doctor.metadata, "packages_distributions", lambda: {"cam": ["robustkit-audit", "torch.cams"]})
    monkeypatch.setattr(
        doctor, "find_spec", lambda name: ModuleSpec(name, None, origin=f"/elsewhere/{name}/__init__.py")
    )
    return "cam belongs to torch.cams, too; what is imported, /elsewhere/cam/__init__.py, is not robustkit's"


BREAKAGES: dict[str, tuple[Callable[[Patch], str], ...]] = {
    "distribution": (the_other_robustkit,),
    "versions": (opencv_gone,),
    "torchvision": (another_build,),
    "records": (parquet_loses_a_row, parquet_loses_metadata),
    "renaming": (written_in_place, something_left_behind),
    "draws": (wrong_draws, wrong_stream, wrong_signs, wrong_normal),
    "fgsm": (ascent_downhill,),
    "projection": (no_projection, wrong_linf, wide_l2),
    "formulas": (scaled_quest, metric_of_the_sum),
    "agcam": (agcam_without_relu, agcam_transposed, agcam_uncut, agcam_full_cut),
    "corruptions": (other_fog,),
    "checkpoints": (another_file, other_predictions),
    "no radius": (an_attack_at_eps_0,),
    "monotone": (weak_pgd, pgd_stronger_when_narrow),
}


@pytest.mark.parametrize(("name", "break_it"), [(name, one) for name, all_ in BREAKAGES.items() for one in all_])
def test_what_is_broken_is_found(name: str, break_it: Callable[[Patch], str], monkeypatch: Patch) -> None:
    remedy = {check[0]: check[2] for check in doctor.CHECKS}[name]
    expected = break_it(monkeypatch)
    found = finding(name, monkeypatch)
    assert not found.fine and expected in found.text and "UnexpectedAnswer" not in found.text
    assert found.text.endswith(f"; {remedy}") and ("install" in remedy or "try " in remedy or "--out" in remedy)


def test_without_torch_each_check_says_so() -> None:
    code = (
        "import sys; sys.modules['torch'] = None; from robustkit.slices.doctor import command as checks\n"
        "found = {check.name: check for check in checks.examine_machine()}\n"
        "assert found['disk'].text and found['renaming'].fine, found\n"
        "print(*(name for name, check in found.items() if 'import of torch halted' in check.text))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert {"device", "draws", "fgsm", "formulas", "monotone"} <= set(done.stdout.split())


def test_every_check_is_broken_above_or_warns_below() -> None:
    assert set(NAMES) == BREAKAGES.keys() | {"device", "disk", "frost"}


SAME_AT_FIRST = ({"standard", "qana"}, *({"qk-l2", name} for name in ("qknorm-hs", "qknorm-ds", "qknorm", "qk-rms")))
"""Whose parameters at their initial values make the one of the other."""


@pytest.mark.parametrize("name", FORMULAS)
def test_each_formula_is_told_from_every_other(name: str) -> None:
    model, image = known_answers.small_vit(name)
    right, _ = known_answers.slow_vit(known_answers._arrays(model), image[0].numpy(), name)
    np.testing.assert_allclose(model(image)[0].numpy(), right, rtol=1e-8)
    for other in FORMULAS:
        if other != name and {other, name} not in SAME_AT_FIRST:
            found = attention.set_attention(known_answers.small_vit(name)[0], other)(image)[0].numpy()
            assert np.abs(found - right).max() > 1e-6, other  # no logit comes near the cap of softcap


def test_pixels_do_not_depend_on_threads() -> None:
    before = cv2.getNumThreads()
    try:
        for name in known_answers.CORRUPTED:
            found = []
            for threads in (1, 2, 5):
                torch.set_num_threads(threads)
                cv2.setNumThreads(threads)
                found.append(known_answers.corrupted_pixels(name))
            assert found == [known_answers.CORRUPTED[name]] * 3, name
    finally:
        torch.set_num_threads(1)
        cv2.setNumThreads(before)
    assert known_answers.CORRUPTED.keys() == CORRUPTIONS.keys()


def test_corruptions_may_round_otherwise_and_no_more(monkeypatch: Patch) -> None:
    mean, pixels = known_answers.CORRUPTED["fog"]
    for change, fine in (
        ([1] * 12, True),
        ([0, 90] + [0] * 10, True),
        ([0, 2, 2] + [0] * 9, False),
    ):
        moved = [a + b for a, b in zip(pixels, change, strict=True)]
        monkeypatch.setitem(known_answers.CORRUPTED, "fog", (mean, moved))
        assert finding("corruptions", monkeypatch).fine == fine, change
    monkeypatch.setitem(known_answers.CORRUPTED, "fog", (mean + 0.3, pixels))
    assert not finding("corruptions", monkeypatch).fine


def test_a_gpu_that_torch_does_not_see_is_said(monkeypatch: Patch, tmp_path: Path) -> None:
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    monkeypatch.setattr(doctor, "DEVICE_FILES", tmp_path)
    (tmp_path / "nvidiactl").touch()
    found = finding("device", monkeypatch)
    assert found.fine and "no accelerator" in found.text and "NVIDIA" not in found.text
    (tmp_path / "nvidia0").touch()
    found = finding("device", monkeypatch)
    assert found.state == "warn" and "has an NVIDIA device that torch" in found.text
    assert "install the CUDA build of torch" in found.text


def test_one_thread_is_said(monkeypatch: Patch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    found = finding("device", monkeypatch)
    assert found.state == "warn" and "one thread is slow; set OMP_NUM_THREADS" in found.text
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert "2 threads" in (text := finding("device", monkeypatch).text) and "one thread" not in text


def test_little_disk_is_said(monkeypatch: Patch) -> None:
    usage = type(shutil.disk_usage("/"))
    for free, said in ((2**31 - 1, True), (2**31, False)):
        monkeypatch.setattr(shutil, "disk_usage", lambda path, free=free: usage(2**40, 0, free))
        found = finding("disk", monkeypatch)
        assert found.state == ("warn" if said else "ok") and "2.0 GiB free in" in found.text
        assert ("--out" in found.text) == said


def test_a_folder_that_cannot_be_written_is_said(monkeypatch: Patch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(doctor.tempfile, "TemporaryDirectory", refuse)
    found = finding("renaming", monkeypatch)
    assert found.state == "warn" and "give runs a folder with --out" in found.text


def test_nothing_stays_in_the_current_folder(monkeypatch: Patch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert finding("renaming", monkeypatch).fine and not list(tmp_path.iterdir())


def test_another_owner_of_a_name_is_said(monkeypatch: Patch, tmp_path: Path) -> None:
    """A distribution on the path, as pip leaves one; robustkit's own files come first."""
    info = tmp_path / "robustkit-9.9.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: robustkit\nVersion: 9.9\n")
    (info / "RECORD").write_text("attacks/__init__.py,,\nrobustkit/__init__.py,,\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    found = finding("distribution", monkeypatch)
    assert found.state == "warn" and found.text.count("belongs to robustkit 9.9, too; robustkit's own is imported") == 2
    assert (
        "attacks belongs" in found.text and "cam belongs" not in found.text and "environment of its own" in found.text
    )


def test_files_that_another_distribution_overwrote_are_not_ours(monkeypatch: Patch, tmp_path: Path) -> None:
    file = tmp_path / "cam" / "__init__.py"
    file.parent.mkdir()
    file.write_text("ours")
    info = tmp_path / "robustkit_audit-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: robustkit-audit\nVersion: 1\n")
    digest = base64.urlsafe_b64encode(hashlib.sha256(b"ours").digest()).decode().rstrip("=")
    (info / "RECORD").write_text(f"cam/__init__.py,sha256={digest},4\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert doctor._as_installed(file)
    file.write_text("theirs")
    assert not doctor._as_installed(file)


def test_frost_without_photographs_is_no_fault_but_said(monkeypatch: Patch) -> None:
    monkeypatch.setattr("corruptions.weather.find_spec", lambda name: None)
    frost = finding("frost", monkeypatch)
    assert (
        frost.state == "warn"
        and "frost(texture=own)" in frost.text
        and "pip install --no-deps imagecorruptions" in frost.text
        and "--frost-dir" in frost.text
    )


def test_the_command_shows_each_line_and_fails_with_status_2(monkeypatch: Patch, tmp_path: Path) -> None:
    checks = (
        *(("good", lambda: "as it should be", ""), ("slow", lambda: Caution("one thread"), "")),
        ("bad", lambda: 1 / 0, "fix it"),
    )
    monkeypatch.setattr(doctor, "CHECKS", checks)
    done = CliRunner().invoke(cli, ["doctor", "--json", str(tmp_path / "checks.json")])
    states = [(check["name"], check["state"]) for check in json.loads((tmp_path / "checks.json").read_text())["checks"]]
    assert states == [("good", "ok"), ("slow", "warn"), ("bad", "FAIL")]
    assert "warn slow: one thread" in done.output
    assert "ok   good: as it should be" in done.output
    assert "FAIL bad: ZeroDivisionError: division by zero; fix it" in done.output
    assert getattr(done.exception, "exit_code", 0) == 2
    monkeypatch.setattr(doctor, "CHECKS", checks[:2])
    assert CliRunner().invoke(cli, ["doctor"]).exit_code == 0
