"""The command line: words into calls, no logic of its own. Heavy imports happen inside the commands."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from . import __version__
from .errors import DataError, ProtocolError, RobustkitError, unknown

F = TypeVar("F", bound=Callable[..., Any])
CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 110, "show_default": True}


def _option(*names: str, **settings: Any) -> Callable[[F], F]:
    """A click option that can also come from ROBUSTKIT_<NAME>."""
    long = next(name for name in names if name.startswith("--")).lstrip("-")
    return click.option(*names, envvar=f"ROBUSTKIT_{long.upper().replace('-', '_')}", show_envvar=False, **settings)


def _use_config(context: click.Context, _: click.Parameter, path: str | None) -> None:
    """Make the entries of a TOML file the defaults of the options: top level, then the command's own table."""
    if path is None:
        return
    from .toml import parse_toml

    try:
        text = Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError as fault:
        raise ProtocolError(f"--config {path}: {fault.strerror}; give a TOML file of options") from None
    table = parse_toml(text, path, ProtocolError)
    own = table.pop(str(context.info_name), {})
    entries = {k: v for k, v in table.items() if not isinstance(v, dict)} | (own if isinstance(own, dict) else {})
    known = {parameter.name for parameter in context.command.params}
    for key in entries:
        if key.replace("-", "_") not in known:
            options = (str(name).replace("_", "-") for name in known)
            raise ProtocolError(f"--config {path}: " + unknown("option", key, options))
    context.default_map = {key.replace("-", "_"): value for key, value in entries.items()}


def _group(options: list[Callable[[Any], Any]]) -> Callable[[F], F]:
    def decorate(function: F) -> F:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


common = _group(
    [
        click.option("--config", is_eager=True, expose_value=False, callback=_use_config, help="TOML file of options."),
        click.option("--debug", is_flag=True, expose_value=False, help="Show the traceback of an error."),
    ]
)
model_options = _group(
    [
        _option("--arch", help="timm name, package.module:function or file.py:function; guessed for ViT and DeiT."),
        _option("--attention", help="Attention formula (robustkit list attentions); from the metadata if left out."),
        _option("--num-classes", type=int, help="Number of classes of the head."),
        _option("--mean", help="Channel means in [0, 1], one or three, separated by spaces or commas."),
        _option("--std", help="Channel standard deviations, likewise."),
        _option("--interpolation", help="bicubic, bilinear, nearest or lanczos."),
        _option("--crop-pct", type=float, help="Image size over resized size, as in timm."),
        _option("--crop-mode", help="center, squash or border."),
        _option("--img-size", type=int, help="Size of the input; positional embeddings are resampled to it."),
        _option("--use-ema", is_flag=True, help="Take the EMA weights where the file has them."),
        _option("--allow-partial", is_flag=True, help="Go on with missing or unexpected tensors."),
    ]
)
data_options = _group(
    [
        _option("--layout", help="How to read the folder; recognised if left out (robustkit list datasets)."),
        _option(
            "--labels",
            "labels_csv",
            type=click.Path(path_type=Path),
            help="CSV of file names and labels of a flat folder.",
        ),
        _option("--real-labels", type=click.Path(path_type=Path), help="ImageNet ReaL's JSON of valid labels."),
        _option("--limit", type=int, help="At most N samples: class-balanced, a function of the seed."),
        _option("--ids", type=click.Path(path_type=Path), help="File with the exact sample ids, one a line."),
    ]
)
run_options = _group(
    [
        _option("--attacks", default="fgsm,pgd", help="Names or conditions: fgsm,pgd(steps=30,restarts=3),spsa."),
        _option("--protocol", default="standard", help="Protocol card: a name or a TOML file."),
        _option("--eps", help="Radius, such as 1/255; several with commas; the card's if left out."),
        _option("--norm", type=click.Choice(["linf", "l2"]), help="Norm; the card's if left out."),
        _option("--out", type=click.Path(path_type=Path), help="Run folder; runs/<checkpoint> if left out."),
        _option("--batch-size", type=int, default=64, help="Samples in a batch."),
        _option("--shard-size", type=int, help="Samples in a unit of work; 128, or the batch size if larger."),
        _option("--workers", type=int, default=2, help="Threads that decode images."),
        _option("--device", default="auto", help="auto, cpu, cuda or cuda:N."),
        _option("--dtype", default="float32", help="float32, bfloat16 or float16; attacks are scored in float32."),
        _option("--compile", is_flag=True, help="torch.compile the model."),
        _option("--seed", type=int, default=0, help="Seed of every random draw."),
        _option("--skip-bad", is_flag=True, help="Exit 0 although some images could not be read."),
    ]
)
MODEL_KEYS = (
    *("arch", "attention", "num_classes", "mean", "std", "interpolation", "crop_pct", "crop_mode", "img_size"),
    *("use_ema", "allow_partial"),
)
DATA_KEYS = ("layout", "labels_csv", "real_labels")


def _triple(text: str | None, name: str) -> tuple[float, ...] | None:
    if text is None:
        return None
    try:
        values = tuple(float(part) for part in text.replace(",", " ").split())
    except ValueError:
        values = ()
    if len(values) not in (1, 3):
        raise ProtocolError(f"--{name} {text!r}: expected one or three numbers, such as '0.485 0.456 0.406'")
    return values * 3 if len(values) == 1 else values


def _model_arguments(options: dict[str, Any]) -> dict[str, Any]:
    chosen = {key: options.pop(key) for key in MODEL_KEYS}
    chosen["mean"], chosen["std"] = _triple(chosen["mean"], "mean"), _triple(chosen["std"], "std")
    return {key: value for key, value in chosen.items() if value is not None}


@click.group(context_settings=CONTEXT)
@click.version_option(__version__, prog_name="robustkit")
@click.option("--debug", is_flag=True, expose_value=False, help="Show the traceback of an error.")
def cli() -> None:
    """Audit how a vision checkpoint behaves when its input is attacked, and trace every number.

    \b
    robustkit demo                                        embedded checkpoints and data, the whole audit
    robustkit audit model.safetensors --data-dir val      your own
    robustkit inspect model.safetensors                   what is in the file, which attention fits
    """


@cli.command(context_settings=CONTEXT)
@click.argument("checkpoints", nargs=-1, required=True, metavar="CHECKPOINT...")
@_option("--data-dir", required=True, help="Folder, zip, or embedded:shapes.")
@_group([model_options, data_options, run_options, common])
def audit(checkpoints: tuple[str, ...], data_dir: str, **options: Any) -> None:
    """Evaluate checkpoints clean and under attack; write records, summary and report.

    CHECKPOINT is a file, zoo:NAME, timm:NAME, hf-hub:ORG/NAME or local-dir:PATH. The same command goes on where an
    interrupted one stopped.

    \b
    robustkit audit vit.safetensors --arch vit_tiny_patch16_224 --data-dir imagenet/val --limit 1000 --out runs/vit
    robustkit audit zoo:shapes-vit-quest --data-dir embedded:shapes --attacks "pgd(steps=50,restarts=3)" --eps 2/255
    """
    _audit(checkpoints, data_dir, options)


@cli.command(context_settings=CONTEXT)
@click.argument("checkpoints", nargs=-1, required=True, metavar="CHECKPOINT...")
@_option("--data-dir", required=True, help="Folder, zip, or embedded:shapes.")
@_group([model_options, data_options, run_options, common])
def attack(checkpoints: tuple[str, ...], data_dir: str, **options: Any) -> None:
    """Evaluate under attacks only: the attack part of an audit, same options.

    \b
    robustkit attack vit.safetensors --data-dir imagenet/val --attacks fgsm,pgd,spsa --eps 0.5/255,1/255
    """
    _audit(checkpoints, data_dir, options)


@cli.command(context_settings=CONTEXT)
@_option("--out", type=click.Path(path_type=Path), default="robustkit-demo", help="Run folder.")
@_option("--device", default="auto", help="auto, cpu, cuda or cuda:N.")
@common
def demo(out: Path, device: str) -> None:
    """Audit the embedded checkpoints (standard and QUEST attention) on the embedded images, in about a minute."""
    from .demo import DEMO

    console = _console()
    console.print("Two small ViTs, standard and QUEST attention, on generated shapes: clean, FGSM, PGD, SPSA.\n")
    run = _run_and_show(**DEMO, out=out, device=device)
    console.print(
        f"\nThe run is in {run.path}: report.html to read, summary.csv to compute with, records/ for every sample.\n"
        "Next, your own checkpoint:\n"
        "  robustkit inspect CHECKPOINT --data-dir IMAGES                    which attention formula fits its weights\n"
        "  robustkit audit CHECKPOINT --data-dir IMAGES --limit 200 --out runs/first",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )


@cli.command(context_settings=CONTEXT)
@click.argument("checkpoint")
@_option("--data-dir", help="Images to find out which attention formula fits the weights.")
@_option("--batch-size", type=int, default=64, help="Samples in a batch.")
@_option("--device", default="auto", help="auto, cpu, cuda or cuda:N.")
@_option("--seed", type=int, default=0, help="Seed of --limit.")
@_group([model_options, data_options, common])
def inspect(checkpoint: str, data_dir: str | None, **options: Any) -> None:
    """Say what is in a checkpoint, whether it is safe, and with --data-dir which attention formula fits it.

    \b
    robustkit inspect model.pth
    robustkit inspect model.safetensors --data-dir imagenet/val --limit 200
    """
    from .inspection import inspect_checkpoint

    model = _model_arguments(options)
    data = {key: options.pop(key) for key in DATA_KEYS}
    inspect_checkpoint(checkpoint, data_dir, model=model, data=data, console=_console(), **options)


@cli.command(context_settings=CONTEXT)
@click.argument("run", type=click.Path(path_type=Path))
@common
def report(run: Path) -> None:
    """Make summary and report of a run folder anew, from its records, without a model.

    \b
    robustkit report runs/vit
    """
    from .records import Run
    from .report import refresh

    existing = Run.existing(run)
    _show(existing, refresh(existing))


@cli.command("list", context_settings=CONTEXT)
@click.argument("kind", metavar="KIND")
@common
def list_(kind: str) -> None:
    """List what there is: models, attacks, attentions, protocols or datasets.

    \b
    robustkit list protocols
    """
    from .listing import LISTINGS, listing

    if kind not in LISTINGS:
        raise ProtocolError(unknown("kind", kind, LISTINGS))
    console = _console()
    for name, text in listing(kind):
        console.print(f"[bold]{name}[/bold]  {text}", highlight=False, soft_wrap=True)


@cli.command(context_settings=CONTEXT)
@common
def doctor() -> None:
    """Check this machine: versions, device, and the numbers that everything rests on."""
    from .doctor import examine

    console = _console()
    findings = examine()
    for finding in findings:
        mark = "[green]ok  [/green]" if finding.fine else "[red]FAIL[/red]"
        console.print(f"{mark} ", end="")
        console.print(f"{finding.name}: {finding.text}", markup=False, highlight=False, soft_wrap=True)
    if not all(finding.fine for finding in findings):
        raise RobustkitError("doctor found something to mend; see the lines above")


def _console(stderr: bool = False) -> Any:
    from rich.console import Console

    return Console(stderr=stderr, width=None if sys.stdout.isatty() else 140)


def _audit(checkpoints: tuple[str, ...], data_dir: str, options: dict[str, Any]) -> None:
    model = _model_arguments(options)
    data = {key: options.pop(key) for key in DATA_KEYS}
    skip_bad = options.pop("skip_bad")
    run = _run_and_show(checkpoints, data_dir=data_dir, model=model, data=data, **options)
    bad = run.manifest["bad_images"]
    if bad and not skip_bad:
        raise DataError(
            f"{len(bad)} of {run.manifest['data']['n']} images could not be read and were left out, "
            f"the first: {bad[0]['error']}; mend them, or accept this with --skip-bad"
        )


def _run_and_show(*arguments: Any, **options: Any) -> Any:
    from . import pipeline
    from .progress import ConsoleProgress

    side = _console(stderr=True)

    def say(line: str) -> None:
        side.print(line, markup=False, highlight=False, soft_wrap=True)

    with ConsoleProgress(side) as progress:
        run = pipeline.audit(*arguments, progress=progress, say=say, **options)
    _show(run, run.results().to_dict("records"))
    return run


def _show(run: Any, results: Any) -> None:
    from .report import flag_lines, terminal_table

    console = _console()
    console.print(terminal_table(run, results))
    for line in flag_lines(run, results):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    console.print(f"report: {run.path / 'report.html'}", markup=False, highlight=False, soft_wrap=True)


def main() -> None:
    """The console script. Exit status: 0 fine, 1 the gate failed, 2 error, 3 nothing was evaluated, 130 interrupted."""
    debug = "--debug" in sys.argv or os.environ.get("ROBUSTKIT_DEBUG", "") not in ("", "0")
    try:
        status = cli.main(standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as fault:
        click.echo(fault.format_message())
        status = 2
    except click.ClickException as fault:
        where = getattr(fault, "ctx", None)
        command = where.command_path if where else "robustkit"
        click.echo(f"error: {fault.format_message()} See {command} --help.", err=True)
        status = 2
    except RobustkitError as fault:
        if debug:
            raise
        click.echo(f"error: {fault}", err=True)
        status = fault.exit_code
    except (KeyboardInterrupt, click.Abort):
        click.echo("interrupted; the same command goes on where this one stopped", err=True)
        status = 130
    sys.exit(status if isinstance(status, int) else 0)
