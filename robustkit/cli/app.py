"""The command line: words into calls, no logic of its own. Heavy imports happen inside the commands."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import click

from .. import __version__
from ..errors import ProtocolError, RobustkitError, unknown
from ..pipeline.processes import speaker, told
from . import streams
from .completion import checkpoints as known_checkpoints
from .completion import kinds
from .idle import refuse_idle
from .option_types import AT_LEAST_0, AT_LEAST_1, Place, Whole
from .options import (
    DATA_KEYS,
    SCENE_KEYS,
    attack_options,
    browse_option,
    common,
    corruption_options,
    data_options,
    definition_options,
    group,
    labels_of,
    map_options,
    mask_options,
    model_arguments,
    model_options,
    option,
    protocol_option,
    run_options,
    scene_options,
    segmenter_options,
    truth_options,
)
from .terminal import console, run_and_show, run_audit, run_cam, run_segment, show

CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 110, "show_default": True}


@click.group(context_settings=CONTEXT)
@click.version_option(__version__, prog_name="robustkit")
@click.option("--debug", is_flag=True, expose_value=False, help="Show the traceback of an error.")
def cli() -> None:
    """Audit how a vision checkpoint behaves when its input is attacked, and trace every number.

    \b
    robustkit demo                                        embedded checkpoints and data, the whole audit
    robustkit audit model.safetensors --data-dir val      your own
    robustkit inspect model.safetensors                   what is in the file, which attention fits
    robustkit compare runs/vit                            its checkpoints against each other, paired by sample
    robustkit check runs/vit --policy policy.toml         a gate for continuous integration
    robustkit doctor                                      does this machine compute what it should
    """


@cli.command(context_settings=CONTEXT)
@click.argument("checkpoints", nargs=-1, required=True, metavar="CHECKPOINT...", shell_complete=known_checkpoints)
@option("--data-dir", required=True, help="Folder, zip, or embedded:shapes.")
@group(
    [
        model_options,
        data_options,
        attack_options,
        corruption_options,
        map_options,
        protocol_option(),
        browse_option,
        run_options,
        common,
    ]
)
def audit(checkpoints: tuple[str, ...], data_dir: str, **options: Any) -> None:
    """Evaluate checkpoints clean, under attack and corrupted; write records, summary and report.

    CHECKPOINT is a file, zoo:NAME, timm:NAME, hf-hub:ORG/NAME or local-dir:PATH. The same command goes on where an
    interrupted one stopped.

    \b
    robustkit audit vit.safetensors --arch vit_tiny_patch16_224 --data-dir imagenet/val --limit 1000 --out runs/vit
    robustkit audit zoo:shapes-vit-quest --data-dir embedded:shapes --attacks "pgd(steps=50,restarts=3)" --eps 2/255
    robustkit audit vit.safetensors --data-dir imagenet/val --attacks none --corruptions in-c
    robustkit audit vit.safetensors --data-dir imagenet/val --corrupted-dir imagenet-c --corruptions in-c
    robustkit audit vit.safetensors --data-dir imagenet/val --attacks pgd --cams agcam --boxes boxes.csv --stability
    robustkit audit vit.safetensors --data-dir imagenet/val --attacks pgd --corruptions fog --watch-attention
    """
    run_audit(checkpoints, data_dir, options)


@cli.command(context_settings=CONTEXT)
@click.argument("checkpoints", nargs=-1, required=True, metavar="CHECKPOINT...", shell_complete=known_checkpoints)
@option("--data-dir", required=True, help="Folder, zip, or embedded:shapes.")
@group([model_options, data_options, attack_options, protocol_option(), browse_option, run_options, common])
def attack(checkpoints: tuple[str, ...], data_dir: str, **options: Any) -> None:
    """Evaluate clean and under attacks: the attack part of an audit, same options.

    \b
    robustkit attack vit.safetensors --data-dir imagenet/val --attacks fgsm,pgd,autoattack --eps 0.5/255,1/255
    """
    run_audit(checkpoints, data_dir, options)


@cli.command(context_settings=CONTEXT)
@option("--out", type=Place(), default="robustkit-demo", help="Run folder.")
@option("--device", default="auto", help="auto, cpu, cuda or cuda:N.")
@common
def demo(out: Path, device: str) -> None:
    """Audit four embedded classifiers, one for each of four attentions, and two segmenters, on embedded images.

    \b
    robustkit demo
    robustkit demo --out runs/demo --device cpu
    """
    from ..pipeline.audit import audit
    from ..pipeline.segment import segment as segment_scenes
    from .demo import DEMO, SEGMENTERS

    screen = console()
    screen.print(
        "Four small ViTs (standard, QUEST, Elliptical, Elliptical-QUEST attention) on generated shapes: clean, FGSM, "
        "PGD, SPSA, AutoAttack, corruptions, AG-CAM.\n"
    )
    run = run_and_show(audit, **DEMO, out=out, device=device)
    screen.print(
        "\nTwo small Segmenters (standard, QUEST) on the same kind of images: clean, PGD, SegPGD, corruptions.\n"
    )
    scenes = run_and_show(segment_scenes, **SEGMENTERS, out=out / "segmentation", device=device)
    screen.print(
        f"\nThe runs are in {run.path} and {scenes.path}: report.html to read, summary.csv to compute with, records/ "
        "for every sample.\n"
        "Next, your own checkpoint:\n"
        "  robustkit inspect CHECKPOINT --data-dir IMAGES                    which attention formula fits its weights\n"
        "  robustkit audit CHECKPOINT --data-dir IMAGES --limit 200 --out runs/first\n"
        f"  robustkit compare {run.path}        the four on the same images: differences, intervals, tests\n"
        f"  robustkit check {run.path} --init   a policy for CI from these results\n"
        "  robustkit cam zoo:shapes-vit-standard zoo:shapes-vit-quest --data-dir embedded:shapes   a gallery of maps",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )


@cli.command(context_settings=CONTEXT)
@click.argument("checkpoint", shell_complete=known_checkpoints)
@option("--data-dir", help="Images to find out which attention formula fits the weights.")
@option("--stability", is_flag=True, help="Show logits, norms and entropy of the attention on them, layer by layer.")
@option("--batch-size", type=AT_LEAST_1, default=16, help="Samples in a batch.")
@option("--device", default="auto", help="auto, cpu, cuda or cuda:N.")
@option("--seed", type=int, default=0, help="Seed of --limit.")
@group([mask_options, model_options, data_options, common])
def inspect(checkpoint: str, data_dir: str | None, **options: Any) -> None:
    """Say what is in a checkpoint, whether it is safe, and with --data-dir which attention formula fits it.

    \b
    robustkit inspect model.pth
    robustkit inspect model.safetensors --data-dir imagenet/val --limit 200 --stability
    robustkit inspect segmenter.pth --data-dir images --masks labels --classes names.txt --limit 50
    """
    from .inspection import inspect_checkpoint

    if data_dir is None:
        refuse_idle(
            (*DATA_KEYS, *SCENE_KEYS, "limit", "ids"),
            "only for images, and --data-dir is missing; give a folder of them, or leave it out",
        )
    model = model_arguments(options)
    scenes = {"ignore": labels_of(options.pop("ignore")), **{key: options.pop(key) for key in ("masks", "classes")}}
    data = {key: options.pop(key) for key in DATA_KEYS}
    inspect_checkpoint(checkpoint, data_dir, model=model, data=data, scenes=scenes, console=console(), **options)


@cli.command(context_settings=CONTEXT)
@click.argument("images", nargs=-1, metavar="[IMAGE]...")
@option("--write", type=Place(), help="Write a tree of corrupted images into this folder.")
@option("--drift", "drift_from", type=Place(), help="Compare this tree with corrupting here.")
@option("--data-dir", help="Clean images of --write and --drift: folder, zip, or embedded:shapes.")
@option("--out", type=Place(), help="Contact sheet, or the folder of several.")
@option("--corruptions", help="Sets or names; all 19, for --write in-c, for --drift the tree's, if left out.")
@definition_options
@option("--format", "image_format", type=click.Choice(["jpeg", "png"]), help="Files of --write; jpeg if left out.")
@option("--json", "json_file", type=Place(), help="File for the figures of --drift.")
@option(
    "--img-size",
    type=Whole(max=4096),
    help="Side after the crop; 224, or 32 where the images are 32x32, if left out.",
)
@option("--crop-pct", type=float, help="Size over resized size; 0.875, or 1 where the images are 32x32.")
@option("--interpolation", default="bilinear", help="Resize: bilinear (the benchmark's), bicubic, nearest, lanczos.")
@option("--batch-size", type=AT_LEAST_1, default=16, help="Images in a batch.")
@option("--workers", type=AT_LEAST_1, default=2, help="Threads that decode and encode images.")
@option("--device", default="auto", help="auto, cpu, cuda or cuda:N.")
@option("--seed", type=int, default=0, help="Seed of every random draw.")
@group([data_options, common])
def corrupt(images: tuple[str, ...], **options: Any) -> None:
    """Show a picture under the common corruptions, write a corrupted tree, or compare one.

    With IMAGE: a contact sheet of each, every corruption at severities 1 to 5, as <stem>-corruptions.png. With --write:
    the data set as the benchmark was made; the same command goes on where an interrupted one stopped. With --drift: how
    far a released tree is from corrupting the same images here.

    \b
    robustkit corrupt cat.jpg
    robustkit corrupt --write imagenet-c --data-dir imagenet/val --corruptions in-c,in-c-extra --limit 1000
    robustkit corrupt --drift imagenet-c --data-dir imagenet/val --limit 100 --json drift.json
    """
    from .corrupt.command import corrupt

    corrupt(images, **options, console=console(), side=console(stderr=True))


@cli.command(context_settings=CONTEXT)
@click.argument(
    "arguments", nargs=-1, required=True, metavar="CHECKPOINT... [IMAGE]...", shell_complete=known_checkpoints
)
@option("--data-dir", help="Folder, zip, or embedded:shapes; without it, IMAGEs are explained.")
@option("--target", "targets", multiple=True, help="Class of an IMAGE to explain, by name or number; may be repeated.")
@option("--cams", default="agcam,rollout,grad-cam", help="Methods (robustkit list cams); controls come along.")
@option("--gallery", type=AT_LEAST_0, default=12, help="Samples to draw; 0 for none.")
@option(
    "--choose",
    help="Which: disagreement, worst, best, random or class:NAME; disagreement, of one checkpoint worst, if left out.",
)
@option("--show", multiple=True, help="Id of a sample to draw; may be repeated.")
@option("--save-maps", is_flag=True, help="Keep the maps that are drawn: cams/maps.npz, or <stem>-cam.npz of an IMAGE.")
@group([truth_options, model_options, data_options, protocol_option(), browse_option, run_options, common])
def cam(arguments: tuple[str, ...], data_dir: str | None, **options: Any) -> None:
    """Make maps of what checkpoints look at, score them, and show them side by side.

    With --data-dir: a run with scores beside controls that do not look at the image, and a gallery in its folder.
    Without: the maps of your own pictures, as <stem>-cam.png, with the model options, --cams, --target, --out, --device
    and --save-maps.

    \b
    robustkit cam standard.pth quest.pth --data-dir imagenet/val --boxes boxes.csv --limit 500 --out runs/maps
    robustkit cam vit.safetensors photographs/zebra.jpg --target zebra --target tusker
    """
    run_cam(arguments, data_dir, options)


@cli.command(context_settings=CONTEXT)
@click.argument("checkpoints", nargs=-1, required=True, metavar="CHECKPOINT...", shell_complete=known_checkpoints)
@option("--data-dir", required=True, help="Folder or zip of images, ADE20K's folder, or embedded:shapes.")
@group([scene_options, segmenter_options, protocol_option("segmentation"), run_options, common])
def segment(checkpoints: tuple[str, ...], data_dir: str, **options: Any) -> None:
    """Evaluate segmenters clean, under attack and corrupted: mIoU of the data set, with a picture of examples.

    CHECKPOINT is a Segmenter's file, zoo:NAME, hf-hub:ORG/NAME or local-dir:PATH, or any file with --arch
    FILE.py:FUNCTION, which returns a network of normalised images to logits of each pixel. The same command goes on
    where an interrupted one stopped.

    \b
    robustkit segment zoo:shapes-segmenter-standard zoo:shapes-segmenter-quest --data-dir embedded:shapes --limit 100
    robustkit segment seg.pth --data-dir ADEChallengeData2016 --resize ade20k --corruptions segformer-16 --limit 500
    robustkit segment net.pth --arch net.py:make --data-dir images --masks labels --classes names.txt --ignore 255
    """
    run_segment(checkpoints, data_dir, options)


RUN = Place(file_okay=False)


@cli.command(context_settings=CONTEXT)
@click.argument("run", type=RUN)
@option("--log", "logs", multiple=True, help="Also log the results: tensorboard, mlflow or wandb, as tensorboard:DIR.")
@common
def report(run: Path, logs: tuple[str, ...]) -> None:
    """Make summary and report of a run folder anew, from its records, without a model.

    \b
    robustkit report runs/vit
    robustkit report runs/vit --log tensorboard:logs --log mlflow:http://localhost:5000
    """
    from ..report.refresh import refresh
    from ..report.release.loggers import log_run, parse_loggers
    from ..runs.folder import RunFolder
    from .terminal import usable

    existing, wanted = RunFolder.existing(run), parse_loggers(logs)
    with usable(run):
        results = refresh(existing)
        show(existing, results)
    log_run(existing, results, wanted)


@cli.command(context_settings=CONTEXT)
@click.argument("runs", nargs=-1, required=True, type=RUN, metavar="RUN...")
@option("--checkpoint", "checkpoints", multiple=True, help="Only this checkpoint of the runs; may be repeated.")
@option("--against", help="The checkpoint that the others are held against; the first if left out.")
@option("--reference", help="Published figures beside them: quest, or a TOML file.")
@option("--json", "json_file", type=Place(), help="File for the differences as JSON.")
@common
def compare(runs: tuple[Path, ...], **options: Any) -> None:
    """Compare checkpoints on the same samples: paired differences with intervals and tests, from records only.

    Of one run, its checkpoints against the first of them; of several, those of the later runs against those of the
    first of the same name, or, where no name is shared, all against the first.

    \b
    robustkit compare runs/zoo
    robustkit compare runs/release-1 runs/release-2 --json differences.json
    robustkit compare runs/zoo --against cifar10-vit-standard --reference quest
    """
    from .compare import compare_runs
    from .terminal import usable

    with usable(*runs):
        compare_runs(runs, **options, console=console())


@cli.command(context_settings=CONTEXT)
@click.argument("run", type=RUN)
@option("--policy", type=Place(), help="TOML file of rules; written by --init.")
@option("--baseline", type=RUN, help="Run that rules about a drop compare with.")
@option("--junit", type=Place(), help="File for the verdicts as JUnit XML.")
@option("--json", "json_file", type=Place(), help="File for the verdicts as JSON.")
@option("--init", is_flag=True, help="Write a policy that this run passes, with margins, to --policy or policy.toml.")
@common
def check(run: Path, **options: Any) -> None:
    """Hold a run against a policy: exit 0 if every rule passes, 1 if not, 2 for an error, 3 without results.

    \b
    robustkit check runs/vit --init --policy policy.toml
    robustkit check runs/vit --policy policy.toml --junit robustness.xml
    robustkit check runs/vit --policy policy.toml --baseline runs/released
    """
    from .check import check_run
    from .terminal import usable

    with usable(run, *filter(None, [options["baseline"]])):
        check_run(run, **options, console=console())


@cli.command(context_settings=CONTEXT)
@click.argument("run", type=RUN)
@option("--checkpoint", help="Which checkpoint of the run; needed where it has several.")
@option("--out", type=Place(), help="Folder of the files; RUN/card if left out.")
@common
def card(run: Path, **options: Any) -> None:
    """Write what stands beside a released checkpoint: a section and metadata of its model card, a JSON, a badge.

    \b
    robustkit card runs/vit --out release
    """
    from ..report.release.card import write_cards
    from .terminal import usable

    with usable(run):
        paths = write_cards(run, **options)
    for path in paths:
        console().print(str(path), markup=False, highlight=False, soft_wrap=True)


@cli.command("list", context_settings=CONTEXT)
@click.argument("kind", metavar="KIND", shell_complete=kinds)
@common
def list_(kind: str) -> None:
    """List what there is: models, attacks, corruptions, cams, attentions, protocols or datasets.

    \b
    robustkit list models
    robustkit list attacks
    """
    from .listing import LISTINGS, listing

    if kind not in LISTINGS:
        raise ProtocolError(unknown("kind", kind, LISTINGS))
    screen = console()
    for name, text in listing(kind):
        screen.print(f"[bold]{name}[/bold]  {text}", highlight=False, soft_wrap=True)


@cli.command(context_settings=CONTEXT)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]), metavar="SHELL")
@common
def completion(shell: str) -> None:
    """Print what makes a shell complete robustkit's commands, options and names.

    \b
    robustkit completion bash >> ~/.bashrc
    robustkit completion zsh >> ~/.zshrc
    robustkit completion fish > ~/.config/fish/completions/robustkit.fish
    """
    from .completion import completion_script

    click.echo(completion_script(cli, shell))


@cli.command(context_settings=CONTEXT)
@common
def doctor() -> None:
    """Check this machine: versions, device, files, and known answers of everything that makes numbers.

    Each line is a check; one that fails says its remedy, and the exit status is 2. Takes seconds; needs no network.

    \b
    robustkit doctor
    """
    from .doctor.checks import examine

    screen = console()
    findings = examine()
    for finding in findings:
        mark = "[green]ok  [/green]" if finding.fine else "[red]FAIL[/red]"
        screen.print(f"{mark} ", end="")
        screen.print(f"{finding.name}: {finding.text}", markup=False, highlight=False, soft_wrap=True)
    if not all(finding.fine for finding in findings):
        raise RobustkitError("doctor found something to mend; see the lines above")


def _one_line(text: str) -> str:
    """Without characters that steer a terminal or a CI's log, which a file's name may hold; of a readable length."""
    short = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
    return "".join(c if c.isprintable() else " " if c.isspace() else "\ufffd" for c in short)


_LONGEST = 4000
_NO_MEMORY = ("cannot allocate memory", "failed to map segment", "static tls block", "not enough memory")


def _of_machine(fault: Exception) -> str:
    """One line for what is no fault of the words: too little memory, a file or library that cannot be read."""
    said = next(iter(str(fault).splitlines()), "")[:300]
    if isinstance(fault, MemoryError) or any(text in said.lower() for text in _NO_MEMORY):
        return f"too little memory ({said or type(fault).__name__}); end other programs, or raise the limit (ulimit -v)"
    remedy = "install robustkit-audit again" if isinstance(fault, ImportError) else "see --debug"
    return f"{type(fault).__name__}: {said}; {remedy}"


def main() -> None:
    """The console script. Exit status: 0 fine, 1 the gate failed, 2 error, 3 nothing was evaluated, 130 interrupted,
    141 nobody read the output to its end."""
    streams.prepare()
    debug = "--debug" in sys.argv or os.environ.get("ROBUSTKIT_DEBUG", "") not in ("", "0")
    try:
        sys.exit(streams.finish(_status(debug)))
    except OSError as fault:  # of the last words of standard output, as on a full disk
        streams.broken()
        click.echo(f"error: {_one_line(_of_machine(fault))}", err=True)
        sys.exit(2)


def _status(debug: bool) -> int:
    """Do what the words say, and say in one line what went wrong; the exit status."""
    written = sys.stdout
    try:
        status = cli.main(prog_name="robustkit", standalone_mode=False)
    except SystemExit:
        if sys.stdout is written:
            raise
        sys.stdout = written  # click puts a mute stream there when a pipe breaks
        streams.broken()
        status = 0
    except click.ClickException as fault:
        if type(fault).__name__ == "NoArgsIsHelpError":  # click >= 8.2; its message is the help page
            click.echo(fault.format_message())
            return 2
        where = getattr(fault, "ctx", None)
        command = where.command_path if where else "robustkit"
        said = " ".join(fault.format_message().split())
        click.echo(f"error: {said}{'' if said.endswith(('.', '?')) else '.'} See {command} --help.", err=True)
        status = 2
    except RobustkitError as fault:
        if debug:
            raise
        if told(fault):
            click.echo(f"error: {speaker()}{_one_line(str(fault))}", err=True)
        status = fault.exit_code
    except (MemoryError, ImportError, OSError) as fault:
        if debug:
            raise
        click.echo(f"error: {_one_line(_of_machine(fault))}", err=True)
        status = 2
    except (KeyboardInterrupt, click.Abort):
        click.echo("interrupted; the same command goes on where this one stopped", err=True)
        status = 130
    return status if isinstance(status, int) else 0
