// Draws the figures of a page when they come into view; the drawing library is on the page, compressed.
"use strict";

const NARROW = 600; // pixels, below which a toolbar would cover the figure

const plotly = (async () => {
  const bytes = Uint8Array.from(atob(document.getElementById("plotly").textContent), (of) => of.charCodeAt(0));
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

// Leaves the width of a phone to a matrix: without the names of columns, and with its scale below.
function narrowed({ data, layout, config }) {
  if (window.innerWidth < NARROW && data.length === 1 && data[0].type === "heatmap" && layout.yaxis?.scaleanchor) {
    Object.assign(data[0].colorbar, { orientation: "h", thickness: 10, y: -0.1 });
    Object.assign(layout.xaxis, { showticklabels: false });
    layout.height = 1.25 * window.innerWidth;
  }
  return { data, layout, config };
}

async function drawFigure(place) {
  const drawing = await plotly;
  const { data, layout, config } = narrowed(JSON.parse(place.nextElementSibling.textContent));
  place.style.height = `${layout.height ?? 450}px`;
  await drawing.newPlot(place, data, layout, configured(config));
  place.dataset.drawn = "true";
}

// Calls draw(element) once for each element, when it is about to be seen, and for all of them before printing.
function whenSeen(elements, draw) {
  const waiting = new Set(elements);
  const begin = (element) => waiting.delete(element) && draw(element);
  const observer = new IntersectionObserver(
    (entries) => entries.filter((entry) => entry.isIntersecting).forEach((entry) => begin(entry.target)),
    { rootMargin: "600px" },
  );
  waiting.forEach((element) => observer.observe(element));
  window.addEventListener("beforeprint", () => waiting.forEach(begin));
}

addEventListener("DOMContentLoaded", () => whenSeen(document.querySelectorAll(".figure"), drawFigure));
