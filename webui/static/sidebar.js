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

  /**
   * `headers`: {id, title}, latest first; `current` is the id of the one on show. Items stay the same nodes, and
   * move only when their order changes: a click on one that is replaced under the pointer would be lost.
   */
  show(headers, current) {
    const focused = this.#list.contains(document.activeElement) ? document.activeElement : undefined;
    const items = new Map([...this.#list.children].map((item) => [item.dataset.id, item]));
    const shown = new Set(headers.map(({ id }) => id));
    for (const [id, item] of items) if (!shown.has(id)) item.remove();
    let next = this.#list.firstElementChild;
    for (const { id, title } of headers) {
      const item = items.get(id) ?? this.#item(id);
      this.#write(item, title, id === current);
      if (item === next) next = next.nextElementSibling;
      else this.#list.insertBefore(item, next);
    }
    if (focused?.isConnected) focused.focus();
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

  #item(id) {
    const open = document.createElement("button");
    open.type = "button";
    open.className = "title";
    open.addEventListener("click", () => {
      this.#slide(false);
      this.#actions.onOpen(id);
    });

    const remove = document.createElement("button");
    remove.type = "button";
    remove.className = "delete";
    remove.textContent = "×";
    remove.addEventListener("click", () => {
      if (confirm(`Delete “${open.textContent}”? It cannot be brought back.`)) this.#actions.onDelete(id);
    });

    const item = document.createElement("li");
    item.dataset.id = id;
    item.append(open, remove);
    return item;
  }

  #write(item, title, current) {
    const [open, remove] = item.children;
    const name = title || "Untitled";
    if (open.textContent !== name) open.textContent = name;
    open.title = title;
    if (current) open.setAttribute("aria-current", "page");
    else open.removeAttribute("aria-current");
    remove.setAttribute("aria-label", `Delete: ${name}`);
  }
}
