// The page at / in a real browser: a person asks, watches, stops, goes on. Skipped, and said so, where there is no Chromium.
import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import type { Model } from "../../src/index.ts";
import { serve, type BaoServer } from "../../src/server/index.ts";
import { Browser, chromium } from "./browser.ts";
import { loadDemo, STORY } from "./harness.ts";

setDefaultTimeout(60_000);
if (chromium() === null) console.warn("SKIPPED: the page's tests need Chromium (Debian: chromium); none is on PATH");

describe.skipIf(chromium() === null)("the page", () => {
  let model: Model, server: BaoServer, browser: Browser;
  beforeAll(async () => {
    model = await loadDemo({ sessions: 2 });
    server = serve(model, { port: 0 });
    browser = await Browser.open(server.url.href);
  });
  afterAll(async () => {
    await browser?.[Symbol.asyncDispose]();
    await server?.close(true);
    await model?.dispose();
  });
  const last = ".assistant:last-of-type";
  const idle = (): Promise<void> => browser.until("!document.querySelector('#send').disabled");
  const set = (id: string, value: number): Promise<unknown> => browser.value(`(() => { const e = document.querySelector("#${id}"); e.value = ${value}; e.dispatchEvent(new Event("input")); })()`);
  const ask = async (text: string): Promise<void> => {
    await browser.click("#prompt");
    await browser.type(text);
    await browser.press("Enter");
  };

  test("names the model, and the message field has the focus", async () => {
    await browser.until("document.querySelector('#model').textContent === 'demo'");
    expect(await browser.value<string>("document.activeElement.id")).toBe("prompt");
    expect(await browser.value<string>("document.querySelector('#temperature').parentElement.querySelector('output').value")).toBe("0.8");
  });
  test("streams an answer: the greedy one, with its speed", async () => {
    await set("temperature", 0);
    await browser.value("document.querySelector('#max_tokens').value = 24");
    await browser.value("window.seen = new Set(); new MutationObserver(() => seen.add(document.querySelector('.assistant')?.textContent)).observe(document.querySelector('#log'), { subtree: true, childList: true, characterData: true })");
    await ask(STORY.content);
    await browser.until(`document.querySelector('${last}')?.textContent.length > 40`);
    await idle();
    expect(await browser.value<string>(`document.querySelector('${last}').textContent`)).toBe(await model.generate([STORY], { temperature: 0, maxTokens: 24 }).text());
    expect(await browser.value<number>("seen.size")).toBeGreaterThan(5);
    expect(await browser.value<string>("document.querySelector('#rate').textContent")).toMatch(/^\d+\.\d tok\/s$/);
  });
  test("the system prompt and the conversation so far are sent", async () => {
    await browser.value("document.querySelector('#system').value = 'Be short.'");
    const first = await browser.value<string>(`document.querySelector('${last}').textContent`);
    await ask("And then?");
    await browser.until("document.querySelectorAll('.assistant').length === 2");
    await idle();
    const messages = [{ role: "system", content: "Be short." }, STORY, { role: "assistant", content: first }, { role: "user", content: "And then?" }] as const;
    expect(await browser.value<string>("document.querySelectorAll('.assistant')[1].textContent")).toBe(await model.generate(messages, { temperature: 0, maxTokens: 24 }).text());
  });
  test("stop keeps what is there, and the server ends the work", async () => {
    await browser.click("#clear");
    expect(await browser.value<number>("document.querySelector('#log').children.length")).toBe(0);
    await set("temperature", 1.9);
    await browser.value("document.querySelector('#max_tokens').value = 900");
    await ask("Tell me a very long story.");
    await browser.until(`document.querySelector('${last}')?.textContent.length > 5`);
    await browser.click("#stop");
    await idle();
    expect(await browser.value<number>(`document.querySelector('${last}').textContent.length`)).toBeGreaterThan(5);
    const running = async (): Promise<number> => ((await (await fetch(new URL("/health", server.url))).json()) as { running: number }).running;
    for (let i = 0; await running() > 0; i++) { if (i > 1000) throw new Error("the answer goes on"); await Bun.sleep(10); }
  });
  test("an error is shown and announced; what a model writes is never markup", async () => {
    await browser.value("document.querySelector('#clear').click()");
    await ask("word ".repeat(3000));
    await browser.until("document.querySelector('.error[role=alert]')");
    expect(await browser.value<string>("document.querySelector('.error').textContent")).toContain("maximum context length");
    await idle();
    await ask("<img src=x onerror=alert(1)>");
    await browser.until("document.querySelectorAll('.user').length === 2");
    expect(await browser.value<number>("document.images.length")).toBe(0);
    await idle();
  });
  test("light and dark differ and are both readable; every control has a name; narrow windows do not scroll sideways", async () => {
    const contrast = `(() => {
      const rgb = (text) => text.match(/[\\d.]+/g).slice(0, 3).map((v) => { const c = v / 255; return c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4; });
      const luminance = (text) => { const [r, g, b] = rgb(text); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
      const ratio = (selector, back) => { const [a, b] = [getComputedStyle(document.querySelector(selector)).color, getComputedStyle(document.querySelector(back)).backgroundColor].map(luminance).sort((x, y) => y - x); return (a + 0.05) / (b + 0.05); };
      return [ratio("body", "body"), ratio("#model", "body"), ratio("#send", "#send"), ratio(".user", ".user"), ratio(".error", "body")];
    })()`;
    const backs = new Set<string>();
    for (const scheme of ["light", "dark"]) {
      await browser.send("Emulation.setEmulatedMedia", { features: [{ name: "prefers-color-scheme", value: scheme }] });
      for (const ratio of await browser.value<number[]>(contrast)) expect(ratio).toBeGreaterThanOrEqual(4.5);
      backs.add(await browser.value<string>("getComputedStyle(document.body).backgroundColor"));
    }
    expect(backs.size).toBe(2);
    const { nodes } = await browser.send("Accessibility.getFullAXTree") as { nodes: { ignored: boolean; role?: { value: string }; name?: { value: string } }[] };
    const controls = nodes.filter((n) => !n.ignored && ["button", "textbox", "slider", "spinbutton"].includes(n.role?.value ?? ""));
    expect(controls.length).toBeGreaterThanOrEqual(10);
    expect(controls.filter((n) => !n.name?.value).map((n) => n.role?.value)).toEqual([]);
    await browser.send("Emulation.setDeviceMetricsOverride", { width: 360, height: 640, deviceScaleFactor: 1, mobile: true });
    expect(await browser.value<number>("document.documentElement.scrollWidth")).toBeLessThanOrEqual(360);
  });
  test("nothing was refused or thrown on the way", () => {
    // The browser itself reports the one request that was answered with 400.
    expect(browser.complaints.filter((c) => !/status of 400/.test(c))).toEqual([]);
  });
});
