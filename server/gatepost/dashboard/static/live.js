"use strict";
/*
 * Updates times, the page title and announcements of new requests.
 * All text is inserted as text, never as markup.
 */
(() => {
  /* Requests expire by the server's clock; the visitor's clock may be minutes off. */
  const served = Number(document.querySelector("[data-now]")?.dataset.now);
  const skew = served ? served * 1000 - Date.now() : 0;

  const span = (seconds) => {
    const whole = Math.floor(seconds);
    if (whole <= 0) return "time is up";
    if (whole < 3600) return `${Math.floor(whole / 60)}:${String(whole % 60).padStart(2, "0")}`;
    if (whole < 48 * 3600) {
      return `${Math.floor(whole / 3600)} h ${String(Math.floor((whole % 3600) / 60)).padStart(2, "0")} min`;
    }
    return `${Math.floor(whole / 86400)} days`;
  };

  const ago = (seconds) => {
    const whole = Math.floor(seconds);
    if (whole < 10) return "just now";
    if (whole < 60) return `${whole} s ago`;
    if (whole < 3600) return `${Math.floor(whole / 60)} min ago`;
    if (whole < 48 * 3600) return `${Math.floor(whole / 3600)} h ago`;
    return `${Math.floor(whole / 86400)} days ago`;
  };

  /* The page has times in UTC; people read the time of their own clock. */
  const local = new Intl.DateTimeFormat("en-GB", {
    day: "numeric", month: "short", year: "numeric",
    hour: "2-digit", minute: "2-digit", second: "2-digit", timeZoneName: "short",
  });
  const localize = () => {
    for (const element of document.querySelectorAll("time:not([data-local])")) {
      const { at, since, until } = element.dataset;
      const seconds = at ?? since ?? until;
      if (!seconds) continue;
      const text = local.format(Number(seconds) * 1000);
      element.dataset.local = "";
      if (at) {
        element.title = element.textContent;
        tell(element, text);
      } else {
        element.title = until ? `until ${text}` : text;
      }
    }
  };

  const tell = (element, text) => {
    if (element.textContent !== text) element.textContent = text;
  };

  const tick = () => {
    localize();
    const now = (Date.now() + skew) / 1000;
    for (const element of document.querySelectorAll("time[data-until]")) {
      const left = Number(element.dataset.until) - now;
      tell(element, span(left));
      element.classList.toggle("soon", left < 60);
    }
    for (const element of document.querySelectorAll("time[data-since]")) {
      tell(element, ago(now - Number(element.dataset.since)));
    }
  };

  /* The inbox: show its count in the title, and announce new requests. */
  const known = () =>
    new Map([...document.querySelectorAll("#inbox .request")].map((one) => [one.id, one.dataset.name]));
  let before = known();

  const counted = () => {
    const inbox = document.getElementById("inbox");
    if (!inbox) return;
    const now = known();
    document.title = document.title.replace(/^(\(\d+\) )?/, now.size ? `(${now.size}) ` : "");
    const fresh = [...now].filter(([id]) => !before.has(id));
    const news = document.getElementById("news");
    for (const [id] of fresh) document.getElementById(id).classList.add("fresh");
    if (fresh.length) news.textContent = `New: ${fresh.map(([, name]) => name).join(", ")}. ${now.size} waiting.`;
    else if (now.size < before.size) news.textContent = now.size ? `${now.size} waiting.` : "No requests are waiting.";
    before = now;
  };

  /* Another approver decided first: disable the decision forms. */
  const closed = () => {
    if (!document.querySelector("#news [data-over]")) return;
    for (const form of document.querySelectorAll("form[data-decision]")) {
      for (const button of form.querySelectorAll("button")) button.disabled = true;
    }
  };

  const connected = (open) => {
    const sign = document.getElementById("connection");
    if (sign) sign.hidden = open;
  };

  /*
   * Signing out ends the session, and so the page's stream, while the identity provider may not
   * have answered yet. To follow the stream's end to the sign-in would stop the browser's way there,
   * and leave the person signed in at the provider.
   */
  let leaving = false;
  document.addEventListener("submit", (event) => {
    leaving ||= event.target.matches("[data-sign-out]");
  });
  document.addEventListener("htmx:beforeRequest", (event) => {
    if (leaving) event.preventDefault();
  });

  document.addEventListener("htmx:sseOpen", () => connected(true));
  document.addEventListener("htmx:sseError", () => connected(leaving));
  /* Keep the focus when the list is replaced. */
  let focused = "";
  document.addEventListener("htmx:sseBeforeMessage", () => {
    const link = document.activeElement?.closest?.("#inbox .request");
    focused = link ? link.id : "";
  });
  document.addEventListener("htmx:sseMessage", () => {
    if (focused) document.getElementById(focused)?.querySelector("a")?.focus();
    counted();
    closed();
    tick();
  });
  setInterval(tick, 1000);
  tick();
})();
