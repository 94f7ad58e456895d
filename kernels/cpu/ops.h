// The CPU's part of what an op is (frontend/ops.h): what a piece of work sees when it runs, and the tables of kernels that exist.
#pragma once
#include "../frontend/ops.h"

namespace bao {

constexpr int32_t beginning_places = 4;
// Where a piece begins to read weights: so many bytes in one place, or in each of these that lie `apart` bytes from each other.
struct Beginning {
  const uint8_t* data = nullptr;
  int64_t bytes = 0, apart = 0;
};

struct Run {
  const StepRef* step;
  char* scratch;         // the op's scratch, shared by its stages; offsets from Builder::reserve_scratch
  char* worker_scratch;  // this thread's own, 64-byte aligned
  int64_t worker_scratch_bytes;  // at least 1 MiB
  int32_t threads;       // a hint for piece sizes; results never depend on it
  int32_t (*take)(void* taker) = nullptr;
  void* taker = nullptr;
  // Another piece of the same stage, which the caller now has to run; -1: none for now. Who knows its next piece can fetch its bytes in time.
  int32_t next_piece() const { return take ? take(taker) : -1; }
  // Given to a PiecesFn before the stages in front of its own have run (it may look at the step alone): room for the beginnings of its first
  // pieces, which a stage that waits for memory fills in. They are hints: threads without work fetch what lies there.
  Beginning* beginnings = nullptr;
  int32_t beginnings_wanted = 0;
};

// The plain reference (reference/table.cpp), complete. A fast table starts as a copy of it and overrides what it has: fast/table.inc.h.
extern const OpTable reference_ops;
const OpTable* fast_ops_base();
#if defined(__x86_64__)
const OpTable* fast_ops_avx2();
const OpTable* fast_ops_avx512();
#elif defined(__aarch64__)
const OpTable* fast_ops_neon();
#endif

}  // namespace bao
