// What a text may be, decided as `faultline diagnose` decides it, by the same data (website/answers.py).
// Functions have the names of those that they repeat: fitting, judge, possible, likeliest, searchable, decide.
"use strict";

window.FAULTLINE.diagnose = (() => {
  const known = window.FAULTLINE.answers;
  // A pattern that this browser can't run finds nothing.
  const regex = ([source, flags]) => {
    try {
      return new RegExp(source, flags);
    } catch {
      return /(?!)/;
    }
  };
  const condition = ({ present, absent, only_if }) => ({ present: present.map(regex), absent: absent.map(regex), only_if });
  const errors = known.errors.map((error) => ({
    ...error,
    pattern: regex(error.pattern),
    any_of: error.any_of.map(condition),
    may_be: error.may_be.map(condition),
    fits: error.fits.map(condition),
    terms: error.terms.map(regex),
    mechanism: error.mechanism && { ...error.mechanism, any_of: error.mechanism.any_of.map(condition) },
  }));
  const rows = (table) => table.map(([pattern, names]) => [regex(pattern), names]);
  const [ran, printed, asked, modes, beginnings] = [known.ran, known.printed, known.asked, known.modes, known.beginnings].map(rows);
  const recordings = known.recorded.map(([failure, signature, text, typeAlone]) => [failure, signature, text, regex(typeAlone)]);
  const signs = { ...known.signs };
  for (const name of ["victim", "watchdog", "raised_in", "tried", "label"]) signs[name] = regex(signs[name]);

  const oneLine = (text) => text.split(/\s+/).filter(Boolean).join(" ");
  const numberless = (text) => oneLine(text).replace(/[1-9]\d*/g, "N");
  const holds = ({ present, absent }, text) => present.every((each) => each.test(text)) && !absent.some((each) => each.test(text));
  const met = (anyOf, text) => !anyOf.length || anyOf.some((each) => holds(each, text));

  // What the lines show of the run: strategies and checkpointing modes; nothing is an axis that isn't known.
  const all = (patterns) => known.strategies.filter((name) => patterns.some((each) => (each.endsWith("*") ? name.startsWith(each.slice(0, -1)) : name === each)));
  const first = (table, lines) => table.find(([pattern]) => lines.some((line) => pattern.test(line)))?.[1] ?? [];
  const within = (one, other) => one.every((name) => other.includes(name));
  const askedFor = (lines) => {
    const settings = new Map();
    for (const line of lines)
      for (const [pattern, names] of asked) {
        const match = pattern.exec(line);
        if (!match) continue;
        const group = match.slice(1).filter((each) => each !== undefined).at(-1) ?? "";
        const left = all(names.map((name) => name.replace("{}", group)));
        settings.set(left.join(), left);
        break;
      }
    const each = [...settings.values()];
    const narrow = each.filter((names) => !each.some((other) => other !== names && within(other, names)));
    return narrow.length === 1 ? narrow[0] : [];
  };
  const hintsOf = (text, event) => {
    const lines = text.split("\n");
    // Frames count where there is an error whose frames they may be.
    const shown = all(event.text ? first(ran, [...event.text.split("\n"), ...lines]) : first(printed, lines));
    const settings = askedFor(lines);
    return {
      strategies: !shown.length || (settings.length && within(settings, shown)) ? settings : shown,
      modes: first(modes, lines.map((line) => line.replace(signs.tried, ""))),
      context: `${event.text}\n${text}`,
    };
  };

  // What points to a failure whose error a text has.
  const support = (error, context) => {
    const holding = error.any_of.filter((each) => holds(each, context));
    if (holding.some((each) => !each.only_if)) return "text";
    if (holding.length) return "partly";
    if (error.mechanism && met(error.mechanism.any_of, context)) return "mechanism";
    return error.any_of.length || error.mechanism ? "nothing" : "error";
  };
  const judge = (error, hints) => {
    if (error.on_load) return met(error.any_of, hints.context) ? { error, sure: "likely" } : { error, shared: true };
    const asked = within(hints.modes, error.modes) ? hints.modes : [];
    const fits = (place) => {
      const [strategy, mode] = place.split("/");
      return (!hints.strategies.length || hints.strategies.includes(strategy)) && (!asked.length || asked.includes(mode));
    };
    const places = error.places.filter(fits);
    if (error.places.length && !places.length) return { error };
    const by = support(error, hints.context);
    const elsewhere = hints.strategies.length && error.mentions.length && !error.mentions.some((name) => hints.strategies.includes(name));
    if (elsewhere && ["nothing", "error"].includes(by)) return { error, places: error.places.filter((place) => error.mentions.includes(place.split("/")[0])) };
    if (by === "nothing") return { error, shared: true, places };
    if (by === "mechanism") return { error, sure: "likely", mechanism: error.mechanism.text, places };
    if (by === "partly") return { error, sure: "likely", only_if: error.any_of.find((each) => each.only_if && holds(each, hints.context)).only_if, places };
    const onlyReentrant = error.places.length && error.places.every((place) => place.endsWith("/reentrant"));
    const placeKnown = hints.strategies.length && (hints.modes.length ? asked.length : !onlyReentrant);
    return { error, sure: places.length && placeKnown ? "certain" : "likely", places };
  };
  const against = (match) => [!match.sure, Boolean(match.mechanism), !match.error.by_itself, match.sure !== "certain"].map(Number).join("");
  const fitting = (text, hints) => {
    const matches = new Map();
    for (const error of errors)
      if (error.documented && !matches.has(error.failure) && [text, oneLine(text)].some((each) => error.pattern.test(each)))
        matches.set(error.failure, judge(error, hints));
    return [...matches.values()].sort((a, b) => against(a).localeCompare(against(b)) || (a.error.failure < b.error.failure ? -1 : 1));
  };

  const likeliest = (among, { context }) => {
    const elsewhere = ({ sure, shared }) => Number(!sure && !shared);
    const fits = ({ error }) =>
      Math.max(0, ...error.fits.map(({ present }) => present.filter((each) => each.test(context)).length)) +
      error.terms.filter((each) => each.test(context)).length;
    const runs = ({ error, places }) => (places?.length ? places.reduce((sum, at) => sum + error.runs_at[at], 0) : error.runs);
    const before = (a, b) => elsewhere(a) - elsewhere(b) || fits(b) - fits(a) || runs(b) - runs(a) || (a.error.failure < b.error.failure ? -1 : 1);
    return [...among].sort(before).slice(0, signs.most);
  };
  const possible = (text, excluded, hints) => {
    const every = new Map(excluded.map((match) => [match.error.failure, match]));
    const message = text.includes(": ") ? text.slice(text.indexOf(": ") + 2) : "";
    const words = numberless(message).replace(/[ .…]+$/, "");
    for (const [failure, signature, recorded, typeAlone] of recordings) {
      if (every.has(failure)) continue;
      const error = errors.find((each) => each.failure === failure && each.name === signature);
      const cutShort = words.length >= signs.shortest && recorded.includes(words);
      if (cutShort || typeAlone.test(message) || error.pattern.test(text))
        every.set(failure, judge(error, hints));
    }
    const mayBe = [...every.values()].filter((match) => met(match.error.may_be, hints.context));
    const left = mayBe.filter((match) => match.sure || match.shared);
    const among = left.length === 1 ? mayBe : left;
    return among.length > 1 ? likeliest(among, hints) : [];
  };

  // Type and message of an error in a line; then the errors of a text, or the words of one without its type.
  const errorWithin = (text) => {
    const line = text.replace(signs.label, "");
    if (line.includes("Exception ignored in")) return null;
    for (const word of ["Error:", "Exception:", "Error :", "Error('", 'Error("']) {
      const at = line.indexOf(word);
      if (at < 0) continue;
      const name = at + word.replace(/[ :('"]+$/, "").length;
      const before = line.slice(Math.max(0, name - 120), name);
      const [type, message] = [/(?:[A-Za-z_]\w*\.)*[A-Z]\w*$/.exec(before)?.[0], line.slice(at + word.length)];
      if (!type || /\b(?:except|raise) [\w.]*$/.test(before)) continue;
      if (/['"]$/.test(word)) return [type, message.trim().replace(/\)$/, "").replace(/['"]+$/, "")];
      if (message === "" || message.startsWith(" ")) return [type, message.trim()];
    }
    return null;
  };
  const eventsOf = (text) => {
    const events = [];
    for (const line of text.split("\n")) {
      const error = errorWithin(line);
      if (signs.watchdog.test(line)) events.push({ type: signs.timeout, text: `${signs.timeout}: ${oneLine(line)}`, follows: true });
      else if (error) {
        const whole = error.filter(Boolean).join(": ");
        events.push({ type: error[0], text: whole, follows: signs.outside.includes(error[0].split(".").at(-1)) || signs.victim.test(whole), open: true });
      } else if (events.at(-1)?.open && line.trim()) events.at(-1).text += `\n${line.trim()}`;
      else if (events.length) events.at(-1).open = false;
    }
    if (events.some((event) => !event.follows)) return events;
    const beginning = (line) => beginnings.find(([pattern]) => pattern.test(line));
    for (const line of text.split("\n")) {
      const words = errors.find((error) => error.documented && error.pattern.test(line)) ?? beginning(line);
      if (words && !signs.victim.test(line)) return [{ type: words.type ?? words[1], text: [words.type ?? words[1], line.trim()].filter(Boolean).join(": ") }, ...events];
    }
    return events;
  };

  // What finds an error elsewhere: its type, and its longest stretches of words that are in every such message.
  const [split, severalWords] = [known.searched.split, known.searched.several].map(regex);
  const inSigns = (letter) => letter !== undefined && known.searched.signs.includes(letter);
  const withoutSigns = (text, atStart, atEnd) => {
    let [start, end] = [0, text.length];
    while (atEnd && end > start && inSigns(text[end - 1])) end -= 1;
    while (start < end && (atStart ? inSigns(text[start]) : text[start] === " ")) start += 1;
    return text.slice(start, end);
  };
  const searchable = (error) => {
    const line = oneLine(error.split("\n")[0]).slice(0, known.searched.most);
    const colon = line.indexOf(": ");
    const [kind, message] = colon < 0 ? [line, ""] : [line.slice(0, colon), line.slice(colon + 2)];
    const stretches = [];
    let at = 0;
    for (const match of message.matchAll(split)) {
      if (match[1]) continue;
      stretches.push(withoutSigns(message.slice(at, match.index), at, true));
      at = match.index + match[0].length;
    }
    stretches.push(withoutSigns(message.slice(at).trim(), at, false));
    const usable = stretches.filter((each) => severalWords.test(each) || (each && !at));
    const longest = [...usable].sort((a, b) => b.length - a.length).slice(0, known.searched.stretches);
    return [kind.split(".").at(-1), ...usable.filter((each) => longest.includes(each)).map((each) => `"${each}"`)].join(" ");
  };

  const decide = (text) => {
    const events = eventsOf(text);
    const cause = events.find((event) => !event.follows) ?? events[0];
    const byWords = (hints) => ({ byWords: window.FAULTLINE.words(text, hints) });
    if (!cause) {
      const hints = hintsOf(text, { text: "" });
      return { answer: "no error", matches: [], alike: [], ...byWords(hints), ...window.FAULTLINE.silent(text, hints) };
    }
    const hints = hintsOf(text, cause);
    const chain = signs.raised_in.test(text) && !cause.follows ? [...events].reverse() : [cause];
    const raised = chain.filter((event) => !event.follows || event.type === signs.timeout);
    const candidates = raised.map((event) => [event, fitting(event.text, hints)]);
    const every = candidates.flatMap(([, matches]) => matches);
    const alike = every.filter((match) => !match.sure);
    const best = every.find((match) => match.sure);
    if (best) {
      const other = (match) => match.error.failure !== best.error.failure;
      const sharing = every.filter((match) => best.mechanism && match.mechanism === best.mechanism && other(match));
      const [, alongside] = candidates.find(([, matches]) => matches.includes(best));
      const equals = alongside.filter((match) => against(match) === against(best) && other(match));
      const others = sharing.length ? sharing : equals;
      if (!others.length) return { answer: "named", matches: [best], alike };
      return { answer: "one of several", matches: likeliest([best, ...others], hints), alike };
    }
    for (const [event, matches] of candidates) {
      const either = possible(event.text, matches, hints);
      if (either.length) return { answer: "one of several", matches: either, alike };
    }
    if (cause.follows) return { answer: "aftermath", matches: [], alike, ...byWords(hints) };
    const memory = cause.type.split(".").at(-1) === "OutOfMemoryError";
    return { answer: memory ? "out of memory" : "not in the catalogue", matches: [], alike, search: searchable(cause.text), ...byWords(hints) };
  };
  return decide;
})();
