"""Plug-ins: how they are found, which are refused, and what stands for their code."""

from __future__ import annotations

import hashlib
import sys
import zipfile
from collections.abc import Iterator
from contextvars import Context, copy_context
from pathlib import Path
from typing import Any

import pytest
from plugin_package import metadata

from robustkit.common import plugins
from robustkit.common.plugins import (
    Registry,
    declared,
    instance_of,
    load_plugin,
    plugin_files,
    plugin_session,
    subclass_of,
)
from robustkit.errors import PluginError


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of installed packages, and no plug-ins of other tests."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    plugins._installed.cache_clear()
    with plugins.plugin_session():
        yield folder
    plugins._installed.cache_clear()
    for name in [name for name in sys.modules if name.startswith(("plugged", "robustkit_plugin_"))]:
        del sys.modules[name]


def registry(**own: Any) -> Registry[Any]:
    return Registry("attacks", own, subclass_of(Exception), reserved=("cam",))


def package(site: Path, name: str, entries: dict[str, str], code: str = "", version: str = "1.0") -> None:
    group = "[robustkit.attacks]\n" + "".join(f"{key} = {value}\n" for key, value in entries.items())
    metadata(site, name, version, group)
    (site / f"{name}.py").write_text(code, encoding="utf-8")


def test_a_package_is_imported_when_its_plug_in_is_asked_for_and_not_before(site: Path) -> None:
    package(site, "plugged", {"spin": "plugged:Spin"}, "class Spin(Exception):\n    pass\n")
    known = registry(pgd=ValueError)
    assert list(known) == ["pgd", "spin"] and "spin" in known and "cam" not in known
    assert "plugged" not in sys.modules
    assert known["spin"].__name__ == "Spin" and known["pgd"] is ValueError
    [plugin] = declared("attacks")
    code = (site / "plugged.py").read_bytes()
    expected = hashlib.sha256(f"plugged.py\0{len(code)}\0".encode() + code).hexdigest()
    assert plugin.identity == {
        "group": "attacks",
        "name": "spin",
        "distribution": "plugged",
        "version": "1.0",
        "source": expected,
    }
    with pytest.raises(KeyError):
        known["other"]


def test_the_digest_is_of_all_code_of_a_package(site: Path) -> None:
    metadata(site, "plugged", "1.0", "[robustkit.attacks]\nspin = plugged.deep.spin:Spin\n")
    (site / "plugged" / "deep").mkdir(parents=True)
    for name in ("__init__.py", "deep/__init__.py", "deep/spin.py", "unrelated.py"):
        (site / "plugged" / name).write_text("class Spin(Exception):\n    pass\n", encoding="utf-8")

    def source() -> str:
        plugins._installed.cache_clear()
        return declared("attacks")[0].source

    seen = {source()}
    for name, text in (("unrelated.py", "x = 1\n"), ("deep/spin.py", "y = 2\n"), ("new.py", "")):
        (site / "plugged" / name).write_text(text, encoding="utf-8")
        seen.add(source())
    (site / "plugged" / "notes.txt").write_text("no code", encoding="utf-8")
    assert len(seen) == 4 and source() in seen
    assert "plugged.deep" not in sys.modules


@pytest.mark.parametrize(
    ("entry", "code", "said"),
    [
        ("spin = plugged:Spin", "import not_there", "cannot be imported (ModuleNotFoundError: No module named 'not_th"),
        ("spin = plugged:Spin", "raise SystemExit('bye')", "cannot be imported (SystemExit: bye)"),
        ("spin = plugged:Spin", "x = 1", "cannot be imported (AttributeError:"),
        ("spin = plugged:Spin", "Spin = 3", "it provides 3; expected a subclass of builtins.Exception"),
        ("pgd = plugged:Spin", "", "robustkit has pgd already; rename the plug-in"),
        ("cam = plugged:Spin", "", "robustkit has cam already"),
        ("Spin(1) = plugged:Spin", "", "expected a name of a-z"),
        ("none = plugged:Spin", "", "robustkit has none already"),
        (
            "spin = plugged:Spin",
            "class Spin(Exception):\n    name = 'pgd'",
            "its object is called 'pgd'; expected 'spin'",
        ),
    ],
)
def test_a_plug_in_that_cannot_be_used_stops_only_what_needs_it(site: Path, entry: str, code: str, said: str) -> None:
    name, _, target = entry.partition(" = ")
    package(site, "plugged", {name: target, "fine": "plugged_fine:Fine"}, code)
    (site / "plugged_fine.py").write_text("class Fine(Exception):\n    pass\n", encoding="utf-8")
    known = registry(pgd=ValueError)
    plugin = next(plugin for plugin in declared("attacks") if plugin.name == name)
    with pytest.raises(PluginError) as fault:
        known.load(plugin)
    assert said in str(fault.value) and "plugged 1.0" in str(fault.value) and "\n" not in str(fault.value)
    assert known["pgd"] is ValueError and known["fine"].__name__ == "Fine"
    assert dict(known.usable()).keys() == {"pgd", "fine"}
    assert known.plugin("pgd") is None and known.plugin("cam") is None  # they are robustkit's


def test_two_plug_ins_of_one_name_are_refused_whichever_group_of_conditions_they_are_of(site: Path) -> None:
    package(site, "plugged", {"spin": "plugged:Spin"}, "class Spin(Exception):\n    pass\n")
    metadata(site, "rival", "2.0", "[robustkit.families]\nspin = plugged:Spin\n")
    for known in (registry(), Registry("families", {}, instance_of(int))):
        with pytest.raises(PluginError, match=r"2 plug-ins are called spin: of plugged 1\.0 and of rival 2\.0; keep"):
            known["spin"]


FILE = """
from dataclasses import dataclass

@dataclass(frozen=True)
class Spin(Exception):
    turns: "int" = 1

PLUGINS = {"attacks": {"spin": Spin}}
"""


def test_a_file_is_executed_once_and_stands_for_its_bytes(site: Path, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(FILE, encoding="utf-8")
    [plugin] = load_plugin(file)
    [again] = load_plugin(file)
    assert [again] == [plugin] == declared("attacks") and again.value is plugin.value
    assert plugin.source == hashlib.sha256(FILE.encode()).hexdigest() and plugin.origin == "mine.py"
    assert registry()["spin"](turns=2).turns == 2
    (tmp_path / "again.py").write_text(FILE + "\n", encoding="utf-8")
    load_plugin(tmp_path / "again.py")
    with pytest.raises(PluginError, match=r"of again\.py and of mine\.py|of mine\.py and of again\.py"):
        registry()["spin"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "No such file or directory; give a Python file"),
        ("x =", "it failed (SyntaxError:"),
        ("raise RuntimeError('no')", "it failed (RuntimeError: no); fix it"),
        ("x = 1", 'expected PLUGINS = {"attacks": {"name": Class}} in it'),
        ("PLUGINS = {'attacks': 3}", "expected PLUGINS ="),
        ("PLUGINS = {'atacks': {}}", "unknown group 'atacks'; did you mean 'attacks'?"),
    ],
)
def test_a_file_that_brings_nothing_is_refused_in_one_line(
    site: Path, tmp_path: Path, text: str | None, said: str
) -> None:
    file = tmp_path / "mine.py"
    if text is not None:
        file.write_text(text, encoding="utf-8")
    with pytest.raises(PluginError) as fault:
        load_plugin(file)
    assert said in str(fault.value) and str(file) in str(fault.value) and "\n" not in str(fault.value)
    assert not declared("attacks")


def test_modules_beside_a_file_are_its_code_and_its_own(site: Path, tmp_path: Path) -> None:
    text = FILE.replace('turns: "int" = 1', 'turns: "int" = helper.TURNS').replace("from", "import helper\nfrom", 1)
    found = []
    for name, turns in (("one", 1), ("two", 2)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "helper.py").write_text(f"TURNS = {turns}\n", encoding="utf-8")
        (tmp_path / name / "mine.py").write_text(text.replace('"spin"', f'"spin-{name}"'), encoding="utf-8")
        found += load_plugin(tmp_path / name / "mine.py")
    assert [plugin.value().turns for plugin in found] == [1, 2]  # type: ignore[operator]
    assert "helper" not in sys.modules
    (tmp_path / "three").mkdir()
    (tmp_path / "three" / "helper.py").write_text("TURNS = 3\n", encoding="utf-8")
    code = (tmp_path / "one" / "mine.py").read_text("utf-8")
    (tmp_path / "three" / "mine.py").write_text(code, encoding="utf-8")
    (third,) = load_plugin(tmp_path / "three" / "mine.py")
    assert len({found[0].source, found[1].source, third.source}) == 3


def test_code_without_files_is_not_identified(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = site / "packed.zip"
    with zipfile.ZipFile(archive, "w") as packed:
        packed.writestr("plugged_zip.py", "class Spin(Exception):\n    pass\n")
    monkeypatch.syspath_prepend(str(archive))
    metadata(site, "plugged", "1.0", "[robustkit.attacks]\nspin = plugged_zip:Spin\n")
    (plugin,) = declared("attacks")
    with pytest.raises(PluginError, match="its source files were not found; install it as files"):
        plugin.identity["source"]


def test_a_session_forgets_what_came_inside_and_keeps_what_was_there(site: Path, tmp_path: Path) -> None:
    package(site, "plugged", {"turn": "plugged:Turn"}, "class Turn(Exception):\n    pass\n")
    mine, known = tmp_path / "mine.py", registry()
    mine.write_text(FILE, encoding="utf-8")

    def seen() -> tuple[list[str], list[type], list[Path]]:
        return list(known), known.loaded, plugin_files()

    def of_process() -> tuple[list[str], list[type], list[Path]]:
        return Context().run(seen)

    assert (seen(), of_process()) == ((["turn"], [], []), (["turn"], [], []))  # the fixture's session
    spin = load_plugin(mine)[0].value
    assert (known["spin"], known["turn"].__name__) == (spin, "Turn")
    with plugin_session():  # the same one
        assert seen() == (["spin", "turn"], [spin, known["turn"]], [mine])
    assert copy_context().run(seen) == seen() and of_process() == (["turn"], [], [])

    def user() -> None:
        load_plugin(mine)
        with plugin_session():
            assert seen() == (["spin", "turn"], [], [mine]) and known["spin"] is spin
            mine.with_name("more.py").write_text(FILE.replace('"spin"', '"more"'), encoding="utf-8")
            load_plugin(mine.with_name("more.py"))
            assert len(known) == 3 and known.loaded == [spin]
        assert seen() == (["spin", "turn"], [], [mine])

    process = plugins._PROCESS
    try:
        Context().run(user)
    finally:
        process.files.clear()
        process.loaded.clear()
