// Conversations, kept in the browser's IndexedDB. The list is stored apart from the messages, so that
// showing it reads no text.

const NAME = "emberd";
const VERSION = 1;
const TITLE_LENGTH = 60;

/** A new conversation; it is kept from the first `save` on. */
export function newConversation() {
  return { id: crypto.randomUUID?.() ?? randomId(), title: "", updated: Date.now(), messages: [] };
}

/** The first words of the first question. */
export function titleOf(conversation) {
  const question = conversation.messages.find(({ role }) => role === "user");
  const text = (question?.content ?? "").replace(/\s+/g, " ").trim();
  return text.length > TITLE_LENGTH ? `${text.slice(0, TITLE_LENGTH - 1)}…` : text;
}

/** The browser's collection, or one in memory where the browser keeps nothing: see `persistent`. */
export async function openCollection() {
  try {
    return new Collection(await open());
  } catch {
    return new Fleeting();
  }
}

class Collection {
  persistent = true;
  #database;

  constructor(database) {
    this.#database = database;
  }

  /** Headers {id, title, updated}, latest first. */
  async list() {
    const headers = await settled(this.#store("headers", "readonly").getAll());
    return headers.sort((a, b) => b.updated - a.updated);
  }

  /** The conversation, or undefined. */
  async load(id) {
    const [header, messages] = await Promise.all([
      settled(this.#store("headers", "readonly").get(id)),
      settled(this.#store("messages", "readonly").get(id)),
    ]);
    return header && { ...header, messages: messages ?? [] };
  }

  async save({ id, title, updated, messages }) {
    const transaction = this.#database.transaction(["headers", "messages"], "readwrite");
    transaction.objectStore("headers").put({ id, title, updated });
    transaction.objectStore("messages").put(messages, id);
    await completed(transaction);
  }

  async remove(id) {
    const transaction = this.#database.transaction(["headers", "messages"], "readwrite");
    transaction.objectStore("headers").delete(id);
    transaction.objectStore("messages").delete(id);
    await completed(transaction);
  }

  #store(name, mode) {
    return this.#database.transaction(name, mode).objectStore(name);
  }
}

class Fleeting {
  persistent = false;
  #kept = new Map();

  async list() {
    return [...this.#kept.values()].sort((a, b) => b.updated - a.updated);
  }

  async load(id) {
    return this.#kept.get(id);
  }

  async save(conversation) {
    this.#kept.set(conversation.id, conversation);
  }

  async remove(id) {
    this.#kept.delete(id);
  }
}

function open() {
  const request = indexedDB.open(NAME, VERSION);
  request.onupgradeneeded = () => {
    request.result.createObjectStore("headers", { keyPath: "id" });
    request.result.createObjectStore("messages");
  };
  return settled(request);
}

function settled(request) {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

function completed(transaction) {
  return new Promise((resolve, reject) => {
    transaction.oncomplete = () => resolve();
    transaction.onabort = transaction.onerror = () => reject(transaction.error);
  });
}

// crypto.randomUUID exists only on https and localhost; a daemon on the local network is neither.
function randomId() {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}
