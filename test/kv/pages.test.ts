// The page allocator against a plain model of it: an id has as many owners as took or shared it, and a free one is nobody's.
import { expect, test } from "bun:test";
import fc from "fast-check";
import { BaoError } from "../../src/errors.ts";
import { PageAllocator, pagesFor } from "../../src/kv/pages.ts";

test("pages of a number of tokens", () => {
  expect([0, 1, 63, 64, 65, 128, 129].map(pagesFor)).toEqual([0, 1, 1, 1, 2, 2, 3]);
});

test("take, share and release: every page has the owners it was given, and none is lost", () => {
  fc.assert(fc.property(fc.integer({ min: 0, max: 9 }), fc.array(fc.tuple(fc.constantFrom("take", "share", "release"), fc.nat()), { maxLength: 120 }), (capacity, actions) => {
    let committed = 0;
    const allocator = new PageAllocator(capacity, (pages) => { expect(pages).toBeGreaterThan(committed); committed = pages; });
    const owners: number[] = []; // one entry an owner
    for (const [action, n] of actions) {
      const held = owners[n % Math.max(1, owners.length)];
      if (action === "take") {
        const free = capacity - new Set(owners).size;
        expect(allocator.available).toBe(free);
        if (free === 0) { expect(() => allocator.take()).toThrow(BaoError); continue; }
        const page = allocator.take();
        expect(owners).not.toContain(page);
        expect(page).toBeWithin(0, capacity);
        // Only backed pages are handed out.
        expect(page).toBeLessThan(committed);
        owners.push(page);
      } else if (held !== undefined && action === "share") {
        expect(allocator.share(held)).toBe(held);
        owners.push(held);
      } else if (held !== undefined) {
        allocator.release(held);
        owners.splice(owners.indexOf(held), 1);
      }
      for (const page of new Set(owners)) expect(allocator.shared(page)).toBe(owners.filter((p) => p === page).length > 1);
      expect(allocator.used).toBe(new Set(owners).size);
    }
  }));
});

test("a page that cannot be backed is not handed out, and can be asked for again", () => {
  let broken = true;
  const allocator = new PageAllocator(2, () => { if (broken) throw new Error("no memory"); });
  expect(() => allocator.take()).toThrow("no memory");
  expect([allocator.used, allocator.available]).toEqual([0, 2]);
  broken = false;
  expect([allocator.take(), allocator.take()].sort()).toEqual([0, 1]);
});

test("a full pool says so by code, with a hint", () => {
  const allocator = new PageAllocator(1, () => {});
  allocator.take();
  expect(() => allocator.take()).toThrow(expect.objectContaining({ name: "ResourceError", code: "kv_full", message: expect.stringContaining("1 KV pages"), hint: expect.stringContaining("--ctx") }));
});
