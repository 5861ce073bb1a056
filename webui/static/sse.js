// Server-sent events out of a fetch body: yields the data of each event as a string.

/**
 * @param {ReadableStream<Uint8Array>} body
 * @param {AbortSignal} signal that of the fetch: events that had arrived before the abort are not shown either
 */
export async function* serverSentEvents(body, signal) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let data = [];
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const lines = (rest + value).split(/\r?\n/);
      rest = lines.pop();
      for (const line of lines) {
        if (line.startsWith("data:")) {
          data.push(line.slice(5).replace(/^ /, ""));
        } else if (line === "" && data.length) {
          yield data.join("\n");
          data = [];
          signal?.throwIfAborted();
        }
      }
    }
  } finally {
    // Leaving early (stop, error) must close the connection: that is what frees the slot.
    await reader.cancel().catch(() => undefined);
  }
}
