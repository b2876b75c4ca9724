"use strict";
// The sample browser: tiles of one checkpoint under one condition above each sample's table, filtered by the form.
(() => {
  const box = document.querySelector("#browser");
  if (!box) return;
  const form = document.querySelector(".controls");
  const status = document.querySelector("#count");
  const more = document.querySelector("#more");
  const samples = [...box.querySelectorAll(".sample")];
  const names = [...form.elements.checkpoint.options].slice(1).map((option) => option.value);
  const conditions = [...form.elements.condition.options].slice(1).map((option) => option.value);
  const FEW = 8;
  let most = FEW;

  // `before` has a sign for each checkpoint, `after` for each checkpoint one for each condition: 1 right, 0 wrong.
  const outcome = (sample, checkpoint, condition) => {
    const before = sample.dataset.before[checkpoint];
    const after = condition === undefined ? "" : sample.dataset.after.split(" ")[checkpoint][condition];
    return before + after;
  };
  const chosen = (value, every) => (value === "" ? every.map(Number) : [Number(value)]);
  const wanted = () => {
    const { words, checkpoint, condition, kind, shown } = form.elements;
    return {
      words: words.value.trim().toLowerCase(),
      kind: kind.value,
      outcome: shown.value,
      checkpoints: chosen(checkpoint.value, names),
      conditions: conditions.length ? chosen(condition.value, conditions) : [undefined],
    };
  };
  const fits = (sample, asked) => {
    if (asked.kind && sample.dataset.label !== asked.kind) return null;
    if (!sample.dataset.words.includes(asked.words)) return null;
    const pairs = asked.conditions.flatMap((condition) => asked.checkpoints.map((checkpoint) => ({ checkpoint, condition })));
    const first = (start) => pairs.find((pair) => outcome(sample, pair.checkpoint, pair.condition).startsWith(start));
    return (asked.outcome === "" && first("10")) || first(asked.outcome) || null; // of all, what tells most
  };

  const tile = (image, heading, lines) => {
    const figure = document.createElement("figure");
    const copy = image.cloneNode();
    const button = Object.assign(document.createElement("button"), { className: "zoom", type: "button", title: "enlarge" });
    const caption = document.createElement("figcaption");
    const name = document.createElement("b");
    name.append(...heading.map((one) => one.cloneNode(true)));
    button.append(copy);
    caption.append(name, ...lines.filter((one) => one));
    figure.append(button, caption);
    return figure;
  };
  const answers = (cell, condition) => {
    const some = [...cell.querySelectorAll(".answer")];
    const its = some.filter((one) => one.dataset.at === condition);
    return its.length ? its[0].cloneNode(true) : null;
  };
  const tilesOf = (sample, { checkpoint, condition }) => {
    const tiles = { shown: [], map: [] };
    for (const row of sample.querySelectorAll("tbody tr")) {
      const { role, places } = row.dataset;
      const at = condition === undefined ? "-1" : String(condition);
      if (role === "shown" && !places.split(" ").some((one) => one === "-1" || one === at)) continue;
      if (role === "map" && places !== "-1" && places !== at) continue;
      const cell = row.cells[checkpoint + 1];
      const heading = [...row.cells[0].childNodes].filter((one) => !(one instanceof Element) || one.matches("wbr, .whole"));
      const shared = row.cells[0].querySelector("img");
      const every = [...(shared ? [shared] : []), ...cell.querySelectorAll("img")];
      const own = every.filter((one) => one.dataset.of === at);
      const images = own.length ? own : every;
      const lines = [...cell.querySelectorAll(".answer")].filter((one) => !one.dataset.at).map((one) => one.cloneNode(true));
      for (const image of images) {
        const changed = "changed" in image.dataset;
        // A prediction stands under the picture that it is of; of another level it is a line of its own.
        const under = role === "map" || changed ? lines[0] : answers(cell, image.dataset.of);
        const asked = role === "shown" && !changed && !own.length && image.dataset.of !== "-1" ? answers(cell, at) : null;
        if (asked) asked.append(" (no picture is kept)");
        tiles[role].push(tile(image, changed ? [new Text("what was changed")] : heading, [under, asked]));
      }
    }
    return [...tiles.shown, ...tiles.map];
  };
  const draw = (sample, pair) => {
    const key = `${pair.checkpoint} ${pair.condition}`;
    const tiles = sample.querySelector(".tiles");
    if (tiles.dataset.key === key) return;
    tiles.dataset.key = key;
    sample.querySelector(".of").textContent = names.length > 1 ? form.elements.checkpoint.options[pair.checkpoint + 1].text : "";
    tiles.replaceChildren(...tilesOf(sample, pair));
  };

  const filter = () => {
    const asked = wanted();
    let count = 0;
    for (const sample of samples) {
      const pair = fits(sample, asked);
      count += pair ? 1 : 0;
      sample.hidden = !pair || count > most;
      if (!sample.hidden) draw(sample, pair);
    }
    more.hidden = count <= most;
    status.textContent = `${count} of ${samples.length} samples${count > most ? `, the first ${most} shown` : ""}`;
  };
  form.addEventListener("input", () => {
    most = FEW;
    filter();
  });
  form.addEventListener("submit", (event) => event.preventDefault());
  more.addEventListener("click", () => {
    const next = samples.filter((sample) => !sample.hidden).length;
    most += 4 * FEW;
    filter();
    const first = samples.filter((sample) => !sample.hidden)[next];
    if (first) first.querySelector("button, summary").focus();
  });
  box.classList.add("live");
  box.removeAttribute("tabindex");
  form.hidden = false;
  filter();
})();
