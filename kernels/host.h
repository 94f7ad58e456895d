/*
 * host.h: what only the CPU library exports (it is always loaded, whatever device runs the model): file maps, views, row conversion.
 * The rules of bao.h apply: handles are doubles, 0 = failed, statuses, bao_last_error(). Paths are NUL-terminated UTF-8.
 */
#ifndef BAO_HOST_H
#define BAO_HOST_H

#include "bao.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { BAO_ARITHMETIC_F32 = 0, BAO_ARITHMETIC_INT8 = 1 };
enum { BAO_ADVISE_NORMAL = 0, BAO_ADVISE_WILL_NEED = 1, BAO_ADVISE_SEQUENTIAL = 2, BAO_ADVISE_DONT_NEED = 3 };

/* Maps a whole regular file read-only (private, so that no write can reach it). On hosts whose page is smaller than 16 KiB the map starts
 * at a 16 KiB boundary and its tail is zero up to the next one. 0 when the file cannot be opened, is empty or is no regular file. */
BAO_API bao_handle bao_file_open(const char* path);
BAO_API int32_t bao_file_close(bao_handle file);

/* Address of the first byte and size of the file in bytes; 0 for a bad handle. */
BAO_API double bao_file_address(bao_handle file);
BAO_API double bao_file_bytes(bao_handle file);

/* madvise on a byte range (rounded outwards to pages). */
BAO_API int32_t bao_file_advise(bao_handle file, double offsetBytes, double bytes, int32_t advice);

/* A private, writable mapping of the same file pages for a typed-array view: a stray write stays private. Gives the address of the byte at
 * offsetBytes, 0 on failure. bao_file_view_close unmaps it; it also has the shape of a Bun ArrayBuffer finalizer, context unused. */
BAO_API double bao_file_view(bao_handle file, double offsetBytes, double bytes);
BAO_API void bao_file_view_close(void* address, void* context);

/* Bytes of `columns` values of dtype, 0 when that is no whole number of blocks or the type is unknown. */
BAO_API double bao_row_bytes(int32_t dtype, double columns);

/* rows * columns floats to dtype and back; sizes in bytes are checked against the shape. */
BAO_API int32_t bao_quantize(int32_t dtype, const void* source, double sourceBytes, void* destination, double destinationBytes, int32_t rows, int32_t columns);
BAO_API int32_t bao_dequantize(int32_t dtype, const void* source, double sourceBytes, void* destination, double destinationBytes, int32_t rows, int32_t columns);

/* Relative error of a quantised block of rows: out[0] = sum of (dequantised - source)^2, out[1] = sum of source^2, as two doubles. */
BAO_API int32_t bao_quantize_error(int32_t dtype, const void* source, const void* quantised, double quantisedBytes, int32_t rows, int32_t columns, void* out);

/* For benchmarks: bytes a second that `threads` threads reach which do nothing but read `bytes` of fresh memory (2^20 ... 10^12; far more than
 * the caches hold), the fastest of `passes` passes. 0 = failed. Takes that much memory while it runs, and a second or so. */
BAO_API double bao_host_read_bandwidth(int32_t threads, double bytes, int32_t passes);

/* For benchmarks: multiply-adds a second (each counted as two operations) that `threads` threads reach in registers with an instruction set
 * (BAO_ISA_*), the fastest of `passes` passes of some 10 ms. kind: F32, or INT8 dot products into int32. 0 = failed. */
BAO_API double bao_host_arithmetic(int32_t threads, int32_t isa, int32_t kind, int32_t passes);

/* JSON: architecture, instruction sets of this processor, cores, page size. Owned by the library. */
BAO_API const char* bao_host_info(void);

#ifdef __cplusplus
}
#endif
#endif /* BAO_HOST_H */
