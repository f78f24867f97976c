// Elements without HTML in strings, questions to the server, and what leaves the page: copied text and files.

export const byId = (id) => document.getElementById(id);

export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [key, v] of Object.entries(attributes)) {
    if (key.startsWith("on")) element.addEventListener(key.slice(2), v);
    else if (key.startsWith("aria-")) element.setAttribute(key, v);
    else if (v === true) element.setAttribute(key, "");
    else if (v !== false && v != null) element.setAttribute(key, v);
  }
  element.append(...children);
  return element;
}

export function draw(tag, attributes, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [key, v] of Object.entries(attributes)) element.setAttribute(key, v);
  element.append(...children);
  return element;
}

// With a tag: null when the answer is the one that bore the tag.
export async function ask(what, pairs = [], tag = null) {
  const response = await fetch(address(what, pairs), { headers: tag ? { "If-None-Match": tag } : {}, cache: "no-store" });
  if (response.status === 304) return null;
  const content = await response.json().catch(() => ({ error: response.statusText }));
  if (!response.ok) throw Object.assign(new Error(content.error), { status: response.status });
  return Object.defineProperty(content, "tag", { value: response.headers.get("ETag") });
}

export const address = (what, pairs) => `api/${what}?${new URLSearchParams(pairs)}`;

// Pairs in parts that an address can carry; `together` tells which pairs belong into one part.
export function split(pairs, together = (pair, i) => i) {
  const parts = [];
  let size = 0, last = null;
  pairs.forEach((pair, i) => {
    const length = encodeURIComponent(pair[1]).length + 8, mine = together(pair, i);
    if (!parts.length || (size + length > 20000 && mine !== last)) { parts.push([]); size = 0; }
    parts.at(-1).push(pair);
    size += length;
    last = mine;
  });
  return parts;
}

// A button that copies a text and says so.
export function copier(text, label, what) {
  const button = make("button", { type: "button", class: "copy", "aria-label": what }, label);
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text());
      say(button, "copied");
    } catch {
      say(button, "not allowed"); // a page that came over plain HTTP from another machine
    }
  });
  return button;
}

function say(button, text) {
  const before = button.dataset.label ?? button.textContent;
  button.dataset.label = before;
  button.textContent = text;
  byId("said").textContent = text;
  setTimeout(() => { button.textContent = before; }, 1500);
}

export function save(name, href) {
  const link = make("a", { href, download: name });
  document.body.append(link);
  link.click();
  link.remove();
}

export async function saveAnswer(name, what, pairs) {
  const response = await fetch(address(what, pairs), { cache: "no-store" });
  if (!response.ok) throw Object.assign(new Error((await response.json()).error), { status: response.status });
  const place = URL.createObjectURL(await response.blob());
  save(name, place);
  setTimeout(() => URL.revokeObjectURL(place), 10000);
}
