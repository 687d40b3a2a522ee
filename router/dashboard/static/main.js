// The page's clockwork: sign in, ask every two seconds, show the answer.

import { byId, keepTables, setText } from "./dom.js";
import { showEvidence } from "./evidence.js";
import { showEvents } from "./events.js";
import { clockTime, duration } from "./format.js";
import { showGuardrails } from "./guardrails.js";
import { Past } from "./past.js";
import { showPaths } from "./paths.js";
import { Plots } from "./plots.js";
import { showRollout } from "./rollout.js";
import { SignInNeeded, adoptLink, keep, overview } from "./session.js";

const POLL_MS = 2000;

const past = new Past("30m");
const plots = new Plots(byId("plots"), byId("marks"));
let timer = null;
let asking = false;

async function ask() {
  clearTimeout(timer);
  if (asking || document.hidden) return;
  asking = true;
  const known = past.points;
  const answer = await overview(past.question()).catch(explain);
  asking = false;
  const isWanted = known === past.points; // not another span of time since
  if (byId("sign-in").hidden) timer = setTimeout(ask, isWanted ? POLL_MS : 0);
  if (answer !== undefined && isWanted) show(answer);
}

function show(answer) {
  past.add(answer);
  byId("sign-in").hidden = true;
  byId("board").hidden = false;
  setText("model", answer.status.model);
  showRollout(answer.status);
  showEvidence(answer.status);
  showGuardrails(answer.status);
  showPaths(answer.status);
  showEvents(past.events);
  plots.show(past, answer.status);
  setText("resolution", resolution(answer));
  document.body.dataset.answer = "fresh";
  setText("freshness", "● live");
  byId("freshness").title = `answered ${clockTime(answer.status.at)}`;
}

function resolution({ every_seconds: seconds, kept }) {
  return `One point every ${duration(seconds)}: ${past.points.length} of at most ${kept}.`;
}

function explain(error) {
  if (error instanceof SignInNeeded) {
    byId("sign-in").hidden = false;
    byId("board").hidden = true;
    setText("freshness", "");
    setText("sign-in-reason", error.message);
    byId("token").focus();
    return;
  }
  document.body.dataset.answer = "stale";
  setText("freshness", `▲ ${error.message}; trying again`);
}

byId("sign-in").addEventListener("submit", (event) => {
  event.preventDefault();
  keep(byId("token").value.trim());
  byId("token").value = "";
  byId("sign-in").hidden = true;
  ask();
});
byId("span").addEventListener("change", (event) => {
  past.forgetPoints(event.target.value);
  ask();
});
document.addEventListener("visibilitychange", ask);

keepTables();
adoptLink();
plots.load().catch((error) => setText("plots-reason", error.message));
ask();
