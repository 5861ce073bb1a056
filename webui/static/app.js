// The page: which conversation is on show, which ones are being answered, and what is kept.

import { ApiError, chat, forget, modelName, untilReady } from "./api.js";
import { Composer } from "./composer.js";
import { newConversation, openCollection, titleOf } from "./conversations.js";
import { MessageList } from "./messages.js";
import { requestFields, settings, SettingsDialog } from "./settings.js";
import { Sidebar } from "./sidebar.js";

const KEEP_EVERY_MS = 1000;
const LONG_PROMPT = 512;

const collection = await openCollection();
// Conversations by id, while they are on show or being answered: everybody must change the same object.
const live = new Map();
// AbortControllers of answers under way, by conversation id.
const answering = new Map();
// Ids of deleted ones. Their answer may still be under way, or they are being opened: they must not come back.
const gone = new Set();
let shown = newConversation();
// Done once the conversation that was asked for last is on show.
let opening = Promise.resolve();
let watching = false;

const composer = new Composer({ onSend: send, onStop: () => answering.get(shown.id)?.abort() });
const sidebar = new Sidebar({ onOpen: open, onDelete: remove, onNew: () => open() });
const dialog = new SettingsDialog(watchModel);
const list = new MessageList({ onRegenerate: regenerate, onEdit: edit });

if (!collection.persistent) warnOfStorage("This browser keeps nothing for this page: conversations end with it.");
window.addEventListener("hashchange", () => {
  const id = location.hash.slice(1);
  if (id !== shown.id) open(id);
});
watchModel();
await open(location.hash.slice(1));

/** Show a conversation, or a new one. Who asks for another one meanwhile sees only that. */
function open(id) {
  const mine = load(id).then((conversation) => {
    if (opening === mine) show(gone.has(conversation.id) ? newConversation() : conversation);
  });
  opening = mine;
  return mine;
}

async function load(id) {
  try {
    return live.get(id) ?? (id ? await collection.load(id) : undefined) ?? newConversation();
  } catch (error) {
    warnOfStorage(`The browser did not give this conversation back: ${error.message}`);
    return newConversation();
  }
}

function show(conversation) {
  if (!answering.has(shown.id)) live.delete(shown.id);
  shown = conversation;
  live.set(shown.id, shown);
  const empty = shown.messages.length === 0;
  document.getElementById("welcome").hidden = !empty;
  history.replaceState(null, "", empty ? location.pathname + location.search : `#${shown.id}`);
  list.show(shown.messages, { answering: answering.has(shown.id) });
  composer.busy = answering.has(shown.id);
  composer.focus();
  listConversations();
}

async function send(text) {
  // What is typed after a click on a conversation belongs to that one.
  for (let awaited; awaited !== opening; await awaited) awaited = opening;
  if (answering.has(shown.id)) composer.giveBack(text);
  else await ask(shown, text);
}

/** Ask a question in the conversation on show. */
async function ask(conversation, text) {
  const { system } = settings();
  if (system && !conversation.messages.length) {
    conversation.messages.push({ role: "system", content: system });
    list.add(conversation.messages[0]);
  }
  conversation.messages.push({ role: "user", content: text });
  conversation.title ||= titleOf(conversation);
  document.getElementById("welcome").hidden = true;
  history.replaceState(null, "", `#${conversation.id}`);
  list.add(conversation.messages.at(-1));
  await answer(conversation);
}

async function regenerate() {
  const conversation = shown;
  if (answering.has(conversation.id)) return;
  if (conversation.messages.at(-1)?.role === "assistant") conversation.messages.pop();
  list.show(conversation.messages, { answering: true });
  await answer(conversation);
}

/** Ask a question again in other words: it and what came after it leave the conversation. */
async function edit(message, text) {
  const conversation = shown;
  const at = conversation.messages.indexOf(message);
  if (answering.has(conversation.id) || at < 0) return;
  const opening = openingOf(conversation.messages);
  conversation.messages.length = at;
  if (at < opening.length) {
    conversation.title = "";
    forgetAll(opening);
  }
  list.show(conversation.messages, { answering: false });
  await ask(conversation, text);
}

/** Have the last message answered, into a new one that grows on show and in the collection. */
async function answer(conversation) {
  const request = requestOf(conversation.messages);
  const message = { role: "assistant", content: "", finish: "stopped" };
  const controller = new AbortController();
  conversation.messages.push(message);
  answering.set(conversation.id, controller);
  if (conversation === shown) {
    list.add(message);
    settle();
  }
  keep(conversation);
  const paint = onceAFrame(() => list.update(message));
  let kept = performance.now();
  try {
    const onWaiting = (reason) => {
      watchModel();
      message.waiting = reason;
      paint();
    };
    for await (const piece of chat(request, { signal: controller.signal, onWaiting, fields: requestFields() })) {
      message.waiting = piece.progress && reading(piece.progress);
      message.content += piece.text ?? "";
      if (piece.finish) Object.assign(message, { finish: piece.finish, timings: piece.timings });
      paint();
      if (performance.now() - kept > KEEP_EVERY_MS) {
        kept = performance.now();
        keep(conversation);
      }
    }
  } catch (error) {
    if (!controller.signal.aborted) {
      message.error = error instanceof ApiError ? error.message : `The page failed: ${error.message}`;
      if (!(error instanceof ApiError)) console.error(error);
      if (error.needsKey) dialog.askForKey();
      else watchModel();
    }
  }
  delete message.waiting;
  answering.delete(conversation.id);
  if (conversation === shown) {
    list.update(message);
    settle();
  } else {
    live.delete(conversation.id);
  }
  keep(conversation);
}

/** How far the reading of a long prompt is; nothing for a short one, whose answer is about to come. */
function reading({ total, cache, processed }) {
  if (total - cache < LONG_PROMPT) return undefined;
  return `Reading: ${processed.toLocaleString("en")} of ${total.toLocaleString("en")} tokens`;
}

/** What the model is to read: without answers that never came, so the questions around them are one. */
function requestOf(messages) {
  const request = [];
  for (const { role, content } of messages) {
    if (!content) continue;
    const previous = request.at(-1);
    if (previous?.role === role) previous.content += `\n\n${content}`;
    else request.push({ role, content });
  }
  return request;
}

function settle() {
  const busy = answering.has(shown.id);
  list.settle({ answering: busy });
  composer.busy = busy;
}

async function remove(id) {
  gone.add(id);
  answering.get(id)?.abort();
  const loading = live.get(id) ?? collection.load(id);
  // At once: what is typed while the browser still deletes begins a new conversation.
  if (id === shown.id) open();
  const conversation = await loading;
  await collection.remove(id);
  listConversations();
  if (conversation?.messages.length) await forgetAll(openingOf(conversation.messages));
}

/** The messages up to the first question: whatever was read of the conversation begins with them. */
function openingOf(messages) {
  const end = messages.findIndex(({ role }) => role === "user") + 1;
  return messages.slice(0, end).map(({ role, content }) => ({ role, content }));
}

async function forgetAll(opening) {
  try {
    await forget(opening);
  } catch (error) {
    warnOfStorage(`The page deleted the conversation, but emberd may still remember it: ${error.message}`);
  }
}

/** Nobody waits for this: a slow disk must hold up neither the question nor the answer. */
async function keep(conversation) {
  if (gone.has(conversation.id)) return;
  conversation.updated = Date.now();
  try {
    await collection.save(conversation);
  } catch (error) {
    warnOfStorage(`The browser did not keep this conversation: ${error.message}`);
  }
  listConversations();
}

function warnOfStorage(text) {
  const note = document.getElementById("storage-note");
  note.textContent = text;
  note.hidden = false;
}

async function listConversations() {
  sidebar.show(await collection.list(), shown.id);
}

/** Show the model's name, or why there is none, until there is one. */
async function watchModel() {
  if (watching) return;
  watching = true;
  const dot = document.getElementById("model-dot");
  const name = document.getElementById("model-name");
  const words = { loading: "the model is loading…", unreachable: "emberd cannot be reached" };
  try {
    await untilReady((state) => {
      dot.dataset.state = "waiting";
      name.textContent = words[state];
    });
    name.textContent = await modelName();
    dot.dataset.state = "ready";
  } catch (error) {
    name.textContent = error.message;
    dot.dataset.state = "waiting";
    if (error.needsKey) dialog.askForKey();
  } finally {
    watching = false;
  }
}

/** At most one call per painted frame: tokens may come faster than the screen can show them. */
function onceAFrame(paint) {
  let due = false;
  return () => {
    if (due) return;
    due = true;
    requestAnimationFrame(() => {
      due = false;
      paint();
    });
  };
}
