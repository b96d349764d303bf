// Asks the server, and turns what it refuses into one text for people.

export class Refused extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}
export class NoAnswer extends Refused {}

async function ask(url, options) {
  let response;
  try {
    response = await fetch(url, { credentials: "same-origin", redirect: "error", ...options });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new NoAnswer("Airflow's api-server does not answer.");
  }
  if (response.status === 401) throw new Refused("Your session has ended: log in to Airflow again.");
  let answer;
  try { answer = await response.json(); } catch { answer = {}; }
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

export const get = (where, parameters, signal) => ask(`api/${where}${query(parameters)}`, { signal });

// The header says that this page sent it: no other site's form or script can.
export const post = (where, signal) => ask(`api/${where}`, { method: "POST", headers: { "X-Muster": "1" }, signal });
