"""The page of the toy experiment: what was asked, the published next to ours, figures, and what the choices change."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from scripts.pages.writing import markdown, whole_percent, write_page

from .choices import Choice, section
from .results import CHANCE, OUTCOMES, PUBLISHED, RESAMPLES, Results
from .run import PROBE, SAME_AS, TOKENS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STYLE = {"svg.hashsalt": "robustkit", "svg.fonttype": "none", "font.size": 9, "axes.titlesize": 9.5}
LOOKS = {"biased": ("#f25100", "-"), "unbiased": ("#0072b2", "--"), "other": ("#5b6b68", ":")}
"""Colour and line of each kind of token."""
BINS = np.linspace(0, 1, 21)


def _drawn(path: Path, size: tuple[float, float], paint: Callable[[Figure], None]) -> Path:
    """Draw a figure on white as SVG, whose bytes depend only on what is drawn."""
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure as Canvas

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        settings: Any = matplotlib.rcParams
        settings.update(STYLE)
        figure = Canvas(figsize=size, layout="constrained")
        FigureCanvasSVG(figure)
        paint(figure)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, format="svg", metadata={"Date": None})
    return path


def heat_maps(results: Results, path: Path) -> Path:
    """Draw, for each formula, the share of correct models in every cell of rates and decays (Figures 3 and A1)."""
    grid = results.plan.grid

    def paint(figure: Figure) -> None:
        columns = min(3, len(grid.formulas))
        rows = -(-len(grid.formulas) // columns)
        panels = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
        for axes in panels.flat[len(grid.formulas) :]:
            axes.set_visible(False)
        for axes, formula in zip(panels.flat, grid.formulas, strict=False):
            shares = results.map(formula)
            mesh = axes.pcolormesh(shares, cmap="viridis", vmin=0, vmax=1, edgecolors="white", linewidth=0.5)
            for (row, column), share in np.ndenumerate(shares):
                colour = "black" if share > 0.6 else "white"
                axes.text(column + 0.5, row + 0.5, f"{100 * share:.0f}", ha="center", va="center", color=colour)
            axes.set_xticks(np.arange(len(grid.rates)) + 0.5, [f"{rate:g}" for rate in grid.rates], rotation=45)
            axes.set_yticks(np.arange(len(grid.decays)) + 0.5, [f"{decay:g}" for decay in grid.decays])
            axes.tick_params(length=0)
            axes.set_title(f"{formula}: {100 * results.success(formula)[0]:.0f} %", loc="left")
        for axes in panels[:, 0]:
            axes.set_ylabel("weight decay")
        for axes in panels.flat[max(0, len(grid.formulas) - columns) : len(grid.formulas)]:  # with none below it
            axes.set_xlabel("learning rate")
            axes.tick_params(labelbottom=True)
        bar = figure.colorbar(mesh, ax=panels.ravel().tolist(), shrink=0.6, ticks=[0, 0.5, 1])
        bar.ax.set_yticklabels(["0 %", "50 %", "100 %"])
        bar.set_label("correct models")

    return _drawn(path, (8.4, 0.9 + 2.4 * -(-len(grid.formulas) // 3)), paint)


def key_norms(results: Results, formulas: Sequence[str], path: Path) -> Path:
    """Draw medians and quartiles of the mean key norms of models that look for b, and of correct ones (4, A4, A5)."""
    groups = [group for group in ("shortcut", "correct") if any((f, group) in results.curves for f in formulas)]

    def paint(figure: Figure) -> None:
        panels = figure.subplots(len(groups), len(formulas), squeeze=False, sharex=True, sharey=False)
        for row, group in zip(panels, groups, strict=True):
            for axes, formula in zip(row, formulas, strict=True):
                _norm_panel(axes, results, formula, group)
            row[0].set_ylabel("norm of keys")
        for axes in panels[-1]:
            axes.set_xlabel("epoch")
        handles = [panels[0, 0].plot([], [], color=c, linestyle=line, linewidth=1.6)[0] for c, line in LOOKS.values()]
        names = ["biased answer", "unbiased answer", "other tokens"]
        figure.legend(handles, names, loc="outside upper left", ncols=3, frameon=False)

    return _drawn(path, (8.4, 0.7 + 2.3 * len(groups)), paint)


def _norm_panel(axes: Any, results: Results, formula: str, group: str) -> None:
    title = "look for b" if group == "shortcut" else "correct"
    axes.set_title(f"{formula}, {title}: {results.group(formula, group).sum()} models", loc="left")
    curve = results.curves.get((formula, group))
    if curve is None:
        axes.text(0.5, 0.5, "none", transform=axes.transAxes, ha="center")
        return
    epochs = np.arange(curve.shape[1])
    for kind, (colour, line) in LOOKS.items():
        low, median, high = curve[:, :, TOKENS.index(kind)]
        axes.fill_between(epochs, low, high, color=colour, alpha=0.18, linewidth=0)
        axes.plot(epochs, median, color=colour, linestyle=line, linewidth=1.6)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.25)


def histograms(results: Results, column: str, title: str, path: Path) -> Path:
    """Draw how many models of each formula end with which accuracy (Figures A2 and A3)."""
    formulas = results.plan.grid.formulas

    def paint(figure: Figure) -> None:
        columns = min(3, len(formulas))
        rows = -(-len(formulas) // columns)
        panels = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
        for axes in panels.flat[len(formulas) :]:
            axes.set_visible(False)
        for axes, formula in zip(panels.flat, formulas, strict=False):
            axes.hist(results.columns[column][results.of(formula)], bins=BINS, color="#0072b2")
            axes.set_title(formula, loc="left")
            axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", "25", "50", "75", "100"])
            axes.grid(alpha=0.25)
        for axes in panels[:, 0]:
            axes.set_ylabel("models")
        for axes in panels.flat[max(0, len(formulas) - columns) : len(formulas)]:
            axes.set_xlabel(title)
            axes.tick_params(labelbottom=True)

    return _drawn(path, (8.4, 0.5 + 1.9 * -(-len(formulas) // 3)), paint)


CURVES = ("standard", "qnorm", "quest")
STARTS = {
    "torch": "matrices as `nn.Linear` draws them, CLS token and positions N(0, 1)",
    "mixed": "matrices as `nn.Linear` draws them, CLS token and positions N(0, 0.02²)",
    "timm": "matrices, CLS token and positions N(0, 0.02²), biases 0",
}


def _rates(results: Results) -> str:
    rows = []
    for formula in results.plan.grid.formulas:
        share, low, high = results.success(formula)
        models = results.of(formula)
        counts = [int((results.outcomes()[models] == outcome).sum()) for outcome in OUTCOMES]
        published = f"{PUBLISHED[formula]}" if PUBLISHED[formula] else "about 0"
        ours = f"{100 * share:.1f} [{100 * low:.1f}, {100 * high:.1f}]"
        shortcut = int(results.group(formula, "shortcut").sum())
        guesses = int((results.columns["test"][models] <= CHANCE).sum())
        rows.append((formula, published, ours, *map(str, (*counts, shortcut, guesses))))
    heading = ("attention", "published %", "ours % [95 %]", *OUTCOMES, "look for b", "test at chance")
    return markdown([heading, *rows])


def _accuracies(results: Results) -> str:
    names = ("train_biased", "train_unbiased", "test", "test_uniform", "test_alike")
    rows = []
    for formula in results.plan.grid.formulas:
        for group in ("correct", "shortcut"):
            members = results.group(formula, group)
            means = [results.columns[name][members].mean() if members.any() else np.nan for name in names]
            title = "look for b" if group == "shortcut" else group
            rows.append((formula, title, str(members.sum()), *map(whole_percent, means)))
    heading = (
        "attention",
        "models",
        "n",
        "train, biased",
        "train, unbiased",
        "test",
        "uniform places",
        "as in training",
    )
    return markdown([heading, *rows])


def _sentences(results: Results) -> Iterator[str]:
    """Yield computed sentences about order and width."""
    formulas = results.plan.grid.formulas
    shares = {formula: results.success(formula)[0] for formula in formulas}
    ranked = sorted(formulas, key=lambda formula: -shares[formula])
    yield "Order here: " + ", ".join(f"{formula} {100 * shares[formula]:.0f} %" for formula in ranked) + "."
    named = [formula for formula in ("quest", "qnorm", "standard") if formula in shares]
    for first, second in combinations(named, 2):
        share, low, high = (100 * number for number in results.ahead(first, second))
        verdict = "this shows" if low > 0 else "the opposite shows" if high < 0 else "cannot tell"
        gap = PUBLISHED[first] - PUBLISHED[second]
        yield f"{first} minus {second}: {share:+.1f} [{low:+.1f}, {high:+.1f}] points, published {gap:+d}: {verdict}."
    normed = [formula for formula in formulas if not PUBLISHED[formula]]
    if normed:
        most = max(normed, key=lambda formula: shares[formula])
        shows = "shows" if shares[most] < 0.05 else "does not show"
        yield f"That the QKNorm forms fail {shows}: at most {100 * shares[most]:.0f} % ({most})."
    for formula in named:
        cells = results.map(formula)
        half = int((cells >= 0.5).sum())
        yield f"{formula}: half of the models or more are correct in {half} of the {cells.size} cells of the grid."


def _norm_words(results: Results) -> Iterator[str]:
    for formula in CURVES:
        for group in ("shortcut", "correct"):
            curve = results.curves.get((formula, group))
            if curve is not None:
                at = {kind: curve[1, -1, TOKENS.index(kind)] for kind in TOKENS}
                models = "models that look for b" if group == "shortcut" else "correct models"
                yield (
                    f"{formula}, {models}: biased answers {at['biased']:.1f}, unbiased {at['unbiased']:.1f}, "
                    f"others {at['other']:.1f}"
                )


def _paragraphs(text: str) -> str:
    """Return prose and lists in lines of up to 120 characters; tables, images and headings as they are."""
    lines = []
    for block in text.split("\n"):
        if block.startswith(("|", "!", "#", "Made by")):
            lines.append(block)
        else:
            indent = "  " if block.startswith("- ") else ""
            lines += textwrap.wrap(block, 120, subsequent_indent=indent, break_on_hyphens=False) or [""]
    return "\n".join(lines)


def _bullets(sentences: Iterable[str]) -> str:
    return "\n".join(f"- {sentence}" for sentence in sentences)


def _number(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _opening(results: Results, command: str) -> str:
    setting, grid = results.plan.setting, results.plan.grid
    shape = setting.shape
    coinciding = ", ".join(f"{name} is {same}" for name, same in SAME_AS.items())
    return f"""# The toy retrieval task of QUEST

Made by `{command}`; do not edit.

QUEST (§2.2, A.3, A.4) asks whether attention gets stuck on a spurious pattern. A sequence holds one vector that is \
unlike the others, and the class written next to it is the answer. In half of the training samples that vector is also \
close to one fixed vector b, which is easier to look for, and gives the answer in these samples only. A Transformer \
of one layer and one head is trained with {_number(len(grid.rates), "learning rate")}, \
{_number(len(grid.decays), "weight decay")}, {_number(grid.data, "realisation")} of the data and \
{_number(grid.seeds, "start")} of the weights for each formula: {len(results)} models here, in \
{results.seconds / 60:.0f} minutes of one processor.

- Model: Algorithm A2 in the {shape.reading} reading, width 20, MLP of 20 with GELU\
{", bias in queries, keys and values" if shape.bias else ", no bias in queries, keys and values"}\
{", LayerNorm before the classifier" if shape.final_norm else ""}; {STARTS[shape.start]}.
- Training: {setting.samples} samples of {shape.length} vectors, {setting.epochs} epochs in batches of \
{setting.batch}, AdamW on all parameters at a constant rate. Answers lie at Int(N(10, 2)).
- Test: {setting.tested} new samples of the same realisation, none of them with b, answers placed as in training. The \
paper does not say; a model that looks for b falls to the 20 to 40 % that it gives only if most test samples lack b.
- With one head and one layer three of the nine formulas are the same as others, and not trained again: {coinciding}.
"""


def _rate_section(results: Results) -> str:
    grid = results.plan.grid
    shares = ", ".join(f"{formula} {100 * results.success(formula)[0]:.0f} %" for formula in grid.formulas)
    return f"""## Success rates

Classes of the paper: *correct*, training and test accuracy above 90 %; *biased*, training 50 to 80 % and test 20 to \
40 %; *degenerate*, both at chance (up to {100 * CHANCE:.0f} %). What fits no class is *none of these*. *Look for b* \
is a class of ours that cuts across: above 90 % on new samples with b, below 50 % on those without; so is *test at \
chance*, which counts what the paper's degenerate class leaves out where a model knows its training samples by heart.

{_rates(results)}

Intervals are from {RESAMPLES} resamples of realisations and starts, since models of the same pair share both; they do \
not cover the choice of rates and decays, nor what the paper leaves open.

{_bullets(_sentences(results))}

![Share of correct models by learning rate and weight decay, a panel for each formula; {shares}](success.svg)

Compare the paper's Figures 3 and A1.
"""


def _norm_section(results: Results) -> str:
    said = list(_norm_words(results))
    if not said:
        return "## Norms of keys\n\nNo model of these formulas is correct or looks for b.\n"
    return f"""## Norms of keys

![Median norm of keys by epoch, shaded from quartile to quartile: {"; ".join(said)}](key-norms.svg)

Compare the paper's Figures 4, A4 and A5: mean norm of keys as projected, before any normalisation, at the answers of \
biased and of unbiased samples, and at all other tokens but CLS, of {PROBE} training samples. Lines are medians over \
models, shades reach from quartile to quartile. Medians after the last epoch:

{_bullets(f"{sentence}." for sentence in said)}
"""


def _accuracy_section(results: Results) -> str:
    return f"""## Accuracies

![Histograms of training accuracy, a panel for each formula](train.svg)

![Histograms of test accuracy, a panel for each formula](test.svg)

Compare the paper's Figures A2 and A3. Mean accuracies in percent, by what a model came to. *Uniform places*: test \
samples whose answer may lie anywhere. *As in training*: half of the test samples with b.

{_accuracies(results)}
"""


def _closing(results: Results) -> str:
    grid = results.plan.grid
    return f"""## What this is worth

- The models are ours: the sequence length, the number of samples, the start of the weights and the test set are not \
in the paper, and rates move with each of them. What holds here may not hold in the authors' setting, and the reverse.
- {_number(grid.data, "realisation")} and {_number(grid.seeds, "start")}; the intervals tell how far others may lie.
- `results.csv.gz` has every model; `--from-results` makes this page from it.
"""


def write(results: Results, choices: list[Choice], folder: Path, command: str) -> Path:
    """Write README.md and its figures to a folder."""
    shown = [formula for formula in CURVES if formula in results.plan.grid.formulas]
    heat_maps(results, folder / "success.svg")
    if any(True for _ in _norm_words(results)):
        key_norms(results, shown, folder / "key-norms.svg")
    histograms(results, "train", "training accuracy, %", folder / "train.svg")
    histograms(results, "test", "test accuracy, %", folder / "test.svg")
    sections = [_opening(results, command), _rate_section(results), _norm_section(results), _accuracy_section(results)]
    sections += [section(choices)] if choices else []
    path = folder / "README.md"
    write_page(path, _paragraphs("\n".join([*sections, _closing(results)])))
    return path
