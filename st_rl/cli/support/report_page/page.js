"use strict";
const round = (value) => Number(value.toPrecision(4)).toString();

/* Show the numbers under the pointer. */
for (const plot of document.querySelectorAll(".plot[data-numbers]")) {
  const numbers = JSON.parse(plot.dataset.numbers);
  const cursor = Object.assign(document.createElement("div"), { className: "cursor", hidden: true });
  const tip = Object.assign(document.createElement("div"), { className: "tip", hidden: true });
  plot.append(cursor, tip);
  const nearest = (xs, x) => {
    let low = 0, high = xs.length - 1;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (xs[middle] < x) low = middle; else high = middle;
    }
    return x - xs[low] < xs[high] - x ? low : high;
  };
  const show = (event) => {
    const box = plot.getBoundingClientRect();
    const fraction = Math.min(1, Math.max(0, (event.clientX - box.left) / box.width));
    const x = numbers.x0 + fraction * (numbers.x1 - numbers.x0);
    tip.replaceChildren();
    const line = (text) => tip.append(Object.assign(document.createElement("div"), { textContent: text }));
    line(`${numbers.xl} ${round(x)}`);
    for (const series of numbers.series) {
      const y = series.y[nearest(series.x, x)];
      line(`${series.n}: ${round(numbers.log ? 10 ** y : y)}`);
    }
    cursor.hidden = tip.hidden = false;
    cursor.style.left = `${fraction * 100}%`;
    tip.style.left = fraction < 0.5 ? `calc(${fraction * 100}% + 10px)` : "";
    tip.style.right = fraction < 0.5 ? "" : `calc(${(1 - fraction) * 100}% + 10px)`;
  };
  plot.addEventListener("pointermove", show);
  plot.addEventListener("pointerdown", show);
  plot.addEventListener("pointerleave", () => { cursor.hidden = tip.hidden = true; });
}

/* Tabs: one group of charts at a time. */
for (const tabs of document.querySelectorAll(".tabs")) {
  const choose = (chosen) => {
    for (const button of tabs.children) {
      button.setAttribute("aria-pressed", String(button === chosen));
      document.getElementById(button.dataset.shows).hidden = button !== chosen;
    }
  };
  for (const button of tabs.children) button.addEventListener("click", () => choose(button));
  choose(tabs.children[0]);
}

for (const button of document.querySelectorAll(".copy button")) {
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(button.parentElement.querySelector("pre").textContent);
    button.textContent = "copied";
    setTimeout(() => { button.textContent = "copy"; }, 1200);
  });
}
document.documentElement.dataset.ready = "yes";
