// How does a number read? The same words and units as in the terminal.

export const UNKNOWN = "–";

/** An estimate or limit in its unit; percent and points are fractions. */
export function amount(value, unit) {
  if (value === null) return UNKNOWN;
  switch (unit) {
    case "percent": return `${signed(100 * value, 1)} %`;
    case "points": return `${signed(100 * value, 2)} pp`;
    case "count": return String(Number(value.toPrecision(6)));
    case "seconds": return Math.abs(value) < 1 ? `${(value * 1000).toFixed(1)} ms` : `${value.toFixed(2)} s`;
    case "rate": return `${short(value)}/s`;
    default: return value.toFixed(3);
  }
}

export function interval([low, high], unit) {
  return `${low === null ? "-∞" : amount(low, unit)} … ${high === null ? "∞" : amount(high, unit)}`;
}

/** Three digits that count: 0.0123, 1.83, 60, 1.2e+9. */
export const short = (value) => String(Number(value.toPrecision(3)));

export const percent = (value, digits = 1) => (value === null ? UNKNOWN : `${value.toFixed(digits)} %`);

/** 90 → "1m30s". */
export function duration(seconds) {
  const whole = Math.round(seconds);
  const hours = Math.floor(whole / 3600);
  const minutes = Math.floor((whole % 3600) / 60);
  if (hours > 0) return `${hours}h${String(minutes).padStart(2, "0")}m`;
  return minutes > 0 ? `${minutes}m${String(whole % 60).padStart(2, "0")}s` : `${whole}s`;
}

/** Local time of seconds since the epoch, with the date where it is not today's. */
export function clockTime(at) {
  const moment = new Date(at * 1000);
  const time = moment.toLocaleTimeString("en-GB");
  if (moment.toDateString() === new Date().toDateString()) return time;
  const pad = (number) => String(number).padStart(2, "0");
  return `${pad(moment.getMonth() + 1)}-${pad(moment.getDate())} ${time}`;
}

function signed(value, digits) {
  return `${value < 0 ? "-" : "+"}${Math.abs(value).toFixed(digits)}`;
}
