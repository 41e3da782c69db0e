/* Keeps a page fresh without reloading it: every few seconds the same address is fetched, and each element with
   data-live="name" is replaced by the one of that name in the answer. What a person is about stays: ticked boxes,
   chosen values, open <details>, focus, scrolled places. data-live-rows="selector" keeps a table and replaces its rows
   alone, for the admin's own script listens to the table. The element with data-live-status, outside of all these, tells
   whether it is live, in the words of its own attributes. */
"use strict";
{
  const INTERVAL = 5000;
  const ANSWER_WITHIN = 20000;
  let timer = null;
  let isPaused = false;
  let hasEnded = false;
  let isAsking = false;
  let shownAt = new Date();

  const status = () => document.querySelector("[data-live-status]");

  function say(state, text) {
    const element = status();
    if (!element) return;
    element.hidden = false;
    element.dataset.state = state;
    const word = element.querySelector(".singleflight-live-word");
    if (word.textContent !== text) word.textContent = text; // said once by a screen reader, not every time
    const button = element.querySelector(".singleflight-live-button");
    button.hidden = hasEnded;
    button.textContent = isPaused ? element.dataset.goOnText : element.dataset.pauseText;
  }

  function tell() {
    const texts = status()?.dataset;
    if (!texts) return;
    if (hasEnded) say("ended", texts.endedText);
    else if (isPaused) say("paused", texts.pausedText);
    else if (isBusy()) say("paused", texts.pausedText);
    else say("live", texts.liveText);
  }

  function tellLost() {
    const texts = status()?.dataset;
    if (texts) say("lost", texts.lostText.replace("%s", shownAt.toLocaleTimeString()));
  }

  /* Somebody fills in a field or chooses an action inside of what would be replaced. A ticked box or a button is no such thing. */
  function isBusy() {
    const active = document.activeElement;
    return Boolean(
      active && active.closest("[data-live]") && active.matches("input:not([type=checkbox], [type=submit]), select, textarea")
    );
  }

  function key(element) {
    return element.id ? "#" + element.id : [element.tagName, element.name, element.type, element.value].join("|");
  }

  /* What is chosen inside an element, and how to choose it again in another. */
  function state(element) {
    const checked = new Set();
    element.querySelectorAll("input[type=checkbox]:checked, input[type=radio]:checked").forEach((box) => checked.add(key(box)));
    const values = new Map();
    element.querySelectorAll("select[name], input[type=hidden].select-across").forEach((field) => values.set(field.name, field.value));
    const opened = new Set();
    element.querySelectorAll("details").forEach((details, number) => details.open && opened.add(details.id || number));
    const scrolled = [...element.querySelectorAll("*")].filter((part) => part.scrollLeft || part.scrollTop);
    const places = scrolled.map((part) => [part.className, part.scrollLeft, part.scrollTop]);
    return { checked, values, opened, places };
  }

  function restore(element, kept) {
    element.querySelectorAll("input[type=checkbox], input[type=radio]").forEach((box) => {
      box.checked = kept.checked.has(key(box));
      box.closest("tr")?.classList.toggle("selected", box.checked && box.classList.contains("action-select"));
    });
    element.querySelectorAll("select[name], input[type=hidden].select-across").forEach((field) => {
      if (kept.values.has(field.name)) field.value = kept.values.get(field.name);
    });
    element.querySelectorAll("details").forEach((details, number) => {
      details.open = kept.opened.has(details.id || number);
    });
    kept.places.forEach(([name, left, top]) => {
      const part = name && element.getElementsByClassName(name)[0];
      if (part) part.scrollTo(left, top);
    });
  }

  function focusPlace() {
    const active = document.activeElement;
    const part = active?.closest("[data-live]");
    if (!part || active === part) return null;
    const all = [...part.querySelectorAll("a, button, input, summary, [tabindex]")];
    const twins = all.filter((element) => key(element) === key(active) && element.getAttribute("href") === active.getAttribute("href"));
    return { name: part.dataset.live, key: key(active), href: active.getAttribute("href"), number: twins.indexOf(active) };
  }

  function refocus(place) {
    if (!place) return;
    const part = document.querySelector(`[data-live="${CSS.escape(place.name)}"]`);
    if (!part || part.contains(document.activeElement)) return;
    const all = [...part.querySelectorAll("a, button, input, summary, [tabindex]")];
    const twins = all.filter((element) => key(element) === place.key && element.getAttribute("href") === place.href);
    twins[place.number]?.focus({ preventScroll: true });
  }

  /* The checkboxes that are there when the admin's script asks, not those that were there when the page was loaded. */
  const boxes = {
    all: () => [...document.querySelectorAll("tr input.action-select")],
    [Symbol.iterator]() { return this.all()[Symbol.iterator](); },
    forEach(visit) { this.all().forEach(visit); },
    get length() { return this.all().length; },
  };
  let listening = null;

  function listenToRows() {
    const table = document.getElementById("result_list");
    if (!table || listening === table || typeof window.Actions !== "function" || !boxes.length) return;
    if (!document.querySelector("#changelist-form button[name=index]")) return;
    listening = table;
    window.Actions(boxes);
  }

  function replaceRows(old, fresh) {
    const selector = old.dataset.liveRows;
    const [table, other] = [old.querySelector(selector), fresh.querySelector(selector)];
    if (!table?.tBodies.length || !other?.tBodies.length) return false;
    if (table.tHead?.innerText === undefined || table.tHead.rows[0].cells.length !== other.tHead.rows[0].cells.length) return false;
    const kept = state(table.tBodies[0]);
    table.tBodies[0].replaceChildren(...other.tBodies[0].rows);
    restore(table.tBodies[0], kept);
    listenToRows();
    const counter = old.querySelector(".action-counter");
    const count = fresh.querySelector(".action-counter");
    if (counter && count) {
      counter.dataset.actionsIcnt = count.dataset.actionsIcnt;
      const chosen = boxes.all().filter((box) => box.checked).length;
      const toggle = document.getElementById("action-toggle");
      if (toggle) toggle.checked = chosen > 0 && chosen === boxes.length;
      if (window.interpolate && window.ngettext) {
        counter.textContent = window.interpolate(
          window.ngettext("%(sel)s of %(cnt)s selected", "%(sel)s of %(cnt)s selected", chosen),
          { sel: chosen, cnt: counter.dataset.actionsIcnt }, true);
      }
    }
    return true;
  }

  function show(answer) {
    const place = focusPlace();
    document.querySelectorAll("[data-live]").forEach((old) => {
      const fresh = answer.querySelector(`[data-live="${CSS.escape(old.dataset.live)}"]`);
      if (!fresh || old.isEqualNode(fresh)) return;
      if (old.dataset.liveRows && replaceRows(old, fresh)) return;
      const kept = state(old);
      const taken = document.importNode(fresh, true);
      old.replaceWith(taken);
      restore(taken, kept);
      listenToRows();
    });
    refocus(place);
  }

  async function ask() {
    if (isAsking || isPaused || hasEnded || document.hidden || isBusy()) {
      tell();
      return;
    }
    isAsking = true;
    const abort = new AbortController();
    const limit = setTimeout(() => abort.abort(), ANSWER_WITHIN);
    try {
      const response = await fetch(window.location.href, {
        credentials: "same-origin", cache: "no-store", redirect: "manual", signal: abort.signal,
        headers: { "X-Requested-With": "XMLHttpRequest" },
      });
      if (response.type === "opaqueredirect" || [401, 403, 404, 410].includes(response.status)) {
        hasEnded = true;
        clearInterval(timer);
      } else if (response.ok) {
        const text = await response.text();
        if (!isPaused && !isBusy()) {
          show(new DOMParser().parseFromString(text, "text/html"));
          shownAt = new Date();
        }
      } else {
        tellLost();
        return;
      }
      tell();
    } catch {
      tellLost();
    } finally {
      clearTimeout(limit);
      isAsking = false;
    }
  }

  document.addEventListener("click", (event) => {
    if (!event.target.closest?.(".singleflight-live-button")) return;
    isPaused = !isPaused;
    tell();
    ask();
  });
  document.addEventListener("visibilitychange", () => { if (!document.hidden) ask(); });
  document.addEventListener("focusin", () => { if (isBusy()) tell(); });

  if (document.querySelector("[data-live]")) {
    tell();
    timer = setInterval(ask, INTERVAL);
  }
}
