// Elements without HTML in strings, and questions to the server.

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

// With a tag: null when the answer is the one that bore the tag.
export async function ask(what, pairs = [], tag = null) {
  const address = `api/${what}?${new URLSearchParams(pairs)}`;
  const response = await fetch(address, { headers: tag ? { "If-None-Match": tag } : {}, cache: "no-store" });
  if (response.status === 304) return null;
  const content = await response.json().catch(() => ({ error: response.statusText }));
  if (!response.ok) throw Object.assign(new Error(content.error), { status: response.status });
  return Object.defineProperty(content, "tag", { value: response.headers.get("ETag") });
}
