// Which plots are there, and when are they drawn again? plotly.js comes after the tables, which do not wait for it.

import { el } from "./dom.js";
import { FIGURES } from "./figures.js";
import { styleOf, theme } from "./style.js";

const FINE_POINTER = matchMedia("(pointer: fine)");
const DARK = matchMedia("(prefers-color-scheme: dark)");
const SVG = "http://www.w3.org/2000/svg";

export class Plots {
  #plots = new Map();
  #legend;
  #latest = null;
  #drawn = "";

  constructor(place, legend) {
    this.#legend = legend;
    for (const figure of FIGURES) {
      const plot = el("div", { class: "plot" });
      const now = el("p", { class: "legend" });
      place.append(el("figure", { class: "card", "data-figure": figure.name },
        el("figcaption", {}, el("h3", {}, figure.title), el("span", { class: "quiet" }, figure.note)), now, plot));
      this.#plots.set(figure, { plot, now });
    }
    DARK.addEventListener("change", () => this.#draw());
  }

  /** Fetch plotly.js, then draw what has come in meanwhile. */
  async load() {
    const script = el("script", { src: new URL("plotly.min.js", import.meta.url) });
    await new Promise((resolve, reject) => {
      script.addEventListener("load", resolve);
      script.addEventListener("error", () => reject(new Error("The plots' library could not be loaded.")));
      document.head.append(script);
    });
    this.#draw();
  }

  show(past, status) {
    this.#latest = { points: past.points, marks: past.marks(), span: past.span, paths: status.paths };
    const news = [past.span, past.points.at(-1)?.at, past.events.at(-1)?.id, status.paths.length].join();
    if (news !== this.#drawn) this.#draw();
    this.#drawn = news;
  }

  #draw() {
    if (this.#latest === null) return;
    const { points, marks, span, paths } = this.#latest;
    const scene = { points, paths: paths.map((path, place) => ({ ...path, style: styleOf(place) })), theme: theme() };
    for (const [figure, { plot, now }] of this.#plots) {
      now.replaceChildren(...figure.now(scene).map((entry) => legendEntry(entry)));
      if (window.Plotly === undefined) continue;
      const layout = mergedLayout(figure, scene, figure.isOverTime ? within(marks, points) : [], span);
      window.Plotly.react(plot, figure.traces(scene), layout, { displayModeBar: false, responsive: true });
    }
    this.#legend.replaceChildren(...markLegend(within(marks, points)));
  }
}

function within(marks, points) {
  return points.length === 0 ? [] : marks.filter((mark) => mark.at >= points[0].at - points[0].seconds);
}

function mergedLayout(figure, { theme: colours, points }, marks, span) {
  const isTouched = !FINE_POINTER.matches;
  const axis = { gridcolor: colours.line, zerolinecolor: colours.line, linecolor: colours.line, fixedrange: isTouched };
  const time = { ...axis, type: "date", range: timeRange(points), nticks: 6, tickformat: "%H:%M" };
  return {
    paper_bgcolor: "transparent",
    plot_bgcolor: "transparent",
    showlegend: false,
    height: 230,
    uirevision: span, // a zoom survives new points
    font: { family: "system-ui, sans-serif", size: 12, color: colours.muted },
    margin: { t: 22, r: 12, b: 30, l: 46 },
    dragmode: isTouched ? false : "zoom",
    hovermode: "x unified",
    hoverlabel: { bgcolor: colours.card, bordercolor: colours.line, font: { color: colours.ink } },
    xaxis: figure.isOverTime ? time : { ...axis, ...figure.xaxis },
    yaxis: { ...axis, rangemode: "tozero", nticks: 5, ...figure.yaxis },
    shapes: marks.map((mark) => markLine(mark, colours)),
    annotations: marks.map((mark) => markSign(mark, colours)),
    ...(figure.layout ?? {}),
  };
}

/** At least five minutes, so that the first points do not fill the whole width. */
function timeRange(points) {
  if (points.length === 0) return [new Date(Date.now() - 300_000), new Date()];
  const last = points.at(-1).at;
  const first = Math.min(points[0].at, last - 300);
  return [new Date(first * 1000), new Date(last * 1000)];
}

function markLine(mark, colours) {
  const at = new Date(mark.at * 1000);
  const line = { color: colours[mark.tone], width: 1, dash: "dot" };
  return { type: "line", x0: at, x1: at, yref: "paper", y0: 0, y1: 1, line };
}

/** A sign above its line; what it means is shown to a pointer, and listed under Events for everybody. */
function markSign(mark, colours) {
  return {
    x: new Date(mark.at * 1000),
    yref: "paper",
    y: 1,
    yanchor: "bottom",
    showarrow: false,
    text: mark.sign,
    font: { size: 11, color: colours[mark.tone] },
    hovertext: wrapped(mark.text),
  };
}

/** plotly.js reads markup in texts: what others wrote must not be markup. */
function wrapped(text) {
  const escaped = text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
  return escaped.replaceAll(/(.{40,60}) /g, "$1<br>");
}

function markLegend(marks) {
  const words = new Map(marks.map((mark) => [mark.word, mark]));
  return [...words.values()].map((mark) => el("li", { class: "entry" },
    el("span", { "aria-hidden": "true", "data-tone": mark.tone }, mark.sign), ` ${mark.word}`));
}

function legendEntry({ name, style, text }) {
  return el("span", { class: "entry" }, style === null ? null : sample(style), el("b", {}, name), ` ${text}`);
}

/** A piece of the path's line, as the plot draws it. */
function sample(style) {
  const picture = svg("svg", { width: 26, height: 12, "aria-hidden": "true" });
  const stroke = { stroke: style.colour, "stroke-width": 2.5, "stroke-dasharray": style.dashes };
  picture.append(svg("line", { x1: 0, x2: 26, y1: 6, y2: 6, ...stroke }));
  return picture;
}

function svg(tag, attributes) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}
