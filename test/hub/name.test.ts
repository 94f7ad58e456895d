// Names of models: the forms that people write, and what a file's name says of its type.
import { describe, expect, test } from "bun:test";
import { UsageError } from "../../src/errors.ts";
import { chooseFiles, formatName, parseName, quantOf } from "../../src/hub/index.ts";

describe("names", () => {
  test.each([
    ["hf:org/repo", { repo: "org/repo", quant: undefined, path: undefined, revision: "main" }],
    ["hf:org/repo:Q4_K_M", { repo: "org/repo", quant: "Q4_K_M", path: undefined, revision: "main" }],
    ["hf:org/repo-GGUF:UD-Q4_K_XL#v1.0", { repo: "org/repo-GGUF", quant: "UD-Q4_K_XL", path: undefined, revision: "v1.0" }],
    ["hf:org/repo/sub/file.gguf", { repo: "org/repo", quant: undefined, path: "sub/file.gguf", revision: "main" }],
    ["hf:org/repo/file.gguf#refs/pr/3", { repo: "org/repo", quant: undefined, path: "file.gguf", revision: "refs/pr/3" }],
  ])("%s", (name, parts) => {
    expect(parseName(name)).toEqual(parts);
    expect(formatName(parts)).toBe(name);
  });
  test.each(["hf:", "hf:org", "hf:org/", "hf:/repo", "hf:org/repo:", "hf:org/repo/../x.gguf", "hf:org/repo//x.gguf", "hf:../repo", "hf:org/re po", "hf:org/repo#", "hf:org/repo#../x", "hf:org/repo/a\\b.gguf", "model.gguf"])("refused: %s", (name) => {
    expect(() => parseName(name)).toThrow(UsageError);
  });
});

describe("files", () => {
  test.each([
    ["gemma-4-E2B-it-Q4_K_M.gguf", "Q4_K_M"], ["gemma-4-26B_q4_0-it.gguf", "Q4_0"], ["x.Q8_0.gguf", "Q8_0"], ["UD-IQ2_XXS/model-UD-IQ2_XXS-00001-of-00002.gguf", "UD-IQ2_XXS"], ["m-bf16.gguf", "BF16"], ["m.gguf", undefined], ["Q4_K_M/model.gguf", "Q4_K_M"],
  ])("%s", (path, quant) => { expect(quantOf(path)).toBe(quant); });

  test("companions are no models, and the preferred type comes first", () => {
    const paths = ["mmproj-Q4_K_M.gguf", "m-F16.gguf", "m-Q4_K_S.gguf", "imatrix.gguf", "m-Q6_K.gguf"];
    expect(chooseFiles(paths, parseName("hf:o/r"))).toEqual(["m-Q4_K_S.gguf"]);
    expect(chooseFiles(paths, parseName("hf:o/r/mmproj-Q4_K_M.gguf"))).toEqual(["mmproj-Q4_K_M.gguf"]);
    expect(chooseFiles(["only.gguf"], parseName("hf:o/r"))).toEqual(["only.gguf"]);
  });
});
