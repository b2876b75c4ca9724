"""The commands that read run folders: report, merge, compare, check. They need no model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ...common.plugins import of_slice
from ...pipeline.request import ClassificationRequest
from ..options import (
    AT_LEAST_1,
    GATE,
    GROUPS,
    Command,
    Place,
    SliceCommand,
    TextType,
    common,
    group,
    images_option,
    quiet_option,
    refuse_audit,
    request_options,
    setting,
    skip_bad_option,
)
from ..terminal import compare_runs, console, say_unfinished, show, usable

RUN = Place(file_okay=False)
run_argument = click.argument("run", type=RUN)


@click.command(cls=SliceCommand)
@run_argument
@setting("--metadata", type=Place(), help="CSV of samples and columns of your own, such as camera; kept in the run.")
@request_options(ClassificationRequest, *GROUPS)
@setting("--by", multiple=True, help="Show slices by these columns, such as camera,daylight; may be repeated.")
@setting("--details", is_flag=True, help="Print all tables, not only the short one.")
@setting("--log", "logs", multiple=True, help="Also log the results: tensorboard, mlflow or wandb, as tensorboard:DIR.")
@common
def report(
    run: Path, metadata: Path | None, by: tuple[str, ...], details: bool, logs: tuple[str, ...], **groups: Any
) -> None:
    """Rebuild a run's summary and report from its records; needs no model. Groups are kept in the run; --groups none
    takes them away.

    \b
    robustkit report runs/vit
    robustkit report runs/vit --metadata cameras.csv --by camera --by camera,daylight
    robustkit report runs/vit --details
    robustkit report runs/vit --log tensorboard:logs --log mlflow:http://localhost:5000
    """
    from ...data.metadata import Grouping
    from ...report.refresh import keep_metadata, refresh
    from ...runs.folder import RunFolder

    existing = RunFolder.existing(run)
    log = of_slice("logging_to", f"--log {logs[0]}")(logs) if logs else None
    with usable(run):
        keep_metadata(existing, metadata, Grouping.of(**groups))
        results = refresh(existing, by)
        say_unfinished([existing])
        show(existing, results, details, by)
    if log is not None:
        log(existing, results)


@click.command(cls=SliceCommand)
@click.argument("runs", nargs=-1, required=True, type=RUN, metavar="RUN...")
@setting("--out", type=Place(writes=True), help="Run folder to merge into, existing or new; default: the first RUN.")
@setting("--details", is_flag=True, help="Print all tables, not only the short one.")
@common
def merge(runs: tuple[Path, ...], out: Path | None, details: bool) -> None:
    """Merge the parts computed with --part into one run, with summary and report; needs no model.

    The parts are in one folder, or in several. A unit that is missing, or that two parts have and that differs, is
    refused.

    \b
    robustkit merge runs/vit
    robustkit merge runs/vit-part-* --out runs/vit
    """
    from ...report.refresh import merge as merge_runs

    with usable(*runs):
        run = merge_runs(runs, out)
        show(run, run.summary(), details)


@click.command(cls=SliceCommand)
@click.argument("runs", nargs=-1, required=True, type=RUN, metavar="RUN...")
@setting("--checkpoint", "checkpoints", multiple=True, help="Compare only this checkpoint; may be repeated.")
@setting("--against", help="Baseline checkpoint; default: the first.")
@setting(
    "--method",
    "methods",
    multiple=True,
    help="NAME=CHECKPOINTS, such as quest=quest-s*: compare methods, each of several trainings, with the first.",
)
@setting("--reference", help="Published figures to show as well: quest, quest-ablation, ..., or a TOML or JSON file.")
@setting("--mid-p", is_flag=True, help="Use the mid-p form of McNemar's test: fewer images, its level in practice.")
@setting("--plan", type=float, help="Also say how many images show a difference of so many points.")
@setting("--json", "json_file", type=Place(writes=True), help="Write the differences to this JSON file.")
@request_options(ClassificationRequest, *GROUPS)
@common
def compare(runs: tuple[Path, ...], **options: Any) -> None:
    """Compare checkpoints on the same samples: paired differences with intervals and tests, from records only.

    For one run, its checkpoints against the first of them; for several, those of the later runs against those of the
    first run of the same name, or, where no name is shared, all against the first. With --reference, each checkpoint
    also has its place among the published ones; there a run of one checkpoint will do.

    \b
    robustkit compare runs/zoo
    robustkit compare runs/release-1 runs/release-2 --json differences.json
    robustkit compare runs/zoo --against cifar10-vit-standard --reference quest
    robustkit compare runs/seeds --method "standard=standard-s*" --method "quest=quest-s*"
    """
    from ...runs.folder import RunFolder

    with usable(*runs):
        compare_runs(runs, **options, console=console())
        say_unfinished([RunFolder.existing(path) for path in dict.fromkeys(runs)])


_AUDIT = (
    *(
        "data",
        "ids",
        "metadata",
        *GROUPS,
        "model",
        "protocol",
        "browse",
        "setup_check",
        "evidence",
        "out",
        "batch_size",
        "shard_size",
        "workers",
    ),
    *("device", "dtype", "compile", "seed"),
)
"""What --until-decided computes with; what it computes follows from the policy."""


@click.command(cls=Command)
@click.argument("runs", nargs=-1, required=True, type=TextType(), metavar="RUN | CHECKPOINT...")
@setting("--policy", type=Place(writes=True), help="TOML file of rules; written by --init.")
@setting("--baseline", type=RUN, help="Run to compare with, for rules about a drop.")
@setting("--junit", type=Place(writes=True), help="Write the verdicts to this JUnit XML file.")
@setting("--json", "json_file", type=Place(writes=True), help="Write the verdicts to this JSON file.")
@setting(
    "--attestation",
    type=Place(writes=True),
    help="Write the verdicts to this file as an in-toto Statement, to be signed.",
)
@setting(
    "--predicate",
    type=click.Choice(["test-result", "robustness"]),
    help="With --attestation: test-result (default; the rules by outcome) or robustness (every figure).",
)
@setting(
    "--verify-attestation",
    type=Place(),
    help="Statement to verify a CHECKPOINT against; give CHECKPOINT in place of RUN.",
)
@setting(
    "--lock",
    type=Place(writes=True),
    help="With --data-dir: write what is decided before the run: policy, data, samples, card, seed, groups. With RUN: "
    "say whether it is so.",
)
@setting("--allow-warned", is_flag=True, help="With --verify-attestation: also accept a result of WARNED.")
@setting(
    "--init",
    is_flag=True,
    help="Draft a policy that this run passes, with margins; written to --policy or policy.toml.",
)
@setting(
    "--all", "every", is_flag=True, help="With --init: draft a rule for every figure, not only the most important ones."
)
@setting("--details", is_flag=True, help="Also list the rules that pass.")
@setting("--until-decided", is_flag=True, help="Audit each CHECKPOINT, sample by sample, until all rules are decided.")
@setting("--at-most", type=AT_LEAST_1, help="With --until-decided: samples to evaluate at most; default: all.")
@images_option("With --until-decided: folder, zip, or embedded:shapes.", required=False)
@request_options(ClassificationRequest, *_AUDIT)
@group([quiet_option, skip_bad_option, common])
def check(runs: tuple[str, ...], until_decided: bool, **options: Any) -> None:
    """Check a run against a policy: exit 0 if every rule passes, 1 if not, 2 for an error, 3 without results.

    With --until-decided, checkpoints are audited: samples come in a random order, and only what undecided rules need
    is computed.

    \b
    robustkit check runs/vit --init --policy policy.toml
    robustkit check runs/vit --policy policy.toml --junit robustness.xml
    robustkit check runs/vit --policy policy.toml --baseline runs/released
    robustkit check runs/vit --policy policy.toml --attestation vit.intoto.json
    robustkit check vit.safetensors --verify-attestation vit.intoto.json
    robustkit check vit.safetensors --policy policy.toml --lock lock.json --data-dir imagenet/val
    robustkit check runs/vit --policy policy.toml --lock lock.json
    robustkit check vit.safetensors --policy policy.toml --data-dir imagenet/val --until-decided --at-most 5000
    """
    from ...runs.folder import RunFolder
    from ..check import Gate, check_run

    if until_decided:
        of_slice("until_decided", "--until-decided")(runs, options)
        return
    if options["lock"] is not None and options["data_dir"] is not None:
        of_slice("lock", "--lock")(runs, options)
        return
    refuse_audit(len(runs))
    run, options = Path(runs[0]), {name: value for name, value in options.items() if name in GATE}
    statement, warned = options.pop("verify_attestation"), options.pop("allow_warned")
    if warned or statement is not None:
        of_slice("verify_attestation", "--verify-attestation")(run.as_posix(), statement, warned, options)
        return
    folders = [run, *filter(None, [options["baseline"]])]
    with usable(*folders):
        say_unfinished(map(RunFolder.existing, folders))
        check_run(run, Gate(**options))
