// What a reader does on a page: point at samples or tap them, choose a map's layout and colours, choose an anchor, copy.
"use strict";

const SHOWN = 128; // pixels of a picture next to the pointer
const LONG = 40; // letters of an id that is shown whole
const CROWD = 3000; // points above which a map is drawn by WebGL

const dataOf = (name) => {
  const element = document.getElementById(name);
  return element && JSON.parse(element.textContent);
};
const numbersOf = (text, kind) => new kind(Uint8Array.from(atob(text), (of) => of.charCodeAt(0)).buffer);
const make = (tag, kind, text = "") => Object.assign(document.createElement(tag), { className: kind, textContent: text });

// --- pictures of samples

const album = (() => {
  const said = dataOf("album");
  if (!said) return null;
  const picture = new Image();
  picture.src = said.source;
  return { ...said, picture, ready: picture.decode() };
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

function tileOf(tile, words, size = 56) {
  if (tile < 0 || !album) return "";
  const canvas = make("canvas", "tile");
  Object.assign(canvas.dataset, { tile, words });
  canvas.style.width = canvas.style.height = `${size}px`;
  paintTile(canvas);
  return canvas;
}

function paintTile(canvas) {
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", canvas.dataset.words);
  canvas.addEventListener("mouseenter", (event) => hint.show(event, Number(canvas.dataset.tile), canvas.dataset.words));
  canvas.addEventListener("mouseleave", () => hint.hide());
  return paint(canvas, Number(canvas.dataset.tile), 2 * (parseInt(canvas.style.width) || 56));
}

// --- what stands next to the pointer

const hint = (() => {
  const box = make("div", "hint");
  const canvas = make("canvas", "");
  const said = make("p", "");
  box.append(canvas, said);
  box.hidden = true;
  addEventListener("DOMContentLoaded", () => document.body.append(box));
  for (const event of ["scroll", "pointerdown"]) addEventListener(event, () => (box.hidden = true), { passive: true });
  return {
    show(event, tile, words) {
      said.textContent = words;
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

// --- a choice among a few words

function choice(title, words, choose) {
  const label = make("label", "choice", `${title} `);
  const select = make("select", "");
  words.forEach((word) => select.append(make("option", "", word)));
  select.addEventListener("change", () => choose(select.value));
  label.append(select);
  if (words.length < 2) label.hidden = true;
  return label;
}

// --- maps of samples

async function drawMaps(place) {
  const said = dataOf(place.dataset.of);
  if (!said.maps) return drawMap(place, said);
  const controls = make("div", "controls");
  const show = async (wanted) => {
    const area = make("div", "");
    place.replaceChildren(controls, area);
    await drawMap(area, said.maps.find(({ name }) => name === wanted));
    place.dataset.drawn = wanted;
  };
  const names = said.maps.map(({ name }) => name);
  controls.append(choice("class", names, show));
  await show(names[0]);
}

async function drawMap(place, said) {
  const drawing = await plotly;
  const rows = numbersOf(said.rows, Int32Array);
  const tiles = numbersOf(said.tiles, Int32Array);
  const colourings = Object.fromEntries(
    Object.entries(said.colours).map(([name, of]) => [name, { ...of, of: numbersOf(of.of, Int16Array) }]),
  );
  const panels = said.panels.map(({ name, layouts }) => ({
    name,
    layouts: Object.fromEntries(
      Object.entries(layouts).map(([kind, { x, y }]) => [kind, [x, y].map((of) => numbersOf(of, Uint16Array))]),
    ),
  }));
  const chosen = { layout: Object.keys(panels[0].layouts)[0], colour: Object.keys(colourings)[0], only: null };
  const controls = make("div", "controls");
  const legend = make("div", "legend");
  const plots = make("div", "panels");
  place.append(controls, legend, plots);
  controls.append(
    choice("layout", Object.keys(panels[0].layouts), (value) => ((chosen.layout = value), draw())),
    choice("colour", Object.keys(colourings), (value) => ((chosen.colour = value), (chosen.only = null), draw())),
  );
  const areas = panels.map(({ name }) => {
    const figure = make("figure", "panel");
    const area = make("div", "plot");
    figure.append(area, make("figcaption", "", panels.length > 1 || name ? name : ""));
    plots.append(figure);
    area.addEventListener("mousemove", (event) => under !== null && show(event)); // again after a scroll hid it
    return area;
  });

  const wordsOf = (point) => {
    const spoken = Object.entries(colourings).filter(([, { quiet }]) => !quiet);
    const named = spoken.map(([kind, { names, of }]) => (of[point] < 0 ? "" : [kind, names[of[point]]]));
    const told = named.filter(Boolean).map(([kind, name], place) => (place ? `${kind}: ${name}` : name));
    const text = said.texts[point] ?? "";
    return [...told, said.labels?.[point], said.ids[point] ?? `row ${rows[point]}`, text].filter(Boolean).join("\n");
  };

  let under = null; // the point under the pointer
  const show = (event) => hint.show(event, tiles[under] ?? -1, wordsOf(under));

  function tracesOf([x, y]) {
    const { of, names, colors } = colourings[chosen.colour] ?? { of: null, names: [""], colors: [said.color] };
    const kind = x.length > CROWD ? "scattergl" : "scatter";
    const size = x.length > CROWD ? 3 : 6;
    const points = [...x.keys()].filter((point) => chosen.only === null || of[point] === chosen.only);
    const back = chosen.only === null ? [] : [...x.keys()].filter((point) => of[point] !== chosen.only);
    const trace = (some, color, opacity) => ({
      type: kind,
      mode: "markers",
      x: some.map((point) => x[point]),
      y: some.map((point) => y[point]),
      customdata: some,
      hoverinfo: "none",
      marker: { size, opacity, color },
    });
    const colorOf = (point) => (of === null ? colors[0] : of[point] < 0 ? "#8a8f99" : colors[of[point] % colors.length]);
    return [trace(back, "rgba(128,128,128,0.25)", 0.5), trace(points, points.map(colorOf), 0.85)];
  }

  function drawLegend() {
    legend.replaceChildren();
    const colouring = colourings[chosen.colour];
    if (!colouring || colouring.names.length > said.most) return;
    colouring.names.forEach((name, category) => {
      const button = make("button", "", name);
      button.title = name;
      button.style.setProperty("--of", colouring.colors[category % colouring.colors.length]);
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
      modebar: { bgcolor: "rgba(0,0,0,0)", color: "#8a8f99", activecolor: said.color },
    };
    const config = configured({ ...said.config, scrollZoom: true });
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
    place.dataset.drawn = chosen.layout;
  }
  await draw();
}

// --- what pulls and pushes an anchor

const called = ({ name, place, text }) => [name, place, text].filter(Boolean).join(", ");

const middle = (words) => (words.length > LONG ? `${words.slice(0, LONG / 2 - 1)}…${words.slice(-LONG / 2)}` : words);

// What a sample is called; the page shortens a long name or text at its end, an id in its middle.
function spoken({ name, place, text }, more = "") {
  const said = make("span", "sample");
  for (const [kind, words, shown] of [["name", name], ["place", place, middle(place || "")], ["place", more], ["text", text]]) {
    if (words) said.append(Object.assign(make("span", kind, shown || words), { title: words }));
  }
  return said;
}

function drawAnchors(place) {
  const { anchors, captions } = dataOf(place.dataset.of);
  const strip = make("div", "strip");
  const found = make("div", "forces");
  place.append(strip, found);

  const side = (title, references, kind, largest) => {
    const column = make("div", kind);
    column.append(make("h3", "", title));
    references.forEach((reference) => {
      const { tile, cosine, strength, note } = reference;
      const line = make("div", "force");
      const bar = make("span", strength < 0 ? "bar against" : "bar");
      bar.style.width = `${(100 * Math.abs(strength)) / largest}%`;
      const room = make("span", "room");
      room.append(bar);
      const right = make("span", "right");
      const numbers = [`cosine ${cosine.toFixed(3)}`, Math.abs(strength).toPrecision(3), note];
      right.append(room, spoken(reference, numbers.filter(Boolean).join(" · ")));
      line.append(tileOf(tile, called(reference), 44), right);
      column.append(line);
    });
    return column;
  };

  function choose(number) {
    const { pull, push, total } = anchors[number];
    const largest = Math.max(...[...pull, ...push].map(({ strength }) => Math.abs(strength)), 1e-30);
    [...strip.children].forEach((button, at) => button.setAttribute("aria-pressed", String(at === number)));
    const anchor = make("div", "chosen");
    anchor.append(tileOf(anchors[number].tile, called(anchors[number]), 44), spoken(anchors[number]));
    const sides = [side(captions.pull, pull, "pull", largest), side(captions.push, push, "push", largest)];
    found.replaceChildren(anchor, ...sides, make("p", "", total));
  }
  anchors.forEach((anchor, number) => {
    const button = make("button", "anchor");
    button.append(tileOf(anchor.tile, called(anchor), 44) || spoken(anchor));
    button.addEventListener("click", () => choose(number));
    strip.append(button);
  });
  choose(0);
  place.dataset.drawn = "true";
}

// --- lists and commands to be copied

async function copy(button) {
  const before = button.previousElementSibling; // a file within the page, or the words themselves
  const file = before.download && Uint8Array.from(atob(before.href.split(",")[1]), (of) => of.charCodeAt(0));
  const text = file ? new TextDecoder().decode(file) : before.textContent;
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
