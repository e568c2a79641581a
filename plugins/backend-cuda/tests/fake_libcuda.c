/* A libcuda for tests: answers what the -D switches say, from constants.
 *
 * FAKE_INIT      status of cuInit and everything after it    (default 0)
 * FAKE_VERSION   what cuDriverGetVersion reports             (default 13000)
 * FAKE_COUNT     number of devices                           (default 2)
 * FAKE_STUB      every function returns 34, as NVIDIA's stub does
 * FAKE_LACKS_PCI cuDeviceGetPCIBusId is not there
 */
#include <stddef.h>
#include <stdio.h>

#ifndef FAKE_INIT
#define FAKE_INIT 0
#endif
#ifndef FAKE_VERSION
#define FAKE_VERSION 13000
#endif
#ifndef FAKE_COUNT
#define FAKE_COUNT 2
#endif
#ifdef FAKE_STUB
#define ANSWER(status) return 34
#else
#define ANSWER(status) return (status)
#endif

static int initialised = 0;
/* As the real driver: 3 (not initialised) for calls before cuInit. */
#define NEEDS_INIT                                                                                 \
    do {                                                                                           \
        if (!initialised)                                                                          \
            ANSWER(3);                                                                             \
    } while (0)

int cuInit(unsigned flags) {
    if (flags != 0)
        return 1;
    if (FAKE_INIT == 0)
        initialised = 1;
    ANSWER(FAKE_INIT);
}

int cuDriverGetVersion(int *version) {
    *version = FAKE_VERSION;
    ANSWER(0);
}

int cuDeviceGetCount(int *count) {
    NEEDS_INIT;
    *count = FAKE_COUNT;
    ANSWER(0);
}

int cuDeviceGet(int *device, int ordinal) {
    NEEDS_INIT;
    if (ordinal < 0 || ordinal >= FAKE_COUNT)
        return 101;
    /* Handles that are not the ordinals: a caller that mixes them up fails. */
    *device = 70 + ordinal;
    ANSWER(0);
}

int cuDeviceGetName(char *name, int capacity, int device) {
    NEEDS_INIT;
    if (device < 70)
        return 101;
    snprintf(name, (size_t)capacity, "NVIDIA Fake %d", device - 70);
    ANSWER(0);
}

int cuDeviceGetAttribute(int *value, int attribute, int device) {
    NEEDS_INIT;
    if (device < 70)
        return 101;
    switch (attribute) {
    case 75: *value = device == 70 ? 9 : 12; ANSWER(0);
    case 76: *value = device == 70 ? 0 : 1; ANSWER(0);
    case 18: *value = device == 70 ? 0 : 1; ANSWER(0);
    default: return 1;
    }
}

#ifndef FAKE_LACKS_PCI
int cuDeviceGetPCIBusId(char *text, int capacity, int device) {
    NEEDS_INIT;
    if (device < 70)
        return 101;
    snprintf(text, (size_t)capacity, "0000:%02X:00.0", 0xC1 + device - 70);
    ANSWER(0);
}
#endif

int cuDeviceTotalMem_v2(size_t *bytes, int device) {
    NEEDS_INIT;
    if (device < 70)
        return 101;
    *bytes = (size_t)(device - 69) << 34;
    ANSWER(0);
}

int cuGetErrorName(int status, const char **text) {
    switch (status) {
    case 802: *text = "CUDA_ERROR_SYSTEM_NOT_READY"; return 0;
    case 803: *text = "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"; return 0;
    default: *text = NULL; return 1;
    }
}
