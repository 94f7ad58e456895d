// Reference-counted KV pages of one pool: which ids are free, and how many owners each has. Knows nothing of their contents.
import { ResourceError } from "../errors.ts";

export const PAGE_TOKENS = 64;

/** Pages that `tokens` tokens take. */
export const pagesFor = (tokens: number): number => Math.ceil(tokens / PAGE_TOKENS);

/** Hands out page ids 0 ... capacity - 1; a page returns when its last owner lets go. */
export class PageAllocator {
  readonly #owners: Uint32Array;
  readonly #free: number[] = [];
  #fresh = 0;
  constructor(readonly capacity: number, private readonly commit: (pages: number) => void) {
    this.#owners = new Uint32Array(new ArrayBuffer(Math.max(1, capacity) * 4));
  }
  /** Pages that nobody owns. */
  get available(): number { return this.#free.length + this.capacity - this.#fresh; }
  get used(): number { return this.capacity - this.available; }

  /** A page with one owner. Throws ResourceError `kv_full` when none is left. */
  take(): number {
    let page = this.#free.pop();
    if (page === undefined) {
      if (this.#fresh === this.capacity) throw new ResourceError("kv_full", `All ${this.capacity} KV pages are in use`, "Use a larger context (--ctx), or fewer sequences.");
      this.commit(this.#fresh + 1);
      page = this.#fresh++;
    }
    this.#owners[page] = 1;
    return page;
  }
  share(page: number): number { this.#owners[page]!++; return page; }
  shared(page: number): boolean { return this.#owners[page]! > 1; }
  release(page: number): void {
    if (--this.#owners[page]! === 0) this.#free.push(page);
  }
}
