// What is asked of every answer, and the key to ask with: kept in this browser, set in a dialog.

const STORE = "emberd-settings";
const NAMES = ["key", "system", "temperature", "maxTokens"];

let kept = read();

/** {key, system, temperature, maxTokens}, each "" where nothing was set. */
export const settings = () => kept;

/** Fields of a chat request, for what was set. */
export function requestFields() {
  const fields = {};
  if (kept.temperature !== "") fields.temperature = Number(kept.temperature);
  if (kept.maxTokens !== "") fields.max_tokens = Number(kept.maxTokens);
  return fields;
}

export class SettingsDialog {
  #dialog = document.getElementById("settings");
  #form = this.#dialog.querySelector("form");
  #note = document.getElementById("key-note");

  /** `onChange` is called after something was saved. */
  constructor(onChange) {
    document.getElementById("open-settings").addEventListener("click", () => this.open());
    document.getElementById("cancel-settings").addEventListener("click", () => this.#dialog.close());
    this.#form.addEventListener("submit", (event) => {
      event.preventDefault();
      kept = Object.fromEntries(NAMES.map((name) => [name, this.#form.elements[name].value.trim()]));
      write(kept);
      this.#dialog.close();
      onChange();
    });
  }

  open() {
    if (this.#dialog.open) return;
    this.#note.textContent = "";
    for (const name of NAMES) this.#form.elements[name].value = kept[name];
    this.#dialog.showModal();
  }

  /** Opened because emberd refused: the key is missing, or the one that is kept is wrong. */
  askForKey() {
    this.open();
    this.#note.textContent = kept.key ? "emberd does not know this key." : "emberd asks for a key.";
    this.#form.elements.key.focus();
  }
}

function read() {
  let stored;
  try {
    stored = JSON.parse(localStorage.getItem(STORE));
  } catch {
    // Nothing is kept here, or not by this page: start from nothing.
  }
  return Object.fromEntries(NAMES.map((name) => [name, String(stored?.[name] ?? "")]));
}

function write(values) {
  try {
    localStorage.setItem(STORE, JSON.stringify(values));
  } catch {
    // They then last until the page is closed.
  }
}
