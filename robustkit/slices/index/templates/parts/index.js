"use strict";
(() => {
  document.documentElement.classList.add("script");
  const form = document.querySelector("#filter");
  if (!form) return;
  const rows = [...document.querySelectorAll(".runs tbody tr")];
  const count = document.querySelector("#count");
  const filter = () => {
    const words = form.elements.words.value.trim().toLowerCase().split(/\s+/);
    let shown = 0;
    for (const row of rows) {
      const fits = ["name", "card", "data"].every((key) => !form.elements[key].value || row.dataset[key] === form.elements[key].value);
      const state = form.elements.state.value;
      row.hidden = !(fits && (!state || row.dataset.state.split(" ").includes(state)) && words.every((word) => row.dataset.words.includes(word)));
      shown += row.hidden ? 0 : 1;
    }
    count.textContent = `${shown} of ${rows.length} rows`;
  };
  form.addEventListener("input", filter);
  form.addEventListener("submit", (event) => event.preventDefault());

  const boxes = [...document.querySelectorAll(".choose")];
  const picked = document.querySelector("#picked");
  const pairs = [...document.querySelectorAll("[data-first]")];
  let chosen = [];
  const link = (text, address) => Object.assign(document.createElement("a"), { textContent: text, href: address });
  const tell = () => {
    picked.hidden = chosen.length === 0;
    picked.replaceChildren();
    if (chosen.length === 1) picked.append(`${chosen[0].dataset.path} is chosen; choose a second run to compare it with.`);
    if (chosen.length < 2) return;
    const [first, second] = [...chosen].sort((one, other) => Number(other.dataset.place) - Number(one.dataset.place));
    const what = `${second.dataset.path} against ${first.dataset.path}: `;
    const there = pairs.find((pair) => pair.dataset.first === first.value && pair.dataset.second === second.value);
    if (there) picked.append(what, link("their paired comparison", there.getAttribute("href")));
    else if (document.body.dataset.served) picked.append(what, link("compare them now", `compare?first=${first.value}&second=${second.value}`));
    else {
      const command = document.createElement("code");
      command.textContent = `robustkit compare ${first.dataset.command} ${second.dataset.command}`;
      picked.append(what, "not computed yet; ", command, ` computes it, as does ${form.dataset.view} --serve, here.`);
    }
  };
  for (const box of boxes) {
    box.checked = false;
    box.addEventListener("change", () => {
      chosen = chosen.filter((other) => other.value !== box.value);
      if (box.checked) chosen.push(box);
      for (const dropped of chosen.slice(0, -2)) chosen = chosen.filter((other) => other !== dropped);
      for (const other of boxes) other.checked = chosen.some((one) => one.value === other.value);
      tell();
    });
  }
  form.hidden = false;
  filter();
})();
