#pragma once
typedef signed char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long long int64_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned uint32_t;
typedef unsigned long long uint64_t;
typedef int8_t int_least8_t, int_fast8_t;
typedef uint8_t uint_least8_t, uint_fast8_t;
typedef int16_t int_least16_t, int_fast16_t;
typedef uint16_t uint_least16_t, uint_fast16_t;
typedef int32_t int_least32_t, int_fast32_t;
typedef uint32_t uint_least32_t, uint_fast32_t;
typedef int64_t int_least64_t, int_fast64_t;
typedef uint64_t uint_least64_t, uint_fast64_t;
typedef long intptr_t;
typedef unsigned long uintptr_t;
typedef long intmax_t;
typedef unsigned long uintmax_t;
#define INT8_MAX __INT8_MAX__
#define INT8_MIN (-INT8_MAX - 1)
#define UINT8_MAX __UINT8_MAX__
#define INT16_MAX __INT16_MAX__
#define INT16_MIN (-INT16_MAX - 1)
#define UINT16_MAX __UINT16_MAX__
#define INT32_MAX __INT32_MAX__
#define INT32_MIN (-INT32_MAX - 1)
#define UINT32_MAX __UINT32_MAX__
#define INT64_MAX __INT64_MAX__
#define INT64_MIN (-INT64_MAX - 1)
#define UINT64_MAX __UINT64_MAX__
#define INTPTR_MAX __INTPTR_MAX__
#define UINTPTR_MAX __UINTPTR_MAX__
#define SIZE_MAX __SIZE_MAX__
#define INT64_C(v) v##LL
#define UINT32_C(v) v##U
#define UINT64_C(v) v##ULL
