// The entrance's search and filters, and the comparison of two stacks; their state is in the address.
"use strict";

(() => {
  const data = window.FAULTLINE;

  const regex = ([source, flags]) => {
    try {
      return new RegExp(source, flags);
    } catch {
      return null;
    }
  };

  // Whether a text meets the conditions of an error, of which one is enough.
  const met = (conditions, text) =>
    conditions.length === 0 ||
    conditions.some(
      ({ present, absent }) =>
        present.every((each) => regex(each)?.test(text)) && !absent.some((each) => regex(each)?.test(text))
    );

  // The failures whose errors a text has, each with why.
  const named = (text) => {
    const likely = new Map();
    for (const error of data.errors) {
      if (!regex(error.pattern)?.test(text)) continue;
      const certain = met(error.any_of, text);
      const why = certain
        ? `has its error ${error.name}`
        : `has its error ${error.name}, if there is ${error.distinguished_by || "its cause"}`;
      if (certain || !likely.has(error.failure)) likely.set(error.failure, { certain, why });
    }
    return likely;
  };

  const options = (select, values) => {
    for (const [value, label] of values) select.add(new Option(label, value));
  };

  const entrance = (form) => {
    const AXES = ["trainer", "strategy", "checkpointing", "precision"];
    const places = data.places.map((place) => place.split("/"));
    AXES.forEach((axis, i) => {
      const values = [...new Set(places.map((place) => place[i]))].sort();
      options(form[axis], values.map((value) => [value, value]));
    });
    const releases = Object.entries(data.stacks).map(([name, { title }]) => [name, title]);
    options(form.stack, releases);

    const state = new URLSearchParams(location.search);
    for (const name of [...AXES, "stack"]) form[name].value = state.get(name) ?? "";
    form.error.value = state.get("error") ?? "";

    const matches = (failure) => {
      const asked = AXES.map((axis) => form[axis].value);
      if (!form.stack.value && asked.every((value) => !value)) return true;
      const there = data.shows[failure][form.stack.value || "today"] ?? [];
      return there.some((i) => asked.every((value, axis) => !value || places[i][axis] === value));
    };

    const update = () => {
      const text = form.error.value.trim();
      const likely = text ? named(text) : new Map();
      const words = text.toLowerCase().split(/\s+/).filter(Boolean);
      const cards = [...document.querySelectorAll(".card")];
      const byWords = (card) => words.length <= 6 && words.every((word) => card.dataset.text.includes(word));
      let count = 0;
      for (const card of cards) {
        const why = likely.get(card.dataset.failure);
        const wanted = !text || (likely.size ? Boolean(why) : byWords(card));
        card.hidden = !(wanted && matches(card.dataset.failure));
        card.style.order = why ? (why.certain ? 0 : 1) : 2;
        const line = card.querySelector(".why");
        line.hidden = !why;
        line.textContent = why ? `The text ${why.why}.` : "";
        count += !card.hidden;
      }
      const what = text && likely.size ? " with this error" : "";
      document.getElementById("count").textContent = count
        ? `${count} of ${cards.length} failures${what}.`
        : "None of the catalogue's failures. `faultline diagnose` reads whole logs, and knows more errors than this page.";
    };

    const remember = () => {
      const address = new URLSearchParams();
      for (const name of [...AXES, "stack"]) if (form[name].value) address.set(name, form[name].value);
      const text = form.error.value.trim();
      if (text && text.length < 500) address.set("error", text);
      history.replaceState(null, "", `${location.pathname}${address.size ? `?${address}` : ""}${location.hash}`);
    };

    form.addEventListener("submit", (event) => event.preventDefault());
    form.addEventListener("input", () => {
      update();
      remember();
    });
    update();
  };

  const compare = (form) => {
    const releases = Object.entries(data.stacks).map(([name, { title }]) => [name, title]);
    for (const select of [form.one, form.two]) options(select, releases);
    const state = new URLSearchParams(location.search);
    form.one.value = state.get("one") ?? releases[1][0];
    form.two.value = state.get("two") ?? "today";
    const out = document.getElementById("differences");

    const list = (title, items) => {
      if (!items.length) return;
      const heading = document.createElement("h3");
      heading.textContent = title;
      const ul = document.createElement("ul");
      for (const [text, href] of items) {
        const li = document.createElement("li");
        const part = href ? document.createElement("a") : document.createTextNode(text);
        if (href) {
          part.href = href;
          part.textContent = text;
        }
        li.append(part);
        ul.append(li);
      }
      out.append(heading, ul);
    };

    const update = () => {
      const [one, two] = [form.one.value, form.two.value];
      out.replaceChildren();
      const versions = [data.stacks[one].versions, data.stacks[two].versions];
      const packages = Object.keys({ ...versions[0], ...versions[1] }).filter((name) => versions[0][name] !== versions[1][name]);
      list("Versions that differ", packages.map((name) => [`${name} ${versions[0][name] ?? "none"} to ${versions[1][name] ?? "none"}`]));
      const kinds = { "Only on the second": [], "Only on the first": [], "On both": [], "Measured on one of them only": [] };
      for (const [failure, there] of Object.entries(data.shows)) {
        const [a, b] = [there[one], there[two]];
        const link = [failure, `../failures/${failure}.html`];
        if ((a === undefined) !== (b === undefined)) kinds["Measured on one of them only"].push(link);
        else if (a?.length && b?.length) kinds["On both"].push(link);
        else if (b?.length) kinds["Only on the second"].push(link);
        else if (a?.length) kinds["Only on the first"].push(link);
      }
      for (const [title, items] of Object.entries(kinds)) list(`${title}: ${items.length}`, items);
    };

    form.addEventListener("input", () => {
      update();
      history.replaceState(null, "", `${location.pathname}?${new URLSearchParams(new FormData(form))}`);
    });
    update();
  };

  document.addEventListener("DOMContentLoaded", () => {
    const search = document.getElementById("search");
    const comparison = document.getElementById("comparison");
    if (search) entrance(search);
    if (comparison) compare(comparison);
  });
})();
