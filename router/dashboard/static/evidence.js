// Does the evidence that the rollout rests on still hold, and if not, why, and what renews it?

import { byId, el, setText } from "./dom.js";
import { clockTime } from "./format.js";
import { ofEvidence, plain } from "./words.js";

export function showEvidence({ evidence }) {
  const section = byId("evidence-title").closest("section");
  section.hidden = evidence === null;
  if (evidence === null) return;
  const { sign, tone, text } = ofEvidence(evidence.is_stale ? "stale" : "holds");
  section.dataset.tone = tone;
  setText("evidence-name", `${evidence.folder}, measured ${clockTime(evidence.created)}`);
  setText("evidence-state", `${sign} ${text}`);
  byId("drifts").replaceChildren(...evidence.drifts.map((drift) =>
    el("li", {}, el("b", {}, plain(drift.reason)), `: ${drift.detail}`)));
  byId("renewal").hidden = !evidence.is_stale;
  setText("renew", evidence.renew);
}
