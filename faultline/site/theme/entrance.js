// The entrance's search and filters: the filters are in the address, and what was pasted in its fragment.
"use strict";

(() => {
  const data = window.FAULTLINE;
  const form = document.getElementById("search");
  const AXES = ["trainer", "strategy", "checkpointing", "precision"];
  const places = data.places.map((place) => place.split("/"));
  const cards = [...document.querySelectorAll(".card")];

  // Code in a text stands between backticks.
  const marked = (text) =>
    text.split(/(`[^`]+`)/).map((part) => {
      if (!/^`[^`]+`$/.test(part)) return part;
      const code = document.createElement("code");
      code.textContent = part.slice(1, -1);
      return code;
    });

  // Why a failure is shown for a text, in the command's words.
  const reason = (answer, match) => {
    const { if: distinction } = match.error;
    if (!match.sure && answer !== "one of several") return `It is this only if the run has ${distinction}.`;
    if (match.mechanism) return `The same mechanism: ${match.mechanism}. It is this if the run has ${distinction}.`;
    if (answer === "one of several") return `It is this if the run has ${distinction}.`;
    return match.only_if ? `It is this if ${match.only_if}.` : "It has this error.";
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
  group("stacks by name", Object.entries(data.stacks).filter(([name, stack]) => stack.named && name !== "today").map(([name]) => [name, name]));
  const LABELS = { scenario: "no trainer (a loop of one's own)", trainer: "Trainer (transformers)" };
  const ORDER = [...data.answers.checkpointing, ...data.answers.strategies];
  AXES.forEach((axis, i) => {
    const before = (a, b) => ORDER.indexOf(a) - ORDER.indexOf(b) || (a < b ? -1 : 1);
    for (const value of [...new Set(places.map((place) => place[i]))].sort(before)) form[axis].add(new Option(LABELS[value] ?? value, value));
  });

  // Of a failure's cells where the filters ask: whether one shows it, whether only others were run, or none.
  const there = (failure, stacks) => {
    const asked = AXES.map((axis) => form[axis].value);
    const fits = (number) => asked.every((value, axis) => !value || places[number][axis] === value);
    const known = stacks.map((stack) => data.known[failure][stack]).filter(Boolean);
    if (known.some(([shown]) => shown.some(fits))) return "shown";
    return known.some(([, clear]) => clear.some(fits)) ? "clear" : "unknown";
  };

  const HEADS = {
    "named": "This error is known.",
    "one of several": "One of several: the error alone doesn't show which failure it is. If none of these holds, it is not in the catalogue.",
    "aftermath": "This text only shows the aftermath. Look at the logs of the other ranks for the first error.",
    "not in the catalogue": "Not in the catalogue.",
    "out of memory": "Not in the catalogue: plain out of memory, not a fault of distribution.",
    "probably not": "Probably not in the catalogue: many mistakes raise this error. Below is what else it may be.",
  };
  const WITHOUT_ERROR = "Not in the catalogue. Paste the line that begins with the error's type, as in RuntimeError: ...";
  const summary = (text, { answer, search }, counts) => {
    const shown = counts.shown ?? 0;
    const unknown = answer === "not in the catalogue";
    const head = HEADS[unknown && shown ? "probably not" : answer];
    const lines = head ? [head] : [];
    if (unknown) lines.push(`Search for ${search}`);
    if (!shown && text && !counts.clear && !counts.unknown) return lines.join(" ") || WITHOUT_ERROR;
    lines.push(shown ? `${shown} of ${cards.length} failures.` : "No failure is left.");
    if (counts.clear) lines.push(`${counts.clear} more ${counts.clear === 1 ? "was" : "were"} run there and don't show.`);
    if (counts.unknown) lines.push(`${counts.unknown} more ${counts.unknown === 1 ? "was" : "were"} not run there.`);
    return lines.join(" ");
  };

  // Where a failure was measured to happen: today, or on the newest stack of the release that shows it.
  const measured = (card, stacks) => {
    const line = card.querySelector(".where");
    line.dataset.today ??= line.innerHTML;
    const stack = stacks[0] === "today" ? "today" : stacks.find((each) => data.known[card.dataset.failure][each]?.[2]);
    if (!stack || stack === "today") line.innerHTML = line.dataset.today;
    else {
      const label = document.createElement("b");
      label.textContent = `on ${data.stacks[stack].title}: `;
      const words = data.known[card.dataset.failure][stack][2];
      line.replaceChildren(label, ...marked(words.replace(/[\w*-]+(?=[,;]|$)/g, (name) => (/strategies$/.test(name) ? name : `\`${name}\``))));
    }
  };

  const update = () => {
    const text = form.error.value.trim();
    const decided = data.diagnose(text);
    const { answer, matches, alike } = decided;
    const likely = new Map([...alike.filter((match) => match.shared), ...matches].map((match) => [match.error.failure, match]));
    if (matches.length) for (const match of alike) if (!matches.includes(match)) likely.delete(match.error.failure);
    const words = text.toLowerCase().split(/\s+/).filter(Boolean);
    const byWords = (card) => answer === "no error" && words.length <= 6 && words.every((word) => card.dataset.text.includes(word));
    const filtered = [...AXES, "release"].some((name) => form[name].value);
    const stacks = stacksOf(form.release.value);
    const counts = {};
    for (const card of cards) {
      const match = likely.get(card.dataset.failure);
      const wanted = !text || (likely.size ? Boolean(match) : byWords(card));
      const state = filtered ? there(card.dataset.failure, stacks) : "shown";
      if (wanted) counts[state] = (counts[state] ?? 0) + 1;
      card.hidden = !wanted || state !== "shown";
      card.style.order = match ? matches.indexOf(match) : matches.length;
      measured(card, form.release.value ? stacks : ["today"]);
      const line = card.querySelector(".why");
      line.hidden = !match;
      line.replaceChildren(...(match ? marked(reason(answer, match)) : []));
    }
    document.getElementById("count").textContent = summary(text, decided, counts);
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
    const query = address.toString();
    // No browser sends what is behind the number sign.
    const fragment = text && text.length < 500 ? `#${new URLSearchParams({ error: text })}` : "";
    history.replaceState(null, "", `${location.pathname}${query && `?${query}`}${fragment}`);
  };

  const state = new URLSearchParams(location.search);
  for (const name of [...AXES, "release"]) {
    form[name].value = state.get(name) ?? "";
    if (form[name].selectedIndex < 0) form[name].value = ""; // an address may name what is gone
  }
  const pasted = () => {
    form.error.value = new URLSearchParams(location.hash.slice(1)).get("error") ?? "";
    update();
  };
  addEventListener("hashchange", pasted);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("input", () => {
    update();
    remember();
  });
  pasted();
})();
