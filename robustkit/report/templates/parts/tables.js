"use strict";
// Tables: sorted by a column on request, and saved as CSV.
(() => {
  const NUMBER = /^[<>]?\s*([-+−]?[\d,]*\.?\d+(?:e[-+]?\d+)?)(?:\/(\d+))?/i;
  const INTERVAL = /^(\S+) \[(\S+), (\S+)\](?: (.*))?$/;

  const text = (cell) => cell.textContent.replace(/\s+/g, " ").trim();
  const plain = (figure) => figure.replace(/,/g, "").replace("−", "-");
  const number = (cell) => {
    const found = NUMBER.exec(text(cell));
    return found ? Number(plain(found[1])) / Number(found[2] || 1) : NaN;
  };
  const compare = (numeric) => (a, b) => (numeric ? a - b : a.localeCompare(b, undefined, { numeric: true }));

  const isNumeric = (heading) => heading.classList.contains("num") || heading.dataset.sort === "num";

  // Rows without a figure stay last, whichever way the others are sorted.
  const sort = (table, column, down) => {
    const numeric = isNumeric(table.tHead.rows[0].cells[column]);
    const value = numeric ? number : text;
    const body = table.tBodies[0];
    const order = compare(numeric);
    const keyed = [...body.rows].map((row) => ({ row, key: value(row.cells[column]) }));
    const empty = ({ key }) => Number.isNaN(key) || key === "";
    const filled = keyed.filter((one) => !empty(one)).sort((a, b) => (down ? -1 : 1) * order(a.key, b.key));
    body.append(...filled.concat(keyed.filter(empty)).map((one) => one.row));
    table.classList.add("sorted");
    [...table.tHead.rows[0].cells].forEach((cell, place) => {
      if (place === column) cell.setAttribute("aria-sort", down ? "descending" : "ascending");
      else cell.removeAttribute("aria-sort");
    });
  };

  const sortable = (table) => {
    [...table.tHead.rows[0].cells].forEach((heading, column) => {
      const button = Object.assign(document.createElement("button"), { className: "sort", type: "button" });
      button.setAttribute("aria-label", `sort by ${text(heading)}`);
      heading.append(button);
      heading.addEventListener("click", (event) => {
        if (event.target.closest("a")) return;
        const first = isNumeric(heading) ? "descending" : "ascending";
        const now = heading.getAttribute("aria-sort");
        sort(table, column, now ? now === "ascending" : first === "descending");
      });
    });
  };

  const quoted = (value) => (/[",\n\r]/.test(value) ? `"${value.replace(/"/g, '""')}"` : value);

  // A figure with its interval becomes three columns, and what stands behind it a fourth.
  const csv = (table) => {
    const rows = [...table.rows].map((row) => [...row.cells].map(text));
    const [headings, ...lines] = rows;
    const columns = headings.map((heading, column) => {
      const numeric = table.tHead.rows[0].cells[column].classList.contains("num");
      const parts = lines.map((line) => (numeric ? INTERVAL.exec(line[column]) : null));
      if (!parts.some(Boolean)) return [[heading, ...lines.map((line) => line[column])]];
      const name = heading.replace(/ ?\[95 %\]/, "");
      const of = (place) => parts.map((part) => (part ? part[place] || "" : ""));
      const value = parts.map((part, row) => (part ? part[1] : lines[row][column]));
      const split = [[name, ...value], [`${name} low`, ...of(2)], [`${name} high`, ...of(3)]];
      return of(4).some(Boolean) ? [...split, [`${name} verdict`, ...of(4)]] : split;
    }).flat();
    return rows.map((_, row) => columns.map((column) => quoted(column[row])).join(",")).join("\r\n") + "\r\n";
  };

  window.save = (name, data) => {
    const link = Object.assign(document.createElement("a"), { href: URL.createObjectURL(data), download: name });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  };
  window.saver = (bar, label, of, action) => {
    const button = Object.assign(document.createElement("button"), { className: "save", type: "button" });
    button.textContent = `↓ ${label}`;
    button.setAttribute("aria-label", `save as ${label}: ${of}`);
    button.addEventListener("click", action);
    bar.append(button);
  };

  for (const table of document.querySelectorAll(".sortable > table")) sortable(table);
  for (const box of document.querySelectorAll(".grid")) {
    const table = box.querySelector("table");
    const name = `${box.dataset.name}.csv`;
    sortable(table);
    window.saver(box.querySelector(".bar"), "CSV", box.dataset.title, () => {
      window.save(name, new Blob(["\ufeff", csv(table)], { type: "text/csv;charset=utf-8" }));
    });
  }
})();
