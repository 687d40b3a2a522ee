// Where does the rollout stand, and what does it wait for?

import { byId, el, setText } from "./dom.js";
import { UNKNOWN, clockTime, duration, percent } from "./format.js";
import { ofState, plain } from "./words.js";

const ENDED = ["promoted", "rolled_back", "aborted"];

export function showRollout(status) {
  const rollout = status.rollout;
  byId("rollout-title").closest("section").dataset.tone = rollout === null ? "calm" : ofState(rollout.state).tone;
  if (rollout === null) return showNone(status);
  const { sign } = ofState(rollout.state);
  setText("state", `${sign} ${plain(rollout.state)}`);
  setText("reason", rollout.reason);
  setText("rollout-name", name(rollout));
  byId("steps").replaceChildren(...rollout.steps.map((step, place) => stepItem(rollout, step, place)));
  byId("weights").replaceChildren(
    weight("Set", rollout.weight_set, rollout.canary, "set"),
    weight("Realised", rollout.weight_realised, rollout.canary, "realised"),
  );
  byId("facts").replaceChildren(...facts(rollout));
  document.title = `${sign} ${percent(rollout.weight_set, 0)} ${rollout.canary} · ${status.model}`;
}

function showNone(status) {
  setText("state", "○ no rollout");
  const { stable } = status.split;
  setText("reason", `All traffic goes to “${stable}”. Start one with: fleet canary start -f plan.yaml`);
  setText("rollout-name", "");
  for (const id of ["steps", "weights", "facts"]) byId(id).replaceChildren();
  document.title = `Fleet · ${status.model}`;
}

function name(rollout) {
  const attempt = rollout.attempt > 1 ? ` · attempt ${rollout.attempt}` : "";
  const ended = rollout.ended_at === null ? "" : `, ended ${clockTime(rollout.ended_at)}`;
  const began = `started ${clockTime(rollout.started_at)}`;
  return `${rollout.id} · ${rollout.stable} → ${rollout.canary}${attempt} · ${began}${ended}`;
}

function stepItem(rollout, step, place) {
  const isOver = ENDED.includes(rollout.state);
  const number = place + 1;
  const isDone = rollout.state === "promoted" || number < rollout.step;
  const isPresent = !isOver && number === rollout.step;
  const done = isDone ? 1 : isPresent ? share(rollout) : 0;
  const word = isDone ? "done" : isPresent ? "now" : isOver ? "not reached" : "to come";
  const bake = step.bake_seconds > 0 ? `${duration(step.bake_seconds)} bake` : "no bake";
  const attributes = { class: "step", "data-word": word, "aria-current": isPresent ? "step" : null };
  return el("li", attributes,
    el("span", { class: "step-weight" }, `${isDone ? "✔ " : ""}${percent(step.weight, 0)}`),
    el("span", { class: "quiet" }, word, el("span", { class: "bake" }, ` · ${bake}`)),
    bar(done));
}

function share(rollout) {
  const whole = rollout.bake_elapsed_seconds + rollout.bake_left_seconds;
  return whole > 0 ? rollout.bake_elapsed_seconds / whole : 0;
}

function bar(fraction) {
  const fill = el("span", { class: "fill" });
  fill.style.width = `${100 * Math.min(Math.max(fraction, 0), 1)}%`;
  return el("span", { class: "bar", "aria-hidden": "true" }, fill);
}

function weight(label, value, canary, kind) {
  return el("div", { class: "weight", "data-kind": kind },
    el("span", { class: "weight-label" }, label),
    bar((value ?? 0) / 100),
    el("span", { class: "weight-value" },
      el("b", {}, percent(value)),
      el("span", { class: "quiet" }, ` to ${canary}`)));
}

function facts(rollout) {
  const isOver = ENDED.includes(rollout.state);
  const bake = rollout.bake_elapsed_seconds + rollout.bake_left_seconds;
  const left = isOver ? UNKNOWN : `${duration(rollout.bake_left_seconds)} of ${duration(bake)}`;
  return [
    fact("Step", `${rollout.step} of ${rollout.steps.length}`),
    fact("Bake left", left),
    fact("Windows", `${rollout.windows} (${rollout.windows_needed} needed)`),
    fact("Canary requests", `${rollout.requests} (${rollout.requests_needed} needed)`),
    fact("Waits for", rollout.waiting_for ?? (isOver ? "nothing, it is over" : "its bake to end"), "wide"),
  ];
}

function fact(term, text, kind = "") {
  return el("div", { class: `fact ${kind}` }, el("dt", {}, term), el("dd", {}, text));
}
