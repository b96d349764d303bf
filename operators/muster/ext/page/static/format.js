// Writes sizes, durations, numbers and times for people.

export function bytes(count) {
  if (count === null || count === undefined) return "";
  const units = ["B", "kB", "MB", "GB", "TB"];
  let power = 0;
  while (count >= 1000 && power < units.length - 1) { count /= 1000; power += 1; }
  return `${power && count < 100 ? count.toFixed(1) : Math.round(count)} ${units[power]}`;
}

export function span(seconds) {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return "";
  const total = Math.max(0, seconds);
  if (total < 60) return `${total < 10 ? total.toFixed(1) : Math.round(total)} s`;
  const [days, hours, minutes] = [total / 86400, (total / 3600) % 24, (total / 60) % 60].map(Math.floor);
  if (days) return hours ? `${days} d ${hours} h` : `${days} d`;
  const rest = Math.floor(total % 60);
  if (hours) return minutes ? `${hours} h ${minutes} min` : `${hours} h`;
  return rest ? `${minutes} min ${rest} s` : `${minutes} min`;
}

export const coarse = (seconds) => {
  if (seconds < 60) return `${Math.round(seconds)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  return seconds < 2 * 86400 ? `${Math.floor(seconds / 3600)} h` : `${Math.floor(seconds / 86400)} d`;
};

const LARGEST = 1e15; // above, digits are noise

// Five digits, and never fewer than stand before the point: those of a large number are not rounded away.
export function number(value) {
  const size = Math.abs(value);
  if (Number.isInteger(value) && size < LARGEST) return value.toLocaleString("en");
  if (size < 10_000 || size >= LARGEST) return Number(value.toPrecision(5)).toString();
  return value.toLocaleString("en", { maximumFractionDigits: 2 });
}

export function gib(bytes) {
  const [size, unit] = bytes >= 2 ** 30 / 10 || bytes === 0 ? [bytes / 2 ** 30, "GiB"] : bytes >= 2 ** 20 / 10 ? [bytes / 2 ** 20, "MiB"] : [bytes / 2 ** 10, "KiB"];
  return `${number(Number(size.toPrecision(3)))} ${unit}`;
}

export function milliseconds(seconds) {
  if (seconds === null || seconds === undefined) return "";
  return seconds < 10 ? `${number(Number((seconds * 1000).toPrecision(3)))} ms` : span(seconds);
}

export const count = (n, one, many) => `${n.toLocaleString("en")} ${n === 1 ? one : many ?? `${one}s`}`;

// A metric or param as one cell of a table.
export function cell(value) {
  if (value === null || value === undefined) return "";
  if (typeof value === "number") return number(value);
  const text = typeof value === "string" ? value : JSON.stringify(value);
  return text.length > 60 ? `${text.slice(0, 59)}…` : text;
}

// Any param in one line.
export const inline = (value) => (typeof value === "string" ? value : JSON.stringify(value));
