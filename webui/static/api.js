// The few calls that the page makes. Every address is relative, so a path prefix needs no setting.

import { settings } from "./settings.js";
import { serverSentEvents } from "./sse.js";

const RETRY_MS = 1000;

/** An answer the daemon refused or broke off; the message is for people. `needsKey`: it asked for an API key. */
export class ApiError extends Error {
  needsKey = false;
}

/** The name of the model that is served; a file's is its last part. */
export async function modelName() {
  const response = await fetch("v1/models", { headers: headers() });
  if (!response.ok) throw await refusal(response);
  const { data } = await response.json();
  const id = data[0]?.id ?? "no model";
  return id.endsWith(".gguf") ? id.split("/").at(-1).slice(0, -".gguf".length) : id;
}

/** "ready", "loading" or "unreachable". */
export async function health() {
  try {
    const response = await fetch("health", { cache: "no-store" });
    return response.ok ? "ready" : "loading";
  } catch {
    return "unreachable";
  }
}

/** Resolves once the daemon is ready; `onState` hears every state that is not. Aborting rejects. */
export async function untilReady(onState, signal) {
  for (;;) {
    const state = await health();
    if (state === "ready") return;
    onState(state);
    await pause(RETRY_MS, signal);
  }
}

/**
 * The answer to a conversation, piece by piece: {progress} while the prompt is read, {text}, then once
 * {finish, timings, model}. `fields` are further ones of the request.
 *
 * While the daemon loads its model, has no free place or is not there, this waits and tries again;
 * `onWaiting` is told why. Once a first piece has come nothing is repeated. Throws ApiError, or AbortError.
 */
export async function* chat(messages, { signal, onWaiting, fields = {} }) {
  const response = await ask({ ...fields, messages, stream: true, return_progress: true }, signal, onWaiting);
  let end = null;
  for await (const data of broken(serverSentEvents(response.body, signal), signal)) {
    if (data === "[DONE]") {
      end ??= { finish: "stop" };
      break;
    }
    const chunk = JSON.parse(data);
    if (chunk.error) throw new ApiError(readable(chunk.error));
    if (chunk.prompt_progress) yield { progress: chunk.prompt_progress };
    const [choice] = chunk.choices ?? [];
    if (choice?.delta?.content) yield { text: choice.delta.content };
    if (choice?.finish_reason) end = { ...end, finish: choice.finish_reason };
    if (chunk.timings) end = { ...end, timings: chunk.timings, model: chunk.model };
  }
  if (!end?.finish) throw new ApiError("The connection ended before the answer did.");
  yield end;
}

/** Have the daemon forget all that begins with these messages. Throws ApiError. */
export async function forget(messages) {
  let response;
  try {
    response = await fetch("store/forget", {
      method: "POST",
      headers: headers(),
      body: JSON.stringify({ messages }),
    });
  } catch {
    throw new ApiError("emberd cannot be reached.");
  }
  if (!response.ok) throw await refusal(response);
}

async function ask(body, signal, onWaiting) {
  for (;;) {
    let response;
    try {
      response = await fetch("v1/chat/completions", {
        method: "POST",
        headers: headers(),
        body: JSON.stringify(body),
        signal,
      });
    } catch (error) {
      if (signal.aborted) throw error;
      onWaiting("emberd cannot be reached. Trying again…");
      await pause(RETRY_MS, signal);
      continue;
    }
    if (response.ok) return response;
    const error = await refusal(response);
    if (response.status !== 503) throw error;
    onWaiting(/loading/i.test(error.message) ? "The model is loading…" : "Every place is taken. Waiting for one…");
    await pause(RETRY_MS, signal);
  }
}

/** What a lost connection throws differs from browser to browser; people get one sentence. */
async function* broken(events, signal) {
  try {
    yield* events;
  } catch (error) {
    if (signal.aborted) throw error;
    throw new ApiError("The connection was lost before the answer ended.");
  }
}

function headers() {
  const { key } = settings();
  return { "Content-Type": "application/json", ...(key && { Authorization: `Bearer ${key}` }) };
}

async function refusal(response) {
  let error;
  try {
    ({ error } = await response.json());
  } catch {
    // Not emberd's JSON: a proxy in between, most likely. The status says what there is to say.
  }
  const refused = new ApiError(readable(error ?? { message: `${response.status} ${response.statusText}` }));
  refused.needsKey = response.status === 401;
  return refused;
}

function readable({ type, message, n_prompt_tokens: prompt, n_ctx: context }) {
  if (type === "exceed_context_size_error" && prompt && context) {
    return (
      `This conversation has grown to ${prompt.toLocaleString("en")} tokens, and the model can hold ` +
      `${context.toLocaleString("en")}. Start a new one, or start emberd with a larger context (-c).`
    );
  }
  if (type === "authentication_error") return "emberd asks for an API key: see the settings.";
  return message || "emberd gave no reason.";
}

function pause(milliseconds, signal) {
  signal?.throwIfAborted();
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, milliseconds);
    signal?.addEventListener(
      "abort",
      () => {
        clearTimeout(timer);
        reject(signal.reason);
      },
      { once: true },
    );
  });
}
