"""The report in Chromium: accessible, quiet, within its width, used by keyboard; each check is seen to fail."""

import base64
import hashlib
import html
import json
import os
import re
import shutil
import subprocess
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
from page_runs import HOSTILE, make_run

from robustkit.report.refresh import refresh

PROBE = """
window.found = {faults: [], refused: []};
addEventListener("error", (event) => found.faults.push(String(event.message || event.target.src)), true);
addEventListener("unhandledrejection", (event) => found.faults.push(String(event.reason)));
addEventListener("securitypolicyviolation", (event) => {
  found.refused.push(event.blockedURI + " " + event.violatedDirective);
});
console.error = (...words) => found.faults.push(words.join(" "));
addEventListener("load", async () => {
  for (const one of document.querySelectorAll("details:not(.sample), .sample:nth-child(-n+2)")) one.open = true;
  found.width = innerWidth;
  found.page = document.documentElement.scrollWidth;
  found.dark = matchMedia("(prefers-color-scheme: dark)").matches;
  found.fetched = performance.getEntriesByType("resource").map((one) => one.name.slice(0, 80));
  const result = await axe.run(document, {resultTypes: ["violations"]});
  found.checked = result.passes.length;
  found.violations = result.violations
    .filter((one) => ["serious", "critical"].includes(one.impact))
    .map((one) => one.id + ": " + one.nodes.map((node) => node.html.slice(0, 200)).join(" | ").slice(0, 600));
  used();
  parent.postMessage(JSON.stringify(found), "*");
});
"""
FRAME = """<!doctype html><meta name="color-scheme" content="light dark"><title>frame</title><pre id="probe"></pre>
<script>addEventListener("message", (event) => document.querySelector("pre").append(event.data));</script>
<iframe src="copy.html" style="border: 0; height: 900px; width: %dpx"></iframe>"""  # a window is 500 wide at least
USED = """
const used = () => {
  const samples = [...document.querySelectorAll(".sample")], form = document.querySelector(".controls");
  if (!form) return;
  const press = (key) => {
    document.activeElement.dispatchEvent(new KeyboardEvent("keydown", {key, bubbles: true, cancelable: true}));
  };
  const here = () => samples.indexOf(document.activeElement.parentElement);
  const set = (name, value) => {
    form.elements[name].value = value;
    form.dispatchEvent(new Event("input"));
    return samples.map((one) => Number(!one.hidden)).join("");
  };
  for (const one of samples) one.open = false;
  samples[0].open = true;
  samples[0].firstElementChild.focus();
  found.keys = ["ArrowDown", "ArrowDown", "ArrowUp", "Tab"].map((key) => (press(key), here()));
  found.opened = samples.map((one) => Number(one.open)).join("");
  found.filtered = [set("words", "TWO"), set("only", "wrong"), set("words", ""), set("only", "0"), set("only", "")];
  set("words", "two");
  samples[7].firstElementChild.focus();
  found.stays = (press("ArrowUp"), press("ArrowDown"), here());
  found.count = document.querySelector("#count").textContent;
};
"""


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


def opened(page: str, folder: Path, width: int, dark: bool) -> dict[str, Any]:
    """What a copy of the page says of itself. Its policy also lets the probe run, known by its own digest."""
    script = axe() + PROBE + USED
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    copy = page.replace("script-src ", f"script-src &#39;sha256-{digest}&#39; ", 1)
    copy = copy.replace("<title>", f"<script>{script}</script><title>", 1)
    assert copy.count(digest) == 1
    (folder / "copy.html").write_text(copy, "utf-8")
    (folder / "frame.html").write_text(FRAME % width, "utf-8")
    command = [chromium(), "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-extensions"]
    command += ["--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars"]
    command += [f"--user-data-dir={folder / 'profile'}", "--window-size=1400,1000", "--virtual-time-budget=30000"]
    command += [f"--blink-settings=preferredColorScheme={0 if dark else 1}", "--dump-dom"]
    done = subprocess.run([*command, (folder / "frame.html").as_uri()], capture_output=True, text=True, timeout=200)
    told = re.search('<pre id="probe">({.*?})</pre>', done.stdout, re.DOTALL)
    assert told, done.stderr[-2000:]
    found: dict[str, Any] = json.loads(html.unescape(told[1]))
    return found


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    chromium()
    axe()
    run = make_run(tmp_path_factory.mktemp("report") / "run", HOSTILE[:2], HOSTILE[:3], HOSTILE)
    refresh(run)
    return (run.path / "report.html").read_text("utf-8")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 360])
def test_a_page_of_hostile_names_is_accessible_and_fetches_nothing(
    page: str, tmp_path: Path, width: int, dark: bool
) -> None:
    found = opened(page, tmp_path, width, dark)
    assert found["violations"] == [] and found["checked"] > 10
    assert found["faults"] == [] and found["refused"] == [] and found["fetched"] == []
    assert (found["width"], found["dark"]) == (width, dark) and found["page"] <= width
    # The second sample is open when it is reached, the first no longer; Tab is not ours.
    assert found["keys"] == [1, 2, 1, 1] and found["opened"] == "01000000"
    # "two" is the last sample alone; the second checkpoint errs clean on the second; the first falls to the attack.
    assert found["filtered"] == ["00000001", "00000000", "01000000", "10000000", "11111111"]
    assert found["stays"] == 7 and found["count"] == "1 of 8 samples"


def test_each_check_can_fail(page: str, tmp_path: Path) -> None:
    extra = '<p style="color: #888; background: #999">faint</p><img src="http://127.0.0.1:9/x.png">'
    extra += '<div style="width: 3000px">wide</div><script>alert(1)</script>'
    spoilt = page.replace("</main>", f"{extra}</main>").replace("form.hidden = false;", "form.hidden = false; ")
    found = opened(spoilt, tmp_path, 1280, dark=False)
    assert any(text.startswith("color-contrast") for text in found["violations"])
    assert any(text.startswith("image-alt") for text in found["violations"])
    assert any("127.0.0.1" in text for text in found["refused"]) and found["page"] > 3000
    assert sum(text.startswith("inline script-src") for text in found["refused"]) == 2  # ours, changed by a space, too
    free = re.sub('<meta http-equiv="Content-Security-Policy"[^>]*>', "", spoilt)
    free = free.replace("<script>alert(1)", "<script>throw Error('loud')")
    found = opened(free.replace("<title>", '<meta name="script-src "><title>', 1), tmp_path, 1280, dark=False)
    assert any("127.0.0.1" in text for text in found["fetched"]) and any("loud" in text for text in found["faults"])
