"""Pages in headless Chromium: what they fetch, refuse and say, what axe-core finds, and what a script does on them."""

import base64
import hashlib
import http.server
import json
import os
import queue
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import pytest

PROBE = """
window.found = {faults: [], refused: []};
addEventListener("error", (event) => found.faults.push(String(event.message || event.target.src)), true);
addEventListener("unhandledrejection", (event) => found.faults.push(String(event.reason)));
addEventListener("securitypolicyviolation", (event) => {
  found.refused.push(event.blockedURI + " " + event.violatedDirective);
});
console.error = (...words) => found.faults.push(words.join(" "));
const fractionsOverTwoLines = () => {
  const all = [];
  for (const block of document.querySelectorAll("th, td, p, li, dd, pre, summary, figcaption, h1, h2, h3")) {
    const walker = document.createTreeWalker(block, NodeFilter.SHOW_TEXT), signs = [];
    for (let node = walker.nextNode(); node; node = walker.nextNode())
      for (let place = 0; place < node.length; place += 1) signs.push([node, place]);
    for (const match of block.textContent.matchAll(/\\b\\d+\\/\\d+\\b/g)) {
      const range = document.createRange(), last = signs[match.index + match[0].length - 1];
      range.setStart(...signs[match.index]);
      range.setEnd(last[0], last[1] + 1);
      if (new Set([...range.getClientRects()].map((one) => Math.round(one.top))).size > 1) all.push(match[0]);
    }
  }
  return all;
};
addEventListener("load", async () => {
  for (const one of document.querySelectorAll("main details")) one.open = true;
  found.width = innerWidth;
  found.page = document.documentElement.scrollWidth;
  found.dark = matchMedia("(prefers-color-scheme: dark)").matches;
  found.fetched = performance.getEntriesByType("resource").map((one) => one.name.slice(0, 80));
  found.broken = fractionsOverTwoLines();
  const result = await axe.run(document, {resultTypes: ["violations"]});
  found.checked = result.passes.length;
  found.violations = result.violations
    .map((one) => one.id + ": " + one.nodes.map((node) => node.html.slice(0, 200)).join(" | ").slice(0, 600));
  await Promise.resolve().then(used).catch((fault) => found.faults.push(fault.stack));
  parent.postMessage(JSON.stringify(found), "*");
});
"""
FRAME = """<!doctype html><meta name="color-scheme" content="light dark"><title>frame</title>
<script>addEventListener("message", (event) => fetch("/", {method: "POST", body: event.data}));</script>
<iframe src="copy.html" style="border: 0; height: 900px; width: %dpx"></iframe>"""  # a window is 500 wide at least


@lru_cache(maxsize=1)
def axe() -> str:
    """The source of axe-core; skips where it is not there."""
    given = os.environ.get("AXE_CORE")
    places = [Path(given)] if given else [p / "node_modules/axe-core/axe.min.js" for p in Path(__file__).parents]
    for place in places:
        if place.is_file():
            return place.read_text("utf-8").replace("</script", "<\\/script")
    pytest.skip("axe-core is not there: npm install axe-core, or set AXE_CORE to its axe.min.js")


@lru_cache(maxsize=1)
def chromium() -> str:
    """The browser; skips where there is none."""
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    found = next(filter(None, map(shutil.which, names)), None)
    if found is None:
        pytest.skip(f"no browser: none of {', '.join(names)} is on the PATH")
    return found


def complaints(found: dict[str, Any]) -> list[str]:
    """What is wrong with an opened page whatever it shows, wider than its window included."""
    wide = [f"{found['page']} wide in {found['width']}"] if found["page"] > found["width"] else []
    kinds = ("violations", "faults", "refused", "fetched", "broken")
    return [*wide, *(f"{kind}: {text}" for kind in kinds for text in found[kind])]


class Answers(http.server.SimpleHTTPRequestHandler):
    """Serves a folder, and keeps what is posted to it in the server's `answers`."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(204)
        self.end_headers()
        self.server.answers.put(body)  # type: ignore[attr-defined]

    def log_message(self, *_: Any) -> None:
        """Say nothing of requests."""


@contextmanager
def served(folder: Path) -> Iterator[tuple[str, "queue.Queue[bytes]"]]:
    """The address of a server of this folder, and the queue of what is posted to it."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Answers, directory=str(folder))) as server:
        server.answers = queue.Queue()  # type: ignore[attr-defined]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", server.answers  # type: ignore[attr-defined]
        server.shutdown()


def opened(page: str, folder: Path, width: int, dark: bool, used: str = "const used = () => {};") -> dict[str, Any]:
    """What a copy of the page says about itself. Its policy also lets the probe run, known by its own digest.

    used: a script with a function of that name, which uses the page and adds to `found`; it may be async.
    The browser lives until it answers: a budget of time, virtual or real, is too short on a busy machine.
    """
    script = axe() + PROBE + used
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    copy = re.sub("script-src (&#39;none&#39;)?", f"script-src &#39;sha256-{digest}&#39; ", page, count=1)
    copy = copy.replace("<title>", f"<script>{script}</script><title>", 1)
    assert copy.count(digest) == 1
    (folder / "copy.html").write_text(copy, "utf-8")
    (folder / "frame.html").write_text(FRAME % width, "utf-8")
    command = [chromium(), "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-extensions"]
    command += ["--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars"]
    command += [f"--user-data-dir={folder / 'profile'}", "--window-size=1400,1000", "--remote-debugging-port=0"]
    command += [f"--blink-settings=preferredColorScheme={0 if dark else 1}"]
    with served(folder) as (address, answers), (folder / "browser.log").open("w") as log:
        browser = subprocess.Popen([*command, f"{address}/frame.html"], stdout=log, stderr=log)
        try:
            found: dict[str, Any] = json.loads(answers.get(timeout=200))
        except queue.Empty:
            pytest.fail(f"the browser did not answer: {(folder / 'browser.log').read_text('utf-8')[-2000:]}")
        finally:
            browser.kill()
            browser.wait()
    return found
