// What an answer cost, in words: the daemon's `timings` object.

const SOURCES = { ram: "from memory", store: "from the store" };

const count = (number) => number.toLocaleString("en");
const rate = (number) => number.toLocaleString("en", { maximumFractionDigits: number < 10 ? 1 : 0 });

/** Parts of the line under an answer, and the share (0 to 1) of the prompt that did not have to be read. */
export function describe(timings) {
  const cached = timings.cache_n ?? 0;
  const prompt = cached + (timings.prompt_n ?? 0);
  const parts = [];
  if (timings.predicted_n) parts.push(`${count(timings.predicted_n)} ${timings.predicted_n === 1 ? "token" : "tokens"}`);
  if (timings.predicted_per_second > 0) parts.push(`${rate(timings.predicted_per_second)} tokens/s`);
  if (prompt) {
    const where = cached ? ` ${SOURCES[timings.cache_source] ?? "from the cache"}` : "";
    parts.push(`${count(cached)} of ${count(prompt)} prompt tokens cached${where && `, ${where.trim()}`}`);
  }
  return { parts, share: prompt ? cached / prompt : 0 };
}
