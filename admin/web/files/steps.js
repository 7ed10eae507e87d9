/**
 * What became of messages over time, in steps. Counts are whole: a rate times the seconds that it is the mean of.
 *
 * @typedef {object} Step
 * @property {number} fromS seconds since 1970
 * @property {number} untilS
 * @property {number} passed messages that reached the broker
 * @property {number} refused
 * @property {number} dropped as their client left before they were decided
 * @property {number | null} held per second; null is unknown
 * @property {number | null} limit in force, in messages per second
 * @property {boolean} drawn it is no longer nor shorter than a point of a graph may be
 */

import { reached } from "./format.js";

/** The steps between readings of the counters. */
export function stepsOf(history) {
  if (!history) return [];
  const { seconds } = history;
  let untilS = Date.parse(history.until) / 1000 - seconds.reduce((sum, each) => sum + each, 0);
  return seconds.map((lasted, index) => {
    const fromS = untilS;
    untilS += lasted;
    const counts = ["passed", "refused", "dropped"].map((end) => Math.round(history[end][index] * lasted));
    return step(fromS, untilS, counts, null, history.limit[index] ?? null);
  });
}

function logged(log) {
  const beginS = Date.parse(log.begin_at) / 1000;
  const knownS = log.known_from ? Date.parse(log.known_from) / 1000 : beginS;
  return log.passed.flatMap((passed, index) => {
    if (passed === null) return [];
    // A log that is older than this page does not say how much of a step it knows.
    const seconds = log.seconds[index] ?? log.step_s;
    // Of the first step the end is known, of the last one the beginning.
    const fromS = Math.max(beginS + index * log.step_s, knownS);
    const counts = [passed, log.refused[index], log.dropped[index] ?? 0].map((rate) => Math.round(rate * seconds));
    return [
      step(fromS, fromS + seconds, counts, log.held[index], log.limit_count === "messages" ? log.limit[index] : null),
    ];
  });
}

/**
 * Put together what is known of a resource: by the log (the answer about the past), and since its end by the counters
 * (the row of the table). Then come: when Sluice was started, when the row is of, what is wanted, and the limit.
 *
 * @returns {Step[]}
 */
export function allSteps(log, row, { startedS, sampledS, fromS, limit }) {
  const past = log ? logged(log) : [];
  const endS = past.at(-1)?.untilS ?? 0;
  const counters = stepsOf(row?.history);
  const all = row?.live?.messages_total;
  if (all) {
    const totals = [reached(all), all.refused, all.dropped];
    const history = row.history ?? { until: "", totals };
    const readS = Date.parse(history.until) / 1000;
    const since = totals.map((total, index) => total - history.totals[index]);
    if (readS < sampledS) counters.push({ ...step(readS, sampledS, since, null, limit), drawn: false });
    // All that happened before the oldest step happened since the start.
    const known = sumOf(counters);
    const beforeS = counters[0]?.fromS ?? sampledS;
    if (startedS >= fromS && startedS < beforeS)
      counters.unshift({
        ...step(
          startedS,
          beforeS,
          totals.map((total, index) => total - known[index]),
          null,
          null,
        ),
        drawn: false,
      });
  }
  const later = counters.filter((each) => each.untilS > endS);
  const [first] = later;
  if (first && first.fromS < endS) {
    // Of the step in which the log ends the log has a part. Since the start all is known, so the rest is what remains.
    const [inLog, behind] = [past.filter((each) => each.untilS > startedS), later.slice(1)].map(sumOf);
    const whole = sumOf(counters);
    const share = (first.untilS - endS) / (first.untilS - first.fromS);
    const rest = sumOf([first]).map((count, index) =>
      startedS >= fromS
        ? Math.max(0, Math.min(count, whole[index] - inLog[index] - behind[index]))
        : Math.round(count * share),
    );
    later[0] = { ...step(endS, first.untilS, rest, null, first.limit), drawn: first.drawn };
  }
  return [...past, ...later].filter((each) => (each.fromS + each.untilS) / 2 >= fromS);
}

/** Messages that passed, were refused and were dropped. */
export function sumOf(steps) {
  return steps.reduce(
    (sums, each) => [sums[0] + each.passed, sums[1] + each.refused, sums[2] + each.dropped],
    [0, 0, 0],
  );
}

function step(fromS, untilS, [passed, refused, dropped], held, limit) {
  return { fromS, untilS, passed, refused, dropped, held, limit, drawn: true };
}
