/* A library as communication libraries are: opened locally, opens the driver itself, gets some
   functions by dlsym and some by the driver's own look-up, and makes physical memory that could be
   shared, first on the host and then on the device. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>

struct prop {
    int type, handle_types, location_type, location_id;
    void *win32;
    unsigned long long flags;
};

typedef int (*lookup_fn)(const char *, void **, int, unsigned long long, int *);
typedef int (*create_fn)(unsigned long long *, size_t, const struct prop *, unsigned long long);

/* Returns the code of the first call that fails; *used is what is held afterwards, *beyond the
   code of a request for more than there is. */
int open_and_allocate(size_t *used, int *beyond) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (driver == NULL) return -1;
    lookup_fn lookup = (lookup_fn)dlsym(driver, "cuGetProcAddress_v2");
    int (*init)(unsigned) = (int (*)(unsigned))dlsym(driver, "cuInit");
    int (*retain)(void **, int) = (int (*)(void **, int))dlsym(driver, "cuDevicePrimaryCtxRetain");
    int (*current)(void *) = (int (*)(void *))dlsym(driver, "cuCtxSetCurrent");
    if (lookup == NULL || init == NULL || retain == NULL || current == NULL) return -2;
    void *context = NULL;
    int code = init(0);
    if (code == 0) code = retain(&context, 0);
    if (code == 0) code = current(context);
    if (code != 0) return code;

    int status = 0;
    create_fn create = NULL;
    int (*info)(size_t *, size_t *) = NULL;
    code = lookup("cuMemCreate", (void **)&create, 10020, 0, &status);
    if (code == 0) code = lookup("cuMemGetInfo", (void **)&info, 3020, 0, &status);
    if (code != 0 || create == NULL || info == NULL) return -3;

    unsigned long long handle = 0;
    struct prop host = {1, 1, 3, 0, NULL, 0}, device = {1, 1, 1, 0, NULL, 0};
    create(&handle, 64 << 20, &host, 0);
    code = create(&handle, 64 << 20, &device, 0);
    if (code == 0x321) { /* not supported: this driver shares no handles */
        device.handle_types = 0;
        code = create(&handle, 64 << 20, &device, 0);
    }
    if (code != 0) return code;
    size_t free_bytes = 0, total = 0;
    code = info(&free_bytes, &total);
    *used = total - free_bytes;
    *beyond = create(&handle, total, &device, 0);
    return code;
}
