"use strict";

// The theme: that of the system, until the reader chooses another.
const root = document.documentElement;
const button = document.getElementById("theme");
const kept = "icecore-theme";

function readTheme() {
  try {
    return localStorage.getItem(kept);
  } catch (error) { // a browser may refuse storage to files
    return null;
  }
}

function isDark() {
  const chosen = root.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

function toggleTheme() {
  root.dataset.theme = isDark() ? "light" : "dark";
  try {
    localStorage.setItem(kept, root.dataset.theme);
  } catch (error) { // the choice then holds for this view
  }
}

if (["light", "dark"].includes(readTheme())) {
  root.dataset.theme = readTheme();
}
button.hidden = false;
button.addEventListener("click", toggleTheme);

// Tables: a click on a title sorts by its column, another one turns the order round.
function numberOf(text) {
  const found = text.replace(/,/g, "").match(/^[-+]?(\d+\.?\d*|\.\d+)/);
  return found ? Number(found[0]) : null;
}

function compareTexts(one, other) {
  return one.localeCompare(other, "en", { numeric: true });
}

function sortTable(heading) {
  const table = heading.closest("table");
  const body = table.tBodies[0];
  const place = heading.cellIndex;
  const isNumeric = heading.classList.contains("n");
  const before = heading.getAttribute("aria-sort");
  const isDown = before ? before === "ascending" : isNumeric;
  const rows = [...body.rows].map((row) => ({ row, text: row.cells[place].textContent.trim() }));
  rows.sort((one, other) => {
    if (!isNumeric) {
      return isDown ? compareTexts(other.text, one.text) : compareTexts(one.text, other.text);
    }
    const [a, b] = [numberOf(one.text), numberOf(other.text)];
    if (a === null || b === null) { // what is missing comes last
      return (a === null) - (b === null);
    }
    return isDown ? b - a : a - b;
  });
  for (const other of heading.parentElement.cells) {
    other.removeAttribute("aria-sort");
  }
  heading.setAttribute("aria-sort", isDown ? "descending" : "ascending");
  body.append(...rows.map(({ row }) => row));
}

for (const heading of document.querySelectorAll("thead th")) {
  const title = document.createElement("button");
  title.type = "button";
  title.title = "Sort by this column";
  title.append(...heading.childNodes);
  title.addEventListener("click", () => sortTable(heading));
  heading.append(title);
}
