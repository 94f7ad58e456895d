#!/bin/sh
# The CUDA library against the CPU reference, on a machine with an NVIDIA GPU: op suite, reference models, memory checker. Prints summaries.
# Usage: scripts/cuda/parity.sh [ops|models|memcheck|sanitize|lost ...]   (default: the first three). Logs go to $OUT (default build/parity).
# sanitize: the op suite under memcheck, a selection of it that reaches every kernel under racecheck and initcheck, which are too slow for all of it.
#   $AT_ONCE (8) processes, spread over the GPUs, each at most $LIMIT (250) s, all together at most $ALL (300) s; $TOOLS names the tools, $ONLY (a regular
#   expression) some of the processes. What did not end is no success.
# Builds nothing that is there already: `make cpu cuda` first, or bring build/lib*_kernels.so. BUN names the Bun to use.
set -u
cd "$(dirname "$0")/../.." || exit 1
OUT=${OUT:-build/parity}
BUN=${BUN:-node_modules/.bin/bun}
mkdir -p "$OUT"
[ -f build/libcpu_kernels.so ] && [ -f build/libcuda_kernels.so ] || make cpu cuda || exit 1
export BAO_TEST_DEVICE=cuda
failed=0

# sanitized TOOL NAME FILES PATTERN: one process of the checker; files are names under test/kernels, joined by commas. A line about it in sanitize.txt.
sanitized() {
  left=$((SANITIZE_END - $(date +%s)))
  [ "$left" -gt "${LIMIT:-250}" ] && left=${LIMIT:-250}
  log=$OUT/$1-$2.log began=$(date +%s) files='' rc=124
  export CUDA_VISIBLE_DEVICES=$(($(echo "$1 $2" | cksum | cut -d' ' -f1) % ${GPUS:-1}))
  api=explicit
  case $2 in calls) api=no ;; esac  # they ask for more memory than there is, to be refused
  for f in $(echo "$3" | tr , ' '); do files="$files test/kernels/$f.test.ts"; done
  : >"$log"
  [ "$left" -gt 3 ] && { BAO_TEST_ONCE=1 timeout -k 3 "$left" compute-sanitizer --tool "$1" --report-api-errors "$api" --target-processes all --error-exitcode 9 "$BUN" test $files -t "$4" >"$log" 2>&1; rc=$?; }
  passed=$(sed -nE 's/^ *([0-9]+) pass$/\1/p' "$log" | head -1)
  if [ "$rc" -eq 124 ] || [ "$rc" -eq 137 ]; then verdict='TIMED OUT'
  elif grep -a 'SUMMARY' "$log" | grep -avqE 'SUMMARY: 0 (errors|hazards displayed \(0 errors, 0 warnings\))'; then verdict=FINDINGS
  elif [ "${passed:-0}" -eq 0 ] || ! grep -aq SUMMARY "$log"; then verdict='NOTHING RAN'
  elif [ "$rc" -ne 0 ]; then verdict="FAILED ($rc)"
  else verdict=clean; fi
  echo "$verdict: $1 $2, ${passed:-0} tests passed, $(($(date +%s) - began)) s" | tee -a "$OUT/sanitize.txt"
}

# The whole suite in pieces of about one length, the longest first: name, files, pattern of test names.
whole() {
  for case in all few spread bad; do echo "few-experts-$case few share:.$case"; done
  for case in 32 192 448 glu sum; do echo "many-units-$case many more.units.*$case"; done
  for type in Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K IQ4_NL IQ4_XS MXFP4 NVFP4; do echo "few-$type few rows.$type"; echo "many-$type many (matmul|experts).$type"; done
  for kv in f32 f16 q8_0; do for case in head windows contexts; do echo "attention-$kv-$case attention $kv:.$case"; done; done
  cat <<'END'
attention-tiles attention fast.precision:.tiles
attention-decode attention fast.precision:.decode
attention-rest attention ^(?!.*(fast.precision:|(f32|f16|q8_0):.(head|windows|contexts)))
many-F16 many (matmul|experts).F16
many-BF16 many (matmul|experts).BF16
many-rest many ^(?!.*(more.units|matmul|experts))
few-rest few gate.and.up
fused-a fused glu|router
fused-b fused ^(?!.*(glu|router))
moe-a moe Q4|Q5
moe-b moe ^(?!.*(Q4|Q5))
matmul-4 matmul Q4
matmul-5 matmul Q5
matmul-other matmul Q[2368]
matmul-rest matmul ^(?!.*Q[234568])
plain plain .
sampling sampling .
step step,graph .
determinism determinism .
calls contract,operands .
END
}
# Every kernel once: weights with a scale for 32 and with one for 16, bytes and f16; few rows, pairs that share experts, many rows; every other op.
selection() {
  cat <<'END'
attention-tiles attention fast.precision:.tiles
attention-mixed attention fast.precision:.decode
attention-f16 attention f16:.windows
attention-q8_0 attention q8_0:.windows
attention-f32 attention f32:.windows
few-Q6_K few rows.Q6_K
few-members few gate.and.up
few-experts few share:.few
moe moe Q4_K|Q6_K
many-Q4_K many (matmul|experts).Q4_K
many-F16 many (matmul|experts).F16
fused fused norm_add_norms|moe_merge|head_norm|matmul_group
router fused,moe router
matmul-Q4_K matmul Q4_K.(fast|exact)
matmul-Q6_K matmul Q6_K.(fast|exact)
matmul-Q8_0 matmul Q8_0.(fast|exact)
matmul-F16 matmul F16.(fast|exact)
sampling sampling combination|full.vocabulary|equal.logits|logits_process|logprobs
plain plain .
step step,graph marked|ahead|replays|page|deltas
END
}
if [ "${1:-}" = sanitized ]; then shift; sanitized "$@"; exit 0; fi

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
    sanitize)
      : >"$OUT/sanitize.txt"
      export OUT BUN SANITIZE_END=$(($(date +%s) + ${ALL:-300})) GPUS=$(nvidia-smi -L | grep -c '^GPU')
      for tool in ${TOOLS:-racecheck memcheck initcheck}; do
        { [ "$tool" = memcheck ] && whole || selection; } | sed "s/^/$tool /"
      done | grep -E "${ONLY:-.}" >"$OUT/sanitize.jobs"
      xargs -P "${AT_ONCE:-8}" -L 1 sh scripts/cuda/parity.sh sanitized <"$OUT/sanitize.jobs"
      jobs=$(wc -l <"$OUT/sanitize.jobs") clean=$(grep -c '^clean: ' "$OUT/sanitize.txt")
      [ "$clean" -eq "$jobs" ] || failed=1
      echo "sanitize: $clean of $jobs processes clean, $(grep -c '^FINDINGS' "$OUT/sanitize.txt") with findings, $(grep -c '^TIMED OUT' "$OUT/sanitize.txt") did not end" ;;
    lost)
      [ -f build/trap/libcuda_kernels.so ] || make cuda-trap || exit 1
      BAO_TRAP_KERNELS=build/trap run lost "$BUN" test test/cuda/lost-device.test.ts ;;
    *) echo "parity.sh: unknown part $part" >&2; exit 2 ;;
  esac
done
exit $failed
