// Our own stand-in for Apple's <metal_stdlib>: MSL's types and functions for clang's C++17 on a CPU. What a kernel does not find here does not
// compile; nothing is silently different. EMU_CHECK_SPACES=1: address spaces are types, for the pass that only checks. 0: they are gone.
#pragma once
#pragma clang system_header

#include <limits>
#include <type_traits>
#include <utility>

#include "executor/abi.h"

#if EMU_CHECK_SPACES
#define device __attribute__((address_space(1)))
#define constant __attribute__((address_space(2))) const
#define threadgroup __attribute__((address_space(3)))
#else
#define device
#define constant const
#define threadgroup
#endif
#define thread

// Code of the library itself is not checked. A collective knows where it was called: line * 1000 + column.
#define EMU_UNCHECKED __attribute__((disable_sanitizer_instrumentation))
#define EMU_SITE int site = __builtin_LINE() * 1000 + __builtin_COLUMN()

#include "types.h"
#include "math.h"
#include "simd.h"
#include "simdgroup_matrix.h"
#include "atomic.h"
#include "entry.h"
// Last: from here on float4(...) is a macro.
#include "constructors.h"
