"""Names of folders in a run: each a single part of a path, also on Windows, and distinct."""

from pathlib import Path, PureWindowsPath
from typing import Any

import pytest
from manifests import whole

from robustkit.errors import RunError
from robustkit.runs import folder
from robustkit.runs.folder import RunFolder, folder_name, longest_path
from robustkit.runs.manifest import Manifest

PLAIN = ["vit", "vit_tiny_patch16_224.augreg", "pgd(eps=1_255,steps=20)", "console", "com", "a.con"]
ODD = [
    *("con", "CON", "Nul.pth", "aux.v2", "com1", "lpt9.tar.gz", "model.", "..", "C:\\windows", "a:b", "a/b", "a\\b"),
    *("../../x", "trailing ", "ä", "a" * 400, "pgd(eps=1/255,steps=20)", "\0", "<x>", "?*", "~", "-rf"),
    *("../../etc", "a b", "a-b.", "é", "x" * 300, "x" * 301, ".hidden"),
]


@pytest.mark.filterwarnings("ignore:pathlib.PureWindowsPath.is_reserved")
@pytest.mark.parametrize("text", [*PLAIN, *ODD])
def test_a_name_is_one_part_of_a_path_on_windows_too(text: str) -> None:
    path = PureWindowsPath("D:/runs") / RunFolder("run").shard_path(text, text, 3)
    assert path.parts[-4:-1] == ("records", folder_name(text), folder_name(text))
    name = PureWindowsPath(folder_name(text))
    assert len(name.parts) == 1 and not (name.drive or name.root or name.is_reserved())
    assert not str(name).endswith((".", " ")) and not set(str(name)) & set('<>:"/\\|?*') and str(name).isprintable()
    assert not str(name).startswith(".") and len(str(name)) < 140 and str(name).isascii()


def test_names_are_distinct_and_plain_ones_stay() -> None:
    assert [folder_name(text) for text in PLAIN] == PLAIN
    assert folder_name("pgd(eps=1/255,steps=20)") == "pgd(eps=1_255,steps=20)"
    assert len({folder_name(text).lower() for text in ODD}) == len(ODD)


def manifest(checkpoints: list[str], conditions: list[str]) -> Manifest:
    plain: dict[str, Any] = {"checkpoints": [{"name": name} for name in checkpoints], "conditions": conditions}
    return whole(plain | {"data": {"n": 3}})


def test_names_that_differ_in_case_alone_are_refused(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    run.write_manifest(manifest(["ViT", "vit-2"], ["clean", "pgd(eps=1/255)"]))
    for names, conditions in ((["ViT", "deit", "vit"], ["clean"]), (["deit"], ["mine(of=ViT)", "mine(of=vit)"])):
        with pytest.raises(RunError, match=r"vit.* differ in case alone, .* Windows and macOS; give one"):
            run.write_manifest(manifest(names, conditions))


def test_a_run_whose_paths_windows_refuses_ends_before_it_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wide = manifest(["a" * 200, "b"], ["clean", "pgd(eps=1/255,steps=20)"])
    path = PureWindowsPath("D:/runs/one")
    deepest = path / "adversarials" / folder_name("a" * 200) / "pgd(eps=1_255,steps=20)" / "00000.parquet"
    assert longest_path(path, wide) == len(str(deepest)) + len(".") + len(".") + 16 + len(".tmp")
    run, longest = RunFolder(tmp_path / "run"), longest_path(tmp_path / "run", wide)
    for limit in (None, longest):
        monkeypatch.setattr(folder, "path_limit", lambda limit=limit: limit)
        run.write_manifest(wide)
    monkeypatch.setattr(folder, "path_limit", lambda: longest - 7)
    with pytest.raises(RunError, match=f"paths of up to {longest} .* at most {longest - 7}: .* that is 7 shorter"):
        run.write_manifest(wide)
