// How many answers may be running or waiting at once. Beyond that a request is told when to come back; nothing is ever queued without bound.
import { ApiError } from "./errors.ts";

export class Admission {
  #inside = 0;
  /** Seconds that an answer takes, a moving average: what Retry-After is reckoned from. */
  #seconds = 1;
  /** `parallel` answers are computed at the same time, `queue` more may wait. */
  constructor(readonly parallel: number, readonly queue: number) {}

  get running(): number { return Math.min(this.#inside, this.parallel); }
  get waiting(): number { return Math.max(0, this.#inside - this.parallel); }

  /** Takes `places` until the result is disposed of. Throws ApiError 429 with Retry-After when there are not as many. */
  enter(places: number): Disposable {
    const most = this.parallel + this.queue;
    if (places > most) throw new ApiError(400, "too_many_answers", `This request asks for ${places} answers, the server takes ${most} at a time.`);
    if (this.#inside + places > most) {
      const seconds = Math.min(60, Math.max(1, Math.ceil((this.#seconds * (this.waiting + 1)) / this.parallel)));
      throw new ApiError(429, "queue_full", `${this.running} answers are running and ${this.waiting} are waiting, which is all that this server takes. Try again in ${seconds} s.`, null, { headers: { "Retry-After": String(seconds) } });
    }
    this.#inside += places;
    const start = performance.now();
    let left = false;
    return {
      [Symbol.dispose]: () => {
        if (left) return;
        left = true;
        this.#inside -= places;
        this.#seconds += ((performance.now() - start) / 1000 - this.#seconds) * 0.1;
      },
    };
  }
}
