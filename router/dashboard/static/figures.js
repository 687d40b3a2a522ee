// What does each plot show? Points in, traces for plotly.js out; `now` is the same in words, for the legend.

import { UNKNOWN, percent } from "./format.js";

const RECENT_SECONDS = 300;

const times = (points) => points.map((point) => new Date(point.at * 1000));
const series = (points, path, read) => points.map((point) => (path in point.paths ? read(point.paths[path]) : null));
const ms = (seconds) => seconds * 1000;

export const FIGURES = [
  latency("itl", "Time per token (ITL)", "ms, over the last 8 tokens; what a reader feels"),
  latency("ttft", "Time to first token (TTFT)", "ms, from acceptance"),
  {
    name: "weight",
    title: "Traffic to the canary",
    note: "% of eligible requests",
    isOverTime: true,
    yaxis: { range: [0, 104], ticksuffix: " %" },
    traces: ({ points, theme }) => {
      const set = line(points, "set", points.map((point) => point.weight_set), { colour: theme["series-1"] }, " %");
      const realised = line(points, "realised", points.map((point) => point.weight_realised), {}, " %");
      const marker = { size: 4, symbol: "circle-open", color: theme.ink };
      return [{ ...set, line: { ...set.line, shape: "hv" } }, { ...realised, mode: "markers", marker }];
    },
    now: ({ points, theme }) => {
      const last = points.at(-1);
      const [set, realised] = [last?.weight_set ?? null, last?.weight_realised ?? null].map((value) => percent(value));
      return [
        { name: "set", style: { colour: theme["series-1"], dashes: "" }, text: set },
        { name: "realised", style: { colour: theme.ink, dashes: "3 5" }, text: realised },
      ];
    },
  },
  {
    name: "throughput",
    title: "Output",
    note: "tokens/s by path",
    isOverTime: true,
    yaxis: {},
    traces: ({ points, paths }) => paths.map((path) =>
      line(points, path.path, series(points, path.path, (part) => part.tokens_per_second), path.style, " tokens/s")),
    now: ({ points, paths }) => paths.map((path) => ({
      name: path.path, style: path.style, text: one(points.at(-1)?.paths[path.path]?.tokens_per_second, "tokens/s"),
    })),
  },
  {
    name: "acceptance",
    title: "Acceptance",
    note: "accepted of drafted tokens",
    isOverTime: true,
    yaxis: { range: [0, 104], ticksuffix: " %" },
    traces: ({ points, paths }) => drafting(paths).map((path) =>
      line(points, path.path, series(points, path.path, acceptance), path.style, " %")),
    now: ({ points, paths }) => drafting(paths).map((path) => ({
      name: path.path, style: path.style, text: percent(pooled(recent(points), path.path)),
    })),
  },
  {
    name: "positions",
    title: "Acceptance by position",
    note: "share of rounds that accepted the draft up to this token, last 5 min",
    isOverTime: false,
    xaxis: { dtick: 1, title: { text: "drafted token", standoff: 4 } },
    yaxis: { range: [0, 104], ticksuffix: " %" },
    layout: { barmode: "group", bargap: 0.35, hovermode: "closest", margin: { t: 22, r: 12, b: 40, l: 46 } },
    traces: ({ points, paths, theme }) => drafting(paths).map((path) => bars(recent(points), path, theme)),
    now: ({ points, paths }) => drafting(paths).map((path) => ({
      name: path.path, style: path.style, text: rounds(positions(recent(points), path.path)),
    })),
  },
];

function latency(metric, title, note) {
  return {
    name: metric,
    title,
    note,
    isOverTime: true,
    yaxis: {},
    traces: ({ points, paths }) => paths.flatMap((path) => {
      const read = (end) => (part) => (part[metric] === null ? null : ms(part[metric][end]));
      const [middle, tail] = [0, 1].map((end) => series(points, path.path, read(end)));
      const top = line(points, `${path.path} p95`, tail, path.style, " ms");
      return [
        band(points, middle, tail, path.style),
        line(points, `${path.path} median`, middle, path.style, " ms"),
        { ...top, line: { ...top.line, width: 1 } },
      ];
    }),
    now: ({ points, paths }) => paths.map((path) => {
      const part = points.at(-1)?.paths[path.path]?.[metric] ?? null;
      const text = part === null ? UNKNOWN : `${ms(part[0]).toFixed(1)} – ${ms(part[1]).toFixed(1)} ms`;
      return { name: path.path, style: path.style, text };
    }),
  };
}

function line(points, name, y, style, unit) {
  return {
    type: "scatter",
    mode: "lines",
    name,
    x: times(points),
    y,
    connectgaps: false,
    line: { color: style.colour, dash: style.dash, width: 2.2 },
    hovertemplate: `%{y:.4~g}${unit}`,
  };
}

/** One closed polygon for every stretch without a gap. */
function band(points, low, high, style) {
  const x = [];
  const y = [];
  for (const [first, last] of stretches(low)) {
    const there = points.slice(first, last).map((point, place) => [point.at, low[first + place]]);
    const back = points.slice(first, last).map((point, place) => [point.at, high[first + place]]).reverse();
    for (const [at, value] of [...there, ...back]) {
      x.push(new Date(at * 1000));
      y.push(value);
    }
    x.push(null);
    y.push(null);
  }
  const texture = { fgcolor: style.colour, fgopacity: 0.35, fillmode: "overlay", size: 7, solidity: 0.12 };
  return {
    type: "scatter",
    mode: "lines",
    x,
    y,
    fill: "toself",
    hoverinfo: "skip",
    line: { width: 0 },
    fillcolor: `${style.colour}2b`,
    fillpattern: { shape: style.texture, ...texture },
  };
}

/** [first, behind the last] of every run of known values. */
function stretches(values) {
  const found = [];
  values.forEach((value, place) => {
    if (value === null) return;
    if (place > 0 && values[place - 1] !== null) found.at(-1)[1] = place + 1;
    else found.push([place, place + 1]);
  });
  return found;
}

const drafting = (paths) => paths.filter((path) => path.is_speculative);
const acceptance = (part) => (part.drafted > 0 ? (100 * part.accepted) / part.drafted : null);
const recent = (points) => points.filter((point) => point.at > points.at(-1).at - RECENT_SECONDS);
const one = (value, unit) => (value === undefined ? UNKNOWN : `${value.toFixed(1)} ${unit}`);
const rounds = (found) => (found.rounds > 0 ? `${found.rounds} rounds` : "no rounds");

function pooled(points, path) {
  const parts = points.map((point) => point.paths[path]).filter((part) => part !== undefined);
  const [drafted, accepted] = ["drafted", "accepted"].map((name) => parts.reduce((sum, part) => sum + part[name], 0));
  return drafted > 0 ? (100 * accepted) / drafted : null;
}

function positions(points, path) {
  const found = { rounds: 0, accepted: [] };
  for (const part of points.map((point) => point.paths[path]).filter((part) => part !== undefined)) {
    found.rounds += part.rounds;
    part.accepted_at.forEach((count, place) => (found.accepted[place] = (found.accepted[place] ?? 0) + count));
  }
  return found;
}

function bars(points, path, theme) {
  const found = positions(points, path.path);
  const shares = found.accepted.map((count) => (100 * count) / found.rounds);
  const { colour, texture } = path.style;
  return {
    type: "bar",
    name: path.path,
    x: shares.map((_, place) => place + 1),
    y: shares,
    text: shares.map((share) => `${share.toFixed(0)} %`),
    textposition: "outside",
    textfont: { color: theme.ink },
    cliponaxis: false,
    marker: {
      color: `${colour}55`,
      line: { color: colour, width: 1.5 },
      pattern: { shape: texture, fgcolor: colour, solidity: 0.2 },
    },
    hovertemplate: "%{y:.1f} % at %{x}<extra>%{fullData.name}</extra>",
  };
}
