// Bad arguments of everything but ops give typed errors that name function and argument, and never end the process: stale, foreign and wrong
// handles, sizes that are none, objects freed under a recording. operands.test.ts does the same for ops.
import { describe, expect, test } from "bun:test";
import { DisposedError } from "../../src/errors.ts";
import { openLibrary } from "../../src/native/library.ts";
import { Device, Stream } from "../../src/native/objects.ts";
import { BAO } from "../../src/native/symbols.ts";
import { allowTime, Random, Rig, subject, TEST_BACKEND } from "./harness.ts";
import { refused, using } from "./refused.ts";

allowTime();

const { k } = openLibrary(TEST_BACKEND);
const SIZES = [NaN, -1, 0.5, Infinity, -Infinity, 2 ** 53 + 2, 1e300];

describe("library", () => {
  test("names itself", () => {
    expect(k.abiVersion()).toBe(BAO.ABI_VERSION);
    expect(k.backend()).toBe(TEST_BACKEND);
    expect(k.deviceCount()).toBeGreaterThan(0);
    expect(["OK", "INVALID", "OUT_OF_MEMORY", "UNSUPPORTED", "DEVICE", "INTERNAL", "PENDING", "CANCELLED"].map((_, i) => k.statusName(i | 0x300))).toEqual(["OK", "INVALID", "OUT_OF_MEMORY", "UNSUPPORTED", "DEVICE", "INTERNAL", "PENDING", "CANCELLED"]);
    for (const unknown of [8, 255, -1]) expect(k.statusName(unknown).length).toBeGreaterThan(0);
  });

  test("the last error is the calling thread's", () => {
    refused(() => k.deviceOpen(-1, 1, 0, 0, 0));
    expect(k.lastError()).toContain("bao_device_open");
    expect(k.lastStatus() & 0xff).toBe(BAO.INVALID);
  });
});

describe("device", () => {
  test("options out of range", () => {
    for (const index of [-1, 1000, -0x80000000]) refused(() => k.deviceOpen(index, 1, 0, 0, 0), 1);
    if (TEST_BACKEND === "cpu") for (const threads of [-1, 100_000]) refused(() => k.deviceOpen(0, threads, 0, 0, 0), 2);
    for (const isa of [-1, 5, 99]) refused(() => k.deviceOpen(0, 1, isa, 0, 0), 3);
    for (const precision of [-1, 4, 99]) refused(() => k.deviceOpen(0, 1, 0, precision, 0), 4);
    for (const flags of [-1, 4, 1024]) refused(() => k.deviceOpen(0, 1, 0, 0, flags), 5);
  });

  test("deterministic: batch-invariant, or UNSUPPORTED", () => {
    try {
      const device = k.deviceOpen(0, 1, BAO.ISA_AUTO, BAO.FAST, BAO.OPEN_DETERMINISTIC);
      expect(k.caps(device) & BAO.CAP_BATCH_INVARIANT).not.toBe(0);
      k.deviceClose(device);
    } catch (e) {
      expect(e).toMatchObject({ code: "device_unsupported" });
      expect(TEST_BACKEND).not.toBe("cpu");
    }
  });

  test("says what it is", () => {
    const device = subject();
    expect(device.info.backend).toBe(TEST_BACKEND);
    expect(device.info.precision).toBe("exact");
    expect(device.info.memory).toBeGreaterThan(1e6);
    expect(device.info.name.length).toBeGreaterThan(0);
    for (const what of ["total", "free", "buffers", "kv", "scratch", "weights"] as const) expect(device.memory(what)).toBeGreaterThanOrEqual(0);
    expect(k.memory(device.handle, 99)).toBe(-1);
    expect(k.memory(0, 0)).toBe(-1);
    expect(k.caps(0)).toBe(0);
    expect(k.deviceInfo(0)).toBe("");
  });

  test("counts what it holds, and gives it back", () => {
    const device = new Device({ backend: TEST_BACKEND, threads: 1, precision: "exact" });
    const before = device.memory("buffers"), buffer = device.buffer(1 << 20);
    expect(device.memory("buffers") - before).toBeGreaterThanOrEqual(1 << 20);
    buffer.dispose();
    expect(device.memory("buffers")).toBe(before);
    const pool = k.kvPoolCreate(device.handle, 0, 2, 1, 64, BAO.F32, BAO.KV_PLAIN, 0, 8);
    const empty = device.memory("kv");
    k.kvPoolCommit(pool, 3);
    expect(device.memory("kv") - empty).toBeGreaterThanOrEqual(3 * k.kvPageBytes(pool));
    k.kvPoolFree(pool);
    expect(device.memory("kv")).toBeLessThanOrEqual(empty);
    device.dispose();
  });

  test("supports answers for every op and type, and says why not", () => {
    const device = subject();
    for (let op = 1; op < BAO.OP_COUNT; op++) expect([0, 1]).toContain(k.supports(device.handle, op, BAO.F32, 0, 0));
    for (const op of [0, -1, BAO.OP_COUNT, 1e6]) expect(k.supports(device.handle, op, 0, 0, 0)).toBe(0);
    expect(k.supports(device.handle, BAO.OP_MATMUL, 4, 32, 1)).toBe(0);
    expect(k.supports(device.handle, BAO.OP_MATMUL, BAO.Q4_K, 255, 1)).toBe(0);
    expect(k.lastError()).not.toBe("");
    expect(k.supports(device.handle, BAO.OP_ATTENTION, BAO.Q4_K, 64, 1)).toBe(0);
    expect(k.supports(0, BAO.OP_MATMUL, BAO.F32, 32, 1)).toBe(0);
  });

  test("everything of a closed device is stale", () => {
    const device = new Device({ backend: TEST_BACKEND, threads: 2, precision: "exact" }), rig = new Rig(device);
    const x = rig.view(3, 1, 4), vector = rig.vector(new Float32Array(new ArrayBuffer(16))), pool = rig.pool({ kvHeads: 1, headDim: 16, type: "f32", pages: 1 });
    const handles = { device: device.handle, stream: rig.stream.handle, step: rig.step.handle, view: x.handle, buffer: x.buffer.handle, vector: vector.handle, pool: pool.handle };
    rig.stream.record(() => rig.r.scale(x, x, 2));
    device.dispose();
    expect(() => device.handle).toThrow(DisposedError);
    refused(() => k.deviceClose(handles.device), 1);
    refused(() => k.bufferCreate(handles.device, 4, 0));
    refused(() => k.bufferFree(handles.buffer), 1);
    refused(() => k.viewFree(handles.view), 1);
    refused(() => k.streamBegin(handles.stream), 1);
    refused(() => k.submit(handles.stream, 0), 1);
    refused(() => k.stepFree(handles.step), 1);
    refused(() => k.kvPoolFree(handles.pool), 1);
    refused(() => k.weightFree(handles.vector), 1);
    expect(k.wait(handles.stream, 0, 0) & 0xff).toBe(BAO.INVALID);
    expect(k.poll(handles.stream, 0) & 0xff).toBe(BAO.INVALID);
    expect(k.streamError(handles.stream, 0) & 0xff).toBe(BAO.INVALID);
    expect(k.stepAddress(handles.step, 0)).toBe(0);
    expect(k.stepField(handles.step, 0)).toBe(-1);
    expect(k.caps(handles.device)).toBe(0);
  });
});

describe("handles", () => {
  test("stale, made up and of the wrong kind", () => {
    using((rig) => {
      const x = rig.view(4, 1, 8), y = rig.view(4, 1, 8), stale = rig.view(4, 1, 8);
      const old = stale.handle;
      stale.dispose();
      rig.stream.record(() => {
        const s = rig.stream.handle;
        for (const bad of [0, old, -1, 0.5, NaN, Infinity, 2 ** 53, 1, old + 2 ** 20, x.buffer.handle, rig.step.handle, s, rig.device.handle]) {
          refused(() => k.copy(s, bad, y.handle), 2);
          refused(() => k.copy(s, x.handle, bad), 3);
          if (bad !== s) refused(() => k.copy(bad, x.handle, y.handle), 1);
        }
        expect(k.streamOps(s)).toBe(0);
      });
      for (const bad of [0, old, NaN, 1e300]) {
        refused(() => k.bufferFree(bad), 1);
        refused(() => k.viewFree(bad), 1);
        refused(() => k.weightFree(bad), 1);
        refused(() => k.mapFree(bad), 1);
        refused(() => k.kvPoolFree(bad), 1);
        refused(() => k.stepFree(bad), 1);
        refused(() => k.streamFree(bad), 1);
        refused(() => k.bufferWrite(bad, 0, new Uint8Array(new ArrayBuffer(4)), 4), 1);
        expect(k.bufferAddress(bad)).toBe(0);
      }
    });
  });

  test("of another device", () => {
    const other = new Device({ backend: TEST_BACKEND, threads: 1, precision: "exact" }), there = new Rig(other);
    using((rig) => {
      const x = rig.view(2, 1, 32), y = there.view(2, 1, 32), w = there.weight({ dtype: BAO.F32, rows: 32, columns: 32 }), pool = there.pool({ kvHeads: 1, headDim: 32, type: "f32", pages: 1 });
      const s = rig.stream.handle, vector = there.vector(new Float32Array(new ArrayBuffer(128)));
      refused(() => k.streamCreate(rig.device.handle, there.step.handle));
      rig.stream.record(() => {
        refused(() => k.copy(s, x.handle, y.handle), 3);
        refused(() => k.matmul(s, x.handle, rig.view(2, 1, 32).handle, w.handle), 4);
        refused(() => k.rmsNorm(s, x.handle, x.handle, vector.handle, 1e-6, 1), 4);
        refused(() => k.attention(s, x.handle, rig.view(2, 1, 32).handle, pool.handle, 0, 0, 1), 4);
      });
    });
    there.dispose();
    other.dispose();
  });

  test("freed under a recording: the next submit fails", () => {
    using((rig) => {
      const frees: ((named: { view: ReturnType<Rig["view"]>; weight: ReturnType<Rig["weight"]>; pool: ReturnType<Rig["pool"]>; vector: ReturnType<Rig["vector"]> }) => void)[] = [
        (o) => o.view.dispose(), (o) => o.view.buffer.dispose(), (o) => o.weight.dispose(), (o) => o.pool.dispose(), (o) => o.vector.dispose(),
      ];
      for (const free of frees) {
        const view = rig.view(2, 1, 32), out = rig.view(2, 1, 32), weight = rig.weight({ dtype: BAO.Q8_0, rows: 32, columns: 32 }), pool = rig.pool({ kvHeads: 1, headDim: 32, type: "f16", pages: 1 }), vector = rig.vector(new Random(1).f32(32));
        const stream = rig.own(new Stream(rig.device, rig.step)), s = stream.handle;
        stream.record(() => {
          k.rmsNorm(s, view.handle, view.handle, vector.handle, 1e-6, 1);
          k.matmul(s, out.handle, view.handle, weight.handle);
          k.kvAppend(s, pool.handle, 0, out.handle, view.handle);
        });
        rig.submit({ rows: 2, outputs: [], pages: [[0, 0, 0, 0]] }, stream);
        free({ view, weight, pool, vector });
        refused(() => rig.submit({ rows: 2, outputs: [] }, stream), 1);
        stream.record(() => undefined); // and the stream can be used again
        rig.submit({ rows: 2, outputs: [] }, stream);
      }
    });
  });

  test("a map stays while weights of it exist", () => {
    using((rig) => {
      const w = rig.weight({ dtype: BAO.Q4_0, rows: 1, columns: 32 });
      refused(() => k.mapFree(w.map.handle), 1);
      w.dispose();
      w.map.dispose();
    });
  });
});

describe("sizes and addresses", () => {
  test("buffers and views", () => {
    using((rig) => {
      const d = rig.device.handle, buffer = rig.own(rig.device.buffer(1024)), b = buffer.handle, memory = new Uint8Array(new ArrayBuffer(2048));
      for (const bytes of [...SIZES, 0]) refused(() => k.bufferCreate(d, bytes, 0));
      for (const kind of [-1, 2, 99]) refused(() => k.bufferCreate(d, 4, kind));
      let failure: unknown;
      try { k.bufferCreate(d, 2 ** 52, 0); } catch (e) { failure = e; }
      expect(failure).toMatchObject({ code: "out_of_memory" });
      for (const bad of SIZES) {
        refused(() => k.bufferWrite(b, bad, memory, 4), 2);
        refused(() => k.bufferRead(b, bad, memory, 4), 2);
        refused(() => k.bufferWrite(b, 0, memory, bad), 4);
        refused(() => k.viewCreate(b, bad, BAO.F32, 0, 1, 1, 1, 0));
        refused(() => k.viewCreate(b, 0, BAO.F32, 0, 1, 1, 1, bad));
      }
      refused(() => k.bufferWrite(b, 1021, memory, 4), 4);
      refused(() => k.bufferWrite(b, 1025, memory, 0), 2);
      refused(() => k.bufferRead(b, 0, memory, 1025), 4);
      refused(() => k.bufferRead(b, 0, 0, 4), 3);
      k.bufferRead(b, 1024, memory, 0);
      for (const dtype of [BAO.F16, BAO.Q8_0, -1, 27]) refused(() => k.viewCreate(b, 0, dtype, 0, 1, 1, 1, 0));
      for (const rowsOf of [-1, 3]) refused(() => k.viewCreate(b, 0, BAO.F32, rowsOf, 1, 1, 1, 0));
      for (const bad of [0, -1, -0x80000000]) for (const at of [0, 1, 2]) refused(() => k.viewCreate(b, 0, BAO.F32, 0, at === 0 ? bad : 1, at === 1 ? bad : 1, at === 2 ? bad : 1, 0));
      refused(() => k.viewCreate(b, 2, BAO.F32, 0, 1, 1, 1, 0));         // not a multiple of 4
      refused(() => k.viewCreate(b, 0, BAO.F32, 0, 2, 1, 4, 12));        // stride within a row
      refused(() => k.viewCreate(b, 0, BAO.F32, 0, 2, 1, 4, 18));
      refused(() => k.viewCreate(b, 4, BAO.F32, 0, 256, 1, 1, 0));       // one element beyond
      refused(() => k.viewCreate(b, 0, BAO.F32, 0, 3, 1, 64, 512));
      for (const [d0, d1, d2] of [[0x7fffffff, 0x7fffffff, 0x7fffffff], [1, 65_536, 65_536], [0x7fffffff, 1, 1]] as const) refused(() => k.viewCreate(b, 0, BAO.F32, 0, d0, d1, d2, 0));
      k.viewFree(k.viewCreate(b, 1020, BAO.I32, 0, 1, 1, 1, 0));
      k.viewFree(k.viewCreate(b, 0, BAO.F32, 2, 2, 1, 64, 768));
    });
  });

  test("weights", () => {
    using((rig) => {
      const d = rig.device.handle, w = rig.weight({ dtype: BAO.Q4_K, rows: 4, columns: 512, offset: 16 }), m = w.map.handle, { address, bytes } = w.map.file;
      for (const bad of [...SIZES, 0]) {
        refused(() => k.mapCreate(d, bad, 16));
        refused(() => k.mapCreate(d, address, bad));
      }
      if (TEST_BACKEND === "cpu") {
        refused(() => k.mapCreate(d, 4096, 16));
        refused(() => k.mapCreate(d, address, bytes + 2 ** 30));
      }
      const create = (offset: number, dtype: number, rows: number, columns: number, experts: number, use: number) => () => k.weightCreate(d, m, offset, dtype, rows, columns, experts, use);
      for (const bad of SIZES) refused(create(bad, BAO.Q4_K, 1, 256, 1, 1));
      for (const dtype of [-1, 4, 5, 9, 15, BAO.I32, 41, 1000]) refused(create(16, dtype, 1, 256, 1, 1));
      for (const bad of [0, -1, -0x80000000]) { refused(create(16, BAO.Q4_K, bad, 256, 1, 1)); refused(create(16, BAO.Q4_K, 1, bad, 1, 1)); refused(create(16, BAO.Q4_K, 1, 256, bad, 1)); }
      for (const columns of [1, 255, 257, 128]) refused(create(16, BAO.Q4_K, 1, columns, 1, 1));
      for (const use of [0, -1, 16, 64]) refused(create(16, BAO.Q4_K, 1, 256, 1, use));
      refused(create(16, BAO.Q4_K, 5, 512, 1, 1));      // beyond the file
      refused(create(20, BAO.Q4_K, 4, 512, 1, 1));
      refused(create(16, BAO.Q4_K, 0x7fffffff, 0x7fffff00, 0x7fffffff, 1));
      refused(create(0, BAO.F32, 2, 16, 1, BAO.USE_VECTOR));
      refused(create(0, BAO.Q8_0, 1, 32, 1, BAO.USE_VECTOR));
      refused(() => k.weightCreate(d, 0, 0, BAO.F32, 1, 1, 1, 1));
      refused(() => k.vectorCreate(d, 0, 4));
      for (const length of [0, -1]) refused(() => k.vectorCreate(d, new Float32Array(new ArrayBuffer(16)), length));
      const one = rig.vector(Float32Array.of(2)), two = rig.vector(Float32Array.of(2, 3)), experts = rig.weight({ dtype: BAO.F16, rows: 2, columns: 8, experts: 3 });
      refused(() => k.weightScale(experts.handle, two.handle), 2);
      refused(() => k.weightScale(experts.handle, w.handle), 2);
      refused(() => k.weightScale(0, one.handle), 1);
      refused(() => k.weightScale(experts.handle, 0), 2);
      k.weightScale(experts.handle, one.handle);
      refused(() => k.weightScale(experts.handle, one.handle)); // once
      expect(k.weightsReady(d, 1000)).toBe(BAO.OK);
    });
  });

  test("KV pools", () => {
    using((rig) => {
      const d = rig.device.handle, create = (table: number, layers: number, heads: number, dim: number, dtype: number, layout: number, rotated: number, pages: number) => () => k.kvPoolCreate(d, table, layers, heads, dim, dtype, layout, rotated, pages);
      for (const bad of [-1, 4]) refused(create(bad, 1, 1, 64, BAO.F32, 0, 0, 1));
      for (const bad of [0, -1]) { refused(create(0, bad, 1, 64, BAO.F32, 0, 0, 1)); refused(create(0, 1, bad, 64, BAO.F32, 0, 0, 1)); refused(create(0, 1, 1, bad, BAO.F32, 0, 0, 1)); refused(create(0, 1, 1, 64, BAO.F32, 0, 0, bad)); }
      for (const dtype of [BAO.BF16, BAO.Q4_0, BAO.I32, -1]) refused(create(0, 1, 1, 64, dtype, 0, 0, 1));
      refused(create(0, 1, 1, 48, BAO.Q8_0, 0, 0, 1));
      for (const layout of [-1, 2]) refused(create(0, 1, 1, 64, BAO.F32, layout, 0, 1));
      refused(create(0, 1, 1, 64, BAO.F32, BAO.KV_PLAIN, 8, 1)); // rotated is for SHARED
      const pool = rig.pool({ kvHeads: 2, headDim: 64, type: "f16", pages: 2, maxPages: 4 }), page = new Uint8Array(new ArrayBuffer(pool.pageBytes));
      expect(pool.pageBytes).toBe(2 * 2 * 64 * 64 * 2);
      for (const pages of [-1, 5]) refused(() => k.kvPoolCommit(pool.handle, pages), 2);
      k.kvPoolCommit(pool.handle, 0); // never fewer than before
      for (const bad of [-1, 2, 4]) {
        refused(() => k.kvPageCopy(pool.handle, bad, 0, 1), 2);
        refused(() => k.kvPageCopy(pool.handle, 0, bad, 1), 3);
        refused(() => k.kvPageRead(pool.handle, bad, page, page.length), 2);
        refused(() => k.kvPageWrite(pool.handle, bad, page, page.length), 2);
      }
      for (const tokens of [-1, 65]) refused(() => k.kvPageCopy(pool.handle, 0, 1, tokens), 4);
      for (const bytes of [...SIZES, 0, page.length - 1, page.length + 1]) refused(() => k.kvPageRead(pool.handle, 0, page, bytes), 4);
      refused(() => k.kvPageRead(pool.handle, 0, 0, page.length), 3);
      expect(k.kvPageBytes(0)).toBe(0);
      // Address space, not memory, is the limit of a pool: either is refused cleanly.
      try { k.kvPoolFree(k.kvPoolCreate(d, 0, 1000, 64, 512, BAO.F32, 0, 0, 1 << 24)); } catch (e) { expect(e).toMatchObject({ code: "out_of_memory" }); }
    });
  });

  test("step blocks and streams", () => {
    using((rig) => {
      const d = rig.device.handle, good = [1, 4, 4, 2, 10, 0, 1, 0, 0, 0] as const;
      const create = (at: number, value: number) => () => k.stepCreate(d, ...(good.map((v, i) => (i === at ? value : v)) as [number, number, number, number, number, number, number, number, number, number]));
      for (const [at, values] of [[0, [0, 9, -1]], [1, [0, -1]], [2, [0, -1]], [3, [0, -1]], [4, [0, -1]], [5, [-1]], [6, [-1, 0x7fffffff]]] as const) for (const value of values) refused(create(at, value));
      refused(() => k.streamCreate(d, 0));
      expect(k.stepAddress(rig.step.handle, 2)).toBe(0);
      expect(k.stepAddress(rig.step.handle, -1)).toBe(0);
      for (const field of [-1, 11, 99]) expect(k.stepField(rig.step.handle, field)).toBe(-1);
      const offsets = Array.from({ length: BAO.FIELD_END + 1 }, (_, f) => k.stepField(rig.step.handle, f));
      expect(offsets).toEqual(offsets.toSorted((a, b) => a - b));
      const s = rig.stream.handle;
      refused(() => k.submit(s, 0), 1);                          // nothing recorded
      refused(() => k.streamEnd(s), 1);                          // nor begun
      refused(() => k.copy(s, rig.view(1, 1, 1).handle, rig.view(1, 1, 1).handle), 1);
      k.streamBegin(s);
      refused(() => k.submit(s, 0), 1);
      k.streamEnd(s);
      for (const slot of [-1, 2, 8, 1000]) { refused(() => k.submit(s, slot), 2); expect(k.wait(s, slot, 0) & 0xff).toBe(BAO.INVALID); }
      expect(k.wait(s, 0, NaN) & 0xff).toBe(BAO.INVALID);
      for (const index of [-1, 0, 5]) expect(k.streamOp(s, index)).toBe(0);
      expect(k.streamTime(s, 0)).toBe(-1);
      refused(() => k.streamProfile(s, 7), 2);
    });
  });
});

describe("what only some devices have", () => {
  test("graphs and events say UNSUPPORTED where the capability is missing", () => {
    using((rig) => {
      const { caps, handle } = rig.device;
      rig.stream.record(() => undefined);
      if (!(caps & BAO.CAP_GRAPH)) refused(() => k.graphCreate(rig.stream.handle, 1, 1), undefined, "unsupported");
      if (!(caps & BAO.CAP_EVENTS)) refused(() => k.eventCreate(handle), undefined, "unsupported");
      const has = (cap: number): string => (caps & cap ? "invalid_argument" : "unsupported");
      refused(() => k.graphSubmit(0, 0), undefined, has(BAO.CAP_GRAPH));
      refused(() => k.graphFree(0), undefined, has(BAO.CAP_GRAPH));
      refused(() => k.eventFree(0), undefined, has(BAO.CAP_EVENTS));
      refused(() => k.eventRecord(rig.stream.handle, 0), undefined, has(BAO.CAP_EVENTS));
      refused(() => k.peerCopy(rig.stream.handle, 0, 0), undefined, has(BAO.CAP_EVENTS));
    });
  });
});
