"""Files that are written whole."""

import contextlib
import io
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from small_audit import audit, furnish

from robustkit.common import files
from robustkit.common.files import write_whole
from robustkit.errors import RunError


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return furnish(tmp_path_factory.mktemp("place"))


@pytest.mark.skipif(os.name != "posix", reason="other systems have no umask")
@pytest.mark.parametrize(
    ("mask", "file", "folder"), [(0o022, 0o644, 0o755), (0o002, 0o664, 0o775), (0o077, 0o600, 0o700)]
)
def test_a_run_has_the_modes_that_the_umask_leaves(
    place: Path, tmp_path: Path, mask: int, file: int, folder: int
) -> None:
    with umask(mask):
        audit(place, tmp_path / "runs" / "net", attacks="fgsm", browse=2)
        write_whole(tmp_path / "runs" / "net" / "run.json", (tmp_path / "runs" / "net" / "run.json").read_bytes())
    made = [tmp_path / "runs", *(tmp_path / "runs").rglob("*")]
    names = {path.name for path in made}
    assert {"run.json", "summary.json", "summary.csv", "report.html", "00000.parquet", ".lock"} <= names
    assert any("pictures" in path.parts and path.is_file() for path in made)
    modes = {(path.is_dir(), stat.S_IMODE(path.stat().st_mode)) for path in made}
    assert modes == {(True, 0o777 & ~mask), (False, 0o666 & ~mask)}


def test_what_was_there_stays_where_a_file_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "a.json"
    write_whole(target, b"one")

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunError, match=r"cannot write .*: No space left on device; choose a folder with --out"):
        write_whole(target, b"two")
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"] and target.read_bytes() == b"one"


def test_a_file_that_another_process_reads_is_replaced_a_moment_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Windows refuses to replace an open file, such as the page while the browser loads it."""
    tries, replace = list[int](), Path.replace

    def open_until(last: int, path: Path, target: Path) -> Path:
        tries.append(0)
        if len(tries) < last:
            raise PermissionError(13, "Access is denied")
        return replace(path, target)

    monkeypatch.setattr(files, "_WINDOWS", True)
    monkeypatch.setattr(files.time, "sleep", lambda seconds: None)
    for last, written in ((3, True), (9, False)):
        tries.clear()
        monkeypatch.setattr(Path, "replace", lambda path, target, last=last: open_until(last, path, target))
        target = tmp_path / f"{last}.json"
        if written:
            files.write_whole(target, b"{}")
        else:
            with pytest.raises(RunError, match=r"cannot write .*: Access is denied"):
                files.write_whole(target, b"{}")
        assert target.exists() == written and len(list(tmp_path.iterdir())) == 1


def test_a_folder_in_use_is_named_where_what_is_locked_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Locked(io.StringIO):
        def fileno(self) -> int:
            return -1

        def read(self, size: int | None = -1) -> str:
            raise PermissionError(13, "Permission denied")  # as Windows says

    monkeypatch.setattr(files, "_opened", lambda folder, name: contextlib.nullcontext(Locked()))
    monkeypatch.setattr(files, "_take", lambda handle, together: False)
    with pytest.raises(RunError, match="is in use by another process; wait for it"), files.locked(tmp_path):
        pass
