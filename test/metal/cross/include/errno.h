#pragma once
#ifdef __cplusplus
extern "C" {
#endif
int* __error(void);
#define errno (*__error())
#define ENOENT 2
#define EINTR 4
#define ENOMEM 12
#define EBUSY 16
#define EINVAL 22
#define ERANGE 34
#define EAGAIN 35
#define ETIMEDOUT 60
#ifdef __cplusplus
}
#endif
