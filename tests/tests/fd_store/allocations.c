/* For LD_PRELOAD: counts the allocations of a program by malloc(3), calloc, realloc and the aligned functions, while the file
 * COUNT_WHILE exists. At the end of the program it prints the count. It does not count mmap(2). */
#define _GNU_SOURCE
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* glibc's own functions, under the names that it exports for this purpose. */
void *__libc_malloc(size_t);
void *__libc_calloc(size_t, size_t);
void *__libc_realloc(void *, size_t);
void *__libc_memalign(size_t, size_t);

static long counted;

static void count(void) {
    const char *path = getenv("COUNT_WHILE");
    int error = errno;
    if (path && access(path, F_OK) == 0)
        __atomic_add_fetch(&counted, 1, __ATOMIC_RELAXED);
    errno = error;
}

void *malloc(size_t size) {
    count();
    return __libc_malloc(size);
}

void *calloc(size_t items, size_t size) {
    count();
    return __libc_calloc(items, size);
}

void *realloc(void *block, size_t size) {
    count();
    return __libc_realloc(block, size);
}

void *memalign(size_t alignment, size_t size) {
    count();
    return __libc_memalign(alignment, size);
}

void *aligned_alloc(size_t alignment, size_t size) { return memalign(alignment, size); }

int posix_memalign(void **block, size_t alignment, size_t size) {
    *block = memalign(alignment, size);
    return *block ? 0 : ENOMEM;
}

__attribute__((destructor)) static void print(void) {
    char line[100];
    int length = snprintf(line, sizeof line, "allocations: %ld\n", counted);
    if (write(2, line, (size_t)length) != length)
        abort();
}
