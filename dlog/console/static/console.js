"use strict";
// Pages are made by the server; this puts in what it sends. What it sends is escaped there.

const alive = document.getElementById("alive");
function said(text) { if (alive) alive.textContent = text; }

const SILENT_MS = 15000; // the console says something every few seconds, whether or not there is news
for (const place of document.querySelectorAll("[data-live]")) {
  let source = null, silent = 0, news = null;
  const heard = () => {
    clearTimeout(silent);
    silent = setTimeout(() => said("not up to date: the console is silent"), SILENT_MS);
    const marked = getSelection();
    if (news !== null && !marked.isCollapsed && place.contains(marked.anchorNode)) return said("held while text is marked");
    if (news !== null) renew(place, news);
    news = null;
    said("live");
  };
  const stop = () => { if (source) source.close(); source = null; clearTimeout(silent); };
  const start = () => {
    stop();
    source = new EventSource(place.dataset.live);
    source.addEventListener("page", (event) => { news = event.data; heard(); });
    source.addEventListener("still", heard);
    source.addEventListener("full", () => { stop(); said("too many pages are open"); });
    source.onerror = () => said(source.readyState === EventSource.CLOSED ? "not up to date: load this page again"
      : "not up to date: no answer from the console"); // it asks again by itself
  };
  // A browser has six connections to one console, for all of its tabs: those out of sight let theirs go.
  document.addEventListener("visibilitychange", () => (document.hidden ? stop() : start()));
  if (!document.hidden) start();
}

// What somebody has scrolled to stays in sight.
function renew(place, html) {
  const scrolled = [...place.querySelectorAll(".wide")].map((each) => each.scrollLeft);
  place.innerHTML = html;
  place.querySelectorAll(".wide").forEach((each, at) => { each.scrollLeft = scrolled[at] || 0; });
}

const ROWS_MAX = 500;
const rows = document.getElementById("rows");
function show(html, atTop) {
  rows.insertAdjacentHTML(atTop ? "afterbegin" : "beforeend", html);
  while (rows.children.length > ROWS_MAX) (atTop ? rows.lastElementChild : rows.firstElementChild).remove();
  const none = document.getElementById("none");
  if (none) none.remove();
}

const follow = document.querySelector("[data-follow]");
if (follow) {
  let source = null, next = "end";
  const stop = (word) => { if (source) source.close(); source = null; follow.textContent = word; };
  follow.addEventListener("click", (event) => {
    event.preventDefault();
    if (source) return stop("Go on");
    source = new EventSource(follow.getAttribute("href") + "&from=" + next);
    follow.textContent = "Pause";
    source.addEventListener("rows", (event) => { next = event.lastEventId; show(event.data, true); });
    source.addEventListener("said", (event) => said(event.data));
    source.addEventListener("end", (event) => { said(event.data); stop("Follow"); });
    source.addEventListener("full", () => { said("too many pages are open"); stop("Follow"); });
    source.onerror = () => { stop("Go on"); said("no answer from the console"); };
  });
}

for (const form of document.querySelectorAll("[data-search]")) {
  const halt = form.querySelector("[data-stop]"), bar = form.querySelector("progress");
  const output = form.querySelector("output");
  let source = null;
  const stop = () => { if (source) source.close(); source = null; halt.hidden = true; bar.hidden = true; };
  halt.addEventListener("click", () => { stop(); output.textContent += " · stopped"; });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    stop();
    rows.replaceChildren();
    source = new EventSource(form.getAttribute("action") + "?" + new URLSearchParams(new FormData(form)));
    halt.hidden = bar.hidden = false;
    source.addEventListener("rows", (event) => show(event.data, false));
    source.addEventListener("done", (event) => { bar.value = Number(event.lastEventId); output.textContent = event.data; });
    source.addEventListener("end", (event) => { stop(); output.textContent = event.data; });
    source.addEventListener("full", () => { stop(); output.textContent = "too many pages are open"; });
    source.onerror = () => { stop(); output.textContent += " · no answer from the console"; };
  });
}
