// What a model thinks before it answers, between tags that most of them share.

const OPEN = /^\s*<think>/;
const CLOSE = "</think>";

/**
 * {thoughts, text, thinking}: the thoughts before the answer, the answer, and whether thinking goes on.
 *
 * Some templates open the thoughts themselves, so that only their end can be seen.
 */
export function withoutThoughts(content) {
  const opened = OPEN.test(content);
  const end = content.indexOf(CLOSE);
  if (!opened && end < 0) return { thoughts: "", text: content, thinking: false };
  const thoughts = content.slice(0, end < 0 ? undefined : end).replace(OPEN, "").trim();
  const text = end < 0 ? "" : content.slice(end + CLOSE.length).trimStart();
  return { thoughts, text, thinking: end < 0 };
}
