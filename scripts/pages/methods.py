"""Write a page for each attack, set of corruptions, explainer and attention formula, and an index of each kind.

    python -m scripts.pages.methods            write docs/reference/attacks, corruptions, explainers, formulas
    python -m scripts.pages.methods --check    status 1 where a page is another one, is missing, or is of no name

Sentences, parameters, costs and references come from the code; maths, `use` and `avoid` from docs/reference/methods.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from attacks import ThreatModel
from robustkit.report.page import references

from .writing import write_pages

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

DOCS = Path(__file__).parents[2] / "docs" / "reference"
CLASSES = 1000
"""Of the model whose costs are named."""

Notes = Mapping[str, Any]  # maths, use, avoid, and what, example where there are some
Pages = dict[str, str]  # by the name of the file
MADE = "Made by `python -m scripts.pages.methods`.\n"


def notes(kind: str) -> Notes:
    """Return what is written by hand about the methods of a kind, such as `attacks`."""
    return tomllib.loads((DOCS / "methods" / f"{kind}.toml").read_text("utf-8"))


def sentence(documented: Any) -> str:
    """Return the first sentence of a docstring, on one line."""
    text = " ".join((inspect.getdoc(documented) or "").split("\n\n")[0].split())
    return re.split(r"(?<!et al)\. (?=[A-Z])", text)[0].rstrip(".") + "."


def arguments(documented: Any) -> dict[str, str]:
    """Return the meaning of each argument that a docstring explains."""
    part = re.search(r"(?ms)^Args:\n(.*?)(?=^\S|\Z)", inspect.getdoc(documented) or "")
    entries = re.findall(r"(?ms)^    (\w+): (.*?)(?=^    \w|\Z)", part[1] if part else "")
    return {name: " ".join(text.split()) for name, text in entries}


def every_argument(kind: type) -> dict[str, str]:
    """Return those of a class and of what it is made of."""
    return {name: text for part in reversed(kind.__mro__) for name, text in arguments(part).items()}


def example(documented: Any) -> str:
    """Return a docstring's example, which tests run after the first block of its package's page."""
    part = re.search(r"(?ms)^Example:\n(.*?)(?=^\S|\Z)", inspect.getdoc(documented) or "")
    return inspect.cleandoc(part[1]) if part else ""


def papers(*names: str) -> str:
    """Return a list of the papers of references.bib that are for these names."""
    lines = []
    for entry, words in references().items():
        if not set(words).isdisjoint(names):
            values = dict(re.findall(r"(?m)^  (\w+) = \{(.*)\},$", entry))
            plain = {key: re.sub(r"[{}]|\\.", "", value) for key, value in values.items()}
            authors = re.split(r" and ", plain["author"])
            who = authors[0].split(",")[0] + (" et al." if len(authors) > 1 else "")
            place = plain.get("booktitle") or plain.get("journal") or ""
            eprint = plain.get("eprint")
            link = f"[arXiv:{eprint}](https://arxiv.org/abs/{eprint})" if eprint else ""
            about = ", ".join(filter(None, [place, plain["year"], link]))
            lines.append(f"- {who}: {plain['title'].rstrip('.')}. {about}.")
    return "\n".join(lines)


def maths(text: str) -> str:
    """Return text with `$$…$$` and `$…$` as GitHub and the site's hook read them wherever they stand."""
    text = re.sub(r"(?s)\$\$(.*?)\$\$", lambda found: f"```math\n{found[1].strip()}\n```", text.strip())
    parts = re.split(r"(?s)(```math\n.*?\n```)", text)

    def inline(match: re.Match[str]) -> str:
        return f"$`{' '.join(match[1].split())}`$"

    return "".join(part if part.startswith("```") else re.sub(r"\$([^$]+?)\$", inline, part) for part in parts)


def table(rows: Sequence[Sequence[str]]) -> str:
    head, *others = ("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows)
    return "\n".join([head, "|" + "---|" * len(rows[0]), *others])


def shown(value: Any) -> str:
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return "" if value == "" else f"`{value:g}`" if isinstance(value, float) else f"`{value}`"


def used(entry: Notes) -> str:
    """Return the two parts on when to use a method, and when not."""
    return "\n\n".join(
        f"**{title}** {' '.join(entry[key].split())}"
        for key, title in (("use", "When to use it."), ("avoid", "When not."))
    )


def examples(kinds: Sequence[type], page: str) -> str:
    """Return the classes' own examples; page: of their package, whose first block comes before."""
    text = "\n".join(map(example, kinds))
    return f"In Python, after the first block of [{page}](../python/{page}.md):\n\n```pycon\n{text}\n```"


_COMMANDS = {
    "audit": ("standard", "attack zoo:shapes-vit-quest --data-dir embedded:shapes"),
    "segment": ("segmentation", "segment zoo:shapes-segmenter-quest --data-dir embedded:shapes"),
    "features": (
        "features",
        "features zoo:shapes-vit-quest --data-dir embedded:shapes --train embedded:shapes-train --train-limit 60 "
        "--neighbours 5",
    ),
}
"""The card that each command takes, and the beginning of its example."""


def attack(command: str, name: str, kind: type[Any], entry: Notes) -> tuple[str, str, str]:
    """Return what an attack is, what it costs, and its section, under the card of the command."""
    from robustkit.evaluations.attacks.evaluate import parse_condition
    from robustkit.evaluations.family import family_of
    from robustkit.protocol.card import load_card

    card, words = _COMMANDS[command]
    condition = parse_condition(name, load_card(card))
    cost = str(family_of(condition.name).evaluator.cost(condition, load_card(card), CLASSES))
    what = " ".join(entry.get("what", sentence(kind)).rstrip(". \n").split()) + "."
    meanings = {**arguments(ThreatModel), **every_argument(kind), "norm": " or ".join(kind.norms)}
    in_python = inspect.signature(kind).parameters
    rows = [("parameter", f"under card `{card}`", "in Python", "meaning")]
    for key, value in condition.parameters:
        if key in in_python:
            usual = "`1/255`" if key == "eps" else shown(in_python[key].default)
            rows.append((f"`{key}`", shown(value), usual, meanings.get(key, "")))
    run = f'robustkit {words} \\\n    --attacks "{entry["example"]}" --limit 10 --out runs/{name}-{command}'
    basis = f", for a model of {CLASSES} classes" if command == "audit" else ""
    parts = [
        what,
        maths(entry["maths"]),
        used(entry),
        f"**Cost of an image**, forward + backward passes: {cost}, as a run counts them before it starts{basis}.",
        table(rows),
        f"```sh\n{run}\n```",
        examples([kind], "attacks"),
    ]
    return what, cost, "\n\n".join(filter(None, parts))


def attack_pages() -> Pages:
    from attacks.registry import ATTACKS, DENSE_ATTACKS, FEATURE_ATTACKS

    written, rows = notes("attacks"), [("attack", "command", "what it is", "cost")]
    by_command = {"audit": ATTACKS, "segment": DENSE_ATTACKS, "features": FEATURE_ATTACKS}
    check_names("attacks", {command: set(kinds) for command, kinds in by_command.items()}, written)
    sections: dict[str, dict[str, str]] = {}
    for command, kinds in by_command.items():
        for name in kinds:
            what, cost, section = attack(command, name, kinds[name], written[command][name])
            sections.setdefault(name, {})[command] = section
            rows.append((f"[{name}]({name}.md)", f"`{command}`", what, cost))
    pages = {}
    for name, parts in sections.items():
        several = len(parts) > 1
        text = "\n\n".join(f"## robustkit {command}\n\n{part}" if several else part for command, part in parts.items())
        pages[f"{name}.md"] = whole(name, text, papers(name))
    return {"index.md": indexed("Attacks", written, rows)} | pages


def whole(name: str, text: str, sources: str) -> str:
    """Return a page: what is symbols in it is explained in its index."""
    reference = f"\n\n## Reference\n\n{sources}" if sources else ""
    return f"# {name}\n\n{MADE}\n{text}{reference}\n\n[Symbols](index.md#symbols)\n"


def indexed(title: str, written: Notes, rows: Sequence[Sequence[str]]) -> str:
    """Return the first page of a kind: what is written about all, and a table of them."""
    from robustkit.evaluations.maps import CHANNELS

    text = maths(written["index"]).replace("{classes}", str(CLASSES)).replace("{channels}", str(CHANNELS))
    return f"# {title}\n\n{MADE}\n{text.replace('{table}', table(rows))}\n"


def check_names(kind: str, names: Mapping[str, set[str]], written: Notes) -> None:
    """Raise ValueError where a name has no notes, or notes have no name."""
    for part, known in names.items():
        documented = set(written.get(part, ())) - {"index", "categories"}
        if mismatched := known ^ documented:
            raise ValueError(f"docs/reference/methods/{kind}.toml: {part}: {', '.join(sorted(mismatched))}")


def explainer_pages() -> Pages:
    from cam.registry import CONTROLS, METHODS
    from robustkit.evaluations.maps import map_with_logits

    written, rows, pages = notes("explainers"), [("map", "what it is", "cost")], Pages()
    check_names("explainers", {"": {*METHODS, "controls"} - {*CONTROLS}}, {"": written})
    for name in (name for name in METHODS if name not in CONTROLS):
        kind, cost = METHODS[name], str(map_with_logits(name))
        rows.append((f"[{name}]({name}.md)", sentence(kind), cost))
        price = f"**Cost of an image**, forward + backward passes: {cost}."
        pages[f"{name}.md"] = whole(name, explained(name, sentence(kind), [kind], written[name], price), papers(name))
    rows.append(("[controls](controls.md)", "Maps that do not look at the image.", "0 + 0"))
    what = "Three maps that do not look at the image, next to which the score of any other has to be read:\n\n"
    what += "\n".join(f"- `{name}`: {sentence(METHODS[name])}" for name in CONTROLS)
    price = "**Cost of an image**: none. In an audit the class comes from the pass of the clean image."
    kinds = [METHODS[name] for name in CONTROLS]
    pages["controls.md"] = whole("controls", explained("controls", what, kinds, written["controls"], price), "")
    return {"index.md": indexed("Explainers", written, rows)} | pages


def explained(name: str, what: str, kinds: Sequence[type[Any]], entry: Notes, price: str) -> str:
    """Return the body of a page of explainers."""
    from robustkit.evaluations.maps import OPTIONS

    rows = [("parameter", "default", "in `--cams`", "meaning")]
    for kind in kinds:
        meanings = every_argument(kind)
        for key, parameter in inspect.signature(kind).parameters.items():
            if key not in ("model", "others", "target_layer", "target_layers"):
                option = "yes" if key in OPTIONS.get(name, {}) else ""
                rows.append((f"`{key}`", shown(parameter.default), option, meanings.get(key, "")))
    example = entry.get("example", name)
    run = (
        f'robustkit cam zoo:shapes-vit-quest --data-dir embedded:shapes --cams "{example}" \\\n    --faithfulness none'
    )
    parts = [
        what,
        maths(entry["maths"]),
        used(entry),
        price,
        table(rows) if len(rows) > 1 else "There are no parameters.",
        f"```sh\n{run} --limit 4 --out runs/maps-{name}\n```",
        examples(kinds, "cam"),
    ]
    return "\n\n".join(filter(None, parts))


def corruption_pages() -> Pages:
    from corruptions.registry import CATEGORIES
    from robustkit.evaluations.corruptions import SETS

    written, rows, pages = notes("corruptions"), [("set", "what it is", "conditions")], Pages()
    sets = {name: members for name, members in SETS.items() if name not in CATEGORIES}
    every = {name for names in CATEGORIES.values() for name in names}
    check_names("corruptions", {"": {*sets, "single"}, "single": every}, {"": written, "single": written["single"]})
    for name, members in sets.items():
        entry, count = written[name], sum(map(len, members.values()))
        rows.append((f"[{name}]({name}.md)", f"{entry['what']}.", str(count)))
        pages[f"{name}.md"] = whole(name, of_set(name, members, entry, count), papers(*members))
    for name in CATEGORIES:
        if name in SETS:
            what = f"{', '.join(each.replace('_', ' ') for each in SETS[name])}."
            rows.append((f"[{name}](categories.md#{name})", what, str(sum(map(len, SETS[name].values())))))
    categories = "\n\n".join(of_category(name, names, written["single"]) for name, names in CATEGORIES.items())
    pages["categories.md"] = whole("Categories", f"{written['categories']}\n{categories}", papers(*every))
    return {"index.md": indexed("Corruptions", written, rows)} | pages


def of_set(name: str, members: Mapping[str, tuple[int, ...]], entry: Notes, count: int) -> str:
    from corruptions.registry import CATEGORIES
    from robustkit.evaluations.corruptions import QUICK, span

    rows = [("category", "corruptions", "severities")]
    for category, names in CATEGORIES.items():
        for severities in dict.fromkeys(members[each] for each in names if each in members):
            some = [each for each in names if members.get(each) == severities]
            linked = ", ".join(f"[{each.replace('_', ' ')}](categories.md#{each})" for each in some)
            rows.append((category, linked, span(severities).replace("–", " to ")))
    run = "robustkit audit zoo:shapes-vit-quest --data-dir embedded:shapes --attacks none \\\n   "
    one = "" if name in QUICK else f" `{name}(severity=3)` takes one severity."
    options = "--constants cifar " if name.startswith("cifar") else ""
    parts = [
        f"{entry['what']}.",
        table(rows),
        measured(name) if name in QUICK else "",
        used(entry),
        f"**Cost of an image**: {count} forward passes, one for each corruption and severity.{one}",
        f'```sh\n{run} --corruptions "{entry["example"]}" {options}--limit 10 --out runs/{name}\n```',
    ]
    return "\n\n".join(filter(None, parts))


def measured(name: str) -> str:
    """Return what a finding says about a quick set: how far it was from the set that it stands for."""
    from robustkit.evaluations.corruptions.results import tree_doubts

    (note,) = tree_doubts(name, (224, 224), [])
    return f"{note.text} ([study](../../../scripts/studies/quick_corruptions/README.md))."


def constant_names() -> dict[str, str]:
    """Return what the numbers of each corruption's constants are, as the module of constants says."""
    from corruptions import constants

    text = " ".join((constants.__doc__ or "").partition("per severity:")[2].split())
    meanings = re.findall(r"((?:\w+, )*\w+): (.*?)\.(?= (?:\w+, )*\w+:|$)", text)
    return {name: meaning for names, meaning in meanings for name in names.split(", ")}


def of_category(category: str, names: Sequence[str], single: Notes) -> str:
    """Return the section of a category: each corruption with its constants."""
    from corruptions.constants import PRESETS, SEVERITIES
    from corruptions.registry import CORRUPTIONS

    meanings, parts = constant_names(), [f"## {category}"]
    if category == "extra":
        parts.append("The four that are held out for validation; their set is [in-c-extra](in-c-extra.md).")
    parts += {
        "c-bar": ["The ten of [in-c-bar](in-c-bar.md). $L$ is the constant over 10, $S$ the longer side of the image."],
        "cifar-bar": ["The five of [cifar-c-bar](cifar-c-bar.md) that in-c-bar has not, for 32x32 images."],
        "laion": ["The six of [laion-c](laion-c.md), at 224x224 pixels."],
    }.get(category, [])
    for name in names:
        rows = [("severity", *PRESETS)]
        for place, severity in enumerate(SEVERITIES):
            rows.append(
                (
                    str(severity),
                    *(constant(values[name][place]) if name in values else "–" for values in PRESETS.values()),
                )
            )
        paragraphs = [" ".join(part.split()) for part in (inspect.getdoc(CORRUPTIONS[name]) or "").split("\n\n")]
        text = "\n\n".join(
            part for part in paragraphs if not part.startswith(("photographs:", "texture:", "tiles:", "Raises"))
        )
        parts += [f"### {name}", maths(single[name]), text, f"Constants: {meanings[name]}.", table(rows)]
    return "\n\n".join(parts)


def constant(value: Any) -> str:
    return ", ".join(f"{each:g}" for each in value) if isinstance(value, tuple) else f"{value:g}"


FORMULA_CODE = """```python
import torch

import robustkit
from robustkit.attention import get_attention, set_attention

model = robustkit.load("zoo:shapes-vit-standard")
set_attention(model, "{name}")
print(get_attention(model), model(torch.rand(1, 3, 64, 64)).shape)
```"""


def formula_pages() -> Pages:
    from robustkit.attention.registry import FORMULAS

    written, rows, pages = notes("formulas"), [("formula", "logits", "what it is", "parameters added")], Pages()
    check_names("formulas", {"": set(FORMULAS)}, {"": written})
    for name, formula in FORMULAS.items():
        added = parameters_added(name)
        rows.append((f"[{name}]({name}.md)", formula.logits, f"{written[name]['what']}.", spaced(added)))
        pages[f"{name}.md"] = whole(
            name, of_formula(name, formula, written[name], added), papers(name) or formula.source
        )
    return {"index.md": indexed("Attention formulas", written, rows)} | pages


def of_formula(name: str, formula: Any, entry: Notes, added: int) -> str:
    from robustkit.attention.formulas import FAMILIES, value_text

    options = FAMILIES[name][0] if name in FAMILIES else {}
    rows = [("option", "default", "other values")]
    rows += ((f"`{key}`", f"`{value_text(each.usual)}`", each.expected) for key, each in options.items())
    price = (
        "**Cost**: as many forward and backward passes as standard attention, each of them [nearly as fast or "
        f"slower](../../concepts/attention.md#cost). It adds {spaced(added)} parameters to a ViT-Ti/16."
    )
    parts = [
        f"{entry['what']}. Source: {formula.source}.",
        maths(entry["maths"]),
        used(entry),
        price,
        table(rows) if options else "It takes no options.",
        FORMULA_CODE.replace("{name}", name),
    ]
    return "\n\n".join(parts)


def spaced(number: int) -> str:
    return f"{number:,}".replace(",", " ") if number else "no"


@cache
def parameters_added(name: str) -> int:
    """Return how many parameters a formula adds to timm's ViT-Ti/16 of 1000 classes."""
    import timm

    from robustkit.attention import set_attention

    vit = timm.create_model("vit_tiny_patch16_224")
    before = sum(each.numel() for each in vit.parameters())
    set_attention(vit, name)
    return sum(each.numel() for each in vit.parameters()) - before


FOLDERS = {
    "attacks": attack_pages,
    "corruptions": corruption_pages,
    "explainers": explainer_pages,
    "formulas": formula_pages,
}


def main() -> int:
    """Write or check all pages. The exit status."""
    check = "--check" in sys.argv[1:]
    return max([write_pages(DOCS / folder, pages(), check=check) for folder, pages in FOLDERS.items()])


if __name__ == "__main__":
    sys.exit(main())
