/* A libnvidia-ml.so.1 with five devices, for driving the real binding without a GPU.
 *
 *   0  a GPU                       1  another, with other values
 *   2  a GPU that measures no power
 *   3  a GPU in MIG mode           4  the one MIG device on it
 *
 * Environment:
 *   FAKE_NVML_INIT=CODE              nvmlInit answers CODE
 *   FAKE_NVML_FAIL=DEVICE:AFTER:FOR:CODE
 *                                    every query of DEVICE answers CODE once AFTER queries have
 *                                    been answered, for FOR queries (0: for ever)
 *   FAKE_NVML_CALLS=FILE             appends "DEVICE FUNCTION" for every query
 *   FAKE_NVML_HANG=1                 nvmlDeviceGetUtilizationRates never returns
 * Compiled with -DDRIVER_BEFORE_R510 it lacks nvmlDeviceGetMemoryInfo_v2.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, VERSION_MISMATCH = 25 };
enum { CLOCK_SM = 1 };
#define MIB (1024ULL * 1024)
#define ABSENT (~0U)

typedef struct device {
    const char *uuid, *name;
    unsigned long long total_mib, used_mib, reserved_mib;
    unsigned int utilization_percent, power_mw, sm_clock_mhz;
    int is_mig, mig_mode;
} device;

static device fleet[] = {
    {"GPU-00000000-aaaa-4000-8000-000000000000", "Fake V100 A", 16384, 4096, 256, 90, 250000, 1380, 0, 0},
    {"GPU-11111111-bbbb-4000-8000-000000000001", "Fake V100 B", 16384, 2048, 256, 50, 150500, 1200, 0, 0},
    {"GPU-22222222-cccc-4000-8000-000000000002", "Fake T4", 15360, 1024, 128, 70, ABSENT, 900, 0, 0},
    {"GPU-33333333-dddd-4000-8000-000000000003", "Fake A100", 40960, 30720, 512, ABSENT, 300000, 1410, 0, 1},
    {"MIG-44444444-eeee-4000-8000-000000000004", "Fake A100 MIG 1g.5gb", 4864, 512, 16, ABSENT, 300000, ABSENT, 1, 0},
};
#define FLEET_SIZE (sizeof fleet / sizeof fleet[0])
#define MIG_PARENT (&fleet[3])

static unsigned int answered[FLEET_SIZE];

/* The answer of every query: counted, logged, and failing where the environment says so. */
static int query(device *d, const char *function) {
    unsigned int index = (unsigned int)(d - fleet), device_index, after, length;
    int code;
    const char *calls = getenv("FAKE_NVML_CALLS"), *fail = getenv("FAKE_NVML_FAIL");
    if (calls) {
        FILE *log = fopen(calls, "a");
        if (log) {
            fprintf(log, "%u %s\n", index, function);
            fclose(log);
        }
    }
    unsigned int number = answered[index]++;
    if (fail && sscanf(fail, "%u:%u:%u:%d", &device_index, &after, &length, &code) == 4 &&
        device_index == index && number >= after && (!length || number < after + length))
        return code;
    return SUCCESS;
}

int nvmlInitWithFlags(unsigned int flags) {
    (void)flags;
    const char *code = getenv("FAKE_NVML_INIT");
    return code ? atoi(code) : SUCCESS;
}

int nvmlShutdown(void) { return SUCCESS; }

const char *nvmlErrorString(int code) {
    (void)code;
    return "an error that the binding has no text for";
}

int nvmlSystemGetDriverVersion(char *version, unsigned int length) {
    snprintf(version, length, "575.57.08");
    return SUCCESS;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, device **handle) {
    if (strncmp(uuid, "GPU-", 4) && strncmp(uuid, "MIG-", 4))
        return INVALID_ARGUMENT;
    for (size_t i = 0; i < FLEET_SIZE; i++)
        if (!strcmp(uuid, fleet[i].uuid)) {
            *handle = &fleet[i];
            return SUCCESS;
        }
    return NOT_FOUND;
}

int nvmlDeviceGetName(device *d, char *name, unsigned int length) {
    snprintf(name, length, "%s", d->name);
    return SUCCESS;
}

int nvmlDeviceIsMigDeviceHandle(device *d, unsigned int *is_mig) {
    *is_mig = (unsigned int)d->is_mig;
    return SUCCESS;
}

int nvmlDeviceGetMigMode(device *d, unsigned int *current, unsigned int *pending) {
    if (!d->mig_mode)
        return NOT_SUPPORTED;
    *current = *pending = 1;
    return SUCCESS;
}

int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(device *d, device **parent) {
    if (!d->is_mig)
        return INVALID_ARGUMENT;
    *parent = MIG_PARENT;
    return SUCCESS;
}

/* Like a driver, it leaves 0 behind where it answers with an error. */
static int unsigned_answer(device *d, const char *function, unsigned int value, unsigned int *out) {
    int code = query(d, function);
    *out = 0;
    if (code != SUCCESS)
        return code;
    if (value == ABSENT)
        return NOT_SUPPORTED;
    *out = value;
    return SUCCESS;
}

int nvmlDeviceGetUtilizationRates(device *d, unsigned int rates[2]) {
    while (getenv("FAKE_NVML_HANG"))
        pause();
    rates[1] = 0;
    return unsigned_answer(d, "utilization", d->utilization_percent, &rates[0]);
}

int nvmlDeviceGetPowerUsage(device *d, unsigned int *milliwatts) {
    return unsigned_answer(d, "power", d->power_mw, milliwatts);
}

int nvmlDeviceGetClockInfo(device *d, int type, unsigned int *mhz) {
    if (type != CLOCK_SM)
        return INVALID_ARGUMENT;
    return unsigned_answer(d, "clock", d->sm_clock_mhz, mhz);
}

int nvmlDeviceGetMemoryInfo(device *d, unsigned long long memory[3]) {
    int code = query(d, "memory");
    if (code != SUCCESS)
        return code;
    memory[0] = d->total_mib * MIB;
    memory[2] = (d->used_mib + d->reserved_mib) * MIB;
    memory[1] = memory[0] - memory[2];
    return SUCCESS;
}

#ifndef DRIVER_BEFORE_R510
struct memory_v2 {
    unsigned int version;
    unsigned long long total, reserved, free, used;
};

int nvmlDeviceGetMemoryInfo_v2(device *d, struct memory_v2 *memory) {
    if (memory->version != (sizeof *memory | 2U << 24))
        return VERSION_MISMATCH;
    int code = query(d, "memory_v2");
    if (code != SUCCESS)
        return code;
    memory->total = d->total_mib * MIB;
    memory->reserved = d->reserved_mib * MIB;
    memory->used = d->used_mib * MIB;
    memory->free = memory->total - memory->reserved - memory->used;
    return SUCCESS;
}
#endif
