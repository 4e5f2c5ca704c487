// The entrance's search and filters, whose state is in the address.
"use strict";

(() => {
  const data = window.FAULTLINE;
  const form = document.getElementById("search");
  const AXES = ["trainer", "strategy", "checkpointing", "precision"];
  const places = data.places.map((place) => place.split("/"));
  const cards = [...document.querySelectorAll(".card")];

  // A pattern that this browser can't run finds nothing.
  const regex = ([source, flags]) => {
    try {
      return new RegExp(source, flags);
    } catch {
      return /(?!)/;
    }
  };
  const compiled = (condition) => ({ present: condition.present.map(regex), absent: condition.absent.map(regex) });
  const errors = data.errors.map((error) => ({
    ...error,
    pattern: regex(error.pattern),
    any_of: error.any_of.map(compiled),
  }));

  // Whether a text meets the conditions of an error, of which one is enough.
  const met = (conditions, text) =>
    conditions.length === 0 ||
    conditions.some(
      ({ present, absent }) => present.every((each) => each.test(text)) && !absent.some((each) => each.test(text))
    );

  // The failures whose errors a text has, each with why.
  const named = (text) => {
    const likely = new Map();
    for (const error of errors) {
      if (!error.pattern.test(text)) continue;
      const certain = met(error.any_of, text);
      const condition = certain ? "" : `, if the run has ${error.distinguished_by || "its cause"}`;
      if (certain || !likely.has(error.failure))
        likely.set(error.failure, { certain, why: `The text has its error ${error.name}${condition}.` });
    }
    return likely;
  };

  // Releases: a month, a stack, or every stack with that version of a package.
  const newestFirst = (a, b) => b.localeCompare(a, "en", { numeric: true });
  const stacksOf = (release) => {
    if (!release) return Object.keys(data.stacks);
    if (release in data.stacks) return [release];
    const [name, version] = release.split("==");
    return Object.keys(data.stacks).filter((stack) => data.stacks[stack].versions[name] === version);
  };
  const group = (label, entries) => {
    const made = document.createElement("optgroup");
    made.label = label;
    for (const [value, text] of entries) made.append(new Option(text, value));
    form.release.append(made);
  };
  const ofKind = (kind) =>
    Object.entries(data.stacks)
      .filter(([, stack]) => stack.kind === kind)
      .map(([name, { title }]) => [name, title]);
  for (const [name, title] of ofKind("today")) form.release.add(new Option(title, name));
  for (const name of Object.keys(data.stacks.today.versions)) {
    const versions = [...new Set(Object.values(data.stacks).map((stack) => stack.versions[name]))].filter(Boolean);
    group(name, versions.sort(newestFirst).map((version) => [`${name}==${version}`, `${name} ${version}`]));
  }
  group("everything as of", ofKind("month"));
  group("stacks", ofKind("pinned"));
  AXES.forEach((axis, i) => {
    for (const value of [...new Set(places.map((place) => place[i]))].sort()) form[axis].add(new Option(value, value));
  });

  // Of a failure's cells where the filters ask: whether one shows it, whether only others were run, or none.
  const there = (failure, stacks) => {
    const asked = AXES.map((axis) => form[axis].value);
    const fits = (number) => asked.every((value, axis) => !value || places[number][axis] === value);
    const known = stacks.map((stack) => data.known[failure][stack]).filter(Boolean);
    if (known.some(([shown]) => shown.some(fits))) return "shown";
    return known.some(([, clear]) => clear.some(fits)) ? "clear" : "unknown";
  };

  const answer = (text, likely, counts) => {
    const shown = counts.shown ?? 0;
    if (!shown && text && !counts.clear && !counts.unknown)
      return "None of the catalogue's failures has this text. `faultline diagnose` reads whole logs, and knows more errors than this page.";
    const lines = [shown ? `${shown} of ${cards.length} failures${likely.size ? " with this error" : ""}.` : "No failure is left."];
    if (counts.clear) lines.push(`${counts.clear} more ${counts.clear === 1 ? "was" : "were"} run there and don't show.`);
    if (counts.unknown) lines.push(`${counts.unknown} more ${counts.unknown === 1 ? "was" : "were"} not run there.`);
    return lines.join(" ");
  };

  const update = () => {
    const text = form.error.value.trim();
    const likely = text ? named(text) : new Map();
    const words = text.toLowerCase().split(/\s+/).filter(Boolean);
    const byWords = (card) => words.length <= 6 && words.every((word) => card.dataset.text.includes(word));
    const filtered = [...AXES, "release"].some((name) => form[name].value);
    const stacks = stacksOf(form.release.value);
    const counts = {};
    for (const card of cards) {
      const why = likely.get(card.dataset.failure);
      const wanted = !text || (likely.size ? Boolean(why) : byWords(card));
      const state = filtered ? there(card.dataset.failure, stacks) : "shown";
      if (wanted) counts[state] = (counts[state] ?? 0) + 1;
      card.hidden = !wanted || state !== "shown";
      card.style.order = why ? (why.certain ? 0 : 1) : 2;
      const line = card.querySelector(".why");
      line.hidden = !why;
      line.textContent = why?.why ?? "";
    }
    document.getElementById("count").textContent = answer(text, likely, counts);
    const where = document.getElementById("where");
    where.hidden = !form.release.value;
    where.replaceChildren("Run on ", ...stacks.flatMap((stack, i) => [i ? ", " : "", link(stack)]), ".");
  };
  const link = (stack) => {
    const made = document.createElement("a");
    made.href = `stacks/${stack}.html`;
    made.textContent = data.stacks[stack].title;
    return made;
  };

  const remember = () => {
    const address = new URLSearchParams();
    for (const name of [...AXES, "release"]) if (form[name].value) address.set(name, form[name].value);
    const text = form.error.value.trim();
    if (text && text.length < 500) address.set("error", text);
    const query = address.toString();
    history.replaceState(null, "", `${location.pathname}${query && `?${query}`}${location.hash}`);
  };

  const state = new URLSearchParams(location.search);
  for (const name of [...AXES, "release"]) {
    form[name].value = state.get(name) ?? "";
    if (form[name].selectedIndex < 0) form[name].value = ""; // an address may name what is gone
  }
  form.error.value = state.get("error") ?? "";
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("input", () => {
    update();
    remember();
  });
  update();
})();
