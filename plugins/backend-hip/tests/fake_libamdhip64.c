/* A libamdhip64 for tests: answers what the -D switches say, from constants.
 *
 * FAKE_INIT         status of hipInit                          (default 0)
 * FAKE_VERSION      what hipRuntimeGetVersion reports          (default 7.1)
 * FAKE_COUNT        number of devices                          (default 2)
 * FAKE_LACKS_R0600  the properties function of HIP 6 is not there
 */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#ifndef FAKE_INIT
#define FAKE_INIT 0
#endif
#ifndef FAKE_VERSION
#define FAKE_VERSION 70100000
#endif
#ifndef FAKE_COUNT
#define FAKE_COUNT 2
#endif

static int initialised = 0;

int hipInit(unsigned flags) {
    if (flags != 0)
        return 1;
    initialised = FAKE_INIT == 0;
    return FAKE_INIT;
}

/* As the real one: works without hipInit. */
int hipRuntimeGetVersion(int *version) {
    *version = FAKE_VERSION;
    return 0;
}

int hipGetDeviceCount(int *count) {
    if (!initialised)
        return 3;
    *count = FAKE_COUNT;
    return FAKE_COUNT ? 0 : 100;
}

#ifndef FAKE_LACKS_R0600
/* The fields of hipDeviceProp_tR0600 by their offsets; the rest is filled with
 * noise, so that a reader of a wrong offset does not get zeros. */
int hipGetDevicePropertiesR0600(char *properties, int device) {
    if (!initialised)
        return 3;
    if (device < 0 || device >= FAKE_COUNT)
        return 101;
    uint64_t memory = (uint64_t)(device + 1) << 34;
    int integrated = device == 0;
    memset(properties, 'x', 1472);
    snprintf(properties, 256, "AMD Fake %d", device);
    memcpy(properties + 288, &memory, sizeof memory);
    memcpy(properties + 396, &integrated, sizeof integrated);
    snprintf(properties + 1160, 256, "%s", device == 0 ? "gfx1151" : "gfx90a:sramecc+:xnack-");
    return 0;
}
#endif

int hipDeviceGetPCIBusId(char *text, int capacity, int device) {
    if (!initialised)
        return 3;
    if (device < 0 || device >= FAKE_COUNT)
        return 101;
    snprintf(text, (size_t)capacity, "0000:%02X:00.0", 0xC1 + device);
    return 0;
}

const char *hipGetErrorName(int status) {
    return status == 3 ? "hipErrorNotInitialized" : "hipErrorUnknown";
}
