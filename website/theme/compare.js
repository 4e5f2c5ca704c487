// The comparison of two stacks, by the cells that were run on both; the two are in the address.
"use strict";

(() => {
  const data = window.FAULTLINE;
  const form = document.getElementById("comparison");
  const out = document.getElementById("differences");
  const names = Object.keys(data.stacks);

  const make = (tag, attributes, ...children) => {
    const element = Object.assign(document.createElement(tag), attributes);
    element.append(...children);
    return element;
  };

  const list = (title, items) => {
    if (items.length) out.append(make("h3", {}, title), make("ul", {}, ...items.map((item) => make("li", {}, ...item))));
  };

  // What didn't change is there for those who ask.
  const fold = (title, items) => {
    if (!items.length) return;
    const summary = make("summary", {}, `${title}: ${items.length}`);
    out.append(make("details", {}, summary, make("ul", {}, ...items.map((item) => make("li", {}, ...item)))));
  };

  const versions = (one, two) => {
    const [from, to] = [data.stacks[one].versions, data.stacks[two].versions];
    const differing = Object.keys({ ...from, ...to }).filter((name) => from[name] !== to[name]);
    if (!differing.length) return out.append(make("p", {}, "Their versions are the same."));
    const rows = differing.map((name) =>
      make("tr", {}, make("th", { scope: "row" }, name), make("td", {}, from[name] ?? "none"), make("td", {}, to[name] ?? "none"))
    );
    const titles = ["package", data.stacks[one].title, data.stacks[two].title];
    const head = make("tr", {}, ...titles.map((title) => make("th", { scope: "col" }, title)));
    out.append(make("h3", {}, "Versions that differ"), make("table", { className: "versions" }, make("thead", {}, head), make("tbody", {}, ...rows)));
  };

  const update = () => {
    const [one, two] = [form.one.value, form.two.value];
    out.replaceChildren();
    const run = { failures: 0, cells: 0 };
    const scope = make("p", {});
    out.append(scope);
    const kinds = { second: [], first: [], moved: [], same: [], neither: [], apart: [] };
    for (const [failure, known] of Object.entries(data.known)) {
      const link = make("a", { href: `../failures/${failure}.html` }, data.titles[failure]);
      const cells = [one, two].map((stack) => new Set((known[stack] ?? [[], []]).flat()));
      const common = [...cells[0]].filter((cell) => cells[1].has(cell));
      run.failures += common.length > 0;
      run.cells += common.length;
      const [there, here] = [one, two].map((stack) => common.filter((cell) => known[stack][0].includes(cell)));
      const [before, after] = [there.length, here.length];
      const of = `of ${common.length} ${common.length === 1 ? "cell" : "cells"}`;
      if (!common.length) kinds.apart.push([link]);
      else if (before && after && String(there) === String(here)) kinds.same.push([link, `: ${after} ${of}`]);
      else if (before && after) kinds.moved.push([link, `: ${before}, then ${after === before ? "others" : after} ${of}`]);
      else if (after) kinds.second.push([link, `: ${after} ${of}`]);
      else if (before) kinds.first.push([link, `: ${before} ${of}`]);
      else kinds.neither.push([link]);
    }
    const total = Object.keys(data.known).length;
    scope.textContent = `Both ran cells of ${run.failures} of ${total} failures, ${run.cells} cells in all; only these are compared.`;
    const [from, to] = [one, two].map((stack) => data.stacks[stack].title);
    list(`Only on ${to}: ${kinds.second.length}`, kinds.second);
    list(`Only on ${from}: ${kinds.first.length}`, kinds.first);
    list(`On both, in other cells: ${kinds.moved.length}`, kinds.moved);
    if (!kinds.second.length && !kinds.first.length && !kinds.moved.length) out.append(make("p", {}, "No failure changed."));
    versions(one, two);
    fold("On both, as before", kinds.same);
    fold("On neither", kinds.neither);
    fold("No cell was run on both", kinds.apart);
  };

  for (const select of [form.one, form.two])
    for (const name of names) select.add(new Option(data.stacks[name].title, name));
  const state = new URLSearchParams(location.search);
  const known = (name, otherwise) => (name in data.stacks ? name : otherwise);
  form.one.value = known(state.get("one"), names[1]);
  form.two.value = known(state.get("two"), "today");
  form.addEventListener("input", () => {
    update();
    history.replaceState(null, "", `${location.pathname}?${new URLSearchParams(new FormData(form))}`);
  });
  update();
})();
