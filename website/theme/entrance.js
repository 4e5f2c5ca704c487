// The entrance's search and filters: the filters are in the address, and what was pasted in its fragment.
"use strict";

(() => {
  const data = window.FAULTLINE;
  const form = document.getElementById("search");
  const AXES = ["trainer", "strategy", "checkpointing", "precision"];
  const ENDS = ["outcome", "symptom"];
  const FILTERS = [...AXES, ...ENDS, "release"];
  const [places, ends] = [data.places, data.ends].map((each) => each.map((text) => text.split("/")));
  const table = document.getElementById("cards");
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
    if (match.why) return match.why;
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
  for (const name of data.outcomes) form.outcome.add(new Option(name === "diverges" ? "silent: trains wrongly without an error" : name, name));
  for (const words of data.symptoms) form.symptom.add(new Option(words, words));
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
    const endsSo = (end) => ENDS.every((name, axis) => !form[name].value || ends[end][axis].split("|").includes(form[name].value));
    const known = stacks.map((stack) => data.known[failure][stack]).filter(Boolean);
    if (known.some(([shown, , , how]) => shown.some((number, i) => fits(number) && endsSo(how[i])))) return "shown";
    return known.some(([shown, clear]) => [...shown, ...clear].some(fits)) ? "clear" : "unknown";
  };

  const HEADS = {
    "named": "This error is known.",
    "one of several": "One of several: the error alone doesn't show which failure it is. If none of these holds, it is not in the catalogue.",
    "aftermath": "This text only shows the aftermath. Look at the logs of the other ranks for the first error.",
    "not in the catalogue": "Not in the catalogue.",
    "out of memory": "Not in the catalogue: plain out of memory, not a fault of distribution.",
    "probably not": "Probably not in the catalogue: many mistakes raise this error. Below is what else it may be.",
  };
  const steps = (n) => `${n} ${n === 1 ? "step" : "steps"}`;
  const under = (names) => names.map((name) => `\`${name}\``).join(", ");
  // Of a text without an error: what it shows nevertheless, and the failures of which that is seen, each with why.
  const silentWords = ({ silence, same, warned, cut }) => {
    if (silence) {
      const when = silence.after ? `after ${steps(silence.after)} that had a number` : "in every step that it logs";
      return `No error found, but ${silence.figure} is ${silence.norm} ${when}: ${steps(silence.steps)}. Many mistakes do that, so no failure is named. ${silence.skips}`.trim();
    }
    if (cut) return "No error found, but a traceback begins in this text, and its last line names the error: paste that too.";
    if (same)
      return `No error found, but ${same.ranks.length} ranks log the same losses to the last digit. This is right if what they log is the mean over the ranks. Else every rank trains on the same rows: print a batch's first row on each rank.`;
    return warned?.length ? "No error found, but a line in it may be of a failure." : "";
  };
  const seenIn = ({ silence, warned = [], byWords = [] }) => {
    const why = new Map();
    for (const { failure, symptom, only_with } of byWords)
      why.set(failure, `By your words it may be this: ${symptom}.${only_with ? ` It takes ${only_with}.` : ""} Words prove nothing.`);
    const parameters = silence?.norm.replace("0", "parameters unmoved").replace("nan", "parameters nan");
    for (const [failure, names] of Object.entries(silence?.failures ?? {}))
      why.set(failure, `It leaves ${parameters} without an error, under ${under(names)}.`);
    for (const [failure, names] of Object.entries(silence?.earlier ?? {}))
      why.set(failure, `${why.get(failure) ?? ""} On older releases only it does so under ${under(names)}.`.trim());
    for (const { failure, distinction, strategies } of warned)
      why.set(failure, `It shows no more than this warning, under ${under(strategies)}. It is that failure if ${distinction}.`);
    return [...why].map(([failure, words]) => ({ error: { failure }, sure: "likely", why: words }));
  };
  const WITHOUT_ERROR = "No error found in this text.";
  const summary = (text, { answer, search }, counts, silently) => {
    const shown = counts.shown ?? 0;
    const unknown = answer === "not in the catalogue";
    const head = HEADS[unknown && shown ? "probably not" : answer];
    const lines = head ? [head] : [];
    if (unknown) lines.push(`Search for ${search}`);
    if (silently) lines.push(silently);
    if (!shown && text && !counts.clear && !counts.unknown) return lines.join(" ") || WITHOUT_ERROR;
    lines.push(shown ? `${shown} of ${cards.length} failures.` : "No failure is left.");
    if (counts.clear) lines.push(`${counts.clear} more ${counts.clear === 1 ? "was" : "were"} run there and don't show${ENDS.some((name) => form[name].value) ? " so" : ""}.`);
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
    const { answer, alike } = decided;
    const silently = silentWords(decided);
    const matches = decided.matches.length ? decided.matches : seenIn(decided);
    const likely = new Map([...alike.filter((match) => match.shared), ...matches].map((match) => [match.error.failure, match]));
    if (matches.length) for (const match of alike) if (!matches.includes(match)) likely.delete(match.error.failure);
    const words = text.toLowerCase().split(/\s+/).filter(Boolean);
    const byWords = (card) => answer === "no error" && words.length <= 6 && words.every((word) => card.dataset.text.includes(word));
    const filtered = FILTERS.some((name) => form[name].value);
    const stacks = stacksOf(form.release.value);
    const counts = {};
    for (const card of cards) {
      const match = likely.get(card.dataset.failure);
      const wanted = !text || (likely.size ? Boolean(match) : byWords(card));
      const state = filtered ? there(card.dataset.failure, stacks) : "shown";
      if (wanted) counts[state] = (counts[state] ?? 0) + 1;
      card.hidden = !wanted || state !== "shown";
      measured(card, form.release.value ? stacks : ["today"]);
      const line = card.querySelector(".why");
      line.hidden = !match;
      line.replaceChildren(...(match ? marked(reason(answer, match)) : []));
    }
    const place = (card) => matches.findIndex((match) => match.error.failure === card.dataset.failure);
    table.tBodies[0].append(...matches.length ? cards.toSorted((a, b) => (place(a) >>> 0) - (place(b) >>> 0)) : cards);
    // A table of all is for a glance; what was asked for has its lines.
    table.classList.toggle("whole", !text && !filtered);
    document.getElementById("count").textContent = summary(text, decided, counts, silently);
    document.getElementById("next").hidden = !text || answer !== "no error" || likely.size > 0 || cards.some((card) => !card.hidden);
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
    for (const name of FILTERS) if (form[name].value) address.set(name, form[name].value);
    const text = form.error.value.trim();
    const query = address.toString();
    // No browser sends what is behind the number sign.
    const fragment = text && text.length < 500 ? `#${new URLSearchParams({ error: text })}` : "";
    history.replaceState(null, "", `${location.pathname}${query && `?${query}`}${fragment}`);
  };

  const state = new URLSearchParams(location.search);
  for (const name of FILTERS) {
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
