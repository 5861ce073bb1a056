// The field in which messages are written.

export class Composer {
  #form = document.getElementById("composer");
  #field = document.getElementById("prompt");
  #send = document.getElementById("send");
  #stop = document.getElementById("stop");
  #busy = false;

  /** `onSend` gets the text; `onStop` is called when the answer under way is to end. */
  constructor({ onSend, onStop }) {
    this.#form.addEventListener("submit", (event) => {
      event.preventDefault();
      const text = this.#field.value.trim();
      if (!text || this.#busy) return;
      this.#field.value = "";
      this.#fit();
      onSend(text);
    });
    this.#field.addEventListener("keydown", (event) => {
      if (isSending(event)) {
        event.preventDefault();
        this.#form.requestSubmit();
      }
    });
    this.#field.addEventListener("input", () => this.#fit());
    this.#stop.addEventListener("click", onStop);
    document.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && this.#busy) onStop();
    });
    this.#fit();
  }

  /** Busy: an answer of the conversation on show is under way, and can be stopped. */
  set busy(busy) {
    const hadFocus = document.activeElement === this.#stop || document.activeElement === this.#send;
    this.#busy = busy;
    this.#send.hidden = busy;
    this.#stop.hidden = !busy;
    this.#fit();
    if (hadFocus) this.focus();
  }

  /** Put back what was sent but could not be taken. */
  giveBack(text) {
    this.#field.value = [text, this.#field.value].filter(Boolean).join("\n");
    this.#fit();
  }

  focus() {
    this.#field.focus({ preventScroll: true });
  }

  #fit() {
    this.#send.disabled = this.#field.value.trim() === "";
    fit(this.#field);
  }
}

/** Whether a key sends. While an input method composes a character, Enter belongs to it. */
export function isSending(event) {
  return event.key === "Enter" && !event.shiftKey && !event.isComposing;
}

/** Make a text field as high as its text. */
export function fit(field) {
  field.style.height = "auto";
  field.style.height = `${field.scrollHeight + field.offsetHeight - field.clientHeight}px`;
}
