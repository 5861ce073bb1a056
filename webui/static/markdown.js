// Markdown from a model, made into DOM nodes that cannot do anything. A model's text is hostile input:
// it may have been told what to say by whatever it read.

import { Marked } from "./vendor/marked.js";
import DOMPurify from "./vendor/purify.js";

const PLAIN_TAG = /^<\/?(?:br|kbd|sub|sup)\s*\/?>$/i;

const escaped = (text) => text.replace(/[&<>"']/g, (character) => `&#${character.charCodeAt(0)};`);

const marked = new Marked({
  gfm: true,
  breaks: true,
  renderer: {
    // A model that writes of <script> means the word: tags are shown, not obeyed.
    html: ({ text, block }) => (PLAIN_TAG.test(text) ? text : block ? `<p>${escaped(text)}</p>` : escaped(text)),
    // Loading a picture would tell its server that this text was read.
    image: ({ href, text }) => `<a href="${escaped(href)}">${escaped(text || href)}</a>`,
  },
});

const ALLOWED = {
  ALLOWED_TAGS: [
    ..."a b blockquote br code del em h1 h2 h3 h4 h5 h6 hr i input kbd li ol p pre s strong sub sup".split(" "),
    ..."table tbody td th thead tr ul".split(" "),
  ],
  // No id and no name: they could shadow what the page itself looks up.
  ALLOWED_ATTR: ["align", "checked", "class", "disabled", "href", "start", "title", "type"],
  ALLOWED_URI_REGEXP: /^(?:https?|mailto):/i,
  ADD_URI_SAFE_ATTR: ["align", "start", "type"],
  RETURN_DOM_FRAGMENT: true,
};

DOMPurify.addHook("afterSanitizeAttributes", (node) => {
  if (node.tagName === "A") {
    node.setAttribute("target", "_blank");
    node.setAttribute("rel", "noopener noreferrer nofollow");
  }
  if (node.hasAttribute("class") && !/^language-[\w+#.-]+$/.test(node.className)) node.removeAttribute("class");
  if (node.tagName === "INPUT") {
    if (node.getAttribute("type") !== "checkbox") node.remove();
    else node.setAttribute("disabled", "");
  }
});

/** Top-level pieces of the text: {raw} and whatever marked keeps to render each. */
export function blocksOf(text) {
  return marked.lexer(text);
}

/** One block as a DocumentFragment. */
export function render(block) {
  return DOMPurify.sanitize(marked.parser([block]), ALLOWED);
}
