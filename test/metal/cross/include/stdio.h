#pragma once
#include <stddef.h>
#ifdef __cplusplus
extern "C" {
#endif
typedef struct __sFILE FILE;
typedef long long fpos_t;
#define EOF (-1)
#define SEEK_SET 0
#define SEEK_CUR 1
#define SEEK_END 2
int fclose(FILE*);
int fflush(FILE*);
FILE* fopen(const char*, const char*);
FILE* freopen(const char*, const char*, FILE*);
void setbuf(FILE*, char*);
int setvbuf(FILE*, char*, int, size_t);
int fprintf(FILE*, const char*, ...) __attribute__((format(printf, 2, 3)));
int printf(const char*, ...) __attribute__((format(printf, 1, 2)));
int snprintf(char*, size_t, const char*, ...) __attribute__((format(printf, 3, 4)));
int sprintf(char*, const char*, ...) __attribute__((format(printf, 2, 3)));
int fscanf(FILE*, const char*, ...);
int scanf(const char*, ...);
int sscanf(const char*, const char*, ...);
int vfprintf(FILE*, const char*, __builtin_va_list);
int vprintf(const char*, __builtin_va_list);
int vsnprintf(char*, size_t, const char*, __builtin_va_list);
int vsprintf(char*, const char*, __builtin_va_list);
int vfscanf(FILE*, const char*, __builtin_va_list);
int vscanf(const char*, __builtin_va_list);
int vsscanf(const char*, const char*, __builtin_va_list);
int fgetc(FILE*);
char* fgets(char*, int, FILE*);
int fputc(int, FILE*);
int fputs(const char*, FILE*);
int getc(FILE*);
int putc(int, FILE*);
int getchar(void);
int putchar(int);
int puts(const char*);
int ungetc(int, FILE*);
size_t fread(void*, size_t, size_t, FILE*);
size_t fwrite(const void*, size_t, size_t, FILE*);
int fgetpos(FILE*, fpos_t*);
int fsetpos(FILE*, const fpos_t*);
int fseek(FILE*, long, int);
long ftell(FILE*);
void rewind(FILE*);
void clearerr(FILE*);
int feof(FILE*);
int ferror(FILE*);
void perror(const char*);
int remove(const char*);
int rename(const char*, const char*);
FILE* tmpfile(void);
char* tmpnam(char*);
#ifdef __cplusplus
}
#endif
