#pragma once
#include <stddef.h>
#ifdef __cplusplus
extern "C" {
#endif
typedef long long off_t;
long sysconf(int);
int getpagesize(void);
#define _SC_PAGESIZE 29
#define _SC_NPROCESSORS_ONLN 58
#define _SC_PHYS_PAGES 200
int close(int);
#ifdef __cplusplus
}
#endif
