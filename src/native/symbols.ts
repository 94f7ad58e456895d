// Generated from kernels/bao.h and kernels/host.h by scripts/abi.ts. Do not edit: change the header and run `bun scripts/abi.ts`.

/** Handle of a native object: index + generation * 2^20, 0 = absent. */
export type Handle = number;
/** An address, or typed memory that stays alive during the call. */
export type Memory = number | NodeJS.TypedArray;
/** Throws the typed error for a failed call; status -1 = a constructor gave no handle. */
export type Fail = (fn: string, status: number) => never;
// Both sides are generated from one prototype, so the types of the raw symbols would add nothing.
type Native<T> = { [K in keyof T]: (...args: any[]) => any };
function cString(text: string): Uint8Array {
  return new TextEncoder().encode(text + "\0");
}

/** Every constant of the headers, without the prefix. */
export const BAO = {
  ABI_VERSION: 1,
  OK: 0,
  INVALID: 1,
  OUT_OF_MEMORY: 2,
  UNSUPPORTED: 3,
  DEVICE: 4,
  INTERNAL: 5,
  PENDING: 6,
  CANCELLED: 7,
  TIMEOUT: 8,
  F32: 0,
  F16: 1,
  Q4_0: 2,
  Q4_1: 3,
  Q5_0: 6,
  Q5_1: 7,
  Q8_0: 8,
  Q2_K: 10,
  Q3_K: 11,
  Q4_K: 12,
  Q5_K: 13,
  Q6_K: 14,
  IQ4_NL: 20,
  IQ4_XS: 23,
  I32: 26,
  BF16: 30,
  MXFP4: 39,
  NVFP4: 40,
  EXACT: 0,
  FAST: 1,
  FAST_INT8: 2,
  FAST_BF16: 3,
  OPEN_REFERENCE: 1,
  OPEN_DETERMINISTIC: 2,
  ISA_AUTO: 0,
  ISA_BASE: 1,
  ISA_AVX2: 2,
  ISA_AVX512: 3,
  ISA_NEON: 4,
  CAP_GRAPH: 1,
  CAP_HOST_MEMORY: 2,
  CAP_EVENTS: 4,
  CAP_BATCH_INVARIANT: 8,
  MEMORY_TOTAL: 0,
  MEMORY_FREE: 1,
  MEMORY_BUFFERS: 2,
  MEMORY_KV: 3,
  MEMORY_SCRATCH: 4,
  MEMORY_WEIGHTS: 5,
  USE_MATMUL: 1,
  USE_ROWS: 2,
  USE_VECTOR: 4,
  USE_HOST: 8,
  ROWS_FIXED: 0,
  ROWS_STEP: 1,
  ROWS_OUTPUT: 2,
  BUFFER_DEVICE: 0,
  BUFFER_HOST_VISIBLE: 1,
  ACTIVATION_GELU: 0,
  ACTIVATION_SILU: 1,
  ROPE_NEOX: 0,
  ROPE_INTERLEAVED: 1,
  KV_PLAIN: 0,
  KV_SHARED: 1,
  KV_PAGE_TOKENS: 64,
  OP_EMBED: 1,
  OP_RMS_NORM: 2,
  OP_NORM_ADD: 3,
  OP_ADD_NORM: 4,
  OP_NORM_ADD_NORMS: 5,
  OP_MOE_MERGE: 6,
  OP_ROPE_TABLE: 7,
  OP_ROPE: 8,
  OP_KV_APPEND: 9,
  OP_HEAD_NORM_ROPE_APPEND: 10,
  OP_ATTENTION: 11,
  OP_MATMUL: 12,
  OP_MATMUL_GROUP: 13,
  OP_GLU: 14,
  OP_MATMUL_GLU: 15,
  OP_TOPK_SOFTMAX: 16,
  OP_ROUTER: 17,
  OP_MOE_MATMUL: 18,
  OP_MOE_MATMUL_GLU: 19,
  OP_MOE_SUM: 20,
  OP_MOE_MATMUL_SUM: 21,
  OP_ADD: 22,
  OP_SCALE: 23,
  OP_SOFTCAP: 24,
  OP_COPY: 25,
  OP_GATHER_ROWS: 26,
  OP_PLE_COMBINE: 27,
  OP_POOL_ROWS: 28,
  OP_ARGMAX: 29,
  OP_LOGITS_PROCESS: 30,
  OP_LOGPROBS: 31,
  OP_SAMPLE: 32,
  OP_COUNT: 33,
  FIELD_HEADER: 0,
  FIELD_ROW_SEQUENCE: 1,
  FIELD_ROW_ID: 2,
  FIELD_ROW_POSITION: 3,
  FIELD_OUTPUT_ROW: 4,
  FIELD_OUTPUT_SAMPLER: 5,
  FIELD_PAGE_DELTA: 6,
  FIELD_SEQUENCE_DELTA: 7,
  FIELD_BIAS: 8,
  FIELD_RESULT: 9,
  FIELD_END: 10,
  HEADER_ROWS: 0,
  HEADER_OUTPUTS: 1,
  HEADER_PAGE_DELTAS: 2,
  HEADER_SEQUENCE_DELTAS: 3,
  HEADER_CANCEL: 4,
  HEADER_SERIAL: 5,
  HEADER_WORDS: 16,
  SAMPLER_TEMPERATURE: 0,
  SAMPLER_TOP_K: 1,
  SAMPLER_TOP_P: 2,
  SAMPLER_MIN_P: 3,
  SAMPLER_REPETITION: 4,
  SAMPLER_PRESENCE: 5,
  SAMPLER_FREQUENCY: 6,
  SAMPLER_SEED_LOW: 7,
  SAMPLER_SEED_HIGH: 8,
  SAMPLER_TOP_LOGPROBS: 9,
  SAMPLER_FLAGS: 10,
  SAMPLER_BIAS_START: 11,
  SAMPLER_BIAS_COUNT: 12,
  SAMPLER_WORDS: 16,
  SAMPLE_MASK: 1,
  SAMPLE_HOLD: 2,
  RESULT_ID: 0,
  RESULT_FINITE: 1,
  RESULT_LOGPROB: 2,
  RESULT_TOP_COUNT: 3,
  RESULT_TOP_IDS: 4,
  RESULT_TOP_LOGPROBS: 24,
  RESULT_LOG_SUM: 44,
  RESULT_WORDS: 48,
  ARITHMETIC_F32: 0,
  ARITHMETIC_INT8: 1,
  ADVISE_NORMAL: 0,
  ADVISE_WILL_NEED: 1,
  ADVISE_SEQUENTIAL: 2,
  ADVISE_DONT_NEED: 3,
} as const;

export const kernelSymbols = {
  bao_abi_version: { args: [], returns: "i32" },
  bao_backend: { args: [], returns: "cstring" },
  bao_last_error: { args: [], returns: "cstring" },
  bao_last_status: { args: [], returns: "i32" },
  bao_status_name: { args: ["i32"], returns: "cstring" },
  bao_device_count: { args: [], returns: "i32" },
  bao_device_open: { args: ["i32", "i32", "i32", "i32", "i32"], returns: "f64" },
  bao_device_close: { args: ["f64"], returns: "i32" },
  bao_device_info: { args: ["f64"], returns: "cstring" },
  bao_caps: { args: ["f64"], returns: "i32" },
  bao_supports: { args: ["f64", "i32", "i32", "i32", "i32"], returns: "i32" },
  bao_memory: { args: ["f64", "i32"], returns: "f64" },
  bao_buffer_create: { args: ["f64", "f64", "i32"], returns: "f64" },
  bao_buffer_free: { args: ["f64"], returns: "i32" },
  bao_buffer_address: { args: ["f64"], returns: "f64" },
  bao_buffer_write: { args: ["f64", "f64", "ptr", "f64"], returns: "i32" },
  bao_buffer_read: { args: ["f64", "f64", "ptr", "f64"], returns: "i32" },
  bao_view_create: { args: ["f64", "f64", "i32", "i32", "i32", "i32", "i32", "f64"], returns: "f64" },
  bao_view_free: { args: ["f64"], returns: "i32" },
  bao_map_create: { args: ["f64", "f64", "f64"], returns: "f64" },
  bao_map_free: { args: ["f64"], returns: "i32" },
  bao_weight_create: { args: ["f64", "f64", "f64", "i32", "i32", "i32", "i32", "i32"], returns: "f64" },
  bao_weight_free: { args: ["f64"], returns: "i32" },
  bao_vector_create: { args: ["f64", "ptr", "i32"], returns: "f64" },
  bao_weight_scale: { args: ["f64", "f64"], returns: "i32" },
  bao_weights_ready: { args: ["f64", "f64"], returns: "i32" },
  bao_kv_pool_create: { args: ["f64", "i32", "i32", "i32", "i32", "i32", "i32", "i32", "i32"], returns: "f64" },
  bao_kv_pool_free: { args: ["f64"], returns: "i32" },
  bao_kv_pool_commit: { args: ["f64", "i32"], returns: "i32" },
  bao_kv_page_bytes: { args: ["f64"], returns: "f64" },
  bao_kv_page_copy: { args: ["f64", "i32", "i32", "i32"], returns: "i32" },
  bao_kv_page_read: { args: ["f64", "i32", "ptr", "f64"], returns: "i32" },
  bao_kv_page_write: { args: ["f64", "i32", "ptr", "f64"], returns: "i32" },
  bao_step_create: { args: ["f64", "i32", "i32", "i32", "i32", "i32", "i32", "i32", "i32", "i32", "i32"], returns: "f64" },
  bao_step_free: { args: ["f64"], returns: "i32" },
  bao_step_address: { args: ["f64", "i32"], returns: "f64" },
  bao_step_field: { args: ["f64", "i32"], returns: "f64" },
  bao_stream_create: { args: ["f64", "f64"], returns: "f64" },
  bao_stream_free: { args: ["f64"], returns: "i32" },
  bao_stream_begin: { args: ["f64"], returns: "i32" },
  bao_stream_end: { args: ["f64"], returns: "i32" },
  bao_submit: { args: ["f64", "i32"], returns: "i32" },
  bao_wait: { args: ["f64", "i32", "f64"], returns: "i32" },
  bao_poll: { args: ["f64", "i32"], returns: "i32" },
  bao_stream_error: { args: ["f64", "i32"], returns: "i32" },
  bao_stream_ops: { args: ["f64"], returns: "i32" },
  bao_stream_op: { args: ["f64", "i32"], returns: "i32" },
  bao_stream_profile: { args: ["f64", "i32"], returns: "i32" },
  bao_stream_time: { args: ["f64", "i32"], returns: "f64" },
  bao_graph_create: { args: ["f64", "i32", "i32"], returns: "f64" },
  bao_graph_free: { args: ["f64"], returns: "i32" },
  bao_graph_submit: { args: ["f64", "i32"], returns: "i32" },
  bao_event_create: { args: ["f64"], returns: "f64" },
  bao_event_free: { args: ["f64"], returns: "i32" },
  bao_event_record: { args: ["f64", "f64"], returns: "i32" },
  bao_event_wait: { args: ["f64", "f64"], returns: "i32" },
  bao_peer_copy: { args: ["f64", "f64", "f64"], returns: "i32" },
  bao_embed: { args: ["f64", "f64", "f64", "f32"], returns: "i32" },
  bao_rms_norm: { args: ["f64", "f64", "f64", "f64", "f32", "f32"], returns: "i32" },
  bao_norm_add: { args: ["f64", "f64", "f64", "f64", "f64", "f32", "f32"], returns: "i32" },
  bao_add_norm: { args: ["f64", "f64", "f64", "f64", "f64", "f64", "f32"], returns: "i32" },
  bao_rope_table: { args: ["f64", "f64", "f64", "i32", "f32", "f32"], returns: "i32" },
  bao_rope: { args: ["f64", "f64", "f64", "f64", "i32"], returns: "i32" },
  bao_kv_append: { args: ["f64", "f64", "i32", "f64", "f64"], returns: "i32" },
  bao_attention: { args: ["f64", "f64", "f64", "f64", "i32", "i32", "f32"], returns: "i32" },
  bao_matmul: { args: ["f64", "f64", "f64", "f64"], returns: "i32" },
  bao_glu: { args: ["f64", "f64", "f64", "f64", "i32"], returns: "i32" },
  bao_topk_softmax: { args: ["f64", "f64", "f64", "f64", "i32"], returns: "i32" },
  bao_moe_matmul: { args: ["f64", "f64", "f64", "f64", "f64"], returns: "i32" },
  bao_moe_sum: { args: ["f64", "f64", "f64", "f64"], returns: "i32" },
  bao_add: { args: ["f64", "f64", "f64", "f64"], returns: "i32" },
  bao_scale: { args: ["f64", "f64", "f64", "f32"], returns: "i32" },
  bao_softcap: { args: ["f64", "f64", "f64", "f32"], returns: "i32" },
  bao_copy: { args: ["f64", "f64", "f64"], returns: "i32" },
  bao_gather_rows: { args: ["f64", "f64", "f64"], returns: "i32" },
  bao_ple_combine: { args: ["f64", "f64", "f64", "f64", "f64", "f32", "f32", "f32"], returns: "i32" },
  bao_pool_rows: { args: ["f64", "f64", "f64"], returns: "i32" },
  bao_argmax: { args: ["f64", "f64", "f64"], returns: "i32" },
  bao_logits_process: { args: ["f64", "f64", "f64"], returns: "i32" },
  bao_logprobs: { args: ["f64", "f64"], returns: "i32" },
  bao_sample: { args: ["f64", "f64"], returns: "i32" },
  bao_norm_add_norms: { args: ["f64", "f64", "f64", "f64", "f64", "f64", "f64", "f64", "f64", "f64", "f64", "f32", "f32", "f32"], returns: "i32" },
  bao_moe_merge: { args: ["f64", "f64", "f64", "f64", "f64", "f64", "f64", "f64", "f64", "f64", "f32", "f32"], returns: "i32" },
  bao_head_norm_rope_append: { args: ["f64", "f64", "f64", "f64", "f64", "f64", "f64", "i32", "f64", "i32", "i32", "f32"], returns: "i32" },
  bao_matmul_group: { args: ["f64", "f64", "f64", "f64", "f64", "f64", "f64", "f64"], returns: "i32" },
  bao_matmul_glu: { args: ["f64", "f64", "f64", "f64", "f64", "i32"], returns: "i32" },
  bao_router: { args: ["f64", "f64", "f64", "f64", "f64", "i32"], returns: "i32" },
  bao_moe_matmul_glu: { args: ["f64", "f64", "f64", "f64", "f64", "f64", "i32"], returns: "i32" },
  bao_moe_matmul_sum: { args: ["f64", "f64", "f64", "f64", "f64", "f64"], returns: "i32" },
} as const;

export const hostSymbols = {
  bao_file_open: { args: ["ptr"], returns: "f64" },
  bao_file_close: { args: ["f64"], returns: "i32" },
  bao_file_address: { args: ["f64"], returns: "f64" },
  bao_file_bytes: { args: ["f64"], returns: "f64" },
  bao_file_advise: { args: ["f64", "f64", "f64", "i32"], returns: "i32" },
  bao_file_view: { args: ["f64", "f64", "f64"], returns: "f64" },
  bao_file_view_close: { args: ["ptr", "ptr"], returns: "void" },
  bao_row_bytes: { args: ["i32", "f64"], returns: "f64" },
  bao_quantize: { args: ["i32", "ptr", "f64", "ptr", "f64", "i32", "i32"], returns: "i32" },
  bao_dequantize: { args: ["i32", "ptr", "f64", "ptr", "f64", "i32", "i32"], returns: "i32" },
  bao_quantize_error: { args: ["i32", "ptr", "ptr", "f64", "i32", "i32", "ptr"], returns: "i32" },
  bao_host_read_bandwidth: { args: ["i32", "f64", "i32"], returns: "f64" },
  bao_host_arithmetic: { args: ["i32", "i32", "i32", "i32"], returns: "f64" },
  bao_host_info: { args: [], returns: "cstring" },
} as const;

/** What every device library does; see docs/abi.md. Failed calls throw. */
export interface Kernels {
  /** Version of this header that the library was built from (BAO_ABI_VERSION). */
  abiVersion(): number;
  /** Static name of the backend: "cpu", "cuda" or "metal". */
  backend(): string;
  /** The calling thread's last failure as UTF-8, "" when none; owned by the library, valid until this thread's next call. */
  lastError(): string;
  /** Status of the calling thread's last failed call; BAO_OK when none. Tells why a constructor gave 0. */
  lastStatus(): number;
  /** Static name of a status class, e.g. "OUT_OF_MEMORY". */
  statusName(status: number): string;
  /** Number of devices of this backend; 0 when driver or hardware is missing (bao_last_error says which). */
  deviceCount(): number;
  /** Opens device `index`. threads: CPU worker count including the waiting thread, 0 = physical cores; other backends ignore it.
   * isa: BAO_ISA_*; precision: BAO_EXACT ...; flags: BAO_OPEN_*. */
  deviceOpen(index: number, threads: number, isa: number, precision: number, flags: number): Handle;
  /** Cancels and waits for work in flight, then frees the device and all that belongs to it. */
  deviceClose(device: Handle): void;
  /** JSON object: name, backend, isa, threads, precision, memory; owned by the device. */
  deviceInfo(device: Handle): string;
  /** Capability flags BAO_CAP_*, 0 for a bad handle. */
  caps(device: Handle): number;
  /** 1 when `op` (BAO_OP_*) runs with weight or KV type `dtype` and these sizes (0 = any): for matmuls columns and rows of the weight, for
   * attention head_dim and query heads per KV head, for sampling the vocabulary; 0 when not, with the reason in bao_last_error. */
  supports(device: Handle, op: number, dtype: number, d0: number, d1: number): number;
  /** Bytes of `what` (BAO_MEMORY_*) on the device, -1 for a bad handle. */
  memory(device: Handle, what: number): number;
  /** Zeroed memory of `bytes`, aligned to 128. kind: DEVICE, or HOST_VISIBLE (has an address that the host may use whenever no unfinished
   * submit uses those bytes). Freeing any object that a submit in flight names waits for that submit. */
  bufferCreate(device: Handle, bytes: number, kind: number): Handle;
  /** Zeroed memory of `bytes`, aligned to 128. kind: DEVICE, or HOST_VISIBLE (has an address that the host may use whenever no unfinished
   * submit uses those bytes). Freeing any object that a submit in flight names waits for that submit. */
  bufferFree(buffer: Handle): void;
  /** Host address of a host-visible buffer, 0 otherwise. */
  bufferAddress(buffer: Handle): number;
  /** Copies between host memory and a buffer; waits for the device's submitted work first. */
  bufferWrite(buffer: Handle, offsetBytes: number, source: Memory, bytes: number): void;
  /** Copies between host memory and a buffer; waits for the device's submitted work first. */
  bufferRead(buffer: Handle, offsetBytes: number, destination: Memory, bytes: number): void;
  /** A view [d0 rows, d1, d2] of a buffer: rows are rowStrideBytes apart (0 = packed), a row is d1 * d2 contiguous elements, d0 is a
   * capacity. rowsOf (BAO_ROWS_*) says which count decides how many rows an op processes. dtype: F32 or I32. offset and stride are
   * multiples of 4 (16 is faster). Ops name a view's shape (rows, d1, d2); "columns" is d1 * d2. */
  viewCreate(buffer: Handle, offsetBytes: number, dtype: number, rowsOf: number, d0: number, d1: number, d2: number, rowStrideBytes: number): Handle;
  /** A view [d0 rows, d1, d2] of a buffer: rows are rowStrideBytes apart (0 = packed), a row is d1 * d2 contiguous elements, d0 is a
   * capacity. rowsOf (BAO_ROWS_*) says which count decides how many rows an op processes. dtype: F32 or I32. offset and stride are
   * multiples of 4 (16 is faster). Ops name a view's shape (rows, d1, d2); "columns" is d1 * d2. */
  viewFree(view: Handle): void;
  /** Registers a read-only mapping of a file (host.h makes one) as a source of weights. The memory must stay mapped until
   * bao_map_free, which is INVALID while weights of the map exist. Address and length are as host.h gives them; Metal wraps the pages without a copy. */
  mapCreate(device: Handle, address: number, bytes: number): Handle;
  /** Registers a read-only mapping of a file (host.h makes one) as a source of weights. The memory must stay mapped until
   * bao_map_free, which is INVALID while weights of the map exist. Address and length are as host.h gives them; Metal wraps the pages without a copy. */
  mapFree(map: Handle): void;
  /** A weight [experts][rows][columns] of `dtype` at offsetBytes of the map; columns is a multiple of the dtype's block. The range is
   * checked here, once. VECTOR weights are F32, F16 or BF16 with rows = experts = 1. Backends may start an upload: bao_weights_ready. */
  weightCreate(device: Handle, map: Handle, offsetBytes: number, dtype: number, rows: number, columns: number, experts: number, use: number): Handle;
  /** A weight [experts][rows][columns] of `dtype` at offsetBytes of the map; columns is a multiple of the dtype's block. The range is
   * checked here, once. VECTOR weights are F32, F16 or BF16 with rows = experts = 1. Backends may start an upload: bao_weights_ready. */
  weightFree(weight: Handle): void;
  /** A VECTOR weight of `length` floats copied from host memory: factors that a file leaves out, and values computed at load. */
  vectorCreate(device: Handle, values: Memory, length: number): Handle;
  /** Attaches a VECTOR weight of 1 or `experts` factors, once and before a recording names the weight: the output of every matmul with `weight` is multiplied by it, once (NVFP4
   * tensor scales, Gemma 4's per-expert scale). */
  weightScale(weight: Handle, factors: Handle): void;
  /** BAO_OK when all weights of the device may be used, BAO_PENDING while an upload runs; waits up to timeoutMs. */
  weightsReady(device: Handle, timeoutMs: number): number;
  /** A pool of pages for `layers` layers of one kind; a page holds BAO_KV_PAGE_TOKENS tokens of all of them under one id (0 ... maxPages - 1).
   * In a layer's page: K [kvHeads][64][headDim], then V likewise, each plane 128-byte aligned; q8_0 as a plane of int8 followed by a
   * plane of f32 scales (one per 32). Address space for maxPages is reserved now and never moves; memory comes with bao_kv_pool_commit.
   * table: which page table of the step block this pool uses (0-3). dtype: F32, F16 or Q8_0. headDim: a multiple of 16 (Q8_0: of 32; F32 and F16: of 2
   * on the CPU). rotated: 0 for PLAIN. */
  kvPoolCreate(device: Handle, table: number, layers: number, kvHeads: number, headDim: number, dtype: number, layout: number, rotated: number, maxPages: number): Handle;
  /** A pool of pages for `layers` layers of one kind; a page holds BAO_KV_PAGE_TOKENS tokens of all of them under one id (0 ... maxPages - 1).
   * In a layer's page: K [kvHeads][64][headDim], then V likewise, each plane 128-byte aligned; q8_0 as a plane of int8 followed by a
   * plane of f32 scales (one per 32). Address space for maxPages is reserved now and never moves; memory comes with bao_kv_pool_commit.
   * table: which page table of the step block this pool uses (0-3). dtype: F32, F16 or Q8_0. headDim: a multiple of 16 (Q8_0: of 32; F32 and F16: of 2
   * on the CPU). rotated: 0 for PLAIN. */
  kvPoolFree(pool: Handle): void;
  /** Backs pages 0 ... pages - 1 with memory (never fewer than before), without waiting for submitted work. OUT_OF_MEMORY leaves the pool as it was. */
  kvPoolCommit(pool: Handle, pages: number): void;
  /** Bytes of one page over all layers of the pool. */
  kvPageBytes(pool: Handle): number;
  /** Copies the first `tokens` tokens of a page to another page, all layers (fork, rewind); takes its place in the order of submits and may
   * return before it is done. That no two sequences append to the same page is the caller's duty. */
  kvPageCopy(pool: Handle, destination: number, source: number, tokens: number): void;
  /** Reads or writes one whole page in the layout above, layer after layer (bao_kv_page_bytes bytes), after the device's submitted work. */
  kvPageRead(pool: Handle, page: number, destination: Memory, bytes: number): void;
  /** Reads or writes one whole page in the layout above, layer after layer (bao_kv_page_bytes bytes), after the device's submitted work. */
  kvPageWrite(pool: Handle, page: number, source: Memory, bytes: number): void;
  /** Everything that changes from step to step. Device region, per sequence: next id, length, the last 64 ids, page tables; written by
   * bao_sample and by deltas only. Host region: `slots` slots (1-8), each a block of host memory that the caller fills, submits (once or, with the
   * same serial, several times: a forward and a sample recording) and must not touch until all these submits have been waited for, the cancel
   * word apart. pages0-pages3: entries of each page table per sequence (0 = table unused).
   * Checked at submit, before anything is applied (else BAO_INVALID):
   * - counts within capacity and within d0 of every view of the recording that follows them; ids in [0, vocabulary); sequences; sampler and bias values;
   * - rows of one sequence are adjacent, with consecutive positions; ROW_ID and ROW_POSITION are both -1 (decode) or both >= 0 (prefill), and a
   *   sequence with a -1 row has that row only; at most one output row per sequence is without HOLD, and it is the sequence's last row;
   * - each (table, sequence, index) at most once in PAGE_DELTA, each sequence at most once in SEQUENCE_DELTA;
   * - for every pool of the recording: all pages that a row can reach are set and committed. Reach: the positions up to the row's own, within the largest
   *   window of the recording's attention ops on that table (0 = all). For -1 rows the position is taken from an upper bound that the host knows:
   *   the last delta's length + samples submitted since. */
  stepCreate(device: Handle, slots: number, maxRows: number, maxOutputs: number, maxSequences: number, vocabulary: number, maxBias: number, pages0: number, pages1: number, pages2: number, pages3: number): Handle;
  /** Everything that changes from step to step. Device region, per sequence: next id, length, the last 64 ids, page tables; written by
   * bao_sample and by deltas only. Host region: `slots` slots (1-8), each a block of host memory that the caller fills, submits (once or, with the
   * same serial, several times: a forward and a sample recording) and must not touch until all these submits have been waited for, the cancel
   * word apart. pages0-pages3: entries of each page table per sequence (0 = table unused).
   * Checked at submit, before anything is applied (else BAO_INVALID):
   * - counts within capacity and within d0 of every view of the recording that follows them; ids in [0, vocabulary); sequences; sampler and bias values;
   * - rows of one sequence are adjacent, with consecutive positions; ROW_ID and ROW_POSITION are both -1 (decode) or both >= 0 (prefill), and a
   *   sequence with a -1 row has that row only; at most one output row per sequence is without HOLD, and it is the sequence's last row;
   * - each (table, sequence, index) at most once in PAGE_DELTA, each sequence at most once in SEQUENCE_DELTA;
   * - for every pool of the recording: all pages that a row can reach are set and committed. Reach: the positions up to the row's own, within the largest
   *   window of the recording's attention ops on that table (0 = all). For -1 rows the position is taken from an upper bound that the host knows:
   *   the last delta's length + samples submitted since. */
  stepFree(step: Handle): void;
  /** Host address of a slot. */
  stepAddress(step: Handle, slot: number): number;
  /** Byte offset of a field in a slot, -1 when unknown; BAO_FIELD_END gives the slot's size. */
  stepField(step: Handle, field: number): number;
  /** A stream holds recorded ops over one step block. */
  streamCreate(device: Handle, step: Handle): Handle;
  /** A stream holds recorded ops over one step block. */
  streamFree(stream: Handle): void;
  /** Starts a new recording (the former one is dropped, after its submits have ended); bao_stream_end compiles it and sizes its scratch, and may
   * fail. An op that fails to record leaves the recording as it was. A recording may be submitted any number of times; rows, ids and lengths come
   * from the slot. Ops may be merged, reordered or overlapped where no data dependence is broken: every view then holds what execution in order
   * gives, within the device's determinism class, views that an op leaves undefined apart. */
  streamBegin(stream: Handle): void;
  /** Starts a new recording (the former one is dropped, after its submits have ended); bao_stream_end compiles it and sizes its scratch, and may
   * fail. An op that fails to record leaves the recording as it was. A recording may be submitted any number of times; rows, ids and lengths come
   * from the slot. Ops may be merged, reordered or overlapped where no data dependence is broken: every view then holds what execution in order
   * gives, within the device's determinism class, views that an op leaves undefined apart. */
  streamEnd(stream: Handle): void;
  /** Queues the recording with the given slot and returns at once. Submits of a device run in order of submission, one after the other. INVALID when a
   * former submit of that slot through this stream has not been waited for. */
  submit(stream: Handle, slot: number): void;
  /** Waits until the last submit of `slot` through this stream or its graphs has ended: BAO_OK, BAO_PENDING after timeoutMs, BAO_CANCELLED, or the
   * failure. CANCELLED: deltas stay applied, bao_sample of that serial advances nothing (and ends as CANCELLED), KV at the step's positions is
   * undefined; later submits run. On the CPU the calling thread works as one of the device's threads meanwhile. */
  wait(stream: Handle, slot: number, timeoutMs: number): number;
  /** The same without waiting; on a CPU device of one thread it runs one piece of work. */
  poll(stream: Handle, slot: number): number;
  /** Status of the last submit of `slot` through this stream; the text is in bao_last_error. */
  streamError(stream: Handle, slot: number): number;
  /** Number of recorded ops; the kind (BAO_OP_*) of op `index`; device nanoseconds that it took over all submits since bao_stream_profile(stream, 1)
   * (a merged group's time is reported at its first op). */
  streamOps(stream: Handle): number;
  /** Number of recorded ops; the kind (BAO_OP_*) of op `index`; device nanoseconds that it took over all submits since bao_stream_profile(stream, 1)
   * (a merged group's time is reported at its first op). */
  streamOp(stream: Handle, index: number): number;
  /** Number of recorded ops; the kind (BAO_OP_*) of op `index`; device nanoseconds that it took over all submits since bao_stream_profile(stream, 1)
   * (a merged group's time is reported at its first op). */
  streamProfile(stream: Handle, enable: number): void;
  /** Number of recorded ops; the kind (BAO_OP_*) of op `index`; device nanoseconds that it took over all submits since bao_stream_profile(stream, 1)
   * (a merged group's time is reported at its first op). */
  streamTime(stream: Handle, index: number): number;
  /** BAO_CAP_GRAPH: the recording, instantiated for at most `rows` rows and `outputs` output rows (a slot with more: INVALID), replayed with one call.
   * Rows at or beyond the slot's counts append, route, attend and sample nothing. bao_stream_begin or _free of its stream ends the graph. */
  graphCreate(stream: Handle, rows: number, outputs: number): Handle;
  /** BAO_CAP_GRAPH: the recording, instantiated for at most `rows` rows and `outputs` output rows (a slot with more: INVALID), replayed with one call.
   * Rows at or beyond the slot's counts append, route, attend and sample nothing. bao_stream_begin or _free of its stream ends the graph. */
  graphFree(graph: Handle): void;
  /** BAO_CAP_GRAPH: the recording, instantiated for at most `rows` rows and `outputs` output rows (a slot with more: INVALID), replayed with one call.
   * Rows at or beyond the slot's counts append, route, attend and sample nothing. bao_stream_begin or _free of its stream ends the graph. */
  graphSubmit(graph: Handle, slot: number): void;
  /** BAO_CAP_EVENTS: order between devices. A recorded event is reached when all ops before it have run; a wait holds the ops after it. */
  eventCreate(device: Handle): Handle;
  /** BAO_CAP_EVENTS: order between devices. A recorded event is reached when all ops before it have run; a wait holds the ops after it. */
  eventFree(event: Handle): void;
  /** BAO_CAP_EVENTS: order between devices. A recorded event is reached when all ops before it have run; a wait holds the ops after it. */
  eventRecord(stream: Handle, event: Handle): void;
  /** BAO_CAP_EVENTS: order between devices. A recorded event is reached when all ops before it have run; a wait holds the ops after it. */
  eventWait(stream: Handle, event: Handle): void;
  /** BAO_CAP_EVENTS: order between devices. A recorded event is reached when all ops before it have run; a wait holds the ops after it. */
  peerCopy(stream: Handle, dst: Handle, src: Handle): void;
  /** dst (rows, d1, d2) = row `id` of weight [vocab, columns] * scale. Ids are those of the step's rows. Weight use: ROWS. */
  embed(stream: Handle, dst: Handle, weight: Handle, scale: number): void;
  /** dst = x / sqrt(mean(x^2) + eps) * scale * w over the last dimension d2; w (VECTOR of d2) may be 0: no weight. In place allowed. */
  rmsNorm(stream: Handle, dst: Handle, x: Handle, w: Handle, eps: number, scale: number): void;
  /** dst = (residual + rms(x) * w) * scale, over d2 (Gemma). In place on residual or x allowed. */
  normAdd(stream: Handle, dst: Handle, residual: Handle, x: Handle, w: Handle, eps: number, scale: number): void;
  /** sum = residual + x; dst = rms(sum) * w, over d2 (Llama). sum may be residual. */
  addNorm(stream: Handle, sum: Handle, dst: Handle, residual: Handle, x: Handle, w: Handle, eps: number): void;
  /** dst (rows, 2, nRot / 2): cos, then sin, of each row's angles. inv_freq[i] = 1 / base^(2i / nRot) in f32, divided by factors[i] (VECTOR of
   * nRot / 2, or 0), times freqScale; angle = f32(position) * inv_freq[i] rounded to f32; cos and sin of that f32 with full range reduction. */
  ropeTable(stream: Handle, dst: Handle, factors: Handle, nRot: number, base: number, freqScale: number): void;
  /** Rotates the first nRot = 2 * table.d2 values of every head of x (rows, heads, head_dim). NEOX pairs (i, i + nRot / 2), INTERLEAVED (2i, 2i + 1). In place allowed. */
  rope(stream: Handle, dst: Handle, x: Handle, table: Handle, mode: number): void;
  /** Stores k and v (rows, kvHeads, headDim) in layer `layer` of the pool at each row's sequence and position, rounded to the pool's dtype:
   * F16 to nearest even, beyond 65504 infinity; Q8_0 per 32 values, scale = max|x| / 127 in f32, x / scale to nearest even. */
  kvAppend(stream: Handle, pool: Handle, layer: number, k: Handle, v: Handle): void;
  /** dst (rows, heads, headDim) = softmax(scale * q . K + mask) V over positions j <= i of the row's sequence, and i - j < window when
   * window > 0. Query head h reads KV head h / (heads / kvHeads). Softmax streamed over pages in ascending order, f32. */
  attention(stream: Handle, dst: Handle, q: Handle, pool: Handle, layer: number, window: number, scale: number): void;
  /** dst (rows, columns = w.rows) = x (rows, columns = w.columns) W^T. Weight use: MATMUL. dst must not overlap x. */
  matmul(stream: Handle, dst: Handle, x: Handle, w: Handle): void;
  /** dst = act(gate) * up, element by element; up = 0: every d2 of gate (twice dst's)
   * holds gate then up. In place on gate allowed when up is given.
   * GELU: 0.5 x (1 + tanh(0.7978845608028654 x (1 + 0.044715 x^2))). */
  glu(stream: Handle, dst: Handle, gate: Handle, up: Handle, activation: number): void;
  /** ids (I32) and weights (rows, 1, k): the k largest of softmax(logits (rows, 1, experts)), largest first, ties to the lower id;
   * NaN ranks smallest; always k distinct ids. renormalise: 1 = weights divided by their sum. k <= experts, k <= 32, experts <= 1024, else UNSUPPORTED. */
  topkSoftmax(stream: Handle, ids: Handle, weights: Handle, logits: Handle, renormalise: number): void;
  /** dst (rows, k, w.rows): slot s of row r = W[ids[r][s]] x, x (rows, 1, columns) for all slots or (rows, k, columns) for each.
   * An id outside [0, experts) gives 0 and reads nothing, here and in the fused ops. */
  moeMatmul(stream: Handle, dst: Handle, x: Handle, w: Handle, ids: Handle): void;
  /** dst (rows, 1, n) = sum over slots in ascending order of weights[r][s] * x (rows, k, n). */
  moeSum(stream: Handle, dst: Handle, x: Handle, weights: Handle): void;
  /** dst = a + b; dst = x * factor; dst = cap * tanh(x / cap); dst = x. Same shapes, in place allowed. */
  add(stream: Handle, dst: Handle, a: Handle, b: Handle): void;
  /** dst = a + b; dst = x * factor; dst = cap * tanh(x / cap); dst = x. Same shapes, in place allowed. */
  scale(stream: Handle, dst: Handle, x: Handle, factor: number): void;
  /** dst = a + b; dst = x * factor; dst = cap * tanh(x / cap); dst = x. Same shapes, in place allowed. */
  softcap(stream: Handle, dst: Handle, x: Handle, cap: number): void;
  /** dst = a + b; dst = x * factor; dst = cap * tanh(x / cap); dst = x. Same shapes, in place allowed. */
  copy(stream: Handle, dst: Handle, x: Handle): void;
  /** dst (OUTPUT rows) = the step's output rows of x (STEP rows). */
  gatherRows(stream: Handle, dst: Handle, x: Handle): void;
  /** dst (rows, layers, p) = (rms(projected * projectedScale) * w + token) * scale over p (Gemma 4's per-layer inputs). */
  pleCombine(stream: Handle, dst: Handle, projected: Handle, token: Handle, w: Handle, eps: number, projectedScale: number, scale: number): void;
  /** dst (FIXED maxSequences, 1, n)[sequence of row] += x (rows, 1, n), rows in ascending order; a row at position 0 overwrites instead. */
  poolRows(stream: Handle, dst: Handle, x: Handle): void;
  /** dst (I32 (rows, 1, 1)) = index of the largest column of x, ties to the lower. NaN counts as the smallest; all NaN: 0. */
  argmax(stream: Handle, dst: Handle, x: Handle): void;
  /** In place on logits (OUTPUT rows, 1, vocabulary): mask (I32 (OUTPUT, 1, ceil(vocabulary / 32)), bit set = allowed; 0 = no mask view) and bias,
   * then repetition, presence and frequency penalties over the sequence's last 64 ids. */
  logitsProcess(stream: Handle, logits: Handle, mask: Handle): void;
  /** RESULT: log of the sum of exp(logits), and the top log-probabilities that each output row's sampler asks for. */
  logprobs(stream: Handle, logits: Handle): void;
  /** Draws one id per output row: temperature, top-k by selection, top-p and min-p by threshold over 32-bit fixed-point mass, Philox4x32-10.
   * Writes RESULT, and the sequence's next id, length (the row's position + 1) and history in the device region (unless HOLD). */
  sample(stream: Handle, logits: Handle): void;
  /** sum = norm_add(residual, x, w, eps, scale); y0 = rms_norm(sum, w0); y1 = rms_norm(sum, w1, scale1); y2 = rms_norm(sum, w2). y1 and y2 may be 0. */
  normAddNorms(stream: Handle, sum: Handle, y0: Handle, y1: Handle, y2: Handle, residual: Handle, x: Handle, w: Handle, w0: Handle, w1: Handle, w2: Handle, scale1: number, eps: number, scale: number): void;
  /** m = rms(a) wa + rms(b) wb; sum = norm_add(residual, m, w, eps, scale); y = rms_norm(sum, wy) unless y = 0 (Gemma 4's dense and expert branches). */
  moeMerge(stream: Handle, sum: Handle, y: Handle, residual: Handle, a: Handle, wa: Handle, b: Handle, wb: Handle, w: Handle, wy: Handle, eps: number, scale: number): void;
  /** q = rope(rms(q) wq), in place; k = rope(rms(k) wk) and v = normV ? rms(v) : v go to the pool. wq, wk = 0: no norm. k = 0: no append (layers that
   * share KV). v = 0: v is the raw k. k and v are left in an undefined state. */
  headNormRopeAppend(stream: Handle, q: Handle, k: Handle, v: Handle, wq: Handle, wk: Handle, table: Handle, mode: number, pool: Handle, layer: number, normV: number, eps: number): void;
  /** Up to three matmuls of one x: dst_i = x W_i^T; absent ones are 0. The weights may differ in dtype. */
  matmulGroup(stream: Handle, dst0: Handle, dst1: Handle, dst2: Handle, x: Handle, w0: Handle, w1: Handle, w2: Handle): void;
  /** dst = act(x Wgate^T) * (x Wup^T); up = 0: gate's rows are gate rows, then up rows. */
  matmulGlu(stream: Handle, dst: Handle, x: Handle, gate: Handle, up: Handle, activation: number): void;
  /** ids, weights = topk_softmax(x W^T). */
  router(stream: Handle, ids: Handle, weights: Handle, x: Handle, w: Handle, renormalise: number): void;
  /** dst (rows, k, f) = glu(moe_matmul(x, gate), moe_matmul(x, up)); up = 0 as in matmul_glu. */
  moeMatmulGlu(stream: Handle, dst: Handle, x: Handle, gate: Handle, up: Handle, ids: Handle, activation: number): void;
  /** dst (rows, 1, n) = moe_sum(moe_matmul(x (rows, k, columns), w, ids), weights). */
  moeMatmulSum(stream: Handle, dst: Handle, x: Handle, w: Handle, ids: Handle, weights: Handle): void;
}

/** What only the CPU library does. */
export interface Host {
  /** Maps a whole regular file read-only (private, so that no write can reach it). On hosts whose page is smaller than 16 KiB the map starts
   * at a 16 KiB boundary and its tail is zero up to the next one. 0 when the file cannot be opened, is empty or is no regular file. */
  fileOpen(path: string): Handle;
  /** Maps a whole regular file read-only (private, so that no write can reach it). On hosts whose page is smaller than 16 KiB the map starts
   * at a 16 KiB boundary and its tail is zero up to the next one. 0 when the file cannot be opened, is empty or is no regular file. */
  fileClose(file: Handle): void;
  /** Address of the first byte and size of the file in bytes; 0 for a bad handle. */
  fileAddress(file: Handle): number;
  /** Address of the first byte and size of the file in bytes; 0 for a bad handle. */
  fileBytes(file: Handle): number;
  /** madvise on a byte range (rounded outwards to pages). */
  fileAdvise(file: Handle, offsetBytes: number, bytes: number, advice: number): void;
  /** A private, writable mapping of the same file pages for a typed-array view: a stray write stays private. Gives the address of the byte at
   * offsetBytes, 0 on failure. bao_file_view_close unmaps it; it also has the shape of a Bun ArrayBuffer finalizer, context unused. */
  fileView(file: Handle, offsetBytes: number, bytes: number): number;
  /** A private, writable mapping of the same file pages for a typed-array view: a stray write stays private. Gives the address of the byte at
   * offsetBytes, 0 on failure. bao_file_view_close unmaps it; it also has the shape of a Bun ArrayBuffer finalizer, context unused. */
  fileViewClose(address: Memory, context: Memory): void;
  /** Bytes of `columns` values of dtype, 0 when that is no whole number of blocks or the type is unknown. */
  rowBytes(dtype: number, columns: number): number;
  /** rows * columns floats to dtype and back; sizes in bytes are checked against the shape. */
  quantize(dtype: number, source: Memory, sourceBytes: number, destination: Memory, destinationBytes: number, rows: number, columns: number): void;
  /** rows * columns floats to dtype and back; sizes in bytes are checked against the shape. */
  dequantize(dtype: number, source: Memory, sourceBytes: number, destination: Memory, destinationBytes: number, rows: number, columns: number): void;
  /** Relative error of a quantised block of rows: out[0] = sum of (dequantised - source)^2, out[1] = sum of source^2, as two doubles. */
  quantizeError(dtype: number, source: Memory, quantised: Memory, quantisedBytes: number, rows: number, columns: number, out: Memory): void;
  /** For benchmarks: bytes a second that `threads` threads reach which do nothing but read `bytes` of fresh memory (2^20 ... 10^12; far more than
   * the caches hold), the fastest of `passes` passes. 0 = failed. Takes that much memory while it runs, and a second or so. */
  hostReadBandwidth(threads: number, bytes: number, passes: number): number;
  /** For benchmarks: multiply-adds a second (each counted as two operations) that `threads` threads reach in registers with an instruction set
   * (BAO_ISA_*), the fastest of `passes` passes of some 10 ms. kind: F32, or INT8 dot products into int32. 0 = failed. */
  hostArithmetic(threads: number, isa: number, kind: number, passes: number): number;
  /** JSON: architecture, instruction sets of this processor, cores, page size. Owned by the library. */
  hostInfo(): string;
}

export function bindKernels(s: Native<typeof kernelSymbols>, fail: Fail): Kernels {
  return {
    abiVersion(): number { return s.bao_abi_version(); },
    backend(): string { return String(s.bao_backend() ?? ""); },
    lastError(): string { return String(s.bao_last_error() ?? ""); },
    lastStatus(): number { return s.bao_last_status(); },
    statusName(status: number): string { return String(s.bao_status_name(status) ?? ""); },
    deviceCount(): number { return s.bao_device_count(); },
    deviceOpen(index: number, threads: number, isa: number, precision: number, flags: number): Handle { const h = s.bao_device_open(index, threads, isa, precision, flags); if (h === 0) fail("bao_device_open", -1); return h; },
    deviceClose(device: Handle): void { const rc = s.bao_device_close(device); if (rc !== 0) fail("bao_device_close", rc); },
    deviceInfo(device: Handle): string { return String(s.bao_device_info(device) ?? ""); },
    caps(device: Handle): number { return s.bao_caps(device); },
    supports(device: Handle, op: number, dtype: number, d0: number, d1: number): number { return s.bao_supports(device, op, dtype, d0, d1); },
    memory(device: Handle, what: number): number { return s.bao_memory(device, what); },
    bufferCreate(device: Handle, bytes: number, kind: number): Handle { const h = s.bao_buffer_create(device, bytes, kind); if (h === 0) fail("bao_buffer_create", -1); return h; },
    bufferFree(buffer: Handle): void { const rc = s.bao_buffer_free(buffer); if (rc !== 0) fail("bao_buffer_free", rc); },
    bufferAddress(buffer: Handle): number { return s.bao_buffer_address(buffer); },
    bufferWrite(buffer: Handle, offsetBytes: number, source: Memory, bytes: number): void { const rc = s.bao_buffer_write(buffer, offsetBytes, source, bytes); if (rc !== 0) fail("bao_buffer_write", rc); },
    bufferRead(buffer: Handle, offsetBytes: number, destination: Memory, bytes: number): void { const rc = s.bao_buffer_read(buffer, offsetBytes, destination, bytes); if (rc !== 0) fail("bao_buffer_read", rc); },
    viewCreate(buffer: Handle, offsetBytes: number, dtype: number, rowsOf: number, d0: number, d1: number, d2: number, rowStrideBytes: number): Handle { const h = s.bao_view_create(buffer, offsetBytes, dtype, rowsOf, d0, d1, d2, rowStrideBytes); if (h === 0) fail("bao_view_create", -1); return h; },
    viewFree(view: Handle): void { const rc = s.bao_view_free(view); if (rc !== 0) fail("bao_view_free", rc); },
    mapCreate(device: Handle, address: number, bytes: number): Handle { const h = s.bao_map_create(device, address, bytes); if (h === 0) fail("bao_map_create", -1); return h; },
    mapFree(map: Handle): void { const rc = s.bao_map_free(map); if (rc !== 0) fail("bao_map_free", rc); },
    weightCreate(device: Handle, map: Handle, offsetBytes: number, dtype: number, rows: number, columns: number, experts: number, use: number): Handle { const h = s.bao_weight_create(device, map, offsetBytes, dtype, rows, columns, experts, use); if (h === 0) fail("bao_weight_create", -1); return h; },
    weightFree(weight: Handle): void { const rc = s.bao_weight_free(weight); if (rc !== 0) fail("bao_weight_free", rc); },
    vectorCreate(device: Handle, values: Memory, length: number): Handle { const h = s.bao_vector_create(device, values, length); if (h === 0) fail("bao_vector_create", -1); return h; },
    weightScale(weight: Handle, factors: Handle): void { const rc = s.bao_weight_scale(weight, factors); if (rc !== 0) fail("bao_weight_scale", rc); },
    weightsReady(device: Handle, timeoutMs: number): number { return s.bao_weights_ready(device, timeoutMs); },
    kvPoolCreate(device: Handle, table: number, layers: number, kvHeads: number, headDim: number, dtype: number, layout: number, rotated: number, maxPages: number): Handle { const h = s.bao_kv_pool_create(device, table, layers, kvHeads, headDim, dtype, layout, rotated, maxPages); if (h === 0) fail("bao_kv_pool_create", -1); return h; },
    kvPoolFree(pool: Handle): void { const rc = s.bao_kv_pool_free(pool); if (rc !== 0) fail("bao_kv_pool_free", rc); },
    kvPoolCommit(pool: Handle, pages: number): void { const rc = s.bao_kv_pool_commit(pool, pages); if (rc !== 0) fail("bao_kv_pool_commit", rc); },
    kvPageBytes(pool: Handle): number { return s.bao_kv_page_bytes(pool); },
    kvPageCopy(pool: Handle, destination: number, source: number, tokens: number): void { const rc = s.bao_kv_page_copy(pool, destination, source, tokens); if (rc !== 0) fail("bao_kv_page_copy", rc); },
    kvPageRead(pool: Handle, page: number, destination: Memory, bytes: number): void { const rc = s.bao_kv_page_read(pool, page, destination, bytes); if (rc !== 0) fail("bao_kv_page_read", rc); },
    kvPageWrite(pool: Handle, page: number, source: Memory, bytes: number): void { const rc = s.bao_kv_page_write(pool, page, source, bytes); if (rc !== 0) fail("bao_kv_page_write", rc); },
    stepCreate(device: Handle, slots: number, maxRows: number, maxOutputs: number, maxSequences: number, vocabulary: number, maxBias: number, pages0: number, pages1: number, pages2: number, pages3: number): Handle { const h = s.bao_step_create(device, slots, maxRows, maxOutputs, maxSequences, vocabulary, maxBias, pages0, pages1, pages2, pages3); if (h === 0) fail("bao_step_create", -1); return h; },
    stepFree(step: Handle): void { const rc = s.bao_step_free(step); if (rc !== 0) fail("bao_step_free", rc); },
    stepAddress(step: Handle, slot: number): number { return s.bao_step_address(step, slot); },
    stepField(step: Handle, field: number): number { return s.bao_step_field(step, field); },
    streamCreate(device: Handle, step: Handle): Handle { const h = s.bao_stream_create(device, step); if (h === 0) fail("bao_stream_create", -1); return h; },
    streamFree(stream: Handle): void { const rc = s.bao_stream_free(stream); if (rc !== 0) fail("bao_stream_free", rc); },
    streamBegin(stream: Handle): void { const rc = s.bao_stream_begin(stream); if (rc !== 0) fail("bao_stream_begin", rc); },
    streamEnd(stream: Handle): void { const rc = s.bao_stream_end(stream); if (rc !== 0) fail("bao_stream_end", rc); },
    submit(stream: Handle, slot: number): void { const rc = s.bao_submit(stream, slot); if (rc !== 0) fail("bao_submit", rc); },
    wait(stream: Handle, slot: number, timeoutMs: number): number { return s.bao_wait(stream, slot, timeoutMs); },
    poll(stream: Handle, slot: number): number { return s.bao_poll(stream, slot); },
    streamError(stream: Handle, slot: number): number { return s.bao_stream_error(stream, slot); },
    streamOps(stream: Handle): number { return s.bao_stream_ops(stream); },
    streamOp(stream: Handle, index: number): number { return s.bao_stream_op(stream, index); },
    streamProfile(stream: Handle, enable: number): void { const rc = s.bao_stream_profile(stream, enable); if (rc !== 0) fail("bao_stream_profile", rc); },
    streamTime(stream: Handle, index: number): number { return s.bao_stream_time(stream, index); },
    graphCreate(stream: Handle, rows: number, outputs: number): Handle { const h = s.bao_graph_create(stream, rows, outputs); if (h === 0) fail("bao_graph_create", -1); return h; },
    graphFree(graph: Handle): void { const rc = s.bao_graph_free(graph); if (rc !== 0) fail("bao_graph_free", rc); },
    graphSubmit(graph: Handle, slot: number): void { const rc = s.bao_graph_submit(graph, slot); if (rc !== 0) fail("bao_graph_submit", rc); },
    eventCreate(device: Handle): Handle { const h = s.bao_event_create(device); if (h === 0) fail("bao_event_create", -1); return h; },
    eventFree(event: Handle): void { const rc = s.bao_event_free(event); if (rc !== 0) fail("bao_event_free", rc); },
    eventRecord(stream: Handle, event: Handle): void { const rc = s.bao_event_record(stream, event); if (rc !== 0) fail("bao_event_record", rc); },
    eventWait(stream: Handle, event: Handle): void { const rc = s.bao_event_wait(stream, event); if (rc !== 0) fail("bao_event_wait", rc); },
    peerCopy(stream: Handle, dst: Handle, src: Handle): void { const rc = s.bao_peer_copy(stream, dst, src); if (rc !== 0) fail("bao_peer_copy", rc); },
    embed(stream: Handle, dst: Handle, weight: Handle, scale: number): void { const rc = s.bao_embed(stream, dst, weight, scale); if (rc !== 0) fail("bao_embed", rc); },
    rmsNorm(stream: Handle, dst: Handle, x: Handle, w: Handle, eps: number, scale: number): void { const rc = s.bao_rms_norm(stream, dst, x, w, eps, scale); if (rc !== 0) fail("bao_rms_norm", rc); },
    normAdd(stream: Handle, dst: Handle, residual: Handle, x: Handle, w: Handle, eps: number, scale: number): void { const rc = s.bao_norm_add(stream, dst, residual, x, w, eps, scale); if (rc !== 0) fail("bao_norm_add", rc); },
    addNorm(stream: Handle, sum: Handle, dst: Handle, residual: Handle, x: Handle, w: Handle, eps: number): void { const rc = s.bao_add_norm(stream, sum, dst, residual, x, w, eps); if (rc !== 0) fail("bao_add_norm", rc); },
    ropeTable(stream: Handle, dst: Handle, factors: Handle, nRot: number, base: number, freqScale: number): void { const rc = s.bao_rope_table(stream, dst, factors, nRot, base, freqScale); if (rc !== 0) fail("bao_rope_table", rc); },
    rope(stream: Handle, dst: Handle, x: Handle, table: Handle, mode: number): void { const rc = s.bao_rope(stream, dst, x, table, mode); if (rc !== 0) fail("bao_rope", rc); },
    kvAppend(stream: Handle, pool: Handle, layer: number, k: Handle, v: Handle): void { const rc = s.bao_kv_append(stream, pool, layer, k, v); if (rc !== 0) fail("bao_kv_append", rc); },
    attention(stream: Handle, dst: Handle, q: Handle, pool: Handle, layer: number, window: number, scale: number): void { const rc = s.bao_attention(stream, dst, q, pool, layer, window, scale); if (rc !== 0) fail("bao_attention", rc); },
    matmul(stream: Handle, dst: Handle, x: Handle, w: Handle): void { const rc = s.bao_matmul(stream, dst, x, w); if (rc !== 0) fail("bao_matmul", rc); },
    glu(stream: Handle, dst: Handle, gate: Handle, up: Handle, activation: number): void { const rc = s.bao_glu(stream, dst, gate, up, activation); if (rc !== 0) fail("bao_glu", rc); },
    topkSoftmax(stream: Handle, ids: Handle, weights: Handle, logits: Handle, renormalise: number): void { const rc = s.bao_topk_softmax(stream, ids, weights, logits, renormalise); if (rc !== 0) fail("bao_topk_softmax", rc); },
    moeMatmul(stream: Handle, dst: Handle, x: Handle, w: Handle, ids: Handle): void { const rc = s.bao_moe_matmul(stream, dst, x, w, ids); if (rc !== 0) fail("bao_moe_matmul", rc); },
    moeSum(stream: Handle, dst: Handle, x: Handle, weights: Handle): void { const rc = s.bao_moe_sum(stream, dst, x, weights); if (rc !== 0) fail("bao_moe_sum", rc); },
    add(stream: Handle, dst: Handle, a: Handle, b: Handle): void { const rc = s.bao_add(stream, dst, a, b); if (rc !== 0) fail("bao_add", rc); },
    scale(stream: Handle, dst: Handle, x: Handle, factor: number): void { const rc = s.bao_scale(stream, dst, x, factor); if (rc !== 0) fail("bao_scale", rc); },
    softcap(stream: Handle, dst: Handle, x: Handle, cap: number): void { const rc = s.bao_softcap(stream, dst, x, cap); if (rc !== 0) fail("bao_softcap", rc); },
    copy(stream: Handle, dst: Handle, x: Handle): void { const rc = s.bao_copy(stream, dst, x); if (rc !== 0) fail("bao_copy", rc); },
    gatherRows(stream: Handle, dst: Handle, x: Handle): void { const rc = s.bao_gather_rows(stream, dst, x); if (rc !== 0) fail("bao_gather_rows", rc); },
    pleCombine(stream: Handle, dst: Handle, projected: Handle, token: Handle, w: Handle, eps: number, projectedScale: number, scale: number): void { const rc = s.bao_ple_combine(stream, dst, projected, token, w, eps, projectedScale, scale); if (rc !== 0) fail("bao_ple_combine", rc); },
    poolRows(stream: Handle, dst: Handle, x: Handle): void { const rc = s.bao_pool_rows(stream, dst, x); if (rc !== 0) fail("bao_pool_rows", rc); },
    argmax(stream: Handle, dst: Handle, x: Handle): void { const rc = s.bao_argmax(stream, dst, x); if (rc !== 0) fail("bao_argmax", rc); },
    logitsProcess(stream: Handle, logits: Handle, mask: Handle): void { const rc = s.bao_logits_process(stream, logits, mask); if (rc !== 0) fail("bao_logits_process", rc); },
    logprobs(stream: Handle, logits: Handle): void { const rc = s.bao_logprobs(stream, logits); if (rc !== 0) fail("bao_logprobs", rc); },
    sample(stream: Handle, logits: Handle): void { const rc = s.bao_sample(stream, logits); if (rc !== 0) fail("bao_sample", rc); },
    normAddNorms(stream: Handle, sum: Handle, y0: Handle, y1: Handle, y2: Handle, residual: Handle, x: Handle, w: Handle, w0: Handle, w1: Handle, w2: Handle, scale1: number, eps: number, scale: number): void { const rc = s.bao_norm_add_norms(stream, sum, y0, y1, y2, residual, x, w, w0, w1, w2, scale1, eps, scale); if (rc !== 0) fail("bao_norm_add_norms", rc); },
    moeMerge(stream: Handle, sum: Handle, y: Handle, residual: Handle, a: Handle, wa: Handle, b: Handle, wb: Handle, w: Handle, wy: Handle, eps: number, scale: number): void { const rc = s.bao_moe_merge(stream, sum, y, residual, a, wa, b, wb, w, wy, eps, scale); if (rc !== 0) fail("bao_moe_merge", rc); },
    headNormRopeAppend(stream: Handle, q: Handle, k: Handle, v: Handle, wq: Handle, wk: Handle, table: Handle, mode: number, pool: Handle, layer: number, normV: number, eps: number): void { const rc = s.bao_head_norm_rope_append(stream, q, k, v, wq, wk, table, mode, pool, layer, normV, eps); if (rc !== 0) fail("bao_head_norm_rope_append", rc); },
    matmulGroup(stream: Handle, dst0: Handle, dst1: Handle, dst2: Handle, x: Handle, w0: Handle, w1: Handle, w2: Handle): void { const rc = s.bao_matmul_group(stream, dst0, dst1, dst2, x, w0, w1, w2); if (rc !== 0) fail("bao_matmul_group", rc); },
    matmulGlu(stream: Handle, dst: Handle, x: Handle, gate: Handle, up: Handle, activation: number): void { const rc = s.bao_matmul_glu(stream, dst, x, gate, up, activation); if (rc !== 0) fail("bao_matmul_glu", rc); },
    router(stream: Handle, ids: Handle, weights: Handle, x: Handle, w: Handle, renormalise: number): void { const rc = s.bao_router(stream, ids, weights, x, w, renormalise); if (rc !== 0) fail("bao_router", rc); },
    moeMatmulGlu(stream: Handle, dst: Handle, x: Handle, gate: Handle, up: Handle, ids: Handle, activation: number): void { const rc = s.bao_moe_matmul_glu(stream, dst, x, gate, up, ids, activation); if (rc !== 0) fail("bao_moe_matmul_glu", rc); },
    moeMatmulSum(stream: Handle, dst: Handle, x: Handle, w: Handle, ids: Handle, weights: Handle): void { const rc = s.bao_moe_matmul_sum(stream, dst, x, w, ids, weights); if (rc !== 0) fail("bao_moe_matmul_sum", rc); },
  };
}

export function bindHost(s: Native<typeof hostSymbols>, fail: Fail): Host {
  return {
    fileOpen(path: string): Handle { const h = s.bao_file_open(cString(path)); if (h === 0) fail("bao_file_open", -1); return h; },
    fileClose(file: Handle): void { const rc = s.bao_file_close(file); if (rc !== 0) fail("bao_file_close", rc); },
    fileAddress(file: Handle): number { return s.bao_file_address(file); },
    fileBytes(file: Handle): number { return s.bao_file_bytes(file); },
    fileAdvise(file: Handle, offsetBytes: number, bytes: number, advice: number): void { const rc = s.bao_file_advise(file, offsetBytes, bytes, advice); if (rc !== 0) fail("bao_file_advise", rc); },
    fileView(file: Handle, offsetBytes: number, bytes: number): number { return s.bao_file_view(file, offsetBytes, bytes); },
    fileViewClose(address: Memory, context: Memory): void { s.bao_file_view_close(address, context); },
    rowBytes(dtype: number, columns: number): number { return s.bao_row_bytes(dtype, columns); },
    quantize(dtype: number, source: Memory, sourceBytes: number, destination: Memory, destinationBytes: number, rows: number, columns: number): void { const rc = s.bao_quantize(dtype, source, sourceBytes, destination, destinationBytes, rows, columns); if (rc !== 0) fail("bao_quantize", rc); },
    dequantize(dtype: number, source: Memory, sourceBytes: number, destination: Memory, destinationBytes: number, rows: number, columns: number): void { const rc = s.bao_dequantize(dtype, source, sourceBytes, destination, destinationBytes, rows, columns); if (rc !== 0) fail("bao_dequantize", rc); },
    quantizeError(dtype: number, source: Memory, quantised: Memory, quantisedBytes: number, rows: number, columns: number, out: Memory): void { const rc = s.bao_quantize_error(dtype, source, quantised, quantisedBytes, rows, columns, out); if (rc !== 0) fail("bao_quantize_error", rc); },
    hostReadBandwidth(threads: number, bytes: number, passes: number): number { return s.bao_host_read_bandwidth(threads, bytes, passes); },
    hostArithmetic(threads: number, isa: number, kind: number, passes: number): number { return s.bao_host_arithmetic(threads, isa, kind, passes); },
    hostInfo(): string { return String(s.bao_host_info() ?? ""); },
  };
}
