// Streamed completions for pages of one's own: import { llama } from "./completion.js".
//
//   for await (const chunk of llama("Once upon a time", { n_predict: 32 })) {
//     output.append(chunk.data.content);
//   }
//
// `params` are fields of POST /completion. `config` may hold `api_url` (where emberd is, by default where this
// file came from), `api_key`, `endpoint` and `controller` (an AbortController that ends the answer).
import { serverSentEvents } from "./sse.js";

const DEFAULTS = { stream: true, n_predict: 500, temperature: 0.2, stop: ["</s>"] };

/** Yields `{ data }` for each piece; returns the whole text. */
export async function* llama(prompt, params = {}, config = {}) {
  const controller = config.controller ?? new AbortController();
  const base = config.api_url?.replace(/\/+$/, "") ?? new URL(".", import.meta.url).href.replace(/\/$/, "");
  const headers = { "Content-Type": "application/json", Accept: "text/event-stream" };
  const key = config.api_key ?? params.api_key;
  if (key) headers.Authorization = `Bearer ${key}`;
  const { api_key: _, ...fields } = { ...DEFAULTS, ...params, prompt };
  const response = await fetch(`${base}${config.endpoint ?? "/completion"}`, {
    method: "POST",
    body: JSON.stringify({ ...fields, stream: true }),
    headers,
    signal: controller.signal,
  });
  if (!response.ok) throw new Error(await failure(response));
  let text = "";
  for await (const event of serverSentEvents(response.body, controller.signal)) {
    if (event === "[DONE]") break;
    const data = JSON.parse(event);
    if (data.error) throw new Error(data.error.message);
    text += data.content ?? "";
    yield { data };
    if (data.stop) break;
  }
  return text;
}

async function failure(response) {
  try {
    return (await response.json()).error.message;
  } catch {
    return `HTTP ${response.status}`;
  }
}

/** An EventTarget with a "message" per piece, "generation_settings" and "timings" at the end, then "done". */
export function llamaEventTarget(prompt, params = {}, config = {}) {
  const target = new EventTarget();
  const tell = (type, detail) => target.dispatchEvent(new CustomEvent(type, { detail }));
  (async () => {
    let content = "";
    try {
      for await (const { data } of llama(prompt, params, config)) {
        content += data.content ?? "";
        tell("message", data);
        if (data.generation_settings) tell("generation_settings", data.generation_settings);
        if (data.timings) tell("timings", data.timings);
      }
      tell("done", { content });
    } catch (error) {
      tell("error", error);
    }
  })();
  return target;
}

/** The whole text at once. */
export async function llamaPromise(prompt, params = {}, config = {}) {
  let content = "";
  for await (const { data } of llama(prompt, params, config)) content += data.content ?? "";
  return content;
}

/** Calls `callback` with each piece. `params` holds the prompt too. */
export async function llamaComplete(params, controller, callback) {
  for await (const chunk of llama(params.prompt, params, { controller })) callback(chunk);
}
