"""The pages say what the program does: their commands parse, their links lead somewhere. test_pages.py runs them."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from page_blocks import commands as every_command
from places import DELETED, ROOT

from robustkit.cli import completion as completing
from robustkit.cli.app import cli
from robustkit.slices import listing
from scripts.pages import commands as commands_page

PAGES = sorted([ROOT / "README.md", ROOT / "ARCHITECTURE.md", *(ROOT / "docs").rglob("*.md")])


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def commands(text: str) -> Iterator[list[str]]:
    """The words after `robustkit`, or `-m robustkit`, of every such command in a block of shell."""
    for words in every_command(text):
        if "robustkit" in words[:1]:
            yield words[1:]
        elif "robustkit" in words and words[words.index("robustkit") - 1] == "-m":
            yield words[words.index("robustkit") + 1 :]


def parse(words: list[str]) -> None:
    """As the command line would, without running anything."""
    if words[0].startswith("-"):
        cli.make_context("robustkit", list(words))
        return
    context = click.Context(cli, info_name="robustkit")
    name, command, rest = cli.resolve_command(context, list(words))
    assert command is not None
    command.make_context(name, rest, parent=context)


def pages_of_commands() -> dict[str, str]:
    """The pages by name, without the commands of slices that were deleted."""
    pages = {path.name: path.read_text(encoding="utf-8") for path in commands_page.FOLDER.glob("*.md")}
    for name in pages.keys() - {"index.md", *(f"{each}.md" for each in cli.commands)} if DELETED else ():
        del pages[name]
        pages["index.md"] = re.sub(rf"(?m)^- \[[^\]]*\]\({name}\)[^\n]*\n", "", pages["index.md"])
    return pages


def test_the_pages_of_commands_are_what_the_script_makes() -> None:
    assert pages_of_commands() == commands_page.pages(), "run python -m scripts.pages.commands"


def test_every_command_and_option_is_on_a_page() -> None:
    sections = {name.removesuffix(".md"): page for name, page in pages_of_commands().items()}
    assert sections.keys() == {"index", *cli.commands}
    for name, command in cli.commands.items():
        for parameter in command.params:
            shown = isinstance(parameter, click.Option) and not parameter.hidden
            for word in parameter.opts if shown else []:
                assert f"`{word}`" in sections[name], f"{name} {word}"
            if shown and isinstance(parameter.envvar, str):
                assert f"`{parameter.envvar}`" in sections[name], parameter.envvar


@pytest.mark.parametrize("name", cli.commands)
def test_every_command_has_examples_that_parse(name: str) -> None:
    examples = (cli.commands[name].help or "").partition("\b\n")[2]
    found = list(commands(re.sub(r"(?m)   +.*$", "", examples.strip())))
    assert found and all(words[0] == name for words in found)
    for words in found:
        parse(words)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_of_a_page_parse(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("ROBUSTKIT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr("robustkit.common.plugins.load_plugin", lambda path: [])  # the pages' files are not there
    for block in blocks(page, "sh"):
        for words in (each for each in commands(block) if each[:1] not in [[name] for name in DELETED]):
            try:
                parse(words)
            except click.exceptions.Exit:  # --help, --version
                pass
            except click.ClickException as fault:
                pytest.fail(f"{page.name}: robustkit {shlex.join(words)}: {fault.format_message()}")


def test_a_command_that_does_not_parse_is_found() -> None:
    (good, bad) = commands("VAR=1\nrobustkit list cams && robustkit audit x \\\n  --atacks pgd  # a comment\n")
    parse(good)
    with pytest.raises(click.NoSuchOption):
        parse(bad)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_of_a_page_lead_somewhere(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    for link in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`\n]*`", "", text)):
        if not re.match(r"[a-z]+:", link):
            path, _, anchor = link.partition("#")
            target = (page.parent / path).resolve() if path else page
            assert target.exists(), f"{page.name}: {link}"
            assert not anchor or anchor in anchors(target), f"{page.name}: {link}"


def anchors(page: Path) -> set[str]:
    """As GitHub makes them of headings."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


class TestCompletion:
    """Words are completed without loading torch."""

    @staticmethod
    def complete(command: str, option: str, incomplete: str) -> list[str]:
        context = click.Context(click.Command(command), info_name=command)
        completer = completing.COMPLETERS[option] if option.startswith("--") else getattr(completing, option)
        found = completer(context, click.Option(["--x"]), incomplete)
        return [item.value if item.type == "plain" else f"<{item.type}>" for item in found]

    @pytest.mark.parametrize(
        ("command", "option", "incomplete", "expected"),
        [
            ("audit", "checkpoints", "zoo:shapes-vit-que", ["zoo:shapes-vit-quest"]),
            ("segment", "checkpoints", "zoo:shapes-segmenter-q", ["zoo:shapes-segmenter-quest"]),
            ("audit", "checkpoints", "", ["<file>"]),
            ("audit", "checkpoints", "runs/m", ["<file>"]),
            ("audit", "--attacks", "fgsm,a", ["fgsm,apgd", "fgsm,autoattack"]),
            ("audit", "--attacks", "fgsm,fg", []),
            ("audit", "--attacks", "pgd(steps=3,", []),
            ("audit", "--attacks", "pgd(steps=3),sq", ["pgd(steps=3),square"]),
            ("segment", "--attacks", "seg", ["segpgd"]),
            ("audit", "--corruptions", "fo", ["fog"]),
            ("audit", "--cams", "ag", ["agcam", "agcam-full"]),
            ("audit", "--cams", "cen", []),
            ("audit", "--protocol", "", ["agcam-paper", "elliptical-images", "quest-paper", "standard"]),
            ("segment", "--protocol", "", ["segmentation"]),
            ("audit", "--protocol", "cards/m", ["<file>"]),
            ("segment", "--data-dir", "emb", ["embedded:shapes", "embedded:shapes-train"]),
            ("audit", "--layout", "imagenet-r", ["imagenet-r", "imagenet-real"]),
            ("segment", "--layout", "a", ["ade20k"]),
            ("audit", "--engine", "py", ["pyautoattack"]),
            ("audit", "--preset", "qu", ["quick", "quest"]),
            ("segment", "--preset", "qu", ["quick"]),
        ],
    )
    def test_words(self, command: str, option: str, incomplete: str, expected: list[str]) -> None:
        assert self.complete(command, option, incomplete) == expected

    def test_names_that_are_written_twice_are_the_same(self) -> None:
        from robustkit.attention.registry import FORMULAS
        from robustkit.data.dataset import EMBEDDED
        from robustkit.data.scenes import LAYOUTS

        assert self.complete("audit", "--attention", "") == list(FORMULAS)
        assert sorted(self.complete("segment", "--layout", "")) == sorted(LAYOUTS)
        assert set(self.complete("audit", "--data-dir", "e")) == set(EMBEDDED)

    def test_every_completed_option_exists(self) -> None:
        options = {word for command in cli.commands.values() for parameter in command.params for word in parameter.opts}
        assert completing.COMPLETERS.keys() <= options

    @pytest.mark.parametrize("shell", completing.SHELLS)
    def test_scripts(self, shell: str) -> None:
        script = completing.completion_script(cli, shell)
        assert "_ROBUSTKIT_COMPLETE" in script and "robustkit" in script
        assert ("COMP_WORDBREAKS" in script) == (shell == "bash")

    def test_an_unknown_shell(self) -> None:
        with pytest.raises(completing.ProtocolError, match="unknown shell 'bsh'; did you mean 'bash'"):
            completing.completion_script(cli, "bsh")

    def test_no_torch(self) -> None:
        script = (
            "import sys, click; from robustkit.cli import completion as c; import robustkit.cli.app\n"
            "x = click.Context(click.Command('audit'), info_name='audit')\n"
            "[one(x, None, 'q') for one in [c.checkpoints, *c.COMPLETERS.values()]]\n"
            "assert not {'torch', 'timm', 'pyarrow'} & sys.modules.keys()"
        )
        subprocess.run([sys.executable, "-c", script], check=True, cwd=ROOT)


def test_what_is_listed_is_one_whole_sentence() -> None:
    said = {entry["name"]: entry["what it is"] for entry in listing.listing("cams")}
    assert said["gradient"].startswith("Gradient times input (Shrikumar et al. 2016")
    for kind in ("attacks", "corruptions", "cams", "attentions", "protocols", "datasets"):
        for entry in listing.listing(kind):
            text = str(entry.get("what it is", entry.get("logits")))
            assert entry["name"] and text and "\n" not in text and text.count("(") == text.count(")"), (kind, entry)


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("robustkit list att", "plain,attacks\nplain,attentions\n"),
        ("robustkit audit zoo:shapes-vit-que", "plain,zoo:shapes-vit-quest\n"),
    ],
)
def test_a_shell_that_asks_is_answered(words: str, found: str) -> None:
    asked = {"_ROBUSTKIT_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": "2"}
    done = subprocess.run([sys.executable, "-m", "robustkit"], env=os.environ | asked, capture_output=True, text=True)
    assert done.stdout == found
