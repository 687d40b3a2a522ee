// Which sign stands for which state? A shape and a word each, so that nothing hangs on colour.
// Shapes that ordinary text fonts have: a pause sign (U+23F8), for one, is in emoji fonts alone.

/** tone: none, calm, good, warn or bad. */
const STATES = {
  preparing: { sign: "◌", tone: "calm", mark: "preparing" },
  baking: { sign: "▶", tone: "calm", mark: "step" },
  paused: { sign: "‖", tone: "warn", mark: "paused" },
  holding: { sign: "◊", tone: "warn", mark: "holding" },
  promoted: { sign: "✔", tone: "good", mark: "promoted" },
  rolled_back: { sign: "✖", tone: "bad", mark: "rolled back" },
  aborted: { sign: "■", tone: "bad", mark: "aborted" },
};
const VERDICTS = {
  pass: { sign: "✔", tone: "good" },
  insufficient: { sign: "…", tone: "calm" },
  no_data: { sign: "○", tone: "warn" },
  fail: { sign: "✖", tone: "bad" },
};
const HEALTH = {
  none: { sign: "–", tone: "none" },
  healthy: { sign: "●", tone: "good" },
  degraded: { sign: "◐", tone: "warn" },
  lost: { sign: "✖", tone: "bad" },
};
const EVIDENCE = {
  holds: { sign: "✔", tone: "good", text: "still holds" },
  stale: { sign: "▲", tone: "warn", text: "stale: measured on something else than what is served" },
};
const OTHER = { sign: "?", tone: "calm", mark: "" };

export const ofState = (name) => STATES[name] ?? OTHER;
export const ofVerdict = (name) => VERDICTS[name] ?? OTHER;
export const ofHealth = (name) => HEALTH[name] ?? OTHER;
export const ofEvidence = (name) => EVIDENCE[name] ?? OTHER;
export const plain = (name) => name.replaceAll("_", " ");
