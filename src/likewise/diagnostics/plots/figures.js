// Draws the figures of a page when they come into view; the drawing library is on the page, compressed.
"use strict";

const NARROW = 600; // pixels, below which a toolbar would cover the figure

const plotly = (async () => {
  const bytes = Uint8Array.from(atob(document.getElementById("plotly").textContent), (letter) => letter.charCodeAt(0));
  const script = document.createElement("script");
  try {
    const plain = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    script.textContent = await new Response(plain).text();
  } catch {
    const said = document.createElement("p");
    said.className = "lead";
    said.textContent = "The figures need a browser of 2023 or later.";
    document.body.prepend(said);
    throw new Error("no DecompressionStream");
  }
  document.head.append(script);
  return window.Plotly;
})();

function configured(config) {
  return window.innerWidth < NARROW ? { ...config, displayModeBar: false } : config;
}

// --- figures in the width of a phone

const LETTERS = 16; // of a name next to a matrix
const NAMED = 24; // rows of a matrix; names of more would lie on each other
const [TITLE, AXIS] = [44, 52]; // pixels above and below a panel

const shortened = (text, most) => {
  const letters = text.match(/&\w+;|./gsu) ?? [];
  return letters.length <= most ? text : `${letters.slice(0, most - 1).join("")}…`;
};
const wrapped = (text) => text.replace(/(.{1,36})(?: +|$)/g, "$1<br>").replace(/<br>$/, "");

// Leaves the width to a matrix, with its scale above and short names.
function narrowMatrix([{ colorbar }], layout) {
  Object.assign(colorbar, { orientation: "h", thickness: 10, y: 1.02, yanchor: "bottom" });
  for (const axis of [layout.xaxis, layout.yaxis]) {
    if (axis.ticktext?.length > NAMED) axis.showticklabels = false;
    axis.ticktext = axis.ticktext?.map((name) => shortened(name, LETTERS));
  }
  layout.xaxis.tickangle = -90;
  layout.height = 1.4 * window.innerWidth;
}

// Puts panels that stand side by side below each other, each with its title and its axes.
function stack(data, layout) {
  const axesOf = (letter) => {
    const names = new Set(data.map((trace) => trace[`${letter}axis`] ?? letter));
    return [...names].map((name) => layout[`${letter}axis${name.slice(1)}`]);
  };
  const [across, up] = [axesOf("x"), axesOf("y")];
  if (across.length !== up.length || !across.some(({ domain }) => domain?.[0] > 0)) return;
  const titles = across.map(({ domain: [left, right] }, index) => {
    const [middle, top] = [(left + right) / 2, up[index].domain[1]];
    return layout.annotations?.find(({ x, y }) => Math.abs(x - middle) + Math.abs(y - top) < 1e-6);
  });
  const around = layout.margin.t + layout.margin.b;
  const area = layout.height - around;
  const tall = area * (up[0].domain[1] - up[0].domain[0]);
  const whole = across.length * (TITLE + tall + AXIS) - AXIS;
  across.forEach((axis, index) => {
    const above = index * (TITLE + tall + AXIS) + TITLE;
    axis.domain = [0, 1];
    up[index].domain = [1 - (above + tall) / whole, 1 - above / whole].map((share) => Math.max(0, share));
    Object.assign(up[index], { showticklabels: true, title: up[index].title?.text ? up[index].title : up[0].title });
    const title = titles[index];
    if (title) Object.assign(title, { x: 0.5, y: up[index].domain[1], text: wrapped(title.text), font: { size: 13 } });
  });
  layout.updatemenus?.forEach((menu) => (menu.y = 1 + ((menu.y - 1) * area) / whole));
  layout.height = whole + around;
}

function narrowed({ data, layout, config }) {
  if (window.innerWidth < NARROW) {
    layout.font = { ...layout.font, size: 11 };
    if (data.length === 1 && data[0].type === "heatmap" && layout.yaxis?.scaleanchor) narrowMatrix(data, layout);
    else stack(data, layout);
  }
  return { data, layout, config };
}

async function drawFigure(element) {
  const drawing = await plotly;
  const { data, layout, config } = narrowed(JSON.parse(element.nextElementSibling.textContent));
  element.style.height = `${layout.height ?? 450}px`;
  await drawing.newPlot(element, data, layout, configured(config));
  element.dataset.drawn = "true";
}

addEventListener("DOMContentLoaded", () => whenSeen(document.querySelectorAll(".figure"), drawFigure));
