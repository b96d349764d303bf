// Asks the server, and turns what it refuses into one text for people.

export class Refused extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}
export class NoAnswer extends Refused {}

const PATIENCE = 10; // seconds; what a server computes first has more
const LONG = { upkeep: 60, images: 60, compare: 120, rows: 120, version_files: 60, run_diff: 60, usage: 60 };

// Every question ends: with an answer, because the page shows something else, or when it has waited for long enough.
async function ask(url, { signal, seconds = PATIENCE, ...options }) {
  const end = new AbortController();
  const leave = () => end.abort(signal.reason);
  signal?.addEventListener("abort", leave, { once: true });
  if (signal?.aborted) leave();
  const timer = setTimeout(() => end.abort(), seconds * 1000);
  try {
    return await answered(url, { ...options, signal: end.signal });
  } catch (error) {
    if (error instanceof Refused || signal?.aborted) throw error;
    throw new NoAnswer(end.signal.aborted ? `Airflow's api-server has not answered for ${seconds} seconds.` : "Airflow's api-server does not answer.");
  } finally {
    clearTimeout(timer);
    signal?.removeEventListener("abort", leave);
  }
}

async function answered(url, options) {
  const response = await fetch(url, { credentials: "same-origin", redirect: "error", ...options });
  if (response.status === 401) throw new Refused("Your session has ended: log in to Airflow again.");
  let answer;
  try { answer = await response.json(); } catch (error) { if (error.name === "AbortError") throw error; answer = {}; }
  if (!response.ok) throw new Refused(said(answer) ?? `the server answered with status ${response.status}`, response.status);
  return answer;
}

function said({ detail }) {
  if (typeof detail === "string") return detail;
  return detail?.map?.((each) => `${each.loc?.at(-1)}: ${each.msg}`).join("; ");
}

const query = (parameters) => {
  const given = Object.entries(parameters ?? {}).flatMap(([name, value]) => [value].flat().map((each) => [name, each]));
  const known = given.filter(([, value]) => value !== "" && value !== null && value !== undefined);
  return known.length ? `?${new URLSearchParams(known)}` : "";
};

export const get = (where, parameters, signal) => ask(`api/${where}${query(parameters)}`, { signal, seconds: LONG[where] });

// The header says that this page sent it: no other site's form or script can.
export const post = (where, signal) => ask(`api/${where}`, { method: "POST", headers: { "X-Muster": "1" }, signal, seconds: 240 });
