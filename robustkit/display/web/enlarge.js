"use strict";
// Pictures in `.pictures` become buttons that enlarge them; arrows lead to the next one, Escape closes.
(() => {
  const make = (tag, name, text) => Object.assign(document.createElement(tag), { className: name, textContent: text });
  const dialog = make("dialog", "enlarged", "");
  const place = make("span", "place", "");
  const close = make("button", "close", "Close");
  const back = make("button", "back", "‹");
  const on = make("button", "on", "›");
  const figure = make("figure", "", "");
  const picture = document.createElement("img");
  const caption = make("figcaption", "", "");
  back.setAttribute("aria-label", "previous picture");
  on.setAttribute("aria-label", "next picture");
  caption.id = "enlarged-caption";
  dialog.setAttribute("aria-labelledby", caption.id);
  place.setAttribute("role", "status");
  figure.append(picture, caption);
  dialog.append(place, close, back, figure, on);
  document.body.append(dialog);

  let shown = [];
  let here = 0;
  const show = (step) => {
    here = (here + step + shown.length) % shown.length;
    const image = shown[here].querySelector("img");
    picture.src = image.src;
    picture.alt = image.alt;
    picture.style.imageRendering = image.naturalWidth < 100 ? "pixelated" : "auto";
    caption.textContent = image.alt;
    place.textContent = `${here + 1} of ${shown.length}`;
  };
  const wrap = (image) => {
    if (image.closest("button, summary, dialog")) return;
    const button = make("button", "zoom", "");
    button.type = "button";
    button.title = "enlarge";
    image.replaceWith(button);
    button.append(image);
  };
  const wrapAll = (root) => root.querySelectorAll(".pictures img").forEach(wrap);

  document.addEventListener("click", (event) => {
    const button = event.target.closest(".zoom");
    if (!button) return;
    shown = [...document.querySelectorAll(".zoom")].filter((one) => one.checkVisibility());
    here = shown.indexOf(button);
    show(0);
    dialog.showModal();
  });
  dialog.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (!step || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    show(step);
  });
  dialog.addEventListener("close", () => shown[here].focus());
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
  close.addEventListener("click", () => dialog.close());
  back.addEventListener("click", () => show(-1));
  on.addEventListener("click", () => show(1));
  document.addEventListener("toggle", (event) => event.target.open && wrapAll(event.target), true);
  wrapAll(document);
})();
