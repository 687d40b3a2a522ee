// How is each path drawn? A colour, a dash and a texture each, so that the colour may be missing.

const TONES = ["calm", "good", "warn", "bad"];
const SERIES = ["series-0", "series-1", "series-2", "series-3"];
const NAMES = ["card", "ink", "muted", "line", ...TONES, ...SERIES];
const DASHES = [
  { dash: "dash", dashes: "7 4", texture: "" },
  { dash: "solid", dashes: "", texture: "/" },
  { dash: "dot", dashes: "2 3", texture: "." },
  { dash: "dashdot", dashes: "8 3 2 3", texture: "x" },
];

/** The colours of the present scheme, from the style sheet. */
export function theme() {
  const style = getComputedStyle(document.documentElement);
  return Object.fromEntries(NAMES.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
}

/** By a path's place in the fleet's config, which a rollout does not change. */
export function styleOf(place) {
  const turn = place % DASHES.length;
  return { ...DASHES[turn], colour: theme()[`series-${turn}`] };
}
