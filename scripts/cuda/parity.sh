#!/bin/sh
# The CUDA library against the CPU reference, on a machine with an NVIDIA GPU: op suite, reference models, memory checker. Prints summaries.
# Usage: scripts/cuda/parity.sh [ops|models|memcheck|lost ...]   (default: the first three). Logs go to $OUT (default build/parity).
# Builds nothing that is there already: `make cpu cuda` first, or bring build/lib*_kernels.so. BUN names the Bun to use.
set -u
cd "$(dirname "$0")/../.." || exit 1
OUT=${OUT:-build/parity}
BUN=${BUN:-node_modules/.bin/bun}
mkdir -p "$OUT"
[ -f build/libcpu_kernels.so ] && [ -f build/libcuda_kernels.so ] || make cpu cuda || exit 1
export BAO_TEST_DEVICE=cuda
failed=0

# run NAME command...: the log in $OUT/NAME.log, its failures and last lines here.
run() {
  name=$1; shift
  began=$(date +%s)
  timeout "${LIMIT:-300}" "$@" >"$OUT/$name.log" 2>&1 || { failed=1; echo "$name: FAILED (exit $?)"; }
  grep -aE '^\(fail\)|^error: |SUMMARY' "$OUT/$name.log" | head -"${SHOW:-30}"
  grep -aE '^ *[0-9]+ (pass|fail)' "$OUT/$name.log" | tr '\n' ' '
  echo "$name: $(($(date +%s) - began)) s"
}

for part in ${@:-ops models memcheck}; do
  case $part in
    ops) for f in test/kernels/*.test.ts; do run "$(basename "$f" .test.ts)" "$BUN" test "$f"; done ;;
    models) run reference "$BUN" test test/model/reference.test.ts; run stories "$BUN" test test/model/stories.test.ts ;;
    memcheck)
      # A subset: the checker makes kernels a hundred times slower. Every family of kernels is in it.
      for f in moe attention sampling fused; do
        SHOW=8 run "memcheck-$f" compute-sanitizer --tool memcheck --target-processes all --error-exitcode 9 "$BUN" test "test/kernels/$f.test.ts" -t "${MEMCHECK:-Q4_K|router|windows|combination|head_norm}"
      done ;;
    lost)
      [ -f build/trap/libcuda_kernels.so ] || make cuda-trap || exit 1
      BAO_TRAP_KERNELS=build/trap run lost "$BUN" test test/cuda/lost-device.test.ts ;;
    *) echo "parity.sh: unknown part $part" >&2; exit 2 ;;
  esac
done
exit $failed
