// Who serves, how healthy are the drafts, and how busy is everybody?

import { el, setRows, setText } from "./dom.js";
import { UNKNOWN, percent } from "./format.js";
import { ofHealth } from "./words.js";

export function showPaths(status) {
  setRows("paths", status.paths.map((path) => [
    path.path,
    path.role,
    `${path.replicas_ready} of ${path.replicas_wanted}`,
    health(path.draft),
    String(path.in_flight),
    String(path.running),
    String(path.waiting),
    path.kv_total_tokens > 0 ? percent((100 * path.kv_used_tokens) / path.kv_total_tokens, 0) : UNKNOWN,
    path.tokens_per_second.toFixed(1),
    path.acceptance === null ? UNKNOWN : percent(100 * path.acceptance, 0),
  ]));
  setRows("replicas", status.paths.flatMap((path) => path.replicas.map((replica) => replicaRow(path, replica))));
  setText("routers", routersLine(status));
}

function replicaRow(path, replica) {
  return [
    replica.replica_id,
    path.path,
    String(replica.pid),
    health(replica.draft),
    replica.draft_pid === null ? UNKNOWN : String(replica.draft_pid),
    String(replica.running),
    String(replica.waiting),
    `${replica.age_seconds.toFixed(1)} s ago`,
  ];
}

function health(name) {
  const { sign, tone } = ofHealth(name);
  return el("span", { class: "badge", "data-tone": tone }, name === "none" ? "none" : `${sign} ${name}`);
}

function routersLine({ routers, split }) {
  const following = routers.filter((router) => router.applied_split >= split.version).length;
  const sum = (field) => routers.reduce((total, router) => total + router[field], 0);
  return `${routers.length} routers, ${following} on split ${split.version} · ${sum("in_flight")} streams open · ` +
    `${sum("queued")} queued`;
}
