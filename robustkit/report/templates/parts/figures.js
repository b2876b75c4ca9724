"use strict";
// Figures: saved as SVG, or as PNG at three times their size, both dark on white.
(() => {
  const INK = "#1a1c20";
  const source = (svg) => {
    const copy = svg.cloneNode(true);
    const { width, height } = svg.viewBox.baseVal;
    copy.setAttribute("width", width);
    copy.setAttribute("height", height);
    copy.setAttribute("style", `color: ${INK}; background: #fff; stroke-linejoin: round; stroke-linecap: butt`);
    return new XMLSerializer().serializeToString(copy);
  };
  const png = (svg, done) => {
    const { width, height } = svg.viewBox.baseVal;
    const image = new Image();
    image.onload = () => {
      const canvas = Object.assign(document.createElement("canvas"), { width: 3 * width, height: 3 * height });
      const pen = canvas.getContext("2d");
      pen.fillStyle = "#fff";
      pen.fillRect(0, 0, canvas.width, canvas.height);
      pen.drawImage(image, 0, 0, canvas.width, canvas.height);
      canvas.toBlob(done, "image/png");
    };
    image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(source(svg))}`;
  };

  for (const box of document.querySelectorAll("figure[data-name]")) {
    const svg = box.querySelector("svg");
    const { name, title } = box.dataset;
    const bar = box.querySelector(".bar");
    window.saver(bar, "SVG", title, () => window.save(`${name}.svg`, new Blob([source(svg)], { type: "image/svg+xml" })));
    window.saver(bar, "PNG", title, () => png(svg, (data) => window.save(`${name}.png`, data)));
  }
})();
