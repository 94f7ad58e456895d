// The page at /: one file with its style and script inside, and headers that allow just these and calls to this server.
import page from "./page.html" with { type: "text" };

const text = page as unknown as string;
const digest = (tag: string): string => `'sha256-${new Bun.CryptoHasher("sha256").update(text.slice(text.indexOf(`<${tag}>`) + tag.length + 2, text.indexOf(`</${tag}>`))).digest("base64")}'`;
const POLICY = `default-src 'none'; script-src ${digest("script")}; style-src ${digest("style")}; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'`;

/** The page as a response. */
export function pageResponse(): Response {
  return new Response(text, { headers: { "Content-Type": "text/html; charset=utf-8", "Content-Security-Policy": POLICY, "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer" } });
}
