// Boxes hide columns, checkpoints or conditions: what has the value of an empty box among its `data-of` is not shown.
(() => {
  const form = document.querySelector(".switches");
  if (!form) return;
  const parts = [...document.querySelectorAll("[data-of]")].map((part) => [part, part.dataset.of.split(" ")]);
  const apply = () => {
    const off = new Set([...form.querySelectorAll("input:not(:checked)")].map((box) => box.value));
    for (const [part, of] of parts) part.hidden = of.some((one) => off.has(one));
  };
  form.addEventListener("change", apply);
  form.hidden = false;
  apply();
})();
