// What happened? The journal's events, newest first.

import { el, setRows, setText } from "./dom.js";
import { clockTime, percent } from "./format.js";
import { ofState, plain } from "./words.js";

let newest = null;

export function showEvents(events) {
  if (events.at(-1)?.id === newest) return;
  newest = events.at(-1)?.id ?? null;
  setText("events-count", events.length > 0 ? `the newest ${events.length}` : "nothing yet");
  setRows("events", events.toReversed().map((event) => [
    clockTime(event.at),
    event.attempt > 1 ? `${event.rollout} (attempt ${event.attempt})` : event.rollout,
    el("span", { class: "badge", "data-tone": ofState(event.state).tone },
      `${ofState(event.state).sign} ${plain(event.state)}`),
    percent(event.weight, 0),
    el("span", { class: "why" }, event.summary),
  ]));
}
