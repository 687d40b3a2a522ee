// What is known of the past? Points and events as they came in, so that each is asked for once.

import { ofState } from "./words.js";

const MOST_EVENTS = 200;

export class Past {
  constructor(span) {
    this.events = [];
    this.forgetPoints(span);
  }

  /** Begin anew with another span of time, by its name. */
  forgetPoints(span) {
    this.span = span;
    this.points = [];
  }

  question() {
    return { span: this.span, after: this.points.at(-1)?.at ?? 0, after_event: this.events.at(-1)?.id ?? 0 };
  }

  add({ points, events, kept }) {
    this.points = [...this.points, ...points].slice(-kept);
    this.events = [...this.events, ...events].slice(-MOST_EVENTS);
  }

  /** Turns of rollouts for the plots: a start, another state, another weight. */
  marks() {
    return this.events.filter((event, place) => isTurn(this.events[place - 1], event)).map((event) => ({
      at: event.at,
      sign: ofState(event.state).sign,
      tone: ofState(event.state).tone,
      word: ofState(event.state).mark,
      text: `${event.rollout}: ${event.summary}`,
    }));
  }
}

function isTurn(before, event) {
  if (event.event === "RolloutStarted") return true;
  if (before === undefined || before.rollout !== event.rollout) return false;
  return before.state !== event.state || before.weight !== event.weight || before.attempt !== event.attempt;
}
