// Command buffers that fail: each kind is a typed error, memory returns, the process lives on, and after what is not the device's end so does the session.
import { afterEach, describe, expect, test } from "bun:test";
import { LocalModel } from "../../src/engine/model.ts";
import { Device, Stream } from "../../src/native/objects.ts";
import { BAO } from "../../src/native/symbols.ts";
import { collect, DEMO, failure } from "../engine/fixtures.ts";
import { allowTime, fill, Rig, Random } from "../kernels/harness.ts";
import { allocated, buffersRun, EMULATED, failBuffer } from "./emulated.ts";

allowTime();
afterEach(() => { if (EMULATED) failBuffer(0); });

const OUT_OF_MEMORY = 8, TIMEOUT = 2;
const LOST = { "page fault": 3, "access revoked": 4, "not permitted": 7, "device removed": 11, internal: 1 };

function withRig(use: (rig: Rig) => void): void {
  const before = allocated();
  {
    using device = new Device({ backend: "metal", precision: "exact" });
    const rig = new Rig(device);
    use(rig);
    failBuffer(0);
    rig.dispose();
  }
  expect(allocated()).toBe(before);
}
const values = new Random(7).f32(64);

describe.skipIf(!EMULATED)("a submit", () => {
  const retryable = [["out of memory", OUT_OF_MEMORY, "out_of_memory"], ["out of time", TIMEOUT, "device_timeout"]] as const;
  test.each(retryable)("%s: a typed error, and the next runs", (_name, code, expected) => {
    withRig((rig) => {
      const x = rig.input(values, 1, 16), dst = rig.view(4, 1, 16);
      rig.stream.record(() => rig.r.scale(dst, x, 2));
      for (const operations of [0, 1, 2]) {
        failBuffer(1, code, operations);
        let error: unknown;
        try { rig.submit({ rows: 4 }); } catch (e) { error = e; }
        expect(error).toMatchObject({ name: "ResourceError", code: expected, message: expect.stringContaining("Metal: "), hint: expect.stringMatching(/smaller|try again/) });
        rig.submit({ rows: 4 });
        expect(rig.f32(dst)).toEqual(values.map((v) => v * 2));
      }
    });
  });

  test.each(Object.entries(LOST))("%s: the device is lost, now and at every later call", (_name, code) => {
    withRig((rig) => {
      const x = rig.input(values, 1, 16), dst = rig.view(4, 1, 16);
      rig.stream.record(() => rig.r.scale(dst, x, 2));
      failBuffer(1, code);
      const lost = expect.objectContaining({ name: "ResourceError", code: "device_lost", hint: expect.stringContaining("open it again") });
      expect(() => rig.submit({ rows: 4 })).toThrow(lost);
      expect(() => rig.submit({ rows: 4 })).toThrow(lost);
      expect(() => rig.f32(dst)).toThrow(lost);
    });
    withRig((rig) => rig.run({ rows: 4 }, (r) => r.scale(rig.view(4, 1, 16), rig.input(values, 1, 16), 2)));
  });

  test("that failed before it began has changed the tables as if it had run, and what was behind it is refused", () => {
    withRig((rig) => {
      const pool = rig.pool({ kvHeads: 1, headDim: 16, type: "f32", pages: 4 }), k = rig.input(values.subarray(0, 16), 1, 16), q = rig.input(values.subarray(16, 32), 1, 16), dst = rig.view(1, 1, 16);
      rig.stream.record(() => { rig.r.kvAppend(pool, 0, k, k); rig.r.attention(dst, q, pool, 0, 0, 1); });
      // Row 0 of sequence 3 needs page 2: only the first step says so, and only it knows the sequence's length and next id.
      fill(rig.step.slots[0]!, { rows: [{ sequence: 3, id: 1, position: 0 }], outputs: [], pages: [[0, 3, 0, 2]], sequences: [{ sequence: 3, length: 0, next: 5 }] }, 97);
      fill(rig.step.slots[1]!, { rows: [{ sequence: 3 }], outputs: [] }, 97);
      failBuffer(1, OUT_OF_MEMORY);
      rig.stream.submit(0);
      rig.stream.submit(1);
      expect(() => rig.stream.wait(1, 20_000)).toThrow(expect.objectContaining({ code: "out_of_memory", message: expect.stringContaining("before this one failed") }));
      expect(() => rig.stream.wait(0, 20_000)).toThrow(expect.objectContaining({ code: "out_of_memory" }));
      rig.submit({ rows: [{ sequence: 3 }], outputs: [] });
      expect(rig.f32(dst)).toEqual(values.slice(0, 16)); // attention over one position gives its value
    });
  });

  test("that failed after it began: the next runs; a later submit of the same step does not", () => {
    withRig((rig) => {
      const logits = rig.input(new Random(3).f32(97), 1, 97, { rowsOf: "output" }), x = rig.input(values.subarray(0, 16), 1, 16), dst = rig.view(1, 1, 16);
      const draw = rig.own(new Stream(rig.device, rig.step));
      rig.stream.record(() => rig.r.scale(dst, x, 2));
      draw.record(() => rig.device.k.sample(draw.handle, logits.handle));
      fill(rig.step.slots[0]!, { rows: [{ sequence: 1, id: 1, position: 0 }] }, 97);
      failBuffer(1, TIMEOUT, 1);
      rig.stream.submit(0);
      expect(() => rig.stream.wait(0, 20_000)).toThrow(expect.objectContaining({ code: "device_timeout" }));
      draw.submit(0);
      expect(() => draw.wait(0, 20_000)).toThrow();
      rig.submit({ rows: [{ sequence: 1, id: 1, position: 0 }] });
      rig.resubmit(draw);
      expect(rig.step.slots[0]!.result[BAO.RESULT_FINITE]).toBe(1);
    });
  });

  test("a page copy that fails ends the device: nobody may read that page", () => {
    withRig((rig) => {
      const pool = rig.pool({ kvHeads: 1, headDim: 16, type: "f16", pages: 4 }), x = rig.input(values, 1, 16), dst = rig.view(4, 1, 16);
      rig.stream.record(() => rig.r.scale(dst, x, 2));
      rig.submit({ rows: 4 });
      failBuffer(1, OUT_OF_MEMORY);
      pool.copyPage(1, 0, 64);
      const lost = expect.objectContaining({ code: "device_lost", message: expect.stringContaining("page copy") });
      expect(() => rig.submit({ rows: 4 })).toThrow(lost);
      expect(() => pool.readPage(1, new Uint8Array(pool.pageBytes))).toThrow(lost);
      expect(() => pool.copyPage(1, 0, 64)).toThrow(lost);
    });
  });
});

describe.skipIf(!EMULATED)("an answer", () => {
  test("of a session that goes on after each kind of failure, anywhere", async () => {
    const before = allocated(), prompt = "Once upon a time", options = { maxTokens: 12, temperature: 0, raw: true } as const;
    {
      using model = await LocalModel.load(DEMO, { device: { backend: "metal" }, context: 256 });
      const from = buffersRun();
      let text: string;
      {
        using undisturbed = model.session();
        ({ text } = await collect(model, undisturbed, prompt, options));
      }
      const buffers = buffersRun() - from;
      expect(buffers).toBeGreaterThan(12);
      using session = model.session();
      for (const [n, code, expected, operations] of [[1, OUT_OF_MEMORY, "out_of_memory", 0], [2, TIMEOUT, "device_timeout", 40], [3, OUT_OF_MEMORY, "out_of_memory", 0], [buffers >> 1, TIMEOUT, "device_timeout", 0]] as const) {
        failBuffer(n, code, operations);
        expect(await failure(collect(model, session, prompt, options))).toMatchObject({ name: "ResourceError", code: expected });
        failBuffer(0);
        expect((await collect(model, session, prompt, options)).text).toBe(text);
      }
    }
    expect(allocated()).toBe(before);
  });

  test("on a device that is lost; another model can be opened", async () => {
    const before = allocated(), options = { maxTokens: 4, temperature: 0 } as const;
    {
      using model = await LocalModel.load(DEMO, { device: { backend: "metal" }, context: 256 });
      using session = model.session();
      failBuffer(2, LOST["access revoked"]);
      for (let i = 0; i < 2; i++) expect(await failure(collect(model, session, "Once", options))).toMatchObject({ name: "ResourceError", code: "device_lost" });
      failBuffer(0);
    }
    expect(allocated()).toBe(before);
    using model = await LocalModel.load(DEMO, { device: { backend: "metal" }, context: 256 });
    using session = model.session();
    expect((await collect(model, session, "Once", options)).text).not.toBe("");
  });
});
