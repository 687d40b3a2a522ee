// What does each guardrail say, and how near is it to tripping?

import { el, setRows } from "./dom.js";
import { amount, duration, interval, short } from "./format.js";
import { ofVerdict, plain } from "./words.js";

export function showGuardrails(status) {
  const verdicts = status.rollout?.verdicts ?? [];
  setRows("guardrails", verdicts.map((verdict) => [
    verdict.guardrail,
    el("span", { class: "badge", "data-tone": ofVerdict(verdict.level).tone },
      `${ofVerdict(verdict.level).sign} ${plain(verdict.level)}`),
    estimate(verdict),
    amount(verdict.limit, verdict.unit),
    evidence(verdict),
    samples(verdict),
    el("span", { class: "why" }, verdict.reason),
  ]));
}

function estimate(verdict) {
  const range = verdict.interval === null ? "" : interval(verdict.interval, verdict.unit);
  const value = el("span", { class: "number" }, amount(verdict.estimate, verdict.unit));
  return [value, el("span", { class: "quiet" }, range)];
}

/** From 1, which is no evidence at all, to the threshold, on a logarithmic scale. */
function evidence({ e_value: value, threshold, guardrail, level }) {
  if (value === null || threshold === null) return el("span", { class: "quiet" }, "needs no statistics");
  const reached = Math.min(Math.max(Math.log(value) / Math.log(threshold), 0), 1);
  const fill = el("span", { class: "fill" });
  fill.style.width = `${100 * reached}%`;
  const meter = el("span", {
    class: "bar evidence",
    "data-tone": ofVerdict(level).tone,
    role: "meter",
    "aria-label": `evidence of ${guardrail}`,
    "aria-valuemin": "0",
    "aria-valuemax": "100",
    "aria-valuenow": String(Math.round(100 * reached)),
    "aria-valuetext": `${short(value)} of ${short(threshold)}`,
  }, fill);
  return [meter, el("span", { class: "scale" },
    el("span", { class: "number" }, short(value)), el("span", { class: "quiet" }, `trips at ${short(threshold)}`))];
}

function samples(verdict) {
  const seen = el("span", { class: "number" }, String(verdict.samples));
  const wait = verdict.eta_seconds ? duration(verdict.eta_seconds) : "";
  const enough = wait ? `enough in ${wait}` : "enough";
  const more = verdict.needed ? `${verdict.needed} more${wait && `, ${wait}`}` : verdict.needed === 0 ? enough : "";
  return [seen, el("span", { class: "quiet" }, more)];
}
