"use strict";
// The section in sight is marked in the contents, terms are explained where they stand, and boxes say that they scroll.
(() => {
  const links = [...document.querySelectorAll(".contents a")];
  const mark = (name) => links.forEach((link) => {
    if (link.hash === `#${name}`) link.setAttribute("aria-current", "true");
    else link.removeAttribute("aria-current");
  });
  const sections = [...document.querySelectorAll("main section[aria-labelledby]")];
  const seen = new Set();
  const watch = new IntersectionObserver((entries) => {
    entries.forEach(({ isIntersecting, target }) => (isIntersecting ? seen.add(target) : seen.delete(target)));
    const last = sections.filter((section) => seen.has(section)).pop();
    if (last) mark(last.getAttribute("aria-labelledby"));
  }, { rootMargin: "0px 0px -75% 0px" });
  sections.forEach((section) => watch.observe(section));
  const menu = document.querySelector(".contents details");
  if (menu) menu.addEventListener("click", (event) => event.target.closest("a") && (menu.open = false));

  // What a link leads to may be folded.
  const unfold = () => {
    const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    for (let one = target; one; one = one.parentElement) if (one.tagName === "DETAILS") one.open = true;
  };
  addEventListener("hashchange", unfold);
  unfold();

  const hint = document.createElement("div");
  if (hint.showPopover) {
    Object.assign(hint, { className: "hint", id: "hint", popover: "auto" });
    hint.setAttribute("role", "note");
    document.body.append(hint);
    let asked = null;
    document.addEventListener("click", (event) => {
      const term = event.target.closest("a.term");
      const meaning = term && document.querySelector(term.hash);
      if (!meaning || event.ctrlKey || event.metaKey || event.shiftKey) return;
      event.preventDefault();
      const name = document.createElement("b");
      name.textContent = meaning.textContent;
      hint.replaceChildren(name, " ", meaning.nextElementSibling.textContent);
      const at = term.getBoundingClientRect();
      hint.style.left = `${Math.max(8, Math.min(at.left, innerWidth - 8 - Math.min(352, innerWidth - 16)))}px`;
      hint.style.top = `${at.bottom + 6}px`;
      term.setAttribute("aria-describedby", "hint");
      asked = term;
      hint.showPopover();
      const over = hint.getBoundingClientRect();
      if (over.bottom > innerHeight) hint.style.top = `${Math.max(8, at.top - over.height - 6)}px`;
    });
    hint.addEventListener("toggle", (event) => event.newState === "closed" && asked.removeAttribute("aria-describedby"));
    addEventListener("scroll", () => hint.matches(":popover-open") && hint.hidePopover(), { passive: true });
  }

  const cue = (box) => {
    const rest = box.scrollWidth - box.clientWidth - box.scrollLeft;
    box.parentElement.classList.toggle("more", rest > 2);
  };
  const resized = new ResizeObserver((entries) => entries.forEach((entry) => cue(entry.target)));
  for (const box of document.querySelectorAll(".scroll")) {
    resized.observe(box);
    box.addEventListener("scroll", () => cue(box), { passive: true });
  }
})();
