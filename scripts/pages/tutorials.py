"""Execute the tutorials, and store them with their outputs, as the site shows them.

python -m scripts.pages.tutorials [NAME ...]
"""

from __future__ import annotations

import base64
import io
import os
import re
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

TUTORIALS = sorted((Path(__file__).parents[2] / "docs" / "notebooks").glob("tutorial-*.ipynb"))
SECONDS = 600
"""How long a cell may take: a training."""


def execute(path: Path, folder: Path) -> Any:
    """Return a notebook as executed in a folder, on a terminal of 80 columns, outside of CI."""
    import nbclient
    import nbformat

    environment = {**os.environ, "COLUMNS": "80", "PYTHONWARNINGS": "ignore:IProgress not found"}
    for name in ("GITHUB_STEP_SUMMARY", "GITHUB_ACTIONS", "CI"):
        environment.pop(name, None)
    notebook = nbformat.read(path, as_version=4)
    client = nbclient.NotebookClient(notebook, timeout=SECONDS, resources={"metadata": {"path": str(folder)}})
    client.execute(env=environment)
    return notebook


def tidy(notebook: Any) -> None:
    """Take out of the outputs what a reader has no use for: warnings, finished bars, a second form of tables, what a
    terminal would colour, and when a cell was executed. Pictures have 64 colours."""
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        if "outputs" in cell:
            cell.outputs = _merged(
                [each for each in cell.outputs if each.get("name") != "stderr" and not _is_bar(each)]
            )
        for data in (output.get("data", {}) for output in cell.get("outputs", ())):
            if data.keys() & {"text/html", "text/markdown", "image/png"}:
                data.pop("text/plain", None)
            if "image/png" in data:
                data["image/png"] = _of_64_colours(data["image/png"])


def _is_bar(output: Any) -> bool:
    html = output.get("data", {}).get("text/html")
    return html is not None and ("<progress" in html or not html.strip())


def _merged(outputs: Iterable[Any]) -> list[Any]:
    """Return outputs; those that are printed one after the other are one, without colours."""
    merged: list[Any] = []
    for output in outputs:
        if "text" in output:
            output.text = re.sub(r"\x1b\[[\d;]*m", "", output.text).replace("\r\n", "\n")
            if merged and "text" in merged[-1]:
                merged[-1].text += output.text
                continue
        merged.append(output)
    return merged


def _of_64_colours(png: str) -> str:
    from PIL import Image

    picture = Image.open(io.BytesIO(base64.b64decode(png)))
    if picture.mode == "P":
        return png
    buffer = io.BytesIO()
    picture.convert("RGB").quantize(64).save(buffer, "PNG", optimize=True)
    return base64.b64encode(buffer.getvalue()).decode()


def main(names: list[str]) -> None:
    import nbformat

    for path in TUTORIALS:
        if not names or path.stem in names:
            with tempfile.TemporaryDirectory() as folder:
                notebook = execute(path, Path(folder))
            tidy(notebook)
            nbformat.write(notebook, path)
            print(path)


if __name__ == "__main__":
    main(sys.argv[1:])
