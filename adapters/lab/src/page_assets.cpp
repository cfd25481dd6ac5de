#include "page_assets.hpp"

namespace sluice::lab::page {

// --c0 to --c5 stay apart in simulated protanopia, deuteranopia and tritanopia (CIE76 distances of
// 33 and more), with a contrast of 3:1 or more on their background; text has 4.5:1. No chart is
// wider than its viewBox, so that the labels of all are of one size.
const std::string_view style_sheet = R"css(
:root{
--bg:#fff;--soft:#f4f6f8;--ink:#171b21;--dim:#58616d;--rule:#cfd5dc;--grid:#e3e7ec;--focus:#0b62c4;
--c0:#2390ee;--c1:#da7902;--c2:#006658;--c3:#7f0088;--c4:#574200;--c5:#2e24f7;
--g0:#2d333b;--g1:#6b7480;--g2:#8a8f96;
--runs:#b9e2d0;--waits:#e9b500;--suspending:#d95f02;--suspended:#44487f;--resuming:#3592d8;
--level:#7c8794;--beyond:#e9ecf0;--good:#2f7fc1;--bad:#d5672a;--notice:#fff4d6;--notice-ink:#5c4300}
@media screen and (prefers-color-scheme:dark){:root{
--bg:#14171c;--soft:#1d2229;--ink:#e7eaee;--dim:#a4adb9;--rule:#3c444f;--grid:#2a3039;--focus:#7db8ff;
--c0:#a6c8ff;--c1:#b96b18;--c2:#48f09a;--c3:#e22a8b;--c4:#eddc0d;--c5:#b152f5;
--g0:#dfe3e8;--g1:#9aa4b1;--g2:#7c8692;
--runs:#1c5a45;--waits:#f0c93e;--suspending:#ff8d55;--suspended:#6f66c4;--resuming:#69c0ff;
--level:#8d98a6;--beyond:#20262e;--good:#4f9ee0;--bad:#ef8148;--notice:#3b3012;--notice-ink:#ffe3a0}}
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%;scroll-padding-top:4.5rem}
body{margin:0 auto;padding:1.25rem clamp(.9rem,3vw,2.5rem) 3rem;max-width:88rem;background:var(--bg);
color:var(--ink);font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Noto Sans",sans-serif;
font-variant-numeric:tabular-nums}
h1{font-size:1.6rem;line-height:1.25;margin:.6rem 0 .8rem;text-wrap:balance}
h2{font-size:1.2rem;margin:0 0 .5rem;line-height:1.5}
h3{font-size:.95rem;margin:.9rem 0 .25rem;font-weight:600;overflow-wrap:anywhere}
h3 small,.tl-name small{font-weight:400;color:var(--dim)}
p{margin:.4rem 0}
a{color:var(--focus)}
:focus-visible{outline:2px solid var(--focus);outline-offset:2px}
.notice{display:inline-block;margin:0;padding:.2rem .7rem;border-radius:4px;background:var(--notice);
color:var(--notice-ink)}
.command{position:relative}
pre{margin:0;padding:.7rem 4.5rem .7rem .9rem;background:var(--soft);border-radius:6px;
white-space:pre-wrap;overflow-wrap:anywhere;font:.87rem/1.5 ui-monospace,Menlo,Consolas,monospace}
button{font:inherit;color:inherit;background:var(--bg);border:1px solid var(--rule);border-radius:5px;
cursor:pointer;padding:.1rem .6rem}
button:hover{background:var(--soft)}
button:disabled{opacity:.4;cursor:default}
.copy{position:absolute;top:.45rem;right:.5rem;font-size:.85rem}
html:not(.js) .js-only{display:none}
html:not(.js) button{cursor:default}
dl{display:flex;flex-wrap:wrap;gap:.2rem 2rem;margin:.7rem 0}
dl div{display:flex;gap:.5rem}
dt,.facet small{color:var(--dim)}
dd{margin:0}
.facet{display:inline-block;margin-right:.9rem;overflow-wrap:anywhere}
.facet small{font-weight:400;font-size:.8em}
.legend{position:sticky;top:0;z-index:3;display:flex;flex-wrap:wrap;gap:.35rem .5rem;padding:.55rem 0;
margin:.6rem 0 1rem;background:var(--bg);border-bottom:1px solid var(--rule);max-height:9rem;
overflow-y:auto}
.key{display:inline-flex;align-items:center;gap:.45rem;border-color:transparent;padding:.05rem .45rem;
max-width:100%}
.key span{overflow:hidden;text-overflow:ellipsis;white-space:nowrap;max-width:34ch}
.key[aria-pressed=false]{opacity:.45;text-decoration:line-through}
.swatch{flex:none;overflow:visible;vertical-align:-2px;margin-right:.4rem}
.key .swatch{margin-right:0}
nav{margin-bottom:2rem}
.cards{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(15rem,46%),1fr));gap:.7rem}
.card{display:block;padding:.5rem .6rem;border:1px solid var(--rule);border-radius:6px;color:inherit;
text-decoration:none;font-size:.9rem}
.card:hover{border-color:var(--focus)}
section{content-visibility:auto;contain-intrinsic-size:auto 90rem;padding:1.2rem .9rem 0;margin:0 -.9rem 2.2rem;border-top:2px solid var(--rule)}
.legend+main section:first-child{border-top:0;padding-top:0}
.up{float:right;font-size:.85rem;font-weight:400}
.summary{color:var(--dim);margin:0 0 .8rem}
.figures{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(24rem,100%),1fr));gap:1.2rem 2rem;
margin-top:1.2rem}
.figures.two{grid-template-columns:repeat(auto-fit,minmax(min(27rem,100%),35rem));margin-top:0}
figure{margin:0;min-width:0}
figure.wide,.scroll,figure+figure:has(.maps){margin-top:1.4rem}
figcaption{font-weight:600;margin-bottom:.35rem}
.hint{font-weight:400;color:var(--dim);font-size:.87rem}
.chart{display:block;width:100%;height:auto;overflow:visible;max-width:35rem}
.dist{max-width:26.25rem}.heat{max-width:25rem}.small{max-width:16.25rem}
.chart text{fill:var(--ink);font-size:12px}
.tick text{fill:var(--dim)}
.axis text{fill:var(--dim);font-size:12.5px}
.small text{font-size:11px}
.grid path{stroke:var(--grid);fill:none}
.grid .base{stroke:var(--rule)}
.line{fill:none;stroke:var(--c);stroke-width:1.9;stroke-dasharray:var(--d);stroke-linejoin:round}
.swatch .line{stroke-width:2}
.mark{fill:var(--c);stroke:var(--bg);stroke-width:1}
.mark.open{fill:var(--bg);stroke:var(--c);stroke-width:1.7}
.leader{stroke:var(--c);stroke-width:1;fill:none;opacity:.7}
.bars{stroke:var(--c);stroke-width:1.1;fill:none;opacity:.5}
.cap{stroke:var(--c);stroke-width:1.6;fill:none}
.room{stroke:var(--c);stroke-width:1;fill:none;opacity:.55;stroke-dasharray:2 2}
.chart .label{paint-order:stroke;stroke:var(--bg);stroke-width:3px;stroke-linejoin:round}
.bound{fill:none;stroke:var(--ink);stroke-width:1.6}
.beyond{fill:var(--beyond);stroke:none}
.alone{stroke:var(--g0);stroke-dasharray:4 3;fill:none}
.target path{stroke:var(--ink);stroke-width:1.2;stroke-dasharray:5 3}
.chart .target text{fill:var(--ink)}
.cross{stroke:var(--dim);stroke-width:1;pointer-events:none}
.keys{display:flex;flex-wrap:wrap;gap:.15rem 1.1rem;color:var(--dim);font-size:.87rem;margin:.3rem 0}
.keys i{display:inline-block;width:1.5rem;height:.8rem;margin-right:.4rem;vertical-align:-1px}
.k-bound{border-top:2px solid var(--ink);background:var(--beyond)}
.k-room{border-left:1px dashed var(--dim);border-top:1px dashed var(--dim);width:.6rem!important}
.k-alone{border-left:2px dashed var(--g0);width:.4rem!important}
.k-level{background:var(--level)}
.k-instants{border-left:2px solid var(--ink);width:.3rem!important}
.k-turn{border-top:3px solid var(--ink);height:.3rem!important}
.k-ramp{width:5rem!important;background:linear-gradient(90deg,var(--good),transparent);
border:1px solid var(--rule)}
.k-ramp.both{background:linear-gradient(90deg,var(--good),transparent,var(--bad))}
.maps{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(22rem,100%),1fr));gap:.5rem 2rem}
.good{fill:var(--good)}.bad{fill:var(--bad)}.unknown{fill:var(--soft)}
.numbers text{paint-order:stroke;stroke:var(--bg);stroke-width:2.5px;stroke-opacity:.75}
.numbers{text-anchor:middle;pointer-events:none}
.turn,.turn-edge{pointer-events:none}
.turn{fill:none;stroke:var(--ink);stroke-width:2.4;stroke-linejoin:round}
.turn-edge{fill:none;stroke:var(--bg);stroke-width:5;stroke-linejoin:round;opacity:.8}
.scroll{overflow-x:auto}
table{border-collapse:collapse;font-size:.87rem;width:100%}
th,td{padding:.28rem .4rem;text-align:right;white-space:nowrap;border-bottom:1px solid var(--grid)}
thead th{color:var(--dim);font-weight:600;border-bottom:1px solid var(--rule)}
td small{display:block;color:var(--dim);line-height:1.1;font-size:.85em}
th,td{vertical-align:top}
abbr{text-decoration:none;cursor:help}
th:first-child{position:sticky;left:0;background:var(--bg);text-align:left;font-weight:500}
tbody tr:hover>*{background:var(--soft)}
.unseen{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%)}
.tl{position:relative}
.tl-bar{display:flex;flex-wrap:wrap;align-items:center;gap:.3rem;margin:.2rem 0 .4rem}
.tl-bar button{min-width:2.1rem}
.tl-bar output{margin:0 .6rem;min-width:14rem}
.tl-row{display:grid;grid-template-columns:12.5rem minmax(0,1fr);align-items:center;margin-bottom:3px}
.tl-name{font-size:.87rem;padding-right:.8rem;text-align:right;overflow-wrap:anywhere;line-height:1.2}
.lane{display:block;width:100%;height:20px;background:var(--soft);touch-action:pan-y;
cursor:crosshair;overflow:hidden}
.tall .lane{height:38px}
.lane path{vector-effect:non-scaling-stroke}
.level{fill:var(--level)}
.instants{stroke:var(--ink);stroke-width:1;fill:none}
.s-runs{fill:var(--runs);background:var(--runs)}
.s-waits{fill:var(--waits);background:var(--waits);stroke:var(--waits);stroke-width:.7}
.s-suspending{fill:var(--suspending);background:var(--suspending);stroke:var(--suspending);stroke-width:.7}
.s-suspended{fill:var(--suspended);background:var(--suspended)}
.s-resuming{fill:var(--resuming);background:var(--resuming);stroke:var(--resuming);stroke-width:.7}
.tl-axis{position:relative;height:1.35rem;border-top:1px solid var(--rule);font-size:.8rem;
color:var(--dim)}
.tl-axis span{position:absolute;transform:translateX(-50%);white-space:nowrap;padding-top:.2rem}
.tl-axis span::before{content:"";position:absolute;left:50%;top:0;height:4px;border-left:1px solid var(--dim)}
.cursor{position:absolute;top:2.6rem;bottom:0;width:0;border-left:1px solid var(--dim);
pointer-events:none}
#tip{position:fixed;z-index:9;max-width:min(26rem,92vw);padding:.4rem .65rem;border-radius:6px;
background:var(--bg);border:1px solid var(--rule);box-shadow:0 3px 14px rgb(0 0 0/.22);font-size:.87rem;
line-height:1.4;pointer-events:none;overflow-wrap:anywhere}
#tip div{display:flex;gap:.5rem;align-items:baseline}
#tip div b{font-weight:500;flex:1}
#tip div:first-child:not(:only-child){font-weight:600}
footer{border-top:1px solid var(--rule);color:var(--dim);padding-top:.8rem;max-width:75ch}
@media (max-width:640px){
body{font-size:14.5px}
.legend{position:static;max-height:none}
.key{padding:.05rem .2rem}
.two .chart text{font-size:15px}.two .chart .label,.two .leader,.small .tick text:nth-child(even){display:none}
.small text,.heat text{font-size:13px}
.tl-row{grid-template-columns:minmax(0,1fr)}
.tl-name{text-align:left;padding:.25rem 0 .1rem}
.tl-axis span:nth-child(even){display:none}
.cursor{display:none}}
@media print{
*{print-color-adjust:exact;-webkit-print-color-adjust:exact}
body{font-size:10pt;padding:0;max-width:none}
.legend{position:static;max-height:none}
.js-only,.up{display:none!important}
.figures{grid-template-columns:1fr 1fr 1fr}.figures.two{grid-template-columns:1fr 1fr}
figure,.card,.map,.tl-track,tr{break-inside:avoid}
section{break-before:page;content-visibility:visible}
table{font-size:7.5pt}th,td{padding:.15rem .25rem}.scroll{overflow:visible}}
)css";

// Without it the page is whole, but stands still.
const std::string_view script = R"js('use strict';
(() => {
const root = document.documentElement;
const all = (what, within = document) => [...within.querySelectorAll(what)];
const make = (name, into, attributes = {}) => {
  const made = into.appendChild(document.createElement(name));
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
};
root.classList.add('js');

// --- What is pointed at ------------------------------------------------------------------------
const tip = make('div', document.body, {id: 'tip', role: 'status'});
tip.hidden = true;
const swatches = new Map(all('.key').map(key => [key.dataset.who, key.querySelector('.swatch')]));
// Lines are texts, or [actor, name, value].
const show = (event, lines) => {
  tip.replaceChildren();
  for (const line of lines) {
    const row = make('div', tip);
    if (typeof line === 'string') {
      row.textContent = line;
      continue;
    }
    const swatch = swatches.get(line[0]);
    if (swatch) row.append(swatch.cloneNode(true));
    make('b', row).textContent = line[1];
    make('span', row).textContent = line[2];
  }
  tip.hidden = false;
  const size = tip.getBoundingClientRect(), wide = root.clientWidth, high = root.clientHeight;
  const left = event.clientX + 16 + size.width > wide ? event.clientX - 16 - size.width : event.clientX + 16;
  const top = event.clientY + 16 + size.height > high ? event.clientY - 12 - size.height : event.clientY + 16;
  tip.style.left = Math.max(4, Math.min(left, wide - size.width - 4)) + 'px';
  tip.style.top = Math.max(4, top) + 'px';
};
const hide = () => { tip.hidden = true; };
addEventListener('scroll', hide, {passive: true});

for (const title of all('svg.chart g > title')) {
  const of = title.parentNode, lines = title.textContent.split('\n');
  of.setAttribute('aria-label', lines.join(', '));
  title.remove();
  if (of.closest('.dist')) continue;
  of.addEventListener('pointermove', event => show(event, lines));
  of.addEventListener('pointerleave', hide);
}

const time = ms => {
  const size = Math.abs(ms);
  const [value, unit] = size >= 1000 ? [ms / 1000, 's'] : size >= 1 || !size ? [ms, 'ms'] : [ms * 1000, '\u00b5s'];
  return `${+value.toPrecision(5)} ${unit}`;
};

// --- Percentiles: all lines at the one that is pointed at ---------------------------------------
for (const chart of all('svg.dist')) {
  const x = +chart.dataset.x, step = +chart.dataset.step, box = chart.viewBox.baseVal;
  const lines = all('.who', chart).map(group => ({
    who: /a(\d+)/.exec(group.getAttribute('class'))[1], group,
    values: group.querySelector('path').dataset.values.split(' ').map(Number)}));
  const most = Math.max(...lines.map(line => line.values.length));
  const cross = chart.querySelector('.cross');
  chart.addEventListener('pointermove', event => {
    const seen = chart.getBoundingClientRect();
    const at = Math.round(((event.clientX - seen.left) / seen.width * box.width - x) / step);
    const i = Math.max(0, Math.min(most - 1, at));
    cross.setAttribute('d', `M${x + i * step} 24V262`);
    const beyond = 10 ** (-i / chart.dataset.decade);
    const name = 'p' + +(100 - 100 * beyond).toFixed(Math.max(0, Math.ceil(i / chart.dataset.decade)));
    const shown = lines.filter(line => line.values.length > i && getComputedStyle(line.group).display !== 'none')
                       .sort((a, b) => b.values[i] - a.values[i]);
    show(event, [name, ...shown.map(line =>
      [line.who, document.querySelector(`.key[data-who="${line.who}"]`).title, time(line.values[i])])]);
  });
  chart.addEventListener('pointerleave', () => { cross.removeAttribute('d'); hide(); });
}

// --- Legend: point to see one, click to take one away --------------------------------------------
const rules = make('style', document.head);
const hidden = new Set();
let hot = null;
const apply = () => {
  rules.textContent = [...hidden].map(who => `.a${who}:not(.keep):not(.swatch){display:none!important}`).join('') +
    (hot === null || hidden.has(hot) ? '' : `svg .who:not(.a${hot}){opacity:.13}`);
};
for (const key of all('.key')) {
  key.addEventListener('click', () => {
    const who = key.dataset.who;
    hidden.delete(who) || hidden.add(who);
    key.setAttribute('aria-pressed', !hidden.has(who));
    apply();
  });
  const warm = on => () => { hot = on ? key.dataset.who : null; apply(); };
  for (const [name, on] of [['pointerenter', true], ['focus', true], ['pointerleave', false], ['blur', false]]) {
    key.addEventListener(name, warm(on));
  }
}

// --- Timelines ----------------------------------------------------------------------------------
const roundTicks = (low, high, most) => {
  let power = 10 ** Math.floor(Math.log10((high - low) / most));
  for (;; power *= 10) {
    for (const digit of [1, 2, 5]) {
      const step = digit * power, first = Math.ceil(low / step - 1e-9);
      const last = Math.floor(high / step + 1e-9);
      if (last - first < most) {
        const digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
        return Array.from({length: last - first + 1}, (_, i) => [(first + i) * step, digits]);
      }
    }
  }
};
for (const line of all('.tl')) {
  const begin = +line.dataset.begin, span = +line.dataset.span, least = Math.min(span, 0.5);
  const lanes = all('svg.lane', line), axes = all('.tl-axis', line), said = line.querySelector('output');
  const button = Object.fromEntries(all('[data-do]', line).map(each => [each.dataset.do, each]));
  const cursor = make('div', line, {class: 'cursor'});
  cursor.hidden = true;
  let from = 0, width = span, planned = false;
  const draw = () => {
    planned = false;
    for (const lane of lanes) lane.setAttribute('viewBox', `${from} 0 ${width} 1`);
    const low = (begin + from) / 1000, high = (begin + from + width) / 1000;
    const few = innerWidth < 700 ? 5 : 11;
    for (const axis of axes) {
      axis.replaceChildren(...roundTicks(low, high, few).map(([value, digits]) => {
        const made = document.createElement('span');
        made.textContent = value.toFixed(digits) + ' s';
        made.style.left = (value - low) / (high - low) * 100 + '%';
        return made;
      }));
    }
    const digits = Math.max(0, Math.min(6, 3 - Math.floor(Math.log10(width / 1000))));
    said.textContent = `${low.toFixed(digits)} s to ${high.toFixed(digits)} s, ${time(width)}`;
    button.in.disabled = width <= least;
    button.out.disabled = button.all.disabled = width >= span;
    button.left.disabled = from <= 0;
    button.right.disabled = from + width >= span - 1e-9;
  };
  const look = (newFrom, newWidth) => {
    width = Math.max(least, Math.min(span, newWidth));
    from = Math.max(0, Math.min(span - width, newFrom));
    if (!planned) requestAnimationFrame(draw);
    planned = true;
  };
  const zoom = (factor, share = 0.5) => {
    const kept = Math.max(least, Math.min(span, width * factor));
    look(from + (width - kept) * share, kept);
  };
  const pan = share => look(from + share * width, width);
  const commands = {in: () => zoom(0.5), out: () => zoom(2), left: () => pan(-0.3), right: () => pan(0.3),
                    all: () => look(0, span)};
  for (const [name, act] of Object.entries(commands)) button[name].addEventListener('click', act);
  const keys = {'+': 'in', '=': 'in', '-': 'out', '0': 'all', ArrowLeft: 'left', ArrowRight: 'right'};
  line.addEventListener('keydown', event => {
    const name = keys[event.key];
    if (!name || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    commands[name]();
  });
  const share = event => {
    const seen = lanes[0].getBoundingClientRect();
    return (event.clientX - seen.left) / seen.width;
  };
  line.addEventListener('wheel', event => {
    const lane = event.target.closest('svg.lane');
    if (!lane || !(event.ctrlKey || event.metaKey || line.contains(document.activeElement))) return;
    event.preventDefault();
    if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) pan(event.deltaX / 600);
    else zoom(2 ** (event.deltaY / 240), share(event));
  }, {passive: false});

  // One pointer moves it, two zoom.
  const pointers = new Map();
  const parsed = new WeakMap();
  const parts = lane => {
    if (parsed.has(lane)) return parsed.get(lane);
    const made = [];
    for (const path of all('[data-state]', lane)) {
      for (const [, at, length] of path.getAttribute('d').matchAll(/M([\d.]+) 0h([\d.]+)/g)) {
        made.push([+at, +at + +length, path.dataset.state]);
      }
    }
    const level = lane.querySelector('.level');
    if (level) {
      let at = 0, value = 0;
      for (const [, kind, number] of level.getAttribute('d').matchAll(/([HV])([\d.]+)/g)) {
        if (kind === 'H') {
          made.push([at, +number, `${value} in flight`]);
          at = +number;
        } else {
          value = Math.round((1 - number) / 0.7 * level.dataset.peak);
        }
      }
    }
    parsed.set(lane, made);
    return made;
  };
  const tell = event => {
    const lane = event.target.closest('svg.lane');
    const at = from + share(event) * width;
    cursor.hidden = !lane;
    if (!lane) return hide();
    cursor.style.left = event.clientX - line.getBoundingClientRect().left + 'px';
    // Of thin ones the nearest within two pixels.
    const near = 2 * width / lane.getBoundingClientRect().width;
    const away = part => Math.max(part[0] - at, at - part[1], 0);
    const found = parts(lane).filter(part => away(part) <= near)
      .sort((a, b) => away(a) - away(b) || (a[1] - a[0]) - (b[1] - b[0]))[0];
    const digits = Math.max(3, Math.min(6, 4 - Math.floor(Math.log10(width / 1000))));
    const when = value => ((begin + value) / 1000).toFixed(digits) + ' s';
    show(event, found ? [found[2], `${when(found[0])} to ${when(found[1])}, ${time(found[1] - found[0])}`]
                      : [when(at)]);
  };
  line.addEventListener('pointerdown', event => {
    const lane = event.target.closest('svg.lane');
    if (!lane || event.button !== 0) return;
    lane.setPointerCapture(event.pointerId);
    pointers.set(event.pointerId, event.clientX);
    line.focus({preventScroll: true});
  });
  line.addEventListener('pointermove', event => {
    if (!pointers.has(event.pointerId)) return tell(event);
    const seen = lanes[0].getBoundingClientRect();
    const before = pointers.get(event.pointerId);
    pointers.set(event.pointerId, event.clientX);
    if (pointers.size === 1) {
      look(from - (event.clientX - before) / seen.width * width, width);
    } else {
      const other = [...pointers].find(([id]) => id !== event.pointerId)[1];
      const factor = Math.max(8, Math.abs(before - other)) / Math.max(8, Math.abs(event.clientX - other));
      zoom(factor, (other - seen.left) / seen.width);
    }
    hide();
  });
  for (const name of ['pointerup', 'pointercancel']) {
    line.addEventListener(name, event => pointers.delete(event.pointerId));
  }
  line.addEventListener('pointerleave', () => { cursor.hidden = true; hide(); });
  addEventListener('resize', () => look(from, width));
  draw();
}

// --- The command ----------------------------------------------------------------------------------
for (const button of all('.copy')) {
  const code = button.parentNode.querySelector('code');
  button.addEventListener('click', async () => {
    getSelection().selectAllChildren(code);
    try {
      await navigator.clipboard.writeText(code.textContent);
      button.textContent = 'copied';
    } catch {
      button.textContent = document.execCommand('copy') ? 'copied' : 'select and copy';
    }
  });
}
})();
)js";

}  // namespace sluice::lab::page
