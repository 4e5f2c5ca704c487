// What a text without an error shows, decided as faultline/diagnose/silent.py decides it, by the same data.
// Functions and fields have the names of those that they repeat.
"use strict";

window.FAULTLINE.silent = (() => {
  const known = window.FAULTLINE.answers.silent;
  const order = window.FAULTLINE.answers.strategies;
  const regex = ([source, flags], more = "") => new RegExp(source, flags + more);
  const [norms, losses, alike] = [known.norm, known.loss, known.alike].map((each) => regex(each));
  const [counted, spaced] = [regex(known.counted), regex(known.spaced, "g")];
  const prefix = regex(known.prefix, "y");
  const warnings = known.warnings.map(([failure, pattern, distinction]) => [failure, regex(pattern), distinction]);

  // A line without its prefixes, and the rank that they name.
  const bare = (line) => {
    let [at, rank] = [0, null];
    for (let layer = 0; layer < known.layers; layer += 1) {
      prefix.lastIndex = at;
      const groups = prefix.exec(line)?.groups;
      if (!groups) break;
      rank = [groups.rank, groups.number, groups.srun, groups.mpi].find((each) => each !== undefined) ?? rank;
      at = prefix.lastIndex;
    }
    return [line.slice(at).slice(0, known.longest), rank === null ? null : Number(rank)];
  };
  const silently = (failure, signatures, hints, when) => {
    const places = signatures.flatMap((each) => known.places[failure]?.[when]?.[each] ?? []).map((each) => each.split("/"));
    const fits = ([strategy, mode]) =>
      (!hints.strategies.length || hints.strategies.includes(strategy)) && (!hints.modes.length || hints.modes.includes(mode));
    const names = new Set(places.filter(fits).map(([strategy]) => strategy));
    return order.filter((name) => names.has(name));
  };
  const where = (signatures, hints, names) =>
    Object.fromEntries(Object.keys(known.places).map((failure) => [failure, names(failure, signatures, hints)]).filter(([, each]) => each.length));

  const run = () => ({ learned: 0, count: 0, norms: new Set() });
  const take = (steps, value) => {
    if (value) return Object.assign(steps, { learned: steps.learned + 1, count: 0, norms: new Set() });
    steps.norms.add(Number.isNaN(value) ? "nan" : "0");
    return Object.assign(steps, { count: steps.count + 1 });
  };
  const silence = (gradients, ofLosses, hints) => {
    const figure = gradients.learned || gradients.count ? "grad_norm" : "loss";
    const steps = figure === "loss" ? ofLosses : gradients;
    const norm = [...steps.norms].join(" or ");
    if (!steps.count || (steps.learned ? norm !== "nan" : steps.count < known.fewest)) return null;
    const wanted = [...steps.norms].map((each) => ({ 0: "unmoved", nan: "nan" })[each]);
    const today = where(wanted, hints, (...asked) => silently(...asked, "today"));
    const earlier = where(wanted, hints, (failure, ...asked) =>
      silently(failure, ...asked, "ever").filter((name) => !today[failure]?.includes(name))
    );
    const skips = figure === "grad_norm" && steps.count < known.fewest ? known.skips : "";
    return { norm, steps: steps.count, failures: today, earlier, after: steps.learned, figure, skips };
  };
  const sameLosses = (byRank) => {
    const every = [...byRank.values()];
    const steps = Math.min(...every.map((each) => each.length));
    if (every.length < 2 || new Set(every.map((each) => each.slice(0, steps).join())).size > 1) return null;
    if (new Set(every[0].slice(0, steps)).size < known.fewest) return null;
    return { ranks: [...byRank.keys()].sort((a, b) => a - b), steps };
  };

  return (text, hints) => {
    const [gradients, ofLosses, byRank, warned] = [run(), run(), new Map(), new Map()];
    let cut = false;
    const number = (word) => (/nan/i.test(word) ? NaN : Number(word));
    for (const [whole, rank] of text.split("\n").map(bare)) {
      const line = counted.test(whole) ? whole.replace(spaced, "$1: ") : whole;
      const [norm, loss] = [norms.exec(line)?.[1], losses.exec(line)?.[1]];
      if (loss && rank !== null && (byRank.get(rank)?.length ?? 0) < known.enough) byRank.set(rank, [...(byRank.get(rank) ?? []), loss]);
      if (norm && !(number(norm) === 0 && alike.test(line))) take(gradients, number(norm));
      else if (loss && !norm) take(ofLosses, number(loss) === 0 ? 1 : number(loss)); // a loss of 0 is none that went wrong
      if (line.includes(known.traceback)) {
        warned.clear();
        cut = true;
      }
      for (const [failure, pattern, distinction] of warnings)
        if (!warned.has(failure) && pattern.test(line)) warned.set(failure, distinction);
    }
    const wrongly = [...warned].map(([failure, distinction]) => ({ failure, distinction, strategies: silently(failure, known.wrongly, hints, "ever") }));
    return {
      silence: silence(gradients, ofLosses, hints),
      same: sameLosses(byRank),
      warned: wrongly.filter((each) => each.strategies.length),
      cut,
    };
  };
})();
