// The list of conversations, and its drawer on narrow screens.

export class Sidebar {
  #nav = document.getElementById("sidebar");
  #list = document.getElementById("conversations");
  #menu = document.getElementById("menu");
  #scrim = document.getElementById("scrim");
  #actions;

  /** `actions`: onOpen(id), onDelete(id), onNew(). */
  constructor(actions) {
    this.#actions = actions;
    this.#menu.addEventListener("click", () => this.#slide(!this.#isOpen));
    this.#scrim.addEventListener("click", () => this.#slide(false));
    document.getElementById("new").addEventListener("click", () => {
      this.#slide(false);
      actions.onNew();
    });
    document.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && this.#isOpen) {
        this.#slide(false);
        this.#menu.focus();
      }
    });
  }

  /** `headers`: {id, title}, latest first; `current` is the id of the one on show. */
  show(headers, current) {
    const focused = document.activeElement?.closest?.("#conversations li")?.dataset.id;
    this.#list.replaceChildren(...headers.map((header) => this.#item(header, header.id === current)));
    if (focused) this.#list.querySelector(`li[data-id="${CSS.escape(focused)}"] button`)?.focus();
  }

  get #isOpen() {
    return this.#nav.classList.contains("open");
  }

  #slide(open) {
    this.#nav.classList.toggle("open", open);
    this.#scrim.hidden = !open;
    this.#menu.setAttribute("aria-expanded", String(open));
    if (open) document.getElementById("new").focus();
  }

  #item({ id, title }, current) {
    const open = document.createElement("button");
    open.type = "button";
    open.className = "title";
    open.textContent = title || "Untitled";
    open.title = title;
    if (current) open.setAttribute("aria-current", "page");
    open.addEventListener("click", () => {
      this.#slide(false);
      this.#actions.onOpen(id);
    });

    const remove = document.createElement("button");
    remove.type = "button";
    remove.className = "delete";
    remove.textContent = "×";
    remove.setAttribute("aria-label", `Delete: ${title || "Untitled"}`);
    remove.addEventListener("click", () => {
      if (confirm(`Delete “${title || "Untitled"}”? It cannot be brought back.`)) this.#actions.onDelete(id);
    });

    const item = document.createElement("li");
    item.dataset.id = id;
    item.append(open, remove);
    return item;
  }
}
