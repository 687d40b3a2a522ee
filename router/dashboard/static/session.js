// Who is asking? The admin token, kept in this tab and sent with every question, and what an answer that refuses means.

const KEY = "fleet-admin-token";
const PATIENCE_MS = 15_000;

/** The fleet wants a token, or a better one. */
export class SignInNeeded extends Error {}

/** Take over the token of a link "…/dashboard#token=…" and take it out of the address. */
export function adoptLink() {
  const token = new URLSearchParams(location.hash.slice(1)).get("token");
  if (token === null) return;
  keep(token);
  history.replaceState(null, "", location.pathname + location.search);
}

export const keep = (token) => sessionStorage.setItem(KEY, token);

/** The fleet as it is, with the points and events that are news. Throws SignInNeeded, or Error saying what is wrong. */
export async function overview(question) {
  const token = sessionStorage.getItem(KEY);
  if (token === null) throw new SignInNeeded("");
  const request = {
    method: "POST",
    headers: { authorization: `Bearer ${token}` },
    body: JSON.stringify(question),
    signal: AbortSignal.timeout(PATIENCE_MS),
  };
  const answer = await fetch("admin/canary/overview", request).catch(() => {
    throw new Error("the fleet does not answer");
  });
  if (answer.ok) return (await answer.json()).overview;
  const reason = await refusal(answer);
  if (answer.status !== 401 && answer.status !== 403) throw new Error(reason);
  sessionStorage.removeItem(KEY);
  throw new SignInNeeded(answer.status === 401 ? "That token is not accepted." : reason);
}

async function refusal(answer) {
  try {
    return (await answer.json()).error.message;
  } catch {
    return `the fleet answered ${answer.status}`;
  }
}
