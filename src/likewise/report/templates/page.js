// What a reader does on a page: point at samples or tap them, choose a map's layout and colours, choose an anchor, copy.
"use strict";

const SHOWN = 128; // pixels of a picture next to the pointer
const LONG = 40; // letters of an id that is shown whole
const CROWD = 3000; // points above which a map is drawn by WebGL

const dataOf = (name) => {
  const element = document.getElementById(name);
  return element && JSON.parse(element.textContent);
};
const bytesOf = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
const numbersOf = (text, NumberArray) => new NumberArray(bytesOf(text).buffer);
const make = (tag, className, textContent = "") => Object.assign(document.createElement(tag), { className, textContent });

// --- pictures of samples

const album = (() => {
  const data = dataOf("album");
  if (!data) return null;
  const picture = Object.assign(new Image(), { src: data.source });
  return { ...data, picture, ready: picture.decode() };
})();

async function paint(canvas, tile, size) {
  const { picture, columns, width, height, ready } = album;
  await ready;
  const factor = size / Math.max(width, height);
  canvas.width = Math.round(width * factor);
  canvas.height = Math.round(height * factor);
  const pen = canvas.getContext("2d");
  pen.imageSmoothingEnabled = factor < 1;
  const [left, top] = [(tile % columns) * width, Math.floor(tile / columns) * height];
  pen.drawImage(picture, left, top, width, height, 0, 0, canvas.width, canvas.height);
}

function tileOf(tile, caption, size) {
  if (tile < 0 || !album) return "";
  const canvas = make("canvas", "tile");
  Object.assign(canvas.dataset, { tile, caption });
  canvas.style.width = canvas.style.height = `${size}px`;
  paintTile(canvas);
  return canvas;
}

function paintTile(canvas) {
  const { tile, caption } = canvas.dataset;
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", caption);
  canvas.addEventListener("mouseenter", (event) => hint.show(event, Number(tile), caption));
  canvas.addEventListener("mouseleave", () => hint.hide());
  return paint(canvas, Number(tile), 2 * (parseInt(canvas.style.width) || 56));
}

// --- what stands next to the pointer

const hint = (() => {
  const box = make("div", "hint");
  const canvas = make("canvas", "");
  const text = make("p", "");
  box.append(canvas, text);
  box.hidden = true;
  addEventListener("DOMContentLoaded", () => document.body.append(box));
  for (const event of ["scroll", "pointerdown"]) addEventListener(event, () => (box.hidden = true), { passive: true });
  return {
    show(event, tile, caption) {
      text.textContent = caption;
      canvas.hidden = tile < 0 || !album;
      if (!canvas.hidden) paint(canvas, tile, SHOWN);
      box.hidden = false;
      const { offsetWidth, offsetHeight } = box;
      const left = event.clientX + 16 + offsetWidth > innerWidth ? event.clientX - offsetWidth - 12 : event.clientX + 16;
      box.style.left = `${Math.max(4, left)}px`;
      box.style.top = `${Math.max(4, Math.min(event.clientY + 12, innerHeight - offsetHeight - 4))}px`;
    },
    hide: () => (box.hidden = true),
  };
})();

// --- a choice among a few names

function choice(title, names, choose) {
  const label = make("label", "choice", `${title} `);
  const select = make("select", "");
  names.forEach((name) => select.append(make("option", "", name)));
  select.addEventListener("change", () => choose(select.value));
  label.append(select);
  label.hidden = names.length < 2;
  return label;
}

// --- maps of samples

async function drawMaps(element) {
  const data = dataOf(element.dataset.source);
  if (!data.maps) return drawMap(element, data);
  const controls = make("div", "controls");
  const show = async (wanted) => {
    const area = make("div", "");
    element.replaceChildren(controls, area);
    await drawMap(area, data.maps.find(({ name }) => name === wanted));
    element.dataset.drawn = wanted;
  };
  const names = data.maps.map(({ name }) => name);
  controls.append(choice("class", names, show));
  await show(names[0]);
}

const mapped = (entries, convert) => Object.fromEntries(Object.entries(entries).map(([name, entry]) => [name, convert(entry)]));

async function drawMap(element, data) {
  const drawing = await plotly;
  const rows = numbersOf(data.rows, Int32Array);
  const tiles = numbersOf(data.tiles, Int32Array);
  const colourings = mapped(data.colours, (colouring) => ({ ...colouring, of: numbersOf(colouring.of, Int16Array) }));
  const panels = data.panels.map(({ name, layouts }) => ({
    name,
    layouts: mapped(layouts, ({ x, y }) => [numbersOf(x, Uint16Array), numbersOf(y, Uint16Array)]),
  }));
  const chosen = { layout: Object.keys(panels[0].layouts)[0], colour: Object.keys(colourings)[0], only: null };
  const controls = make("div", "controls");
  const legend = make("div", "legend");
  const plots = make("div", "panels");
  element.append(controls, legend, plots);
  controls.append(
    choice("layout", Object.keys(panels[0].layouts), (value) => ((chosen.layout = value), draw())),
    choice("colour", Object.keys(colourings), (value) => ((chosen.colour = value), (chosen.only = null), draw())),
  );
  const areas = panels.map(({ name }) => {
    const figure = make("figure", "panel");
    const area = make("div", "plot");
    figure.append(area, make("figcaption", "", name));
    plots.append(figure);
    area.addEventListener("mousemove", (event) => under !== null && show(event)); // again after a scroll hid it
    return area;
  });

  const captionOf = (point) => {
    const named = Object.entries(colourings).filter(([, { quiet, of }]) => !quiet && of[point] >= 0);
    const categories = named.map(([title, { names, of }], number) => (number ? `${title}: ` : "") + names[of[point]]);
    const lines = [...categories, data.labels?.[point], data.ids[point] ?? `row ${rows[point]}`, data.texts[point]];
    return lines.filter(Boolean).join("\n");
  };

  let under = null; // the point under the pointer
  const show = (event) => hint.show(event, tiles[under] ?? -1, captionOf(under));

  function tracesOf([x, y]) {
    const { of: categories, colors } = colourings[chosen.colour] ?? { of: null, colors: [data.color] };
    const crowded = x.length > CROWD;
    const isShown = (point) => chosen.only === null || categories[point] === chosen.only;
    const points = [...x.keys()].filter(isShown);
    const back = [...x.keys()].filter((point) => !isShown(point));
    const trace = (some, color, opacity) => ({
      type: crowded ? "scattergl" : "scatter",
      mode: "markers",
      x: some.map((point) => x[point]),
      y: some.map((point) => y[point]),
      customdata: some,
      hoverinfo: "none",
      marker: { size: crowded ? 3 : 6, opacity, color },
    });
    const colorOf = (point) => {
      const category = categories === null ? 0 : categories[point];
      return category < 0 ? "#8a8f99" : colors[category % colors.length];
    };
    return [trace(back, "rgba(128,128,128,0.25)", 0.5), trace(points, points.map(colorOf), 0.85)];
  }

  function drawLegend() {
    legend.replaceChildren();
    const colouring = colourings[chosen.colour];
    if (!colouring || colouring.names.length > data.most) return;
    colouring.names.forEach((name, category) => {
      const button = make("button", "", name);
      button.title = name;
      button.style.setProperty("--category", colouring.colors[category % colouring.colors.length]);
      button.setAttribute("aria-pressed", String(chosen.only === category));
      button.addEventListener("click", () => {
        chosen.only = chosen.only === category ? null : category;
        draw();
      });
      legend.append(button);
    });
  }

  async function draw() {
    drawLegend();
    const axis = { visible: false, fixedrange: false };
    const layout = {
      margin: { l: 4, r: 4, t: 4, b: 4 },
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      xaxis: axis,
      yaxis: { ...axis },
      showlegend: false,
      hovermode: "closest",
      hoverdistance: 12,
      dragmode: "pan",
      modebar: { bgcolor: "rgba(0,0,0,0)", color: "#8a8f99", activecolor: data.color },
    };
    const config = configured({ ...data.config, scrollZoom: true });
    for (const [number, area] of areas.entries()) {
      const points = panels[number].layouts[chosen.layout];
      area.parentElement.hidden = !points;
      if (!points) continue;
      await drawing.react(area, tracesOf(points), layout, config);
      for (const event of ["plotly_hover", "plotly_click", "plotly_unhover"]) area.removeAllListeners(event);
      for (const event of ["plotly_hover", "plotly_click"]) {
        area.on(event, ({ event, points: [{ customdata }] }) => {
          under = customdata;
          show(event);
        });
      }
      area.on("plotly_unhover", () => {
        under = null;
        hint.hide();
      });
    }
    element.dataset.drawn = chosen.layout;
  }
  await draw();
}

// --- what pulls and pushes an anchor

const middle = (text) => (text.length > LONG ? `${text.slice(0, LONG / 2 - 1)}…${text.slice(-LONG / 2)}` : text);
const tileOfSample = (sample) => tileOf(sample.tile, [sample.name, sample.place, sample.text].filter(Boolean).join(", "), 44);

// What a sample is called; the page shortens a long name or text at its end, an id in its middle.
function nameOf({ name, place: id, text }, more = "") {
  const label = make("span", "sample");
  for (const [part, whole, shown] of [["name", name], ["place", id, middle(id || "")], ["place", more], ["text", text]]) {
    if (whole) label.append(Object.assign(make("span", part, shown || whole), { title: whole }));
  }
  return label;
}

function drawAnchors(element) {
  const { anchors, captions } = dataOf(element.dataset.source);
  const strip = make("div", "strip");
  const forces = make("div", "forces");
  element.append(strip, forces);

  const side = (title, references, direction, largest) => {
    const column = make("div", direction);
    column.append(make("h3", "", title));
    references.forEach((reference) => {
      const { cosine, strength, note } = reference;
      const line = make("div", "force");
      const bar = make("span", strength < 0 ? "bar against" : "bar");
      bar.style.width = `${(100 * Math.abs(strength)) / largest}%`;
      const room = make("span", "room");
      room.append(bar);
      const right = make("span", "right");
      const numbers = [`cosine ${cosine.toFixed(3)}`, Math.abs(strength).toPrecision(3), note];
      right.append(room, nameOf(reference, numbers.filter(Boolean).join(" · ")));
      line.append(tileOfSample(reference), right);
      column.append(line);
    });
    return column;
  };

  function choose(number) {
    const { pull, push, total } = anchors[number];
    const largest = Math.max(...[...pull, ...push].map(({ strength }) => Math.abs(strength)), 1e-30);
    [...strip.children].forEach((button, at) => button.setAttribute("aria-pressed", String(at === number)));
    const anchor = make("div", "chosen");
    anchor.append(tileOfSample(anchors[number]), nameOf(anchors[number]));
    const sides = [side(captions.pull, pull, "pull", largest), side(captions.push, push, "push", largest)];
    forces.replaceChildren(anchor, ...sides, make("p", "", total));
  }
  anchors.forEach((anchor, number) => {
    const button = make("button", "anchor");
    button.append(tileOfSample(anchor) || nameOf(anchor));
    button.addEventListener("click", () => choose(number));
    strip.append(button);
  });
  choose(0);
  element.dataset.drawn = "true";
}

// --- lists and commands to be copied

async function copy(button) {
  const before = button.previousElementSibling; // a file within the page, or the text itself
  const text = before.download ? new TextDecoder().decode(bytesOf(before.href.split(",")[1])) : before.textContent;
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = Object.assign(document.createElement("textarea"), { value: text }); // a page from a plain server
    button.after(area);
    area.select();
    document.execCommand("copy");
    area.remove();
    button.focus();
  }
  button.textContent = "Copied";
  button.addEventListener("blur", () => (button.textContent = "Copy"), { once: true });
}

addEventListener("DOMContentLoaded", () => {
  for (const button of document.querySelectorAll("button.copy")) {
    button.addEventListener("click", () => copy(button));
  }
  if (album) whenSeen(document.querySelectorAll("canvas.tile"), paintTile);
  whenSeen(document.querySelectorAll(".map"), drawMaps);
  whenSeen(document.querySelectorAll(".anchors"), drawAnchors);
});
