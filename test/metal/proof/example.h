// A small Metal host with a plain C interface: what the emulator is proven with, because its bugs can be planted one by one.
#pragma once
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
typedef struct ex_context ex_context;
typedef struct ex_buffer ex_buffer;
typedef struct { ex_buffer* buffer; uint64_t offset; } ex_operand;

// Every call gives 0 or a handle on success; ex_error() tells what went wrong.
const char* ex_error(void);
ex_context* ex_open(const char* source);  // MSL text
void ex_close(ex_context* c);
ex_buffer* ex_allocate(ex_context* c, uint64_t bytes);
ex_buffer* ex_wrap(ex_context* c, void* pages, uint64_t bytes);  // not copied
void* ex_contents(ex_buffer* b);
void ex_free(ex_buffer* b);
int ex_pipeline(ex_context* c, const char* name, uint32_t flags, uint32_t count);  // flags: function constants, bit i = constant i
int ex_begin(ex_context* c);
// Buffers at 0 ... n - 1 (null: skipped), params at index `at`, threadgroup memory at [[threadgroup(0)]].
int ex_dispatch(ex_context* c, int pipeline, const ex_operand* operands, int n, const void* params, uint32_t bytes, int at, uint32_t group_memory,
                const uint32_t* groups, const uint32_t* threads);
int ex_end(ex_context* c, int wait);  // commits
int ex_wait(ex_context* c);
#ifdef __cplusplus
}
#endif
