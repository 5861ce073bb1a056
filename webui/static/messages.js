// The messages of the conversation on show.

import { blocksOf, render } from "./markdown.js";
import { describe } from "./timings.js";

const NOTES = {
  stopped: "Stopped.",
  length: "Cut off: the token limit or the end of the context was reached.",
};

export class MessageList {
  #list;
  #scroller;
  #onRegenerate;
  #views = new Map();

  /** `onRegenerate` is called without arguments, for the last answer. */
  constructor(list, scroller, onRegenerate) {
    this.#list = list;
    this.#scroller = scroller;
    this.#onRegenerate = onRegenerate;
  }

  /** Replace everything on show. */
  show(messages, { answering }) {
    this.#views.clear();
    this.#list.replaceChildren();
    // A screen reader announces what is added from here on, not the whole history.
    this.#list.setAttribute("aria-busy", "true");
    for (const message of messages) this.#add(message);
    this.settle({ answering });
    this.#toEnd();
  }

  /** Show a message for the first time, or its new state. One that belongs elsewhere is left alone. */
  update(message) {
    const follow = this.#atEnd();
    this.#views.get(message)?.update();
    if (follow) this.#toEnd();
  }

  add(message) {
    this.#add(message);
    this.#toEnd();
  }

  /** Called when an answer starts or ends: only the last answer can be regenerated, and only at rest. */
  settle({ answering }) {
    this.#list.setAttribute("aria-busy", String(answering));
    const last = [...this.#views.values()].at(-1);
    for (const view of this.#views.values()) view.settle({ answering: answering && view === last, last: view === last });
  }

  #add(message) {
    const view = message.role === "user" ? new Question(message) : new Answer(message, this.#onRegenerate);
    this.#views.set(message, view);
    this.#list.append(view.element);
  }

  #atEnd() {
    const { scrollHeight, scrollTop, clientHeight } = this.#scroller;
    return scrollHeight - scrollTop - clientHeight < 60;
  }

  #toEnd() {
    this.#scroller.scrollTop = this.#scroller.scrollHeight;
  }
}

class Question {
  constructor(message) {
    this.element = element("article", "message question", element("p", "text", message.content));
    this.element.setAttribute("aria-label", "You");
  }

  update() {}

  settle() {}
}

class Answer {
  #message;
  #text = element("div", "prose");
  #waiting = element("p", "waiting");
  #note = element("p", "note");
  #cost = element("p", "cost");
  #actions;
  #regenerate;
  #answering = null;
  #shown = [];

  constructor(message, onRegenerate) {
    this.#message = message;
    const copy = action("Copy", async () => {
      await navigator.clipboard.writeText(message.content);
      copy.textContent = "Copied";
      setTimeout(() => (copy.textContent = "Copy"), 1500);
    });
    // Browsers offer the clipboard on https and localhost only.
    copy.hidden = !navigator.clipboard;
    this.#regenerate = action("Regenerate", onRegenerate);
    this.#actions = element("div", "actions", copy, this.#regenerate);
    const foot = element("footer", "foot", this.#cost, this.#actions);
    this.element = element("article", "message answer", this.#text, this.#waiting, this.#note, foot);
    this.element.setAttribute("aria-label", "emberd");
  }

  update() {
    const { content, waiting, error, finish, timings } = this.#message;
    this.#write(content);
    this.#waiting.textContent = waiting ?? "";
    this.#note.textContent = error ?? (this.#answering ? "" : (NOTES[finish] ?? ""));
    this.#note.classList.toggle("error", Boolean(error));
    if (error) this.#note.setAttribute("role", "alert");
    if (timings) this.#writeCost(timings);
  }

  settle({ answering, last }) {
    this.#regenerate.hidden = !last;
    if (answering === this.#answering) return;
    const ended = this.#answering === true;
    this.#answering = answering;
    this.element.classList.toggle("answering", answering);
    this.#actions.hidden = answering;
    // A link defined at the end of an answer changes blocks that were painted before it came.
    if (ended) this.#shown = [];
    this.update();
  }

  /**
   * Blocks that did not change keep their nodes: a long answer costs per token only its last paragraph, and a
   * reader's selection above it survives.
   */
  #write(content) {
    const blocks = blocksOf(content);
    let same = 0;
    while (same < blocks.length && blocks[same].raw === this.#shown[same]?.raw) same += 1;
    for (const { nodes } of this.#shown.splice(same)) for (const node of nodes) node.remove();
    if (same === 0) this.#text.replaceChildren();
    for (const block of blocks.slice(same)) {
      const fragment = render(block);
      this.#shown.push({ raw: block.raw, nodes: [...fragment.childNodes] });
      this.#text.append(fragment);
    }
  }

  #writeCost(timings) {
    const { parts, share } = describe(timings);
    const bar = element("span", "share");
    bar.style.setProperty("--share", share);
    this.#cost.replaceChildren(bar, parts.join(" · "));
  }
}

function action(label, onClick) {
  const button = element("button", "action", label);
  button.type = "button";
  button.addEventListener("click", onClick);
  return button;
}

function element(tag, className, ...children) {
  const made = document.createElement(tag);
  made.className = className;
  made.append(...children);
  return made;
}
