// The list of live changes. All that comes from the cluster is set as text, never as HTML.
"use strict";

const most = 200; // entries that are kept
const feed = document.getElementById("feed");
const status = document.getElementById("status");
const pause = document.getElementById("pause");
const looks = {
  granted: "good", released: "", kept: "warn", lost: "bad", queued: "busy", left: "", downgraded: "busy",
  resized: "warn", value: "busy", missed: "warn", skipped: "warn", ended: "bad",
};
let waiting = []; // what came while paused

function element(tag, className, text) {
  const e = document.createElement(tag);
  if (className) e.className = className;
  if (text !== undefined) e.textContent = text;
  return e;
}

// What cannot be seen is shown as its number.
function show(s) {
  return s.replace(/[\p{C}\p{Zl}\p{Zp}]/gu, (c) => "\\u{" + c.codePointAt(0).toString(16) + "}");
}

function link(href, text, className) {
  const a = element("a", className);
  a.href = href;
  a.append(element("bdi", "", show(text)));
  return a;
}

function details(c) {
  const parts = [];
  if (c.token) parts.push("token " + c.token);
  if (c.slots) parts.push("slots " + c.slots.join(", "));
  if (c.limit) parts.push(c.limit + " permits");
  if (c.value) parts.push("“" + show(c.value) + "”");
  if (c.cause) parts.push(show(c.cause.replace(/^quorumlock: /, "")));
  if (c.kind === "skipped") parts.push(c.count + " more changes than can be shown");
  if (c.kind === "missed") parts.push("some changes were missed here");
  return parts.join(" · ");
}

function entry(c) {
  const li = element("li", c.kind === "lost" ? "lost" : "");
  const at = new Date(c.at);
  const time = element("time", "", at.toLocaleTimeString([], { hour12: false }));
  time.dateTime = c.at;
  const kind = element("span");
  kind.append(element("span", "badge " + (looks[c.kind] || ""), c.kind));
  li.append(time, kind);
  li.append(c.name ? link("lock?name=" + encodeURIComponent(c.name), c.name, "name") : element("span"));
  li.append(c.session ? link("session?id=" + encodeURIComponent(c.session), c.owner || "session " + c.session) : element("span"));
  li.append(element("span", "tok", details(c)));
  return li;
}

function add(changes) {
  const rows = document.createDocumentFragment();
  for (const c of changes.slice(-most).reverse()) rows.append(entry(c));
  feed.prepend(rows);
  while (feed.childElementCount > most) feed.lastElementChild.remove();
}

function tell(text, look) {
  status.textContent = text;
  status.className = "badge " + look;
}

document.getElementById("livebar").hidden = false;
document.getElementById("clear").addEventListener("click", () => feed.replaceChildren());
document.getElementById("lost-only").addEventListener("change", (e) => feed.classList.toggle("only-lost", e.target.checked));
pause.addEventListener("click", () => {
  const paused = pause.getAttribute("aria-pressed") !== "true";
  pause.setAttribute("aria-pressed", String(paused));
  pause.textContent = paused ? "Go on" : "Pause";
  if (!paused) add(waiting.splice(0));
});

const source = new EventSource("events?prefix=" + encodeURIComponent(feed.dataset.prefix));
source.onerror = () => tell(source.readyState === EventSource.CLOSED ? "refused" : "reconnecting", "warn");
source.onmessage = (m) => {
  const c = JSON.parse(m.data);
  if (c.kind === "synced") return tell("live", "good");
  if (c.kind === "ended") {
    source.close();
    tell("ended", "bad");
  }
  if (pause.getAttribute("aria-pressed") === "true") {
    waiting.push(c);
    waiting = waiting.slice(-most);
  } else {
    add([c]);
  }
};
