// Makes the duplicates that users make, and shows how each of them came by its answer.
"use strict";

const token = () => document.querySelector("[name=csrfmiddlewaretoken]").value;

function element(name, className, text) {
  const made = document.createElement(name);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

function showReceipts(box, reply) {
  for (const flight of reply.flights) {
    const line = element("p", "receipt");
    line.append(
      element("span", `role ${flight.role}`, flight.role),
      element("span", "", `node ${reply.node}`),
      element("span", "", flight.stage),
      element("span", "", `from ${flight.layer}`),
      element("span", "", `generation ${flight.generation ?? "none"}`),
      element("span", "", `waited ${flight.waited.toFixed(2)} s`),
      element("code", "", `answer ${flight.digest}`),
    );
    if (flight.superseded) line.append(element("span", "error", "superseded"));
    if (flight.degraded) line.append(element("span", "error", "degraded"));
    box.append(line);
  }
}

// One request; resolves to its reply, or to null after the error was shown.
async function send(url, body, box) {
  const headers = { "X-CSRFToken": token() };
  if (!(body instanceof FormData)) {
    headers["Content-Type"] = "application/json";
    body = JSON.stringify(body);
  }
  let reply;
  try {
    const response = await fetch(url, { method: "POST", headers, body });
    reply = await response.json();
  } catch (error) {
    reply = { error: `no answer from this node (${error.message}); the other one may have it` };
  }
  if (reply.error) {
    box.append(element("p", "error", reply.error));
    return null;
  }
  showReceipts(box, reply);
  return reply;
}

// The same request several times at once, as impatient fingers and gateways send it.
async function sendCopies(copies, url, body, box, buttons) {
  buttons.forEach((button) => { button.disabled = true; });
  const waiting = element("p", "hint", copies > 1 ? `${copies} requests are waiting …` : "waiting …");
  box.replaceChildren(waiting);
  const replies = await Promise.all(Array.from({ length: copies }, () => send(url, body(), box)));
  waiting.remove();
  buttons.forEach((button) => { button.disabled = false; });
  return replies.find((reply) => reply !== null) ?? null;
}

function showScore(box, score) {
  const missing = element("ul");
  missing.append(...score.missing_points.map((point) => element("li", "", point)));
  box.replaceChildren(element("p", "score", String(score.score)), element("p", "", score.feedback), missing);
}

function onward(box, text) {
  const link = element("a", "", text);
  link.href = location.pathname;
  box.append(link);
}

function turnOf(card) {
  const buttons = [...card.querySelectorAll("button")];
  const box = card.querySelector(".receipts");
  const text = card.querySelector("textarea");
  const body = () => ({ number: Number(card.dataset.number), answer: text ? text.value : "" });

  async function ask(copies) {
    if (text && !text.value.trim()) { text.focus(); return; }
    const reply = await sendCopies(copies, card.dataset.url, body, box, buttons);
    if (!reply) return;
    showScore(card.querySelector(".verdict"), reply.score);
    if (text || "pending" in card.dataset) onward(box, reply.next ? "Go on to the next question" : "Go on to the report");
  }

  for (const button of buttons) {
    button.addEventListener("click", async () => {
      if (!button.dataset.other) { await ask(Number(button.dataset.copies)); return; }
      if (text && !text.value.trim()) { text.focus(); return; }
      const other = window.open("", "_blank"); // opened now: after a wait the browser would block it
      const asked = ask(1);
      // The other node's page asks for every answer that has no score yet, so it may open at once.
      setTimeout(() => { if (other) other.location = button.dataset.other; }, 300);
      await asked;
    });
  }
  // A reload of a page whose answer is still being scored, or a refresh that came from the other node.
  if ("pending" in card.dataset || location.hash === `#${card.id}`) ask(1);
}

function reportOf(section) {
  const buttons = [...section.querySelectorAll("button")];
  for (const button of buttons) {
    button.addEventListener("click", async () => {
      const box = section.querySelector(".receipts");
      const reply = await sendCopies(Number(button.dataset.copies), section.dataset.url, () => ({}), box, buttons);
      if (!reply) return;
      section.querySelector(".verdict").replaceChildren(element("p", "", reply.report.overall_comment));
      onward(box, "Read it whole");
    });
  }
}

function startOf(form) {
  const buttons = [...form.querySelectorAll("button")];
  async function begin(copies) {
    const body = () => {
      const data = new FormData(form);
      if (!data.get("resume").size) data.delete("resume");
      return data;
    };
    const reply = await sendCopies(copies, form.action, body, form.querySelector(".receipts"), buttons);
    if (!reply) return;
    const link = form.querySelector(".go");
    link.href = reply.page;
    link.hidden = false;
    link.focus();
  }
  form.addEventListener("submit", (event) => { event.preventDefault(); begin(1); });
  form.querySelector("[data-copies]").addEventListener("click", (event) => begin(Number(event.target.dataset.copies)));
}

document.querySelectorAll(".turn").forEach(turnOf);
document.querySelectorAll("#report").forEach(reportOf);
document.querySelectorAll("#start").forEach(startOf);
