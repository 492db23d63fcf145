"use strict";

// The theme: that of the system, until the reader chooses another.
const root = document.documentElement;
const themeButton = document.getElementById("theme");
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
themeButton.hidden = false;
themeButton.addEventListener("click", toggleTheme);

// What is folded is printed too, but for the figures.
let opened = [];
addEventListener("beforeprint", () => {
  opened = [...document.querySelectorAll("details:not([open])")].filter((part) => !part.closest("figure"));
  opened.forEach((part) => { part.open = true; });
});
addEventListener("afterprint", () => opened.forEach((part) => { part.open = false; }));

// Tables of the text: a click on a title sorts by its column, another one turns the order round.
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

function addSorting(heading, sort) {
  const title = make("button", { type: "button", title: "Sort by this column" });
  title.append(...heading.childNodes);
  title.addEventListener("click", sort);
  heading.append(title);
}

for (const heading of document.querySelectorAll("thead th")) {
  addSorting(heading, () => sortTable(heading));
}

// --- Exploring ---

const COLOURS = ["var(--blue)", "var(--orange)", "var(--green)", "var(--pink)", "var(--amber)", "var(--sky)"];
const DASHES = ["", "5,3", "2,2", "8,2,2,2", "", "5,3"];
const FIRST_ROWS = 25;
const NONE = "none";
const HEAD = ""; // in place of a layer: the head itself, which reads several
const MOST_CELLS = 25; // classes of a confusion matrix that is drawn

const holder = document.getElementById("exploration");
const page = holder ? JSON.parse(holder.textContent) : { sources: [], tables: {} };
const at = (id) => document.getElementById(id);

function make(tag, properties = {}, ...children) {
  const node = Object.assign(document.createElement(tag), properties);
  node.append(...children); // texts become text nodes, never HTML
  return node;
}

function shorten(layer) {
  const name = layer.split("/").pop();
  const ends = { embedding: "emb", final_norm: "norm" };
  const short = ends[name] ?? name.replace(/^block_0*/, "");
  return layer.includes("/") ? `${layer.slice(0, layer.lastIndexOf("/"))}/${short}` : short;
}

const digits = (value, unit) => value.toFixed(/x 100|predicted/.test(unit) ? 1 : 3);

function interval(line, k, unit) {
  if (line.values[k] === null || line.values[k] === undefined) {
    return "no score";
  }
  const ends = line.low[k] === null || line.low[k] === undefined ? "" : ` (${digits(line.low[k], unit)} to ${digits(line.high[k], unit)})`;
  return digits(line.values[k], unit) + ends;
}

// Draws lines or bars over layers; returns the chart, whose value is the point under the pointer.
function drawLayers(node, { layers, lines, unit, isGain, levels: every = [], tied = [], chosen = "", layer = -1, label }) {
  const width = Math.max(node.clientWidth, 280);
  const levels = every.filter(([, value]) => value !== null);
  const points = lines.flatMap((line) => line.positions.map((x, k) => ({
    x, value: line.values[k], low: line.low[k] ?? null, high: line.high[k] ?? null,
    line, colour: line.colour, layer: line.layers[k],
    about: `${line.layers[k]}${line.label ? `, ${line.label}` : ""}\n${interval(line, k, unit)}`,
  }))).filter((point) => point.value !== null);
  const last = layers.length - 1;
  const isWide = width > 700;
  const besides = isWide && levels.length ? 12 + 6.6 * Math.max(...levels.map(([name]) => name.length)) : 20;
  const step = Math.max(1, Math.ceil(layers.length / (width / 34)));
  const isNamed = layers.some((name) => shorten(name).length > 4);
  const ticks = layers.map((_, k) => k).filter((k) => k % step === 0 && (last - k >= step || k === last)).concat(last % step ? [last] : []);
  const shades = tied.map((name) => layers.indexOf(name)).filter((k) => k >= 0);
  const isBars = isGain && lines.length === 1;
  const hasEnds = points.filter((point) => point.low !== null);
  const marks = [
    Plot.rectX(shades, { x1: (k) => k - 0.5, x2: (k) => k + 0.5, fill: "var(--pale)", fillOpacity: 0.35, ariaDescription: "layers tied with the best" }),
    Plot.ruleY(levels, { y: "1", stroke: "var(--soft)", strokeDasharray: "2,3" }),
    ...levels.map(([name, value]) => { // the lowest is named below its line, so that two do not overlap
      const isLowest = levels.length > 1 && value === Math.min(...levels.map((level) => level[1]));
      const place = isWide ? { x: last + 0.6, dx: 4, dy: isLowest ? 5 : -4, textAnchor: "start" } : { x: last, dy: isLowest ? 8 : -7, textAnchor: "end" };
      return Plot.text([value], { y: (y) => y, text: () => name, fill: "var(--soft)", ...place });
    }),
    isGain ? Plot.ruleY([0], { stroke: "var(--grey)" }) : null,
    isBars ? Plot.rectY(points, { x1: (d) => d.x - 0.35, x2: (d) => d.x + 0.35, y1: 0, y2: "value", fill: "colour" }) : null,
    isBars ? Plot.ruleX(hasEnds, { x: "x", y1: "low", y2: "high", stroke: "var(--ink)" })
      : Plot.areaY(hasEnds, { x: "x", y1: "low", y2: "high", z: "colour", fill: "colour", fillOpacity: 0.18 }),
    ...(isBars ? [] : lines).map((line) => Plot.lineY(points.filter((point) => point.line === line), { x: "x", y: "value", stroke: line.colour, strokeDasharray: line.dash, strokeWidth: 1.8 })),
    isBars ? null : Plot.dot(points, { x: "x", y: "value", r: 2.5, fill: "colour" }),
    layer >= 0 ? Plot.ruleX([layer], { stroke: "var(--ink)", strokeDasharray: "4,2" }) : null,
    Plot.dot(points.filter((point) => point.layer === chosen), { x: "x", y: "value", r: 6, stroke: "var(--ink)", strokeWidth: 1.5, ariaDescription: "the layer to use" }),
    Plot.tip(points, Plot.pointerX({ x: "x", y: "value", title: "about", fill: "var(--card)", stroke: "var(--line)" })),
  ];
  const chart = Plot.plot({
    className: "plot", width, height: Math.round(Math.min(360, Math.max(240, width * 0.42))), marginLeft: 46, marginRight: besides, marginBottom: isNamed ? 78 : 40,
    ariaLabel: label, style: { fontSize: "12px", background: "none", overflow: "visible" },
    x: { domain: [-0.6, last + 0.6], ticks, tickFormat: (k) => shorten(layers[k] ?? ""), label: isNamed ? null : "block", labelAnchor: "center", tickRotate: isNamed ? -55 : 0, tickSize: 0 },
    y: { label: unit, grid: true, nice: true, labelArrow: "none" },
    marks,
  });
  node.replaceChildren(chart);
  return chart;
}

// A heat map, a colour scale for all of it; the value of the chart is the cell under the pointer.
function drawCells(node, cells, { xLabel, yLabel, label, x, y, picked = null, isCount = false }) {
  const width = Math.max(node.clientWidth, 280);
  const longestOf = (names, most) => 6.6 * Math.max(...names.map((name) => Math.min(name.length, most)));
  const middle = (d3.min(cells, (cell) => cell.value) + d3.max(cells, (cell) => cell.value)) / 2;
  const below = isCount ? 24 + 0.8 * longestOf(x, 16) : 44;
  const chart = Plot.plot({
    className: "plot", width, marginLeft: 14 + longestOf(y, 34), marginBottom: below, height: 26 + below + 26 * y.length,
    ariaLabel: label, style: { fontSize: "12px", background: "none", overflow: "visible" },
    color: isCount ? { scheme: "blues", domain: [0, Math.max(1, ...cells.map((cell) => cell.value))] } : { scheme: "viridis" },
    x: { domain: x, label: xLabel, tickFormat: (name) => (isCount ? name.slice(0, 16) : shorten(String(name))), tickRotate: isCount ? -55 : 0, ticks: x.filter((_, k) => k % Math.ceil(x.length / (width / 34)) === 0), tickSize: 0 },
    y: { domain: y, label: yLabel, tickFormat: (name) => (name.length > 34 ? `${name.slice(0, 33)}…` : name), tickSize: 0 },
    marks: [
      Plot.cell(cells, { x: "x", y: "y", fill: "value", inset: 0.5 }),
      width / x.length > 30 ? Plot.text(cells, { x: "x", y: "y", text: (cell) => (isCount ? cell.value.toLocaleString("en") : cell.value.toFixed(1)), fill: (cell) => (cell.value > middle === isCount ? "white" : "black"), fontSize: 9 }) : null,
      Plot.cell(cells.filter((cell) => cell.isMarked), { x: "x", y: "y", stroke: "var(--orange)", strokeWidth: 2, fill: "none" }),
      picked ? Plot.cell([picked], { x: "x", y: "y", stroke: "var(--ink)", strokeWidth: 2, strokeDasharray: "3,2", fill: "none" }) : null,
      Plot.tip(cells, Plot.pointer({ x: "x", y: "y", title: "about", fill: "var(--card)", stroke: "var(--line)" })),
    ],
  });
  node.replaceChildren(chart);
  return chart;
}

// A table of plain texts, numbers to the right.
function fillTable(node, titles, rows, { onSort = null, sorted = -1, isDown = true } = {}) {
  const heads = titles.map(([title, isNumber], k) => {
    const heading = make("th", { scope: "col", className: isNumber ? "n" : "" }, title);
    if (onSort) {
      addSorting(heading, () => onSort(k));
      if (k === sorted) {
        heading.setAttribute("aria-sort", isDown ? "descending" : "ascending");
      }
    }
    return heading;
  });
  const body = rows.map((cells) => make("tr", {}, ...cells.map((cell, k) => {
    const place = make("td", { className: titles[k][1] ? "n" : "" });
    place.append(...(Array.isArray(cell) ? cell : [cell]));
    return place;
  })));
  const table = make("table", {}, make("thead", {}, make("tr", {}, ...heads)), make("tbody", {}, ...body));
  node.replaceChildren(table);
}

function fillSelect(select, options, value) {
  const groups = new Map();
  for (const { key, title, group = "" } of options) {
    const list = groups.get(group) ?? groups.set(group, []).get(group);
    list.push(make("option", { value: key, selected: key === value }, title));
  }
  const nodes = [...groups].flatMap(([group, list]) => (group ? [make("optgroup", { label: group }, ...list)] : list));
  select.replaceChildren(...nodes);
  select.closest("label").hidden = options.length < 2;
}

// Integers in base 64.
function unpack(text, bytes) {
  const raw = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  return bytes === 1 ? raw : new Uint16Array(raw.buffer);
}

const unpacked = new Map();
function partOf(source, name, bytes) {
  const key = `${source.label} ${name}`;
  if (!unpacked.has(key)) {
    unpacked.set(key, unpack(source.by_layer[name], bytes));
  }
  return unpacked.get(key);
}

// What a head predicts of the listed rows: numbers on the scale of gold, or names, with their probabilities if it has any.
function predictionsOf(source, layer) {
  const table = page.tables[source.table];
  const n = table.gold.length;
  const packed = source.by_layer;
  const place = packed.layers ? packed.layers.indexOf(layer) : -1;
  if (place < 0 || layer === HEAD) {
    return source.predicted.length ? { values: table.kind === "numbers" ? source.predicted.map(Number) : source.predicted } : null;
  }
  if (packed.numbers) {
    const all = partOf(source, "numbers", 2);
    const raw = Array.from({ length: n }, (_, k) => packed.low[place] + packed.step[place] * all[place * n + k]);
    return { values: fitLine(raw, table.gold) };
  }
  const codes = partOf(source, "codes", packed.bytes);
  const shares = packed.shares ? partOf(source, "shares", 1) : null;
  const start = (k) => (place * n + k) * packed.top;
  const name = (code) => packed.names[code] ?? "none";
  const ranked = (k) => Array.from({ length: packed.top }, (_, t) => [name(codes[start(k) + t]), shares[start(k) + t] / 255]);
  return {
    values: table.gold.map((_, k) => name(codes[start(k)])),
    shares: shares ? table.gold.map((_, k) => shares[start(k)] / 255) : null,
    ranked: shares ? ranked : null,
  };
}

// The straight line through the rows that brings predictions nearest to gold.
function fitLine(values, gold) {
  if (!d3.deviation(gold)) { // scores of rows, which are on their own scale already
    return values;
  }
  const mean = d3.mean(values);
  const centre = d3.mean(gold);
  const slope = d3.sum(values, (value, k) => (value - mean) * (gold[k] - centre)) / (d3.sum(values, (value) => (value - mean) ** 2) || 1);
  return values.map((value) => centre + slope * (value - mean));
}

const state = { source: 0, measure: "", beside: "", layer: HEAD, isPicked: false, other: NONE, query: "", filter: "all", sort: -1, isDown: true, n: FIRST_ROWS };
const sourceNow = () => page.sources[state.source];
const measureNow = () => sourceNow().measures.find((measure) => measure.key === state.measure) ?? sourceNow().measures[0];

function besideNow() {
  const other = page.sources[Number(state.beside)];
  const measure = state.beside === "" ? null : other.measures.find(({ key }) => key === measureNow().key);
  return measure ? { other, measure } : null;
}

// A source keeps its colour, whichever is laid over the other.
function linesOf(measure, offset, label, layers) {
  return measure.series.map((series, k) => {
    const isSame = measure.layers.every((name) => layers.includes(name));
    const share = (place) => (measure.layers.length > 1 ? place / (measure.layers.length - 1) : 0) * (layers.length - 1);
    return {
      ...series, layers: measure.layers, label: [label, series.name].filter(Boolean).join(", "),
      positions: measure.layers.map((name, place) => (isSame ? layers.indexOf(name) : share(place))),
      colour: COLOURS[(offset + k) % COLOURS.length], dash: DASHES[(offset + k) % DASHES.length],
    };
  });
}

function showChart() {
  const source = sourceNow();
  const measure = measureNow();
  const beside = besideNow();
  const layers = measure.layers;
  const lines = linesOf(measure, beside ? state.source : 0, beside ? source.label : "", layers);
  if (beside) {
    lines.push(...linesOf(beside.measure, Number(state.beside), beside.other.label, layers));
  }
  const isOverLayers = layers.includes(state.layer);
  at("signs").hidden = measure.key !== "alone";
  at("together").hidden = Boolean(source.reads) || !state.layer;
  at("asks").textContent = `${measure.title}: ${measure.asks || "recorded by the head, on validation"}`;
  at("aside").textContent = [measure.note, measure.aside].filter(Boolean).join(". ");
  const chart = drawLayers(at("chart"), {
    layers, lines, unit: measure.unit, isGain: measure.is_gain, levels: measure.levels, chosen: source.chosen,
    tied: ["alone", "control"].includes(measure.key) ? source.tied : [], layer: isOverLayers ? layers.indexOf(state.layer) : -1,
    label: `${measure.title}, ${measure.unit}, for every layer`,
  });
  const last = layers.length - 1;
  const slider = at("chart");
  slider.setAttribute("aria-valuemax", String(last));
  slider.setAttribute("aria-valuenow", String(Math.max(0, layers.indexOf(state.layer))));
  slider.setAttribute("aria-valuetext", isOverLayers ? readingOf(measure, lines, state.layer) : "no single layer");
  chart.addEventListener("click", () => {
    if (chart.value && source.layers.includes(chart.value.layer)) {
      selectLayer(chart.value.layer);
    }
  });
  at("legend").replaceChildren(...(lines.length > 1 ? lines : []).map((line) => {
    const swatch = make("span", { className: "swatch" });
    swatch.style.background = line.colour;
    return make("span", {}, swatch, line.label || measure.title);
  }));
  at("reading").textContent = isOverLayers ? readingOf(measure, lines, state.layer) : "The head reads all layers together; a click takes one of them.";
  const titles = [["layer", false], ...lines.map((line) => [line.label || measure.unit, true])];
  fillTable(at("numbers"), titles, layers.map((name, k) => [name, ...lines.map((line) => {
    const place = line.positions.findIndex((x) => Math.round(x) === k);
    return place < 0 ? "-" : interval(line, place, measure.unit);
  })]));
  showGap(source, beside);
}

function readingOf(measure, lines, layer) {
  const source = sourceNow();
  const place = measure.layers.indexOf(layer);
  const values = lines.map((line) => {
    const k = line.layers.indexOf(layer);
    return k < 0 ? "" : `${line.label ? `${line.label} ` : ""}${interval(line, k, measure.unit)}`;
  }).filter(Boolean);
  const isAlone = measure.key === "alone";
  const marks = [layer === source.chosen ? "the layer to use" : "", isAlone && source.tied.includes(layer) ? "tied with the best" : ""];
  return `${measure.layers[place]}: ${[values.join("; "), measure.on, ...marks].filter(Boolean).join(", ")}`;
}

function showGap(source, beside) {
  const node = at("gap");
  const gap = beside ? (page.gaps ?? []).find(({ one, other }) => one === source.label && other === beside.other.label)
    ?? flip((page.gaps ?? []).find(({ one, other }) => other === source.label && one === beside.other.label)) : null;
  node.hidden = !beside || measureNow().key !== "alone";
  if (node.hidden) {
    return;
  }
  if (!gap) {
    node.replaceChildren(make("p", {}, "The paired difference needs predictions of both: icecore layers for both runs, then icecore compare."));
    return;
  }
  const drawn = make("div");
  node.replaceChildren(make("p", {}, `${source.label} minus ${beside.other.label}, on the same rows. A band that leaves 0 out is a difference even when all layers are looked at; the first sentence of the page tests the chosen layers alone. ${gap.note}`), drawn);
  const line = { values: gap.values, low: gap.low, high: gap.high, layers: gap.layers, positions: gap.layers.map((_, k) => k), colour: COLOURS[2], label: "" };
  drawLayers(drawn, { layers: gap.layers, lines: [line, { ...line, values: [], positions: [] }], unit: measureNow().unit, isGain: true, label: "paired difference of every layer" });
}

function flip(gap) {
  const turned = (values) => values.map((value) => (value === null ? null : -value));
  return gap && { ...gap, values: turned(gap.values), low: turned(gap.high), high: turned(gap.low) };
}

function selectLayer(layer) {
  state.layer = layer;
  state.isPicked = layer !== HEAD;
  showChart();
  showRows();
}

function moveLayer(event) {
  const layers = measureNow().layers.filter((layer) => sourceNow().layers.includes(layer));
  const moves = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1, PageUp: 5, PageDown: -5, Home: -Infinity, End: Infinity };
  if (event.key in moves && layers.length > 1) {
    event.preventDefault();
    const now = layers.indexOf(state.layer || sourceNow().chosen);
    const place = Math.max(0, now) + moves[event.key] * Number(Boolean(state.layer) || !isFinite(moves[event.key]));
    selectLayer(layers[Math.min(layers.length - 1, Math.max(0, place))]);
  }
}

// --- Rows ---

function rowsNow() {
  const source = sourceNow();
  const table = page.tables[source.table];
  const here = predictionsOf(source, state.layer);
  const there = state.other !== NONE && source.by_layer.layers ? predictionsOf(source, state.other) : null;
  if (!here) {
    return null;
  }
  const errorOf = (predicted, k) => (table.kind === "groups" ? 0 : table.kind === "numbers" ? predicted.values[k] - table.gold[k] : Number(predicted.values[k] !== table.gold[k]));
  if (table.kind !== "words") {
    return table.gold.map((gold, k) => ({
      k, row: table.rows[k], texts: Object.values(table.columns).map((column) => column[k]), gold, here: here.values[k],
      there: there?.values[k], error: errorOf(here, k), otherError: there ? errorOf(there, k) : null, ranked: here.ranked?.(k), share: here.shares?.[k],
    }));
  }
  const sentences = d3.groups(table.rows.map((row, k) => ({ row, k })), (word) => word.row);
  return sentences.map(([row, words]) => {
    const places = words.map(({ k }) => k);
    return {
      row, places, texts: [places.map((k) => table.columns.word[k]).join(" ")], here, there,
      error: d3.sum(places, (k) => errorOf(here, k)), otherError: there ? d3.sum(places, (k) => errorOf(there, k)) : null,
    };
  });
}

const FILTERS = {
  all: ["all rows", () => true],
  wrong: ["wrong here", (row) => row.error !== 0],
  gained: ["right here, wrong at the other layer", (row) => row.error === 0 && row.otherError !== 0],
  lost: ["wrong here, right at the other layer", (row) => row.error !== 0 && row.otherError === 0],
  nearer: ["nearer to gold here than at the other layer", (row) => Math.abs(row.error) < Math.abs(row.otherError)],
  farther: ["farther from gold here than at the other layer", (row) => Math.abs(row.error) > Math.abs(row.otherError)],
};

function filtersFor(table, hasOther) {
  const isNumbers = table.kind === "numbers";
  if (table.kind === "groups") {
    return ["all"];
  }
  return ["all", ...(isNumbers ? [] : ["wrong"]), ...(hasOther ? (isNumbers ? ["nearer", "farther"] : ["gained", "lost"]) : [])];
}

// A sentence with the tags of the words that have one or were wrong.
function taggedWords(row, table) {
  return row.places.flatMap((k) => {
    const [gold, here, there] = [table.gold[k], row.here.values[k], row.there?.values[k] ?? row.here.values[k]];
    const word = table.columns.word[k];
    const isRight = gold === here && gold === there;
    if (isRight && (gold === "O" || table.isAllTagged)) {
      return [`${word} `];
    }
    const tag = isRight ? gold : `${gold} → ${here}${there === here ? "" : ` / ${there}`}`;
    return [make("span", { className: gold === here ? "word" : "word wrong" }, word, make("small", {}, tag)), " "];
  });
}

function showRows() {
  const source = sourceNow();
  const section = at("rows");
  const table = page.tables[source.table];
  const rows = table ? rowsNow() : null;
  section.hidden = !rows;
  if (!rows) {
    return;
  }
  const byLayer = Boolean(source.by_layer.layers);
  const hasOther = byLayer && state.other !== NONE;
  const isNumbers = table.kind === "numbers";
  table.isAllTagged ??= table.kind === "words" && d3.mean(table.gold, (tag) => Number(tag === "O")) < 0.05;
  const nameOf = (layer) => layer || source.reads || "the head, all layers";
  const where = byLayer ? nameOf(state.layer) : nameOf(HEAD);
  at("rows-title").textContent = `What it predicts, row by row (${where})`;
  const nListed = table.kind === "words" ? rows.length : table.gold.length;
  const sample = nListed < table.n_rows ? `An even sample of ${nListed.toLocaleString("en")} of ${table.n_rows.toLocaleString("en")} ${table.noun}. ` : "";
  const scale = isNumbers && byLayer && state.layer ? "Predictions of a layer are brought to the scale of the gold by the straight line that fits these rows best: read them, do not score them. " : "";
  at("rows-note").textContent = `${sample}${scale}${byLayer ? "" : source.missing}`;
  const filters = filtersFor(table, hasOther);
  state.filter = filters.includes(state.filter) ? state.filter : "all";
  fillSelect(at("filter"), filters.map((key) => ({ key, title: FILTERS[key][0] })), state.filter);
  const others = byLayer ? [...(source.reads ? [] : [HEAD]), ...source.by_layer.layers].filter((name) => name !== state.layer) : [];
  fillSelect(at("other"), [{ key: NONE, title: "no other layer" }, ...others.map((key) => ({ key, title: nameOf(key) }))], state.other);
  const words = state.query.toLowerCase().split(/\s+/).filter(Boolean); // all of them are to be in a row as it is shown
  const written = (row) => (table.kind === "words" ? row.places.flatMap((k) => [table.gold[k], row.here.values[k]])
    : [isNumbers ? row.gold.toFixed(2) : row.gold, isNumbers ? row.here.toFixed(2) : row.here]);
  const texts = (row) => [row.row, ...row.texts, ...written(row)].join(" ").toLowerCase();
  const shown = rows.filter((row) => FILTERS[state.filter][1](row) && words.every((word) => texts(row).includes(word)));
  const columns = [
    ["row", true, (row) => row.row, (row) => String(row.row)],
    ...(table.kind === "words" ? [[`sentence, with tags (gold → predicted${hasOther ? ` / ${nameOf(state.other)}` : ""})`, false, (row) => row.texts[0], (row) => taggedWords(row, table)]]
      : Object.keys(table.columns).map((name, place) => [name, false, (row) => row.texts[place], (row) => row.texts[place]])),
    ...(table.kind === "words" ? [] : [
      ["gold", isNumbers, (row) => row.gold, (row) => (isNumbers ? row.gold.toFixed(2) : row.gold)],
      [`predicted, ${where}`, isNumbers, (row) => row.here, (row) => shownPrediction(row.here, row)],
      ...(hasOther ? [[`predicted, ${nameOf(state.other)}`, isNumbers, (row) => row.there, (row) => shownPrediction(row.there, {})]] : []),
    ]),
    ...(table.kind === "groups" ? [] : [[isNumbers ? "predicted - gold" : table.kind === "words" ? "wrong words" : "wrong", true, (row) => Math.abs(row.error), (row) => (isNumbers ? row.error.toFixed(2) : String(row.error))]]),
  ];
  const sorted = state.sort < 0 || state.sort >= columns.length ? columns.length - 1 : state.sort;
  const value = columns[sorted][2];
  const sign = state.isDown ? -1 : 1;
  const surest = (row) => row.share ?? 0; // of equally wrong rows the surest first
  shown.sort((one, other) => sign * (typeof value(one) === "number" ? value(one) - value(other) : compareTexts(value(one), value(other)))
    || surest(other) - surest(one) || one.row - other.row);
  at("rows-count").textContent = `${shown.length.toLocaleString("en")} of ${rows.length.toLocaleString("en")} ${table.noun}`;
  fillTable(at("rows-table"), columns.map(([title, isNumber]) => [title, isNumber]),
    shown.slice(0, state.n).map((row) => columns.map(([, , , text]) => text(row))),
    { sorted, isDown: state.isDown, onSort: (k) => {
      state.isDown = k === sorted ? !state.isDown : columns[k][1];
      state.sort = k;
      showRows();
    } });
  at("more").hidden = shown.length <= state.n;
  showLayerCharts(table, rows);
}

function shownPrediction(value, row) {
  if (typeof value === "number") {
    return value.toFixed(2);
  }
  return row.ranked ? [make("span", { title: row.ranked.map(([name, share]) => `${name} ${(100 * share).toFixed(0)} %`).join(", ") }, `${value} (${(100 * row.share).toFixed(0)} %)`)] : value;
}

function showLayerCharts(table, rows) {
  const [first, second] = [at("confusion"), at("calibration")];
  const names = table.kind === "numbers" ? [] : [...new Set([...table.gold, ...(table.kind === "words" ? rows[0]?.here.values ?? [] : rows.map((row) => row.here))])].sort(compareTexts);
  at("confusion-title").textContent = table.kind === "numbers" ? "Predicted against gold" : names.length > MOST_CELLS ? "Most frequent errors" : "Gold (rows) and predicted (columns)";
  if (table.kind === "numbers") {
    const ends = d3.extent(rows.flatMap((row) => [row.gold, row.here]));
    first.replaceChildren(Plot.plot({
      className: "plot", width: Math.max(first.clientWidth, 260), height: 310, marginLeft: 46, marginTop: 28, marginBottom: 42, ariaLabel: "predictions against gold", style: { fontSize: "12px", background: "none" },
      x: { label: "gold", labelArrow: "none", labelAnchor: "center" }, y: { label: "predicted", labelArrow: "none", grid: true },
      marks: [
        Plot.line([[ends[0], ends[0]], [ends[1], ends[1]]], { stroke: "var(--grey)", strokeDasharray: "3,3" }),
        Plot.dot(rows, { x: "gold", y: "here", r: 2.5, fill: "var(--blue)", fillOpacity: 0.6 }),
        Plot.tip(rows, Plot.pointer({ x: "gold", y: "here", title: (row) => `row ${row.row}\n${row.texts.map((text) => text.slice(0, 120)).join("\n")}`, fill: "var(--card)", stroke: "var(--line)" })),
      ],
    }));
    at("calibration-card").hidden = true;
    return;
  }
  const golds = table.gold;
  const predicted = table.kind === "words" ? rows[0]?.here.values ?? [] : rows.map((row) => row.here);
  const counts = d3.rollups(golds.map((gold, k) => [gold, predicted[k]]), (group) => group.length, ([gold]) => gold, ([, name]) => name);
  const cells = counts.flatMap(([gold, inner]) => inner.map(([name, value]) => ({ x: name, y: gold, value, about: `gold ${gold}\npredicted ${name}\n${value.toLocaleString("en")}` })));
  if (names.length <= MOST_CELLS) {
    drawCells(first, cells, { x: names, y: names, xLabel: null, yLabel: null, label: "gold against predicted", isCount: true });
  } else {
    const wrong = cells.filter((cell) => cell.x !== cell.y).sort((one, other) => other.value - one.value).slice(0, 12);
    fillTable(first, [["gold", false], ["predicted", false], [table.kind === "words" ? "words" : "rows", true]], wrong.map((cell) => [cell.y, cell.x, cell.value.toLocaleString("en")]));
  }
  const hasShares = rows.some((row) => row.share !== undefined && row.share !== null);
  at("calibration-card").hidden = !hasShares;
  if (hasShares) {
    const bins = d3.groups(rows, (row) => Math.min(9, Math.floor(10 * row.share))).map(([, group]) => ({
      sure: 100 * d3.mean(group, (row) => row.share), right: 100 * d3.mean(group, (row) => 1 - row.error), n: group.length,
    })).sort((one, other) => one.sure - other.sure);
    second.replaceChildren(Plot.plot({
      className: "plot", width: Math.max(second.clientWidth, 260), height: 310, marginLeft: 46, marginTop: 28, marginBottom: 42, ariaLabel: "probability of the predicted class against how often it is right", style: { fontSize: "12px", background: "none" },
      x: { domain: [0, 100], label: "probability it gives, %", labelArrow: "none", labelAnchor: "center" }, y: { domain: [0, 100], label: "right, %", labelArrow: "none", grid: true },
      marks: [
        Plot.line([[0, 0], [100, 100]], { stroke: "var(--grey)", strokeDasharray: "3,3" }),
        Plot.line(bins, { x: "sure", y: "right", stroke: "var(--blue)" }),
        Plot.dot(bins, { x: "sure", y: "right", r: (bin) => 2 + 6 * Math.sqrt(bin.n / rows.length), fill: "var(--blue)" }),
        Plot.tip(bins, Plot.pointer({ x: "sure", y: "right", title: (bin) => `gives ${bin.sure.toFixed(0)} %\nright ${bin.right.toFixed(0)} %\nn = ${bin.n}`, fill: "var(--card)", stroke: "var(--line)" })),
      ],
    }));
  }
}

// --- A grid of points, as of a sweep ---

function showGrid() {
  const { points, layers, unit, chosen, note } = page.grid;
  const cells = points.flatMap((point) => point.values.map((value, k) => ({
    x: point.layers[k], y: point.label, value, point, isMarked: point.label === chosen.point && point.layers[k] === chosen.layer,
    about: `${point.label}\n${point.layers[k]}\n${value === null ? "no score" : value.toFixed(1)}`,
  }))).filter((cell) => cell.value !== null);
  const node = at("grid");
  let picked = cells.find((cell) => cell.isMarked) ?? cells[0];
  const pick = (cell) => {
    picked = cell;
    at("cell").textContent = `${cell.y}, ${cell.x}: ${cell.value.toFixed(1)} ${unit}${cell.point.about ? `; ${cell.point.about}` : ""}.`;
    const chart = drawCells(node, cells, {
      x: layers, y: points.map((point) => point.label), xLabel: "layer", yLabel: null, picked, label: `${unit} of every layer at every point`,
    });
    chart.addEventListener("click", () => chart.value && pick(chart.value));
  };
  at("grid-note").textContent = note;
  node.addEventListener("keydown", (event) => {
    const moves = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1] };
    if (event.key in moves) {
      event.preventDefault();
      const [dx, dy] = moves[event.key];
      const clamp = (place, list) => list[Math.min(list.length - 1, Math.max(0, place))];
      const label = clamp(points.findIndex((point) => point.label === picked.y) + dy, points).label;
      const layer = clamp(layers.indexOf(picked.x) + dx, layers);
      pick(cells.find((cell) => cell.y === label && cell.x === layer) ?? picked);
    }
  });
  pick(picked);
}

// --- Start ---

function showSource() {
  const source = sourceNow();
  at("advice").textContent = (page.begin ? `${source.label}: ` : "") + source.advice;
  const options = source.measures.map((measure) => ({ key: measure.key, title: measure.title, group: measure.aside ? "read with care" : "" }));
  state.measure = options.some(({ key }) => key === state.measure) ? state.measure : options[0]?.key ?? "";
  fillSelect(at("measure"), options, state.measure);
  const others = page.sources.map((other, k) => ({ key: String(k), title: other.label })).filter(({ key }) => Number(key) !== state.source);
  state.beside = others.some(({ key }) => key === state.beside) ? state.beside : "";
  fillSelect(at("beside"), [{ key: "", title: "nothing" }, ...others], state.beside);
  state.layer = state.isPicked && source.layers.includes(state.layer) ? state.layer : source.reads;
  state.other = state.other && source.layers.includes(state.other) ? state.other : NONE;
  at("explore").hidden = !source.measures.length;
  if (source.measures.length) {
    showChart();
  }
  showRows();
}

function startExploring() {
  fillSelect(at("source"), page.sources.map((source, k) => ({ key: String(k), title: source.label })), String(state.source));
  const listen = (id, event, act) => at(id).addEventListener(event, (happened) => act(happened.target.value, happened));
  listen("source", "change", (value) => {
    state.beside = state.beside === value ? String(state.source) : state.beside; // the two change places
    state.source = Number(value);
    showSource();
  });
  listen("measure", "change", (value) => { state.measure = value; showChart(); });
  listen("beside", "change", (value) => { state.beside = value; showChart(); });
  listen("other", "change", (value) => { state.other = value; state.n = FIRST_ROWS; showRows(); });
  listen("filter", "change", (value) => { state.filter = value; state.n = FIRST_ROWS; showRows(); });
  listen("search", "input", (value) => { state.query = value; state.n = FIRST_ROWS; showRows(); });
  at("more").addEventListener("click", () => { state.n += 100; showRows(); });
  at("together").addEventListener("click", () => { state.isPicked = false; selectLayer(HEAD); });
  at("chart").addEventListener("keydown", moveLayer);
  let width = root.clientWidth;
  addEventListener("resize", () => {
    if (root.clientWidth !== width) {
      width = root.clientWidth;
      showSource();
    }
  });
  showSource();
  if (page.sources.length > 1 && page.begin) {
    state.source = page.begin.source;
    state.beside = String(page.begin.beside);
    fillSelect(at("source"), page.sources.map((source, k) => ({ key: String(k), title: source.label })), String(state.source));
    showSource();
  }
}

if (page.sources.length) {
  startExploring();
}
if (page.grid) {
  at("plans").hidden = false;
  showGrid();
}
