// A headless Chromium spoken to over its debugging protocol: enough to use a page as a person does. Needs no package.
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

/** The browser's program, if this machine has one. */
export const chromium = (): string | null => ["chromium", "chromium-browser", "google-chrome", "chrome"].map((name) => Bun.which(name)).find((path) => path !== null) ?? null;

export class Browser implements AsyncDisposable {
  readonly #waiting = new Map<number, { done(result: any): void; fail(e: Error): void }>(); // eslint-disable-line
  /** Errors and refusals that the page's console has shown. */
  readonly complaints: string[] = [];
  #id = 0;
  #session: string | undefined;
  private constructor(private readonly child: Bun.Subprocess, private readonly folder: string, private readonly socket: WebSocket) {
    socket.onmessage = ({ data }) => this.#receive(JSON.parse(String(data)));
  }

  /** Opens `url` in a window of the given size. */
  static async open(url: string, size = { width: 1000, height: 700 }): Promise<Browser> {
    const folder = mkdtempSync(join(tmpdir(), "bao-browser-"));
    // The page is our own, and containers do not allow the browser's sandbox.
    const child = Bun.spawn([chromium()!, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--disable-background-networking", "--remote-debugging-port=0", `--user-data-dir=${folder}`, `--window-size=${size.width},${size.height}`, "about:blank"], { stdin: "ignore", stdout: "ignore", stderr: "pipe" });
    let said = "";
    const decoder = new TextDecoder();
    for await (const bytes of child.stderr) {
      said += decoder.decode(bytes, { stream: true });
      if (said.includes("ws://")) break;
    }
    const address = /ws:\/\/\S+/.exec(said)?.[0];
    if (address === undefined) throw new Error(`the browser did not start: ${said}`);
    const socket = new WebSocket(address);
    await new Promise((resolve, reject) => { socket.onopen = resolve; socket.onerror = reject; });
    const browser = new Browser(child, folder, socket);
    const { targetId } = await browser.send("Target.createTarget", { url: "about:blank" });
    browser.#session = (await browser.send("Target.attachToTarget", { targetId, flatten: true })).sessionId;
    await Promise.all(["Page.enable", "Runtime.enable", "Log.enable"].map((method) => browser.send(method)));
    await browser.send("Page.navigate", { url });
    await browser.until("document.readyState === 'complete'");
    return browser;
  }
  send(method: string, params: object = {}): Promise<any> { // eslint-disable-line
    const id = ++this.#id;
    this.socket.send(JSON.stringify({ id, method, params, ...(this.#session === undefined ? {} : { sessionId: this.#session }) }));
    return new Promise((done, fail) => this.#waiting.set(id, { done, fail }));
  }
  #receive(message: { id?: number; result?: unknown; error?: { message: string }; method?: string; params?: any }): void { // eslint-disable-line
    if (message.method === "Runtime.exceptionThrown") this.complaints.push(message.params.exceptionDetails.exception?.description ?? message.params.exceptionDetails.text);
    if (message.method === "Log.entryAdded" && message.params.entry.level === "error") this.complaints.push(message.params.entry.text);
    const waiting = this.#waiting.get(message.id ?? 0);
    if (!waiting) return;
    this.#waiting.delete(message.id!);
    if (message.error) waiting.fail(new Error(message.error.message)); else waiting.done(message.result);
  }
  /** The value of an expression in the page. */
  async value<T>(expression: string): Promise<T> {
    const { result, exceptionDetails } = await this.send("Runtime.evaluate", { expression, returnByValue: true, awaitPromise: true });
    if (exceptionDetails) throw new Error(exceptionDetails.exception?.description ?? exceptionDetails.text);
    return result.value as T;
  }
  /** Waits until an expression is true. */
  async until(expression: string, ms = 15_000): Promise<void> {
    const end = performance.now() + ms;
    while (!(await this.value<boolean>(`!!(${expression})`))) {
      if (performance.now() > end) throw new Error(`still not: ${expression}`);
      await Bun.sleep(10);
    }
  }
  /** Types into whatever has the focus. */
  async type(text: string): Promise<void> { await this.send("Input.insertText", { text }); }
  async press(key: "Enter" | "Tab"): Promise<void> {
    const code = key === "Enter" ? 13 : 9;
    await this.send("Input.dispatchKeyEvent", { type: "keyDown", key, code: key, windowsVirtualKeyCode: code, ...(key === "Enter" ? { text: "\r" } : {}) });
    await this.send("Input.dispatchKeyEvent", { type: "keyUp", key, code: key, windowsVirtualKeyCode: code });
  }
  async click(selector: string): Promise<void> {
    const { x, y } = await this.value<{ x: number; y: number }>(`(() => { const e = document.querySelector(${JSON.stringify(selector)}); e.scrollIntoView({ block: "nearest" }); const r = e.getBoundingClientRect(); return { x: r.x + r.width / 2, y: r.y + r.height / 2 }; })()`);
    for (const type of ["mousePressed", "mouseReleased"]) await this.send("Input.dispatchMouseEvent", { type, x, y, button: "left", clickCount: 1 });
  }
  /** What the window shows, as a PNG. */
  async picture(): Promise<Buffer> { return Buffer.from((await this.send("Page.captureScreenshot")).data, "base64"); }
  async [Symbol.asyncDispose](): Promise<void> {
    this.socket.close();
    this.child.kill("SIGKILL");
    await this.child.exited;
    rmSync(this.folder, { recursive: true, force: true, maxRetries: 5 });
  }
}
