"use strict";
// Mathematics: arithmatex leaves \( ... \) and \[ ... \]; KaTeX, on the pages that load it, sets them.
function setMathematics() {
  for (const place of document.querySelectorAll(".arithmatex")) {
    const tex = place.textContent.trim();
    const display = tex.startsWith("\\[");
    katex.render(tex.slice(2, -2), place, {displayMode: display, throwOnError: true, strict: "ignore"});
    if (display) { place.tabIndex = 0; }
  }
  document.documentElement.dataset.mathematics = "set";
}

// What scrolls sideways can be reached by the keyboard, and says that it scrolls.
function markScrolling() {
  for (const box of document.querySelectorAll(".md-typeset__scrollwrap, .md-typeset pre > code, .output")) {
    const wide = box.scrollWidth > box.clientWidth + 1;
    if (wide) { box.tabIndex = 0; } else { box.removeAttribute("tabindex"); }
    if (!box.classList.contains("md-typeset__scrollwrap")) { continue; }
    const before = box.previousElementSibling;
    const hint = before && before.classList.contains("scroll-hint") ? before : null;
    if (wide) { box.setAttribute("role", "region"); box.setAttribute("aria-label", "table that scrolls sideways"); }
    else { box.removeAttribute("role"); box.removeAttribute("aria-label"); }
    if (wide && !hint) {
      const line = document.createElement("span");
      line.className = "scroll-hint";
      line.textContent = "The table scrolls sideways →";
      box.before(line);
    } else if (!wide && hint) { hint.remove(); }
  }
}

window.addEventListener("load", () => {
  document.querySelector(".md-search")?.setAttribute("aria-label", "Search");  // a dialog needs a name
  if (window.katex) { setMathematics(); }
  requestAnimationFrame(() => setTimeout(() => {
    markScrolling();
    document.documentElement.dataset.ready = "yes";
  }, 50));
});
window.addEventListener("resize", markScrolling);
