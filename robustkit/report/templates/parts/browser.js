"use strict";
(() => {
  const samples = [...document.querySelectorAll(".sample")];
  const form = document.querySelector(".controls");
  const status = document.querySelector("#count");
  const filter = () => {
    const words = form.elements.words.value.trim().toLowerCase();
    const only = form.elements.only.value;
    let count = 0;
    for (const sample of samples) {
      const fits = !only || (only === "wrong" ? sample.dataset.wrong === "1" : sample.dataset.changed.split(" ").includes(only));
      sample.hidden = !(fits && sample.dataset.words.includes(words));
      count += sample.hidden ? 0 : 1;
    }
    status.textContent = `${count} of ${samples.length} samples`;
  };
  form.addEventListener("input", filter);
  form.addEventListener("submit", (event) => event.preventDefault());
  document.querySelector("#browser").addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    const here = event.target.parentElement;
    if (!step || event.target.tagName !== "SUMMARY" || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    const shown = samples.filter((sample) => !sample.hidden);
    const next = shown[shown.indexOf(here) + step];
    if (!next) return;
    if (here.open) {
      here.open = false;
      next.open = true;
    }
    next.firstElementChild.focus();
  });
  form.hidden = false;
  filter();
})();
