// What a report in words may be about, decided as faultline/diagnose/prose.py decides it, by the same data.
// Functions have the names of those that they repeat.
"use strict";

window.FAULTLINE.words = (() => {
  const { terms, failures, patterns, engines, limits } = window.FAULTLINE.answers.words;
  const regex = ([source, flags]) => new RegExp(source, flags);
  const vocabulary = terms.map(([name, pattern]) => [name, regex(pattern)]);
  const [sentence, code, printed, besideHan, word, camel] = ["sentence", "code", "printed", "beside_han", "word", "camel"].map((name) => regex(patterns[name]));
  const [prefix, layers] = [new RegExp(window.FAULTLINE.answers.silent.prefix[0], "iy"), window.FAULTLINE.answers.silent.layers];

  // A line without its prefixes, and whether a program wrote it: one that has a time, a level or a rank.
  const bare = (line) => {
    let [at, program] = [0, false];
    for (let layer = 0; layer < layers; layer += 1) {
      prefix.lastIndex = at;
      const groups = prefix.exec(line)?.groups;
      if (!groups) break;
      program ||= ["time", "level", "rank", "number", "srun", "mpi"].some((name) => groups[name] !== undefined);
      at = prefix.lastIndex;
    }
    return [line.slice(at).trimEnd(), program];
  };
  const written = (text) => {
    let left = limits.longest;
    const lines = [];
    for (const line of text.split("\n").slice(0, limits.lines)) {
      if (left <= 0) break;
      const [words, program] = bare(line);
      if (program || printed.test(words)) continue;
      lines.push(words.slice(0, left));
      left -= words.length;
    }
    return lines.join("\n");
  };
  const termsOf = (text) => {
    const apart = text.replace(besideHan, " ");
    const present = new Set(vocabulary.filter(([, pattern]) => pattern.test(apart)).map(([name]) => name));
    for (const [name] of apart.matchAll(word))
      if (name.length <= limits.longest_name && (/[_.]/.test(name) || camel.test(name))) present.add(name.toLowerCase());
    return present;
  };
  const union = (sets) => new Set(sets.flatMap((each) => [...each]));
  const hasEach = (groups, present) => groups.every((group) => group.split("|").some((term) => present.has(term)));
  const sum = (weights, present) => Object.entries(weights).reduce((all, [term, weight]) => all + (present.has(term) ? weight : 0), 0);

  return (text, hints) => {
    const whole = written(text).replace(code, (block) => block.replaceAll("\n", " "));
    const sentences = whole.split(new RegExp(sentence, "g")).filter((each) => each?.trim()).slice(0, limits.sentences);
    if (!sentences.length) return [];
    const present = sentences.map(termsOf);
    const windows = present.flatMap((_, start) =>
      Array.from({ length: Math.min(limits.at_once, present.length - start) }, (_, more) => union(present.slice(start, start + more + 1))));
    const everywhere = union(present);
    const near = failures.map((known) => {
      const every = known.symptoms.map(({ text: symptom, weights }) => {
        const together = Math.max(...windows.map((present) => sum(weights, present)));
        const all = Object.values(weights).reduce((a, b) => a + b, 0);
        return { symptom, nearness: Math.max(together, limits.apart * sum(weights, everywhere)) / (all + limits.more) };
      });
      const asked = hasEach(known.anywhere, everywhere) && windows.some((present) => hasEach(known.together, present));
      return { ...known, ...every.reduce((a, b) => (b.nearness > a.nearness ? b : a)), least: asked ? limits.enough : limits.close };
    });
    const compares = engines.filter((name) => everywhere.has(name)).length > 1;
    const fits = (place) => {
      const [strategy, mode] = place.split("/");
      return (!hints.strategies.length || hints.strategies.includes(strategy)) && (!hints.modes.length || hints.modes.includes(mode));
    };
    const left = near.filter((each) => each.nearness >= each.least && (compares || each.places.some(fits))).sort((a, b) => b.nearness - a.nearness);
    return left.filter((each) => each.nearness >= limits.beside_best * left[0].nearness).slice(0, limits.most);
  };
})();
