// Submits: what a slot must hold (else nothing is applied), waiting and polling, slots in flight, cancelling, serials.
import { describe, expect, test } from "bun:test";
import { KernelError } from "../../src/errors.ts";
import { Device, Stream, type StepSlot } from "../../src/native/objects.ts";
import { BAO } from "../../src/native/symbols.ts";
import { allowTime, fill, ON_CPU, oracle, Random, Rig, type StepSpec, subject, TEST_BACKEND } from "./harness.ts";

allowTime();

const VOCABULARY = 30, ROWS = 6;

/** A recording that reads ids, positions, pages (tables 0 and 1, the latter through a window of 70) and samplers, and draws. */
function rigged(device: Device = subject()): Rig {
  const rig = new Rig(device, { maxRows: 8, maxOutputs: 4, maxSequences: 4, vocabulary: VOCABULARY, maxBias: 6, pages: [4, 4] });
  const w = rig.weight({ dtype: BAO.F32, rows: VOCABULARY, columns: 32, use: BAO.USE_ROWS | BAO.USE_MATMUL });
  const x = rig.view(ROWS, 1, 32), y = rig.view(ROWS, 1, 32), last = rig.view(3, 1, 32, { rowsOf: "output" }), logits = rig.view(3, 1, VOCABULARY, { rowsOf: "output" });
  const pools = [0, 1].map((table) => rig.pool({ table, kvHeads: 1, headDim: 32, type: "f32", pages: 3, maxPages: 8 }));
  rig.stream.record(() => {
    rig.r.embed(x, w, 1);
    pools.forEach((pool, i) => { rig.r.kvAppend(pool, 0, x, x); rig.r.attention(y, x, pool, 0, i === 0 ? 0 : 70, 1); });
    rig.r.gatherRows(last, y);
    rig.r.matmul(logits, last, w);
    rig.r.logitsProcess(logits, undefined);
    rig.r.sample(logits);
  });
  return rig;
}

const GOOD: StepSpec = {
  rows: [{ sequence: 2, position: 62, id: 3 }, { sequence: 2, position: 63, id: 4 }, { sequence: 2, position: 64, id: 29 }, { sequence: 0, position: 0, id: 0 }],
  outputs: [2, 3], samplers: [{ temperature: 1, bias: [0, 2] }, {}],
  pages: [[0, 2, 0, 2], [0, 2, 1, 0], [1, 2, 0, 1], [1, 2, 1, 2], [0, 0, 0, 1], [1, 0, 0, 0]],
  sequences: [{ sequence: 2, length: 62, next: 3, history: [1, 2, 3] }, { sequence: 0, length: 0, next: 0 }],
  bias: [[5, 1], [6, -Infinity]],
};

const refuse = (rig: Rig, label: string, stream = rig.stream): void => {
  let error: unknown;
  try { stream.submit(0); } catch (e) { error = e; }
  if (!(error instanceof KernelError) || error.code !== "invalid_argument") throw new Error(`${label}: expected a refusal, got ${error === undefined ? "an accepted submit" : String(error)}`);
  expect(error.message.length).toBeGreaterThan(20);
};

// Name, and what is done to a slot that holds GOOD.
const S = BAO.SAMPLER_WORDS;
const DAMAGE: Record<string, (s: StepSlot) => void> = {
  "negative rows": (s) => { s.header[BAO.HEADER_ROWS] = -1; },
  "more rows than the step holds": (s) => { s.header[BAO.HEADER_ROWS] = 9; },
  "more rows than a view of the recording holds": (s) => { s.header[BAO.HEADER_ROWS] = ROWS + 1; for (let i = 4; i < 7; i++) { s.rowSequence[i] = 0; s.rowPosition[i] = i - 3; s.rowId[i] = 1; } },
  "negative outputs": (s) => { s.header[BAO.HEADER_OUTPUTS] = -1; },
  "more outputs than the step holds": (s) => { s.header[BAO.HEADER_OUTPUTS] = 5; },
  "more outputs than a view of the recording holds": (s) => { s.header[BAO.HEADER_OUTPUTS] = 4; s.outputRow.set([0, 1, 2, 3]); },
  "negative page deltas": (s) => { s.header[BAO.HEADER_PAGE_DELTAS] = -1; },
  "page deltas beyond the field": (s) => { s.header[BAO.HEADER_PAGE_DELTAS] = 0x7fffffff; },
  "sequence deltas beyond the field": (s) => { s.header[BAO.HEADER_SEQUENCE_DELTAS] = 5; },
  "negative sequence deltas": (s) => { s.header[BAO.HEADER_SEQUENCE_DELTAS] = -7; },
  "serial 0": (s) => { s.header[BAO.HEADER_SERIAL] = 0; },
  "sequence out of range": (s) => { s.rowSequence[3] = 4; },
  "negative sequence": (s) => { s.rowSequence[3] = -1; },
  "id out of the vocabulary": (s) => { s.rowId[1] = VOCABULARY; },
  "negative id": (s) => { s.rowId[1] = -2; },
  "id -1 with a position": (s) => { s.rowId[3] = -1; },
  "position -1 with an id": (s) => { s.rowPosition[3] = -1; },
  "negative position": (s) => { s.rowPosition[3] = -2; },
  "position beyond the page table": (s) => { s.rowPosition[3] = 256; },
  "position at the end of int32": (s) => { s.rowPosition[3] = 0x7fffffff; },
  "positions with a gap": (s) => { s.rowPosition[2] = 65; },
  "positions that repeat": (s) => { s.rowPosition[2] = 63; },
  "positions that fall": (s) => { s.rowPosition.set([64, 63, 62]); },
  "rows of a sequence apart": (s) => { s.rowSequence.set([2, 2, 0, 2]); s.rowPosition.set([62, 63, 0, 64]); },
  "a row marked -1 beside others": (s) => { s.rowId[2] = -1; s.rowPosition[2] = -1; },
  "output row out of range": (s) => { s.outputRow[1] = 4; },
  "negative output row": (s) => { s.outputRow[0] = -1; },
  "output rows that fall": (s) => { s.outputRow.set([3, 2]); },
  "output rows that repeat": (s) => { s.outputRow.set([3, 3]); },
  "an output that advances and is not the last row": (s) => { s.outputRow[0] = 1; },
  "two outputs that advance one sequence": (s) => { s.outputRow.set([1, 2]); },
  "page delta of an unused table": (s) => { s.pageDelta[0] = 2; },
  "page delta of no table": (s) => { s.pageDelta[0] = -1; },
  "page delta of no sequence": (s) => { s.pageDelta[1] = 4; },
  "page delta of no index": (s) => { s.pageDelta[2] = 4; },
  "page delta of a negative index": (s) => { s.pageDelta[2] = -1; },
  "page delta below -1": (s) => { s.pageDelta[3] = -2; },
  "a page that is not committed": (s) => { s.pageDelta[3] = 3; },
  "a page beyond the pool": (s) => { s.pageDelta[3] = 0x7fffffff; },
  "a page that is unset": (s) => { s.pageDelta[3] = -1; },
  "a page in the window that is unset": (s) => { s.pageDelta[2 * 4 + 3] = -1; },
  "a place twice in the page deltas": (s) => { s.pageDelta.set([0, 2, 0, 1], 4 * 4); },
  "a sequence twice in the sequence deltas": (s) => { s.sequenceDelta[68] = 2; },
  "sequence delta of no sequence": (s) => { s.sequenceDelta[0] = 4; },
  "negative length": (s) => { s.sequenceDelta[1] = -1; },
  "next id out of the vocabulary": (s) => { s.sequenceDelta[2] = VOCABULARY; },
  "next id below -1": (s) => { s.sequenceDelta[2] = -2; },
  "65 recent ids": (s) => { s.sequenceDelta[3] = 65; },
  "negative number of recent ids": (s) => { s.sequenceDelta[3] = -1; },
  "recent id out of the vocabulary": (s) => { s.sequenceDelta[6] = VOCABULARY; },
  "negative recent id": (s) => { s.sequenceDelta[4] = -1; },
  "negative temperature": (s) => { s.samplerF32[BAO.SAMPLER_TEMPERATURE] = -0.5; },
  "temperature NaN": (s) => { s.samplerF32[S + BAO.SAMPLER_TEMPERATURE] = NaN; },
  "temperature infinite": (s) => { s.samplerF32[BAO.SAMPLER_TEMPERATURE] = Infinity; },
  "negative top-k": (s) => { s.sampler[BAO.SAMPLER_TOP_K] = -1; },
  "top-p 0": (s) => { s.samplerF32[BAO.SAMPLER_TOP_P] = 0; },
  "top-p above 1": (s) => { s.samplerF32[BAO.SAMPLER_TOP_P] = 1.5; },
  "top-p NaN": (s) => { s.samplerF32[BAO.SAMPLER_TOP_P] = NaN; },
  "min-p negative": (s) => { s.samplerF32[BAO.SAMPLER_MIN_P] = -0.1; },
  "min-p above 1": (s) => { s.samplerF32[BAO.SAMPLER_MIN_P] = 1.01; },
  "repetition penalty 0": (s) => { s.samplerF32[BAO.SAMPLER_REPETITION] = 0; },
  "repetition penalty infinite": (s) => { s.samplerF32[BAO.SAMPLER_REPETITION] = Infinity; },
  "presence penalty NaN": (s) => { s.samplerF32[BAO.SAMPLER_PRESENCE] = NaN; },
  "frequency penalty infinite": (s) => { s.samplerF32[BAO.SAMPLER_FREQUENCY] = -Infinity; },
  "21 log-probabilities": (s) => { s.sampler[BAO.SAMPLER_TOP_LOGPROBS] = 21; },
  "-2 log-probabilities": (s) => { s.sampler[BAO.SAMPLER_TOP_LOGPROBS] = -2; },
  "unknown flags": (s) => { s.sampler[BAO.SAMPLER_FLAGS] = 4; },
  "bias range beyond the field": (s) => { s.sampler[BAO.SAMPLER_BIAS_COUNT] = 7; },
  "bias range that overflows": (s) => { s.sampler[BAO.SAMPLER_BIAS_START] = 0x7fffffff; },
  "negative bias start": (s) => { s.sampler[BAO.SAMPLER_BIAS_START] = -1; },
  "negative bias count": (s) => { s.sampler[BAO.SAMPLER_BIAS_COUNT] = -1; },
  "bias id out of the vocabulary": (s) => { s.bias[0] = VOCABULARY; },
  "bias NaN": (s) => { s.biasF32[1] = NaN; },
  "bias +infinity": (s) => { s.biasF32[1] = Infinity; },
};

describe("a slot that cannot be is refused before anything is applied", () => {
  test("the good slot is accepted", () => {
    const rig = rigged();
    rig.submit(GOOD);
    expect(rig.step.slots[0]!.result[BAO.RESULT_FINITE]).toBe(1);
    rig.dispose();
  });

  for (const [name, damage] of Object.entries(DAMAGE)) {
    test(name, () => {
      const rig = rigged(), slot = rig.step.slots[0]!;
      fill(slot, GOOD, VOCABULARY);
      damage(slot);
      refuse(rig, name);
      // Neither pages nor sequences of the refused slot were applied: without them the same rows are refused, and -1 rows have no next id.
      fill(slot, { ...GOOD, pages: [], sequences: [] }, VOCABULARY);
      refuse(rig, `${name}: rows without pages`);
      fill(slot, { rows: [{ sequence: 2 }], pages: GOOD.pages! }, VOCABULARY);
      let ended: string = "";
      try { rig.stream.submit(0); ended = rig.stream.wait(0, 10_000); } catch (e) { ended = (e as KernelError).code; }
      expect(ended).toBe("invalid_argument");
      // And a good one is accepted afterwards.
      rig.submit(GOOD);
      rig.dispose();
    });
  }

  test("words changed after the submit do not reach the ops", () => {
    const rig = rigged(subject({ threads: 1 })), slot = rig.step.slots[0]!;
    rig.submit(GOOD);
    const expected = [...slot.result.subarray(0, 2 * BAO.RESULT_WORDS)];
    fill(slot, GOOD, VOCABULARY);
    rig.stream.submit(0);
    slot.rowId.fill(0x7fffffff);
    slot.rowPosition.fill(-0x80000000);
    slot.rowSequence.fill(0x7fffffff);
    slot.outputRow.fill(0x7fffffff);
    slot.pageDelta.fill(0x7fffffff);
    slot.sampler.fill(-1);
    expect(rig.stream.wait(0, 10_000)).toBe("done");
    if (ON_CPU) expect([...slot.result.subarray(0, 2 * BAO.RESULT_WORDS)]).toEqual(expected);
    rig.dispose();
  });

  test("any words at all: refused or run, the process lives", () => {
    const rig = rigged(), slot = rig.step.slots[0]!, random = new Random(4711);
    const fields = [slot.header, slot.rowSequence, slot.rowId, slot.rowPosition, slot.outputRow, slot.sampler, slot.pageDelta, slot.sequenceDelta, slot.bias];
    const odd = [0, 1, 2, 3, 4, 5, 29, 30, 63, 64, 65, 68, 255, 256, -1, -2, 0x7fffffff, -0x80000000, 0x7fc00000, 0x7f800000, 0x3f800000];
    let accepted = 0;
    for (let i = 0; i < 3000; i++) {
      fill(slot, GOOD, VOCABULARY);
      for (let n = random.below(3) + 1; n > 0; n--) {
        const field = fields[random.below(fields.length)]!, at = random.below(Math.min(field.length, 20));
        if (field === slot.header && at === BAO.HEADER_SERIAL) continue;
        field[at] = random.below(4) === 0 ? random.u32() : odd[random.below(odd.length)]!;
      }
      try { rig.stream.submit(0); } catch (e) { expect(e).toBeInstanceOf(KernelError); continue; }
      try { rig.stream.wait(0, 10_000); } catch (e) { expect(e).toBeInstanceOf(KernelError); }
      accepted++;
    }
    expect(accepted).toBeGreaterThan(300);
    expect(accepted).toBeLessThan(2900);
    rig.submit(GOOD);
    rig.dispose();
  });
});

/** A stream of many seconds of work in pieces of milliseconds: squares of a matrix. */
function longWork(rig: Rig, times: number): { stream: Stream; out: ReturnType<Rig["view"]> } {
  const n = 512, stream = rig.own(new Stream(rig.device, rig.step)), x = rig.input(new Random(1).f32(64 * n), 1, n), out = rig.view(64, 1, n), w = rig.weight({ dtype: BAO.F32, rows: n, columns: n, scale: 0.04 });
  stream.record(() => { for (let i = 0; i < times; i++) { rig.device.k.matmul(stream.handle, out.handle, x.handle, w.handle); rig.device.k.copy(stream.handle, x.handle, out.handle); } });
  return { stream, out };
}
const ROWS64: StepSpec = { rows: Array.from({ length: 64 }, (_, position) => ({ sequence: 0, position, id: 0 })), outputs: [] };

describe("waiting", () => {
  test("wait(0) gives pending while work remains, then done; the error of no failure is OK", () => {
    for (const threads of [1, 2]) {
      const rig = new Rig(subject({ threads })), { stream } = longWork(rig, 40), { k } = rig.device;
      fill(rig.step.slots[1]!, ROWS64, 97);
      stream.submit(1);
      expect(stream.wait(1, 0)).toBe("pending");
      expect(k.streamError(stream.handle, 1)).toBe(BAO.PENDING);
      expect(k.wait(stream.handle, 0, 0)).toBe(BAO.OK); // the other slot has nothing to wait for
      expect(() => stream.submit(1)).toThrow(KernelError); // not waited for
      while (stream.wait(1, 5) === "pending");
      expect(k.streamError(stream.handle, 1)).toBe(BAO.OK);
      expect(stream.wait(1, 0)).toBe("done");
      rig.dispose();
    }
  });

  test("poll alone brings a submit to its end", () => {
    for (const threads of [1, 2]) {
      const rig = new Rig(subject({ threads })), { stream } = longWork(rig, 3), { k } = rig.device;
      fill(rig.step.slots[0]!, ROWS64, 97);
      stream.submit(0);
      let polls = 0, status: number = BAO.PENDING;
      for (const end = Date.now() + 30_000; status === BAO.PENDING && Date.now() < end; polls++) { status = k.poll(stream.handle, 0); if (status === BAO.PENDING && threads > 1) Bun.sleepSync(0.1); }
      expect(status).toBe(BAO.OK);
      if (threads === 1 && ON_CPU) expect(polls).toBeGreaterThan(3); // one piece each
      rig.dispose();
    }
  });

  test("two slots in flight run in order; profile gives the time of each op", () => {
    const rig = new Rig(subject()), x = rig.input(Float32Array.of(1, 1), 1, 1), s = rig.stream.handle, { k } = rig.device;
    rig.stream.record(() => rig.r.scale(x, x, 3));
    k.streamProfile(s, 1);
    for (const [slot, rows] of [[0, 1], [1, 2]] as const) { fill(rig.step.slots[slot]!, { rows, outputs: [] }, 97); rig.stream.submit(slot); }
    expect(rig.stream.wait(1, 10_000)).toBe("done");
    expect(rig.stream.wait(0, 10_000)).toBe("done");
    expect([...rig.f32(x)]).toEqual([9, 3]);
    expect(k.streamTime(s, 0)).toBeGreaterThan(0);
    rig.dispose();
  });

  test("reads, writes and frees wait for the work that may touch them", () => {
    const rig = new Rig(subject()), { stream, out } = longWork(rig, 20);
    rig.submit(ROWS64, stream);
    const first = rig.f32(out);
    expect(first.some((v) => v !== 0 && Number.isFinite(v))).toBe(true);
    fill(rig.step.slots[0]!, ROWS64, 97);
    stream.submit(0);
    const during = rig.f32(out); // a read in the middle would be a mixture of two rounds
    expect(stream.wait(0, 0)).toBe("done");
    expect(rig.f32(out)).toEqual(during);
    fill(rig.step.slots[0]!, ROWS64, 97);
    stream.submit(0);
    rig.dispose(); // with work in flight
  });

  test("a device closed with work in flight ends it", () => {
    const device = new Device({ backend: TEST_BACKEND, threads: 2, precision: "exact" }), rig = new Rig(device), { stream } = longWork(rig, 2000);
    fill(rig.step.slots[0]!, ROWS64, 97);
    stream.submit(0);
    const began = Date.now();
    device.dispose();
    expect(Date.now() - began).toBeLessThan(process.env["METAL_EMULATOR_CHECKED"] ? 200_000 : 20_000); // the whole work would take far longer
    expect(() => rig.stream.submit(0)).toThrow(KernelError);
  });
});

describe("cancelling", () => {
  test("the slot's serial in its cancel word ends the step; any other value does nothing; later submits run", () => {
    for (const threads of [1, 2]) {
      const rig = new Rig(subject({ threads })), { stream } = longWork(rig, 300), slot = rig.step.slots[0]!, { k } = rig.device;
      fill(slot, ROWS64, 97);
      const serial = slot.header[BAO.HEADER_SERIAL]!;
      stream.submit(0);
      expect(stream.wait(0, 1)).toBe("pending");
      Atomics.store(slot.header, BAO.HEADER_CANCEL, serial);
      expect(stream.wait(0, 30_000)).toBe("cancelled");
      expect(k.streamError(stream.handle, 0) & 0xff).toBe(BAO.CANCELLED);
      const short = longWork(rig, 1);
      fill(slot, ROWS64, 97);
      slot.header[BAO.HEADER_CANCEL] = serial; // of the former step
      short.stream.submit(0);
      expect(short.stream.wait(0, 30_000)).toBe("done");
      rig.dispose();
    }
  });

  test("sample of a cancelled step advances nothing, deltas stay applied", () => {
    for (const device of [oracle(), subject()]) {
      const rig = new Rig(device, { vocabulary: VOCABULARY }), slot = rig.step.slots[0]!;
      const w = rig.weight({ dtype: BAO.F32, rows: VOCABULARY, columns: VOCABULARY, use: BAO.USE_ROWS, scale: 2 }), x = rig.view(4, 1, VOCABULARY), logits = rig.view(4, 1, VOCABULARY, { rowsOf: "output" });
      const sample = rig.own(new Stream(device, rig.step));
      rig.stream.record(() => { rig.r.embed(x, w, 1); rig.r.gatherRows(logits, x); });
      sample.record(() => device.k.sample(sample.handle, logits.handle));
      const start: StepSpec = { rows: [{ sequence: 1 }], sequences: [{ sequence: 1, length: 7, next: 5 }] };
      const id = (): number => slot.result[BAO.RESULT_ID]!;
      // What one and two steps from id 5 give.
      rig.submit(start);
      rig.resubmit(sample);
      const first = id();
      rig.submit({ rows: [{ sequence: 1 }] });
      rig.resubmit(sample);
      const second = id();
      // A step cancelled before its forward pass: the delta (back to id 5) counts, the draw does not.
      fill(slot, start, VOCABULARY);
      slot.header[BAO.HEADER_CANCEL] = slot.header[BAO.HEADER_SERIAL]!;
      rig.stream.submit(0);
      expect(rig.stream.wait(0, 10_000)).toBe("cancelled");
      sample.submit(0);
      expect(sample.wait(0, 10_000)).toBe("cancelled");
      rig.submit({ rows: [{ sequence: 1 }] });
      rig.resubmit(sample);
      expect(id()).toBe(first);
      rig.submit({ rows: [{ sequence: 1 }] });
      rig.resubmit(sample);
      expect(id()).toBe(second);
      rig.dispose();
    }
  });
});
