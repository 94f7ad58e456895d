// What /metrics reports, in Prometheus' text form: requests, tokens, times and the queue. Own registry, so that several servers in one process stay apart.
import { Counter, Gauge, Histogram, Registry } from "prom-client";
import type { Usage } from "../engine/generate.ts";
import type { Admission } from "./admission.ts";

const FIRST_TOKEN = [0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60];
const NEXT_PART = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1];
const WHOLE = [0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 120, 300];

export class Metrics {
  readonly registry = new Registry();
  readonly #registers = [this.registry];
  readonly requests = new Counter({ name: "bao_http_requests_total", help: "Requests by route and status; 499 = the client went away", labelNames: ["route", "status"] as const, registers: this.#registers });
  readonly #prompt = new Counter({ name: "bao_prompt_tokens_total", help: "Prompt tokens of finished answers, cached ones included, and of embeddings", registers: this.#registers });
  readonly #cached = new Counter({ name: "bao_cached_tokens_total", help: "Prompt tokens that were in the cache already", registers: this.#registers });
  readonly #completion = new Counter({ name: "bao_completion_tokens_total", help: "Tokens generated in finished answers", registers: this.#registers });
  readonly firstPart = new Histogram({ name: "bao_first_part_seconds", help: "From the request to an answer's first part, waiting included", buckets: FIRST_TOKEN, registers: this.#registers });
  readonly nextPart = new Histogram({ name: "bao_between_parts_seconds", help: "Between two parts of one answer", buckets: NEXT_PART, registers: this.#registers });
  readonly answer = new Histogram({ name: "bao_answer_seconds", help: "From the request to the end of its answers", buckets: WHOLE, registers: this.#registers });

  constructor(admission: Admission) {
    const gauge = (name: string, help: string, read: () => number): void => {
      new Gauge({ name, help, registers: this.#registers, collect() { this.set(read()); } });
    };
    gauge("bao_answers_running", "Answers being computed", () => admission.running);
    gauge("bao_answers_waiting", "Answers waiting for their turn", () => admission.waiting);
    gauge("process_resident_memory_bytes", "Resident memory of the process", () => process.memoryUsage.rss());
    gauge("process_uptime_seconds", "Seconds since the process started", () => process.uptime());
  }
  promptTokens(n: number): void { this.#prompt.inc(n); }
  count(usage: Usage): void {
    this.#prompt.inc(usage.promptTokens);
    this.#cached.inc(usage.cachedTokens);
    this.#completion.inc(usage.completionTokens);
  }
}
