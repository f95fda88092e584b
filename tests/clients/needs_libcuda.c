/* A program that the loader binds to libcuda.so.1 when it starts, as programs linked with -lcuda
   are. Prints the total, and the code of a request for one byte more. */
#include <stddef.h>
#include <stdio.h>

int cuInit(unsigned flags);
int cuDeviceGet(int *device, int ordinal);
int cuDevicePrimaryCtxRetain(void **context, int device);
int cuCtxSetCurrent(void *context);
int cuMemGetInfo_v2(size_t *free_bytes, size_t *total);
int cuMemAlloc_v2(unsigned long long *pointer, size_t bytes);

int main(void) {
    int device = 0;
    void *context = NULL;
    size_t free_bytes = 0, total = 0;
    unsigned long long pointer = 0;
    int code = cuInit(0);
    if (code == 0) code = cuDeviceGet(&device, 0);
    if (code == 0) code = cuDevicePrimaryCtxRetain(&context, device);
    if (code == 0) code = cuCtxSetCurrent(context);
    if (code == 0) code = cuMemGetInfo_v2(&free_bytes, &total);
    if (code != 0) {
        fprintf(stderr, "the driver answers %d\n", code);
        return 1;
    }
    printf("%zu %d\n", total, cuMemAlloc_v2(&pointer, total + 1));
    return 0;
}
