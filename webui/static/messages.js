// The messages of the conversation on show.

import { fit, isSending } from "./composer.js";
import { blocksOf, render } from "./markdown.js";
import { withoutThoughts } from "./thoughts.js";
import { describe } from "./timings.js";

const NOTES = {
  stopped: "Stopped.",
  length: "Cut off: the token limit or the end of the context was reached.",
};

export class MessageList {
  #list = document.getElementById("messages");
  #scroller = document.getElementById("scroller");
  #jump = document.getElementById("to-end");
  #actions;
  #views = new Map();

  /** `actions`: onRegenerate(), for the last answer; onEdit(message, text), for a question. */
  constructor(actions) {
    this.#actions = actions;
    this.#jump.addEventListener("click", () => this.#toEnd());
    this.#scroller.addEventListener("scroll", () => (this.#jump.hidden = this.#atEnd()));
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
    this.#jump.hidden = this.#atEnd();
  }

  add(message) {
    this.#add(message);
    this.#toEnd();
  }

  /** Called when an answer starts or ends: only the last answer can be regenerated, and only at rest. */
  settle({ answering }) {
    const follow = this.#atEnd();
    this.#list.setAttribute("aria-busy", String(answering));
    const last = [...this.#views.values()].at(-1);
    for (const view of this.#views.values()) {
      view.settle({ answering: answering && view === last, last: view === last, resting: !answering });
    }
    if (follow) this.#toEnd();
  }

  #add(message) {
    const view = new VIEWS[message.role](message, this.#actions);
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

class Instruction {
  constructor(message) {
    const text = element("p", "text", message.content);
    this.element = element("details", "message instruction", element("summary", "", "System message"), text);
  }

  update() {}

  settle() {}
}

class Question {
  #message;
  #onEdit;
  #text;
  #actions;

  constructor(message, { onEdit }) {
    this.#message = message;
    this.#onEdit = onEdit;
    this.#text = element("p", "text", message.content);
    this.#actions = element("div", "actions", action("Edit", () => this.#edit()));
    this.element = element("article", "message question", this.#text, this.#actions);
    this.element.setAttribute("aria-label", "You");
  }

  update() {}

  settle({ resting }) {
    this.#actions.hidden = !resting;
  }

  #edit() {
    const field = element("textarea", "");
    const form = element("form", "rewording", field, element("div", "actions"));
    const end = () => {
      this.element.replaceChildren(this.#text, this.#actions);
      this.#actions.querySelector("button").focus();
    };
    const again = action("Ask again", () => {
      const text = field.value.trim();
      if (text) this.#onEdit(this.#message, text);
    });
    form.lastElementChild.append(action("Cancel", end), again);
    form.addEventListener("keydown", (event) => {
      if (event.key === "Escape") end();
      if (isSending(event) && event.target === field) {
        event.preventDefault();
        again.click();
      }
    });
    field.setAttribute("aria-label", "Your message");
    field.rows = 1;
    field.value = this.#message.content;
    field.addEventListener("input", () => fit(field));
    this.element.replaceChildren(form);
    fit(field);
    field.focus();
  }
}

class Answer {
  #message;
  #thoughts = thoughtsView();
  #text = element("div", "prose");
  #waiting = element("p", "waiting");
  #note = element("p", "note");
  #cost = element("p", "cost");
  #actions;
  #copy;
  #regenerate;
  #answering = null;
  #shown = [];

  constructor(message, { onRegenerate }) {
    this.#message = message;
    this.#copy = copying(() => withoutThoughts(message.content).text);
    this.#regenerate = action("Regenerate", onRegenerate);
    this.#actions = element("div", "actions", this.#copy, this.#regenerate);
    const foot = element("footer", "foot", this.#cost, this.#actions);
    this.element = element("article", "message answer", this.#thoughts, this.#text, this.#waiting, this.#note, foot);
    this.element.setAttribute("aria-label", "emberd");
  }

  update() {
    const { content, waiting, error, finish, timings } = this.#message;
    const { thoughts, text, thinking } = withoutThoughts(content);
    this.#thoughts.hidden = !thoughts;
    this.#thoughts.firstElementChild.textContent = thinking ? "Thinking…" : "Thoughts";
    this.#thoughts.lastElementChild.textContent = thoughts;
    this.#write(text);
    this.#copy.hidden = !text || !navigator.clipboard;
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
      for (const pre of fragment.querySelectorAll("pre")) frame(pre);
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

const VIEWS = { system: Instruction, user: Question, assistant: Answer };

function thoughtsView() {
  return element("details", "thoughts", element("summary", ""), element("p", "text"));
}

/** A code block with its language and a button above it. */
function frame(pre) {
  const code = pre.querySelector("code");
  const language = code?.className.replace(/^language-/, "") ?? "";
  const head = element("div", "code-head", element("span", "", language), copying(() => pre.textContent));
  const framed = element("div", "code");
  pre.replaceWith(framed);
  // Scrolled sideways with the keys, as any region that scrolls has to be.
  pre.tabIndex = 0;
  framed.append(head, pre);
}

function copying(textOf) {
  const copy = action("Copy", async () => {
    await navigator.clipboard.writeText(textOf());
    copy.textContent = "Copied";
    setTimeout(() => (copy.textContent = "Copy"), 1500);
  });
  // Browsers offer the clipboard on https and localhost only.
  copy.hidden = !navigator.clipboard;
  return copy;
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
